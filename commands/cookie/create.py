"""``bkctl cookie create``: store the cookie of a bookie that has none; ``generate`` only writes its bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Annotated

import msgspec
import typer

from bkctl.commands.command import command
from bkctl.commands.context import BookieFlags, CommandContext, Effect, id_by_settings, load_config
from bkctl.commands.cookie.access import (
    FromConfigOption,
    OwnBookie,
    SubjectArgument,
    cookie_body,
    named_file,
    open_own_bookie,
    require_fitting,
    require_unused,
)
from bkctl.commands.parse import read_named_file
from bkctl.commands.safety.gate import Change, make_change
from bkctl.commands.safety.plan import Plan
from bkctl.commands.session import Session, open_session
from bkctl.commands.shared_options import takes_bookie_options
from bkctl.runtime.bookie.cookies.check import expected_cookie
from bkctl.runtime.bookie.cookies.repair import require_matching_directories
from bkctl.runtime.errors import ConflictError, NodeExistsError
from bkctl.runtime.metadata.bookies.cookies import Cookie, encode_cookie
from bkctl.runtime.metadata.replication.recovery_notes import RecoveryNotes
from bkctl.runtime.metadata.store import Versioned
from bkctl.runtime.new_file import write_whole


@command(
    "create",
    example="cookie create --from-config --conf conf/bk_server.conf --dry-run",
    effect=Effect.HARMFUL,
    is_configured_by_files=True,
)
@takes_bookie_options
async def create(
    context: CommandContext,
    flags: BookieFlags,
    bookie: SubjectArgument = None,
    file: Annotated[
        str | None, typer.Option("--from-file", metavar="FILE", help="A cookie from bkctl cookie generate")
    ] = None,
    from_config: FromConfigOption = False,
) -> None:
    """Create the cookie of a stopped bookie that has none.

    --from-file is rejected while ledgers reference the bookie, because a file cannot prove that their entries are still
    there. To recreate a lost cookie, use --from-config on the bookie's machine: every directory in the settings must
    have the VERSION file of this bookie, and must not be empty.
    """
    source = named_file(bookie, file, from_config=from_config)
    if source is not None:
        async with open_session(context) as session:
            await _create_from_file(context, session, *source)
        return
    config = load_config(context, flags, bookie)
    async with open_own_bookie(context, config) as own:
        await _create_from_config(context, own)


async def _create_from_file(context: CommandContext, session: Session, bookie_id: str, file: str) -> None:
    data = read_named_file(file, "the cookie")
    cookie = require_fitting(session, bookie_id, data, file)

    async def examine() -> tuple[Plan, None]:
        await _require_absent(session, bookie_id)
        advice = "use bkctl cookie create --from-config on its machine, which verifies its directories"
        await require_unused(context, session, bookie_id, advice)
        return _plan(session, cookie, data), None

    await _store(context, session, cookie, data, examine)


async def _create_from_config(context: CommandContext, own: OwnBookie) -> None:
    session, cookie = own.session, own.expected
    data = encode_cookie(cookie)

    async def examine() -> tuple[Plan, None]:
        await _require_absent(session, cookie.bookie_id)
        require_matching_directories(await own.gather_stopped(context))
        return _plan(session, cookie, data), None

    await _store(context, session, cookie, data, examine, own.locked)


async def _note_disks_are_back(session: Session, bookie_id: str) -> None:
    """The bookie has its old entries, also of ledgers of which it was given up: not a new, empty one with its id."""
    notes = RecoveryNotes(session.store, session.root).given_up
    since = await session.registrations.member_since(bookie_id)
    async with aclosing(notes.all()) as found:
        async for key, note in found:
            if isinstance(note, Versioned) and bookie_id in note.value.member_since:
                member_since = note.value.member_since | {bookie_id: since}
                changed = msgspec.structs.replace(note.value, member_since=member_since)
                await notes.replace(key, changed, note.version)


async def _require_absent(session: Session, bookie_id: str) -> None:
    if await session.store.exists(session.cookies.path(bookie_id)) is not None:
        raise ConflictError(
            f"nothing was changed: bookie {bookie_id} already has a cookie: see bkctl cookie show {bookie_id}"
        )


def _plan(session: Session, cookie: Cookie, data: bytes) -> Plan:
    path, digest = session.cookies.path(cookie.bookie_id), hashlib.sha256(data).hexdigest()
    return session.plan(
        subject=cookie.bookie_id,
        summary=(
            f"will add bookie {cookie.bookie_id} to the cluster, with journals in "
            f"{','.join(cookie.journal_directories)} and ledgers in {','.join(cookie.ledger_directories)}",
        ),
        items=({"action": "create", "path": path, "expected_version": None, "sha256": digest},),
    )


async def _store(
    context: CommandContext,
    session: Session,
    cookie: Cookie,
    data: bytes,
    examine: Callable[[], Awaitable[tuple[Plan, None]]],
    turn: Callable[[Change], AbstractAsyncContextManager[None]] | None = None,
) -> None:
    """``turn``: locks the directories that the cookie was verified against; None: it comes from a file."""

    async def apply(change: Change, _: None) -> None:
        change.require_lock()
        try:
            await session.cookies.create_node(cookie.bookie_id, data)
        except NodeExistsError:
            raise ConflictError(
                f"bookie {cookie.bookie_id} got a cookie from another process during this command"
            ) from None
        if turn is not None:
            await _note_disks_are_back(session, cookie.bookie_id)

    await make_change(context, examine, apply, session.store, turn=turn)
    context.console.say(f"to undo: bkctl cookie delete {cookie.bookie_id}")
    context.console.record("CookieCreated", cookie_body(cookie), name="bookie_id")


@command(
    "generate",
    example="cookie generate --conf conf/bk_server.conf --out cookie",
    is_configured_by_files=True,
    has_tables=False,
)
@takes_bookie_options
async def generate(
    context: CommandContext,
    flags: BookieFlags,
    bookie: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="Bookie ID (default: that of the settings)")
    ] = None,
    output_file: Annotated[str | None, typer.Option("--out", metavar="FILE", help="New file (default: stdout)")] = None,
    instance_id: Annotated[
        str | None,
        typer.Option("--instance-id", metavar="TEXT", help="Instance id (default: that of the cluster); empty: none"),
    ] = None,
) -> None:
    """Write the cookie that follows from a bookie's settings, without storing it in the cluster.

    bkctl cookie create and cookie_create of the Java shell read the file.
    """
    config = load_config(context, flags, bookie)
    if instance_id is None:
        async with open_session(context) as session:
            instance_id = session.instance_id
    cookie = expected_cookie(config.storage, config.bookie_id or id_by_settings(config), instance_id or None)
    data = encode_cookie(cookie)
    if output_file is None:
        context.console.raw(data)
        return
    write_whole(output_file, data, is_new=True)
    context.console.say(f"the cookie of bookie {cookie.bookie_id} is in {output_file}")
