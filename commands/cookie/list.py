"""``bkctl cookie list``: every bookie that belongs to the cluster, with the directories in its cookie."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from bkctl.commands.command import command
from bkctl.commands.context import CommandContext
from bkctl.commands.cookie.access import cookie_body, read_cookie_node
from bkctl.commands.errors import InvalidArgumentError
from bkctl.commands.rendering import Column, Table
from bkctl.commands.session import Session, open_session
from bkctl.commands.several import in_turn
from bkctl.runtime.errors import MetadataFormatError
from bkctl.runtime.ledger.metadata import is_valid_bookie_id
from bkctl.runtime.metadata.bookies.cookies import decode_cookie

_TABLE = Table(
    "CookieList",
    Column("bookie_id", "BOOKIE"),
    Column("layout_version", "LAYOUT", is_right=True, priority=2),
    Column("journal_directories", "JOURNALS", priority=1),
    Column("ledger_directories", "LEDGERS"),
    Column("index_directories", "INDEX", is_wide=True),
    Column("instance_id", "INSTANCE", is_wide=True),
    Column("problem", "PROBLEM"),
    name="bookie_id",
)
_WINDOW = 64


@command("list", example="cookie list", is_listing=True)
async def list_cookies(context: CommandContext) -> None:
    """List all cookies. Those that cannot be read or belong to another instance show the reason."""
    async with open_session(context) as session:
        ids = await session.cookies.ids()
        with context.console.listing(_TABLE) as listing:
            for start in range(0, len(ids), _WINDOW):
                if listing.end_if_full():
                    break
                rows = await asyncio.gather(*(_row(session, bookie_id) for bookie_id in ids[start : start + _WINDOW]))
                for row in filter(None, rows):
                    listing.add(row)


async def _row(session: Session, bookie_id: str) -> dict[str, object] | None:
    """None for a cookie that was deleted meanwhile."""
    try:
        found = await session.cookies.find(bookie_id)
    except MetadataFormatError as error:
        row: dict[str, object] = dict.fromkeys(column.key for column in _TABLE.columns)
        return row | {"bookie_id": bookie_id, "problem": str(error)}
    if found is None:
        return None
    cookie, problem = found.value, None
    if not is_valid_bookie_id(bookie_id):
        problem = "its name is not a bookie id and makes Java clients hang: remove it"
    elif cookie.bookie_id != bookie_id:
        problem = f"it is the cookie of bookie {cookie.bookie_id}"
    elif (cookie.instance_id or None) != (session.instance_id or None):
        problem = "it belongs to another instance of the cluster"
    return {**cookie_body(cookie), "bookie_id": bookie_id, "problem": problem}


@command("show", example="cookie show b1.example.com:3181", has_tables=False)
async def show(
    context: CommandContext,
    bookie_ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Bookie IDs")],
    raw: Annotated[bool, typer.Option("--raw", help="Print the raw bytes without parsing them")] = False,
) -> None:
    """Show the stored cookies of bookies. Exits with 4 if there is none, with 12 if it is unreadable."""
    if raw and len(bookie_ids) > 1:
        raise InvalidArgumentError("--raw prints one cookie: give one ID")
    async with open_session(context) as session:
        with in_turn(context, bookie_ids) as turns:
            for each in turns.ids:
                with turns.turn():
                    await _show(context, session, each, is_raw=raw)


async def _show(context: CommandContext, session: Session, bookie_id: str, *, is_raw: bool) -> None:
    node = await read_cookie_node(session, bookie_id)
    if is_raw:
        context.console.raw(node.data)
        return
    try:
        cookie = decode_cookie(node.data)
    except MetadataFormatError as error:
        raise MetadataFormatError(f"{session.cookies.path(bookie_id)}: {error}; --raw prints its bytes") from error
    body = {**cookie_body(cookie), "version": node.stat.version, "cluster_instance_id": session.instance_id}
    context.console.record("Cookie", body, name="bookie_id")
