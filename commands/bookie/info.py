"""``bkctl bookie info``: disk space of every live bookie, asked from the bookie itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from commands.cluster_access import open_client, registrations_of
from commands.command import command
from commands.context import CommandContext
from commands.outcome import Outcome
from commands.rendering import Column, percent, size

if TYPE_CHECKING:
    from runtime.client import LedgerClient

_COLUMNS = (
    Column("id", "ID"),
    Column("state", "STATE"),
    Column("total_bytes", "TOTAL", size, is_right=True),
    Column("free_bytes", "FREE", size, is_right=True),
    Column("used_fraction", "USED", percent, is_right=True),
    Column("problem", "PROBLEM"),
)


def register(app: typer.Typer) -> None:
    """Add the command to ``bkctl bookie``."""
    command(app, "info", is_listing=True)(show_info)


async def show_info(
    context: CommandContext,
    bookie_ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ID]...", help="All live bookies if absent.")
    ] = None,
) -> Outcome:
    """Show total and free disk space of bookies.

    Exit code 9 when some did not answer, 7 when none did.
    """
    import asyncio

    from runtime.errors import BookieNotFoundError, BookieUnavailableError

    async with open_client(context) as client:
        registration = registrations_of(client)
        registrations = await registration.snapshot()
        wanted = bookie_ids or sorted(registrations.live)
        for bookie_id in sorted(frozenset(wanted) - registrations.live):
            if bookie_id not in await registration.with_cookie():
                raise BookieNotFoundError(f"there is no bookie {bookie_id} in this cluster")
        rows = await asyncio.gather(*(_row(client, bookie_id, registrations.read_only) for bookie_id in wanted))
    context.console.rows("BookieInfoList", _COLUMNS, rows, name="id")
    silent = [row for row in rows if row["problem"] is not None]
    if rows and len(silent) == len(rows):
        raise BookieUnavailableError(str(silent[0]["id"]), str(silent[0]["problem"]))
    return Outcome.PARTIAL if silent else Outcome.OK


async def _row(client: LedgerClient, bookie_id: str, read_only: tuple[str, ...]) -> dict[str, object]:
    from runtime.errors import BookieError

    row: dict[str, object] = {"id": bookie_id, "state": "read-only" if bookie_id in read_only else "writable"}
    try:
        answer = await client.ports.bookies.info(bookie_id)
    except BookieError as error:
        return row | {"state": "down", "total_bytes": None, "free_bytes": None, "used_fraction": None,
                      "problem": str(error).partition(": ")[2]}  # fmt: skip
    used = 1 - answer.free_bytes / answer.total_bytes if answer.total_bytes else None
    return row | {"total_bytes": answer.total_bytes, "free_bytes": answer.free_bytes,
                  "used_fraction": None if used is None else round(used, 4), "problem": None}  # fmt: skip
