"""A connection's turn to bring in a frame that is longer than one read."""

from __future__ import annotations

from collections.abc import Callable

from runtime.net.memory_budget import MemoryBudget


class LongFrame:
    """At most one at a time. ``is_waiting``: there is no room for it yet; ``on_admitted`` is called when there is."""

    def __init__(self, budget: MemoryBudget, on_admitted: Callable[[], None]) -> None:
        self._budget = budget
        self._on_admitted = on_admitted
        self.size_bytes = 0
        """Of the whole frame; 0 while there is none."""
        self.is_waiting = False

    def begin(self, size_bytes: int) -> None:
        """A frame of this size is promised."""
        self.size_bytes = size_bytes
        self.is_waiting = not self._budget.admit_frame(self, size_bytes, self._admit)

    def end(self) -> None:
        """It is complete, or the connection is gone; safe to repeat."""
        size_bytes, self.size_bytes = self.size_bytes, 0
        if size_bytes:
            self._budget.end_frame(self, 0 if self.is_waiting else size_bytes)

    def _admit(self) -> None:
        self.is_waiting = False
        self._on_admitted()
