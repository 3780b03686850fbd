"""Copies per write set, against brute force over entries."""

from __future__ import annotations

import random
import subprocess
import sys

import msgspec

from bkctl.runtime.ledger.metadata import LedgerMetadata, LedgerState
from bkctl.runtime.ledger.write_set import write_set
from bkctl.runtime.replication.cluster_audit.counter import under_replicated_ledger
from bkctl.runtime.replication.judge.fragments import EntryRange, segment_entries
from bkctl.runtime.replication.judge.verdict import (
    LedgerVerdict,
    ReplicationRow,
    ReplicationState,
    WriteSetRow,
    judge_ledger,
    wanted_members,
    write_set_rows,
)
from tests.runtime.replication.samples import ledger, random_ledger

BOOKIES = [f"b{number}" for number in range(7)]


def verdict(ledger_id: int, metadata: LedgerMetadata, live: set[str]) -> LedgerVerdict:
    return judge_ledger(write_set_rows(ledger_id, metadata), live)


def judged(ledger_id: int, metadata: LedgerMetadata, live: set[str]) -> tuple[ReplicationRow, ...]:
    return verdict(ledger_id, metadata, live).rows


def brute_force(metadata: LedgerMetadata, live: set[str]) -> ReplicationState:
    """The worst state of all entries; of an open segment, those that the writer may have written next."""
    worst = 0
    states = list(ReplicationState)
    for index, segment in enumerate(metadata.segments):
        entries = segment_entries(metadata, index)
        entry_ids = range(entries.first_entry_id, entries.last_entry_id + 1)
        if index == len(metadata.segments) - 1 and not metadata.is_closed:
            entry_ids = range(segment.first_entry_id, segment.first_entry_id + metadata.ensemble_size)
        for entry_id in entry_ids:
            positions = write_set(entry_id, metadata.ensemble_size, metadata.write_quorum_size)
            copies = len({segment.ensemble[position] for position in positions} & live)
            if copies >= metadata.write_quorum_size:
                state = ReplicationState.REPLICATED
            elif copies >= metadata.ack_quorum_size:
                state = ReplicationState.UNDER_REPLICATED
            else:
                state = ReplicationState.AT_RISK if copies else ReplicationState.UNAVAILABLE
            worst = max(worst, states.index(state))
    return states[worst]


def test_the_verdict_is_that_of_the_worst_entry() -> None:
    source = random.Random(12)
    found: set[ReplicationState] = set()
    for ledger_id in range(1000):
        metadata = random_ledger(source, BOOKIES)
        live = set(source.sample(BOOKIES, source.randint(0, len(BOOKIES))))
        state = verdict(ledger_id, metadata, live).replication
        assert state is brute_force(metadata, live)
        found.add(state)
    assert found == set(ReplicationState) - {ReplicationState.UNREADABLE, ReplicationState.GIVEN_UP}


def test_what_was_given_up_is_no_longer_missing_but_other_copies_are() -> None:
    two_sets = ledger({0: ("b0", "b1"), 5: ("b2", "b3")}, 2, 2, last_entry_id=9)
    rows = write_set_rows(1, two_sets)
    assert judge_ledger(rows, {"b2", "b3"}, ("b0", "b1")).replication is ReplicationState.GIVEN_UP
    assert judge_ledger(rows, {"b2", "b3"}, ("b0",)).replication is ReplicationState.UNAVAILABLE, "b1 was not"
    assert judge_ledger(rows, {"b1", "b2"}, ("b0", "b1")).replication is ReplicationState.AT_RISK, "b1 is back"
    judged = judge_ledger(rows, {"b2"}, ("b0", "b1"))
    assert judged.replication is ReplicationState.AT_RISK, "the worst of the rest"
    assert wanted_members(judged.rows, two_sets.bookies()) == {"b2", "b3"}


def test_copies_of_a_bookie_that_was_given_up_and_that_nothing_can_replace_are_given_up() -> None:
    """A bookie is replaced with all its entries of a segment, so not if some of them have no copy."""
    striped = ledger({0: ("b0", "b1", "b2"), 6: ("b0", "b2", "b3")}, 2, 2, last_entry_id=11)
    rows = write_set_rows(1, striped)
    lost = {"b0", "b1"}
    judged = judge_ledger(rows, {"b2", "b3"}, lost)
    states = [(row.write_set.segment_first_entry_id, row.live_copies, row.replication) for row in judged.rows]
    given_up, at_risk = ReplicationState.GIVEN_UP, ReplicationState.AT_RISK
    replicated = ReplicationState.REPLICATED
    first = [(0, 0, given_up), (0, 1, given_up), (0, 1, given_up)]
    assert states == [*first, (6, 1, at_risk), (6, 2, replicated), (6, 1, at_risk)], "b0 can be replaced from 6 on"
    assert wanted_members(judged.rows, striped.bookies()) == {"b0", "b2", "b3"}

    one_segment = ledger({0: ("b0", "b1", "b2")}, 2, 2, last_entry_id=5)
    rows = write_set_rows(1, one_segment)
    judged = judge_ledger(rows, {"b2"}, lost)
    assert {judged.replication, judged.rows[0].replication} == {given_up}
    assert wanted_members(judged.rows, one_segment.bookies()) == {"b2"}
    assert judge_ledger(rows, {"b2"}, {"b0"}).replication is ReplicationState.UNAVAILABLE, "b1 was not"
    assert judge_ledger(rows, {"b1", "b2"}, lost).replication is at_risk, "b1 is back, so b0 can be replaced"
    unavailable = judge_ledger(rows, set(), lost)
    assert unavailable.replication is ReplicationState.UNAVAILABLE, "b2 was not"
    assert [row.missing_bookies for row in unavailable.rows] == [("b0", "b1"), ("b2",), ("b2",)]
    assert wanted_members(unavailable.rows, one_segment.bookies()) == {"b2"}, "no start of b0 or b1 is waited for"


def test_the_end_of_a_ledger_can_be_given_up() -> None:
    """As long as it cannot be closed, nothing of its last segment is replaced."""
    unclosed = ledger({0: ("b0", "b1", "b2"), 5: ("b0", "b1", "b3")}, 3, 2, state=LedgerState.OPEN)
    judged = judge_ledger(write_set_rows(1, unclosed), {"b2", "b3"}, {"b0", "b1"})
    assert [row.replication for row in judged.rows] == [ReplicationState.AT_RISK, ReplicationState.GIVEN_UP]
    assert wanted_members(judged.rows, unclosed.bookies()) == {"b0", "b1", "b2", "b3"}, "in its first segment"
    at_end = ledger({0: ("b0", "b1", "b3")}, 3, 2, state=LedgerState.OPEN)
    rows = write_set_rows(1, at_end)
    for live, given_up, wanted, why in (
        ({"b3"}, {"b0", "b1"}, {"b3"}, ""),
        ({"b3"}, {"b0"}, {"b0", "b1", "b3"}, "b1 was not given up"),
        ({"b1", "b3"}, {"b0"}, {"b0", "b1", "b3"}, "it can be closed"),
        (set[str](), {"b0", "b1"}, {"b3"}, "only b3 is to be started"),
    ):
        assert wanted_members(judge_ledger(rows, live, given_up).rows, at_end.bookies()) == wanted, why


def test_rows_count_every_entry_once_and_say_where_it_is() -> None:
    source = random.Random(11)
    for ledger_id in range(400):
        metadata = random_ledger(source, BOOKIES)
        rows = write_set_rows(ledger_id, metadata)
        for index, segment in enumerate(metadata.segments):
            entries = segment_entries(metadata, index)
            is_open = index == len(metadata.segments) - 1 and not metadata.is_closed
            if is_open:  # its end is unknown: any write set may hold entries
                entries = EntryRange(segment.first_entry_id, segment.first_entry_id + metadata.ensemble_size - 1)
            expected: dict[frozenset[str], int] = {}
            for entry_id in range(entries.first_entry_id, entries.last_entry_id + 1):
                positions = write_set(entry_id, metadata.ensemble_size, metadata.write_quorum_size)
                key = frozenset(segment.ensemble[position] for position in positions)
                expected[key] = expected.get(key, 0) + 1
            of_segment = [row for row in rows if row.write_set and row.segment_first_entry_id == segment.first_entry_id]
            found = {frozenset(row.write_set): row.entry_count for row in of_segment}
            assert len(of_segment) == len(found)
            assert found == (dict.fromkeys(expected) if is_open else expected)
            assert {row.segment_last_entry_id for row in of_segment} <= {None if is_open else entries.last_entry_id}
            assert not is_open or {row.payload_bytes for row in of_segment} == {None}


def test_every_row_describes_its_ledger() -> None:
    closed = ledger({0: ["b0", "b1"], 5: ["b1", "b2"]}, 1, 1, last_entry_id=9, length=77)
    custom = (("application", b"pulsar"), ("pulsar/managed-ledger", b"t/n/persistent/x"))
    owned = msgspec.structs.replace(closed, custom_metadata=custom, ctime_ms=-1)
    for metadata, node_ctime_ms, described in (
        (closed, None, (None, None, "crc32c", 77)),
        (owned, 5, (5, "topic persistent://t/n/x", "crc32c", 77)),
        (msgspec.structs.replace(closed, ctime_ms=3, digest_type=None), 5, (3, None, None, 77)),
        (msgspec.structs.replace(closed, state=LedgerState.IN_RECOVERY), 5, (5, None, "crc32c", None)),
        (msgspec.structs.replace(closed, length=-1), 5, (5, None, "crc32c", None)),
        (ledger({0: ["b0"]}, 1, 1), 5, (5, None, "crc32c", 0)),
    ):
        rows = write_set_rows(1, metadata, node_ctime_ms)
        assert {(row.created_ms, row.owner, row.digest, row.length) for row in rows} == {described}


def test_copies_are_counted_per_write_set_and_not_by_membership() -> None:
    metadata = ledger({0: ["b0", "b1", "b2", "b3"]}, 2, 2, last_entry_id=9, length=1000)
    rows = judged(1, metadata, {"b1", "b2", "b3"})
    assert [(row.write_set.write_set, row.live_copies, row.write_set.entry_count) for row in rows] == [
        (("b0", "b1"), 1, 3),
        (("b1", "b2"), 2, 3),
        (("b2", "b3"), 2, 2),
        (("b3", "b0"), 1, 2),
    ]
    assert [row.write_set.payload_bytes for row in rows] == [300, 300, 200, 200]
    # One of two copies is below the ack quorum of two.
    assert [row.replication for row in rows] == [
        ReplicationState.AT_RISK,
        ReplicationState.REPLICATED,
        ReplicationState.REPLICATED,
        ReplicationState.AT_RISK,
    ]


def test_the_states_by_live_copies() -> None:
    metadata = ledger({0: ["b0", "b1", "b2"]}, 3, 2, last_entry_id=0, length=1)
    states = [judged(1, metadata, set(BOOKIES[:live]))[0].replication for live in range(4)]
    assert states == [
        ReplicationState.UNAVAILABLE,
        ReplicationState.AT_RISK,
        ReplicationState.UNDER_REPLICATED,
        ReplicationState.REPLICATED,
    ]


def test_the_open_segment_of_an_unclosed_ledger_is_judged_like_every_other() -> None:
    """Both audits take their rows from here, so comparing them with each other does not show a lost segment."""
    for state in (LedgerState.OPEN, LedgerState.IN_RECOVERY):
        metadata = ledger({0: ["b0", "b1"], 7: ["b2", "b3"]}, 2, 2, state=state)
        rows = judged(1, metadata, {"b0", "b1", "b3"})
        assert [(row.write_set.segment_first_entry_id, row.missing_bookies, row.replication) for row in rows] == [
            (0, (), ReplicationState.REPLICATED),
            (7, ("b2",), ReplicationState.AT_RISK),
        ]
        assert [(row.write_set.segment_last_entry_id, row.write_set.entry_count) for row in rows] == [
            (6, 7),
            (None,) * 2,
        ]
        found = under_replicated_ledger(
            verdict(1, metadata, {"b0", "b1", "b3"}),
            is_closable=False,
            is_lost=False,
            may_return=bool,
            writable=frozenset(),
        )
        assert (found.replication, found.missing_bookies) == ("at_risk", ("b2",))


def test_a_stripe_without_entries_and_an_empty_last_segment_need_no_bookie() -> None:
    metadata = ledger({0: ["b0", "b1", "b2"], 1: ["b4", "b5", "b6"]}, 2, 2, last_entry_id=0, length=1)
    assert [row.write_set.write_set for row in judged(1, metadata, {"b0", "b1"})] == [("b0", "b1")]


def test_every_ledger_has_a_row() -> None:
    empty = ledger({0: ["b0", "b1"]}, 2, 2)
    assert [row.replication for row in judged(1, empty, set())] == [ReplicationState.EMPTY]
    assert judge_ledger([WriteSetRow(2, problem="garbage")], set()).replication is ReplicationState.UNREADABLE
    # Nobody knows where the open segment ends: every write set may hold entries.
    open_ledger = ledger({0: ["b0", "b1", "b2"]}, 2, 2, state=LedgerState.OPEN)
    assert [row.write_set.entry_count for row in judged(3, open_ledger, set())] == [None, None, None]


def test_one_bookie_twice_in_a_write_set_is_one_copy() -> None:
    metadata = ledger({0: ["b0", "b0"]}, 2, 2, last_entry_id=0, length=1)
    (row,) = judged(1, metadata, {"b0"})
    assert (row.expected_copies, row.live_copies) == (2, 1)
    assert row.replication is ReplicationState.AT_RISK


def test_executors_need_no_native_storage_and_no_network_stack() -> None:
    program = (
        "import re, sys, bkctl.runtime.replication.cluster_audit.totals, bkctl.spark_reports.write_set_source\n"
        "loaded = {name.partition('.')[0] if not name.startswith('bkctl') else '.'.join(name.split('.')[:3])"
        " for name in sys.modules"
        " if not re.fullmatch(r'bkctl.runtime.net(.loop|.exhaustion)?', name)}\n"  # the clock
        "refused = {f'bkctl.runtime.{name}' for name in ('net', 'client', 'bookie')}\n"
        "print(sorted(loaded & {'plyvel', 'uvloop', 'aiohttp', *refused}))"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
