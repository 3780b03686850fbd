"""Deletes everything that a bookie has in its directories, so that no bookie can start on what an interruption leaves.

1. In every directory VERSION becomes ``bkctl.formatting``. A bkctl bookie refuses to start where this file is, and a
   Java bookie where VERSION is missing. A rename needs no space on a full disk.
2. Everything else is deleted.
3. ``bkctl.formatting``, the lock, a dead admin socket and the directory ``current`` are deleted.

Each step can be repeated. The caller holds the locks, and does between steps 2 and 3 what must be done before a bookie
may start again. Configured directories themselves stay, because they may be mount points.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence

from bkctl.storage.filenames import ADMIN_SOCKET, FORMATTING, LOCK, VERSION, current_directory
from bkctl.storage.ports import FileSystem


def begin_format(filesystem: FileSystem, directories: Sequence[str]) -> None:
    """Step 1; OSError."""
    for current in _present(filesystem, directories):
        version = os.path.join(current, VERSION)
        if filesystem.exists(version):
            filesystem.rename(version, os.path.join(current, FORMATTING))
            filesystem.sync_directory(current)


def delete_data(filesystem: FileSystem, directories: Sequence[str], on_deleted: Callable[[], None]) -> None:
    """Step 2; ``on_deleted`` is called after each file and directory, and may raise to stop. OSError."""
    for current in _present(filesystem, directories):
        for name in filesystem.list_directory(current):
            if name not in {FORMATTING, LOCK}:
                _delete(filesystem, os.path.join(current, name), on_deleted)
        filesystem.sync_directory(current)


def end_format(filesystem: FileSystem, directories: Sequence[str]) -> None:
    """Step 3; OSError."""
    for current in _present(filesystem, directories):
        parent = os.path.dirname(current)
        for path in (
            os.path.join(parent, ADMIN_SOCKET),  # of a bookie that was killed
            os.path.join(current, FORMATTING),
            os.path.join(current, LOCK),
        ):
            if filesystem.exists(path):
                filesystem.remove(path)
        try:
            filesystem.remove_directory(current)
        except OSError as error:
            if error.errno not in {errno.EBUSY, errno.ENOTDIR}:  # a mount point, a link: they stay, empty
                raise
        filesystem.sync_directory(parent)


def _present(filesystem: FileSystem, directories: Sequence[str]) -> list[str]:
    return [current for current in map(current_directory, directories) if filesystem.exists(current)]


def _delete(filesystem: FileSystem, path: str, on_deleted: Callable[[], None]) -> None:
    """Delete a file, a link, or a directory with its contents."""
    try:
        filesystem.remove(path)
    except IsADirectoryError:
        for name in filesystem.list_directory(path):
            _delete(filesystem, os.path.join(path, name), on_deleted)
        filesystem.remove_directory(path)
    on_deleted()
