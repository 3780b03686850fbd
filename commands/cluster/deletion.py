"""``bkctl cluster format`` and ``nuke``; how to finish one that was stopped half way, and how to undo it."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import msgspec

from bkctl.commands.cluster.survey import (
    TREE_TABLE,
    Examined,
    backup_time,
    backups_of,
    deletion_plan,
    examine_before_deletion,
    save_before,
)
from bkctl.commands.command import command
from bkctl.commands.context import CommandContext, Effect
from bkctl.commands.outages import continuing_command
from bkctl.commands.safety.gate import Change
from bkctl.commands.safety.operation import make_change
from bkctl.commands.safety.plan import Plan
from bkctl.commands.safety.state_directory import read_trail
from bkctl.commands.session import Session, open_session
from bkctl.runtime.errors import RefusedError
from bkctl.runtime.metadata.backup import cluster_format
from bkctl.runtime.metadata.cluster.root import read_instance_id
from bkctl.storage.errors import BkctlError

_DELETIONS = frozenset({"cluster format", "cluster nuke"})
_OTHERS = frozenset({"cluster init", "cluster restore"})


class Backups(NamedTuple):
    """``own``: what there was at the start of this command. ``earlier``: see ``_earlier_backup``."""

    own: str
    earlier: str | None

    @property
    def whole(self) -> str:
        """The one that has everything."""
        return self.earlier or self.own

    def say_undo(self, context: CommandContext) -> None:
        """Print how to get back what was deleted."""
        before = "bkctl cluster nuke, then " if context.command == "cluster format" else ""
        context.console.say(f"to undo: {before}bkctl cluster restore {self.whole}")
        if self.earlier is not None:
            context.console.say(
                f"that is the backup of before an earlier run, which was stopped; {self.own} has only what that left"
            )


async def back_up(context: CommandContext, session: Session, change: Change, found: Examined) -> Backups:
    """Save all metadata that is about to be deleted; RefusedError, ConflictError."""
    own = await save_before(context, session, found.header, found.tree, found.survey)
    change.details["backup"] = own
    return Backups(own, _earlier_backup(context, session, change.operation_id))


@asynccontextmanager
async def reporting_deletion(
    context: CommandContext, session: Session, change: Change, nodes: int, backups: Backups
) -> AsyncIterator[Callable[[], None]]:
    """Yields what to call before each deletion. If the work ends early: print what is left, and both ways on."""
    begun = 0

    def before_each() -> None:
        nonlocal begun
        change.require_lock()
        begun += 1

    try:
        yield before_each
    except RefusedError:
        raise  # it says that nothing was changed
    except BaseException:
        console, done = context.console, min(begun, nodes)
        console.warn(
            f"stopped before the end: about {done:,} of {nodes:,} nodes at {session.root} are deleted, "
            f"{nodes - done:,} are left; no bookie can start until it is finished or undone"
        )
        console.warn(f"to finish: {await _again(context, session)}")
        backups.say_undo(context)
        raise


async def _again(context: CommandContext, session: Session) -> str:
    """The same command; a format has changed the name that confirms it."""
    line = context.settings.command_line
    command = continuing_command(line, dropped=frozenset({"--confirm"}))
    if context.settings.confirmed_name is None:
        return command
    name = None
    with contextlib.suppress(BkctlError):
        name = await read_instance_id(session.store, session.root)
    return f"{command} --confirm {name or session.root}"


def _earlier_backup(context: CommandContext, session: Session, operation_id: str) -> str | None:
    """The backup of a format or nuke that was stopped half way before this one; None if there was none.

    A later one finds, and saves, only what that has left.
    """
    directory = context.settings.state_directory
    if not directory:
        return None
    stopped = stopped_deletions(read_trail(directory), session.root, context.settings.metadata_uri, operation_id)
    backups = backups_of(directory, session.root)
    for number, each in enumerate(stopped):
        end = stopped[number + 1].time if number + 1 < len(stopped) else ""
        found = [path for path in backups if each.time <= backup_time(path) and (not end or backup_time(path) < end)]
        path = each.backup or next(iter(found), None)
        if path is not None and os.path.exists(path):
            return path
    return None


class UnfinishedDeletion(msgspec.Struct, frozen=True):
    """A format or nuke that did not end. ``backup`` None: it was killed, so the trail does not name it."""

    time: str
    backup: str | None


def stopped_deletions(
    lines: Iterable[dict[str, Any]], root: str, metadata_uri: str | None, own_id: str
) -> Sequence[UnfinishedDeletion]:
    """The formats and nukes of this cluster that did not end, since the last command that changed it as a whole.

    ``lines``: the audit trail, the oldest first; ``own_id``: the operation that runs now.
    """
    stopped: dict[str, UnfinishedDeletion] = {}
    for line in lines:
        operation_id = str(line.get("operation_id"))
        is_here = (line.get("root"), line.get("metadata_uri")) == (root, metadata_uri)
        command = line.get("command")
        if not is_here or operation_id == own_id or command not in _DELETIONS | _OTHERS:
            continue
        result, details = str(line.get("result", "")), line.get("details") or {}
        if command in _DELETIONS and line.get("event") == "begin":
            stopped[operation_id] = UnfinishedDeletion(str(line.get("time")), None)
        elif result.startswith("failed: nothing was changed"):
            stopped.pop(operation_id, None)
        elif command in _OTHERS or result == "done":
            stopped.clear()
        elif operation_id in stopped:
            stopped[operation_id] = msgspec.structs.replace(stopped[operation_id], backup=details.get("backup"))
    return tuple(stopped.values())


@command("format", example="cluster format --dry-run", effect=Effect.DESTROYS)
async def format_cluster(context: CommandContext) -> None:
    """Delete all ledgers, cookies and marks of a cluster of stopped bookies; assign a new instance id.

    All metadata is backed up first, and the layout is kept, as are switches, other nodes of underreplication, and
    nodes below the root that are not BookKeeper's. Entries on the bookies' disks become unreachable. The bookies do
    not start until their disks are formatted too.

    Refused while a process is connected (a bookie, an auditor, a worker with a lock, Pulsar's auditor), or if a
    newer release wrote a ledger. If a node has changed since the plan, nothing is changed. Safe to interrupt and to
    run again; "to undo" (earlier_backup) then names the backup of the first run, because that of the last has only
    what was left. To undo: bkctl cluster nuke, then bkctl cluster restore. Type the instance id (without one, the
    ledgers root), or use --confirm.
    """
    async with open_session(context, must_exist=False) as session:
        store, root = session.store, session.root

        async def examine() -> tuple[Plan, Examined]:
            found = await examine_before_deletion(context, session, is_root_deleted=False)
            actions = {"ledgers": "delete", "ledger ids": "delete", "cookies": "delete", "LAYOUT": "rewrite"}
            actions |= {"INSTANCEID": "replace", "underreplication": "delete marks and locks"}
            plan = deletion_plan(
                context,
                found,
                actions,
                f"will delete all metadata at {root}: {found.size} (it is backed up first)",
                "afterwards the bookies' disks must be formatted before they can join again",
            )
            return plan, found

        async def apply(change: Change, found: Examined) -> tuple[str, Backups]:
            backups = await back_up(context, session, change, found)
            async with reporting_deletion(context, session, change, found.survey.nodes, backups) as before_each:
                new_id = await cluster_format.format_cluster(
                    store, root, found.tree, random.SystemRandom(), before_each=before_each
                )
            change.details["new_instance_id"] = new_id
            return new_id, backups

        found, done = await make_change(context, examine, apply, store, table=TREE_TABLE)
        assert done is not None
        instance_id, backups = done
        backups.say_undo(context)
        body = {
            "root": root,
            "old_instance_id": found.header.instance_id,
            "instance_id": instance_id,
            "layout": found.tree.value,
            "ledgers_deleted": found.survey.ledgers,
            "backup": backups.own,
            "earlier_backup": backups.earlier,
        }
        context.console.record("ClusterFormat", body, name="instance_id")


@command("nuke", example="cluster nuke --dry-run", effect=Effect.DESTROYS)
async def nuke(context: CommandContext) -> None:
    """Delete all metadata of a cluster whose bookies are all stopped, including its root.

    All metadata is backed up first. Refused in the same cases as bkctl cluster format, and if there are nodes below
    the root that are not BookKeeper's. Does nothing if there is no cluster. To undo: bkctl cluster restore. Type
    the instance id (without one, the ledgers root), or use --confirm.
    """
    async with open_session(context, must_exist=False) as session:
        store, root = session.store, session.root

        async def examine() -> tuple[Plan, Examined | None]:
            if await store.exists(root) is None:
                return _empty_plan(context, root), None
            found = await examine_before_deletion(context, session, is_root_deleted=True)
            actions = {"ledgers": "delete", "ledger ids": "delete", "special": "delete"}
            sentence = f"will delete {root} and everything below it: {found.size} (all metadata is backed up first)"
            return deletion_plan(context, found, actions, sentence), found

        async def apply(change: Change, found: Examined | None) -> Backups:
            assert found is not None
            backups = await back_up(context, session, change, found)
            async with reporting_deletion(context, session, change, found.survey.nodes, backups) as before_each:
                await cluster_format.nuke_cluster(store, root, found.tree, before_each=before_each)
            return backups

        found, backups = await make_change(context, examine, apply, store, table=TREE_TABLE)
    body: dict[str, object] = {"root": root, "removed": found is not None}
    if found is not None and backups is not None:
        backups.say_undo(context)
        body |= {
            "instance_id": found.header.instance_id,
            "ledgers_deleted": found.survey.ledgers,
            "backup": backups.own,
            "earlier_backup": backups.earlier,
        }
    context.console.record("ClusterNuke", body, name="root")


def _empty_plan(context: CommandContext, root: str) -> Plan:
    """Without a cluster there is no instance id to compare with the pinned one."""
    return Plan(
        root=root,
        instance_id=context.settings.pinned_instance_id,
        subject=root,
        summary=(f"no cluster at {root}: nothing to do",),
    )
