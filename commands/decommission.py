"""``bkctl decommission``: remove a stopped bookie from the cluster for good."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from commands.command import command, group
from commands.context import CommandContext
from commands.outcome import Outcome
from commands.parse import parse_bookie_id
from commands.replication_access import (
    failure_rows,
    open_recovery,
    plan_body,
    plan_sentence,
    print_plan,
    print_report,
    progress_reporter,
    waiting_sentence,
)

if TYPE_CHECKING:
    from runtime.replication.decommission import DecommissionPlan, DecommissionReport

app = group("")


@command(app, "decommission", is_asking=True)
async def decommission(
    context: CommandContext,
    bookie_id: Annotated[str, typer.Argument(metavar="ID", help="A bookie that was stopped.")],
) -> Outcome:
    """Remove a stopped bookie for good: copy away what it held, prove that nothing names it, delete its cookie.

    The cookie is deleted only when a fresh scan over all ledgers finds no reference and the bookie is not registered,
    and only at the version read before. Safe to interrupt and to run again.
    """
    from runtime.replication.decommission import Decommission

    parse_bookie_id(bookie_id)
    console = context.console
    async with open_recovery(context) as access:
        operation = Decommission(access.recovery, access.cookies)
        plan = await operation.plan(bookie_id, lambda waiting_id: console.say(waiting_sentence(waiting_id)))
        if context.settings.is_dry_run:
            print_plan(context, "DecommissionPlan", _plan_body(plan), plan.recovery)
            return Outcome.OK
        console.say(plan_sentence(plan.recovery))
        await console.confirm(f"Recover them, and delete the cookie of {bookie_id}?")
        with console.progress("decommissioning") as progress:
            report = await operation.run(plan, progress_reporter(progress))
    failures = [row for recovery in report.recoveries for row in failure_rows(recovery)]
    print_report(context, "DecommissionReport", _report_body(report), failures)
    if report.refusal is not None:
        console.error(report.refusal)
        return Outcome.PARTIAL if any(recovery.has_progress for recovery in report.recoveries) else Outcome.FAILED
    return Outcome.OK


def _plan_body(plan: DecommissionPlan) -> dict[str, object]:
    return {"bookie_id": plan.bookie_id, "has_cookie": plan.cookie_version is not None, **plan_body(plan.recovery)}


def _report_body(report: DecommissionReport) -> dict[str, object]:
    seconds = sum(recovery.seconds for recovery in report.recoveries)
    bytes_copied = sum(recovery.bytes_copied for recovery in report.recoveries)
    return {
        "bookie_id": report.bookie_id,
        "is_complete": report.is_complete,
        "is_cookie_deleted": report.is_cookie_deleted,
        "ledgers_scanned": report.ledgers_scanned,
        "remaining_ledgers": [str(ledger_id) for ledger_id in report.remaining],
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
        "refusal": report.refusal,
    }
