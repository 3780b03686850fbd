"""``bkctl bookie format``: delete the data of a stopped bookie, and its cookie."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, NamedTuple

import msgspec
import typer

from bkctl.commands.command import command
from bkctl.commands.context import BookieFlags, CommandContext, Effect, id_by_settings, load_config
from bkctl.commands.cookie.access import require_not_registered, scan_references
from bkctl.commands.errors import InvalidArgumentError
from bkctl.commands.rendering import Column, Table
from bkctl.commands.safety.gate import Change
from bkctl.commands.safety.operation import make_change
from bkctl.commands.safety.plan import Plan, PlanFinding
from bkctl.commands.session import Session, open_session, require_metadata_uri
from bkctl.commands.shared_options import takes_bookie_options
from bkctl.commands.storage.java_bookie import require_stopped
from bkctl.commands.storage.own_storage import FIX, DirectoryLocks, OwnStorage, require_agreeing_directories
from bkctl.commands.storage.working import work_beside_loop
from bkctl.runtime.bookie.cookies.directories import named_directories, read_directory, spelled_as
from bkctl.runtime.client.sanity import CUSTOM_METADATA
from bkctl.runtime.errors import LedgerNotFoundError, MetadataFormatError, RefusedError
from bkctl.runtime.metadata.store import Node, find_node
from bkctl.storage.adapters.child_pool import ChildProcesses
from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.config import StorageConfig
from bkctl.storage.filenames import LOCK, current_directory
from bkctl.storage.offline.format_directories import begin_format, delete_data, end_format
from bkctl.storage.severity import Severity
from bkctl.storage.words import counted, size

_PLAN_TABLE = Table(
    "Changes",
    Column("action", "ACTION"),
    Column("path", "PATH"),
    Column("files", "FILES", is_right=True),
    Column("bytes", "SIZE", size, is_right=True),
)


class _Contents(NamedTuple):
    path: str
    files: int
    bytes: int


class _Target(NamedTuple):
    session: Session
    own: OwnStorage
    bookie_id: str
    contents: Sequence[_Contents]
    stored: Node | None
    is_cookie_deleted: bool

    @property
    def directories(self) -> list[str]:
        return self.own.config.all_directories

    @property
    def node(self) -> Node | None:
        """The stored cookie, if it is to be deleted too."""
        return self.stored if self.is_cookie_deleted else None


@command(
    "format",
    example="bookie format --delete-cookie --conf conf/bk_server.conf --dry-run",
    effect=Effect.DESTROYS,
    is_configured_by_files=True,
)
@takes_bookie_options
async def format_bookie(
    context: CommandContext,
    flags: BookieFlags,
    delete_cookie: Annotated[
        bool, typer.Option("--delete-cookie", help="Delete the stored cookie too, so that a new bookie can start")
    ] = False,
    accept_loss: Annotated[
        str | None,
        typer.Option("--accept-loss", metavar="ID", help="This bookie, even if ledgers (may) reference it"),
    ] = None,
) -> None:
    """Delete all data of a stopped bookie, also of a Java bookie.

    Everything below current is deleted. Refused while a bookie runs on them or is registered with this ID, if a
    directory is missing or another bookie's, or if the VERSION files list other directories. Refused too while
    ledgers reference the bookie, or if this cannot be checked, because metadata cannot be read or a directory with
    data has no VERSION file of this cluster: use bkctl decommission first, or --accept-loss. The cookie is kept in
    the trash. If interrupted, no bookie starts there; run the same command again. Type the ID, or use --confirm.
    """
    config = load_config(context, flags)
    config = msgspec.structs.replace(config, metadata_uri=config.metadata_uri or require_metadata_uri(context))
    bookie_id = id_by_settings(config)
    if accept_loss not in {None, bookie_id}:
        raise InvalidArgumentError(f"--accept-loss {accept_loss}: the directories are those of bookie {bookie_id}")
    async with open_session(context, metadata_uri=config.metadata_uri) as session:
        own = _own_storage(session, config.storage)
        async with _locked(own):

            async def examine() -> tuple[Plan, _Target]:
                await require_not_registered(session, bookie_id)
                unproven = await _doubts(context, session, own, bookie_id)
                if unproven and accept_loss is None:
                    raise RefusedError(
                        f"nothing was changed: {unproven[0]}: use bkctl decommission {bookie_id}, or "
                        f"--accept-loss {bookie_id} if the entries may be lost"
                    )
                await require_not_registered(session, bookie_id)
                node = await find_node(session.store, session.cookies.path(bookie_id))
                contents = _survey(own.config.all_directories)
                target = _Target(session, own, bookie_id, contents, node, is_cookie_deleted=delete_cookie)
                return _plan(target, unproven, is_loss_accepted=accept_loss is not None), target

            target, _ = await make_change(
                context,
                examine,
                lambda change, target: _format(context, change, target),
                session.store,
                bookie_ids=(bookie_id,),
                table=_PLAN_TABLE,
            )
    _report(context, target)


def _own_storage(session: Session, config: StorageConfig) -> OwnStorage:
    file_system = OsFileSystem()
    for directory in config.all_directories:
        if not file_system.exists(directory):
            raise RefusedError(
                f"nothing was changed: {directory} is missing: mount its disk, or create the directory if it has none"
            )
    return OwnStorage(config, file_system, ChildProcesses(), session.root, DirectoryLocks(file_system, config))


@asynccontextmanager
async def _locked(own: OwnStorage) -> AsyncIterator[None]:
    """DirectoryLockedError while a bookie of bkctl or Java runs on the directories."""
    try:
        own.locks.hold()
        require_stopped(own)
        yield
    finally:
        own.locks.release()


async def _doubts(context: CommandContext, session: Session, own: OwnStorage, bookie_id: str) -> list[str]:
    """Why the data may still be needed, as sentences; empty: no ledger needs it.

    RefusedError if the directories are not those of this bookie.
    """
    references = await scan_references(context, session, [bookie_id])
    found = []
    count = references.counts[bookie_id]
    if count:
        first = references.first_ledger_ids[bookie_id]
        some = ", ".join(map(str, first)) + (", ..." if count > len(first) else "")
        noun = counted(count, "ledger references", "ledgers reference")
        hint = ""
        if count == len(first) and await _are_test_ledgers(session, first):
            hint = ", left by bkctl bookie sanity: delete with bkctl ledger delete"
        found.append(f"{noun} bookie {bookie_id} ({some}{hint})")
    if references.unreadable_count:
        noun = counted(references.unreadable_count, "ledger")
        found.append(
            f"the metadata of {noun} cannot be read and may reference bookie {bookie_id} "
            f"({references.unreadable_advice})"
        )
    return found + _doubts_about_directories(own, bookie_id, session.instance_id)


async def _are_test_ledgers(session: Session, ledger_ids: Sequence[int]) -> bool:
    """Whether ``bookie sanity`` wrote these ledgers; it leaves one when it is killed."""
    ledgers = await session.ledgers()
    try:
        found = [(await ledgers.read(ledger_id)).value for ledger_id in ledger_ids]
    except (LedgerNotFoundError, MetadataFormatError):
        return False
    return all(each.custom_metadata == CUSTOM_METADATA for each in found)


def _doubts_about_directories(own: OwnStorage, bookie_id: str, instance_id: str | None) -> list[str]:
    require_agreeing_directories(own)
    found = []
    for directory in own.config.all_directories:
        state = read_directory(own.file_system, directory)
        if state.trouble is not None and not state.is_formatting:
            raise RefusedError(f"nothing was changed: cannot use {directory}: {state.trouble}")
        cookie = spelled_as(own.config, state.cookie or state.formatted)
        if cookie is None:
            if state.has_files or state.is_stamped or state.is_formatting:
                found.append(f"{directory} has no readable VERSION file, so its data may be that of another bookie")
            continue
        if cookie.bookie_id != bookie_id:
            raise RefusedError(
                f"nothing was changed: {directory} belongs to bookie {cookie.bookie_id}, not to {bookie_id}: use the "
                f"settings of that bookie, or --bookie-id {cookie.bookie_id}"
            )
        if named_directories(cookie) != named_directories(own.config):
            raise RefusedError(f"nothing was changed: {directory} was one of other directories: {FIX}")
        if (cookie.instance_id or None) != (instance_id or None):
            found.append(
                f"{directory} belongs to cluster instance {cookie.instance_id}, so ledgers of another cluster than "
                f"this one ({instance_id}) may reference its data"
            )
    return found


def _survey(directories: Sequence[str]) -> list[_Contents]:
    """Contents of the directories ``current`` that exist, without the lock. Links are counted, not followed."""
    found = []
    for current in map(current_directory, directories):
        if os.path.lexists(current):
            names = [os.path.join(directory, name) for directory, _, names in os.walk(current) for name in names]
            files = [path for path in names if path != os.path.join(current, LOCK)]
            found.append(_Contents(current, len(files), sum(os.lstat(path).st_size for path in files)))
    return found


def _plan(target: _Target, doubts: Sequence[str], *, is_loss_accepted: bool) -> Plan:
    bookie_id = target.bookie_id
    items: list[dict[str, object]] = [
        {"action": "delete", "path": each.path, "expected_version": None, "files": each.files, "bytes": each.bytes}
        for each in target.contents
    ]
    if target.node is not None:
        path = target.session.cookies.path(bookie_id)
        items.append({"action": "delete", "path": path, "expected_version": target.node.stat.version})
    total = sum(each.files for each in target.contents)
    total_bytes = sum(each.bytes for each in target.contents)
    sentences = [f"the directories of bookie {bookie_id} have no data"]
    if target.contents:
        paths = ", ".join(each.path for each in target.contents)
        sentences = [f"will delete {counted(total, 'file')} ({size(total_bytes)}) of bookie {bookie_id} in {paths}"]
    if target.node is not None:
        sentences.append(f"will delete the cookie of bookie {bookie_id}")
    if not items:
        sentences[0] += ": nothing to do"
    return target.session.plan(
        subject=bookie_id,
        summary=sentences,
        findings=[PlanFinding(Severity.CRITICAL, f"data may be lost permanently: {each}") for each in doubts],
        items=items,
        arguments={
            "delete_cookie": target.is_cookie_deleted,
            "accept_loss": is_loss_accepted,
            "may_lose_data": bool(doubts),  # not how much: autorecovery makes it less all the time
        },
    )


async def _format(context: CommandContext, change: Change, target: _Target) -> None:
    session, own, directories = target.session, target.own, target.directories
    own.locks.claim()
    require_stopped(own)
    change.require_lock()
    begin_format(own.file_system, directories)
    total = sum(each.files for each in target.contents)
    with context.console.progress("deleting") as progress:

        def delete(require_wanted: Callable[[], None]) -> None:
            done = 0

            def note() -> None:
                nonlocal done
                done += 1
                require_wanted()
                progress.update(min(done, total), total)

            delete_data(own.file_system, directories, note)

        await work_beside_loop(delete)
    if target.node is not None:
        change.require_lock()
        change.trash.keep("delete", session.cookies.path(target.bookie_id), target.node)
        await session.cookies.delete(target.bookie_id, target.node.stat)
    end_format(own.file_system, directories)


def _report(context: CommandContext, target: _Target) -> None:
    body = {
        "bookie_id": target.bookie_id,
        "files_deleted": sum(each.files for each in target.contents),
        "bytes_deleted": sum(each.bytes for each in target.contents),
        "cookie_deleted": target.node is not None,
    }
    context.console.record("BookieFormatted", body, name="bookie_id", show={"bytes_deleted": size})
    if target.stored is not None and not target.is_cookie_deleted:
        context.console.say(
            f"the cookie of bookie {target.bookie_id} was kept: it starts as a new bookie only after "
            f"bkctl cookie delete {target.bookie_id}"
        )
