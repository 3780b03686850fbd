"""``bkctl bookie drain``: the first part of a decommission, which can be undone."""

from __future__ import annotations

from bkctl.commands.bookie.admin_access import read_credentials
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
from bkctl.commands.command import command
from bkctl.commands.context import CommandContext, CopyFlags, Effect
from bkctl.commands.errors import Outcome
from bkctl.commands.parse import parse_bookie_id, parse_duration_s
from bkctl.commands.shared_options import takes_copy_options


@command("drain", example="bookie drain b1.example.com:3181 --dry-run", effect=Effect.HARMFUL)
@takes_copy_options
async def drain(
    context: CommandContext,
    bookie_ids: LeavingIds,
    open_ledgers: OpenLedgersOption = None,
    wait: WaitOption = WAIT_DEFAULT,
    accept_risk: RiskOption = False,
    token_file: LeavingTokenOption = None,
    *,
    flags: CopyFlags,
) -> Outcome:
    """Make bookies read-only and move their ledgers away.

    Redundancy never drops: they serve until the end. Short for bkctl decommission --drain-only; bkctl bookie undrain
    makes them writable again.
    """
    request = LeavingRequest(
        bookie_ids=tuple(parse_bookie_id(each) for each in bookie_ids),
        wait_s=parse_duration_s(wait),
        is_drain_only=True,
        open_ledgers=open_ledgers,
        is_risk_accepted=accept_risk,
        copying=flags,
        credentials=read_credentials(context, token_file),
    )
    return await drain_or_decommission(context, request)
