"""How fast compaction may copy. Source: storage section 7.3."""

from __future__ import annotations

from runtime.config import GarbageCollectionConfig
from runtime.ports import Clock


class CompactionThrottle:
    """Spaces the copies of one bookie: entries or bytes in a second, by the settings."""

    def __init__(self, clock: Clock, config: GarbageCollectionConfig) -> None:
        self._clock = clock
        self._is_by_bytes = config.is_throttled_by_bytes
        self._per_s_max = config.copied_bytes_per_s_max if self._is_by_bytes else config.copied_entries_per_s_max
        self._due_ns = 0

    async def wait(self, entry_count: int, size_bytes: int) -> None:
        """Return when so much may be copied; waits for what was copied before, not for what comes now."""
        now_ns = self._clock.monotonic_ns()
        if self._due_ns > now_ns:
            await self._clock.sleep((self._due_ns - now_ns) / 1e9)
        amount = size_bytes if self._is_by_bytes else entry_count
        self._due_ns = max(self._due_ns, now_ns) + int(amount / self._per_s_max * 1e9)
