"""``bkctl decommission``: permanently remove a stopped bookie from the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from commands.command import command, group
from commands.context import CommandContext
from commands.effect import Effect
from commands.errors import Outcome
from commands.outages import OutageMax, told_when_cut_off
from commands.parse import parse_bookie_id, read_ledger_ids
from commands.recovery_progress import recovery_progress
from commands.recovery_rendering import failure_rows, fenced_rows, plan_rows, print_report, shortened
from commands.rendering import counted
from commands.replication_access import PlacementChoice, VerifyChoice, note_end, replication_access, waiting_sentence
from commands.session import open_session

if TYPE_CHECKING:
    from commands.replication_access import ReplicationAccess
    from commands.safety.plan import Plan
    from runtime.metadata.store import Node
    from runtime.replication.decommission import DecommissionPlan, DecommissionReport


@command("decommission", example="decommission b1.example.com:3181 --dry-run", effect=Effect.HARMFUL)
async def decommission(
    context: CommandContext,
    bookie_id: Annotated[str, typer.Argument(metavar="ID", help="ID of the stopped bookie")],
    accept_loss: Annotated[
        str | None,
        typer.Option(
            "--accept-loss",
            metavar="FILE",
            help="Ledger ids, one per line: keep these ledgers as they are if their entries are proven lost",
        ),
    ] = None,
    outage_max: OutageMax = None,
    placement: PlacementChoice = None,
    verify: VerifyChoice = None,
) -> Outcome:
    """Remove a stopped bookie: re-replicate its ledgers, then delete its cookie.

    The cookie is deleted only if a new scan of all ledgers finds no reference, the bookie is not registered and the
    cookie has not changed. A copy is kept in the trash. Safe to interrupt and to run again. A ledger whose entries are
    lost keeps the cookie, unless its loss is accepted: then it stays as it is.
    """
    from runtime.replication.decommission import Decommission

    parse_bookie_id(bookie_id)
    accepted = frozenset(read_ledger_ids(accept_loss)) if accept_loss is not None else frozenset()
    console = context.console
    async with open_session(context) as session:
        access = await replication_access(context, session, outage_max, placement, verify)
        operation = Decommission(access.recovery, session.cookies)
        if context.settings.is_rehearsal:
            found = await operation.preview(bookie_id, accepted)
            if found.recovery.registered:
                console.warn(f"bookie {bookie_id} is registered; stop it before you decommission it")
        else:
            found = await operation.plan(bookie_id, lambda each: console.say(waiting_sentence(each)), accepted)
        plan = _change_plan(access, found)
        async with (
            told_when_cut_off(context, len(found.recovery.ledgers), "; the cookie is deleted last") as job,
            access.open_change(context, plan, found.recovery) as change,
        ):

            def keep_cookie(node: Node) -> None:
                change.require_lock()
                change.trash.keep("delete", session.cookies.path(bookie_id), node)

            await access.recovery.require_down([bookie_id])
            async with recovery_progress(console, "decommissioning") as progress:
                job.show = progress.show
                report = await operation.run(found, job.note, before_scan=change.renew_lock, keep_cookie=keep_cookie)
            note_end(change, _report_body(report), decommission_outcome(report))
    _print_result(context, report)
    return decommission_outcome(report)


def _print_result(context: CommandContext, report: DecommissionReport) -> None:
    failures = [row for recovery in report.recoveries for row in failure_rows(recovery)]
    fenced = [row for recovery in report.recoveries for row in fenced_rows(recovery)]
    print_report(context, "DecommissionReport", _report_body(report), failures, fenced)
    if report.accepted:
        context.console.warn(
            f"{counted(len(report.accepted), 'ledger')} with lost entries are unchanged and still reference bookie "
            f"{report.bookie_id}: {shortened(report.accepted)}"
        )
    if report.refusal is not None:
        context.console.error(report.refusal + _advice(report))


def _advice(report: DecommissionReport) -> str:
    """The advice for ledgers that another run would not move either."""
    from runtime.replication.recovery_report import FailureReason

    reasons = {failure.reason for recovery in report.recoveries for failure in recovery.failures}
    if reasons.isdisjoint({FailureReason.LOST, FailureReason.NOT_CLOSED}):
        return ""
    return "; for ledgers whose entries are lost, see --accept-loss and bkctl ledger delete --force-open"


def _change_plan(access: ReplicationAccess, found: DecommissionPlan) -> Plan:
    """The recovery, the ledgers whose loss is accepted, then the cookie's deletion."""
    rows = plan_rows(found.accepted)
    items = [{"action": "accept loss", "path": access.ledgers.path(int(str(row["ledger_id"]))), **row} for row in rows]
    summary = []
    if items:
        left = "1 ledger as it is" if len(items) == 1 else f"{len(items)} ledgers as they are"
        they = "it" if len(items) == 1 else "they"
        summary.append(
            f"will leave {left}, with entries proven lost; {they} will still reference bookie {found.bookie_id}"
        )
    if found.cookie_version is not None:
        path = access.session.cookies.path(found.bookie_id)
        items.append({"action": "delete cookie", "path": path, "expected_version": found.cookie_version})
        afterwards = "can only start as a new one, with empty directories"
        if found.accepted:
            afterwards = "cannot start while an accepted ledger references it; later it " + afterwards
        summary.append(
            f"will delete the cookie of bookie {found.bookie_id} if no other ledger references it; afterwards the "
            f"bookie {afterwards}"
        )
    return access.change_plan(found.recovery, more_summary=summary, more_items=items)


def decommission_outcome(report: DecommissionReport) -> Outcome:
    """A refusal is a failure, or a partial success when ledgers were moved or the cookie was deleted."""
    if report.refusal is None:
        return Outcome.OK
    return Outcome.PARTIAL if report.has_progress else Outcome.FAILED


def _report_body(report: DecommissionReport) -> dict[str, object]:
    seconds = sum(recovery.seconds for recovery in report.recoveries)
    bytes_copied = sum(recovery.bytes_copied for recovery in report.recoveries)
    return {
        "bookie_id": report.bookie_id,
        "is_complete": report.is_complete,
        "is_cookie_deleted": report.is_cookie_deleted,
        "is_registered_again": report.is_registered_again,
        "ledgers_scanned": report.ledgers_scanned,
        "remaining_ledgers": [str(ledger_id) for ledger_id in report.remaining],
        "accepted_losses": [str(ledger_id) for ledger_id in report.accepted],
        "ledgers": sum(recovery.ledgers for recovery in report.recoveries),
        "ledgers_repaired": sum(recovery.ledgers_repaired for recovery in report.recoveries),
        "ledgers_repaired_by_others": sum(recovery.ledgers_repaired_by_others for recovery in report.recoveries),
        "ledgers_deleted": sum(recovery.ledgers_deleted for recovery in report.recoveries),
        "ledgers_failed": sum(recovery.ledgers_failed for recovery in report.recoveries),
        "ledgers_closed": sum(recovery.ledgers_closed for recovery in report.recoveries),
        "fragments": sum(recovery.fragments for recovery in report.recoveries),
        "entries": sum(recovery.entries for recovery in report.recoveries),
        "bytes": bytes_copied,
        "seconds": round(seconds, 3),
        "mebibytes_per_second": round(bytes_copied / 2**20 / seconds, 3) if seconds > 0 else None,
        "verify": report.recoveries[-1].verify.value if report.recoveries else None,
        "refusal": report.refusal,
    }


app = group("", decommission)
