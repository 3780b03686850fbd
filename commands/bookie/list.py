"""``bkctl bookie list``, ``info`` and ``show``: bookies, their state, disk space and cookies."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated

import typer

from bkctl.commands.bookie.read_only_reasons import with_reasons
from bkctl.commands.bookie.state import (
    STATE_COLUMNS,
    BookieArguments,
    BookieState,
    bookie_row,
    named_bookie,
    require_accepted,
    state_of,
)
from bkctl.commands.command import command
from bkctl.commands.config import OutputForm
from bkctl.commands.context import CommandContext
from bkctl.commands.cookie.access import cookie_body
from bkctl.commands.errors import Outcome
from bkctl.commands.rendering import Column, Table
from bkctl.commands.session import Session, open_session
from bkctl.commands.several import each_in_turn
from bkctl.runtime.errors import BookieNotFoundError, BookieUnavailableError, MetadataFormatError
from bkctl.runtime.replication.judge.cluster_facts import BookieFacts
from bkctl.storage.words import percent, size

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


_SPACE_TABLE = Table(
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
        context.console.rows(_SPACE_TABLE, rows)
        silent = [row for row in rows if row["problem"] is not None]
        if rows and len(silent) == len(rows):
            require_accepted(rows)
            raise BookieUnavailableError(str(silent[0]["id"]), str(silent[0]["problem"]))
    return Outcome.PARTIAL if silent else Outcome.OK


_COOKIE_FIELDS = ("journal_directories", "ledger_directories", "index_directories", "instance_id")


@command("show", example="bookie show b1.example.com:3181", has_tables=False)
async def show(context: CommandContext, bookies: BookieArguments = None) -> Outcome:
    """Show the state, address, disk space and cookie of bookies.

    Exits with 4 if the cluster has no bookie with this ID. A bookie that is down is shown as far as it is known.
    """
    return await each_in_turn(context, bookies, partial(_show, context))


async def _show(context: CommandContext, bookie: str | None) -> None:
    bookie_id, metadata_uri = named_bookie(context, bookie)
    async with open_session(context, metadata_uri=metadata_uri) as session:
        registrations = await session.registrations.snapshot()
        cookie = await _cookie(session, bookie_id)
        if cookie is None and bookie_id not in registrations.live:
            raise BookieNotFoundError(f"no bookie {bookie_id} in this cluster", bookie_id)
        client = await session.client()
        state = state_of(bookie_id, registrations)
        row = await bookie_row(session.registrations, client.ports.bookies, bookie_id, state)
    body = {**row, **(cookie or {**dict.fromkeys(_COOKIE_FIELDS), "cookie_problem": "there is none"})}
    shown = {"total_bytes": size, "free_bytes": size, "used_fraction": percent}
    context.console.record("Bookie", body, name="id", show=shown)


async def _cookie(session: Session, bookie_id: str) -> Mapping[str, object] | None:
    """Fields of the stored cookie, and what is wrong with it; None if there is none."""
    try:
        found = await session.cookies.find(bookie_id)
    except MetadataFormatError as error:
        return {**dict.fromkeys(_COOKIE_FIELDS), "cookie_problem": str(error)}
    if found is None:
        return None
    problem = None
    if found.value.bookie_id != bookie_id:
        problem = f"it is the cookie of bookie {found.value.bookie_id}"
    elif (found.value.instance_id or None) != (session.instance_id or None):
        problem = f"it belongs to another instance of the cluster (this one is {session.instance_id})"
    body = cookie_body(found.value)
    return {**{field: body[field] for field in _COOKIE_FIELDS}, "cookie_problem": problem}
