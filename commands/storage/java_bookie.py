"""Checks whether directories belong to a stopped Java bookie with these settings. Ignores bkctl's own locks."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator

from bkctl.commands.storage.own_storage import OwnStorage
from bkctl.runtime.bookie.cookies.directories import read_directory
from bkctl.runtime.errors import RefusedError
from bkctl.storage.errors import DirectoryLockedError
from bkctl.storage.filenames import JAVA_DATABASES, current_directory
from bkctl.storage.index.adoption_note import find_change_under_way
from bkctl.storage.index.java_index import find_java_index

_PROCESSES = "/proc"
_ROCKSDB_LOCK = "LOCK"


def require_stopped(own: OwnStorage) -> None:
    """DirectoryLockedError while a process has a file of the directories open.

    A Java bookie holds no lock on its directories, but its newest journal is always open. Processes of other users and
    containers can be detected only by the locks of RocksDB.
    """
    directories = [os.path.realpath(current_directory(directory)) + os.sep for directory in own.config.all_directories]
    for process_id, path in _open_files():
        if process_id != os.getpid() and path.startswith(tuple(directories)):
            raise DirectoryLockedError(
                f"nothing was changed: process {process_id} has {path} open: stop the bookie first"
            )
    for directory in own.config.effective_index_directories:
        for database in JAVA_DATABASES:
            path = os.path.join(current_directory(directory), database, _ROCKSDB_LOCK)
            if _is_locked(path):
                raise DirectoryLockedError(f"nothing was changed: {path} is locked: stop the bookie first")


def require_no_java_index(own: OwnStorage) -> None:
    """RefusedError if there is an index of a Java bookie: only adoption reads or moves it. UnpairedIndexError.

    Also after an interrupted change from one kind of index to the other, during which there must be no new index.
    """
    own.config.require_paired_indexes()
    change = find_change_under_way(own.file_system, own.config)
    if change is not None:
        raise RefusedError(f"nothing was changed: {change.advice}")
    for directory in own.config.effective_index_directories:
        names = find_java_index(own.file_system, current_directory(directory)).names
        if names:
            raise RefusedError(
                f"nothing was changed: {directory} holds the index of a Java bookie ({', '.join(names)}): take the "
                "directories over with bkctl storage adopt"
            )


def require_version_files(own: OwnStorage) -> None:
    """RefusedError unless every directory has a VERSION file: nothing else identifies a Java bookie's directories."""
    for directory in own.config.all_directories:
        if read_directory(own.file_system, directory).cookie is None:
            raise RefusedError(
                f"nothing was changed: {directory} has no readable VERSION file: run bkctl cookie verify for the cause "
                "and the fix"
            )


def _open_files() -> Iterator[tuple[int, str]]:
    """Process ids with their open files, as far as this user may see them."""
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(_PROCESSES):
            if name.isdigit():
                with contextlib.suppress(OSError):
                    directory = os.path.join(_PROCESSES, name, "fd")
                    for descriptor in os.listdir(directory):
                        with contextlib.suppress(OSError):
                            yield int(name), os.readlink(os.path.join(directory, descriptor))


def _is_locked(path: str) -> bool:
    try:
        with open(path, "rb+") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass  # no such file, or its lock cannot be checked
    return False
