"""``bkctl cookie update``: replace a stored cookie, or update cookies after directories were moved."""

from __future__ import annotations

import hashlib
from typing import Annotated

import msgspec
import typer

from bkctl.commands.command import command
from bkctl.commands.context import BookieFlags, CommandContext, load_config
from bkctl.commands.cookie.access import (
    DIFFERENCE_TABLE,
    FromConfigOption,
    SubjectArgument,
    difference_rows,
    difference_sentences,
    named_file,
    read_cookie_file,
    read_cookie_node,
    require_fitting,
    require_not_registered,
    require_unnamed,
    scan_references,
)
from bkctl.commands.cookie.own_directories import OwnBookie, open_own_bookie
from bkctl.commands.effect import Effect
from bkctl.commands.safety.gate import nothing_to_change, open_change
from bkctl.commands.safety.plan import Plan
from bkctl.commands.session import Session, open_session
from bkctl.commands.shared_options import takes_bookie_options
from bkctl.runtime.bookie.cookies.directories import version_path
from bkctl.runtime.bookie.cookies.evidence import Evidence
from bkctl.runtime.bookie.cookies.repair import require_own_directories, restamp
from bkctl.runtime.errors import BadVersionError, MetadataFormatError
from bkctl.runtime.metadata.bookies.cookies import Cookie, decode_cookie, encode_cookie
from bkctl.runtime.metadata.store import Node


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
    file: Annotated[str | None, typer.Option("--file", metavar="FILE", help="The new cookie")] = None,
    from_config: FromConfigOption = False,
) -> None:
    """Replace the stored cookie of a stopped bookie; the old one is kept in the trash.

    --file is rejected while ledgers reference the bookie. --from-config, on the bookie's machine, updates the stored
    cookie and the VERSION files to the settings: after directories were renamed, a VERSION file was damaged, or for
    index directories that a cookie of layout 4 could not record. Every directory must belong to this bookie, in the
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
    data = read_cookie_file(file)
    cookie = require_fitting(session, bookie_id, data, file)
    node = await read_cookie_node(session, bookie_id)
    await require_not_registered(session, bookie_id)
    references = await scan_references(context, session, [bookie_id])
    advice = "use bkctl cookie update --from-config on its machine, which verifies its directories"
    require_unnamed(references, bookie_id, advice)
    rows = difference_rows(_readable(node.data), cookie)
    plan = _plan(session, cookie, data, node, rows)
    async with open_change(context, plan, session.store) as change:
        await require_not_registered(session, bookie_id)
        change.require_lock()
        change.trash.keep("set", session.cookies.path(bookie_id), node)
        version = await session.cookies.write_node(bookie_id, data, node.stat.version)
    _report(context, bookie_id, version, rows)


async def _update_from_config(context: CommandContext, own: OwnBookie) -> None:
    session, bookie_id = own.session, own.expected.bookie_id
    node = await read_cookie_node(session, bookie_id)
    await require_not_registered(session, bookie_id)
    references = await scan_references(context, session, [bookie_id])
    evidence = await _prove(own, references.counts_at_most)
    data, rows = encode_cookie(own.expected), difference_rows(_readable(node.data), own.expected)
    stale = [
        directory
        for directory in evidence.directories
        if directory.cookie is None or own.expected.differences(directory.cookie)
    ]
    if not rows and not stale:
        sentence = f"the cookies of bookie {bookie_id} match its settings: nothing to do"
        plan = msgspec.structs.replace(_plan(session, own.expected, data, node, rows), summary=(sentence,), items=())
        nothing_to_change(context, plan)
        _report(context, bookie_id, node.stat.version, rows)
        return
    plan = _plan(session, own.expected, data, node, rows, [version_path(directory.path) for directory in stale])
    async with open_change(context, plan, session.store) as change:
        with own.locked():
            evidence = await _prove(own, references.counts_at_most)
            await require_not_registered(session, bookie_id)
            if (await read_cookie_node(session, bookie_id)).stat.version != node.stat.version:
                raise BadVersionError(
                    f"the cookie of bookie {bookie_id} was changed during this command: run it again",
                    session.cookies.path(bookie_id),
                )
            change.require_lock()
            before = [
                (version_path(directory.path), directory) for directory in evidence.directories if directory.is_stamped
            ]
            kept = [(path, Node(own.file_system.read_file(path), node.stat)) for path, _ in before]
            change.trash.keep_all("set", [(session.cookies.path(bookie_id), node), *kept])
            # Directories first: after an interruption between the two, the stored cookie still shows the owner.
            restamp(own.file_system, evidence)
            version = await session.cookies.write_node(bookie_id, data, node.stat.version)
    _report(context, bookie_id, version, rows)


async def _prove(own: OwnBookie, naming: dict[str, int]) -> Evidence:
    evidence, _ = await own.gather()
    evidence = msgspec.structs.replace(evidence, ledgers_naming=naming)
    require_own_directories(evidence)
    return evidence


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
    rows: list[dict[str, object]],
    version_paths: list[str] | None = None,
) -> Plan:
    digest = hashlib.sha256(data).hexdigest()
    files = [
        {"action": "write", "path": path, "expected_version": None, "sha256": digest} for path in version_paths or ()
    ]
    path = session.cookies.path(cookie.bookie_id)
    return session.plan(
        subject=cookie.bookie_id,
        summary=(*difference_sentences(rows), *(() if rows else ("will not change the fields of the stored cookie",))),
        items=(
            *files,
            {"action": "set", "path": path, "expected_version": node.stat.version, "sha256": digest, "fields": rows},
        ),
    )


def _report(context: CommandContext, bookie_id: str, version: int, rows: list[dict[str, object]]) -> None:
    body = {"bookie_id": bookie_id, "version": version, "fields_changed": len(rows)}
    context.console.record("CookieUpdated", body, name="bookie_id", details={"fields": rows})
    context.console.table(DIFFERENCE_TABLE, rows)
