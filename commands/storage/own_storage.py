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
from bkctl.commands.storage.directory_locks import DirectoryLocks
from bkctl.runtime.bookie.cookies.directories import read_directory
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.storage.adapters.child_pool import ChildProcesses
from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.advice import FULL_DISK_RUNBOOK, with_path
from bkctl.storage.config import StorageConfig
from bkctl.storage.disk_room import file_limit_advice, lacks_room
from bkctl.storage.errors import StorageError
from bkctl.storage.filenames import current_directory

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
    own = OwnStorage(bookie.storage, file_system, ChildProcesses(), _root(bookie.metadata_uri), locks)
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


def _root(metadata_uri: str) -> str:
    return parse_metadata_uri(metadata_uri).root if metadata_uri else ""


def _identity(own: OwnStorage) -> tuple[str | None, str | None]:
    """Bookie id and instance id from the first readable VERSION file."""
    for directory in own.config.all_directories:
        cookie = read_directory(own.file_system, directory).cookie
        if cookie is not None:
            return cookie.bookie_id, cookie.instance_id
    return None, None
