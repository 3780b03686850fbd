"""Which entries a bookie stores: stripes of the segments of a ledger. Pure. Source: replication section 2.

A segment of E bookies stores entry e at the ensemble indexes e mod E, e mod E + 1, ... (Qw of them). Every function
here is total: an empty range (first > last) has no stripe, no first and no last entry, and never raises. Bookkeeping is
per ensemble index, so a bookie named twice in one ensemble has two stripes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import msgspec

from runtime.ledger.metadata import LedgerMetadata
from runtime.ledger.write_set import is_in_write_set
from storage.ids import INVALID_ENTRY_ID


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


class Fragment(msgspec.Struct, frozen=True):
    """A segment, the entries it holds, and the ensemble indexes at issue.

    ``is_open``: a writer may still append to it (the last segment of a ledger that is not closed); ``entries`` is then
    what is known to be confirmed. Every other segment is complete and immutable, whatever the last add confirmed says.
    """

    segment_index: int
    entries: EntryRange
    ensemble: tuple[str, ...]
    bookie_indexes: tuple[int, ...]
    is_open: bool


def segment_entries(
    metadata: LedgerMetadata, segment_index: int, last_add_confirmed: int = INVALID_ENTRY_ID
) -> EntryRange:
    """Entries of one segment: up to the next segment's start, or in the last one to the end of the ledger.

    The end of a ledger that is not closed is ``last_add_confirmed``. It never shortens an older segment: a writer
    starts a segment behind its own last confirmed entry, so all before it is complete (replication section 2, bk#3917).
    """
    first_entry_id = metadata.segments[segment_index].first_entry_id
    if segment_index + 1 < len(metadata.segments):
        return EntryRange(first_entry_id, metadata.segments[segment_index + 1].first_entry_id - 1)
    return EntryRange(first_entry_id, metadata.last_entry_id if metadata.is_closed else last_add_confirmed)


def stripe(entries: EntryRange, index: int, ensemble_size: int, write_quorum_size: int) -> Iterator[int]:
    """Entry ids of the range that the bookie at ``index`` stores, ascending."""
    for entry_id in range(entries.first_entry_id, entries.last_entry_id + 1):
        if is_in_write_set(entry_id, index, ensemble_size, write_quorum_size):
            yield entry_id


def stripe_count(entries: EntryRange, index: int, ensemble_size: int, write_quorum_size: int) -> int:
    """Number of entries in the stripe, without walking over it."""
    rounds, rest = divmod(entries.count, ensemble_size)
    tail_start = entries.first_entry_id + rounds * ensemble_size
    tail = sum(is_in_write_set(tail_start + step, index, ensemble_size, write_quorum_size) for step in range(rest))
    return rounds * write_quorum_size + tail


def first_stored(entries: EntryRange, index: int, ensemble_size: int, write_quorum_size: int) -> int:
    """First entry of the range that the bookie at ``index`` stores, or -1; looks at E entries at most."""
    stop = min(entries.last_entry_id + 1, entries.first_entry_id + ensemble_size)
    for entry_id in range(entries.first_entry_id, stop):
        if is_in_write_set(entry_id, index, ensemble_size, write_quorum_size):
            return entry_id
    return INVALID_ENTRY_ID


def last_stored(entries: EntryRange, index: int, ensemble_size: int, write_quorum_size: int) -> int:
    """Last entry of the range that the bookie at ``index`` stores, or -1; looks at E entries at most."""
    stop = max(entries.first_entry_id - 1, entries.last_entry_id - ensemble_size)
    for entry_id in range(entries.last_entry_id, stop, -1):
        if is_in_write_set(entry_id, index, ensemble_size, write_quorum_size):
            return entry_id
    return INVALID_ENTRY_ID


def fragments_naming(
    metadata: LedgerMetadata, bookie_ids: Collection[str], last_add_confirmed: int = INVALID_ENTRY_ID
) -> tuple[Fragment, ...]:
    """One fragment per segment that names any of the bookies, empty segments included, in segment order.

    A bookie is named also where it stores nothing (an empty last segment, a stripe without entries): such a fragment
    needs a metadata change only, but without it the bookie could never leave (replication section 4).
    """
    fragments = []
    last_index = len(metadata.segments) - 1
    for segment_index, segment in enumerate(metadata.segments):
        indexes = tuple(index for index, bookie_id in enumerate(segment.ensemble) if bookie_id in bookie_ids)
        if indexes:
            fragments.append(
                Fragment(
                    segment_index=segment_index,
                    entries=segment_entries(metadata, segment_index, last_add_confirmed),
                    ensemble=segment.ensemble,
                    bookie_indexes=indexes,
                    is_open=segment_index == last_index and not metadata.is_closed,
                )
            )
    return tuple(fragments)
