"""What a repair in place leaves, and why: copies that could not be read are unknown, never bad."""

from __future__ import annotations

import pytest

from bkctl.runtime.replication.judge.bad_copies import plan_in_place
from bkctl.runtime.replication.judge.copies import CopyDefect, CopyState, LedgerCheck
from bkctl.runtime.replication.judge.fragments import EntryRange
from bkctl.runtime.replication.judge.ledger_result import FailureReason
from tests.runtime.replication.samples import ledger

ALL = (EntryRange(0, 9),)
METADATA = ledger({0: ("b1", "b2", "b3")}, 3, 2, last_entry_id=9, length=100)


def defect(bookie_id: str, state: CopyState, *, is_refused: bool = False) -> CopyDefect:
    return CopyDefect(bookie_id, state, 10, ALL, "reason", is_refused=is_refused)


DOWN = defect("b1", CopyState.UNREACHABLE)
REFUSING = defect("b2", CopyState.UNREACHABLE, is_refused=True)
MISSING = defect("b3", CopyState.MISSING)


@pytest.mark.parametrize(
    ("defects", "left"),
    [
        ((DOWN,), {"b1": FailureReason.UNREACHABLE}),
        ((REFUSING,), {"b2": FailureReason.REFUSES_CLIENT}),
        ((DOWN, REFUSING), {"b1": FailureReason.UNREACHABLE, "b2": FailureReason.REFUSES_CLIENT}),
        (
            (DOWN, REFUSING, MISSING),
            {
                "b1": FailureReason.UNREACHABLE,
                "b2": FailureReason.REFUSES_CLIENT,
                "b3": FailureReason.UNREADABLE,
            },
        ),
    ],
    ids=["down", "refusing", "both", "no good copy"],
)
def test_the_reason_of_a_copy_that_could_not_be_read_comes_first(
    defects: tuple[CopyDefect, ...], left: dict[str, FailureReason]
) -> None:
    unreadable = ALL if len(defects) == 3 else ()
    check = LedgerCheck(ledger_id=1, last_entry_id=9, defects=defects, unreadable=unreadable)
    plan = plan_in_place(check, METADATA, 1, {"b1", "b2", "b3"}, ())
    assert {each.bookie_id: each.reason for each in plan.left} == left
    assert all(each.copies == 10 for each in plan.left)
    assert plan.changes == ()
