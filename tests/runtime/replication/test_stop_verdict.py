"""Whether bookies can be stopped, or removed: rules over metadata, and one scan of a real store."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec
import pytest

from bkctl.runtime.errors import BookieNotFoundError
from bkctl.runtime.ledger.metadata import LedgerMetadata, LedgerState
from bkctl.runtime.metadata.bookies.registration import BookieMode, Registrations
from bkctl.runtime.metadata.replication.directories import ForeignNames
from bkctl.runtime.metadata.replication.given_up_note import GivenUpNote
from bkctl.runtime.metadata.replication.maintenance import Maintenance
from bkctl.runtime.metadata.replication.marks import UnderReplicationMarks
from bkctl.runtime.metadata.replication.recovery_notes import MaintenanceNote
from bkctl.runtime.placement.rack_sources import RackTable
from bkctl.runtime.placement.rules import PlacementRules
from bkctl.runtime.placement.survey import BookieSurvey
from bkctl.runtime.placement.view import BookieSpace
from bkctl.runtime.protocol.status import Status
from bkctl.runtime.replication.judge.stop_verdict import ClusterNow, StopCheck, StopReason, StopVerdict
from bkctl.runtime.replication.judge.verdict import ReplicationState, judge_ledger, write_set_rows
from bkctl.runtime.replication.survey.stop_scan import scan_for_stop
from tests.runtime.replication.fleet import Fleet, length_of
from tests.runtime.replication.samples import ledger, random_ledger

OPEN = LedgerState.OPEN
ROOMY = BookieSpace(total_bytes=1000, free_bytes=900)


def cluster(
    writable: Sequence[str],
    *,
    read_only: Sequence[str] = (),
    down: Sequence[str] = (),
    silent: Sequence[str] = (),
    refused: dict[str, str] | None = None,
    space: dict[str, BookieSpace] | None = None,
    racks: dict[str, str] | None = None,
    is_strict: bool = True,
) -> ClusterNow:
    return ClusterNow(
        registrations=Registrations(tuple(writable), tuple(read_only)),
        with_cookie=[*writable, *read_only, *down],
        survey=BookieSurvey(writable=frozenset(writable), tables=(RackTable(racks),) if racks else ()),
        rules=PlacementRules(min_racks_per_write_quorum=2 if racks else 0, is_strict=is_strict),
        space=space or {},
        silent=frozenset(silent),
        refusals=refused or {},
    )


def judge(now: ClusterNow, stopped: Sequence[str], *ledgers: LedgerMetadata, is_removal: bool = False) -> StopVerdict:
    check = StopCheck(stopped, now, random.Random(1), is_removal=is_removal)
    for ledger_id, metadata in enumerate(ledgers):
        check.add(ledger_id, metadata)
    return check.verdict()


def refusals(verdict: StopVerdict) -> list[StopReason]:
    return [each.reason for each in verdict.reasons]


CLOSED = ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=9, length=100)


def test_one_of_two_copies_may_stop_while_the_other_runs() -> None:
    now = cluster(["b1", "b2", "b3"])
    verdict = judge(now, ["b1"], CLOSED)
    assert verdict.is_yes
    assert (verdict.ledgers_on_them, verdict.bytes_on_them) == (1, 100)
    assert refusals(judge(now, ["b1", "b2"], CLOSED))[0] is StopReason.UNREADABLE
    both = judge(cluster(["b1", "b3", "b4"], down=["b2"]), ["b1"], CLOSED)
    assert refusals(both) == [StopReason.UNREADABLE, StopReason.BOOKIE_DOWN]
    assert both.reasons[0].ledger_ids == (0,)
    assert "b2" in both.reasons[0].detail


def test_a_read_only_bookie_keeps_ledgers_readable_but_takes_no_new_ones() -> None:
    assert judge(cluster(["b1", "b3", "b4"], read_only=["b2"]), ["b1"], CLOSED).is_yes
    assert refusals(judge(cluster(["b1", "b3"], read_only=["b2"]), ["b1"], CLOSED)) == [StopReason.NEW_LEDGERS]


def test_an_open_ledger_needs_answers_to_be_closed_and_a_successor_for_its_writer() -> None:
    writing = ledger({0: ["b1", "b2", "b3"]}, 3, 2, state=OPEN)
    assert judge(cluster(["b1", "b2", "b3", "b4"]), ["b1"], writing).is_yes
    verdict = judge(cluster(["b1", "b2", "b3"]), ["b1"], writing)
    assert refusals(verdict) == [StopReason.NO_SUCCESSOR, StopReason.NEW_LEDGERS]
    assert "E=3, Qw=3" in verdict.reasons[1].detail
    closing = ledger({0: ["b1", "b2", "b3"]}, 3, 2, state=LedgerState.IN_RECOVERY)
    assert refusals(judge(cluster(["b1", "b2", "b3"]), ["b1"], closing)) == [StopReason.NEW_LEDGERS]
    two = judge(cluster(["b1", "b2", "b3", "b4", "b5", "b6"]), ["b1", "b2"], writing)
    assert refusals(two) == [StopReason.UNCLOSABLE]


def test_the_last_copy_but_one_stays() -> None:
    three = ledger({0: ["b1", "b2", "b3"]}, 3, 2, last_entry_id=9, length=100)
    verdict = judge(cluster(["b1", "b3", "b4", "b5", "b6"], down=["b2"]), ["b1"], three)
    assert refusals(verdict) == [StopReason.BOOKIE_DOWN, StopReason.LAST_COPY]


def test_bookies_that_were_given_up_are_not_said_to_have_copies() -> None:
    striped = ledger({0: ["b1", "b8", "b9"]}, 2, 2, last_entry_id=9, length=100)
    note = GivenUpNote(written_ms=1, member_since={"b8": 1, "b9": 1})
    for given_up, detail in (
        ({}, "their other copies are on bookies that are not running (b8, b9)"),
        ({0: note}, "all their copies are on these bookies"),
    ):
        now = msgspec.structs.replace(cluster(["b1", "b2", "b3", "b4"]), given_up=given_up)
        found = {each.reason: each.detail for each in judge(now, ["b1"], striped).reasons}
        assert found[StopReason.UNREADABLE] == detail


def test_a_bookie_that_was_removed_does_not_excuse_few_copies() -> None:
    """The removed bookie cannot be started, so it is only a warning; the copies that are left count all the same."""
    three = ledger({0: ["b1", "b2", "b9"]}, 3, 2, last_entry_id=9, length=100)
    now = cluster(["b1", "b2", "b3", "b4", "b5", "b6"])
    verdict = judge(now, ["b1"], three)
    assert refusals(verdict) == [StopReason.LAST_COPY]
    assert verdict.reasons[0].detail == "other bookies with a copy are not running (b9)"
    assert [each.reason for each in verdict.warnings] == [StopReason.BOOKIE_REMOVED]
    assert judge(now, ["b3"], three).is_yes, "it has no copy"
    assert refusals(judge(now, ["b1"], ledger({0: ["b1", "b9"]}, 2, 2, last_entry_id=9))) == [StopReason.UNREADABLE]
    five = ledger({0: ["b1", "b2", "b3", "b4", "b9"]}, 5, 4, last_entry_id=9, length=100)
    assert refusals(judge(now, ["b1"], five)) == [StopReason.ACK_QUORUM]
    enough = ledger({0: ["b1", "b2", "b3", "b4", "b9"]}, 5, 3, last_entry_id=9, length=100)
    assert judge(now, ["b1"], enough).is_yes


def test_no_decommission_is_advised_that_finds_no_bookie_for_the_copies() -> None:
    """All writable bookies are in the ensemble, although its write sets are smaller."""
    wide = ledger({0: ["b1", "b2", "b3", "b4"]}, 2, 2, last_entry_id=9, length=100)
    stuck = judge(cluster(["b1", "b2", "b3"], down=["b4"]), ["b1"], wide)
    assert {each.reason: each.detail for each in stuck.reasons}[StopReason.BOOKIE_DOWN] == (
        "bookie b4 is down and ledgers name it: start it, or add a bookie (no other writable one can take all copies)"
    )
    more = judge(cluster(["b1", "b2", "b3", "b5"], down=["b4"]), ["b1"], wide)
    detail = {each.reason: each.detail for each in more.reasons}[StopReason.BOOKIE_DOWN]
    assert detail.endswith("or bkctl decommission b4 first")


def test_a_bookie_that_is_down_matters_only_if_a_ledger_names_it() -> None:
    assert judge(cluster(["b1", "b2", "b3"], down=["b9"]), ["b1"], CLOSED).is_yes


def test_a_bookie_that_left_the_cluster_does_not_hold_up_others() -> None:
    """Ledgers with accepted losses still name it. It cannot be started, and was decommissioned already."""
    lost = ledger({0: ["b9"]}, 1, 1, last_entry_id=9, length=100)
    verdict = judge(cluster(["b1", "b2", "b3"]), ["b1"], CLOSED, lost, is_removal=True)
    assert verdict.is_yes
    assert [(each.reason, each.detail) for each in verdict.warnings] == [
        (
            StopReason.BOOKIE_REMOVED,
            "bookie b9 is no longer in the cluster, but ledgers name it: bkctl recover failed-bookie b9 moves those "
            "that have other copies",
        )
    ]


def test_a_bookie_in_maintenance_is_waited_for() -> None:
    now_ms = 1_700_000_000_000
    note = MaintenanceNote(start_ms=now_ms, end_ms=now_ms + 3_600_000, user="ann")
    down = cluster(["b1", "b3", "b4"], down=["b2"])
    away = msgspec.structs.replace(down, maintenance=[Maintenance("b2", note)], now_ms=now_ms)
    detail = {each.reason: each.detail for each in judge(away, ["b3"], CLOSED).reasons}
    assert detail == {StopReason.BOOKIE_DOWN: "bookie b2 is in maintenance until 23:13 UTC (by ann)"}
    late = msgspec.structs.replace(away, now_ms=note.end_ms + 1)
    for now in (down, late):
        detail = {each.reason: each.detail for each in judge(now, ["b3"], CLOSED).reasons}
        assert detail == {
            StopReason.BOOKIE_DOWN: "bookie b2 is down and ledgers name it: start it, or bkctl decommission b2 first"
        }


def test_marks_and_unreadable_metadata() -> None:
    check = StopCheck(["b1"], cluster(["b1", "b2", "b3"]), random.Random(1))
    check.add_unreadable(7, "not metadata")
    check.note_marks(0, deleted=2)
    verdict = check.verdict()
    assert verdict.is_yes
    assert [each.reason for each in verdict.warnings] == [StopReason.STALE_MARKS, StopReason.METADATA_UNREADABLE]
    assert "repair-marks" in verdict.warnings[0].detail
    assert verdict.warnings[1].ledger_ids == (7,)
    check.note_marks(3)
    assert refusals(check.verdict()) == [StopReason.MARKS]


@pytest.mark.parametrize("mode", BookieMode)
def test_a_registered_bookie_that_does_not_answer_counts_as_down(mode: BookieMode) -> None:
    is_writable = mode is BookieMode.WRITABLE
    writable, read_only = ["b1", "b3", "b4", *(["b2"] if is_writable else [])], [] if is_writable else ["b2"]
    now = cluster(writable, read_only=read_only, silent=["b2"])
    verdict = judge(now, ["b1"], CLOSED)
    assert refusals(verdict) == [StopReason.UNREADABLE, StopReason.SILENT]
    assert verdict.reasons[1].detail == (
        "bookie b2 is registered but does not answer: restart it, or decommission it first"
    )
    assert "b2" not in verdict.writable_after


def test_a_bookie_that_refuses_this_client_is_neither_dead_nor_to_be_decommissioned() -> None:
    now = cluster(["b1", "b2", "b3", "b4"], silent=["b2"], refused={"b2": "it refuses the login of operator"})
    verdict = judge(now, ["b1"], CLOSED)
    assert "their other copies are on bookies that refuse this client (b2)" in verdict.reasons[0].detail
    assert verdict.reasons[1].detail == (
        "bookie b2 is registered but answers: it refuses the login of operator: this client must be accepted first"
    )


def test_ledgers_are_grouped_by_their_own_reason() -> None:
    """b4 refuses this client, b5 is down: each group names the bookies of its ledgers, and no others."""
    refused = {"b4": "it refuses the login of operator"}
    now = cluster(["b1", "b2", "b3", "b4", "b6"], down=["b5"], silent=["b4"], refused=refused)
    ensembles = ("b1", "b4"), ("b1", "b5"), ("b1", "b4", "b5"), ("b1", "b2", "b5"), ("b1", "b2", "b4"), ("b1", "b5")
    closed = [ledger({0: list(each)}, len(each), 2, last_entry_id=9, length=100) for each in ensembles]
    closing = ledger({0: ["b1", "b2", "b5"]}, 3, 2, state=LedgerState.IN_RECOVERY)
    striped = ledger({0: ["b1", "b2", "b5", "b4", "b6"]}, 3, 2, last_entry_id=9, length=100)
    lone = ledger({0: ["b1"]}, 1, 1, last_entry_id=9, length=100)
    verdict = judge(now, ["b1"], *closed, closing, striped, lone)
    them = StopReason.UNREADABLE, StopReason.UNCLOSABLE, StopReason.LAST_COPY
    lead, kept = "their other copies are on bookies that", "other bookies with a copy"
    assert [(each.detail, each.ledger_ids) for each in verdict.reasons if each.reason in them] == [
        (f"{lead} refuse this client (b4)", (0,)),
        (f"{lead} are not running (b5)", (1, 5)),
        (f"{lead} are not running (b5) and refuse this client (b4)", (2,)),
        ("all their copies are on these bookies", (8,)),
        ("too few of their other bookies serve: some are not running (b5)", (6,)),
        (f"{kept} are not running (b5)", (3,)),
        (f"{kept} refuse this client (b4)", (4,)),
        (f"{kept} are not running (b5) and refuse this client (b4)", (7,)),
    ]


def test_a_removal_names_the_bookies_that_cannot_take_copies_because_they_refuse_or_are_silent() -> None:
    now = cluster(["b1", "b2", "b3", "b4"], silent=["b3", "b4"], refused={"b3": "it refuses the login of operator"})
    verdict = judge(now, ["b1"], CLOSED, is_removal=True)
    note = " (refusing this client: b3; without an answer: b4)"
    assert [each.detail for each in verdict.reasons if each.detail.endswith(note)] == [
        f"E=2, Qw=2 (used by 1 of 1 ledger) needs 2 writable bookies, 1 would be left{note}",
        f"E=2, Qw=2: every other writable bookie is in the ensemble already{note}",
    ]


def test_a_bookie_with_a_full_disk_does_not_take_over() -> None:
    full = {"b2": ROOMY, "b3": BookieSpace(total_bytes=1000, free_bytes=5)}
    verdict = judge(cluster(["b1", "b2", "b3"], space=full), ["b1"], CLOSED)
    assert refusals(verdict) == [StopReason.NEW_LEDGERS]
    assert "without space for more: b3" in verdict.reasons[0].detail


@pytest.mark.parametrize("is_strict", [True, False])
def test_racks_refuse_when_placement_is_strict(*, is_strict: bool) -> None:
    racks = {"b1": "/r1", "b2": "/r2", "b3": "/r2"}
    writing = ledger({0: ["b1", "b2"]}, 2, 2, state=OPEN)
    verdict = judge(cluster(["b1", "b2", "b3"], racks=racks, is_strict=is_strict), ["b1"], writing)
    assert verdict.is_yes is not is_strict
    assert [each.reason for each in verdict.objections] == [StopReason.PLACEMENT]
    assert judge(cluster(["b1", "b2", "b3", "b4"], racks=racks | {"b4": "/r1"}), ["b1"], writing).is_yes


def test_t47_a_removal_that_leaves_one_bookie_too_few_is_refused_with_the_size() -> None:
    three = ledger({0: ["b2", "b3", "b4"]}, 2, 2, last_entry_id=9, length=100)
    verdict = judge(cluster(["b1", "b2", "b3"]), ["b1"], CLOSED, three, is_removal=True)
    assert refusals(verdict)[0] is StopReason.NEW_LEDGERS
    assert "E=3, Qw=2 (used by 1 of 2 ledgers) needs 3 writable bookies, 2 would be left" in verdict.reasons[0].detail
    never_possible = ledger({0: ["b2", "b3", "b4", "b5"]}, 2, 2, last_entry_id=9)
    assert StopReason.NEW_LEDGERS not in refusals(
        judge(cluster(["b1", "b2", "b3"]), ["b1"], CLOSED, never_possible, is_removal=True)
    )


def test_a_removal_needs_targets_and_space_but_no_copies_elsewhere() -> None:
    single = ledger({0: ["b1"]}, 1, 1, last_entry_id=9, length=500)
    verdict = judge(cluster(["b1", "b2"]), ["b1"], single)
    assert [(each.reason, each.detail) for each in verdict.reasons] == [
        (StopReason.UNREADABLE, "all their copies are on these bookies")
    ]
    assert judge(cluster(["b1", "b2"]), ["b1"], single, is_removal=True).is_yes
    little = {"b2": BookieSpace(total_bytes=1000, free_bytes=400)}
    verdict = judge(cluster(["b1", "b2"], space=little), ["b1"], single, is_removal=True)
    assert refusals(verdict) == [StopReason.SPACE]
    wide = ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=9, length=100)
    verdict = judge(cluster(["b1", "b2"]), ["b1"], wide, is_removal=True)
    assert StopReason.NO_TARGET in refusals(verdict)


def test_a_yes_never_leaves_a_ledger_without_a_live_copy() -> None:
    source = random.Random(5)
    bookies = [f"b{number}" for number in range(7)]
    answers = set()
    for _ in range(500):
        metadata = random_ledger(source, bookies)
        down = source.sample(bookies, source.randint(0, 2))
        live = [each for each in bookies if each not in down]
        stopped = source.sample(live, source.randint(1, 3))
        verdict = judge(cluster(live, down=down), stopped, metadata)
        before = judge_ledger(write_set_rows(0, metadata), set(live)).replication
        after = judge_ledger(write_set_rows(0, metadata), set(live) - set(stopped)).replication
        if verdict.is_yes:
            assert after is not ReplicationState.UNAVAILABLE
        elif before is ReplicationState.REPLICATED and after is ReplicationState.UNAVAILABLE:
            assert StopReason.UNREADABLE in refusals(verdict)
        answers.add((verdict.is_yes, after))
    assert len(answers) > 4


async def test_the_scan_of_a_cluster(fleet: Fleet) -> None:
    await fleet.start("b1", "b2", "b3")
    await fleet.start("b4", mode=BookieMode.READ_ONLY)
    for bookie_id in ("b1", "b2", "b3", "b4"):
        await fleet.add_cookie(bookie_id)
    ledger_id = await fleet.store(ledger({0: ["b1", "b4"]}, 2, 2, last_entry_id=4, length=length_of(5)))
    parts = (fleet.client.ports, fleet.client.store)

    async def verdict(*bookie_ids: str) -> StopVerdict:
        return await scan_for_stop(*parts, bookie_ids, foreign=ForeignNames(lambda _: None))

    assert (await verdict("b1")).is_yes
    assert refusals(await verdict("b1", "b4")) == [StopReason.UNREADABLE]
    marks = UnderReplicationMarks(fleet.client.store, fleet.ledgers.root, fleet.client.ports.clock)
    await marks.mark(ledger_id, ["b1"])
    assert refusals(await verdict("b1")) == [StopReason.MARKS]
    await fleet.ledgers.delete(ledger_id, (await fleet.read(ledger_id)).version)
    assert [each.reason for each in (await verdict("b1")).objections] == [StopReason.STALE_MARKS]
    fleet.bookies["b4"].refuse("info", Status.UNAUTHORIZED, times=2)
    refusing = await verdict("b1")
    assert refusals(refusing) == [StopReason.SILENT]
    assert refusing.reasons[0].detail.startswith("bookie b4 is registered but answers: ")
    await fleet.bookies["b4"].stop()
    silent = await verdict("b1")
    assert refusals(silent) == [StopReason.SILENT]
    assert silent.reasons[0].detail.startswith("bookie b4 is registered but does not answer")
    with pytest.raises(BookieNotFoundError):
        await verdict("b9")
