from __future__ import annotations

import itertools

import pytest

from bkctl.runtime.ledger.changes import new_ledger, replace_bookies, to_closed, to_in_recovery
from bkctl.runtime.ledger.metadata import DigestType, LedgerMetadata, LedgerState
from bkctl.runtime.ledger.write_set import write_set
from bkctl.runtime.metadata.ledgers.stored_ledgers import StoredLedger
from bkctl.runtime.metadata.store import Node, NodeStat
from bkctl.runtime.replication.judge.ledger_filter import LedgerFilter, has_entries_on

NODE_CTIME_MS = 1000


def stored(metadata: LedgerMetadata, ledger_id: int = 1) -> StoredLedger:
    node = Node(b"", NodeStat(0, NODE_CTIME_MS, NODE_CTIME_MS, 0, 0))
    return StoredLedger(ledger_id, "/l", node, metadata)


def ledger(size: int, write_quorum: int) -> LedgerMetadata:
    return new_ledger(tuple(f"b{index}" for index in range(size)), write_quorum, 1, DigestType.CRC32C, b"")


def test_a_bookie_counts_where_an_entry_of_the_round_robin_is_its_own() -> None:
    """Against the plain definition: walk over all entries, ask each write set."""
    for size, last in itertools.product(range(1, 6), range(-1, 12)):
        for write_quorum, start in itertools.product(range(1, size + 1), range(last + 2)):
            metadata = ledger(size, write_quorum)
            if start:
                metadata = replace_bookies(metadata, start, {0: "other"})
            closed = to_closed(metadata, last, 1 if last >= 0 else 0)
            holders = {
                closed.segment_of(entry).ensemble[index]
                for entry in range(last + 1)
                for index in write_set(entry, size, write_quorum)
            }
            for bookie_id in closed.bookies():
                assert has_entries_on(closed, bookie_id) == (bookie_id in holders), (closed, bookie_id)


@pytest.mark.parametrize("in_recovery", [False, True])
def test_an_open_end_always_counts(in_recovery: bool) -> None:
    rolled = replace_bookies(ledger(3, 1), 1, {0: "b9"})
    metadata = to_in_recovery(rolled) if in_recovery else rolled
    assert [has_entries_on(metadata, each) for each in ("b9", "b1", "b2", "b0")] == [True, True, True, True]
    assert not has_entries_on(replace_bookies(metadata, 2, {1: "b8"}), "b7")
    later = replace_bookies(ledger(3, 1), 1, {1: "b9"})  # b1 is gone, and the one entry before was b0's
    assert not has_entries_on(later, "b1")


def test_times_are_open_on_both_sides_and_a_stored_one_wins() -> None:
    plain = stored(ledger(1, 1))
    assert [LedgerFilter(created_before_ms=each).wants(plain) for each in (1000, 1001)] == [False, True]
    assert [LedgerFilter(created_after_ms=each).wants(plain) for each in (999, 1000)] == [True, False]
    told = stored(new_ledger(("b",), 1, 1, DigestType.CRC32C, b"", ctime_ms=5))
    assert LedgerFilter(created_before_ms=6).wants(told)
    not_told = stored(new_ledger(("b",), 1, 1, DigestType.CRC32C, b"", ctime_ms=-1))
    assert not LedgerFilter(created_before_ms=6).wants(not_told)


def test_what_an_id_alone_tells() -> None:
    assert not LedgerFilter().needs_metadata
    assert not LedgerFilter(excluded_ids={1}).needs_metadata
    for more in (
        {"bookie_ids": frozenset({"b"})},
        {"state": LedgerState.OPEN},
        {"created_before_ms": 0},
        {"created_after_ms": 0},
        {"bytes_above": 0},
        {"bytes_below": 0},
        {"labels": (("a", None),)},
    ):
        assert LedgerFilter(excluded_ids={1}, **more).needs_metadata
    assert [LedgerFilter(excluded_ids={1}).wants_id(each) for each in (1, 2)] == [False, True]
    assert not LedgerFilter(excluded_ids={1}).wants(stored(ledger(1, 1)))
