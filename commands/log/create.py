"""``bkctl log create``: a new, empty log of ledgers."""

from __future__ import annotations

from typing import Annotated

import typer

from bkctl.commands.command import command
from bkctl.commands.context import CommandContext, Effect
from bkctl.commands.errors import InvalidArgumentError
from bkctl.commands.log.access import LogName, log_nodes, parse_log_name
from bkctl.commands.parse import parse_duration_s, parse_size_bytes
from bkctl.commands.safety.gate import open_change
from bkctl.commands.session import open_session
from bkctl.runtime.client.api import quorum_warning
from bkctl.runtime.errors import ConfigurationError, LogExistsError
from bkctl.runtime.ledger.changes import check_quorum_sizes
from bkctl.runtime.metadata.ledger_logs.format import LedgerLog
from bkctl.runtime.net.loop import LoopClock


@command("create", example="log create orders", effect=Effect.REVERSIBLE)
async def create(
    context: CommandContext,
    name: LogName,
    ensemble_size: Annotated[int, typer.Option("--ensemble", "-E", metavar="N", help="Ensemble size")] = 3,
    write_quorum_size: Annotated[int, typer.Option("--write-quorum", "-W", metavar="N", help="Write quorum size")] = 2,
    ack_quorum_size: Annotated[int, typer.Option("--ack-quorum", "-A", metavar="N", help="Ack quorum size")] = 2,
    roll_size: Annotated[
        str, typer.Option("--roll-size", metavar="SIZE", help="Begin a new ledger after so many bytes")
    ] = "1g",
    roll_after: Annotated[
        str, typer.Option("--roll-after", metavar="DURATION", help="Begin a new ledger after this time")
    ] = "4h",
) -> None:
    """Create an empty log. The first writer creates its first ledger."""
    parse_log_name(name)
    roll_bytes, roll_s = parse_size_bytes(roll_size), parse_duration_s(roll_after)
    if roll_bytes == 0:
        raise InvalidArgumentError("--roll-size must be at least 1")
    try:
        check_quorum_sizes(ensemble_size, write_quorum_size, ack_quorum_size)
    except ConfigurationError as error:
        raise InvalidArgumentError(str(error)) from error
    if (warning := quorum_warning(write_quorum_size, ack_quorum_size)) is not None:
        context.console.warn(warning)
    async with open_session(context) as session:
        nodes, clock = log_nodes(session), LoopClock()
        if await nodes.find(name) is not None:
            raise LogExistsError(name)
        count = len(await session.registrations.writable())
        if count < ensemble_size:
            context.console.warn(
                f"{ensemble_size} writable bookies are needed for an ensemble, only {count} are registered: the log "
                "cannot be written before there are more"
            )
        plan = session.plan(
            summary=(f"will create log {name}",),
            items=({"action": "create", "path": nodes.path(name), "expected_version": None},),
        )
        log = LedgerLog(
            log_id=f"{clock.random.getrandbits(64):016x}",
            created_ms=clock.now_ms(),
            ensemble_size=ensemble_size,
            write_quorum_size=write_quorum_size,
            ack_quorum_size=ack_quorum_size,
            roll_bytes=roll_bytes,
            roll_s=roll_s,
        )
        async with open_change(context, plan, session.store, is_locked=False):
            await nodes.create(name, log)
    context.console.record("LogCreate", {"name": name, "log_id": log.log_id}, name="name")
