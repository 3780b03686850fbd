"""Waits while the metadata store does not answer, so that a long run survives an outage.

After an outage the failed work starts again from its beginning, reads the stored state and takes its locks again. So
nothing is done with information from before the outage.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from bkctl.runtime.errors import MetadataClosedError, MetadataOutageError, MetadataUnavailableError
from bkctl.runtime.ports import Clock

T = TypeVar("T")

PROBE_PAUSE_S = 1.0
"""Pause between two attempts to reach the store. An attempt itself waits for the connection."""

ATTEMPTS_MAX = 10
"""Maximum attempts at one piece of work, because work that itself breaks the connection would never end."""


class MetadataOutage(msgspec.Struct, frozen=True):
    """Report of an outage: sent when the wait begins and, with ``is_over``, when it ends."""

    since_ms: int
    wait_max_s: float
    reason: str
    is_over: bool = False


class OutageWait:
    """Shared wait of all parts of a run: one part probes the store, the others wait for the outcome."""

    def __init__(
        self,
        probe: Callable[[], Awaitable[object]],
        clock: Clock,
        wait_max_s: float,
        on_outage: Callable[[MetadataOutage], None],
    ) -> None:
        """``probe``: any read. ``on_outage`` is called when an outage begins and when it ends."""
        self._probe = probe
        self._clock = clock
        self._wait_max_s = wait_max_s
        self._on_outage = on_outage
        self._outage: MetadataOutage | None = None
        self._deadline_ns = 0
        self._one_probes = asyncio.Lock()

    @property
    def is_lasting(self) -> bool:
        """Whether an outage is in progress."""
        return self._outage is not None

    async def outlast(self, work: Callable[[], Awaitable[T]]) -> T:
        """The result of ``work``, which is restarted from its beginning after each outage; MetadataOutageError."""
        for _ in range(ATTEMPTS_MAX - 1):
            try:
                return await work()
            except MetadataUnavailableError as error:
                await self.wait(error)
        return await work()

    async def wait(self, error: MetadataUnavailableError) -> None:
        """Return once the store answers again after this ``error``.

        MetadataOutageError if it does not within the maximum wait, measured from the first error. A store that this
        process has closed is no outage: reads that were left over at its end.
        """
        if isinstance(error, MetadataOutageError | MetadataClosedError):
            raise error
        if self._outage is None:
            self._outage = MetadataOutage(self._clock.now_ms(), self._wait_max_s, str(error))
            self._deadline_ns = self._clock.monotonic_ns() + int(self._wait_max_s * 1e9)
            self._on_outage(self._outage)
        async with self._one_probes:
            while self._outage is not None:
                if await self._answers(error):
                    outage, self._outage = self._outage, None
                    self._on_outage(msgspec.structs.replace(outage, is_over=True))
                else:
                    await self._clock.sleep(PROBE_PAUSE_S)

    async def _answers(self, error: MetadataUnavailableError) -> bool:
        left_s = (self._deadline_ns - self._clock.monotonic_ns()) / 1e9
        if left_s <= 0:
            raise MetadataOutageError(f"ZooKeeper was unavailable for over {self._wait_max_s:g} s: {error}") from error
        try:
            async with asyncio.timeout(left_s):
                await self._probe()
        except (MetadataUnavailableError, TimeoutError):
            return False
        return True
