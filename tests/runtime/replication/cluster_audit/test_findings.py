"""The verdict of an audit, and what it advises, by hand."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from bkctl.runtime.ledger.metadata import LedgerMetadata, LedgerState
from bkctl.runtime.metadata.bookies.registration import Registrations
from bkctl.runtime.metadata.replication.given_up_note import GivenUpNote
from bkctl.runtime.metadata.replication.maintenance import Maintenance
from bkctl.runtime.metadata.replication.recovery_notes import LostBookieNote, MaintenanceNote
from bkctl.runtime.metadata.replication.switches import SwitchNote
from bkctl.runtime.placement.rack_sources import RackTable
from bkctl.runtime.placement.rules import PlacementRules
from bkctl.runtime.placement.survey import BookieSurvey
from bkctl.runtime.replication.cluster_audit.counter import AuditCounter
from bkctl.runtime.replication.cluster_audit.facts import AuditFacts
from bkctl.runtime.replication.cluster_audit.findings import (
    audit_findings,
    audit_verdict,
    bookie_severities,
    state_severities,
)
from bkctl.runtime.replication.cluster_audit.inventory import InventoryTotals, InventoryWay, with_inventory
from bkctl.runtime.replication.cluster_audit.inventory_tables import BadCopyRange, BookieInventory, LostRange
from bkctl.runtime.replication.cluster_audit.tables import AuditReport
from bkctl.runtime.replication.cluster_audit.totals import report_of
from bkctl.runtime.replication.judge.advice import accept_loss, not_referenced
from bkctl.runtime.replication.judge.drained_bookies import (
    DrainedBookie,
    LeavingBookie,
    leaving_bookies_of,
    leaving_findings,
)
from bkctl.runtime.replication.judge.verdict import WriteSetRow, write_set_rows
from bkctl.storage.severity import Severity
from tests.runtime.replication.samples import demand_of, ledger

NOW_MS = 1_700_000_000_000
A, B, C, D, E = (f"b{name}:3181" for name in "abcde")


def closed(*bookies: str, ack_quorum: int = 2) -> LedgerMetadata:
    return ledger({0: bookies}, len(bookies), ack_quorum, last_entry_id=9, length=100)


def report(*ledgers: LedgerMetadata | str, live: str = "abc", cookies: str = "abcde", **more: object) -> AuditReport:
    """Of ledgers 1, 2, and so on; a text is the reason why one cannot be read.

    ``cookies``: of bookies that serve or are named.
    """
    writable = tuple(f"b{name}:3181" for name in live)
    named = {each for found in ledgers if not isinstance(found, str) for each in found.bookies()}
    facts = AuditFacts(
        registrations=Registrations(writable, ()),
        now_ms=NOW_MS,
        with_cookie=frozenset(f"b{name}:3181" for name in cookies) & named.union(writable),
    )
    facts = msgspec.structs.replace(facts, **more)
    counter = AuditCounter(facts)
    for number, each in enumerate(ledgers, 1):
        rows = [WriteSetRow(number, problem=each)] if isinstance(each, str) else write_set_rows(number, each)
        counter.add(counter.judge(rows))
    return report_of(counter.totals, facts)


def found(audited: AuditReport) -> list[tuple[str, str, int | None, str | None]]:
    return [
        (each.advice.severity.value, each.advice.part, each.ledgers, each.advice.command)
        for each in audit_findings(audited)
    ]


def verdict(audited: AuditReport) -> str:
    return str(audit_verdict(audited, audit_findings(audited)))


@pytest.mark.parametrize(
    ("ledgers", "sentence"),
    [
        ([], "ok: there are no ledgers"),
        ([closed(A, B)], "ok: the only ledger has every copy"),
        ([closed(A, B), closed(B, C)], "ok: all 2 ledgers have every copy"),
        ([closed(A, B, ack_quorum=1)], "ok: the only ledger has every copy"),
        (["garbage"], "critical: the metadata of 1 ledger cannot be read, so its copies are unknown: 1 (garbage)"),
    ],
    ids=["none", "one", "two", "information", "unreadable"],
)
def test_the_verdict(ledgers: list[LedgerMetadata | str], sentence: str) -> None:
    assert verdict(report(*ledgers)) == sentence


def test_start_first_recover_second_accept_last() -> None:
    """Bookie d has the only copies of two ledgers, e those of one; bookie f was removed from the cluster."""
    gone = "bf:3181"
    audited = report(closed(D, E), closed(D, gone), closed(gone, "bg:3181"), closed(A, D), closed(A, B, D))
    assert verdict(audited) == "critical: 2 ledgers have no live copy; start bd:3181"
    assert found(audited) == [
        ("critical", "no_live_copy", 2, "bkctl bookie show bd:3181"),
        ("critical", "at_risk", 1, "bkctl recover failed-bookie bd:3181"),
        ("critical", "under_replicated", 1, "bkctl recover failed-bookie bd:3181"),
        ("critical", "lost_entries", 1, "bkctl ledger explain 3"),
    ]
    assert sum(each.ledgers or 0 for each in audit_findings(audited)) == 5, "each ledger once"


def test_a_loss_is_accepted_once_no_ledger_has_a_live_copy_to_recover_from() -> None:
    """With the command of the status."""
    lost = closed(D, E)
    last = [each.advice for each in audit_findings(report(lost, closed(A, B)))][-1]
    assert last == accept_loss([D, E])
    opened = ledger({0: (D, E)}, 2, 2, state=LedgerState.OPEN)
    assert [each.advice for each in audit_findings(report(lost, opened))][1] == accept_loss([D, E], [2])
    assert accept_loss([D, E], [2]).command == f"bkctl ledger close 2 --accept-loss {D} --accept-loss {E}"
    in_part = ledger({0: (A, D), 5: (D, E)}, 2, 2, last_entry_id=9, length=100)
    for each in (closed(A, D), in_part):
        assert "bookies_down" not in [part for _, part, _, _ in found(report(lost, each))], "a recovery comes first"


def test_one_bookie_of_each_write_set_is_to_be_started_and_not_one_of_each_ledger() -> None:
    """Most ledgers come back with either of two bookies, but one has entries that only the other has."""
    striped = ledger({0: (D, E, A)}, 1, 1, last_entry_id=8, length=90)
    audited = report(closed(D, E), closed(D, E), striped)
    assert verdict(audited) == f"critical: 3 ledgers have entries without a live copy; start {D} and {E}"
    assert found(audited)[0][3] == f"bkctl bookie show {D} {E}"
    removed = report(striped, cookies="abce")
    assert [row.no_copy_sets for row in (*audited.under_replicated[1:], *removed.under_replicated)] == [
        ((D, E),),
        ((D,), (E,)),
        ((E,),),
    ], "a bookie that has left the cluster cannot be started"


def test_losses_are_said_also_if_the_list_ends_before_them() -> None:
    audited = msgspec.structs.replace(report(closed("bf:3181", "bg:3181")), under_replicated=())
    assert verdict(audited) == "critical: 1 ledger has entries that no registered bookie has"


def test_only_the_bookies_of_write_sets_without_a_live_copy_are_to_be_started() -> None:
    """The first segment misses d, and has a live copy; the second has none."""
    audited = report(ledger({0: (A, D), 5: (E, "bf:3181")}, 2, 1, last_entry_id=9, length=100), cookies="abcdef")
    assert verdict(audited) == "critical: 1 ledger has entries without a live copy; start be:3181 or bf:3181"


def test_a_ledger_that_has_other_entries_on_a_live_bookie_is_not_without_a_copy() -> None:
    audited = report(ledger({0: (A, D, E)}, 2, 2, last_entry_id=29, length=100), closed(D, E))
    assert verdict(audited) == "critical: 2 ledgers have entries without a live copy; start bd:3181 or be:3181"


def test_a_bookie_that_was_removed_cannot_be_started() -> None:
    assert verdict(report(closed("a-removed:3181", E))) == "critical: 1 ledger has no live copy; start be:3181"


def test_a_recovery_that_cannot_work_is_not_advised() -> None:
    """Two bookies cannot have three copies."""
    audited = report(closed(A, B, D), live="ab")
    start = "bkctl bookie show bd:3181"
    assert found(audited) == [("critical", "writers_stop", None, start), ("warning", "under_replicated", 1, start)]
    assert verdict(audited) == (
        "critical: writers stop: 2 bookies are writable, and ledgers with 3, like many here, cannot be created; "
        "start bd:3181"
    )
    assert audit_findings(audited)[1].advice.sentence == (
        "1 ledger has too few live copies: too few other bookies are writable to take the copies; start bd:3181, or "
        "add a bookie"
    )
    assert found(report(closed(A, B, D)))[0][3] == "bkctl recover failed-bookie bd:3181"
    wide = ledger({0: (A, B, C, D)}, 2, 2, last_entry_id=9, length=100)
    assert found(report(wide))[0][3] == "bkctl bookie show bd:3181", "all others are in the ensemble"
    assert found(report(wide, live="abce"))[0][3] == "bkctl recover failed-bookie bd:3181"


def test_no_bookie_is_writable() -> None:
    parts = [part for _, part, _, _ in found(report(closed(A, B), live=""))]
    assert parts[:2] == ["no_live_copy", "no_writable_bookie"]


def test_one_bookie_down_is_a_warning_unless_nothing_repairs_or_another_is_down() -> None:
    ledgers = closed(A, D), closed(A, D, ack_quorum=1), closed(A, B, D, ack_quorum=1)
    parts = ["at_risk", "one_copy", "under_replicated"]
    for severity, more in ("warning", ()), ("critical", (closed(A, B, E),)):
        assert [each[:2] for each in found(report(*ledgers, *more))[:3]] == [(severity, part) for part in parts]
    unrepaired = report(*ledgers, is_repaired=False)
    assert [each[:2] for each in found(unrepaired)[:3]] == [("critical", part) for part in parts]
    assert verdict(unrepaired) == (
        "critical: 1 ledger has fewer live copies than the ack quorum: bookie bd:3181 is not registered, "
        "and nothing repairs the ledgers"
    )


def test_registered_bookies_that_do_not_answer_are_as_bad_as_in_the_status() -> None:
    silent = report(closed(A, B), no_answer={A: "no answer within 1.5 s"})
    assert verdict(silent) == "warning: bookie ba:3181 is registered, but did not answer"
    assert found(silent) == [("warning", "bookies_silent", None, "bkctl bookie show ba:3181")]
    both = report(closed(A, B, D), no_answer={A: "no answer"}, refusals={B: f"bookie {B}: no login"})
    assert found(both) == [
        ("critical", "under_replicated", 1, "bkctl recover failed-bookie bd:3181"),
        ("critical", "bookies_refusing", None, "bkctl bookie show bb:3181"),
        ("critical", "bookies_silent", None, "bkctl bookie show ba:3181"),
    ]
    assert audit_findings(both)[1].advice.sentence == "bookie bb:3181 is registered, but answered: no login"


def test_an_accepted_loss_is_information_and_its_bookies_are_no_longer_of_interest() -> None:
    note = GivenUpNote(written_ms=NOW_MS, member_since={D: 1, E: None}, user="ops")
    audited = report(closed(A, B), closed(D, E), closed(D, E), given_up={2: note}, is_repaired=True, cookies="abc")
    assert found(audited) == [
        ("critical", "lost_entries", 1, "bkctl ledger explain 3"),
        ("information", "loss_accepted", 1, "bkctl ledger explain 2"),
    ]
    assert (audited.summary.lost, audited.summary.given_up, audited.summary.ledgers) == (1, 1, 3)
    alone = report(closed(A, B), closed(D, E), given_up={2: note}, is_repaired=True, cookies="abc")
    assert verdict(alone) == (
        "information: 1 ledger has entries that none of its bookies has, loss accepted on 2023-11-14 by ops: 2"
    )
    assert [each.bookie_id for each in alone.bookies] == [A, B, C]
    assert [row.replication for row in alone.under_replicated] == ["given_up"]


def test_an_accepted_loss_in_some_write_sets_leaves_single_copies_that_count_for_their_bookie() -> None:
    note = GivenUpNote(written_ms=NOW_MS, member_since={A: None, B: None}, user="ops")
    striped = ledger({0: (A, B, C)}, 2, 2, last_entry_id=8, length=90)
    audited = report(striped, live="cde", given_up={1: note}, is_repaired=True, cookies="cde")
    assert found(audited) == [("information", "loss_accepted", 1, "bkctl ledger explain 1")]
    assert [(each.bookie_id, each.ledgers, each.last_copy_ledgers) for each in audited.bookies] == [
        (C, 1, 1),
        (D, 0, 0),
        (E, 0, 0),
    ]
    assert found(report(striped, live="de", given_up={1: note}, cookies="cde"))[0][:3] == (
        "critical",
        "no_live_copy",
        1,
    )


def test_a_bookie_without_ledgers_that_is_down_is_information_as_in_the_status() -> None:
    audited = report(closed(A, B), with_cookie=frozenset({A, B, C, D}))
    assert found(audited) == [("information", "bookies_unreferenced", None, f"bkctl decommission {D}")]
    assert verdict(audited).startswith(f"information: bookie {D} is not registered, and none of the 1 ledger")


def test_one_that_was_given_up_is_started_before_it_leaves_as_in_the_status() -> None:
    away = (LeavingBookie.given_up(D, (5, 7)),)
    audited = report(closed(A, B), with_cookie=frozenset({A, B, C, D}), leaving=away)
    [finding] = audit_findings(audited)
    assert finding.advice == not_referenced([D], 1, {D: (5, 7)})
    assert f"2 ledgers whose loss was accepted (5, 7) could get entries back from {D}" in finding.advice.sentence


def test_a_bookie_that_leaves_is_advised_about_as_in_the_status() -> None:
    registrations = Registrations((A, B), (C,))
    left = {C: DrainedBookie(is_referenced=True, waiting=frozenset({9, 10}))}
    for moved, drained in ((set(), {}), ({C}, {}), (set(), left), ({C}, left), ({C}, {C: DrainedBookie()})):
        leaving = leaving_bookies_of({C: ""}, drained, moved, moved)
        (expected,) = leaving_findings(leaving, is_short=False, is_at_risk=False)
        audited = report(closed(A, B), registrations=registrations, leaving=leaving)
        assert [each.advice for each in audit_findings(audited)] == [expected]
        assert verdict(audited) == f"{expected.severity.value}: {expected.sentence}"
    audited = report(
        closed(A, B, C),
        registrations=registrations,
        leaving=leaving_bookies_of({C: ""}, left, (), ()),
    )
    assert ("warning", "bookies_leaving", None, "bkctl ledger close 9 10") in found(audited)


def test_no_bookie_is_to_leave_while_writers_need_it_as_in_the_status() -> None:
    audited = report(closed(A, B, C), live="ab", with_cookie=frozenset({A, B, C, D}))
    parts = {part: command for _, part, _, command in found(audited)}
    assert "bookies_unreferenced" not in parts
    assert parts["writers_stop"] == f"bkctl bookie show {C} {D}"


def test_full_disks_are_as_bad_as_in_the_status() -> None:
    disks = {A: (100, 4), B: (100, 3), C: (100, 9)}
    full = report(closed(A, B), disks=disks, out_of_space={A: "a disk is full"})
    assert verdict(full) == "critical: disks of 2 bookies (ba:3181, bb:3181) are at least 95.0 % full"
    assert [
        (each.advice.severity.value, each.advice.sentence, each.advice.command) for each in audit_findings(full)
    ] == [
        ("critical", "disks of 2 bookies (ba:3181, bb:3181) are at least 95.0 % full", "bkctl help full-disk"),
        ("warning", "bookie ba:3181 is read-only: a disk is full", "bkctl help full-disk"),
        ("warning", "disks of bookie bc:3181 are at least 90.0 % full", "bkctl help full-disk"),
    ]


def test_a_bad_copy_that_no_other_can_replace_is_not_to_be_recovered() -> None:
    """Ledger 1 has a bad copy that is the only one; of ledger 2 another bookie has a good one."""
    only = BadCopyRange(1, "closed", None, None, A, "failed", "read", 1, 1, 1, is_lost=True)
    lost = LostRange(1, "closed", None, None, 1, 1, 1)
    totals = InventoryTotals(bad=[only], lost=[lost])
    totals.counts |= {"bad_copy_ledgers": 1, "lost_entry_ledgers": 1, "lost_entries": 1}
    totals.bookies[A] = BookieInventory(A, expected_copies=3, read_copies=2, failed_copies=1)
    audited = report(closed(A, B), closed(A, B), is_repaired=True)
    critical = ("critical", "entries_without_copy", 1, "bkctl ledger verify 1")
    assert found(with_inventory(audited, totals, InventoryWay.ALL_ENTRIES, "bad.jsonl")) == [critical]
    totals.bad.append(BadCopyRange(2, "closed", None, None, A, "failed", "read", 1, 1, 1))
    totals.counts["bad_copy_ledgers"] = 2
    totals.bookies[A].failed_copies = 2
    both = with_inventory(audited, totals, InventoryWay.ALL_ENTRIES, "bad.jsonl")
    assert found(both) == [critical, ("warning", "bad_copies", 1, "bkctl recover ledger --from-file bad.jsonl")]
    assert audit_findings(both)[1].advice.sentence == "1 ledger has 1 bad copy: 1 failed"


def test_what_helps_with_unknown_copies_depends_on_the_cause() -> None:
    """Bookies that are down, refuse this client or fail need the operator, those without lists another audit."""
    refusal = f"bookie {B}: it refuses the login of operator: check bookie_client.sasl.username"
    of_bookies = report(
        closed(A, B, C, D), live="abcef", refusals={B: refusal}, no_answer={C: "no answer within 1.5 s"}
    )
    rows = (
        BookieInventory(A, expected_copies=10, unknown_copies=10, lists_asked=1, lists_unanswered=1),
        BookieInventory(B, expected_copies=20, unknown_copies=20, lists_asked=1, lists_unanswered=1),
        BookieInventory(C, expected_copies=20, read_copies=8, unknown_copies=12),
        BookieInventory(D, expected_copies=20, unknown_copies=20),
        BookieInventory(E, expected_copies=20, read_copies=5, unknown_copies=15, lists_asked=1, lists_unanswered=1),
        BookieInventory("bf:3181", expected_copies=20, read_copies=2, unknown_copies=2, lists_asked=1),
    )
    sentences = {
        each.advice.part: each.advice for each in audit_findings(msgspec.structs.replace(of_bookies, holdings=rows))
    }
    assert sentences["unread_copies"].sentence == (
        "54 copies are unknown: 4 bookies (bb:3181, bc:3181, bd:3181, bf:3181) cannot be read: it refuses the login of "
        "operator: check bookie_client.sasl.username; no answer within 1.5 s; not registered; it did not answer "
        "all requests"
    )
    assert sentences["unread_copies"].command == "bkctl bookie show bb:3181 bc:3181 bd:3181 bf:3181"
    assert sentences["no_lists"].sentence.startswith("10 copies are unknown: bookie ba:3181 gives no list")
    assert sentences["no_lists"].command == "bkctl audit --inventory --read"
    assert sentences["unknown_copies"].sentence.startswith("15 of ")
    assert sentences["unknown_copies"].command == "bkctl audit --inventory --read --all-entries"


def test_a_bookie_that_listed_entries_before_is_no_bookie_without_lists() -> None:
    of_bookies = report(closed(A, B, C))
    totals = InventoryTotals(silent={A, B})
    for row in (
        BookieInventory(A, expected_copies=10, unknown_copies=10, lists_asked=1, lists_unanswered=1),
        BookieInventory(B, expected_copies=30, listed_copies=10, unknown_copies=20, lists_asked=3, lists_unanswered=2),
    ):
        totals.bookies[row.bookie_id] = row

    audited = with_inventory(of_bookies, totals, InventoryWay.LISTED, None)

    sentences = {each.advice.part: each.advice for each in audit_findings(audited)}
    assert sentences["no_lists"].sentence.startswith("10 copies are unknown: bookie ba:3181 gives no list")
    assert "it stopped answering during the inventory" in sentences["unread_copies"].sentence
    assert sentences["unread_copies"].sentence.startswith("20 copies are unknown: bookie bb:3181")
    assert sentences["unread_copies"].command == f"bkctl bookie show {B}"
    assert [each.no_answer is None for each in audited.bookies] == [True, False, True]


def test_why_nothing_would_repair_is_said_with_and_without_missing_copies() -> None:
    off: dict[str, Any] = {
        "off_since_ms": NOW_MS - 60_000,
        "off_note": SwitchNote("ops", "upgrade", "2023-11-14T22:00:00Z"),
        "is_auditor_elected": False,
        "is_repaired": False,
    }
    complete = [each.advice for each in audit_findings(report(closed(A, B), **off))]
    assert verdict(report(closed(A, B), **off)).startswith("warning: autorecovery has been disabled by ops for 60 s")
    _, *why = [each.advice for each in audit_findings(report(closed(A, B, D), **off))]
    assert complete == why, "as in the status"
    assert [(each.severity.value, each.part, each.command) for each in why] == [
        ("warning", "autorecovery_disabled", "bkctl autorecovery enable"),
        ("warning", "no_auditor", "bkctl autorecovery start"),
    ]
    assert why[0].sentence == (
        "autorecovery has been disabled by ops for 60 s (upgrade); it was to be enabled by 2023-11-14T22:00:00Z"
    )


def test_states_and_bookies_are_as_bad_as_their_findings() -> None:
    repaired = report(closed(A, B, D), closed(A, D), closed(A, B))
    assert state_severities(audit_findings(repaired)) == {
        "under_replicated": Severity.WARNING,
        "at_risk": Severity.WARNING,
    }
    assert bookie_severities(repaired) == {D: Severity.WARNING}
    unrepaired = report(closed(A, B, D), is_repaired=False, no_answer={C: "no answer"})
    assert state_severities(audit_findings(unrepaired)) == {"under_replicated": Severity.CRITICAL}
    assert bookie_severities(unrepaired) == {C: Severity.CRITICAL, D: Severity.CRITICAL}
    note = MaintenanceNote(start_ms=0, end_ms=NOW_MS + 60_000, user="ops")
    awaited = report(closed(A, B, D), maintenance=(Maintenance(D, note),))
    assert state_severities(audit_findings(awaited)) == {"under_replicated": Severity.INFORMATION}
    assert bookie_severities(awaited) == {D: Severity.INFORMATION}
    lost = report(closed(D, E), closed("bf:3181", "bg:3181"), "garbage")
    assert set(state_severities(audit_findings(lost))) == {"unavailable", "lost", "unreadable"}


def test_a_bookie_in_maintenance_is_awaited_until_its_time_is_over() -> None:
    until = MaintenanceNote(start_ms=0, end_ms=NOW_MS + 60_000, user="ops")
    waiting = report(closed(A, B, D), maintenance=(Maintenance(D, until),))
    assert verdict(waiting) == (
        "information: 1 ledger has too few live copies: bookie bd:3181 is in maintenance until 22:14 UTC (by ops)"
    )
    assert found(waiting)[0][3] == "bkctl autorecovery maintenance list"
    over = MaintenanceNote(start_ms=0, end_ms=NOW_MS - 1, user="ops")
    late = found(report(closed(A, B, D), maintenance=(Maintenance(D, over), Maintenance(A, over))))
    assert late[0][3] == "bkctl recover failed-bookie bd:3181"
    assert {part: command for _, part, _, command in late}["maintenance_overdue"] == (
        "bkctl autorecovery maintenance end ba:3181"
    )
    silent = report(closed(A, B, D), maintenance=(Maintenance(A, over),), no_answer={A: "no answer"})
    assert {part: command for _, part, _, command in found(silent)}["maintenance_overdue"] == (
        "bkctl autorecovery maintenance list"
    )
    both = report(closed(A, D, E), maintenance=(Maintenance(D, until),))
    assert found(both)[0][3] == "bkctl recover failed-bookie be:3181"


def test_open_ledgers_and_older_snapshots() -> None:
    writing = ledger({0: (A, D, E)}, 3, 3, state=LedgerState.OPEN)
    few = report(writing, live="ab", skipped_snapshots=1, ledgers_from="s")
    parts = {part: command for _, part, _, command in found(few)}
    assert parts["unwritable"] == "bkctl bookie list"
    replaced = {part for _, part, _, _ in found(report(writing))}
    assert replaced.isdisjoint({"unwritable", "unreplaceable"}), "its writer uses other bookies"
    assert "skipped_snapshots" in parts
    stuck = ledger({0: (A, D, E)}, 3, 2, state=LedgerState.OPEN)
    assert {part: command for _, part, _, command in found(report(stuck))}["unclosable"] == "bkctl ledger explain 1"


def test_ledgers_that_the_auditor_has_not_marked_yet() -> None:
    pending: dict[str, Any] = {"deadlines": ((D, LostBookieNote(lost_ms=0, due_ms=NOW_MS + 60_000)),), "auditor": A}
    waiting = [each.advice for each in audit_findings(report(closed(A, B, D), **pending))]
    assert [(each.part, each.command) for each in waiting][1:] == [("deadlines", "bkctl autorecovery status")]
    marked = "bookie bd:3181 is gone; the auditor ba:3181 marks the ledgers at 2023-11-14 22:14 UTC"
    assert waiting[1].sentence == marked, "a report is kept"
    assert "deadlines" not in [part for _, part, _, _ in found(report(closed(A, B), **pending))]


@pytest.mark.parametrize(
    ("state", "command"),
    [(LedgerState.OPEN, "bkctl ledger explain 1"), (LedgerState.IN_RECOVERY, "bkctl ledger close 1")],
)
def test_ledgers_that_have_been_open_for_more_than_a_day(state: LedgerState, command: str) -> None:
    def created(hours: int) -> LedgerMetadata:
        metadata = ledger({0: (A, B, C)}, 3, 2, state=state)
        return msgspec.structs.replace(metadata, ctime_ms=NOW_MS - hours * 3_600_000)

    (finding,) = audit_findings(report(created(48), created(25), created(23)))
    assert (finding.ledgers, finding.advice.command) == (2, command)
    assert finding.advice.sentence == "2 ledgers have been open for more than 24 h; the oldest is ledger 1, for 2 days"
    assert not audit_findings(report(created(23)))


def test_the_owners_with_the_most_ledgers_come_first() -> None:
    def of(name: str) -> LedgerMetadata:
        return msgspec.structs.replace(closed(A, B, D), custom_metadata=(("application", name.encode()),))

    names = ["one", "two", "two", *(f"other-{number}" for number in range(5))]
    (finding,) = audit_findings(report(*map(of, names)))
    assert [(each.owner, each.ledgers) for each in finding.owners] == [
        ("application two", 2),
        ("application one", 1),
        ("application other-0", 1),
        ("application other-1", 1),
        ("application other-2", 1),
    ]
    assert finding.owners_total == 7


def test_groups_and_racks_are_different_findings() -> None:
    """The first ledger breaks both rules, the second its groups, the third that about racks, the last none."""
    gold, lead = (demand_of([each]) for each in ("gold", "lead"))
    made = [closed(A, C), closed(B, C), closed(A, C), closed(A, B)]
    ledgers = [
        msgspec.structs.replace(each, custom_metadata=(*each.custom_metadata, *more))
        for each, more in zip(made, ([gold], [gold], [], [gold]), strict=True)
    ]
    survey = BookieSurvey(
        writable=frozenset((A, B, C)),
        tables=(RackTable({A: "/r1", B: "/r2", C: "/r1"}),),
        groups={"gold": frozenset((A, B)), "lead": frozenset((C,))},
        rules=PlacementRules(min_racks_per_write_quorum=2),
    )
    audited = report(*ledgers, survey=survey, is_repaired=True)
    assert found(audited) == [
        ("warning", "outside_groups", 2, "bkctl ledger explain 1"),
        ("warning", "misplaced", 2, "bkctl ledger explain 1"),
    ]
    assert verdict(audited).startswith(
        "warning: 2 ledgers have copies on bookies outside of their isolation groups gold: the auditor marks such"
    )
    summary = audited.summary
    assert (summary.misplaced, summary.outside_groups, summary.too_few_racks) == (3, 2, 2)
    older = msgspec.structs.replace(summary, misplaced=2, outside_groups=None, too_few_racks=None)
    assert found(msgspec.structs.replace(audited, summary=older))[0][1:3] == ("misplaced", 2)
    nowhere = msgspec.structs.replace(made[1], custom_metadata=(lead,))
    assert "isolation groups lead:" in verdict(report(nowhere, survey=msgspec.structs.replace(survey, tables=())))
