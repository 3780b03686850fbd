"""``bkctl log list`` and ``bkctl log show``."""

from __future__ import annotations

from bkctl.commands.command import command
from bkctl.commands.context import CommandContext
from bkctl.commands.log.access import LogNames, log_nodes, parse_log_name
from bkctl.commands.rendering import Column, Table, time_text
from bkctl.commands.session import Session, open_session
from bkctl.commands.several import in_turn
from bkctl.runtime.errors import MetadataFormatError
from bkctl.runtime.metadata.ledger_logs.format import LedgerLog
from bkctl.storage.words import size

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
                if listing.end_if_full():
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
async def show(context: CommandContext, names: LogNames) -> None:
    """Show the settings of logs, their last writers and their ledgers. A writer that ended stays the last one."""
    for each in names:
        parse_log_name(each)
    async with open_session(context) as session:
        with in_turn(context, names) as turns:
            for name in turns.ids:
                with turns.turn():
                    await _show_log(context, session, name)


async def _show_log(context: CommandContext, session: Session, name: str) -> None:
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
