"""Every ledger of a plan is counted once, whatever became of it."""

from __future__ import annotations

import pytest

from bkctl.runtime.replication.judge.ledger_result import FailureReason, LedgerFailure, LedgerOutcome, LedgerResult
from bkctl.runtime.replication.run.recovery import RecoveryReport, RecoveryTally


def report_of(*results: LedgerResult, unreadable: tuple[LedgerFailure, ...] = ()) -> RecoveryReport:
    tally = RecoveryTally()
    for result in results:
        tally.add(result)
    return tally.report(("b1",), 1.0, unreadable)


FAILURE = LedgerFailure(1, FailureReason.LOCKED, (), "held by another host")


@pytest.mark.parametrize(
    ("result", "outcome"),
    [
        (LedgerResult(ledger_id=1, fragments=2), LedgerOutcome.REPAIRED),
        (LedgerResult(ledger_id=1, was_closed=True), LedgerOutcome.REPAIRED),
        (LedgerResult(ledger_id=1), LedgerOutcome.REPAIRED_BY_OTHERS),
        (LedgerResult(ledger_id=1, was_deleted=True), LedgerOutcome.DELETED),
        (LedgerResult(ledger_id=1, fragments=2, failures=(FAILURE,)), LedgerOutcome.FAILED),
    ],
)
def test_outcome_of_one_ledger(result: LedgerResult, outcome: LedgerOutcome) -> None:
    assert result.outcome is outcome


def test_the_columns_add_up_and_ledgers_outside_of_the_plan_stand_apart() -> None:
    unreadable = LedgerFailure(9, FailureReason.METADATA_UNREADABLE, (), "garbage")
    results = [
        LedgerResult(ledger_id=1, fragments=2, failures=(FAILURE,)),
        LedgerResult(ledger_id=2, fragments=1, entries=3, bytes_copied=30),
        LedgerResult(ledger_id=3),
        LedgerResult(ledger_id=4, was_deleted=True),
    ]
    report = report_of(*results, unreadable=(unreadable,))
    assert report.ledgers == 4
    assert (report.ledgers_repaired, report.ledgers_repaired_by_others) == (1, 1)
    assert (report.ledgers_deleted, report.ledgers_failed, report.ledgers_unreadable) == (1, 1, 1)
    assert (report.fragments, report.has_progress, report.is_complete) == (3, True, False)
    assert report.failures == (FAILURE, unreadable)
    idle = report_of(LedgerResult(ledger_id=3))
    assert (idle.ledgers_repaired_by_others, idle.has_progress) == (1, False)
