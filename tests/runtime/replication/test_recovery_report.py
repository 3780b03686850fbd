"""Every ledger of a plan is counted once, whatever became of it."""

from __future__ import annotations

import pytest

from runtime.replication.recovery_report import (
    FailureReason,
    LedgerFailure,
    LedgerOutcome,
    LedgerRepaired,
    RecoveryPlan,
    plan_ledger,
    recovery_report,
)
from tests.runtime.replication.samples import ledger

FAILURE = LedgerFailure(1, FailureReason.LOCKED, (), "held by another host")


@pytest.mark.parametrize(
    ("result", "outcome"),
    [
        (LedgerRepaired(ledger_id=1, fragments=2), LedgerOutcome.REPAIRED),
        (LedgerRepaired(ledger_id=1, was_closed=True), LedgerOutcome.REPAIRED),
        (LedgerRepaired(ledger_id=1), LedgerOutcome.REPAIRED_BY_OTHERS),
        (LedgerRepaired(ledger_id=1, was_deleted=True), LedgerOutcome.DELETED),
        (LedgerRepaired(ledger_id=1, fragments=2, failures=(FAILURE,)), LedgerOutcome.FAILED),
    ],
)
def test_outcome_of_one_ledger(result: LedgerRepaired, outcome: LedgerOutcome) -> None:
    assert result.outcome is outcome


def test_the_columns_add_up_and_ledgers_outside_of_the_plan_stand_apart() -> None:
    unreadable = LedgerFailure(9, FailureReason.METADATA_UNREADABLE, (), "garbage")
    plan = RecoveryPlan(bookie_ids=("b1",), ledgers_scanned=5, ledgers=(), unreadable=(unreadable,), targets=())
    results = [
        LedgerRepaired(ledger_id=1, fragments=2, failures=(FAILURE,)),
        LedgerRepaired(ledger_id=2, fragments=1, entries=3, bytes_copied=30),
        LedgerRepaired(ledger_id=3),
        LedgerRepaired(ledger_id=4, was_deleted=True),
    ]
    report = recovery_report(plan, results, 1.0)
    assert report.ledgers == 4
    assert (report.ledgers_repaired, report.ledgers_repaired_by_others) == (1, 1)
    assert (report.ledgers_deleted, report.ledgers_failed, report.ledgers_unreadable) == (1, 1, 1)
    assert (report.fragments, report.has_progress, report.is_complete) == (3, True, False)
    assert report.failures == (FAILURE, unreadable)
    idle = recovery_report(plan, [LedgerRepaired(ledger_id=3)], 1.0)
    assert (idle.ledgers_repaired_by_others, idle.has_progress) == (1, False)


def test_a_plan_counts_survivors_of_the_worst_entry() -> None:
    closed = ledger({0: ["b1", "b2", "b3", "b4"]}, 2, 2, last_entry_id=9, length=100)
    plan = plan_ledger(3, closed, 0, frozenset({"b1"}), frozenset({"b2", "b3"}))
    # Entries 3 and 7 are on b4 and b1 alone.
    assert plan.surviving_copies == 0
    assert plan_ledger(3, closed, 0, frozenset({"b1"}), frozenset({"b2", "b3", "b4"})).surviving_copies == 1
    assert plan.fragments[0].entries == 5


def test_a_plan_counts_ledgers_that_nobody_can_take_over() -> None:
    failed, live = frozenset({"b1", "b2"}), frozenset({"b3", "b4"})
    ledgers = {
        1: ledger({0: ["b1", "b3"]}, 2, 2, last_entry_id=9, length=100),
        2: ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=9, length=100),
        3: ledger({0: ["b1", "b3", "b9"], 5: ["b1", "b3", "b4"]}, 2, 2, last_entry_id=9, length=100),
        4: ledger({0: ["b1", "b2", "b3"]}, 2, 2, last_entry_id=9, length=100),
    }

    def blocked(*ledger_ids: int) -> int:
        return RecoveryPlan(
            bookie_ids=tuple(sorted(failed)),
            ledgers_scanned=len(ledgers),
            ledgers=tuple(plan_ledger(key, ledgers[key], 0, failed, live) for key in ledger_ids),
            unreadable=(),
            targets=tuple(sorted(live)),
        ).ledgers_without_target

    assert blocked(1, 2) == 0
    assert blocked(3) == 1, "everybody is in its second segment"
    assert blocked(4) == 1, "two are to be replaced, by b4 alone"
    assert blocked(1, 2, 3, 4) == 2
