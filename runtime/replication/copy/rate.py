"""The byte rates of a run: of all copies together, and of each bookie."""

from __future__ import annotations

from collections.abc import Mapping

from bkctl.runtime.ports import Clock
from bkctl.runtime.rate_limit import RateLimit

BURST_S = 0.1
"""The bucket holds this much time's worth of bytes: what was not used earlier is lost."""


class CopyRate(RateLimit):
    """The limit of bytes per second that all reads and copies of a run share. They take an estimate and correct it."""

    def __init__(self, clock: Clock, bytes_per_second: int | None) -> None:
        super().__init__(clock, bytes_per_second, BURST_S)


class SharedPacer:
    """The byte rates of a run: of all copies together, and of each bookie, whose reads and writes count."""

    def __init__(self, clock: Clock, total: CopyRate | None = None) -> None:
        """``total``: the rate of all together; None: a new one without a limit."""
        self._clock = clock
        self.total = total or CopyRate(clock, None)
        self._bytes_per_s_per_bookie: int | None = None
        self._bookies: dict[str, CopyRate] = {}

    def change(self, bytes_per_s: int | None, bytes_per_s_per_bookie: int | None) -> None:
        """Set the rates from now on."""
        self.total.change(bytes_per_s)
        self._bytes_per_s_per_bookie = bytes_per_s_per_bookie
        for rate in self._bookies.values():
            rate.change(bytes_per_s_per_bookie)

    def least_s(self, size_bytes: int, targets: int) -> float:
        """How long copies of so many bytes to so many bookies take at least."""
        limits = (self.total.per_s, (self._bytes_per_s_per_bookie or 0) * targets)
        return max((size_bytes / each for each in limits if each), default=0.0)

    async def take(self, source: str, target: str, size_bytes: int) -> None:
        """Wait until a batch of about this size may be read and copied."""
        for rate in self._rates(source, target):
            await rate.take(size_bytes)

    def correct(self, source: str, target: str, taken_bytes: int, real_bytes: int) -> None:
        """Replace an estimate that was taken by the real size."""
        for rate in self._rates(source, target):
            rate.correct(taken_bytes, real_bytes)

    async def take_read(self, bookie_id: str, size_bytes: int) -> None:
        """Wait until about this much may be read from one bookie to verify its copies. It is no part of the copies."""
        await self._rate_of(bookie_id).take(size_bytes)

    async def take_reads(self, sizes_bytes: Mapping[str, int]) -> None:
        """Wait until about this much may be read from each of these bookies. It counts in all, too."""
        await self.total.take(sum(sizes_bytes.values()))
        for bookie_id, size_bytes in sizes_bytes.items():
            await self._rate_of(bookie_id).take(size_bytes)

    def correct_reads(self, taken_bytes: Mapping[str, int], real_bytes: Mapping[str, int]) -> None:
        """Replace estimates that were taken by the real sizes of the same bookies."""
        for bookie_id, taken in taken_bytes.items():
            for rate in (self.total, self._rate_of(bookie_id)):
                rate.correct(taken, real_bytes.get(bookie_id, 0))

    def _rates(self, source: str, target: str) -> list[CopyRate]:
        if self.total.per_s is self._bytes_per_s_per_bookie is None:
            return []
        return [self.total, *(self._rate_of(bookie_id) for bookie_id in dict.fromkeys((source, target)))]

    def _rate_of(self, bookie_id: str) -> CopyRate:
        if bookie_id not in self._bookies:
            self._bookies[bookie_id] = CopyRate(self._clock, self._bytes_per_s_per_bookie)
        return self._bookies[bookie_id]
