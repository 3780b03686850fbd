"""How fast compaction may copy. Source: storage section 7.3."""

from __future__ import annotations

import asyncio

from runtime.config import GarbageCollectionConfig
from runtime.ports import Clock


class CompactionThrottle:
    """Spaces the copies of one ledger directory: entries or bytes in a second, by the settings."""

    def __init__(self, clock: Clock, config: GarbageCollectionConfig) -> None:
        self._clock = clock
        self.set_rate(config)
        self._due_ns = 0
        self._waiting: asyncio.Future[bool] | None = None

    def set_rate(self, config: GarbageCollectionConfig) -> None:
        """The rate of the copies that are noted from now on."""
        self._is_by_bytes = config.is_throttled_by_bytes
        self._per_s_max = config.copied_bytes_per_s_max if self._is_by_bytes else config.copied_entries_per_s_max

    async def wait(self) -> bool:
        """True when what was copied before has had its time; False if ``interrupt`` came first. One waits at a time."""
        left_s = (self._due_ns - self._clock.monotonic_ns()) / 1e9
        if left_s <= 0:
            return True
        waiting: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting = waiting
        timer = self._clock.call_later(left_s, lambda: self._wake(is_due=True))
        try:
            return await waiting
        finally:
            timer.cancel()
            self._waiting = None

    def interrupt(self) -> None:
        """Let who waits now look whether the copies are wanted still."""
        self._wake(is_due=False)

    def _wake(self, *, is_due: bool) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(is_due)

    def note(self, entry_count: int, size_bytes: int) -> None:
        """So much is copied now: the next copies wait for it."""
        amount = size_bytes if self._is_by_bytes else entry_count
        self._due_ns = max(self._due_ns, self._clock.monotonic_ns()) + int(amount / self._per_s_max * 1e9)
