"""The entries that a bookie stores: stripes of the segments of a ledger. Pure. Source: replication section 2.

A segment of E bookies stores entry e at the ensemble indexes e mod E, e mod E + 1, ... (Qw of them). All functions
accept empty ranges (first > last), which have no stripe and no first or last entry. Stripes are per ensemble index, so
a bookie that occurs twice in an ensemble has two stripes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

import msgspec

from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.ledger.write_set import is_in_write_set, write_set
from bkctl.runtime.metadata.replication.given_up_note import GivenUpNote
from bkctl.storage.ids import INVALID_ENTRY_ID
from bkctl.storage.words import listed


class EntryRange(msgspec.Struct, frozen=True, gc=False):
    """Entries ``first_entry_id`` to ``last_entry_id``, both included; empty if the first is greater."""

    first_entry_id: int
    last_entry_id: int

    @property
    def count(self) -> int:
        """Number of entries."""
        return max(0, self.last_entry_id - self.first_entry_id + 1)

    def common(self, other: EntryRange) -> EntryRange:
        """The entries that are in both."""
        return EntryRange(max(self.first_entry_id, other.first_entry_id), min(self.last_entry_id, other.last_entry_id))

    def __str__(self) -> str:
        if self.count == 0:
            return "no entries"
        if self.count == 1:
            return str(self.first_entry_id)
        return f"{self.first_entry_id}-{self.last_entry_id}"


class EntryRangeSet:
    """A set of entry ids, stored as ranges, so that a completely lost ledger needs only one.

    Add ids in any order, each at most once. Above ``ranges_max`` ranges it only updates ``count``.
    """

    def __init__(self, ranges_max: int = 10_000) -> None:
        self.count = 0
        self._ranges_max = ranges_max
        self._last_by_first: dict[int, int] = {}
        self._first_by_last: dict[int, int] = {}

    def add(self, entry_id: int) -> None:
        """Add an id."""
        self.add_range(EntryRange(entry_id, entry_id))

    def add_range(self, entries: EntryRange, count: int | None = None) -> None:
        """Add a range of ids, none of which is in the set. ``count``: how many of the range are meant; None: all."""
        if entries.count == 0:
            return
        self.count += entries.count if count is None else count
        first = self._first_by_last.pop(entries.first_entry_id - 1, entries.first_entry_id)
        last = self._last_by_first.pop(entries.last_entry_id + 1, entries.last_entry_id)
        if first not in self._last_by_first and len(self._last_by_first) >= self._ranges_max:
            return
        self._last_by_first[first] = last
        self._first_by_last[last] = first

    def ranges(self) -> tuple[EntryRange, ...]:
        """The ids as ascending ranges."""
        return tuple(EntryRange(first, last) for first, last in sorted(self._last_by_first.items()))


def merge_ranges(ranges: Iterable[EntryRange]) -> tuple[EntryRange, ...]:
    """The entries of all ranges, as ascending ranges that neither overlap nor touch."""
    found: list[EntryRange] = []
    for entries in sorted((each for each in ranges if each.count), key=lambda each: each.first_entry_id):
        if found and entries.first_entry_id <= found[-1].last_entry_id + 1:
            last = max(found[-1].last_entry_id, entries.last_entry_id)
            found[-1] = EntryRange(found[-1].first_entry_id, last)
        else:
            found.append(entries)
    return tuple(found)


def in_and_out_of(
    ranges: Sequence[EntryRange], others: Sequence[EntryRange]
) -> tuple[tuple[EntryRange, ...], tuple[EntryRange, ...]]:
    """The entries of ``ranges`` that are in ``others``, and the rest. Both are ascending and do not overlap."""
    others = [each for each in others if each.count]
    inside: list[EntryRange] = []
    outside: list[EntryRange] = []
    position = 0
    for entries in ranges:
        first = entries.first_entry_id
        while position < len(others) and others[position].last_entry_id < first:
            position += 1
        at = position
        while at < len(others) and others[at].first_entry_id <= entries.last_entry_id:
            common = EntryRange(first, entries.last_entry_id).common(others[at])
            outside.append(EntryRange(first, common.first_entry_id - 1))
            inside.append(common)
            first = common.last_entry_id + 1
            at += 1
        outside.append(EntryRange(first, entries.last_entry_id))
    return tuple(each for each in inside if each.count), tuple(each for each in outside if each.count)


def batches(entry_ids: Iterator[int], count_max: Callable[[], int]) -> Iterator[tuple[int, ...]]:
    """The ids in their order, in batches; each has at most ``count_max`` ids, which is asked before each."""
    while batch := tuple(itertools.islice(entry_ids, count_max())):
        yield batch


def lost_entries(note: GivenUpNote) -> tuple[EntryRange, ...]:
    """The entries that no bookie had when their ledger was closed, nor got since."""
    return tuple(EntryRange(*each) for each in note.lost)


def accepted_entries(note: GivenUpNote | None, metadata: LedgerMetadata) -> tuple[EntryRange, ...]:
    """The entries of a closed ledger whose loss an operator accepted, so that none of its bookies need have them.

    None, if their segment names a bookie again that it was closed without: it came back, perhaps with these entries.
    """
    if note is None or not set(note.closed_without).isdisjoint(metadata.last_segment.ensemble):
        return ()
    return lost_entries(note)


def is_in(entry_id: int, ranges: Iterable[EntryRange]) -> bool:
    """Whether the entry is in one of the ranges."""
    return any(each.first_entry_id <= entry_id <= each.last_entry_id for each in ranges)


def format_ranges(ranges: Sequence[EntryRange], count_max: int = 5) -> str:
    """Ranges as text like ``0-4, 7``: at most ``count_max`` ranges, then the number of others."""
    return listed(ranges, count_max, noun="range")


class Fragment(msgspec.Struct, frozen=True):
    """A segment, its entries, and the affected ensemble indexes.

    ``is_open``: the last segment of a ledger that is not closed, to which a writer may still append, so
    ``fragments_naming`` gives it no entries. Every other segment is complete and immutable, whatever is confirmed.
    """

    segment_index: int
    entries: EntryRange
    ensemble: tuple[str, ...]
    bookie_indexes: tuple[int, ...]
    is_open: bool


def segment_entries(
    metadata: LedgerMetadata, segment_index: int, last_add_confirmed: int = INVALID_ENTRY_ID
) -> EntryRange:
    """Entries of one segment: up to the start of the next one, or to the end of the ledger.

    The end of a ledger that is not closed is ``last_add_confirmed``. It never shortens an older segment: a writer
    starts a segment after its last confirmed entry, so earlier ones are complete (replication section 2, bk#3917).
    """
    first_entry_id = metadata.segments[segment_index].first_entry_id
    if segment_index + 1 < len(metadata.segments):
        return EntryRange(first_entry_id, metadata.segments[segment_index + 1].first_entry_id - 1)
    return EntryRange(first_entry_id, metadata.last_entry_id if metadata.is_closed else last_add_confirmed)


def stripe(entries: EntryRange, index: int, ensemble_size: int, write_quorum_size: int) -> Iterator[int]:
    """Entry ids in the range that the bookie at ``index`` stores, ascending."""
    span = range(entries.first_entry_id, entries.last_entry_id + 1)
    if write_quorum_size == ensemble_size:
        return iter(span)
    return (entry_id for entry_id in span if (index - entry_id) % ensemble_size < write_quorum_size)


def stripe_count(entries: EntryRange, index: int, ensemble_size: int, write_quorum_size: int) -> int:
    """Number of entries in the stripe, computed without iteration."""
    rounds, rest = divmod(entries.count, ensemble_size)
    tail_start = entries.first_entry_id + rounds * ensemble_size
    tail = sum(is_in_write_set(tail_start + step, index, ensemble_size, write_quorum_size) for step in range(rest))
    return rounds * write_quorum_size + tail


def segments_of(
    metadata: LedgerMetadata, bookie_id: str, last_add_confirmed: int = INVALID_ENTRY_ID
) -> Iterator[tuple[EntryRange, int]]:
    """The entries of each segment that names the bookie, see ``segment_entries``, and its index in the ensemble."""
    for segment_index, segment in enumerate(metadata.segments):
        if bookie_id in segment.ensemble:
            entries = segment_entries(metadata, segment_index, last_add_confirmed)
            yield entries, segment.ensemble.index(bookie_id)


def stored_entries(
    metadata: LedgerMetadata, bookie_id: str, last_add_confirmed: int = INVALID_ENTRY_ID
) -> Iterator[int]:
    """Ids of the entries that the bookie should store, ascending."""
    for entries, index in segments_of(metadata, bookie_id, last_add_confirmed):
        yield from stripe(entries, index, *metadata.sizes)


def stored_count(metadata: LedgerMetadata, bookie_id: str, last_add_confirmed: int = INVALID_ENTRY_ID) -> int:
    """Number of ``stored_entries``, computed without iteration."""
    return sum(stripe_count(*each, *metadata.sizes) for each in segments_of(metadata, bookie_id, last_add_confirmed))


def is_stored(metadata: LedgerMetadata, bookie_id: str, entry_id: int) -> bool:
    """Whether the bookie is in the write set of an entry, which may be after the end."""
    segment = metadata.segment_of(entry_id)
    if bookie_id not in segment.ensemble:
        return False
    index = segment.ensemble.index(bookie_id)
    return is_in_write_set(entry_id, index, *metadata.sizes)


def first_stored(entries: EntryRange, index: int, ensemble_size: int, write_quorum_size: int) -> int:
    """First entry in the range that the bookie at ``index`` stores, or -1; checks at most E entries."""
    stop = min(entries.last_entry_id + 1, entries.first_entry_id + ensemble_size)
    entry_ids = range(entries.first_entry_id, stop)
    return next((e for e in entry_ids if is_in_write_set(e, index, ensemble_size, write_quorum_size)), INVALID_ENTRY_ID)


def last_stored(entries: EntryRange, index: int, ensemble_size: int, write_quorum_size: int) -> int:
    """Last entry in the range that the bookie at ``index`` stores, or -1; checks at most E entries."""
    stop = max(entries.first_entry_id - 1, entries.last_entry_id - ensemble_size)
    entry_ids = range(entries.last_entry_id, stop, -1)
    return next((e for e in entry_ids if is_in_write_set(e, index, ensemble_size, write_quorum_size)), INVALID_ENTRY_ID)


def fragments_naming(metadata: LedgerMetadata, bookie_ids: Collection[str]) -> tuple[Fragment, ...]:
    """One fragment per segment that references any of the bookies, including empty segments, in segment order.

    This includes fragments in which the bookie stores nothing (an empty last segment, an empty stripe). They need only
    a metadata change, but without it the bookie could never be removed (replication section 4).
    """
    ensembles = [segment.ensemble for segment in metadata.segments]
    return fragments_at(
        metadata,
        [{index for index, each in enumerate(ensemble) if each in bookie_ids} for ensemble in ensembles],
    )


def repeats(metadata: LedgerMetadata, segment_index: int) -> set[int]:
    """The ensemble indexes of a complete segment whose bookies have another place in the same write set, where one copy
    counts for both. Of the places of a bookie the first one is no repeat."""
    segment, found = metadata.segments[segment_index], set[int]()
    is_open = segment_index == len(metadata.segments) - 1 and not metadata.is_closed
    if is_open or len(set(segment.ensemble)) == len(segment.ensemble):
        return found
    entries, size = segment_entries(metadata, segment_index), metadata.ensemble_size
    for entry_id in range(entries.first_entry_id, entries.first_entry_id + min(size, entries.count)):
        first_of: dict[str, int] = {}
        for index in sorted(write_set(entry_id, *metadata.sizes)):
            if first_of.setdefault(segment.ensemble[index], index) != index:
                found.add(index)
    return found


def repeated_members(metadata: LedgerMetadata) -> frozenset[str]:
    """The bookies of all ``repeats``."""
    return frozenset(
        segment.ensemble[index]
        for number, segment in enumerate(metadata.segments)
        for index in repeats(metadata, number)
    )


def fragments_at(metadata: LedgerMetadata, indexes_of: Sequence[Collection[int]]) -> tuple[Fragment, ...]:
    """One fragment for each segment with affected ensemble indexes, of each segment in ``indexes_of``."""
    fragments = []
    last_index = len(metadata.segments) - 1
    for segment_index, segment in enumerate(metadata.segments):
        if indexes_of[segment_index]:
            fragments.append(
                Fragment(
                    segment_index=segment_index,
                    entries=segment_entries(metadata, segment_index),
                    ensemble=segment.ensemble,
                    bookie_indexes=tuple(sorted(indexes_of[segment_index])),
                    is_open=segment_index == last_index and not metadata.is_closed,
                )
            )
    return tuple(fragments)
