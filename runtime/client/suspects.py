"""Bookies that failed a moment ago: asked last, chosen last. Source: protocol sections 4.3 and 7.4.

A dead bookie stays registered until its session expires. Without this memory the next ensemble would name it again.
A suspicion is a hint: where nobody else is left, suspects are used.
"""

from __future__ import annotations

from collections.abc import Sequence

from runtime.ports import Clock


class SuspectBookies:
    """Shared by all handles of one client."""

    def __init__(self, clock: Clock, suspicion_s: float) -> None:
        self._clock = clock
        self._suspicion_ns = int(suspicion_s * 1e9)
        self._until_ns: dict[str, int] = {}

    def add(self, bookie_id: str) -> None:
        """Remember a failure of ``bookie_id``, from now on."""
        self._until_ns[bookie_id] = self._clock.monotonic_ns() + self._suspicion_ns

    def current(self) -> frozenset[str]:
        """The bookies under suspicion now."""
        if not self._until_ns:
            return frozenset()
        now_ns = self._clock.monotonic_ns()
        expired = [bookie_id for bookie_id, until_ns in self._until_ns.items() if until_ns <= now_ns]
        for bookie_id in expired:
            del self._until_ns[bookie_id]
        return frozenset(self._until_ns)

    def last(self, bookie_ids: Sequence[str]) -> list[str]:
        """``bookie_ids`` in their order, but suspects behind all others."""
        if not self._until_ns:
            return list(bookie_ids)
        suspects = self.current()
        return sorted(bookie_ids, key=suspects.__contains__)
