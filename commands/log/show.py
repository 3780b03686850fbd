"""``bkctl log create``, ``list`` and ``show``."""

from __future__ import annotations

from typing import Annotated

import typer

from bkctl.commands.command import command
from bkctl.commands.context import CommandContext, Effect
from bkctl.commands.errors import InvalidArgumentError
from bkctl.commands.parse import parse_duration_s, parse_size_bytes
from bkctl.commands.rendering import Column, Table, time_text
from bkctl.commands.safety.gate import open_change
from bkctl.commands.session import Session, open_session
from bkctl.runtime.client.api import quorum_warning
from bkctl.runtime.errors import ConfigurationError, LogExistsError, MetadataFormatError
from bkctl.runtime.ledger.changes import check_quorum_sizes
from bkctl.runtime.metadata.ledger_logs.format import LedgerLog, check_log_name
from bkctl.runtime.metadata.ledger_logs.nodes import LogNodes
from bkctl.runtime.net.loop import LoopClock
from bkctl.storage.words import size

LogName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the log")]


def parse_log_name(name: str) -> str:
    """The name; InvalidArgumentError."""
    try:
        check_log_name(name)
    except ConfigurationError as error:
        raise InvalidArgumentError(str(error)) from error
    return name


def log_nodes(session: Session) -> LogNodes:
    """The logs of the session's cluster."""
    return LogNodes(session.store, session.root)


_LIST = Table(
    "LogList",
    Column("name", "LOG"),
    Column("ledgers", "LEDGERS", is_right=True),
    Column("first_position", "FIRST", is_right=True),
    Column("writer", "WRITER", priority=1),
    Column("problem", "PROBLEM"),
    name="name",
)
_LEDGERS = Table(
    "Ledgers",
    Column("ledger_id", "LEDGER", is_right=True),
    Column("first_position", "FIRST", is_right=True),
    Column("created", "CREATED", is_wide=True),
)


@command("list", example="log list", is_listing=True)
async def list_logs(context: CommandContext) -> None:
    """List all logs. Those that cannot be read show the reason."""
    async with open_session(context) as session:
        nodes = log_nodes(session)
        with context.console.listing(_LIST) as listing:
            for name in await nodes.names():
                if listing.is_full:
                    listing.truncate()
                    break
                row: dict[str, object] = dict.fromkeys(column.key for column in _LIST.columns)
                try:
                    found = await nodes.find(name)
                except MetadataFormatError as error:
                    listing.add(row | {"name": name, "problem": str(error)})
                    continue
                if found is not None:
                    listing.add(row | {"name": name} | _summary(found.value))


def _summary(log: LedgerLog) -> dict[str, object]:
    return {
        "ledgers": len(log.ledgers),
        "first_position": log.first_position,
        "writer": None if log.writer is None else log.writer.name,
        "problem": "is being deleted" if log.is_deleted else None,
    }


@command("show", example="log show orders")
async def show(context: CommandContext, name: LogName) -> None:
    """Show the settings of a log, its last writer and its ledgers. A writer that ended stays the last one."""
    parse_log_name(name)
    async with open_session(context) as session:
        found = await log_nodes(session).read(name)
    log = found.value
    ledgers = [
        {"ledger_id": str(each.ledger_id), "first_position": each.first_position, "created": time_text(each.created_ms)}
        for each in log.ledgers
    ]
    body = {
        "name": name,
        "log_id": log.log_id,
        "created": time_text(log.created_ms),
        "ensemble_size": log.ensemble_size,
        "write_quorum_size": log.write_quorum_size,
        "ack_quorum_size": log.ack_quorum_size,
        "roll_bytes": log.roll_bytes,
        "roll_s": log.roll_s,
        "first_position": log.first_position,
        "writer": None if log.writer is None else log.writer.name,
        "writer_since": None if log.writer is None else time_text(log.writer.since_ms),
        "released_ledgers": [str(each) for each in log.released],
        "is_deleted": log.is_deleted,
        "version": found.version,
    }
    context.console.record("Log", body, name="name", details={"ledgers": ledgers}, show={"roll_bytes": size})
    context.console.table(_LEDGERS, ledgers)


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
