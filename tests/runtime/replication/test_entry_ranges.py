from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from runtime.replication.entry_ranges import EntryRange, EntryRangeSet, format_ranges


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
    assert format_ranges(ranges, 1) == "0-4, and 2 more ranges"
