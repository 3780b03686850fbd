"""``bkctl log read``: the entries of a log, from any position on."""

from __future__ import annotations

from contextlib import aclosing
from typing import Annotated

import typer

from bkctl.commands.command import command
from bkctl.commands.context import CommandContext
from bkctl.commands.ledger.read import Form, payload_cell, payload_text
from bkctl.commands.log.access import LogName, log_nodes, parse_log_name
from bkctl.commands.rendering import Column, Table
from bkctl.commands.session import open_session
from bkctl.runtime.ledger_log.reader import LogReader

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
    async with open_session(context) as session:
        client = await session.client()
        reader = LogReader(client, log_nodes(session), name)
        async with aclosing(reader.entries(first, is_following=follow)) as entries:
            if form is Form.RAW:
                async for entry in entries:
                    context.console.raw(entry.payload)
                return
            with context.console.listing(_TABLE, is_live=follow) as listing:
                async for entry in entries:
                    if listing.is_full:
                        listing.truncate()
                        break
                    listing.add(
                        {
                            "position": entry.position,
                            "ledger_id": str(entry.ledger_id),
                            "entry_id": str(entry.entry_id),
                            "size_bytes": len(entry.payload),
                            "payload": payload_text(entry.payload, form),
                        }
                    )
