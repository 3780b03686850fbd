"""The report of bookies that leave: outcome, fields, and what the operator should do next."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from bkctl.commands.context import CommandContext
from bkctl.commands.errors import Outcome
from bkctl.commands.recovery_rendering import shortened
from bkctl.commands.work_end import Verdict, left_sentence, moved_sentence, print_recoveries
from bkctl.runtime.replication.judge.advice import these_bookies
from bkctl.runtime.replication.judge.drained_bookies import closing_step
from bkctl.runtime.replication.judge.ledger_result import FailureReason, LedgerFailure, are_refusals
from bkctl.runtime.replication.judge.left_ledgers import Left, LeftGroup, last_step, left_groups, what_next
from bkctl.runtime.replication.run.decommission import DecommissionReport
from bkctl.storage.severity import Severity
from bkctl.storage.words import counted, named

_COOKIE_KEPT = "its cookie was not deleted"


def print_leaving(context: CommandContext, report: DecommissionReport, again: str, *, is_drain_only: bool) -> None:
    """Print the report, and what the operator should do next. ``again``: the command that continues the work."""
    groups = left_on(report)
    verdict = leaving_verdict(report, groups, again, is_drain_only=is_drain_only)
    print_recoveries(context.console, "DecommissionReport", report_fields(report), verdict, report.recoveries, groups)


def left_on(report: DecommissionReport) -> list[LeftGroup]:
    """The ledgers that still reference the bookies, by what helps."""
    groups = left_groups(_failures_of(report), report.bookie_ids, report.remaining, shortage=report.shortage)
    if not report.open_ledgers:
        return groups
    _, command = _closing(report)
    return [msgspec.structs.replace(each, command=command) if each.left is Left.OPEN else each for each in groups]


def _closing(report: DecommissionReport) -> tuple[str, str | None]:
    topics = {each.topic for each in report.open_ledgers if each.topic is not None}
    return closing_step([each.ledger_id for each in report.open_ledgers], topics)


def _failures_of(report: DecommissionReport) -> list[LedgerFailure]:
    """Of ledgers that still reference the bookies. One whose writer has ended meanwhile only needs another run."""
    remaining, still_open = set(report.remaining), {each.ledger_id for each in report.open_ledgers}
    return [
        each
        for recovery in report.recoveries
        for each in recovery.failures
        if each.ledger_id in remaining and (each.reason is not FailureReason.OPEN or each.ledger_id in still_open)
    ]


def leaving_verdict(
    report: DecommissionReport, groups: Sequence[LeftGroup], again: str, *, is_drain_only: bool
) -> Verdict:
    """What a drain or a decommission has come to, and the state of the bookies."""
    sentence, bookies = moved_sentence(report.recoveries), named("bookie", report.bookie_ids)
    are = "is" if len(report.bookie_ids) == 1 else "are"
    notes = []
    if report.remaining:
        sentence += f", {left_sentence(groups)}"
        notes = [] if is_drain_only or report.is_cookie_deleted else [_COOKIE_KEPT]
        notes += leaving_advice(report)
        sentence += what_next(groups, again)
    elif report.refusal is not None:
        sentence += f", none left; {report.refusal}"
    elif report.is_drained_only:
        notes = next_steps(report)
        sentence += f", none left on {bookies}"
    elif report.ledgers_scanned or report.is_cookie_deleted:
        sentence += f", {bookies} {are} removed from the cluster"
    else:
        sentence = f"{bookies} {are} not in the cluster: nothing is left to do"
    if report.refusal is not None and report.read_only:
        notes.append(stays_read_only(report.read_only))
    if report.refusal is not None and report.down:
        undrain = f"bkctl bookie undrain {' '.join(report.down)}"
        notes.append(f"{these_bookies(report.down, 'is', 'are')} down; once started, {undrain} ends read-only mode")
    if report.accepted:
        loss = f"the loss of entries of {counted(len(report.accepted), 'ledger')}"
        if report.is_complete:
            loss += f" is accepted, whose metadata still names {bookies}"
        else:
            loss += f" will be accepted when {bookies} {are} removed"
        notes.append(f"{loss}: {shortened(report.accepted)}")
    if report.refusal is None:
        severity = Severity.WARNING if report.accepted else None
    else:
        severity = max((each.severity for each in groups), default=Severity.WARNING)
    return Verdict(severity, sentence, tuple(notes))


def stays_read_only(bookie_ids: Sequence[str]) -> str:
    """The state of bookies whose drain has ended early."""
    words = " ".join(bookie_ids)
    stays, it = ("stays", "it") if len(bookie_ids) == 1 else ("stay", "them")
    return f"{named('bookie', bookie_ids)} {stays} read-only; bkctl bookie undrain {words} makes {it} writable"


def not_stopped(bookie_ids: Sequence[str]) -> str:
    """The state of drained bookies that still serve."""
    is_drained, was = ("is drained", "was") if len(bookie_ids) == 1 else ("are drained", "were")
    return f"{named('bookie', bookie_ids)} {is_drained}, but {was} not stopped"


def may_be_read_only(bookie_ids: Sequence[str]) -> str:
    """The state of bookies while their mode is changed."""
    them = "it" if len(bookie_ids) == 1 else "them"
    return (
        f"{named('bookie', bookie_ids)} may be read-only now; bkctl bookie undrain {' '.join(bookie_ids)} makes "
        f"{them} writable"
    )


def next_steps(report: DecommissionReport) -> list[str]:
    """What to do with bookies whose ledgers were moved away: those that serve, then those that are down."""
    down = [each for each in report.bookie_ids if each not in (*report.read_only, *report.down)]
    sentences = []
    if report.read_only:
        words = " ".join(report.read_only)
        sentences.append(
            f"{these_bookies(report.read_only, 'is', 'are')} drained and read-only: to remove, stop and run bkctl "
            f"decommission {words}; to keep, run bkctl bookie undrain {words}"
        )
    if report.down:
        words, (its, it) = " ".join(report.down), ("its", "it") if len(report.down) == 1 else ("their", "them")
        sentences.append(
            f"{these_bookies(report.down, 'is', 'are')} down, and all {its} ledgers were moved: to remove, run bkctl "
            f"decommission {words}; to keep, start {it}, then run bkctl bookie undrain {words}"
        )
    if down:
        sentences.append(
            f"{these_bookies(down, 'is', 'are')} drained and down: run bkctl decommission {' '.join(down)}"
        )
    return sentences


def leaving_advice(report: DecommissionReport) -> list[str]:
    """More about ledgers that another run would not move either."""
    if report.open_ledgers:
        sentence, _ = _closing(report)
        is_closed_by_broker = any(each.topic is not None for each in report.open_ledgers)
        return [f"{sentence}{', before; or close them with' if is_closed_by_broker else ', or'} --open-ledgers fence"]
    failures = [failure for recovery in report.recoveries for failure in recovery.failures]
    advice = []
    last = last_step([each for each in failures if each.ledger_id in report.remaining], report.bookie_ids)
    if last.ledger_ids:
        others = len(set(report.remaining).difference(last.ledger_ids))
        after = f"; {counted(others, 'other', 'others')} must be moved before the cookie can be deleted"
        advice.append(last.sentence + (after if others else ""))
    if stuck := {each.ledger_id for each in failures if each.reason is FailureReason.NOT_CLOSED and each.lacks_bookies}:
        advice.append(
            f"{named('ledger', [str(each) for each in sorted(stuck)])} cannot be closed so now, because no writable "
            "bookie is left to take the places of the lost ones: start another, then repeat this"
        )
    return advice


def leaving_outcome(report: DecommissionReport) -> Outcome:
    """A refusal is a failure, or a partial success when ledgers were moved or a cookie was deleted."""
    if report.refusal is None:
        return Outcome.OK
    failures = _failures_of(report)
    is_all_known = {failure.ledger_id for failure in failures} == set(report.remaining)
    if is_all_known and are_refusals(failures):
        return Outcome.UNAUTHORIZED
    is_drained = not report.remaining and report.is_drained_only
    return Outcome.PARTIAL if report.has_progress or is_drained or report.open_ledgers else Outcome.FAILED


def report_fields(report: DecommissionReport) -> dict[str, object]:
    """The report as a structured result."""
    recoveries = report.recoveries
    seconds = sum(recovery.seconds for recovery in recoveries)
    bytes_copied = sum(recovery.bytes_copied for recovery in recoveries)
    return {
        "bookie_ids": list(report.bookie_ids),
        "is_complete": report.is_complete,
        "is_drained": not report.remaining,
        "is_cookie_deleted": report.is_cookie_deleted,
        "is_registered_again": bool(report.registered_again),
        "ledgers_scanned": report.ledgers_scanned,
        "remaining_ledgers": [str(ledger_id) for ledger_id in report.remaining],
        "open_ledgers": [str(each.ledger_id) for each in report.open_ledgers],
        "open_topics": sorted({each.topic for each in report.open_ledgers if each.topic is not None}),
        "accepted_losses": [str(ledger_id) for ledger_id in report.accepted if report.is_complete],
        "ledgers": sum(recovery.ledgers for recovery in recoveries),
        "ledgers_repaired": sum(recovery.ledgers_repaired for recovery in recoveries),
        "ledgers_repaired_by_others": sum(recovery.ledgers_repaired_by_others for recovery in recoveries),
        "ledgers_deleted": sum(recovery.ledgers_deleted for recovery in recoveries),
        "ledgers_failed": sum(recovery.ledgers_failed for recovery in recoveries),
        "ledgers_closed": sum(recovery.ledgers_closed for recovery in recoveries),
        "fragments": sum(recovery.fragments for recovery in recoveries),
        "entries": sum(recovery.entries for recovery in recoveries),
        "bytes": bytes_copied,
        "seconds": round(seconds, 3),
        "mebibytes_per_second": round(bytes_copied / 2**20 / seconds, 3) if seconds > 0 else None,
        "verify": recoveries[-1].verify.value if recoveries else None,
        "refusal": report.refusal,
    }
