"""What a plan says of a ledger, from its metadata alone."""

from __future__ import annotations

from runtime.replication.recovery_plan import RecoveryPlan, plan_ledger
from tests.runtime.replication.samples import ledger


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
