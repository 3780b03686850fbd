"""``bkctl bookie info``: disk space of every live bookie, asked from the bookie itself."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from bkctl.commands.bookie.state import STATE_COLUMNS, bookie_row, require_accepted, state_of
from bkctl.commands.command import command
from bkctl.commands.context import CommandContext
from bkctl.commands.errors import Outcome
from bkctl.commands.rendering import Column, Table
from bkctl.commands.session import open_session
from bkctl.runtime.errors import BookieNotFoundError, BookieUnavailableError
from bkctl.storage.words import percent, size

_TABLE = Table(
    "BookieInfoList",
    *STATE_COLUMNS,
    Column("total_bytes", "TOTAL", size, is_right=True, priority=4),
    Column("free_bytes", "FREE", size, is_right=True, priority=2),
    Column("used_fraction", "USED", percent, is_right=True, priority=3),
    Column("problem", "PROBLEM"),
    name="id",
)


@command("info", example="bookie info", is_listing=True)
async def show_info(
    context: CommandContext,
    bookie_ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ID]...", help="Bookie IDs (default: all live bookies)")
    ] = None,
) -> Outcome:
    """Show total and free disk space of bookies.

    STATE comes from the registrations. REACHABLE shows whether a registered bookie answers, or "refused" if it does
    not accept this client. Exits with 9 if some bookies did not answer or refuse, with 7 if none answered, and with 11
    if no bookie that answers accepts this client.
    """
    async with open_session(context, must_exist=False) as session:
        client, registration = await session.client(), session.registrations
        registrations = await registration.snapshot()
        wanted = bookie_ids or sorted(registrations.live)
        for bookie_id in sorted(frozenset(wanted) - registrations.live):
            if bookie_id not in await registration.with_cookie():
                raise BookieNotFoundError(f"no bookie {bookie_id} in this cluster", bookie_id)
        bookies = client.ports.bookies
        rows = await asyncio.gather(
            *(bookie_row(registration, bookies, each, state_of(each, registrations)) for each in wanted)
        )
        context.console.rows(_TABLE, rows)
        silent = [row for row in rows if row["problem"] is not None]
        if rows and len(silent) == len(rows):
            require_accepted(rows)
            raise BookieUnavailableError(str(silent[0]["id"]), str(silent[0]["problem"]))
    return Outcome.PARTIAL if silent else Outcome.OK
