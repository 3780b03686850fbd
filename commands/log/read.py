"""``bkctl log read``: the entries of a log, from any position on."""

from __future__ import annotations

from typing import Annotated

import typer

from bkctl.commands.command import command
from bkctl.commands.context import CommandContext
from bkctl.commands.ledger.read import Form, check_following, payload_cell, print_payloads
from bkctl.commands.log.access import LogName, log_nodes, parse_log_name
from bkctl.commands.rendering import Column, Row, Table
from bkctl.commands.session import open_session
from bkctl.runtime.ledger_log.reader import LogEntry, LogReader

_TABLE = Table(
    "LogEntryList",
    Column("position", "POSITION", is_right=True),
    Column("ledger_id", "LEDGER", is_right=True, priority=1),
    Column("entry_id", "ENTRY", is_right=True, priority=1),
    Column("size_bytes", "BYTES", is_right=True),
    Column("payload", "PAYLOAD", payload_cell),
    name="position",
)


@command("read", example="log read orders --from 1000 --follow", is_listing=True)
async def read(
    context: CommandContext,
    name: LogName,
    first: Annotated[
        int | None, typer.Option("--from", min=0, metavar="POSITION", help="First position (default: the oldest)")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for further entries until interrupted")] = False,
    form: Annotated[
        Form, typer.Option("--format", help="Payload encoding; raw writes only the payload bytes")
    ] = Form.AUTO,
) -> None:
    """Read the entries of a log in order, across its ledgers, without fencing its writer."""
    parse_log_name(name)
    if follow:
        check_following(context, form)
    async with open_session(context) as session:
        client = await session.client()
        entries = LogReader(client, log_nodes(session), name).entries(first, is_following=follow)
        await print_payloads(context, _TABLE, entries, form, _row, is_live=follow)


def _row(entry: LogEntry) -> Row:
    return {"position": entry.position, "ledger_id": str(entry.ledger_id), "entry_id": str(entry.entry_id)}
