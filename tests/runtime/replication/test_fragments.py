"""Stripes and fragments, against brute force and at the empty edges."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bkctl.runtime.ledger.metadata import LedgerMetadata, LedgerState
from bkctl.runtime.ledger.write_set import write_set
from bkctl.runtime.replication.judge.fragments import (
    EntryRange,
    EntryRangeSet,
    first_stored,
    format_ranges,
    fragments_naming,
    last_stored,
    repeated_members,
    repeats,
    segment_entries,
    stored_count,
    stored_entries,
    stripe,
    stripe_count,
)
from tests.runtime.replication.samples import ledger, random_ledger

SHAPES = [(size, quorum) for size in range(1, 6) for quorum in range(1, size + 1)]


@pytest.mark.parametrize(("size", "quorum"), SHAPES)
def test_stripes_are_those_of_the_write_sets(size: int, quorum: int) -> None:
    for first, length, index in itertools.product((0, 3, 7), range(13), range(size)):
        entries = EntryRange(first, first + length - 1)
        expected = [entry_id for entry_id in range(first, first + length) if index in write_set(entry_id, size, quorum)]
        assert list(stripe(entries, index, size, quorum)) == expected
        assert stripe_count(entries, index, size, quorum) == len(expected)
        assert first_stored(entries, index, size, quorum) == (expected[0] if expected else -1)
        assert last_stored(entries, index, size, quorum) == (expected[-1] if expected else -1)


def test_an_empty_range_is_no_error() -> None:
    for entries in (EntryRange(0, -1), EntryRange(10, 9), EntryRange(10, -1)):
        assert entries.count == 0
        assert list(stripe(entries, 0, 3, 2)) == []
        assert stripe_count(entries, 0, 3, 2) == 0
        assert first_stored(entries, 0, 3, 2) == last_stored(entries, 0, 3, 2) == -1


def test_an_old_segment_ends_where_the_next_begins_whatever_is_confirmed() -> None:
    metadata = ledger({0: ["a", "b"], 20: ["a", "c"]}, 2, 2, state=LedgerState.OPEN)
    assert segment_entries(metadata, 0, 18) == EntryRange(0, 19)
    assert segment_entries(metadata, 1, 18).count == 0
    assert segment_entries(metadata, 1, 25) == EntryRange(20, 25)


def test_t6_an_old_segment_with_the_ensemble_of_the_last_one_is_complete() -> None:
    metadata = ledger({0: ["b1", "b2"], 5: ["b3", "b2"], 9: ["b1", "b2"]}, 2, 2, state=LedgerState.OPEN)
    found = fragments_naming(metadata, {"b1"})
    assert [(fragment.segment_index, fragment.entries, fragment.is_open) for fragment in found] == [
        (0, EntryRange(0, 4), False),
        (2, EntryRange(9, -1), True),
    ]
    assert segment_entries(metadata, 2, 11) == EntryRange(9, 11)


def test_t5_an_empty_last_segment_is_a_fragment() -> None:
    metadata = ledger({0: ["b1", "b2"], 10: ["b1", "b3"]}, 2, 2, last_entry_id=9)
    assert [fragment.entries.count for fragment in fragments_naming(metadata, {"b1"})] == [10, 0]


def test_a_bookie_named_twice_is_two_indexes() -> None:
    metadata = ledger({0: ["b1", "b2", "b1"]}, 2, 2, last_entry_id=9)
    (fragment,) = fragments_naming(metadata, {"b1"})
    assert fragment.bookie_indexes == (0, 2)
    assert fragments_naming(metadata, {"b9"}) == ()


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        (ledger({0: ["b1", "b2", "b3"]}, 3, 2, last_entry_id=9), set()),
        (ledger({0: ["b1", "b2", "b1"]}, 3, 2, last_entry_id=9), {2}),
        (ledger({0: ["b1", "b1", "b1"]}, 3, 2, last_entry_id=9), {1, 2}),
        (ledger({0: ["b1", "b2", "b1"]}, 2, 2, last_entry_id=9), {2}),
        # the entries that would have both places in their write set do not exist
        (ledger({0: ["b1", "b2", "b1"]}, 2, 2, last_entry_id=1), set()),
        (ledger({0: ["b1", "b2", "b1"]}, 3, 2, last_entry_id=-1), set()),
        # no entry is written to both places
        (ledger({0: ["b1", "b2", "b1", "b3"]}, 2, 2, last_entry_id=9), set()),
        # its writer may change it
        (ledger({0: ["b1", "b2", "b1"]}, 3, 2, state=LedgerState.OPEN), set()),
    ],
)
def test_a_second_place_is_a_repeat_if_an_entry_is_in_both(metadata: LedgerMetadata, expected: set[int]) -> None:
    assert repeats(metadata, 0) == expected
    assert repeated_members(metadata) == ({"b1"} if expected else frozenset())


@given(st.lists(st.integers(0, 60), unique=True))
def test_any_order_of_ids_gives_the_same_ranges(entry_ids: list[int]) -> None:
    found = EntryRangeSet()
    for entry_id in entry_ids:
        found.add(entry_id)
    ranges = found.ranges()
    assert found.count == len(entry_ids)
    assert [e for r in ranges for e in range(r.first_entry_id, r.last_entry_id + 1)] == sorted(entry_ids)
    assert all(one.last_entry_id + 1 < other.first_entry_id for one, other in itertools.pairwise(ranges))


def test_beyond_its_limit_it_only_counts() -> None:
    found = EntryRangeSet(ranges_max=3)
    for entry_id in range(0, 20, 2):
        found.add(entry_id)
    assert found.count == 10
    assert len(found.ranges()) == 3
    found.add(1)
    assert found.ranges()[0] == EntryRange(0, 2)


def test_ranges_for_people() -> None:
    ranges = [EntryRange(0, 4), EntryRange(7, 7), EntryRange(9, 10)]
    assert format_ranges(ranges) == "0-4, 7, 9-10"
    assert format_ranges(ranges, 1) == "0-4 and 2 more ranges"


@pytest.mark.parametrize("seed", range(50))
def test_the_entries_of_a_bookie_are_counted_without_a_walk(seed: int) -> None:
    bookies = [f"b{number}" for number in range(6)]
    metadata = random_ledger(random.Random(seed), bookies)
    for bookie_id in bookies:
        assert stored_count(metadata, bookie_id) == len(list(stored_entries(metadata, bookie_id)))
