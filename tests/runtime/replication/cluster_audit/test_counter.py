"""Sums of an audit, by hand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bkctl.runtime.metadata.bookies.registration import Registrations
from bkctl.runtime.replication.cluster_audit.counter import AuditCounter, under_replicated_ledger
from bkctl.runtime.replication.cluster_audit.facts import AuditFacts
from bkctl.runtime.replication.cluster_audit.tables import AuditReport
from bkctl.runtime.replication.cluster_audit.totals import AuditTotals, report_of
from bkctl.runtime.replication.judge.verdict import LedgerVerdict, WriteSetRow, judge_ledger
from tests.runtime.replication.samples import ledger
from tests.runtime.replication.test_audit import verdict


def facts(writable: Sequence[str], read_only: Sequence[str] = ()) -> AuditFacts:
    return AuditFacts(registrations=Registrations(tuple(writable), tuple(read_only)), now_ms=0)


def report(verdicts: Iterable[LedgerVerdict], known: AuditFacts, totals: AuditTotals | None = None) -> AuditReport:
    counter = AuditCounter(known, totals)
    for each in verdicts:
        counter.add(each)
    return report_of(counter.totals, known)


def test_totals_by_ledger_and_bookie() -> None:
    live = {"b1", "b2", "b3"}
    result = report(
        [
            verdict(1, ledger({0: ["b0", "b1"]}, 2, 1, last_entry_id=9, length=100), live),
            verdict(2, ledger({0: ["b2", "b3"]}, 2, 2, last_entry_id=9, length=100), live),
            judge_ledger([WriteSetRow(3, problem="garbage")], set()),
        ],
        facts(["b1", "b2", "idle"], ["b3"]),
    )

    assert (result.summary.ledgers, result.summary.replicated, result.summary.under_replicated) == (3, 1, 1)
    assert (result.summary.at_risk, result.summary.unavailable, result.summary.unreadable) == (0, 0, 1)
    assert [(row.ledger_id, row.missing_bookies, row.live_copies_min) for row in result.under_replicated] == [
        (1, ("b0",), 1)
    ]
    by_id = {bookie.bookie_id: bookie for bookie in result.bookies}
    assert (by_id["b0"].mode, by_id["b3"].mode, by_id["idle"].ledgers) == ("unregistered", "read_only", 0)
    assert (by_id["b1"].last_copy_ledgers, by_id["b2"].last_copy_ledgers) == (1, 0)
    assert not result.is_truncated


def test_lists_are_bounded_and_counts_are_not() -> None:
    bad = [verdict(each, ledger({0: ["b0"]}, 1, 1, last_entry_id=0, length=1), set()) for each in range(7)]
    result = report(bad, facts([]), AuditTotals(findings_max=2))
    assert (result.summary.unavailable, len(result.under_replicated), result.is_truncated) == (7, 2, True)


def test_a_list_that_is_full_has_the_worst_ledgers() -> None:
    metadata = ledger({0: ["b0", "b1"]}, 2, 1, last_entry_id=9, length=100)
    verdicts = [verdict(each, metadata, {"b0"} if each < 7 else set()) for each in range(8)]
    result = report(verdicts, facts(["b0"]), AuditTotals(findings_max=2))
    assert [(each.ledger_id, each.replication) for each in result.under_replicated] == [
        (0, "under_replicated"),
        (7, "unavailable"),
    ]


def test_a_ledger_is_summed_up_by_its_worst_write_set() -> None:
    metadata = ledger({0: ["b0", "b1", "b2", "b3"]}, 2, 1, last_entry_id=9, length=1000)
    judged = verdict(1, metadata, {"b2", "b3"})
    row = under_replicated_ledger(judged, is_closable=None, is_lost=True, may_return=bool, writable=frozenset())
    assert (row.replication, row.live_copies_min, row.write_sets, row.missing_bookies) == (
        "unavailable",
        0,
        3,
        ("b0", "b1"),
    )
