"""``bkctl bookie show``: all that the cluster and the bookie say about one bookie."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from bkctl.commands.bookie.state import BookieArguments, bookie_row, named_bookie, state_of
from bkctl.commands.command import command
from bkctl.commands.context import CommandContext
from bkctl.commands.cookie.access import cookie_body
from bkctl.commands.errors import Outcome
from bkctl.commands.session import Session, open_session
from bkctl.commands.several import each_in_turn
from bkctl.runtime.errors import BookieNotFoundError, MetadataFormatError
from bkctl.storage.words import percent, size

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
