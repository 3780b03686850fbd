"""``bkctl decommission``: permanently remove bookies from the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from commands.bookie.admin_access import read_token
from commands.command import command, group
from commands.context import CommandContext
from commands.effect import Effect
from commands.errors import InvalidArgumentError, Outcome
from commands.leaving import (
    WAIT_DEFAULT,
    LeavingIds,
    LeavingRequest,
    OpenLedgersOption,
    RiskOption,
    WaitOption,
    leaving_outcome,
    let_leave,
    report_fields,
)
from commands.outages import OutageMax
from commands.parse import parse_bookie_id, parse_duration_s, read_ledger_ids
from commands.recovery_rendering import failure_rows, fenced_rows, print_report, shortened
from commands.rendering import counted
from commands.replication_access import PlacementChoice, VerifyChoice
from commands.stop_command import parse_stop_command

if TYPE_CHECKING:
    from runtime.replication.decommission import DecommissionReport


@command("decommission", example="decommission b1.example.com:3181 --dry-run", effect=Effect.HARMFUL)
async def decommission(
    context: CommandContext,
    bookie_ids: LeavingIds,
    drain_only: Annotated[bool, typer.Option("--drain-only", help="Move the ledgers away and stop nothing")] = False,
    stop_command: Annotated[
        str | None, typer.Option("--stop-command", metavar="CMD", help="Stops a drained bookie; {} is its ID")
    ] = None,
    open_ledgers: OpenLedgersOption = None,
    wait: WaitOption = WAIT_DEFAULT,
    accept_loss: Annotated[
        str | None,
        typer.Option("--accept-loss", metavar="FILE", help="Ledgers whose loss is accepted"),
    ] = None,
    accept_risk: RiskOption = False,
    outage_max: OutageMax = None,
    placement: PlacementChoice = None,
    verify: VerifyChoice = None,
) -> Outcome:
    """Move the ledgers of live or dead bookies away, then delete their cookies.

    Live ones serve, read-only, until nothing needs them; then stop them.
    """
    if drain_only and (stop_command is not None or accept_loss is not None):
        raise InvalidArgumentError("--drain-only stops no bookie: use it without --stop-command and --accept-loss")
    accepted = frozenset(read_ledger_ids(accept_loss)) if accept_loss is not None else frozenset()
    request = LeavingRequest(
        bookie_ids=tuple(parse_bookie_id(each) for each in bookie_ids),
        wait_s=parse_duration_s(wait),
        is_drain_only=drain_only,
        open_ledgers=open_ledgers,
        stop_words=parse_stop_command(stop_command),
        accepted=accepted,
        is_risk_accepted=accept_risk,
        outage_max=outage_max,
        placement=placement,
        verify=verify,
        token=read_token(None),
    )
    report = await let_leave(context, request)
    print_leaving(context, report)
    return leaving_outcome(report)


def print_leaving(context: CommandContext, report: DecommissionReport) -> None:
    """Print the report, and what the operator should do next."""
    failures = [row for recovery in report.recoveries for row in failure_rows(recovery)]
    fenced = [row for recovery in report.recoveries for row in fenced_rows(recovery)]
    print_report(context, "DecommissionReport", report_fields(report), failures, fenced)
    names = ", ".join(report.bookie_ids)
    if report.accepted:
        context.console.warn(
            f"{counted(len(report.accepted), 'ledger')} with lost entries are unchanged and still reference bookie "
            f"{names}: {shortened(report.accepted)}"
        )
    if report.refusal is not None:
        context.console.error(report.refusal + _advice(report))
    elif report.is_drained_only:
        words = " ".join(report.bookie_ids)
        context.console.say(
            f"bookie {names} is drained and read-only: stop it and run bkctl decommission {words}, or make it writable "
            f"with bkctl bookie undrain {words}"
        )


def _advice(report: DecommissionReport) -> str:
    """The advice for ledgers that another run would not move either."""
    from runtime.replication.recovery_report import FailureReason

    if report.open_ledgers:
        return "; run the command again later, or close them with --open-ledgers fence"
    reasons = {failure.reason for recovery in report.recoveries for failure in recovery.failures}
    if reasons.isdisjoint({FailureReason.LOST, FailureReason.NOT_CLOSED}):
        return ""
    return "; for ledgers whose entries are lost, see --accept-loss and bkctl ledger delete --force-open"


app = group("", decommission)
