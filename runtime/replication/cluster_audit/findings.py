"""What an audit found: its verdict in one sentence, and what to do, worst first. Pure.

Every ledger that is missing copies, or is unreadable, counts in one of these findings only. The others, from "cannot be
closed" on, may concern the same ledgers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from bkctl.runtime.metadata.replication.maintenance import Maintenance
from bkctl.runtime.metadata.replication.recovery_notes import LostBookieNote, MaintenanceNote
from bkctl.runtime.metadata.replication.switches import SwitchNote
from bkctl.runtime.replication.cluster_audit.inventory_findings import AuditFinding, finding_of, held_findings
from bkctl.runtime.replication.cluster_audit.tables import (
    AuditReport,
    BookieReplication,
    ListedLedger,
    UnderReplicatedLedger,
)
from bkctl.runtime.replication.cluster_audit.totals import AGES
from bkctl.runtime.replication.judge.advice import (
    AcceptedLosses,
    Advice,
    accept_loss,
    age,
    disk_findings,
    down_severity,
    explain_command,
    in_maintenance,
    is_back,
    ledgers_moving,
    loss_accepted,
    not_answering,
    not_referenced,
    not_repairing,
    proven_loss,
    recover_command,
    serves_unregistered,
    start_first,
    these_bookies,
    troubled,
    used_fraction,
    waits_for_auditor,
    without_cookie,
)
from bkctl.runtime.replication.judge.daemon_findings import maintenance_overdue
from bkctl.runtime.replication.judge.drained_bookies import leaving_findings
from bkctl.runtime.replication.judge.needed_bookies import Idle, WritableBookies, more_targets, writers_stop
from bkctl.runtime.replication.judge.no_live_copy import NoLiveCopy, bookies_to_start
from bkctl.runtime.replication.judge.verdict import ReplicationState
from bkctl.storage.severity import OK, Severity
from bkctl.storage.words import SHOWN_MAX, counted, enumerated, listed

_OVER_A_DAY = frozenset(name for name, end_s in AGES if end_s is None or end_s > 86_400)


class AuditVerdict(msgspec.Struct, frozen=True):
    """The worst in one sentence. ``severity`` None: nothing is wrong."""

    severity: Severity | None
    sentence: str

    def __str__(self) -> str:
        return f"{OK if self.severity is None else self.severity.value}: {self.sentence}"


def audit_verdict(report: AuditReport, findings: Sequence[AuditFinding]) -> AuditVerdict:
    """The worst of the findings, or that there is none. Information is one only if ledgers miss copies or lost entries,
    or if bookies are down or leave, as in the status: not how ledgers were created, or how long they have been open."""
    summary = report.summary
    is_of_copies = summary.under_replicated + summary.at_risk > 0
    if findings and (findings[0].advice.severity > Severity.INFORMATION or is_of_copies):
        return AuditVerdict(findings[0].advice.severity, findings[0].advice.sentence)
    known = next((each.advice for each in findings if each.advice.part in _INFORMATION_OF_STATUS), None)
    if known is not None:
        return AuditVerdict(known.severity, known.sentence)
    ledgers = summary.ledgers
    if not ledgers:
        return AuditVerdict(None, "there are no ledgers")
    if summary.inventory is not None:
        copies = {
            "read and good": summary.read_copies,
            "listed": summary.listed_copies,
            "unknown": summary.unknown_copies,
        }
        counts = ", ".join(f"{number:,} {name}" for name, number in copies.items() if number)
        return AuditVerdict(None, f"no copy is known to be bad: {counts}" if counts else "no entries are expected")
    which = "the only ledger has" if ledgers == 1 else f"all {counted(ledgers, 'ledger')} have"
    return AuditVerdict(None, f"{which} every copy")


def audit_findings(report: AuditReport) -> list[AuditFinding]:
    """All findings, worst first; among equals in the order in which one should act."""
    serve, others_down = map(AuditFinding, _serve_unregistered(report)), Idle.DOWN in _idle_bookies(report).values()
    found = [*_missing(report), *held_findings(report)]
    found = [*found, *serve] if others_down else [*serve, *found]
    found += [*_bookies(report), *_unreferenced(report), *_awaited(report)]
    found += _others(report)
    return sorted(found, key=lambda each: each.advice.severity, reverse=True)


def state_severities(findings: Iterable[AuditFinding]) -> dict[str, Severity]:
    """How bad it is that ledgers are in a state, by the findings about it. ``lost`` and ``unavailable`` are apart."""
    found: dict[str, Severity] = {}
    for each in findings:
        if (state := _STATES.get(each.advice.part)) is not None:
            found[state] = max(each.advice.severity, found.get(state, Severity.INFORMATION))
    return found


_IDS_SHOWN_MAX = 10
_INFORMATION_OF_STATUS = frozenset({"loss_accepted", "bookies_leaving", "bookies_unreferenced"})
_STATES: Mapping[str, str] = {
    "no_live_copy": "unavailable",
    "at_risk": "at_risk",
    "one_copy": "under_replicated",
    "under_replicated": "under_replicated",
    "unreadable": "unreadable",
    "lost_entries": "lost",
    "loss_accepted": "given_up",
}
"""The state of the ledgers that a part of the findings is about."""


def bookie_severities(report: AuditReport) -> dict[str, Severity]:
    """How bad the state of each bookie is that is not writable or does not answer."""
    summary, down_total = report.summary, _down_total(report)
    found = {}
    for each in report.bookies:
        if each.mode == "unregistered":
            found[each.bookie_id] = down_severity(
                down_total,
                is_awaited=_is_in_maintenance(each, summary.judged_at_ms),
                is_repaired=each.ledgers_moving or summary.is_repaired is not False,
                has_live_copies=not summary.unavailable,
            )
        elif each.no_answer is not None or each.refusal is not None:
            found[each.bookie_id] = down_severity(down_total)
        elif each.mode == "read_only":
            found[each.bookie_id] = Severity.INFORMATION
    return found


def _serving(report: AuditReport) -> frozenset[str]:
    return frozenset(each.bookie_id for each in report.bookies if each.serves_unregistered)


def _moving(report: AuditReport) -> frozenset[str]:
    return frozenset(each.bookie_id for each in report.bookies if each.ledgers_moving)


def _is_in_maintenance(bookie: BookieReplication, now_ms: int) -> bool:
    return bookie.maintenance_end_ms is not None and bookie.maintenance_end_ms >= now_ms


def _missing(report: AuditReport) -> Iterator[AuditFinding]:
    """Start bookies with the only copies, then recover others, and accept losses last."""
    summary, rows = report.summary, report.under_replicated
    unavailable = [row for row in rows if row.replication == ReplicationState.UNAVAILABLE.value]
    if waiting := summary.unavailable - summary.lost:
        away = [row for row in unavailable if not row.is_lost]
        yield finding_of(start_first(_without_live_copy(away, waiting), _serving(report)), waiting, away)
    if (stop := _writers_stop(report)) is not None:
        yield AuditFinding(stop)
    at_risk = [row for row in rows if row.replication == ReplicationState.AT_RISK.value]
    few = [row for row in rows if row.replication == ReplicationState.UNDER_REPLICATED.value]
    one_copy = [row for row in few if row.live_copies_min == 1]
    others = [row for row in few if row.live_copies_min != 1]
    for part, listed_rows, total, what in (
        ("at_risk", at_risk, summary.at_risk, "fewer live copies than the ack quorum"),
        ("one_copy", one_copy, len(one_copy), "one live copy left"),
        ("under_replicated", others, summary.under_replicated - len(one_copy), "too few live copies"),
    ):
        if total:
            sentence = f"{counted(total, 'ledger has', 'ledgers have')} {what}"
            yield finding_of(_missing_copies(report, listed_rows, part, sentence), total, listed_rows)
    if unreadable := summary.unreadable:
        its = "its" if unreadable == 1 else "their"
        sentence = f"the metadata of {counted(unreadable, 'ledger')} cannot be read, so {its} copies are unknown"
        for first in report.unreadable[:1]:
            names = listed([each.ledger_id for each in report.unreadable[:_IDS_SHOWN_MAX]], total=unreadable)
            sentence += f": {names} ({first.problem})"
        yield AuditFinding(Advice(Severity.CRITICAL, "unreadable", sentence, "bkctl metadata doctor"), unreadable)
    if summary.lost:
        lost = [row for row in unavailable if row.is_lost]
        yield finding_of(proven_loss([row.ledger_id for row in lost], summary.lost), summary.lost, lost)
    if waiting and (last := _last_step(report, [row for row in unavailable if not row.is_lost])) is not None:
        yield AuditFinding(last)
    if summary.given_up:
        given_up = [row for row in rows if row.replication == ReplicationState.GIVEN_UP.value]
        accepted = AcceptedLosses(
            ledgers=summary.given_up,
            first_ids=tuple(row.ledger_id for row in given_up),
            written_ms=summary.given_up_ms,
            user=summary.given_up_by or "",
        )
        yield finding_of(loss_accepted(accepted), summary.given_up, given_up)
    for each in report.bookies:
        if each.given_up_first:
            advice = is_back(each.bookie_id, each.given_up_first, each.given_up_ledgers)
            yield AuditFinding(advice, each.given_up_ledgers)


def _last_step(report: AuditReport, rows: Sequence[UnderReplicatedLedger]) -> Advice | None:
    """Accept the loss of ledgers without a live copy, once no ledger has one to recover from; None: not yet.

    ``rows``: those that are listed. Nor if a bookie with their entries will be back."""
    summary, awaited = report.summary, _serving(report) | _moving(report)
    awaited |= {each.bookie_id for each in report.bookies if _is_in_maintenance(each, summary.judged_at_ms)}
    members = {bookie_id for row in rows for bookie_id in row.missing_bookies}
    has_source = summary.at_risk or summary.under_replicated or any(row.has_source for row in rows)
    if has_source or not members or not members.isdisjoint(awaited):
        return None
    return accept_loss(sorted(members), [row.ledger_id for row in rows if row.ledger_state != "closed"])


def _writers_stop(report: AuditReport) -> Advice | None:
    """Whether too few bookies are writable in a cluster that is in use."""
    summary = report.summary
    writable = WritableBookies(summary.bookies_writable, _idle(report), summary.usual_ensemble_size)
    is_in_use = summary.ledgers or any(each.mode == "unregistered" for each in report.bookies)
    return writers_stop(writable) if is_in_use and not writable.are_enough else None


def _idle(report: AuditReport) -> dict[str, Idle]:
    """Why bookies of the cluster take no entries."""
    registered = {each.bookie_id for each in report.bookies if each.mode != "unregistered"}
    down = [loss.name for loss in report.losses if loss.kind == "bookie" and loss.name not in registered]
    read_only = {
        each.bookie_id: Idle.SPACE if each.out_of_space is not None else Idle(each.read_only_by or Idle.OTHER.value)
        for each in report.bookies
        if each.mode == "read_only"
    }
    return read_only | dict.fromkeys(down, Idle.DOWN) | dict.fromkeys(_serving(report), Idle.OTHER)


def _idle_bookies(report: AuditReport) -> dict[str, Idle]:
    """Why bookies take no copies; without those that an operator awaits, and those that a command empties."""
    now_ms = report.summary.judged_at_ms
    others = {each.bookie_id for each in report.bookies if _is_in_maintenance(each, now_ms)} | _moving(report)
    return {each: why for each, why in _idle(report).items() if each not in others}


def _without_live_copy(rows: Sequence[UnderReplicatedLedger], total: int) -> NoLiveCopy:
    holders = Counter(frozenset(each) for row in rows for each in row.no_copy_sets)
    ids = tuple(row.ledger_id for row in rows[:1])
    is_part = any(len(row.no_copy_bookies) < max(row.ensemble_size, len(row.missing_bookies)) for row in rows)
    return NoLiveCopy(ledgers=total, first_ids=ids, to_start=bookies_to_start(holders), is_part=is_part)


def _missing_copies(report: AuditReport, rows: Sequence[UnderReplicatedLedger], part: str, sentence: str) -> Advice:
    """Recover the bookies that are down and not in maintenance, unless too few are left to have the copies."""
    summary, now_ms = report.summary, report.summary.judged_at_ms
    members = Counter(bookie_id for row in rows for bookie_id in row.missing_bookies)
    most = sorted(members, key=lambda each: (-members[each], each))
    down = (*sorted(most[:SHOWN_MAX]), *most[SHOWN_MAX:])  # so that findings about the same bookies have one command
    away: dict[str, Maintenance] = {}
    for each in report.bookies:
        if each.bookie_id in members and each.maintenance_end_ms is not None and _is_in_maintenance(each, now_ms):
            note = MaintenanceNote(start_ms=0, end_ms=each.maintenance_end_ms, user=each.maintenance_user or "")
            away[each.bookie_id] = Maintenance(each.bookie_id, note)
    moved, serving = _moving(report), _serving(report)
    moving = [each for each in down if each in moved]
    left = [each for each in down if each not in away and each not in moved and each not in serving]
    severity = down_severity(
        _down_total(report),
        is_awaited=bool(away) and members.keys() <= away.keys(),
        is_repaired=summary.is_repaired is not False,
        has_live_copies=not summary.unavailable,
    )
    if left and rows and not any(row.has_target for row in rows):
        remedy, command = more_targets(_idle_bookies(report))
        return Advice(
            severity, part, f"{sentence}: too few other bookies are writable to take the copies; {remedy}", command
        )
    if left:
        which = these_bookies(left, "is", "are") if len(left) == 1 else f"{len(left):,} bookies are"
        repaired = ", and nothing repairs the ledgers" if summary.is_repaired is False else ""
        return Advice(severity, part, f"{sentence}: {which} not registered{repaired}", recover_command(left))
    if moving:
        advice = ledgers_moving(moving)
        return Advice(advice.severity, part, f"{sentence}: {advice.sentence}", advice.command)
    if away:
        maintenance = in_maintenance(list(away.values()), now_ms)
        return Advice(severity, part, f"{sentence}: {maintenance.sentence}", maintenance.command)
    return Advice(severity, part, sentence, explain_command([row.ledger_id for row in rows]))


def _down_total(report: AuditReport) -> int:
    """Bookies that ledgers reference and that are not registered, and registered ones that do not answer."""
    not_serving = sum(each.no_answer is not None or each.refusal is not None for each in report.bookies)
    return report.summary.bookies_named_unregistered + not_serving


def _open_for_long(rows: Sequence[ListedLedger], total: int, now_ms: int) -> Advice:
    """Ledgers that have been open for more than a day: their writers may be gone."""
    sentence = f"{counted(total, 'ledger has', 'ledgers have')} been open for more than 24 h"
    for first in rows:
        if first.created_ms is not None:
            sentence += f"; the oldest is ledger {first.ledger_id}, for {age(now_ms, first.created_ms)}"
            can_close = first.is_closable is True and first.ledger_state == "in_recovery"  # so it has no writer
            command = f"bkctl ledger {'close' if can_close else 'explain'} {first.ledger_id}"
            return Advice(Severity.INFORMATION, "open_for_long", sentence, command)
    return Advice(Severity.INFORMATION, "open_for_long", sentence)


def _bookies(report: AuditReport) -> Iterator[AuditFinding]:
    """Registered bookies that do not answer, leave or have no space; and why nothing repairs ledgers that miss copies.

    First of all, that the report is of an older snapshot: a server may still write the newer ones."""
    summary = report.summary
    if skipped := summary.skipped_snapshots:
        sentence = f"{counted(skipped, 'newer snapshot')} could not be read, so this is of {summary.ledgers_from}"
        yield AuditFinding(Advice(Severity.WARNING, "skipped_snapshots", f"{sentence}: audit again"))
    silent = [each.bookie_id for each in report.bookies if each.no_answer is not None]
    refusals = {each.bookie_id: each.refusal for each in report.bookies if each.refusal is not None}
    troubles = {each.bookie_id: each.trouble for each in report.bookies if each.trouble is not None}
    down = summary.bookies_named_unregistered
    foreign = [each.bookie_id for each in report.bookies if each.mode != "unregistered" and each.has_cookie is False]
    bookies = *not_answering(silent, refusals, down), *troubled(troubles, down), *_leaving(report)
    for advice in (*bookies, *without_cookie(foreign), *_maintenance_overdue(report)):
        yield AuditFinding(advice)
    used = {each.bookie_id: used_fraction(each.disk_total_bytes, each.disk_free_bytes) for each in report.bookies}
    full = {each.bookie_id: each.out_of_space for each in report.bookies if each.out_of_space is not None}
    note = SwitchNote(summary.autorecovery_off_by, summary.autorecovery_off_reason, summary.autorecovery_off_until)
    off_since_ms, is_elected = summary.autorecovery_off_ms, summary.is_auditor_elected
    for advice in (*disk_findings(used, full), *not_repairing(off_since_ms, note, is_elected, summary.judged_at_ms)):
        yield AuditFinding(advice)


def _maintenance_overdue(report: AuditReport) -> Iterator[Advice]:
    bookies, now_ms = report.bookies, report.summary.judged_at_ms
    down = {each.bookie_id for each in bookies if each.mode == "unregistered" or each.no_answer or each.refusal}
    ends_ms = {
        each.bookie_id: each.maintenance_end_ms
        for each in bookies
        if each.maintenance_end_ms is not None and not _is_in_maintenance(each, now_ms)
    }
    yield from maintenance_overdue(ends_ms, down, now_ms)


def _serve_unregistered(report: AuditReport) -> Iterator[Advice]:
    summary = report.summary
    return serves_unregistered(
        _serving(report),
        _down_total(report),
        is_repaired=summary.is_repaired is not False,
        has_live_copies=not summary.unavailable,
        stops_writers=_writers_stop(report) is not None,
    )


def _unreferenced(report: AuditReport) -> Iterator[AuditFinding]:
    """Bookies of the cluster that are down and named by no ledger: only these have no row. Unknown without cookies.

    None leaves the cluster while writers need it."""
    with_row = {each.bookie_id for each in report.bookies}
    members = [loss.name for loss in report.losses if loss.kind == "bookie" and loss.name not in with_row]
    if members and not report.summary.unreadable and _writers_stop(report) is None:
        given_up = {each.bookie_id: each.given_up_ledgers for each in report.leaving if each.given_up_ledgers}
        yield AuditFinding(not_referenced(members, report.summary.ledgers, given_up))


def _leaving(report: AuditReport) -> Iterator[Advice]:
    """Bookies that a drain made read-only."""
    leaving = [each for each in report.leaving if not each.given_up_ledgers]
    is_short, is_at_risk = _writers_stop(report) is not None, _down_total(report) > 0
    return leaving_findings(leaving, is_short=is_short, is_at_risk=is_at_risk)


def _awaited(report: AuditReport) -> Iterator[AuditFinding]:
    """Lost bookies whose ledgers the auditor has not marked yet, but for those in maintenance."""
    now_ms, pending, excused = report.summary.judged_at_ms, [], []
    for each in report.bookies:
        if each.mode == "unregistered" and each.deadline_ms is not None:
            pending.append((each.bookie_id, LostBookieNote(lost_ms=0, due_ms=each.deadline_ms)))
        if _is_in_maintenance(each, now_ms):
            excused.append(each.bookie_id)
    advice = waits_for_auditor(pending, report.summary.auditor, now_ms, excused, is_kept=True)
    if advice is not None:
        yield AuditFinding(advice)


def _others(report: AuditReport) -> Iterator[AuditFinding]:
    summary = report.summary
    old_ages = [row for row in report.open_ages if row.age in _OVER_A_DAY]
    if old := sum(row.open_ledgers + row.in_recovery_ledgers for row in old_ages):
        yield AuditFinding(_open_for_long(report.oldest_open, old, summary.judged_at_ms), old)
    if total := summary.unclosable:
        found: list[ListedLedger | UnderReplicatedLedger] = [*report.oldest_open, *report.under_replicated]
        rows = {row.ledger_id: row for row in found if row.is_closable is False}
        sentence = f"{counted(total, 'open ledger')} cannot be closed: too few of the last bookies are registered to "
        advice = Advice(Severity.WARNING, "unclosable", f"{sentence}prove where it ends", explain_command(list(rows)))
        yield finding_of(advice, total, rows.values())
    for part, count, what in (  # a writer replaces bookies that accept no writes, if there are enough others
        ("unwritable", min(summary.unwritable, summary.unreplaceable), "cannot accept writes on the present bookies"),
        ("unreplaceable", summary.unreplaceable, "cannot replace a bookie that does not accept writes"),
    ):
        if count:
            sentence = f"{counted(count, 'open ledger')} {what}: start bookies, or add some"
            yield AuditFinding(Advice(Severity.WARNING, part, sentence, "bkctl bookie list"), count)
    yield from _misplaced(report)
    for part, total, rows_of_part, what in (  # nothing is to be repaired
        ("ack_quorum_one", summary.ack_quorum_one, report.ack_quorum_one, _ACK_QUORUM_ONE),
        ("write_quorum_one", summary.write_quorum_one, (), "one copy of each entry (Qw 1)"),
    ):
        if total:
            sentence = f"{counted(total, 'ledger was', 'ledgers were')} created with {what}"
            yield finding_of(Advice(Severity.INFORMATION, part, sentence), total, rows_of_part)


def _misplaced(report: AuditReport) -> Iterator[AuditFinding]:
    """Ledgers with copies in too few racks or regions, or outside of their groups; no command moves them."""
    summary = report.summary
    groups = sorted(
        (row for row in report.groups if row.outside_ledgers), key=lambda row: (-row.outside_ledgers, row.group)
    )
    names = f" {enumerated([row.group for row in groups], shown_max=SHOWN_MAX)}" if groups else ""
    outside = [row for row in report.misplaced if row.outside_bookies]
    few = [row for row in report.misplaced if row.racks_min is not None]
    for part, total, rows, what in (
        ("outside_groups", summary.outside_groups, outside, f"on bookies outside of their isolation groups{names}"),
        ("misplaced", summary.breaking_racks, few, "in fewer racks or regions than required"),
        ("one_rack", 0 if summary.breaking_racks else summary.one_rack, (), "in one rack"),
    ):
        if total:
            sentence = f"{counted(total, 'ledger has', 'ledgers have')} copies {what}: the auditor marks such ledgers "
            sentence += "for repair if autorecovery.is_misplaced_marked is set"
            command = explain_command([row.ledger_id for row in rows], "bkctl autorecovery status")
            yield finding_of(Advice(Severity.WARNING, part, sentence, command), total, rows)


_ACK_QUORUM_ONE = "an ack quorum of 1: an acknowledged entry may have had one copy"
