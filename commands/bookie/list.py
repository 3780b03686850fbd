"""``bkctl bookie list``: which bookies belong to the cluster, and in what state."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated

import typer

from bkctl.commands.bookie.read_only_reasons import with_reasons
from bkctl.commands.bookie.state import STATE_COLUMNS, BookieState, bookie_row, require_accepted, state_of
from bkctl.commands.command import command
from bkctl.commands.config import OutputForm
from bkctl.commands.context import CommandContext
from bkctl.commands.rendering import Column, Table
from bkctl.commands.session import Session, open_session
from bkctl.runtime.replication.judge.cluster_facts import BookieFacts
from bkctl.storage.words import size

_TABLE = Table(
    "BookieList",
    *STATE_COLUMNS,
    Column("address", "ADDRESS", priority=2),
    Column("problem", "PROBLEM"),
    Column("free_bytes", "FREE", size, is_right=True, is_wide=True),
    Column("version", "VERSION", is_wide=True),
    Column("endpoints", "ENDPOINTS", is_wide=True),
    name="id",
)
_PROBE_TIMEOUT_S = 3.0
"""Longest wait for a connection, and then for the answer: a listing must not hang because one bookie does."""


@command("list", example="bookie list --state down", is_listing=True)
async def list_bookies(
    context: CommandContext,
    state: Annotated[BookieState | None, typer.Option("--state", help="Only bookies in this state")] = None,
) -> None:
    """List all bookies, also those that are down.

    STATE comes from the registrations. REACHABLE shows whether a registered bookie answers within a few seconds; it is
    "unknown" for bookies that are not asked, and "refused" for those that do not accept this client. -o name asks none.
    Exits with 11 if no bookie that answers accepts this client.
    """
    is_asking = context.console.form is not OutputForm.NAME
    async with open_session(context, must_exist=False) as session:
        registration = session.registrations
        registrations = await registration.snapshot()
        known = sorted({*await registration.with_cookie(), *registrations.live})
        states = {bookie_id: state_of(bookie_id, registrations) for bookie_id in known}
        wanted = [bookie_id for bookie_id in known if state in {None, states[bookie_id]}]
        bookies = session.bookies(timeout_max_s=_PROBE_TIMEOUT_S) if is_asking else None
        rows = await asyncio.gather(*(bookie_row(registration, bookies, each, states[each]) for each in wanted))
        if is_asking:
            await _note_full(context, session, rows)
    context.console.rows(_TABLE, rows)
    require_accepted(rows)


async def _note_full(context: CommandContext, session: Session, rows: Sequence[dict[str, object]]) -> None:
    """Read-only bookies without another problem say if they have no space left, as far as their admin ports answer."""
    read_only = {str(row["id"]): row for row in rows if row["state"] is BookieState.READ_ONLY and not row["problem"]}
    asked = [BookieFacts(each, is_writable=False, has_cookie=True) for each in read_only]
    for found in await with_reasons(context, session, asked, _PROBE_TIMEOUT_S):
        read_only[found.bookie_id]["problem"] = found.out_of_space
