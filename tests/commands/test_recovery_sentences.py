"""What the plans and reports of ``recover`` and ``decommission`` say."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from bkctl.commands.bookie.leaving import LeavingRequest, _change_plan
from bkctl.commands.bookie.leaving_report import next_steps
from bkctl.commands.recovery_rendering import (
    PlanItems,
    failure_lines,
    failure_rows,
    plan_body,
    plan_findings,
    plan_row,
    plan_summary,
)
from bkctl.commands.replication_access import ReplicationAccess
from bkctl.commands.safety.plan import PlanFinding
from bkctl.commands.session import Session
from bkctl.runtime.ledger.metadata import LedgerState
from bkctl.runtime.metadata.bookies.cookies import Cookie
from bkctl.runtime.metadata.store import Versioned
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.runtime.placement.rules import BrokenRule, PlacementRule
from bkctl.runtime.replication.config import (
    DEFAULT_POLICY,
    CopyPace,
    OpenLedgers,
    PlacementMode,
    Policy,
    ReplicationConfig,
)
from bkctl.runtime.replication.judge.fragments import EntryRange
from bkctl.runtime.replication.judge.ledger_result import FailureReason, LedgerFailure, LedgerResult
from bkctl.runtime.replication.judge.targets import TargetForecast
from bkctl.runtime.replication.plan.recovery_plan import LedgerPlan, RecoveryPlan, plan_ledger
from bkctl.runtime.replication.run.decommission import DecommissionPlan, DecommissionReport
from bkctl.runtime.replication.run.recovery import RecoveryTally
from bkctl.storage.severity import Severity
from tests.runtime.replication.samples import ledger

COOKIE = Versioned(Cookie(bookie_id="b1", journal_directories=("/j",), ledger_directories=("/l",)), 3)
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
    end = (
        "completely unless a bookie comes back, or one outside of the ensembles has the entries, which only the run "
        "asks: some have no live copy"
    )
    assert plan_summary(plan(movable(1))) == [will, SOON]
    one, several = plan(lost(2), movable(1)), plan(lost(2), lost(3), lost(4))
    assert plan_summary(one) == [will, SOON]
    assert plan_findings(one) == [PlanFinding(Severity.CRITICAL, f"will not move 1 ledger {end} (ledger 2)")]
    assert plan_summary(several) == [
        "will recover 3 ledgers of b1 only as far as bookies outside of the ensembles have the entries, "
        "which the run asks"
    ]
    assert plan_findings(several) == [PlanFinding(Severity.CRITICAL, f"will not move 3 ledgers {end} (ledger 2, 3, 4)")]
    unclosable = plan_ledger(5, ledger({0: ["b1", "b2", "b4"]}, 3, 2, state=LedgerState.OPEN), 0, DEAD, LIVE)
    (first, *_) = plan_summary(plan(lost(2), unclosable))
    assert first.startswith("will recover 1 ledger of b1 only as far as")
    assert first.endswith("; 1 other ledger cannot be moved now")
    assert plan_summary(plan()) == ["nothing to recover: none of 5 ledgers needs to be moved from b1"]


def test_a_plan_counts_what_it_copies_of_ledgers_that_it_cannot_move_completely() -> None:
    """The first segment of 5 entries has no live copy; the second, of 5, has one on b2."""
    halves = ledger({0: ["b1", "b4"], 5: ["b1", "b2"]}, 2, 2, last_entry_id=9, length=100)
    half = plan_ledger(2, halves, 0, DEAD, LIVE)
    both, soon = plan_summary(plan(movable(1), half))
    assert soon == SOON
    assert both == (
        "will recover 2 of 5 ledgers from b1, 1 of them in part: 2 fragments, 15 entries, about 750 B, to copy to "
        "2 bookies"
    )
    alone, _ = plan_summary(plan(half))
    assert alone == (
        "will recover 1 of 5 ledgers from b1, all of them in part: 1 fragment, 5 entries, about 250 B, to copy to "
        "2 bookies"
    )


def test_a_plan_promises_nothing_for_ledgers_that_have_no_target() -> None:
    metadata = ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=9, length=100)

    def planned(ledger_id: int, forecast: TargetForecast) -> LedgerPlan:
        return plan_ledger(ledger_id, metadata, 0, DEAD, LIVE, lambda *_: forecast)

    by_rule = planned(2, TargetForecast((BrokenRule(PlacementRule.RACKS, "b2, b3: 1 rack instead of 2"),)))
    blocked = planned(3, TargetForecast(why_none="1 needed, 0 found"))
    will = "will recover 1 of 5 ledgers from b1: 1 fragment, 10 entries, about 500 B, to copy to 2 bookies"
    strict = plan_summary(plan(movable(1), by_rule, blocked))
    assert strict[0] == will
    found = plan_findings(plan(movable(1), by_rule, blocked))
    assert {each.severity for each in found} == {Severity.WARNING}
    assert any("left alone without --placement best-effort" in each.finding for each in found)
    lenient = plan_summary(plan(movable(1), by_rule, blocked), BEST_EFFORT)
    assert lenient[0].startswith("will recover 2 of 5 ledgers from b1: 2 fragments, 20 entries")
    assert plan_summary(plan(by_rule)) == ["will recover nothing now: 1 ledger of b1 cannot be moved"]


def test_a_plan_says_which_ledgers_cannot_be_closed() -> None:
    """With b1 and b4 down, b2 alone cannot tell where this ledger ends."""
    states = (LedgerState.OPEN, LedgerState.IN_RECOVERY)
    ledgers = [
        plan_ledger(number, ledger({0: ["b1", "b2", "b4"]}, 3, 2, state=state), 0, DEAD, LIVE)
        for number, state in enumerate(states)
    ]
    why = "it cannot be closed: entries may exist that only b1 and b4 can have"
    about = "(no known owner, of unknown age)"
    left = f"will leave the last segment of 2 ledgers as it is: 0 {about}, 1 {about}; {why}"
    assert plan_summary(plan(*ledgers)) == ["will recover nothing now: 2 ledgers of b1 cannot be moved"]
    assert plan_findings(plan(*ledgers)) == [PlanFinding(Severity.WARNING, left)]
    assert plan_body(plan(*ledgers))["ledgers_fenced_first"] == 0
    assert [(row["needs_fencing"], row["problem"]) for row in map(plan_row, ledgers)] == [(False, why)] * 2
    skipped = plan_row(ledgers[0], SKIP)
    assert (skipped["needs_fencing"], skipped["problem"]) == (False, LEFT_OPEN), "it is not to be closed"
    assert plan_row(ledgers[1], SKIP)["problem"] == why
    assert plan_body(plan(*ledgers), SKIP)["ledgers_fenced_first"] == 0


NO_BYTES = "how long it takes shows only when it runs"
SOON = "copying would take less than 1 s at 100.0 MiB/s; how fast it is shows only when it runs (no --copy-rate)"
LEFT_OPEN = "its last segment is open, and such ledgers are skipped"
SKIP = Policy(open_ledgers=OpenLedgers.SKIP)
BEST_EFFORT = Policy(config=ReplicationConfig(placement=PlacementMode.BEST_EFFORT))


class Paths:
    """Paths of ledgers, without a cluster."""

    def path(self, name: object) -> str:
        return f"/ledgers/{name}"


@pytest.mark.parametrize(
    ("accepted", "left", "afterwards"),
    [
        ((), None, "the bookie can only start as a new one, with empty directories"),
        (
            (lost(2),),
            "will give up what only bookie b1 had of 1 ledger, 5 copies of entries that are proven lost; it stays "
            "as it is, and will still reference bookie b1",
            "",
        ),
        (
            (lost(2), lost(3)),
            "will give up what only bookie b1 had of 2 ledgers, 10 copies of entries that are proven lost; they stay "
            "as they are, and will still reference bookie b1",
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
    found = DecommissionPlan(("b1",), {"b1": COOKIE}, plan(), accepted=accepted)
    *before, nothing, cookie = _change_plan(access, found, LeavingRequest(bookie_ids=("b1",), wait_s=1)).summary
    assert before == ([] if left is None else [left]), "it begins with what is given up"
    assert nothing.startswith("nothing to recover: none of ")
    afterwards = afterwards or (
        "the bookie cannot start while an accepted ledger references it, and later can only start as a new one, "
        "with empty directories"
    )
    assert cookie.endswith(f"; afterwards {afterwards}")


def test_rows_and_totals_count_only_ledgers_that_may_be_fenced() -> None:
    states = (LedgerState.OPEN, LedgerState.IN_RECOVERY)
    ledgers = [
        plan_ledger(number, ledger({0: ["b1", "b2"]}, 2, 2, state=state), 0, DEAD, LIVE)
        for number, state in enumerate(states)
    ]
    for policy, fenced in ((SKIP, [False, True]), (DEFAULT_POLICY, [True, True])):
        assert plan_body(plan(*ledgers), policy)["ledgers_fenced_first"] == sum(fenced)
        assert [plan_row(each, policy)["needs_fencing"] for each in ledgers] == fenced


@pytest.mark.parametrize("is_drain", [False, True])
def test_open_ledgers_that_are_skipped_do_not_count_as_moved(is_drain: bool) -> None:
    state, verb = LedgerState.OPEN, "move" if is_drain else "recover"
    opened = plan_ledger(7, ledger({0: ["b1", "b2"]}, 2, 2, state=state), 0, DEAD, LIVE)
    part = plan_ledger(8, ledger({0: ["b1", "b2"], 10: ["b2", "b1"]}, 2, 2, state=state), 0, DEAD, LIVE)

    def summary(*ledgers: LedgerPlan) -> list[str]:
        return plan_summary(msgspec.structs.replace(plan(*ledgers), is_drain=is_drain), SKIP)

    about = "(no known owner, of unknown age)"
    left = f"will leave the last segment of 1 open ledger as it is: 7 {about}"
    assert summary(opened) == [f"will {verb} nothing now: 1 ledger of b1 cannot be moved", left]
    moved = f"will {verb} 1 of 5 ledgers from b1: 1 fragment, 10 entries, about 500 B, to copy to 2 bookies"
    assert summary(movable(1), opened) == [moved, SOON, left]
    [first, _, both] = summary(part, opened)
    assert first.startswith(f"will {verb} 1 of 5 ledgers from b1, all of them in part: 1 fragment, 10 entries, ")
    assert both == f"will leave the last segment of 2 open ledgers as it is: 8 {about}, 7 {about}"
    assert plan_row(opened, SKIP, is_drain=is_drain)["problem"] == LEFT_OPEN
    assert plan_row(opened, is_drain=is_drain)["problem"] is None


def test_the_plan_of_a_live_bookie_names_it() -> None:
    session = Session(None, None, parse_metadata_uri("zk+flat://nowhere:1/ledgers"), None)  # type: ignore[arg-type]
    access = ReplicationAccess(None, session, Paths())  # type: ignore[arg-type]
    found = DecommissionPlan(("b1",), {"b1": COOKIE}, plan(), live=DEAD)
    request = LeavingRequest(bookie_ids=("b1",), wait_s=1)
    items = _change_plan(access, found, request).items
    assert [(each["action"], each["bookie_id"]) for each in items] == [("set-mode", "b1"), ("delete cookie", "b1")]


@pytest.mark.parametrize(
    ("is_drain", "is_fenced", "sentence"),
    [
        (True, False, "will wait up to 600 s for the writers of 1 open ledger: 7 (no known owner, of unknown age)"),
        (False, True, "will fence and close 1 open ledger, which stops the writers, unless these replace the bookie"),
    ],
)
def test_writers_of_a_live_bookie_are_awaited_and_never_fenced(is_drain: bool, is_fenced: bool, sentence: str) -> None:
    session = Session(None, None, parse_metadata_uri("zk+flat://nowhere:1/ledgers"), None)  # type: ignore[arg-type]
    access = ReplicationAccess(None, session, Paths(), drain_wait_s=600)  # type: ignore[arg-type]
    opened = plan_ledger(7, ledger({0: ["b1", "b2"]}, 2, 2, state=LedgerState.OPEN), 0, DEAD, LIVE)
    made = access.change_plan(msgspec.structs.replace(plan(opened), is_drain=is_drain))
    assert made.arguments["open_ledgers"] == "wait"
    assert [each["needs_fencing"] for each in made.items] == [is_fenced]
    assert any(each.startswith(sentence) for each in made.summary), made.summary


def test_drained_bookies_that_are_down_need_no_stop() -> None:
    report = DecommissionReport(
        bookie_ids=("b1", "b2", "b3"),
        recoveries=(),
        ledgers_scanned=0,
        remaining=(),
        is_drained_only=True,
        read_only=("b1", "b3"),
    )
    assert next_steps(report) == [
        "2 bookies (b1, b3) are drained and read-only: to remove, stop and run bkctl decommission b1 b3; to keep, run "
        "bkctl bookie undrain b1 b3",
        "bookie b2 is drained and down: run bkctl decommission b2",
    ]
    gone = msgspec.structs.replace(report, read_only=("b1",), down=("b3",))
    assert next_steps(gone)[1:] == [
        "bookie b3 is down, and all its ledgers were moved: to remove, run bkctl decommission b3; to keep, start it, "
        "then run bkctl bookie undrain b3",
        "bookie b2 is drained and down: run bkctl decommission b2",
    ]


def test_a_failure_names_its_ledger_once() -> None:
    failure = LedgerFailure(17, FailureReason.NOT_CLOSED, (), "ledger 17: recovery stopped")
    tally = RecoveryTally()
    tally.add(LedgerResult(ledger_id=17, failures=(failure,)).with_owner("topic persistent://t/n/a"))
    (row,) = failure_rows(tally.report(("b1",), 1.0))
    assert row["ledgers"] == [
        {"ledger_id": "17", "owner": "topic persistent://t/n/a", "entries": [], "detail": "recovery stopped"}
    ]
    assert str(failure) == "ledger 17: the ledger could not be closed: recovery stopped"


def test_lines_of_failures_name_the_first_entries_of_each_ledger_once() -> None:
    third = tuple(EntryRange(number, number) for number in range(0, 2000, 3))
    tally = RecoveryTally()
    for ledger_id in range(7):
        failures = [LedgerFailure(ledger_id, FailureReason.LOST, third, "no other bookie ever had it")] * 2
        tally.add(LedgerResult(ledger_id=ledger_id, failures=tuple(failures)))
    (row,) = failure_rows(tally.report(("b1", "b2"), 1.0))
    lines = failure_lines(row)
    assert [each.get("ledger_id") for each in lines] == ["0", "1", "2", "3", "4", None]
    assert lines[0]["entries"] == "0, 3, 6, 9, 12, 15, 18, 21, 24, 27 and 657 more"
    assert lines[-1]["detail"] == "and 2 more (-o json has all)"


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
    assert plan_row(by_rule, BEST_EFFORT)["problem"] is None
    assert plan_row(movable(1))["problem"] is None


def test_a_plan_says_how_long_it_takes_if_a_limit_says_so() -> None:
    large = ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=9, length=60 * 1024**3)
    found = plan(plan_ledger(1, large, 0, DEAD, LIVE))
    assert plan_summary(found)[1:] == [
        "copying would take about 10 min at 100.0 MiB/s; how fast it is shows only when it runs (no --copy-rate)"
    ]
    limited = plan_summary(found, Policy(pace=CopyPace(bytes_per_s=2**20)))
    assert limited[1:] == ["takes at least 17 h at the limit of 1.0 MiB/s"]
    for_each = CopyPace(bytes_per_s=2**30, bytes_per_s_per_bookie=2**20)
    assert plan_summary(found, Policy(pace=for_each))[1:] == [
        "takes at least 9 h at the limit of 1.0 MiB/s for each bookie"
    ]


def test_a_short_plan_says_what_is_known_of_its_time() -> None:
    small = plan(movable(1))
    assert plan_summary(small)[1:] == [SOON]
    limited = plan_summary(small, Policy(pace=CopyPace(bytes_per_s=2**30)))
    assert limited[1:] == ["the limit of 1.0 GiB/s delays it by less than 1 s"]
    nothing = plan(plan_ledger(1, ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=-1, length=0), 0, DEAD, LIVE))
    for pace in (CopyPace(), CopyPace(bytes_per_s=2**30)):
        assert plan_summary(nothing, Policy(pace=pace))[1:] == [NO_BYTES], "no bytes: the changes of metadata take time"


def test_the_plan_of_a_drain_begins_with_the_mode_and_what_moves() -> None:
    session = Session(None, None, parse_metadata_uri("zk+flat://nowhere:1/ledgers"), None)  # type: ignore[arg-type]
    access = ReplicationAccess(None, session, Paths())  # type: ignore[arg-type]
    recovery = msgspec.structs.replace(plan(movable(1)), is_drain=True)
    found = DecommissionPlan(("b1",), {"b1": COOKIE}, recovery, live=DEAD)
    mode, moved, *_ = _change_plan(access, found, LeavingRequest(bookie_ids=("b1",), wait_s=1)).summary
    assert mode.startswith("will make bookie b1 read-only and move its ledgers away while it serves")
    assert moved.startswith("will move 1 of 5 ledgers from b1: 1 fragment, 10 entries, about 500 B")
