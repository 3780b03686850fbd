"""``bkctl cookie update``: replace a stored cookie, or update cookies after directories were moved."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import typer

from bkctl.commands.command import command
from bkctl.commands.context import BookieFlags, CommandContext, Effect, load_config
from bkctl.commands.cookie.access import (
    DIFFERENCE_TABLE,
    FieldRows,
    FromConfigOption,
    OwnBookie,
    SubjectArgument,
    difference_rows,
    difference_sentences,
    named_file,
    open_own_bookie,
    read_cookie_node,
    require_fitting,
    require_unused,
)
from bkctl.commands.parse import read_named_file
from bkctl.commands.safety.gate import Change, make_change
from bkctl.commands.safety.plan import Plan
from bkctl.commands.session import Session, open_session
from bkctl.commands.shared_options import takes_bookie_options
from bkctl.runtime.bookie.cookies.directories import version_path
from bkctl.runtime.bookie.cookies.evidence import Evidence
from bkctl.runtime.bookie.cookies.repair import require_own_directories, restamp
from bkctl.runtime.errors import MetadataFormatError
from bkctl.runtime.metadata.bookies.cookies import Cookie, decode_cookie, encode_cookie
from bkctl.runtime.metadata.store import Node


class _OwnCookies(NamedTuple):
    """The stored cookie, those of the directories, and the differences from the settings."""

    node: Node
    evidence: Evidence
    rows: FieldRows


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
    source = named_file(bookie, file, from_config=from_config)
    if source is not None:
        async with open_session(context) as session:
            await _update_from_file(context, session, *source)
        return
    config = load_config(context, flags, bookie)
    async with open_own_bookie(context, config) as own:
        await _update_from_config(context, own)


async def _update_from_file(context: CommandContext, session: Session, bookie_id: str, file: str) -> None:
    data = read_named_file(file, "the cookie")
    cookie = require_fitting(session, bookie_id, data, file)

    async def examine() -> tuple[Plan, tuple[Node, FieldRows]]:
        node = await read_cookie_node(session, bookie_id)
        advice = "use bkctl cookie update --from-config on its machine, which verifies its directories"
        await require_unused(context, session, bookie_id, advice)
        rows = difference_rows(_readable(node.data), cookie)
        return _plan(session, cookie, data, node, rows), (node, rows)

    async def apply(change: Change, found: tuple[Node, FieldRows]) -> int:
        node, _ = found
        change.require_lock()
        change.trash.keep("set", session.cookies.path(bookie_id), node)
        return await session.cookies.write_node(bookie_id, data, node.stat.version)

    (_, rows), version = await make_change(context, examine, apply, session.store)
    _report(context, bookie_id, version, rows)


async def _update_from_config(context: CommandContext, own: OwnBookie) -> None:
    session, bookie_id, data = own.session, own.expected.bookie_id, encode_cookie(own.expected)

    async def examine() -> tuple[Plan, _OwnCookies]:
        node = await read_cookie_node(session, bookie_id)
        evidence = await own.gather_stopped(context)
        require_own_directories(evidence)
        rows = difference_rows(_readable(node.data), own.expected)
        stale = [
            version_path(directory.path)
            for directory in evidence.directories
            if directory.cookie is None or own.expected.differences(directory.cookie)
        ]
        plan = _plan(session, own.expected, data, node, rows, stale)
        if not rows and not stale:
            sentence = f"the cookies of bookie {bookie_id} match its settings: nothing to do"
            plan = plan.emptied(sentence)
        return plan, _OwnCookies(node, evidence, rows)

    async def apply(change: Change, found: _OwnCookies) -> int:
        node, evidence, _ = found
        change.require_lock()
        stamped = [version_path(directory.path) for directory in evidence.directories if directory.is_stamped]
        kept = [(path, Node(own.file_system.read_file(path), node.stat)) for path in stamped]
        change.trash.keep_all("set", [(session.cookies.path(bookie_id), node), *kept])
        # Directories first: after an interruption between the two, the stored cookie still shows the owner.
        restamp(own.file_system, evidence)
        return await session.cookies.write_node(bookie_id, data, node.stat.version)

    found, version = await make_change(context, examine, apply, session.store, turn=own.locked)
    _report(context, bookie_id, found.node.stat.version if version is None else version, found.rows)


def _readable(data: bytes) -> Cookie | None:
    try:
        return decode_cookie(data)
    except MetadataFormatError:
        return None


def _plan(
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


def _report(context: CommandContext, bookie_id: str, version: int | None, rows: FieldRows) -> None:
    body = {"bookie_id": bookie_id, "version": version, "fields_changed": len(rows)}
    context.console.record("CookieUpdated", body, name="bookie_id", details={"fields": rows})
    context.console.table(DIFFERENCE_TABLE, rows)
