"""``bkctl decommission``: permanently remove bookies from the cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
import typer

from bkctl.commands.bookie.admin_access import read_credentials
from bkctl.commands.bookie.by_retention import wait_for_retention
from bkctl.commands.bookie.leaving import (
    WAIT_DEFAULT,
    LeavingIds,
    LeavingRequest,
    LeavingTokenOption,
    OpenLedgersOption,
    RiskOption,
    WaitOption,
    drain_or_decommission,
)
from bkctl.commands.bookie.stop_command import parse_stop_command
from bkctl.commands.command import command
from bkctl.commands.context import CommandContext, CopyFlags
from bkctl.commands.effect import Effect
from bkctl.commands.errors import InvalidArgumentError, Outcome
from bkctl.commands.ledger.accepted_loss import LostBookies, parse_lost
from bkctl.commands.parse import parse_bookie_id, parse_duration_s, read_ledger_ids
from bkctl.commands.shared_options import takes_copy_options
from bkctl.runtime.errors import RefusedError


@command("decommission", example="decommission b1.example.com:3181 --dry-run", effect=Effect.HARMFUL)
@takes_copy_options
async def decommission(
    context: CommandContext,
    bookie_ids: LeavingIds,
    drain_only: Annotated[bool, typer.Option("--drain-only", help="Move the ledgers away and stop nothing")] = False,
    by_retention: Annotated[bool, typer.Option("--by-retention", help="Copy nothing, wait for deletions")] = False,
    stop_command: Annotated[
        str | None, typer.Option("--stop-command", metavar="CMD", help="Stops it; {} is its ID, {host} its host")
    ] = None,
    open_ledgers: OpenLedgersOption = None,
    wait: WaitOption = WAIT_DEFAULT,
    accept_loss: LostBookies = None,
    from_file: Annotated[
        str | None,
        typer.Option("--from-file", metavar="FILE", help="Ledgers whose loss is accepted"),
    ] = None,
    accept_risk: RiskOption = False,
    token_file: LeavingTokenOption = None,
    if_exists: Annotated[bool, typer.Option("--if-exists", help="Exit with 0 if it is already removed")] = False,
    *,
    flags: CopyFlags,
) -> Outcome:
    """Move the ledgers of bookies away, then delete their cookies."""
    is_loss_accepted = accept_loss is not None or from_file is not None
    if drain_only and (stop_command is not None or is_loss_accepted):
        raise InvalidArgumentError("--drain-only stops no bookie: use it without --stop-command and --accept-loss")
    if by_retention and (drain_only or is_loss_accepted or open_ledgers is not None):
        raise InvalidArgumentError(
            "--by-retention copies nothing: use it without --drain-only, --open-ledgers and --accept-loss"
        )
    if by_retention and msgspec.structs.replace(flags, outage_max=None) != CopyFlags():
        raise InvalidArgumentError(
            "--by-retention copies nothing: use it without --copy-rate, --copy-rate-per-bookie, --resume, "
            "--verify and --placement"
        )
    leaving = tuple(parse_bookie_id(each) for each in bookie_ids)
    request = LeavingRequest(
        bookie_ids=leaving,
        wait_s=parse_duration_s(wait),
        is_drain_only=drain_only,
        is_absence_fine=if_exists,
        open_ledgers=open_ledgers,
        stop_words=parse_stop_command(stop_command),
        accepted=_accepted(leaving, accept_loss, from_file),
        accepted_from=from_file or "",
        is_risk_accepted=accept_risk,
        copying=flags,
        credentials=read_credentials(context, token_file),
    )
    if by_retention and not await wait_for_retention(context, request):
        return Outcome.PARTIAL
    return await drain_or_decommission(context, request)


def _accepted(leaving: Sequence[str], lost: list[str] | None, path: str | None) -> frozenset[int]:
    """The ledgers that may lose what only these bookies had; InvalidArgumentError unless both options say the same,
    RefusedError if there are none: the bookies may be back since someone looked."""
    if lost is None and path is None:
        return frozenset()
    others = parse_lost(lost) ^ set(leaving)
    if others:
        raise InvalidArgumentError(
            f"--accept-loss names the bookies that leave, for the ledgers of --from-file: {', '.join(sorted(others))}"
        )
    if path is None:
        raise InvalidArgumentError("--accept-loss needs --from-file FILE with the ledgers whose loss is accepted")
    ledger_ids = frozenset(read_ledger_ids(path))
    if not ledger_ids:
        raise RefusedError(f"nothing was changed: {path} names no ledger, so there is no loss to accept: bkctl status")
    return ledger_ids
