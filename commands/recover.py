"""``bkctl recover``: copy away what dead bookies held."""

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
    report_body,
    waiting_sentence,
)

if TYPE_CHECKING:
    from runtime.replication.recovery_report import RecoveryReport

app = group("Copy away what dead bookies held.")


@app.callback()
def _group() -> None:
    """Keep ``failed-bookie`` a command of its own: Typer would fold a single one into the group."""


_group.__doc__ = app.info.help


@command(app, "failed-bookie", is_asking=True)
async def failed_bookie(
    context: CommandContext,
    bookie_ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Bookies that are down for good.")],
) -> Outcome:
    """Copy all entries that dead bookies held to other bookies, and take the dead ones out of the ledgers' metadata.

    Holds each ledger's replication lock, verifies every copy, and changes metadata by compare-and-set. Safe to
    interrupt and to run again. The cookies stay: bkctl decommission removes a bookie for good.
    """
    for bookie_id in bookie_ids:
        parse_bookie_id(bookie_id)
    async with open_recovery(context) as access:
        recovery, console = access.recovery, context.console
        if context.settings.is_dry_run:
            still_registered = sorted(access.registrations.live.intersection(bookie_ids))
            plan = await recovery.plan(bookie_ids)
            for bookie_id in still_registered:
                console.warn(f"bookie {bookie_id} is registered; it must be down before it can be recovered")
            print_plan(context, "RecoveryPlan", plan_body(plan), plan)
            return Outcome.OK
        await recovery.require_down(bookie_ids, lambda bookie_id: console.say(waiting_sentence(bookie_id)))
        plan = await recovery.plan(bookie_ids)
        console.say(plan_sentence(plan))
        if plan.ledgers:
            await console.confirm("Recover them?")
        with console.progress("recovering") as progress:
            report = await recovery.run(plan, progress_reporter(progress))
    print_report(context, "RecoveryReport", report_body(report), failure_rows(report))
    return outcome_of(report)


def outcome_of(report: RecoveryReport) -> Outcome:
    """Complete, or some ledgers left, or nothing achieved."""
    if report.is_complete:
        return Outcome.OK
    return Outcome.PARTIAL if report.has_progress else Outcome.FAILED
