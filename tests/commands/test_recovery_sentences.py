"""What the plans and reports of ``recover`` and ``decommission`` say."""

from __future__ import annotations

from typing import Any

import pytest

from commands.bookie.leaving import LeavingRequest, _change_plan, _policy_of_copies
from commands.recovery_rendering import PlanItems, RecoveryChoices, failure_rows, plan_body, plan_row, plan_summary
from commands.rendering import duration
from commands.replication_access import ReplicationAccess
from commands.session import Session
from runtime.ledger.metadata import LedgerState
from runtime.metadata.uri import parse_metadata_uri
from runtime.placement.rules import BrokenRule, PlacementRule
from runtime.replication.config import OpenLedgers
from runtime.replication.copy_targets import TargetForecast
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


def test_rows_and_totals_count_only_ledgers_that_may_be_fenced() -> None:
    states = (LedgerState.OPEN, LedgerState.IN_RECOVERY)
    ledgers = [
        plan_ledger(number, ledger({0: ["b1", "b2"]}, 2, 2, state=state), 0, DEAD, LIVE)
        for number, state in enumerate(states)
    ]
    for policy, fenced in ((OpenLedgers.SKIP, [False, True]), (OpenLedgers.WAIT, [True, True])):
        assert plan_body(plan(*ledgers), policy)["ledgers_fenced_first"] == sum(fenced)
        assert [plan_row(each, open_ledgers=policy)["needs_fencing"] for each in ledgers] == fenced


def test_the_plan_of_a_live_bookie_names_it_and_fences_nothing_by_default() -> None:
    session = Session(None, None, parse_metadata_uri("zk+flat://nowhere:1/ledgers"), None)  # type: ignore[arg-type]
    access = ReplicationAccess(None, session, Paths())  # type: ignore[arg-type]
    found = DecommissionPlan(("b1",), {"b1": 3}, plan(), live=DEAD)
    request = LeavingRequest(bookie_ids=("b1",), wait_s=1)
    items = _change_plan(access, found, request).items
    assert [(each["action"], each["bookie_id"]) for each in items] == [("set-mode", "b1"), ("delete cookie", "b1")]
    assert _policy_of_copies(found, request) is OpenLedgers.SKIP
    assert _policy_of_copies(DecommissionPlan(("b1",), {}, plan()), request) is OpenLedgers.WAIT


def test_a_failure_names_its_ledger_once() -> None:
    failure = LedgerFailure(17, FailureReason.NOT_CLOSED, (), "ledger 17: recovery stopped")
    tally = RecoveryTally()
    tally.add(LedgerRepaired(ledger_id=17, failures=(failure,)).with_owner("topic persistent://t/n/a"))
    (row,) = failure_rows(tally.report(("b1",), 1.0))
    assert row["ledgers"] == [
        {"ledger_id": "17", "owner": "topic persistent://t/n/a", "entries": [], "detail": "recovery stopped"}
    ]
    assert str(failure) == "ledger 17: the ledger could not be closed: recovery stopped"


def test_items_of_a_plan_are_made_when_they_are_needed() -> None:
    made: list[int] = []

    def item_of(each: LedgerPlan) -> dict[str, Any]:
        made.append(each.ledger_id)
        return {"ledger_id": each.ledger_id}

    items = PlanItems([movable(number) for number in range(5)], item_of, [{"action": "delete cookie"}])
    assert (len(items), made) == (6, [])
    assert (items[1], items[-1], items[4:]) == ({"ledger_id": 1}, items[5], [{"ledger_id": 4}, items[5]])
    assert made == [1, 4]
    assert [item.get("ledger_id") for item in items] == [0, 1, 2, 3, 4, None]


def test_a_row_says_why_a_ledger_cannot_be_moved() -> None:
    metadata = ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=9, length=100)
    broken = (BrokenRule(PlacementRule.RACKS, "b2, b3: 1 rack instead of 2"),)

    def planned(forecast: TargetForecast) -> LedgerPlan:
        return plan_ledger(1, metadata, 0, DEAD, LIVE, lambda *_: forecast)

    assert plan_row(lost(1))["problem"] == "some entries have no live copy"
    assert plan_row(planned(TargetForecast(why_none="1 needed, 0 found")))["problem"] == (
        "too few bookies to copy to: 1 needed, 0 found"
    )
    by_rule = planned(TargetForecast(broken))
    assert str(plan_row(by_rule)["problem"]).startswith("every target breaks a placement rule: racks per write quorum")
    assert plan_row(by_rule, is_best_effort=True)["problem"] is None
    assert plan_row(movable(1))["problem"] is None


@pytest.mark.parametrize(("seconds", "text"), [(0, "0 s"), (119, "119 s"), (120, "2 min"), (7199, "120 min")])
def test_time_spans(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_large_plan_says_what_its_time_would_be() -> None:
    large = ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=9, length=60 * 1024**3)
    sentences = plan_summary(plan(plan_ledger(1, large, 0, DEAD, LIVE)))
    assert sentences[1] == "its time is unknown until it runs: 10 min at 100.0 MiB/s"
    limited = plan_summary(plan(plan_ledger(1, large, 0, DEAD, LIVE)), RecoveryChoices(bytes_per_s=2**20))
    assert limited[1] == "takes at least 17 h at the limit of 1.0 MiB/s"
