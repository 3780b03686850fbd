"""The end of ``cluster format`` and ``nuke``, also of one that is stopped half way: how to finish, how to undo."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import msgspec

from bkctl.commands.cluster.survey import Examined, backup_time, backups_of, save_before
from bkctl.commands.context import CommandContext
from bkctl.commands.outages import continuing_command
from bkctl.commands.safety.audit_trail import read_trail
from bkctl.commands.safety.gate import Change
from bkctl.commands.session import Session
from bkctl.runtime.errors import RefusedError
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
