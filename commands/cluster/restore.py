"""``bkctl cluster restore``: restore a cluster's metadata from a backup."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

import typer

from bkctl.commands.cluster.survey import find_tree, new_header, save_before, time_on_store
from bkctl.commands.command import command
from bkctl.commands.context import CommandContext, Effect
from bkctl.commands.errors import Outcome
from bkctl.commands.outages import continuing_command
from bkctl.commands.rendering import Column, Table
from bkctl.commands.safety.gate import Change, open_change
from bkctl.commands.safety.plan import Plan
from bkctl.commands.session import Session, open_session
from bkctl.runtime.errors import ConflictError, RefusedError
from bkctl.runtime.metadata.backup.archive import ArchiveReader
from bkctl.runtime.metadata.backup.cluster_format import require_no_connections
from bkctl.runtime.metadata.backup.restore import (
    ArchiveSummary,
    ClusterRestore,
    Fate,
    NewIds,
    NodeFate,
    RestoreTarget,
    read_archive,
    read_restore_target,
)
from bkctl.runtime.metadata.ledgers.layout import LedgerLayout, choose_tree
from bkctl.runtime.net.loop import LoopClock
from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.words import SHOWN_MAX, counted, listed

CONFLICT_TABLE = Table("Conflicts", Column("path", "NODE"), Column("reason", "REASON"))
_CONFLICTS_KEPT_MAX = 1000
_PROGRESS_EVERY_NODES = 64


@command("restore", example="cluster restore backup.jsonl.gz --dry-run", effect=Effect.DESTROYS)
async def restore(
    context: CommandContext,
    file: Annotated[str, typer.Argument(metavar="FILE", help="A file from bkctl cluster backup")],
    skip_invalid: Annotated[
        bool, typer.Option("--skip-invalid", help="Skip ledgers of the backup with damaged metadata")
    ] = False,
) -> Outcome:
    """Restore a backup: create the cluster at an absent root, or add what is missing in the same cluster.

    All bookies must be stopped. The whole file is checked before anything is written; invalid ledgers (damaged
    metadata, the ID 2^63-1) end the command, unless --skip-invalid leaves them out. Other invalid nodes are never
    restored; the plan lists them. Existing ledgers are never overwritten: if they differ from the backup, the
    cluster's version is kept and reported. Safe to interrupt and to run again, with the same file. Type the
    instance id of the backup, or use --confirm.
    """
    with ArchiveReader(OsFileSystem(), file) as reader:
        with context.console.progress("checking the backup") as progress:
            archive = await read_archive(reader, LoopClock(), progress.update)
        if archive.faults_count and not skip_invalid:
            raise RefusedError(
                f"nothing was changed: {counted(archive.faults_count, 'ledger')} of {file} cannot be restored "
                f"({archive.faults[0]}); use --skip-invalid to skip them"
            )
        async with open_session(context, must_exist=False, warns_of_restore=False) as session:
            return await _plan_and_run(context, session, reader, archive)


async def _target(context: CommandContext, session: Session, archive: ArchiveSummary) -> RestoreTarget:
    """Where the archive goes; RefusedError, ConflictError."""
    choose_tree(LedgerLayout(archive.tree), session.uri.tree)
    await require_no_connections(session.store, session.root)
    target = await read_restore_target(session.store, session.root, archive)
    if not target.is_fresh and await find_tree(context, session) is not archive.tree:
        raise ConflictError(f"nothing was changed: the cluster's layout is not {archive.tree.value}")
    return target


async def _plan_and_run(
    context: CommandContext, session: Session, reader: ArchiveReader, archive: ArchiveSummary
) -> Outcome:
    target = await _target(context, session, archive)
    preview = ClusterRestore(session.store, archive, target, before_each=lambda: None, keep=lambda _path, _node: None)
    expected = await _count(context, _RestoreCounts(), "comparing", archive, preview.preview(reader))
    header = archive.header
    plan = Plan(
        root=target.root,
        instance_id=header.instance_id,
        subject=header.instance_id or target.root,
        summary=_summary(context, archive, target, expected, await preview.preview_new_ids()),
        items=({"action": "restore", "path": target.root, "is_root_new": target.is_fresh, **expected.counts()},),
        arguments={"sha256": archive.sha256},
    )
    async with open_change(context, plan, session.store) as change:
        if await _target(context, session, archive) != target:
            raise ConflictError(
                "nothing was changed: the cluster has changed since the plan was made: run the command again"
            )
        return await _run(context, session, reader, archive, target, change)


async def _run(
    context: CommandContext,
    session: Session,
    reader: ArchiveReader,
    archive: ArchiveSummary,
    target: RestoreTarget,
    change: Change,
) -> Outcome:
    if not target.is_fresh:
        current = await new_header(session, archive.tree)
        change.details["backup"] = await save_before(context, session, current, archive.tree, None)

    def keep(path: str, node: Any) -> None:
        change.trash.keep("set", path, node)

    operation = ClusterRestore(session.store, archive, target, before_each=change.require_lock, keep=keep)
    tally = _RestoreCounts()
    try:
        await _count(context, tally, "restoring", archive, operation.run(reader))
        new_ids = await operation.finish()
    except BaseException:
        _say_state(context, archive, target, tally)
        raise
    change.details |= tally.counts()
    is_settled = not new_ids.is_counted_anew or new_ids.first_id is not None
    if not is_settled:
        context.console.warn(
            f"the counter of new ledger ids is still far below the highest restored id, {archive.ids.short_id_max}: "
            "new ledgers may get ids that were in use before"
        )
    is_partial = bool(tally.conflicts_count or tally.invalid_count or not is_settled)
    change.result = "partial" if is_partial else "done"
    body = {
        "root": target.root,
        "instance_id": archive.header.instance_id,
        "onto_absent_root": target.is_fresh,
        **tally.counts(),
        "first_new_ledger_id": None if new_ids.first_id is None else str(new_ids.first_id),
        "backup": change.details.get("backup"),
    }
    context.console.record("ClusterRestore", body, name="root", details={"conflict_items": tally.conflicts})
    context.console.table(CONFLICT_TABLE, tally.conflicts)
    context.console.warn(
        "bookies of bkctl delete no ledgers until bkctl bookie gc confirm is run for each of them; Java bookies delete "
        "what is missing from the metadata at their next garbage collection"
    )
    if tally.conflicts_count and not tally.changed_count:
        raise ConflictError(
            f"nothing was restored: {counted(tally.conflicts_count, 'node differs and was', 'nodes differ and were')} "
            "not changed"
        )
    return Outcome.PARTIAL if is_partial else Outcome.OK


class _RestoreCounts:
    """Totals of the outcomes, and the first thousand conflicts in full."""

    def __init__(self) -> None:
        self.done = 0
        self.ledgers_created = 0
        self.ledgers_advanced = 0
        self.ledgers_same = 0
        self.others_created = 0
        self.invalid_count = 0
        self.invalid: list[str] = []
        self.bad_count = 0
        self.bad: list[str] = []
        self.conflicts_count = 0
        self.conflicts: list[dict[str, object]] = []

    @property
    def changed_count(self) -> int:
        """Number of nodes written."""
        return self.ledgers_created + self.ledgers_advanced + self.others_created

    def add(self, fate: NodeFate) -> None:
        """Count one outcome."""
        self.done += 1
        self.ledgers_created += fate.is_ledger and fate.fate is Fate.CREATED
        self.ledgers_advanced += fate.fate is Fate.ADVANCED
        self.ledgers_same += fate.is_ledger and fate.fate is Fate.SAME
        self.others_created += not fate.is_ledger and fate.fate is Fate.CREATED
        if fate.fate is Fate.SKIPPED and fate.is_ledger:
            self.invalid_count += 1
            self.invalid += [fate.reason] if len(self.invalid) < SHOWN_MAX else []
        elif fate.fate is Fate.SKIPPED and fate.reason:
            self.bad_count += 1
            self.bad += [fate.reason] if len(self.bad) < SHOWN_MAX else []
        if fate.fate is Fate.CONFLICT:
            self.conflicts_count += 1
            if len(self.conflicts) < _CONFLICTS_KEPT_MAX:
                self.conflicts.append({"path": fate.path, "reason": fate.reason})

    def counts(self) -> dict[str, int]:
        """The totals."""
        return {
            "ledgers_created": self.ledgers_created,
            "ledgers_advanced": self.ledgers_advanced,
            "ledgers_there_already": self.ledgers_same,
            "other_nodes_created": self.others_created,
            "invalid_left_out": self.invalid_count,
            "bad_nodes_left_out": self.bad_count,
            "conflicts": self.conflicts_count,
        }


def _say_state(context: CommandContext, archive: ArchiveSummary, target: RestoreTarget, tally: _RestoreCounts) -> None:
    """The restore was stopped half way: what is done, what is left, and both ways on."""
    console = context.console
    state = "until it is finished no bookie can start" if target.is_fresh else "what is restored stays"
    console.warn(
        f"stopped before the end: {tally.done:,} of {archive.nodes:,} nodes of the backup were compared or restored, "
        f"{max(0, archive.nodes - tally.done):,} are left; {state}"
    )
    console.warn(f"to continue: {continuing_command(context.settings.command_line)}")
    if target.is_fresh:
        console.say("to undo: bkctl cluster nuke")


async def _count(
    context: CommandContext,
    tally: _RestoreCounts,
    description: str,
    archive: ArchiveSummary,
    fates: AsyncIterator[NodeFate],
) -> _RestoreCounts:
    with context.console.progress(description) as progress:
        async for fate in fates:
            tally.add(fate)
            if tally.done % _PROGRESS_EVERY_NODES == 0:
                progress.update(tally.done, archive.nodes)
    return tally


def _summary(
    context: CommandContext, archive: ArchiveSummary, target: RestoreTarget, expected: _RestoreCounts, new_ids: NewIds
) -> tuple[str, ...]:
    where = "a new root" if target.is_fresh else "the existing cluster"
    return (
        f"will restore the backup of {archive.header.created} with {counted(archive.ledgers, 'ledger')} into {where} "
        f"at {target.root}: {counted(expected.ledgers_created, 'ledger')} will be created, "
        f"{expected.ledgers_advanced} advanced, {counted(expected.conflicts_count, 'node differs', 'nodes differ')} "
        "and will not be changed",
        *time_on_store(context, writes=archive.nodes),
        f"ledgers created after {archive.header.created} that are not in the cluster now stay missing; bookies of "
        "bkctl keep their entries: they delete no ledgers until bkctl bookie gc confirm is run for each of them",
        "Java bookies delete these entries at their next garbage collection: do not start them while that matters",
        *_outside_sentences(archive, target),
        *_left_out("ledger", "missing from the cluster afterwards", expected.invalid_count, expected.invalid),
        *_left_out("other node", "unusable, or harmful to Java processes", expected.bad_count, expected.bad),
        *_id_sentences(archive, new_ids),
    )


def _left_out(noun: str, why: str, count: int, named: list[str]) -> tuple[str, ...]:
    if not count:
        return ()
    return (f"will skip {counted(count, noun)}, {why}: {listed(named, separator='; ', total=count)}",)


def _outside_sentences(archive: ArchiveSummary, target: RestoreTarget) -> tuple[str, ...]:
    bookie_ids = sorted(archive.header.maintenance or ()) if target.is_fresh else []
    return (
        *((f"will restore the maintenance of bookie {', '.join(bookie_ids)}",) if bookie_ids else ()),
        *((f"will restore logs that are missing: {listed(archive.logs)}",) if archive.logs else ()),
    )


def _id_sentences(archive: ArchiveSummary, new_ids: NewIds) -> tuple[str, ...]:
    if not new_ids.is_counted_anew:
        return ()
    if new_ids.first_id is None:
        highest = archive.ids.short_id_max
        return (
            f"the id generators are missing and cannot be moved past {highest}: new ledgers may get ids used before",
        )
    return (f"the id generators are missing: new ledger ids will start at {new_ids.first_id}",)
