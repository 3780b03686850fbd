"""``bkctl bookie list``: which bookies belong to the cluster, and in what state."""

from __future__ import annotations

from typing import Annotated

import typer

from commands.bookie.state import STATE_COLUMNS, BookieState, bookie_row, state_of
from commands.cluster_access import open_bookies, open_store
from commands.command import command
from commands.config import OutputForm
from commands.context import CommandContext
from commands.rendering import Column, size

_COLUMNS = (
    *STATE_COLUMNS,
    Column("address", "ADDRESS", priority=2),
    Column("free_bytes", "FREE", size, is_right=True, is_wide=True),
    Column("version", "VERSION", is_wide=True),
    Column("endpoints", "ENDPOINTS", is_wide=True),
    Column("problem", "PROBLEM", is_wide=True),
)
_PROBE_TIMEOUT_S = 3.0
"""Longest wait for a connection, and then for the answer: a listing must not hang because one bookie does."""


def register(app: typer.Typer) -> None:
    """Add the command to ``bkctl bookie``."""
    command(app, "list", is_listing=True)(list_bookies)


async def list_bookies(
    context: CommandContext,
    state: Annotated[BookieState | None, typer.Option("--state", help="Only bookies in this state.")] = None,
) -> None:
    """List all bookies of the cluster: those registered, and those that are down (they own a cookie).

    STATE comes from the registrations. REACHABLE says whether a registered bookie answers: all are asked at the same
    time, with a limit of a few seconds. It is "unknown" for bookies that are not asked. -o name asks none.
    """
    import asyncio

    from runtime.metadata.registration import RegistrationClient

    is_asking = context.console.form is not OutputForm.NAME
    async with open_store(context) as (store, uri):
        registration = RegistrationClient(store, uri.root)
        registrations = await registration.snapshot()
        known = sorted({*await registration.with_cookie(), *registrations.live})
        states = {bookie_id: state_of(bookie_id, registrations) for bookie_id in known}
        wanted = [bookie_id for bookie_id in known if state in {None, states[bookie_id]}]
        async with open_bookies(context, registration, timeout_max_s=_PROBE_TIMEOUT_S) as bookies:
            rows = await asyncio.gather(
                *(bookie_row(registration, bookies if is_asking else None, each, states[each]) for each in wanted)
            )
    context.console.rows("BookieList", _COLUMNS, rows, name="id")
