"""Which entries a check reads."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from bkctl.runtime.replication.judge.check_scope import WHOLE, CheckScope, Sample
from bkctl.runtime.replication.judge.fragments import EntryRange, stripe
from tests.runtime.replication.samples import ledger

BOOKIES = ["b1", "b2", "b3", "b4", "b5"]
SHARES = st.sampled_from([0.0001, 0.01, 0.1, 0.5, 1.0])


def test_everything_is_read_by_default_and_ranges_are_cut_to_the_segment() -> None:
    metadata = ledger({0: BOOKIES[:3]}, 2, 2)
    assert list(WHOLE.entry_ids(1, metadata, EntryRange(3, 6))) == [3, 4, 5, 6]
    assert list(WHOLE.entry_ids(1, metadata, EntryRange(3, 2))) == []
    scope = CheckScope((EntryRange(0, 3), EntryRange(5, 5), EntryRange(9, 20)))
    assert list(scope.entry_ids(1, metadata, EntryRange(3, 10))) == [3, 5, 9, 10]


@given(st.integers(1, 5), st.data(), SHARES, st.integers(0, 2**32 - 1))
def test_a_sample_has_its_share_and_both_ends_of_every_stripe(
    size: int, data: st.DataObject, share: float, seed: int
) -> None:
    quorum = data.draw(st.integers(1, size))
    first = data.draw(st.integers(0, 50))
    entries = EntryRange(first, first + data.draw(st.integers(-1, 2000)))
    metadata = ledger({0: BOOKIES[:size]}, quorum, 1)
    scope = CheckScope(sample=Sample(share, seed))

    read = list(scope.entry_ids(7, metadata, entries))

    assert read == sorted(set(read))
    assert all(entries.first_entry_id <= each <= entries.last_entry_id for each in read)
    blocks = math.ceil(entries.count * share)
    assert blocks <= len(read) <= min(entries.count, blocks + 2 * size)
    for index in range(size):
        stored = list(stripe(entries, index, size, quorum))
        assert not stored or {stored[0], stored[-1]} <= set(read)
    assert read == list(scope.entry_ids(7, metadata, entries)), "a seed repeats the sample"


def test_other_seeds_and_ledgers_read_other_entries() -> None:
    metadata, entries = ledger({0: BOOKIES[:3]}, 2, 2), EntryRange(0, 999)

    def read(seed: int, ledger_id: int) -> set[int]:
        return set(CheckScope(sample=Sample(0.01, seed)).entry_ids(ledger_id, metadata, entries))

    assert read(1, 1) != read(2, 1)
    assert read(1, 1) != read(1, 2)
    assert set().union(*(read(seed, 1) for seed in range(1000))) == set(range(1000)), "every entry can be drawn"


def test_a_sample_of_a_huge_range_needs_no_memory() -> None:
    metadata = ledger({0: BOOKIES[:3]}, 2, 2)
    ids = CheckScope(sample=Sample(0.5, 1)).entry_ids(1, metadata, EntryRange(0, 2**63 - 2))
    assert next(ids) == 0
