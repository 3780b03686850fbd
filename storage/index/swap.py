"""Replacing an index by a rebuilt one, so that a crash leaves either the old or the new one.

The new database is made in ``<database>.rebuilt``. It is valid as soon as its seal record exists, next to it as
``<database>.rebuilt.seal``. The next process that opens the index then finishes the swap:

1. ``<database>`` becomes ``<database>.replaced``
2. ``<database>.rebuilt`` becomes ``<database>``
3. the record replaces the old record; the new index is now an ordinary one
4. ``<database>.replaced`` is deleted

Without that record, ``<database>.rebuilt`` is left over from an unfinished rebuild, and the next rebuild starts again.
"""

from __future__ import annotations

import errno
import os
from typing import Final

from bkctl.storage.advice import REBUILD_ADVICE
from bkctl.storage.errors import IndexDamagedError
from bkctl.storage.filenames import REBUILT_SUFFIX, REPLACED_SUFFIX, seal_file_name
from bkctl.storage.index.kept_files import KeptFiles, remove_files
from bkctl.storage.index.seal import decode_seal_record, seal_database
from bkctl.storage.ports import FileSystem, OpenIndexStore

_DISCARD_TRIES_MAX: Final = 100


def rebuilt_path(path: str) -> str:
    """Directory in which the database ``path`` is rebuilt."""
    return path + REBUILT_SUFFIX


def begin_rebuilt(filesystem: FileSystem, path: str) -> str:
    """An empty directory for a new database; deletes what an earlier rebuild left. OSError."""
    discard_rebuilt(filesystem, path)
    directory = rebuilt_path(path)
    filesystem.make_directories(directory)
    return directory


def discard_rebuilt(filesystem: FileSystem, path: str) -> None:
    """Delete a new database that is not valid yet, if there is one. OSError.

    A child process that lost its parent works there until it finishes its current file. The deletion is retried if the
    child creates or deletes files meanwhile; once the directory is gone it cannot create any.
    """
    for tries_left in reversed(range(_DISCARD_TRIES_MAX)):
        try:
            _remove_directory(filesystem, rebuilt_path(path))
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.ENOENT) or not tries_left:
                raise
        else:
            return


def commit_rebuilt(filesystem: FileSystem, open_index: OpenIndexStore, path: str) -> None:
    """Make the new database valid once it is complete and durable; ``finish_swap`` is next. StorageError, OSError."""
    directory = rebuilt_path(path)
    filesystem.sync_directory(directory)
    seal_database(filesystem, open_index, directory)


def finish_swap(filesystem: FileSystem, path: str) -> bool:
    """Finish a swap that has begun; returns whether there was one. Safe to repeat when interrupted.

    IndexDamagedError when the record of the new database is not valid; OSError.
    """
    parent = os.path.dirname(path)
    directory, replaced = rebuilt_path(path), path + REPLACED_SUFFIX
    record_path, new_record_path = seal_file_name(path), seal_file_name(directory)
    if not filesystem.exists(new_record_path):
        if filesystem.exists(path) and filesystem.exists(record_path):
            _remove_directory(filesystem, replaced)
        return False
    record = decode_seal_record(filesystem.read_file(new_record_path))
    if record is None or record.number == 0:
        raise IndexDamagedError(f"{new_record_path} is not a seal record; {REBUILD_ADVICE}")
    if filesystem.exists(directory):
        # Otherwise files kept of the old database would be restored into the new one.
        KeptFiles(filesystem, path).drop()
        if filesystem.exists(path):
            _remove_directory(filesystem, replaced)
            filesystem.rename(path, replaced)
            filesystem.sync_directory(parent)
        filesystem.rename(directory, path)
        filesystem.sync_directory(parent)
    filesystem.rename(new_record_path, record_path)
    filesystem.sync_directory(parent)
    _remove_directory(filesystem, replaced)
    return True


def _remove_directory(filesystem: FileSystem, path: str) -> None:
    if filesystem.exists(path):
        remove_files(filesystem, path)
        filesystem.remove_directory(path)
        filesystem.sync_directory(os.path.dirname(path))
