"""What the plans and reports of ``recover`` and ``decommission`` say."""

from __future__ import annotations

import pytest

from commands.bookie.leaving import LeavingRequest, _change_plan
from commands.recovery_rendering import failure_rows, plan_summary
from commands.replication_access import ReplicationAccess
from commands.session import Session
from runtime.metadata.uri import parse_metadata_uri
from runtime.replication.decommission import DecommissionPlan
from runtime.replication.recovery_plan import LedgerPlan, RecoveryPlan, plan_ledger
from runtime.replication.recovery_report import FailureReason, LedgerFailure, LedgerRepaired, RecoveryTally
from tests.runtime.replication.samples import ledger

DEAD = frozenset({"b1"})
LIVE = frozenset({"b2", "b3"})


def lost(ledger_id: int) -> LedgerPlan:
    """Entries 3 and 7 are on b1 and on b4, which is not live either."""
    metadata = ledger({0: ["b1", "b2", "b3", "b4"]}, 2, 2, last_entry_id=9, length=100)
    return plan_ledger(ledger_id, metadata, 0, DEAD, LIVE)


def movable(ledger_id: int) -> LedgerPlan:
    return plan_ledger(ledger_id, ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=9, length=100), 0, DEAD, LIVE)


def plan(*ledgers: LedgerPlan) -> RecoveryPlan:
    return RecoveryPlan(bookie_ids=("b1",), ledgers_scanned=5, ledgers=ledgers, unreadable=(), targets=("b3", "b5"))


def test_a_plan_promises_nothing_for_ledgers_without_a_live_copy() -> None:
    will = "will recover 1 of 5 ledgers from b1: 1 fragment, 10 entries, about 500 B, to copy to 2 bookies"
    end = "completely unless a bookie comes back: some entries have no live copy"
    assert plan_summary(plan(movable(1))) == [will]
    assert plan_summary(plan(lost(2), movable(1))) == [will, f"will not move 1 ledger {end} (ledger 2)"]
    assert plan_summary(plan(lost(2), lost(3), lost(4))) == [f"will not move 3 ledgers {end} (ledger 2, 3, 4)"]
    assert plan_summary(plan()) == ["nothing to recover: none of 5 ledgers needs to be moved from b1"]


class Paths:
    """Paths of ledgers, without a cluster."""

    def path(self, name: object) -> str:
        return f"/ledgers/{name}"


@pytest.mark.parametrize(
    ("accepted", "left", "afterwards"),
    [
        ((), None, "the bookie can only start as a new one, with empty directories"),
        ((lost(2),), "will leave 1 ledger as it is, with entries proven lost; it will still reference bookie b1", ""),
        (
            (lost(2), lost(3)),
            "will leave 2 ledgers as they are, with entries proven lost; they will still reference bookie b1",
            "",
        ),
    ],
)
def test_the_plan_of_a_decommission_says_when_the_bookie_can_start(
    accepted: tuple[LedgerPlan, ...], left: str | None, afterwards: str
) -> None:
    uri = parse_metadata_uri("zk+flat://nowhere:1/ledgers")
    session = Session(None, None, uri, None)  # type: ignore[arg-type]
    access = ReplicationAccess(None, session, Paths())  # type: ignore[arg-type]
    found = DecommissionPlan(("b1",), {"b1": 3}, plan(), accepted=accepted)
    *before, cookie = _change_plan(access, found, LeavingRequest(bookie_ids=("b1",), wait_s=1)).summary
    assert before[1:] == ([] if left is None else [left])
    afterwards = afterwards or (
        "the bookie cannot start while an accepted ledger references it; later it can only start as a new one, "
        "with empty directories"
    )
    assert cookie.endswith(f"; afterwards {afterwards}")


def test_a_failure_names_its_ledger_once() -> None:
    failure = LedgerFailure(17, FailureReason.NOT_CLOSED, (), "ledger 17: recovery stopped")
    tally = RecoveryTally()
    tally.add(LedgerRepaired(ledger_id=17, failures=(failure,)).with_owner("topic persistent://t/n/a"))
    (row,) = failure_rows(tally.report(("b1",), 1.0))
    assert row["ledgers"] == [
        {"ledger_id": "17", "owner": "topic persistent://t/n/a", "entries": [], "detail": "recovery stopped"}
    ]
    assert str(failure) == "ledger 17: the ledger could not be closed: recovery stopped"
