"""Sets of entry ids as ranges: what plans count and reports print. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class EntryRange(msgspec.Struct, frozen=True, gc=False):
    """Entries ``first_entry_id`` to ``last_entry_id``, both included; empty when the first is the greater one."""

    first_entry_id: int
    last_entry_id: int

    @property
    def count(self) -> int:
        """Number of entries."""
        return max(0, self.last_entry_id - self.first_entry_id + 1)

    def __str__(self) -> str:
        if self.count == 0:
            return "no entries"
        if self.count == 1:
            return str(self.first_entry_id)
        return f"{self.first_entry_id}-{self.last_entry_id}"


class EntryRangeSet:
    """A growing set of entry ids, kept as ranges, so that a whole lost ledger costs one row.

    Ids may come in any order, each at most once. Beyond ``ranges_max`` ranges only ``count`` goes on.
    """

    def __init__(self, ranges_max: int = 10_000) -> None:
        self.count = 0
        self._ranges_max = ranges_max
        self._last_by_first: dict[int, int] = {}
        self._first_by_last: dict[int, int] = {}

    def add(self, entry_id: int) -> None:
        """Put one more id in."""
        self.add_range(EntryRange(entry_id, entry_id))

    def add_range(self, entries: EntryRange) -> None:
        """Put in entries none of which is in yet."""
        if entries.count == 0:
            return
        self.count += entries.count
        first = self._first_by_last.pop(entries.first_entry_id - 1, entries.first_entry_id)
        last = self._last_by_first.pop(entries.last_entry_id + 1, entries.last_entry_id)
        if first not in self._last_by_first and len(self._last_by_first) >= self._ranges_max:
            return
        self._last_by_first[first] = last
        self._first_by_last[last] = first

    def ranges(self) -> tuple[EntryRange, ...]:
        """The ids as ascending ranges."""
        return tuple(EntryRange(first, last) for first, last in sorted(self._last_by_first.items()))


def format_ranges(ranges: Sequence[EntryRange], count_max: int = 5) -> str:
    """``0-4, 7`` for people: at most ``count_max`` pieces, then how many more there are."""
    shown = [str(entries) for entries in ranges[:count_max]]
    if len(ranges) > count_max:
        shown.append(f"and {len(ranges) - count_max} more ranges")
    return ", ".join(shown)
