"""What a plan says of a ledger, from its metadata alone."""

from __future__ import annotations

from runtime.replication.recovery_plan import plan_ledger
from tests.runtime.replication.samples import ledger


def test_a_plan_counts_survivors_of_the_worst_entry() -> None:
    closed = ledger({0: ["b1", "b2", "b3", "b4"]}, 2, 2, last_entry_id=9, length=100)
    plan = plan_ledger(3, closed, frozenset({"b1"}), frozenset({"b2", "b3"}))
    # Entries 3 and 7 are on b4 and b1 alone.
    assert plan.surviving_copies == 0
    assert plan_ledger(3, closed, frozenset({"b1"}), frozenset({"b2", "b3", "b4"})).surviving_copies == 1
    assert plan.fragments[0].entries == 5
