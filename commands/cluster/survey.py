"""Shared by backup, format, nuke and restore: reading the whole tree, and saving it before a change."""

from __future__ import annotations

import contextlib
import datetime
import os
import urllib.parse
from typing import Annotated, Any, NamedTuple

import typer

from bkctl.commands.command import command
from bkctl.commands.context import CommandContext
from bkctl.commands.rendering import Column, Table
from bkctl.commands.safety.plan import Plan, time_at_limit
from bkctl.commands.safety.state_directory import state_directory
from bkctl.commands.session import Session, open_session
from bkctl.runtime.errors import ConflictError, MetadataFormatError, RefusedError
from bkctl.runtime.metadata import read_groups, write_groups
from bkctl.runtime.metadata.backup import cluster_format
from bkctl.runtime.metadata.backup.archive import FORMAT_WITH_LOGS, ArchiveEnd, ArchiveHeader, ArchiveReader
from bkctl.runtime.metadata.backup.backup import (
    ClusterSurvey,
    backup_cluster,
    read_maintenance,
    survey_cluster,
    survey_logs,
    survey_notes,
)
from bkctl.runtime.metadata.backup.restore import read_archive
from bkctl.runtime.metadata.cluster.root import (
    is_restore_unfinished,
    read_instance_id,
    require_cluster,
    unfinished_restore_text,
)
from bkctl.runtime.metadata.ledger_logs.nodes import LogNodes
from bkctl.runtime.metadata.ledgers.layout import LedgerTree, choose_tree, read_layout
from bkctl.runtime.net.loop import LoopClock
from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.words import counted, size

TREE_TABLE = Table(
    "Changes",
    Column("action", "ACTION"),
    Column("path", "PATH"),
    Column("nodes", "NODES", is_right=True),
    Column("ledgers", "LEDGERS", is_right=True),
)
_DIRECTORY = "backups"
_SUFFIX = ".jsonl.gz"
_TIME_FORMAT = "%Y%m%dT%H%M%S%fZ"


async def find_tree(context: CommandContext, session: Session) -> LedgerTree:
    """Layout of an existing cluster: the recorded one, else that of the URI or the settings.

    ClusterNotFoundError; ConfigurationError when the two differ. An unreadable LAYOUT counts as missing if the URI
    has a layout, so that such a cluster can be saved and deleted.
    """
    config = context.settings.zookeeper.layout
    await require_cluster(session.store, session.root)
    try:
        recorded = await read_layout(
            session.store, session.root, is_shaded_factory_allowed=config.is_shaded_factory_allowed
        )
    except MetadataFormatError:
        if session.uri.tree is None:
            raise
        recorded = None
    return choose_tree(recorded, session.uri.tree, config)


class Examined(NamedTuple):
    """The metadata of a cluster without connections. ``notes``: the plan item that deletes autorecovery's notes."""

    tree: LedgerTree
    header: ArchiveHeader
    survey: ClusterSurvey
    notes: tuple[dict[str, Any], ...]

    @property
    def size(self) -> str:
        """For sentences."""
        return f"{counted(self.survey.ledgers, 'ledger')}, {counted(self.survey.nodes, 'node')}"


async def examine_before_deletion(context: CommandContext, session: Session, *, is_root_deleted: bool) -> Examined:
    """What will be deleted, and the first line of its backup; RefusedError, ConflictError, ClusterNotFoundError.

    ``is_root_deleted``: refused if a node below the root is not BookKeeper's.
    """
    store, root = session.store, session.root
    tree = await find_tree(context, session)
    await cluster_format.require_no_connections(store, root)
    if is_root_deleted and (unknown := await cluster_format.find_unknown_children(store, root, tree)):
        raise cluster_format.unknown_children_error(root, unknown)
    header = await new_header(session, tree)
    survey = await _survey_before_deletion(context, session, tree)
    notes = await _notes_items(session)
    await cluster_format.require_no_connections(store, root)
    return Examined(tree, header, survey, notes)


async def _survey_before_deletion(context: CommandContext, session: Session, tree: LedgerTree) -> ClusterSurvey:
    """Read the whole tree and count its nodes. RefusedError for a ledger of a newer release: no restore creates it."""
    with context.console.progress("reading the metadata") as progress:
        survey = await survey_cluster(session.store, session.root, tree, on_progress=progress.update)
    if survey.newer_count:
        raise RefusedError(
            f"nothing was changed: a newer release wrote {counted(survey.newer_count, 'ledger')} of {session.root}, "
            "and this one cannot restore what it would delete: use a bkctl release that reads the format"
        )
    return survey


async def save(
    context: CommandContext, session: Session, header: ArchiveHeader, tree: LedgerTree, path: str
) -> tuple[ClusterSurvey, ArchiveEnd]:
    """Write an archive of the whole tree."""
    with context.console.progress("saving the metadata") as progress:
        file_system = OsFileSystem()
        return await backup_cluster(session.store, header, tree, file_system, path, on_progress=progress.update)


async def save_before(
    context: CommandContext,
    session: Session,
    header: ArchiveHeader,
    tree: LedgerTree,
    planned: ClusterSurvey | None,
) -> str:
    """Save all metadata in the state directory before a change, read it back, and return its path.

    RefusedError when that fails; ConflictError when the tree is not the one the plan was made from.
    """
    time = datetime.datetime.now(datetime.UTC).strftime(_TIME_FORMAT)
    path = os.path.join(state_directory(context.settings, _DIRECTORY), f"{_name_of(header.root)}-{time}{_SUFFIX}")
    try:
        survey, _ = await save(context, session, header, tree, path)
        if planned is not None and survey != planned:
            with contextlib.suppress(OSError):
                os.unlink(path)
            raise ConflictError(
                "nothing was changed: the metadata has changed since the plan was made: run the command again"
            )
        with ArchiveReader(OsFileSystem(), path) as reader:
            await read_archive(reader, LoopClock())
    except OSError as error:
        raise RefusedError(f"nothing was changed: the backup cannot be written to {path}: {error.strerror}") from error
    context.console.say(f"saved the metadata in {path}")
    return path


def backups_of(state_directory: str, root: str) -> list[str]:
    """Paths of the backups of a root that commands made, the oldest first."""
    directory, start = os.path.join(state_directory, _DIRECTORY), f"{_name_of(root)}-"
    try:
        names = os.listdir(directory)
    except OSError:
        return []
    paths = [os.path.join(directory, name) for name in sorted(names) if name.startswith(start)]
    return [path for path in paths if backup_time(path)]


def backup_time(path: str) -> str:
    """When a command began to make a backup, in the form of the audit trail; empty for a file of another name."""
    text = os.path.basename(path).removesuffix(_SUFFIX).rpartition("-")[2]
    try:
        moment = datetime.datetime.strptime(text, _TIME_FORMAT).replace(tzinfo=datetime.UTC)
    except ValueError:
        return ""
    return moment.isoformat(timespec="milliseconds")


def _name_of(root: str) -> str:
    return urllib.parse.quote(root.removeprefix("/"), safe="")


def time_on_store(context: CommandContext, *, reads: int = 0, writes: int) -> tuple[str, ...]:
    """How long so many operations take at least, for the summary of a plan: if all share requests with others."""
    rate = context.settings.zookeeper.scan_operations_per_s_max
    cost = reads * read_groups.COST_OF_COMPANY + writes * write_groups.COST_OF_COMPANY
    return time_at_limit(cost / rate, f"{rate:,.0f} ZooKeeper operations/s (--zk-rate)") if rate else ()


def deletion_plan(context: CommandContext, found: Examined, actions: dict[str, str], *summary: str) -> Plan:
    """An item for each child of the root; ``actions`` by name or by kind, otherwise the child is kept.

    ``summary``: first what it does.
    """
    root, (first, *others) = found.header.root, summary
    times = time_on_store(context, reads=found.survey.nodes, writes=found.survey.nodes)  # each is saved, then deleted
    items = tuple(
        {
            "action": actions.get(child.name) or actions.get(child.kind.value) or "keep",
            "path": f"{root}/{child.name}",
            "nodes": child.nodes,
            "ledgers": child.ledgers,
            "digest": child.digest,
        }
        for child in found.survey.children
    )
    return Plan(
        root=root,
        instance_id=found.header.instance_id,
        subject=found.header.instance_id or root,
        summary=(first, *times, *others),
        items=items + found.notes,
        arguments={"layout": found.tree.value},
    )


async def _notes_items(session: Session) -> tuple[dict[str, Any], ...]:
    found = [await survey(session.store, session.root) for survey in (survey_notes, survey_logs)]
    return tuple(
        {"action": "delete", "path": each.name, "nodes": each.nodes, "ledgers": 0, "digest": each.digest}
        for each in found
        if each is not None
    )


async def new_header(session: Session, tree: LedgerTree) -> ArchiveHeader:
    """First line of an archive created now."""
    instance_id = await read_instance_id(session.store, session.root)
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    return ArchiveHeader(
        root=session.root,
        instance_id=instance_id,
        layout=tree.value,
        created=now.replace("+00:00", "Z"),
        maintenance=await read_maintenance(session.store, session.root),
        format=FORMAT_WITH_LOGS if await LogNodes(session.store, session.root).names() else 1,
    )


def file_size(path: str) -> int:
    """Bytes; OSError."""
    return os.path.getsize(path)


@command("backup", example="cluster backup backup.jsonl.gz", has_tables=False)
async def backup(
    context: CommandContext,
    file: Annotated[str, typer.Argument(metavar="FILE", help="A new file, usually named *.jsonl.gz")],
) -> None:
    """Save ledger metadata, cookies, layout and instance id in one file.

    Safe on a live cluster. Each ledger is consistent by itself; the backup as a whole is not a point-in-time snapshot.
    The file contains ledger passwords in plain text; only its owner can read it.
    """
    async with open_session(context, must_exist=False, warns_of_restore=False) as session:
        if await is_restore_unfinished(session.store, session.root):
            raise RefusedError(f"nothing was saved: {unfinished_restore_text(session.root)}")
        tree = await find_tree(context, session)
        header = await new_header(session, tree)
        survey, end = await save(context, session, header, tree, file)
        for fault in survey.faults:
            context.console.warn(f"saved, but restore will skip it: {fault}")
        body = {
            "file": file,
            "root": header.root,
            "instance_id": header.instance_id,
            "layout": header.layout,
            "nodes": end.nodes,
            "ledgers": end.ledgers,
            "faults": survey.faults_count,
            "sha256": end.sha256,
            "bytes": file_size(file),
        }
        context.console.record("ClusterBackupReport", body, name="file", show={"bytes": size})
