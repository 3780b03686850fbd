"""Findings are a pure function of a status: none for a healthy cluster, one for each thing that is wrong."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from bkctl.runtime.metadata.replication.maintenance import Maintenance
from bkctl.runtime.metadata.replication.recovery_notes import (
    CollectionNote,
    LostBookieNote,
    LostLedgerNote,
    MaintenanceNote,
)
from bkctl.runtime.metadata.replication.recovery_status import NotedLosses, RecoveryStatus
from bkctl.runtime.metadata.replication.switches import SwitchNote
from bkctl.runtime.replication.judge.cluster_facts import (
    AuditorStatus,
    AutorecoveryStatus,
    BookieFacts,
    ClusterFacts,
    DownReferences,
    MarkCount,
    RepairLocks,
    RootStatus,
    first_counted,
    seconds_left,
)
from bkctl.runtime.replication.judge.cluster_status import down_bookies, status_findings
from bkctl.runtime.replication.judge.drained_bookies import LEAVES_AT_RISK, LEAVES_CLUSTER, DrainedBookie
from bkctl.runtime.replication.judge.no_live_copy import NoLiveCopy, bookies_to_start, start_words
from bkctl.storage.severity import Severity, word, worst

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
GOOD = BookieFacts("b1:3181", is_writable=True, has_cookie=True, total_bytes=100, free_bytes=60)


def bookie(name: str, **changes: Any) -> BookieFacts:
    return msgspec.structs.replace(GOOD, bookie_id=f"{name}:3181", **changes)


HEALTHY = ClusterFacts(
    now_ms=NOW_MS,
    zookeeper_ms=2.0,
    root=RootStatus("an-id"),
    bookies=(GOOD, bookie("b2"), bookie("b3")),
    marks=MarkCount(0, 0),
    locks=RepairLocks(0, {}),
    auditor=AuditorStatus(is_elected=True, bookie_id="b1:3181"),
    autorecovery=AutorecoveryStatus(delay_s=0, full_check_ms=NOW_MS - HOUR_MS),
)
DOWN = bookie("b4", is_writable=None, total_bytes=None, free_bytes=None)
SILENT = bookie("b5", problem="no answer within 1.5 s", total_bytes=None, free_bytes=None)
REFUSING = bookie("b7", problem="bookie b7:3181: no login", total_bytes=None, free_bytes=None, is_refusing=True)
NO_ROOM: dict[str, Any] = {"read_only_reasons": {"no_room": "no space for a checkpoint"}}
LEAVING = bookie(
    "b2", is_writable=False, read_only_reasons={"manual": "set by an operator"}, order=f"{LEAVES_CLUSTER} (ann@h1)"
)
NO_AUDITOR = AuditorStatus(is_elected=False)
OLD_MARKS = MarkCount(2113, 10_000, NOW_MS - 3 * HOUR_MS)

FAULTS: list[tuple[str, Severity, dict[str, Any]]] = [
    ("restore", Severity.CRITICAL, {"root": RootStatus("an-id", is_restore_unfinished=True)}),
    ("migration", Severity.WARNING, {"root": RootStatus("an-id", migration="Pulsar is migrating its metadata")}),
    ("bookies_down", Severity.WARNING, {"bookies": (GOOD, DOWN)}),
    ("bookies_down", Severity.CRITICAL, {"bookies": (GOOD, DOWN, bookie("b6", is_writable=None))}),
    ("bookies_down", Severity.CRITICAL, {"bookies": (GOOD, DOWN, SILENT)}),
    ("bookies_down", Severity.WARNING, {"bookies": (GOOD, DOWN), "auditor": NO_AUDITOR, "marks": MarkCount(1, 1)}),
    ("bookies_refusing", Severity.WARNING, {"bookies": (GOOD, REFUSING)}),
    ("bookies_silent", Severity.WARNING, {"bookies": (GOOD, SILENT)}),
    ("bookies_read_only", Severity.INFORMATION, {"bookies": (GOOD, bookie("b2", is_writable=False))}),
    ("bookies_leaving", Severity.INFORMATION, {"bookies": (GOOD, LEAVING)}),
    ("bookies_out_of_space", Severity.WARNING, {"bookies": (GOOD, bookie("b2", is_writable=False, **NO_ROOM))}),
    ("bookies_without_cookie", Severity.WARNING, {"bookies": (GOOD, bookie("b2", has_cookie=False))}),
    ("no_writable_bookie", Severity.CRITICAL, {"bookies": (bookie("b2", is_writable=False),)}),
    ("no_writable_bookie", Severity.CRITICAL, {"bookies": ()}),
    ("writers_stop", Severity.CRITICAL, {"bookies": (GOOD, LEAVING), "usual_size": 2}),
    ("disks", Severity.WARNING, {"bookies": (GOOD, bookie("b2", free_bytes=10))}),
    ("disks", Severity.WARNING, {"bookies": (GOOD, bookie("b2", free_bytes=5))}),
    ("disks", Severity.CRITICAL, {"bookies": (GOOD, bookie("b2", free_bytes=5), bookie("b3", free_bytes=1))}),
    ("marks", Severity.WARNING, {"marks": MarkCount(1, 1, NOW_MS - 1000)}),
    ("marks", Severity.WARNING, {"marks": MarkCount(0, 5)}),
    ("no_repair", Severity.WARNING, {"marks": OLD_MARKS}),
    ("old_lock", Severity.INFORMATION, {"locks": RepairLocks(1, {"host": 1}, NOW_MS - 7 * HOUR_MS)}),
    ("no_auditor", Severity.WARNING, {"auditor": NO_AUDITOR}),
    ("autorecovery_disabled", Severity.WARNING, {"autorecovery": AutorecoveryStatus(off_since_ms=NOW_MS - 1)}),
    ("recovery_delay", Severity.WARNING, {"autorecovery": AutorecoveryStatus(delay_s=7200)}),
    ("full_check", Severity.INFORMATION, {"autorecovery": AutorecoveryStatus(full_check_ms=NOW_MS - 400 * HOUR_MS)}),
    ("zookeeper", Severity.WARNING, {"zookeeper_ms": 900.0}),
    ("zookeeper", Severity.CRITICAL, {"zookeeper_ms": None, "unknown": {"zookeeper": "connection refused"}}),
    ("marks", Severity.WARNING, {"marks": None, "unknown": {"marks": "no answer within 2 s"}}),
]


def test_a_healthy_cluster_has_no_finding() -> None:
    assert status_findings(HEALTHY) == []
    assert word(worst([])) == "ok"
    new = msgspec.structs.replace(HEALTHY, autorecovery=AutorecoveryStatus())
    assert status_findings(new) == [], "no check has run yet, and no delay was ever set"


@pytest.mark.parametrize(("part", "severity", "changes"), FAULTS)
def test_each_fault_is_found_with_a_command(part: str, severity: Severity, changes: dict[str, Any]) -> None:
    found = status_findings(msgspec.structs.replace(HEALTHY, **changes))
    (finding,) = [each for each in found if each.part == part]
    assert finding.severity is severity
    assert (finding.command is None) == (part == "restore"), "only the operator knows the file of the backup"
    assert (finding.command or "bkctl ").startswith("bkctl ")
    assert finding.sentence


@pytest.mark.parametrize(
    "change", [{"auditor": NO_AUDITOR}, {"autorecovery": AutorecoveryStatus(off_since_ms=NOW_MS - 1)}]
)
def test_a_bookie_whose_ledgers_nobody_will_repair_is_critical(change: dict[str, Any]) -> None:
    status = msgspec.structs.replace(HEALTHY, bookies=(GOOD, DOWN), **change)
    (finding,) = [each for each in status_findings(status) if each.part == "bookies_down"]
    assert (finding.severity, finding.command) == (Severity.CRITICAL, "bkctl recover failed-bookie b4:3181")
    assert finding.sentence == "bookie b4:3181 is not registered; nothing repairs ledgers that still reference b4:3181"
    assert down_bookies(status) == "bookie b4:3181 is"
    assert down_bookies(HEALTHY) is None


def test_a_drain_that_was_cut_is_continued_and_one_that_runs_is_left_alone() -> None:
    status = msgspec.structs.replace(HEALTHY, bookies=(GOOD, LEAVING))
    (cut,) = status_findings(status)
    assert cut.sentence == (
        "bookie b2:3181 leaves the cluster, read-only; no command moves its ledgers now: bkctl bookie drain b2:3181 "
        "moves any that are left, and decommission also removes it; to keep it: bkctl bookie undrain b2:3181"
    )
    assert cut.command == "bkctl decommission b2:3181", "it is unknown whether any is left"
    (cut,) = status_findings(msgspec.structs.replace(status, drained={"b2:3181": DrainedBookie(is_referenced=True)}))
    assert cut.command == "bkctl bookie drain b2:3181", "which may be all that was wanted"
    at_risk = msgspec.structs.replace(LEAVING, order=f"{LEAVES_AT_RISK} (ann@h1)")
    left = {"b2:3181": DrainedBookie(is_referenced=True)}
    (cut,) = status_findings(msgspec.structs.replace(status, bookies=(GOOD, at_risk), drained=left))
    assert cut.command == "bkctl bookie drain b2:3181 --accept-risk", "as it was begun"
    for change in ({"bookies": (GOOD, LEAVING, DOWN)}, {"marks": MarkCount(1, 1)}):
        found = {each.part: each for each in status_findings(msgspec.structs.replace(status, drained=left, **change))}
        assert found["bookies_leaving"].command == "bkctl bookie drain b2:3181 --accept-risk", change
    needed = msgspec.structs.replace(status, usual_size=2, drained={"b2:3181": DrainedBookie(is_referenced=True)})
    found = {each.part: each for each in status_findings(needed)}
    assert found["bookies_leaving"].command == "bkctl bookie undrain b2:3181", "a drain would be refused"
    (over,) = status_findings(msgspec.structs.replace(status, drained={"b2:3181": DrainedBookie()}))
    assert over.sentence == (
        "bookie b2:3181 leaves the cluster, read-only, and no ledger references it: stop it, and bkctl decommission "
        "b2:3181 removes it; to keep it: bkctl bookie undrain b2:3181"
    )
    assert over.command == "bkctl decommission b2:3181"
    waiting = DrainedBookie(is_referenced=True, waiting=frozenset({21, 20}))
    (waits,) = status_findings(msgspec.structs.replace(status, drained={"b2:3181": waiting}))
    assert waits.severity is Severity.WARNING, "nothing goes on without the operator"
    assert waits.sentence == (
        "bookie b2:3181 leaves the cluster, read-only; 2 ledgers wait for their writers: open ledgers that have no "
        "writer are closed by bkctl ledger close 20 21; then bkctl bookie drain b2:3181 moves what is left; to keep "
        "it: bkctl bookie undrain b2:3181"
    )
    assert waits.command == "bkctl ledger close 20 21"
    root = RootStatus("an-id", operations=("'bookie drain' by ann",), recovering=frozenset({"b2:3181"}))
    (running,) = status_findings(msgspec.structs.replace(status, root=root))
    assert running.sentence == "bookie b2:3181 leaves the cluster, read-only; a command is moving its ledgers"
    unexplained = msgspec.structs.replace(LEAVING, order="")
    (unsaid,) = status_findings(msgspec.structs.replace(status, bookies=(GOOD, unexplained), root=root))
    assert unsaid == running, "its admin interface cannot be asked"
    assert (running.part, running.severity, running.command) == (cut.part, Severity.INFORMATION, "bkctl status --watch")


def test_a_bookie_whose_ledgers_a_command_moves_is_only_a_warning() -> None:
    root = RootStatus("an-id", operations=("'recover failed-bookie' by ann",), recovering=frozenset({"b4:3181"}))
    status = msgspec.structs.replace(HEALTHY, bookies=(GOOD, DOWN), auditor=NO_AUDITOR, root=root)
    (finding,) = [each for each in status_findings(status) if each.part == "bookies_down"]
    assert (finding.severity, finding.command) == (Severity.WARNING, "bkctl status --watch")
    assert finding.sentence == "bookie b4:3181 is not registered; a command is moving the ledgers of b4:3181"
    both = msgspec.structs.replace(status, bookies=(GOOD, DOWN, bookie("b6", is_writable=None)))
    finding, moved = [each for each in status_findings(both) if each.part == "bookies_down"]
    assert (finding.severity, finding.command) == (Severity.CRITICAL, "bkctl recover failed-bookie b6:3181")
    assert finding.sentence == "bookie b6:3181 is not registered; nothing repairs ledgers that still reference b6:3181"
    assert moved.sentence == "bookie b4:3181 is not registered; a command is moving the ledgers of b4:3181"


def looked(*referenced: str, why_unknown: str | None = None) -> DownReferences:
    return DownReferences(
        bookie_ids=frozenset({"b4:3181"}), referenced=frozenset(referenced), ledgers=12, why_unknown=why_unknown
    )


def test_a_bookie_that_no_ledger_references_is_only_noted() -> None:
    gone = msgspec.structs.replace(HEALTHY, bookies=(GOOD, DOWN), auditor=NO_AUDITOR, references=looked())
    (finding,) = [each for each in status_findings(gone) if each.part.startswith("bookies_")]
    assert (finding.severity, finding.part) == (Severity.INFORMATION, "bookies_unreferenced")
    assert "none of the 12 ledgers references it" in finding.sentence
    assert finding.command == "bkctl decommission b4:3181"
    assert down_bookies(gone) is None
    silent = msgspec.structs.replace(gone, bookies=(GOOD, DOWN, SILENT))
    assert next(each for each in status_findings(silent) if each.part == "bookies_silent").severity is Severity.WARNING


def test_a_bookie_that_was_given_up_and_is_down_is_started_before_it_leaves() -> None:
    recovery = RecoveryStatus(away=(("b4:3181", (5, 7)), ("b9:3181", (8,))))
    gone = msgspec.structs.replace(HEALTHY, bookies=(GOOD, DOWN), references=looked(), recovery=recovery)
    (finding,) = [each for each in status_findings(gone) if each.part == "bookies_unreferenced"]
    assert finding.sentence == (
        "bookie b4:3181 is not registered, and none of the 12 ledgers references it; 2 ledgers whose loss was accepted "
        "(5, 7) could get entries back from b4:3181: if its disks exist, start it before it leaves the cluster (bkctl "
        "bookie show b4:3181); what will not come back can leave the cluster"
    )
    assert finding.command == "bkctl decommission b4:3181"


@pytest.mark.parametrize("references", [looked("b4:3181"), looked(why_unknown="only 12 ledgers were read in 4 s")])
def test_a_bookie_is_not_said_to_be_unreferenced_without_a_proof(references: DownReferences) -> None:
    status = msgspec.structs.replace(HEALTHY, bookies=(GOOD, DOWN), auditor=NO_AUDITOR, references=references)
    (finding,) = [each for each in status_findings(status) if each.part.startswith("bookies_")]
    assert (finding.severity, finding.part) == (Severity.CRITICAL, "bookies_down")
    assert ("only 12 ledgers were read in 4 s" in finding.sentence) is (references.why_unknown is not None)
    assert down_bookies(status) == "bookie b4:3181 is"


def in_maintenance(*bookie_ids: str, set_delay_s: int | None = None, is_over: bool = False) -> RecoveryStatus:
    end_ms = NOW_MS + (-1 if is_over else 1) * HOUR_MS
    note = MaintenanceNote(start_ms=NOW_MS - 2 * HOUR_MS, end_ms=end_ms, user="ann", set_delay_s=set_delay_s)
    return RecoveryStatus(maintenance=tuple(Maintenance(each, note) for each in bookie_ids))


def test_no_recovery_is_advised_for_a_bookie_in_maintenance() -> None:
    status = msgspec.structs.replace(
        HEALTHY, bookies=(GOOD, DOWN), auditor=NO_AUDITOR, recovery=in_maintenance("b4:3181")
    )
    (finding,) = [each for each in status_findings(status) if each.part.startswith("bookies_")]
    assert (finding.severity, finding.command) == (Severity.INFORMATION, "bkctl autorecovery maintenance list")
    assert finding.sentence == "bookie b4:3181 is in maintenance until 23:13 UTC (by ann)"
    another = msgspec.structs.replace(status, bookies=(GOOD, DOWN, bookie("b6", is_writable=None)))
    (finding,) = [each for each in status_findings(another) if each.part == "bookies_down"]
    assert (finding.severity, finding.command) == (Severity.CRITICAL, "bkctl recover failed-bookie b6:3181")
    over = msgspec.structs.replace(status, recovery=in_maintenance("b4:3181", is_over=True))
    (finding,) = [each for each in status_findings(over) if each.part == "bookies_down"]
    assert (finding.severity, finding.command) == (Severity.CRITICAL, "bkctl recover failed-bookie b4:3181")


def test_a_bookie_in_maintenance_whose_session_has_not_ended_yet_is_away() -> None:
    """It is not said to serve either."""
    status = msgspec.structs.replace(HEALTHY, bookies=(GOOD, SILENT), recovery=in_maintenance("b5:3181"))
    (finding,) = status_findings(status)
    assert finding.sentence == "bookie b5:3181 is in maintenance until 23:13 UTC (by ann)"
    over = msgspec.structs.replace(status, recovery=in_maintenance("b5:3181", is_over=True))
    assert {each.part for each in status_findings(over)} == {"bookies_silent", "maintenance_overdue"}


def test_a_bookie_in_maintenance_that_no_ledger_references_is_not_to_leave() -> None:
    resting = in_maintenance("b4:3181")
    status = msgspec.structs.replace(HEALTHY, bookies=(GOOD, DOWN), references=looked(), recovery=resting)
    (finding,) = [each for each in status_findings(status) if each.part.startswith("bookies_")]
    assert (finding.part, finding.command) == ("bookies_in_maintenance", "bkctl autorecovery maintenance list")
    both = msgspec.structs.replace(looked(), bookie_ids=frozenset({"b4:3181", "b6:3181"}))
    status = msgspec.structs.replace(status, bookies=(GOOD, DOWN, bookie("b6", is_writable=None)), references=both)
    commands = {each.part: each.command for each in status_findings(status)}
    assert commands["bookies_unreferenced"] == "bkctl decommission b6:3181"
    over = msgspec.structs.replace(status, recovery=in_maintenance("b4:3181", is_over=True))
    commands = {each.part: each.command for each in status_findings(over)}
    assert commands["bookies_unreferenced"] == "bkctl decommission b4:3181 b6:3181"


def test_a_maintenance_is_ended_only_for_a_bookie_that_is_back() -> None:
    over = in_maintenance("b2:3181", "b4:3181", is_over=True)
    status = msgspec.structs.replace(HEALTHY, bookies=(GOOD, bookie("b2"), DOWN), recovery=over)
    (finding,) = [each for each in status_findings(status) if each.part == "maintenance_overdue"]
    assert finding.sentence.endswith("is overdue by 60 min; start b4:3181")
    assert finding.command == "bkctl autorecovery maintenance end b2:3181"
    away = msgspec.structs.replace(HEALTHY, bookies=(GOOD, DOWN), recovery=in_maintenance("b4:3181", is_over=True))
    (finding,) = [each for each in status_findings(away) if each.part == "maintenance_overdue"]
    assert finding.command == "bkctl autorecovery maintenance list", "its end would be refused"


@pytest.mark.parametrize("is_over", [True, False])
def test_a_removed_bookie_in_maintenance_neither_serves_nor_is_to_be_started(is_over: bool) -> None:
    """It has no cookie and no registration; its end needs the consent that a bookie which is down needs."""
    status = msgspec.structs.replace(HEALTHY, recovery=in_maintenance("b4:3181", is_over=is_over))
    (finding,) = status_findings(status)
    assert (finding.severity, finding.part) == (Severity.INFORMATION, "bookies_in_maintenance")
    assert finding.sentence == "bookie b4:3181 is in maintenance, but not in the cluster"
    assert finding.command == "bkctl autorecovery maintenance end b4:3181 --accept-risk"


def test_the_only_copies_come_before_a_recovery() -> None:
    """A recovery would leave the ledgers that have no live copy: their bookie is started first, if it has a disk."""
    lost = NoLiveCopy(ledgers=5, first_ids=(3, 7), to_start=(("b4:3181",),))
    references = msgspec.structs.replace(looked("b4:3181"), no_live_copy=lost)
    status = msgspec.structs.replace(HEALTHY, bookies=(GOOD, DOWN), auditor=NO_AUDITOR, references=references)
    first, second, *_ = status_findings(status)
    assert (first.part, first.sentence) == ("no_live_copy", "5 ledgers have no live copy; start b4:3181")
    assert (first.severity, first.command) == (Severity.CRITICAL, "bkctl bookie show b4:3181")
    assert (second.part, second.command) == ("bookies_down", "bkctl recover failed-bookie b4:3181")


def test_a_recovery_that_finds_no_live_copy_is_not_advised() -> None:
    lost = NoLiveCopy(ledgers=5, first_ids=(3, 7), to_start=(("b4:3181",),))
    references = msgspec.structs.replace(looked("b4:3181"), no_live_copy=lost, has_source=False)
    first, second, *_ = status_findings(msgspec.structs.replace(HEALTHY, bookies=(GOOD, DOWN), references=references))
    assert (first.part, first.command) == ("no_live_copy", "bkctl bookie show b4:3181")
    assert (second.severity, second.part) == (Severity.CRITICAL, "bookies_down")
    assert second.sentence == (
        "bookie b4:3181 is not registered, and no ledger that references it has a live copy to recover from: if its "
        "disks are lost, accept the loss; that is refused for ledgers whose entries bookies outside of the ensembles "
        "have"
    )
    assert second.command == (
        "bkctl ledger list --bookie b4:3181 --state lost -o name > lost-ledgers && "
        "bkctl decommission b4:3181 --accept-loss b4:3181 --from-file lost-ledgers"
    )

    not_closed = msgspec.structs.replace(lost, open_ids=(3, 7))
    references = msgspec.structs.replace(references, no_live_copy=not_closed)
    status = msgspec.structs.replace(HEALTHY, bookies=(GOOD, DOWN), references=references)
    _, second, *_ = status_findings(status)
    assert second.command == "bkctl ledger close 3 7 --accept-loss b4:3181", "the others are the step after it"


@pytest.mark.parametrize("to_start", [(("b4:3181", "b5:3181"),), (("b4:3181",), ("b5:3181",))])
def test_no_loss_is_accepted_of_what_a_bookie_may_bring_back_that_will_return(
    to_start: tuple[tuple[str, ...], ...],
) -> None:
    """Bookie b5 is in maintenance: it has the same entries, or others."""
    lost = NoLiveCopy(ledgers=5, first_ids=(3, 7), to_start=to_start)
    references = msgspec.structs.replace(looked("b4:3181", "b5:3181"), no_live_copy=lost, has_source=False)
    bookies = (GOOD, DOWN, bookie("b5", is_writable=None))
    status = msgspec.structs.replace(HEALTHY, bookies=bookies, references=references)
    away = msgspec.structs.replace(status, recovery=in_maintenance("b5:3181", is_over=False))
    for each, command in ((status, "decommission"), (away, "ledger explain 3")):
        (found,) = [advice for advice in status_findings(each) if advice.part == "bookies_down"]
        assert command in (found.command or "")


def test_noted_losses_name_the_bookie_to_start_or_are_the_last_step() -> None:
    note = LostLedgerNote(found_ms=NOW_MS, missing_bookies=("b4:3181", "b8:3181"), reason="")
    recovery = RecoveryStatus(losses=NotedLosses(1, (("7", note),)))
    status = msgspec.structs.replace(HEALTHY, bookies=(GOOD, DOWN), recovery=recovery)
    first = status_findings(status)[0]
    assert first.part == "no_live_copy"
    assert first.sentence == "1 ledger has entries without a live copy; start b4:3181"
    assert "lost_entries" not in {each.part for each in status_findings(status)}
    back = msgspec.structs.replace(status, bookies=(GOOD, bookie("b4")))
    (finding,) = [each for each in status_findings(back) if each.severity is Severity.CRITICAL]
    assert (finding.part, finding.command) == ("lost_entries", "bkctl ledger explain 7")


def test_losses_on_removed_bookies_are_not_hidden_by_ledgers_that_may_come_back() -> None:
    note = LostLedgerNote(found_ms=NOW_MS, missing_bookies=("b8:3181",), reason="")
    waiting = NoLiveCopy(ledgers=5, first_ids=(3,), to_start=(("b4:3181",),))
    references = msgspec.structs.replace(looked("b4:3181"), no_live_copy=waiting)
    recovery = RecoveryStatus(losses=NotedLosses(1, (("7", note),)))
    status = msgspec.structs.replace(HEALTHY, bookies=(GOOD, DOWN), references=references, recovery=recovery)
    assert {"no_live_copy", "lost_entries"} <= {each.part for each in status_findings(status)}


def test_few_bookies_are_started_and_the_most_useful_first() -> None:
    pairs = {frozenset(each.split()): count for each, count in (("a b", 5), ("b c", 5), ("d e", 1), ("", 9))}
    assert bookies_to_start(pairs) == (("b",), ("d", "e"))
    assert start_words(bookies_to_start(pairs)) == "start b, and d or e"
    assert start_words((("a", "b"),)) == "start a or b"
    assert start_words((("a",), ("b",))) == "start a and b"
    assert bookies_to_start({}) == ()


def test_what_zookeeper_refuses_is_not_asked_again() -> None:
    unknown = {"auditor": "/ledgers/available: no permission", "bookies": "/ledgers/available: no permission"}
    refused = msgspec.structs.replace(HEALTHY, unknown=unknown, refused=frozenset(unknown))
    assert {each.part: each.command for each in status_findings(refused)} == dict.fromkeys(
        unknown, "bkctl help exit-codes"
    )


def test_nothing_is_writable() -> None:
    down = msgspec.structs.replace(HEALTHY, bookies=(DOWN, bookie("b2", is_writable=False)))
    (finding,) = [each for each in status_findings(down) if each.part == "no_writable_bookie"]
    assert (finding.sentence, finding.command) == (
        "no bookie is writable: start b4:3181",
        "bkctl bookie show b4:3181",
    )


ORDERED = bookie("b3", is_writable=False, read_only_reasons={"manual": "set by an operator"}, order="new disk")
FULL = bookie("b6", is_writable=False, **NO_ROOM)
UNEXPLAINED = bookie("b8", is_writable=False)


@pytest.mark.parametrize(
    ("others", "command"),
    [
        ((UNEXPLAINED, DOWN, FULL, ORDERED, LEAVING), "bkctl bookie undrain b2:3181"),
        ((UNEXPLAINED, DOWN, FULL, ORDERED), "bkctl bookie set-mode writable b3:3181"),
        ((UNEXPLAINED, DOWN, FULL), "bkctl help full-disk"),
        ((UNEXPLAINED, DOWN), "bkctl bookie show b4:3181"),
        ((UNEXPLAINED,), "bkctl bookie state b8:3181"),
        ((), "bkctl bookie list"),
    ],
)
def test_what_helps_writers_the_fastest_comes_first(others: tuple[BookieFacts, ...], command: str) -> None:
    status = msgspec.structs.replace(HEALTHY, bookies=(GOOD, *others), usual_size=2)
    (finding,) = [each for each in status_findings(status) if each.part == "writers_stop"]
    assert (finding.severity, finding.command) == (Severity.CRITICAL, command)
    enough = msgspec.structs.replace(status, usual_size=1)
    assert "writers_stop" not in {each.part for each in status_findings(enough)}
    alone = msgspec.structs.replace(status, bookies=(GOOD,), usual_size=0)
    assert status_findings(alone) == [], "a new cluster of one bookie"


@pytest.mark.parametrize(
    ("others", "how", "command"),
    [
        ((DOWN, bookie("b5", is_writable=None)), "start b4:3181 and b5:3181", "bookie show b4:3181 b5:3181"),
        (
            (DOWN, *(bookie(each, is_writable=None) for each in ("b5", "b7"))),
            "start 2 of b4:3181, b5:3181 and b7:3181",
            "bookie show b4:3181 b5:3181 b7:3181",
        ),
        ((DOWN,), "start b4:3181; then add a bookie: bkctl bookie list", "bookie show b4:3181"),
        ((), "add 2 bookies", "bookie list"),
        (
            (LEAVING, ORDERED, DOWN, bookie("b5", is_writable=None)),
            "keep b2:3181, which a drain made read-only and no command empties now; then make b3:3181 writable, which "
            "an operator set read-only: bkctl bookie set-mode writable b3:3181",
            "bookie undrain b2:3181",
        ),
        (
            (ORDERED, DOWN, bookie("b5", is_writable=None)),
            "make b3:3181 writable, which an operator set read-only; then start b4:3181 or b5:3181: bkctl bookie show "
            "b4:3181 b5:3181",
            "bookie set-mode writable b3:3181",
        ),
        (
            (FULL, msgspec.structs.replace(FULL, bookie_id="b9:3181")),
            "free space on b6:3181 and b9:3181, or give them disks",
            "help full-disk",
        ),
        (
            (FULL, UNEXPLAINED),
            "free space on b6:3181, or give it a disk; then find out why b8:3181 is not writable, or add a bookie: "
            "bkctl bookie state b8:3181",
            "help full-disk",
        ),
        (
            (DOWN, ORDERED, msgspec.structs.replace(ORDERED, bookie_id="b9:3181")),
            "make b3:3181 and b9:3181 writable, which an operator set read-only",
            "bookie set-mode writable b3:3181 b9:3181",
        ),
    ],
)
def test_all_that_writers_need_are_named(others: tuple[BookieFacts, ...], how: str, command: str) -> None:
    status = msgspec.structs.replace(HEALTHY, bookies=(GOOD, *others), usual_size=3)
    (finding,) = [each for each in status_findings(status) if each.part == "writers_stop"]
    step, *more = how.split("; then ")
    expected = "; then ".join([f"{step} (2 more bookies are needed)", *more])
    assert finding.sentence.endswith(f"cannot be created; {expected}")
    assert finding.command == f"bkctl {command}"


def test_no_bookie_is_to_leave_while_writers_need_it() -> None:
    references = DownReferences(bookie_ids=frozenset({"b4:3181"}), referenced=frozenset(), ledgers=9)
    status = msgspec.structs.replace(HEALTHY, bookies=(GOOD, DOWN), usual_size=2, references=references)
    parts = {each.part: each.command for each in status_findings(status)}
    assert "bookies_unreferenced" not in parts
    assert parts["writers_stop"] == "bkctl bookie show b4:3181"
    enough = msgspec.structs.replace(status, usual_size=1)
    assert "bookies_unreferenced" in {each.part for each in status_findings(enough)}


def test_a_bookie_that_a_command_empties_now_is_not_kept_for_writers() -> None:
    root = RootStatus("an-id", operations=("'bookie drain' by ann",), recovering=frozenset({"b2:3181"}))
    status = msgspec.structs.replace(HEALTHY, bookies=(GOOD, LEAVING), usual_size=2, root=root)
    (finding,) = [each for each in status_findings(status) if each.part == "writers_stop"]
    assert (finding.sentence.rpartition("; ")[2], finding.command) == ("add a bookie", "bkctl bookie list")


def test_the_delay_that_a_maintenance_has_set_is_left_to_its_end() -> None:
    during = msgspec.structs.replace(
        HEALTHY,
        autorecovery=AutorecoveryStatus(delay_s=7200),
        recovery=in_maintenance("b2:3181", set_delay_s=7200),
    )
    (finding,) = [each for each in status_findings(during) if each.part == "recovery_delay"]
    assert (finding.severity, finding.command) == (Severity.INFORMATION, "bkctl autorecovery maintenance list")
    over = msgspec.structs.replace(during, recovery=in_maintenance("b2:3181", set_delay_s=7200, is_over=True))
    (finding,) = [each for each in status_findings(over) if each.part == "recovery_delay"]
    assert (finding.severity, finding.command) == (Severity.WARNING, "bkctl autorecovery maintenance end b2:3181")
    other = msgspec.structs.replace(during, recovery=in_maintenance("b2:3181", set_delay_s=3601))
    (finding,) = [each for each in status_findings(other) if each.part == "recovery_delay"]
    assert (finding.severity, finding.command) == (Severity.WARNING, "bkctl autorecovery delay set 0")


def test_no_deadline_of_an_unreferenced_bookie_is_announced() -> None:
    note = LostBookieNote(lost_ms=NOW_MS, due_ms=NOW_MS + 60_000)
    recovery = RecoveryStatus(deadlines=(("b4:3181", note),))
    status = msgspec.structs.replace(HEALTHY, bookies=(GOOD, DOWN), recovery=recovery)
    assert [each.part for each in status_findings(status) if each.part == "deadlines"] == ["deadlines"]
    gone = msgspec.structs.replace(status, references=looked())
    assert [each.part for each in status_findings(gone) if each.part == "deadlines"] == []


def test_faults_are_found_together_and_the_most_urgent_comes_first() -> None:
    source = random.Random(5)
    for _ in range(500):
        chosen = [each for each in source.sample(FAULTS, 6) if each[2].get("zookeeper_ms", 0) is not None]
        changes: dict[str, Any] = {}
        expected: list[tuple[str, Severity]] = []
        for part, severity, change in chosen:
            if changes.keys().isdisjoint(change):
                changes |= change
                if part == "bookies_down":
                    continue  # its severity depends on other parts
                if part != "no_repair" or "locks" not in changes:
                    expected.append((part, severity))
        found = status_findings(msgspec.structs.replace(HEALTHY, **changes))
        severities = [each.severity for each in found]
        assert severities == sorted(severities, reverse=True)
        known = {(each.part, each.severity) for each in found}
        if "locks" in changes:
            expected = [each for each in expected if each[0] != "no_repair"]
        assert known.issuperset(expected), (chosen, found)
        assert worst(severities) == (severities[0] if severities else None)


def test_marks_that_were_not_read_are_no_warning() -> None:
    assert status_findings(msgspec.structs.replace(HEALTHY, marks=MarkCount(0, None))) == []


def test_one_mark_is_not_several() -> None:
    (finding,) = status_findings(msgspec.structs.replace(HEALTHY, marks=MarkCount(1, 1)))
    assert finding.sentence == "1 ledger is marked as under-replicated"


def test_sentences_name_what_a_person_needs() -> None:
    note = SwitchNote("ann", "kernel update", "2023-01-01T00:00:00Z")
    status = msgspec.structs.replace(
        HEALTHY,
        bookies=tuple(bookie(f"b{number}", is_writable=None) for number in range(7)),
        marks=OLD_MARKS,
        autorecovery=AutorecoveryStatus(off_since_ms=NOW_MS - 2 * HOUR_MS, note=note),
    )
    sentences = {each.part: each.sentence for each in status_findings(status)}
    assert sentences["bookies_down"] == (
        "7 bookies (b0:3181, b1:3181, b2:3181, b3:3181, b4:3181 and 2 more) are not registered; "
        "nothing repairs ledgers that still reference b0:3181, b1:3181, b2:3181, b3:3181, b4:3181 and 2 more"
    )
    assert sentences["marks"].startswith(
        "2,113 to 10,000 ledgers are marked as under-replicated; the oldest mark is 3 h"
    )
    assert sentences["autorecovery_disabled"] == (
        "autorecovery has been disabled by ann for 2 h (kernel update); it was to be enabled by 2023-01-01T00:00:00Z"
    )


def test_counts_show_what_is_known() -> None:
    assert (str(MarkCount(7, 7)), str(MarkCount(7, 9)), str(MarkCount(7, None))) == ("7", "7 to 9", "at least 7")


def test_the_time_left_needs_two_counts_and_progress() -> None:
    def counted(seconds: int, at_most: int | None) -> ClusterFacts:
        return msgspec.structs.replace(HEALTHY, now_ms=NOW_MS + seconds * 1000, marks=MarkCount(0, at_most))

    assert seconds_left(counted(0, 100), counted(10, 80)) == 40
    assert seconds_left(counted(0, 100), counted(10, 0)) == 0
    assert seconds_left(counted(0, 100), counted(10, 100)) is None
    assert seconds_left(counted(0, 100), counted(10, 101)) is None
    assert seconds_left(counted(0, None), counted(10, 80)) is None
    assert seconds_left(counted(0, 100), msgspec.structs.replace(HEALTHY, marks=None)) is None
    assert seconds_left(counted(10, 100), counted(10, 80)) is None


def test_the_pace_is_measured_from_the_first_look_that_counted_all_marks() -> None:
    """A status that ran out of time did not count all marks: compared with it, no later one has an estimate."""
    partial = msgspec.structs.replace(HEALTHY, marks=MarkCount(2, None))
    full = msgspec.structs.replace(HEALTHY, marks=MarkCount(2, 2))
    unknown = msgspec.structs.replace(HEALTHY, marks=None)
    for before in (None, unknown, partial):
        assert first_counted(before, full) is full
    assert first_counted(full, partial) is full
    assert first_counted(full, msgspec.structs.replace(HEALTHY, marks=MarkCount(1, 1))) is full


def test_a_bookie_that_answers_with_an_error_is_not_called_silent() -> None:
    status = msgspec.structs.replace(HEALTHY, bookies=(GOOD, REFUSING, SILENT))
    sentences = {each.part: each.sentence for each in status_findings(status)}
    assert sentences["bookies_refusing"] == "bookie b7:3181 is registered, but answered: no login"
    assert sentences["bookies_silent"] == "bookie b5:3181 is registered, but did not answer"


def test_bookies_that_delete_no_ledgers() -> None:
    stopped = tuple((each, CollectionNote(stopped="ZooKeeper has note 4")) for each in ("b1:3181", "b9:3181"))
    status = msgspec.structs.replace(HEALTHY, recovery=RecoveryStatus(stopped=stopped), bookies=(GOOD,))
    (finding,) = [each for each in status_findings(status) if each.part == "deletion_stopped"]
    assert (finding.severity, finding.command) == (Severity.CRITICAL, "bkctl bookie gc status b1:3181")
    assert finding.sentence == (
        "bookie b1:3181 deletes no ledgers, because the metadata is older than it was: ZooKeeper has note 4"
    )
