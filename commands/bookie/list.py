"""``bkctl bookie list``: which bookies belong to the cluster, and in what state."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Annotated

import typer

from commands.cluster_access import open_store
from commands.command import command
from commands.context import CommandContext
from commands.rendering import Column

if TYPE_CHECKING:
    from runtime.metadata.registration import RegistrationClient

_COLUMNS = (Column("id", "ID"), Column("state", "STATE"), Column("address", "ADDRESS"))


class BookieState(enum.StrEnum):
    """State of a bookie as the cluster sees it."""

    WRITABLE = "writable"
    READ_ONLY = "read-only"
    DOWN = "down"


def register(app: typer.Typer) -> None:
    """Add the command to ``bkctl bookie``."""
    command(app, "list", is_listing=True)(list_bookies)


async def list_bookies(
    context: CommandContext,
    state: Annotated[BookieState | None, typer.Option("--state", help="Only bookies in this state.")] = None,
) -> None:
    """List all bookies of the cluster: those registered, and those that are down (they own a cookie)."""
    import asyncio

    from runtime.metadata.registration import RegistrationClient

    async with open_store(context) as (store, uri):
        client = RegistrationClient(store, uri.root)
        registrations = await client.snapshot()
        known = await client.with_cookie()
        states = dict.fromkeys(sorted({*known, *registrations.live}), BookieState.DOWN)
        states |= dict.fromkeys(registrations.read_only, BookieState.READ_ONLY)
        states |= dict.fromkeys(registrations.writable, BookieState.WRITABLE)
        wanted = [bookie_id for bookie_id in states if state in {None, states[bookie_id]}]
        addresses = await asyncio.gather(*(_address(client, bookie_id, states[bookie_id]) for bookie_id in wanted))
    rows = [
        {"id": bookie_id, "state": states[bookie_id], "address": address}
        for bookie_id, address in zip(wanted, addresses, strict=True)
    ]
    context.console.rows("BookieList", _COLUMNS, rows, name="id")


async def _address(client: RegistrationClient, bookie_id: str, state: BookieState) -> str | None:
    """Where the bookie listens; None when it is down, went down just now, or publishes nonsense."""
    from storage.errors import BkctlError

    if state is BookieState.DOWN:
        return None
    try:
        return str(await client.address(bookie_id))
    except BkctlError:
        return None
