"""``bkctl cookie create`` and ``update``: store the cookie of a bookie."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Annotated, NamedTuple

import typer

from bkctl.commands.command import command
from bkctl.commands.context import BookieFlags, CommandContext, Effect, load_config
from bkctl.commands.cookie.access import (
    DIFFERENCE_TABLE,
    FieldRows,
    FromConfigOption,
    SubjectArgument,
    cookie_body,
    difference_rows,
    difference_sentences,
    named_file,
    read_cookie_node,
    require_fitting,
    require_unused,
)
from bkctl.commands.cookie.own_directories import OwnBookie, open_own_bookie
from bkctl.commands.parse import read_named_file
from bkctl.commands.safety.gate import Change
from bkctl.commands.safety.operation import make_change
from bkctl.commands.safety.plan import Plan
from bkctl.commands.session import Session, open_session
from bkctl.commands.shared_options import takes_bookie_options
from bkctl.runtime.bookie.cookies.directories import version_path
from bkctl.runtime.bookie.cookies.evidence import Evidence
from bkctl.runtime.bookie.cookies.repair import require_matching_directories, require_own_directories, restamp
from bkctl.runtime.errors import ConflictError, MetadataFormatError, NodeExistsError
from bkctl.runtime.metadata.bookies.cookies import Cookie, decode_cookie, encode_cookie
from bkctl.runtime.metadata.replication.recovery_notes import RecoveryNotes
from bkctl.runtime.metadata.replication.recovery_status import note_back
from bkctl.runtime.metadata.store import Node


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
    async with _new_cookie(context, flags, bookie, file, is_of_settings=from_config) as (session, cookie, data, own):
        bookie_id = cookie.bookie_id

        async def examine() -> tuple[Plan, None]:
            await _require_absent(session, bookie_id)
            if own is None:
                advice = "use bkctl cookie create --from-config on its machine, which verifies its directories"
                await require_unused(context, session, bookie_id, advice)
            else:
                require_matching_directories(await own.gather_stopped(context))
            return _plan(session, cookie, data), None

        async def apply(change: Change, _: None) -> None:
            change.require_lock()
            try:
                await session.cookies.create_node(bookie_id, data)
            except NodeExistsError:
                raise ConflictError(
                    f"bookie {bookie_id} got a cookie from another process during this command"
                ) from None
            if own is not None:
                await note_back(RecoveryNotes(session.store, session.root), bookie_id)

        await make_change(context, examine, apply, session.store, turn=None if own is None else own.locked)
    context.console.say(f"to undo: bkctl cookie delete {bookie_id}")
    context.console.record("CookieCreated", cookie_body(cookie), name="bookie_id")


class _NewCookie(NamedTuple):
    """The cookie to store, and its bytes. ``own`` None: it comes from a file."""

    session: Session
    cookie: Cookie
    data: bytes
    own: OwnBookie | None


@asynccontextmanager
async def _new_cookie(
    context: CommandContext, flags: BookieFlags, bookie: str | None, file: str | None, *, is_of_settings: bool
) -> AsyncIterator[_NewCookie]:
    """Of a file, or of this machine's bookie, whose directories prove it; InvalidArgumentError, RefusedError."""
    source = named_file(bookie, file, from_config=is_of_settings)
    if source is None:
        async with open_own_bookie(context, load_config(context, flags, bookie)) as own:
            yield _NewCookie(own.session, own.expected, encode_cookie(own.expected), own)
        return
    async with open_session(context) as session:
        bookie_id, path = source
        data = read_named_file(path, "the cookie")
        yield _NewCookie(session, require_fitting(session, bookie_id, data, path), data, None)


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


class _StoredCookies(NamedTuple):
    """The stored cookie, the differences of the new one, and what is known about the directories on this machine."""

    node: Node
    rows: FieldRows
    evidence: Evidence | None


@command(
    "update",
    example="cookie update --from-config --conf conf/bk_server.conf --dry-run",
    effect=Effect.DESTROYS,
    is_configured_by_files=True,
)
@takes_bookie_options
async def update(
    context: CommandContext,
    flags: BookieFlags,
    bookie: SubjectArgument = None,
    file: Annotated[str | None, typer.Option("--from-file", metavar="FILE", help="The new cookie")] = None,
    from_config: FromConfigOption = False,
) -> None:
    """Replace the stored cookie of a stopped bookie; the old one is kept in the trash.

    --from-file is rejected while ledgers reference the bookie. --from-config, on the bookie's machine, updates the
    stored cookie and the VERSION files to the settings: after directories were renamed, a VERSION file was damaged, or
    for index directories that a cookie of layout 4 could not record. Every directory must belong to this bookie, in the
    original number and order. Type the ID, or use --confirm.
    """
    async with _new_cookie(context, flags, bookie, file, is_of_settings=from_config) as new:
        examine, apply = partial(_examine_update, context, new), partial(_update, new)
        turn = None if new.own is None else new.own.locked
        found, version = await make_change(context, examine, apply, new.session.store, turn=turn)
    version = found.node.stat.version if version is None else version
    body = {"bookie_id": new.cookie.bookie_id, "version": version, "fields_changed": len(found.rows)}
    context.console.record("CookieUpdated", body, name="bookie_id", details={"fields": found.rows})
    context.console.table(DIFFERENCE_TABLE, found.rows)


async def _examine_update(context: CommandContext, new: _NewCookie) -> tuple[Plan, _StoredCookies]:
    session, cookie, data, own = new
    node, evidence, stale = await read_cookie_node(session, cookie.bookie_id), None, []
    if own is None:
        advice = "use bkctl cookie update --from-config on its machine, which verifies its directories"
        await require_unused(context, session, cookie.bookie_id, advice)
    else:
        evidence = await own.gather_stopped(context)
        require_own_directories(evidence)
        stale = [
            version_path(directory.path)
            for directory in evidence.directories
            if directory.cookie is None or cookie.differences(directory.cookie)
        ]
    rows = difference_rows(_readable(node.data), cookie)
    plan = _update_plan(session, cookie, data, node, rows, stale)
    if own is not None and not rows and not stale:
        plan = plan.emptied(f"the cookies of bookie {cookie.bookie_id} match its settings: nothing to do")
    return plan, _StoredCookies(node, rows, evidence)


async def _update(new: _NewCookie, change: Change, found: _StoredCookies) -> int:
    cookies, bookie_id, node = new.session.cookies, new.cookie.bookie_id, found.node
    change.require_lock()
    if new.own is None or found.evidence is None:
        change.trash.keep("set", cookies.path(bookie_id), node)
    else:
        stamped = [version_path(each.path) for each in found.evidence.directories if each.is_stamped]
        kept = [(path, Node(new.own.file_system.read_file(path), node.stat)) for path in stamped]
        change.trash.keep_all("set", [(cookies.path(bookie_id), node), *kept])
        # Directories first: after an interruption between the two, the stored cookie still shows the owner.
        restamp(new.own.file_system, found.evidence)
    return await cookies.write_node(bookie_id, new.data, node.stat.version)


def _readable(data: bytes) -> Cookie | None:
    try:
        return decode_cookie(data)
    except MetadataFormatError:
        return None


def _update_plan(
    session: Session,
    cookie: Cookie,
    data: bytes,
    node: Node,
    rows: FieldRows,
    version_paths: Sequence[str] = (),
) -> Plan:
    digest = hashlib.sha256(data).hexdigest()
    files = [{"action": "write", "path": path, "expected_version": None, "sha256": digest} for path in version_paths]
    path = session.cookies.path(cookie.bookie_id)
    return session.plan(
        subject=cookie.bookie_id,
        summary=(*difference_sentences(rows), *(() if rows else ("will not change the fields of the stored cookie",))),
        items=(
            *files,
            {"action": "set", "path": path, "expected_version": node.stat.version, "sha256": digest, "fields": rows},
        ),
    )
