"""``bkctl bookie show``: all that the cluster and the bookie say about one bookie."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from contextlib import aclosing
from functools import partial

from bkctl.commands.bookie.state import BookieArguments, bookie_row, named_bookie, state_of
from bkctl.commands.command import command
from bkctl.commands.context import CommandContext
from bkctl.commands.cookie.access import cookie_body
from bkctl.commands.errors import Outcome
from bkctl.commands.session import Session, open_session
from bkctl.commands.several import each_in_turn
from bkctl.runtime.errors import BookieNotFoundError, MetadataFormatError
from bkctl.runtime.metadata.replication.given_up_note import bookies_given_up
from bkctl.runtime.metadata.replication.recovery_notes import RecoveryNotes
from bkctl.runtime.metadata.replication.recovery_status import read_given_up
from bkctl.runtime.metadata.store import Versioned
from bkctl.storage.words import percent, size

_LEDGERS_S = 4.0
_RESTORE = "if its disks exist, bkctl cookie create --from-config on its machine lets it start"
_COOKIE_FIELDS = ("journal_directories", "ledger_directories", "index_directories", "instance_id")


@command("show", example="bookie show b1.example.com:3181", has_tables=False)
async def show(context: CommandContext, bookies: BookieArguments = None) -> Outcome:
    """Show the state, address, disk space and cookie of bookies.

    Exits with 4 if the cluster has no bookie with this ID. A bookie that is down is shown as far as it is known, also
    one without a cookie that ledgers name.
    """
    return await each_in_turn(context, bookies, partial(_show, context))


async def _show(context: CommandContext, bookie: str | None) -> None:
    bookie_id, metadata_uri = named_bookie(context, bookie)
    async with open_session(context, metadata_uri=metadata_uri) as session:
        registrations = await session.registrations.snapshot()
        cookie = await _cookie(session, bookie_id)
        why_none = "there is none"
        if cookie is None and bookie_id not in registrations.live:
            ledger_id = await _ledger_naming(session, bookie_id)
            if ledger_id is None:
                raise BookieNotFoundError(f"no bookie {bookie_id} in this cluster", bookie_id)
            why_none = f"there is none, but ledgers name the bookie, like {ledger_id}: {_RESTORE}"
        client = await session.client()
        state = state_of(bookie_id, registrations)
        row = await bookie_row(session.registrations, client.ports.bookies, bookie_id, state)
    body = {**row, **(cookie or {**dict.fromkeys(_COOKIE_FIELDS), "cookie_problem": why_none})}
    shown = {"total_bytes": size, "free_bytes": size, "used_fraction": percent}
    context.console.record("Bookie", body, name="id", show=shown)


async def _ledger_naming(session: Session, bookie_id: str) -> int | None:
    """A ledger that needs the bookie: its loss was not accepted. None: none was found in the time."""
    given_up = await read_given_up(RecoveryNotes(session.store, session.root))
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LEDGERS_S), aclosing((await session.ledgers()).read_all()) as ledgers:
            async for ledger_id, found in ledgers:
                is_named = isinstance(found, Versioned) and bookie_id in found.value.bookies()
                if is_named and bookie_id not in bookies_given_up(given_up.get(ledger_id)):
                    return ledger_id
    return None


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
