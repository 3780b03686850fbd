"""The directories of the bookie on this machine, as ``bkctl bookie start`` with the same settings would use them.

Commands that read single files work while the bookie runs; those that read an index or change anything hold the
directories' locks, so that no bookie can start meanwhile.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from bkctl.commands.context import BookieFlags, CommandContext, load_config
from bkctl.commands.errors import NoRoomError, NotFoundError
from bkctl.commands.rendering import Column, Table
from bkctl.commands.safety.plan import Plan
from bkctl.runtime.bookie.cookies.directories import (
    named_directories,
    place_of,
    place_path,
    read_directory,
    spelled_as,
    version_path,
)
from bkctl.runtime.errors import RefusedError
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.storage.adapters.child_pool import ChildProcesses
from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.advice import FULL_DISK_RUNBOOK, with_path
from bkctl.storage.config import StorageConfig
from bkctl.storage.disk_room import file_limit_advice, lacks_room
from bkctl.storage.errors import DirectoryLockedError, StorageError
from bkctl.storage.filenames import LOCK, current_directory
from bkctl.storage.ports import DirectoryLock, FileSystem


class DirectoryLocks:
    """The locks of all directories of a bookie, which keep it from starting; their files stay.

    Reading and planning locks only existing files, because the directories may be the wrong ones.
    """

    def __init__(self, file_system: FileSystem, config: StorageConfig) -> None:
        self._file_system = file_system
        self._held: dict[str, DirectoryLock | None] = dict.fromkeys(map(current_directory, config.all_directories))

    def hold(self) -> None:
        """Lock the directories that already have a lock file; DirectoryLockedError while a bookie runs, OSError."""
        for directory in self._held:
            if self._is_lockable(directory):
                self._lock(directory)

    def claim(self) -> None:
        """Create and lock the missing lock files, before a change; errors as for ``hold``.

        DirectoryLockedError also if another process has used one of them: data read earlier may have changed.
        """
        for directory, lock in self._held.items():
            if lock is not None:
                continue
            if self._is_lockable(directory):
                raise DirectoryLockedError(
                    f"nothing was changed: {directory} was in use by another process: run the command again"
                )
            self._file_system.make_directories(directory)
            self._lock(directory)

    def release(self) -> None:
        """Release all locks; can be repeated."""
        for directory, lock in self._held.items():
            if lock is not None:
                lock.release()
                self._held[directory] = None

    def _is_lockable(self, directory: str) -> bool:
        return self._file_system.exists(os.path.join(directory, LOCK))

    def _lock(self, directory: str) -> None:
        try:
            self._held[directory] = self._file_system.lock_directory(directory)
        except DirectoryLockedError as error:
            raise DirectoryLockedError(f"nothing was changed: {error}: stop the bookie first") from error


PLAN_TABLE = Table("Changes", Column("action", "ACTION"), Column("path", "PATH"))
"""Columns of plans that change some files."""


class OwnStorage(NamedTuple):
    """The directories and limits of a bookie."""

    config: StorageConfig
    file_system: OsFileSystem
    children: ChildProcesses
    metadata_root: str
    """Root of the cluster by the settings, for plans and the audit trail; empty when no cluster specified."""
    locks: DirectoryLocks
    """Locks to take before a change."""


@contextlib.contextmanager
def open_own_storage(context: CommandContext, flags: BookieFlags, *, is_locked: bool) -> Iterator[OwnStorage]:
    """The directories of these settings; ``is_locked``: held until the end of the block.

    ConfigurationError, InvalidArgumentError; NotFoundError for a missing directory; DirectoryLockedError if the bookie
    runs. Nothing in the directories is changed. A full disk inside the block raises NoRoomError.
    """
    bookie = load_config(context, flags)
    file_system = OsFileSystem()
    locks = DirectoryLocks(file_system, bookie.storage)
    root = parse_metadata_uri(bookie.metadata_uri).root if bookie.metadata_uri else ""
    own = OwnStorage(bookie.storage, file_system, ChildProcesses(), root, locks)
    _require_directories(own)
    try:
        if is_locked:
            locks.hold()
        with _explaining_full_disks(own):
            yield own
    finally:
        locks.release()


@contextlib.contextmanager
def _explaining_full_disks(own: OwnStorage) -> Iterator[None]:
    """Errors caused by a full disk become a NoRoomError; otherwise most would look like damage."""
    try:
        yield
    except (StorageError, OSError) as error:
        if not lacks_room(error) or (isinstance(error, OSError) and not _is_inside(own, error.filename)):
            raise
        advice = "" if file_limit_advice(error) else f"; see {FULL_DISK_RUNBOOK}"
        raise NoRoomError(f"{with_path(error)}{advice}") from error


def _is_inside(own: OwnStorage, path: object) -> bool:
    """Whether a path is in the bookie's directories: plans and CSV are written elsewhere."""
    return isinstance(path, str) and any(path.startswith(f"{each}{os.sep}") for each in own.config.all_directories)


def make_plan(own: OwnStorage, *, summary: Sequence[str], items: Sequence[dict[str, Any]] = ()) -> Plan:
    """A plan that changes these directories and nothing else; its subject is the bookie id of their VERSION files.

    ``items`` are those of ``Plan``; ``path`` is a file or directory. Without a VERSION file the subject is the first
    ledger directory.
    """
    bookie_id, instance_id = _identity(own)
    return Plan(
        root=own.metadata_root,
        instance_id=instance_id,
        subject=bookie_id or own.config.ledger_directories[0],
        summary=tuple(summary),
        items=tuple(items),
    )


def _require_directories(own: OwnStorage) -> None:
    for directory in own.config.all_directories:
        if not own.file_system.exists(directory):
            raise NotFoundError(f"{directory} is missing: mount its disk, or specify the bookie's directories")
        for path in (directory, current_directory(directory)):
            if own.file_system.exists(path) and not os.path.isdir(path):
                raise NotFoundError(f"{path} is not a directory: specify the bookie's directories")
    # An index directory may be new: a lost index is rebuilt from the other directories.
    for directory in (*own.config.journal_directories, *own.config.ledger_directories):
        if not os.path.isdir(current_directory(directory)):
            raise NotFoundError(f"{directory} contains no bookie's files: it has no directory 'current'")


def _identity(own: OwnStorage) -> tuple[str | None, str | None]:
    """Bookie id and instance id from the first readable VERSION file."""
    for directory in own.config.all_directories:
        cookie = read_directory(own.file_system, directory).cookie
        if cookie is not None:
            return cookie.bookie_id, cookie.instance_id
    return None, None


FIX = "list all directories as before, in number and order (see bkctl cookie verify with the same settings)"


class Contradiction(NamedTuple):
    """A directory that is not the one in the settings: the file that shows it, and the reason."""

    path: str
    reason: str


def require_agreeing_directories(own: OwnStorage) -> None:
    """RefusedError when a directory contradicts the settings. Call this in every command that changes something.

    The directory of a ledger follows from the number and order of the directories (storage section 1). A change made
    with other lists would write into the wrong directory, or treat the data in the right one as lost.
    """
    for path, reason in find_contradictions(own):
        raise RefusedError(f"nothing was changed: {path}: {reason}: {FIX}")


def find_contradictions(own: OwnStorage) -> Iterator[Contradiction]:
    """Contradictions that would stop the next start, at most one per directory; changes nothing.

    A directory is identified by its VERSION file, which lists all directories, and by its place (``bkctl.place``). A
    new or emptied directory has neither; its place follows from the others.
    """
    wanted = named_directories(own.config)
    owner: tuple[str, str | None] | None = None
    for directory in own.config.all_directories:
        state = read_directory(own.file_system, directory)
        cookie = spelled_as(own.config, state.cookie)
        if cookie is not None:
            found = named_directories(cookie)
            identity = cookie.bookie_id, cookie.instance_id or None
            owner = owner or identity
            if found != wanted:
                reason = f"it lists the directories {_listed(found)}, but the settings list {_listed(wanted)}"
                yield Contradiction(version_path(directory), reason)
                continue
            if identity != owner:
                others = f"the directories before it belong to {_owner_text(owner)}"
                reason = f"it belongs to {_owner_text(identity)}, but {others}"
                yield Contradiction(version_path(directory), reason)
                continue
        place = place_of(own.config, directory)
        if state.place is not None and state.place != place:
            reason = (
                f"the directory was {' and '.join(state.place)} when its bookie last started, and the settings make it "
                f"{' and '.join(place)} (counted from 0)"
            )
            yield Contradiction(place_path(directory), reason)


def _listed(lists: tuple[tuple[str, ...], ...]) -> str:
    return "; ".join(",".join(paths) for paths in lists)


def _owner_text(identity: tuple[str, str | None]) -> str:
    bookie_id, instance_id = identity
    return f"bookie {bookie_id}" + (f" in the cluster instance {instance_id}" if instance_id else "")
