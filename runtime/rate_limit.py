"""The one limit of a rate: a token bucket of any unit, for example bytes or requests.

The balance may become negative: what is larger than the bucket begins at once and is paid for afterwards, and nothing
else begins until the balance is zero again. A caller that learns the size only afterwards takes an estimate, or
nothing, and spends the difference, so errors of estimates never add up. In any time t, what is taken is at most rate
times t, the bucket, and the last amount taken.
"""

from __future__ import annotations

import asyncio
import math

from bkctl.runtime.ports import Clock

_EARLY_S = 1e-6
"""A wait of less than this is none: timers may be early by about so much. It is not lost, because the debt remains."""


class RateLimit:
    """At most ``per_s`` units per second; None: no limit. ``burst_s``: the bucket holds so much time's worth of them.

    The bucket is empty at first. Without a burst, idle time is lost.
    """

    def __init__(self, clock: Clock, per_s: float | None, burst_s: float = 0.0) -> None:
        self._clock = clock
        self._now_ns = clock.monotonic_ns
        self._burst_s = burst_s
        self._turn = asyncio.Lock()
        self._pause: asyncio.Future[None] | None = None
        self._balance = self._size = self._per_ns = 0.0
        self._counted_ns = self._now_ns()
        """When the balance was this. It is counted again only when it changes: looks at it add no rounding."""
        self.change(per_s)

    @property
    def per_s(self) -> float | None:
        """The current limit."""
        return self._per_s

    def change(self, per_s: float | None) -> None:
        """Set the limit from now on, for those who wait too. They pay a debt at the new rate."""
        assert per_s is None or per_s > 0
        balance = self.balance()
        self._per_s = per_s
        if per_s is None:
            self._per_ns, self._size, self._balance = 0.0, math.inf, math.inf
        else:
            self._per_ns, self._size = per_s / 1e9, per_s * self._burst_s
            self._balance = 0.0 if balance == math.inf else min(balance, self._size)
        self._counted_ns = self._now_ns()
        self._look_again()

    def balance(self) -> float:
        """What the bucket holds; negative: a debt; infinite without a limit."""
        balance = self._balance + (self._now_ns() - self._counted_ns) * self._per_ns
        return min(balance, self._size)

    def wait_s(self) -> float:
        """Seconds until the next may begin; 0: now."""
        if self._balance >= 0:
            return 0.0
        balance = self._balance + (self._now_ns() - self._counted_ns) * self._per_ns
        if balance >= 0 or (wait_s := -balance / (self._per_ns * 1e9)) < _EARLY_S:
            return 0.0
        return wait_s

    def spend(self, amount: float) -> None:
        """Take without waiting; those who come later wait for it. A negative amount is given back."""
        if self._per_s is None:
            return
        now_ns = self._now_ns()
        balance = self._balance + (now_ns - self._counted_ns) * self._per_ns
        # Written out, because min() would take as long as the rest, for each request to ZooKeeper.
        self._balance = (balance if balance < self._size else self._size) - amount  # noqa: FURB136
        self._counted_ns = now_ns
        if amount < 0:
            self._look_again()

    async def take(self, amount: float = 0) -> None:
        """Wait, in the order of the calls, until all that was taken before is paid for, then take this.

        A caller that is cancelled while it waits takes nothing.
        """
        if self._per_s is None:
            return
        async with self._turn:
            while wait_s := self.wait_s():
                await self._wait(wait_s)
            self.spend(amount)

    def correct(self, taken: float, real: float) -> None:
        """Replace an estimate that was taken by the real amount."""
        self.spend(real - taken)

    async def _wait(self, wait_s: float) -> None:
        """Return after this time, or as soon as the wait may be shorter. For the one caller whose turn it is."""
        self._pause = asyncio.get_running_loop().create_future()
        timer = self._clock.call_later(wait_s, self._look_again)
        try:
            await self._pause
        finally:
            timer.cancel()

    def _look_again(self) -> None:
        if self._pause is not None and not self._pause.done():
            self._pause.set_result(None)
