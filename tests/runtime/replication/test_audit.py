"""Copies per write set, against brute force over entries."""

from __future__ import annotations

import random
import subprocess
import sys

from runtime.ledger.metadata import LedgerMetadata, LedgerState
from runtime.ledger.write_set import write_set
from runtime.replication.audit import (
    LedgerVerdict,
    ReplicationRow,
    ReplicationState,
    WriteSetRow,
    judge_ledger,
    write_set_rows,
)
from runtime.replication.audit_report import AuditTotals, under_replicated_ledger
from runtime.replication.fragments import EntryRange, segment_entries
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
    assert found == set(ReplicationState) - {ReplicationState.UNREADABLE}


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
        found = under_replicated_ledger(verdict(1, metadata, {"b0", "b1", "b3"}))
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


def test_totals_by_ledger_and_bookie() -> None:
    totals = AuditTotals()
    totals.add_ledger(verdict(1, ledger({0: ["b0", "b1"]}, 2, 1, last_entry_id=9, length=100), {"b1", "b2", "b3"}))
    totals.add_ledger(verdict(2, ledger({0: ["b2", "b3"]}, 2, 2, last_entry_id=9, length=100), {"b1", "b2", "b3"}))
    totals.add_ledger(judge_ledger([WriteSetRow(3, problem="garbage")], set()))
    report = totals.report(["b1", "b2", "idle"], ["b3"])

    assert (report.summary.ledgers, report.summary.replicated, report.summary.under_replicated) == (3, 1, 1)
    assert report.summary.has_findings
    assert [(row.ledger_id, row.missing_bookies, row.live_copies_min) for row in report.under_replicated] == [
        (1, ("b0",), 1)
    ]
    by_id = {bookie.bookie_id: bookie for bookie in report.bookies}
    assert (by_id["b0"].mode, by_id["b3"].mode, by_id["idle"].ledgers) == ("unregistered", "read_only", 0)
    assert (by_id["b1"].last_copy_ledgers, by_id["b2"].last_copy_ledgers) == (1, 0)
    assert not report.is_truncated


def test_lists_are_bounded_and_counts_are_not() -> None:
    totals = AuditTotals(findings_max=2)
    for ledger_id in range(5):
        totals.add_ledger(verdict(ledger_id, ledger({0: ["b0"]}, 1, 1, last_entry_id=0, length=1), set()))
    report = totals.report([], [])
    assert (report.summary.unavailable, len(report.under_replicated), report.is_truncated) == (5, 2, True)


def test_totals_of_parts_merge_into_those_of_the_whole() -> None:
    source = random.Random(13)
    verdicts = [verdict(number, random_ledger(source, BOOKIES), set(BOOKIES[:4])) for number in range(300)]
    verdicts += [judge_ledger([WriteSetRow(number, problem="garbage")], set()) for number in (300, 301, 302)]
    for findings_max in (2, 100, 1000):
        whole, merged = AuditTotals(findings_max=findings_max), AuditTotals(findings_max=findings_max)
        parts = [AuditTotals(findings_max=findings_max) for _ in range(5)]
        for number, each in enumerate(verdicts):
            whole.add_ledger(each)
            parts[number % 4].add_ledger(each)  # the last part stays empty
        for part in reversed(parts):
            merged.merge(part)
        assert merged.report(BOOKIES[:3], BOOKIES[3:4]) == whole.report(BOOKIES[:3], BOOKIES[3:4])


def test_a_ledger_is_summed_up_by_its_worst_write_set() -> None:
    metadata = ledger({0: ["b0", "b1", "b2", "b3"]}, 2, 1, last_entry_id=9, length=1000)
    row = under_replicated_ledger(verdict(1, metadata, {"b2", "b3"}))
    assert (row.replication, row.live_copies_min, row.write_sets, row.missing_bookies) == (
        "unavailable",
        0,
        3,
        ("b0", "b1"),
    )


def test_executors_need_no_native_storage_and_no_network_stack() -> None:
    program = (
        "import sys, runtime.replication.audit_report, spark_reports.write_set_source\n"
        "loaded = {name.partition('.')[0] if not name.startswith('runtime') else '.'.join(name.split('.')[:2])"
        " for name in sys.modules}\n"
        "print(sorted(loaded & {'plyvel', 'uvloop', 'aiohttp', 'runtime.net', 'runtime.client', 'runtime.bookie'}))"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
