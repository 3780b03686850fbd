"""Limit for bytes per second: a token bucket that counts real bytes, shared by all reads and copies of one run.

Bytes are taken before they move. A caller that knows the size only afterwards takes an estimate and corrects it, so
errors of estimates never add up. An entry larger than the bucket moves at once and is paid for afterwards: the balance
becomes negative, and the next entry waits until it is not.
"""

from __future__ import annotations

import asyncio

from runtime.ports import Clock

BURST_S = 0.1
"""The bucket holds this much time's worth of bytes: what was not used earlier is lost."""

STEP_S = 0.05
"""A waiting caller looks again after this time, because the rate or the balance may have changed meanwhile."""

_NS = 10**9


class CopyRate:
    """See the module docstring. ``bytes_per_second`` None: no limit."""

    def __init__(self, clock: Clock, bytes_per_second: int | None) -> None:
        assert bytes_per_second is None or bytes_per_second > 0
        self._clock = clock
        self._bytes_per_second = bytes_per_second
        self._balance = 0
        """Bytes times 10^9, so that nothing is rounded."""
        self._counted_at_ns = clock.monotonic_ns()
        self._turn = asyncio.Lock()

    @property
    def bytes_per_second(self) -> int | None:
        """The current limit."""
        return self._bytes_per_second

    def change(self, bytes_per_second: int | None) -> None:
        """Set the limit from now on. A debt remains, and is paid at the new rate."""
        assert bytes_per_second is None or bytes_per_second > 0
        self._refill()
        self._bytes_per_second = bytes_per_second

    async def take(self, size_bytes: int) -> None:
        """Wait, in order of the calls, until the bytes taken before are paid for, then take these."""
        async with self._turn:
            while (wait_s := self._wait_s()) > 0:
                await self._clock.sleep(min(wait_s, STEP_S))
            self._balance -= size_bytes * _NS

    def correct(self, taken_bytes: int, real_bytes: int) -> None:
        """Replace an estimate that was taken by the real size."""
        self._balance += (taken_bytes - real_bytes) * _NS

    def _wait_s(self) -> float:
        self._refill()
        if self._bytes_per_second is None or self._balance >= 0:
            return 0.0
        wait_ns = -(self._balance // self._bytes_per_second)  # rounded up
        return wait_ns / _NS

    def _refill(self) -> None:
        now_ns = self._clock.monotonic_ns()
        elapsed_ns, self._counted_at_ns = now_ns - self._counted_at_ns, now_ns
        if self._bytes_per_second is None:
            self._balance = 0
            return
        size_max = int(self._bytes_per_second * BURST_S * _NS)
        self._balance = min(self._balance + elapsed_ns * self._bytes_per_second, size_max)
