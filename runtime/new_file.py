"""Files that a command writes for an operator: complete or not at all, and readable for their owner alone."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from bkctl.runtime.errors import ConflictError
from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.ports import FileSystem

_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
"""Errors that report a file system without hard links."""


def write_whole(path: str, data: bytes, *, is_new: bool = False) -> None:
    """Put a private file in place, all or nothing; errors as in ``whole_file``."""
    with whole_file(path, is_new=is_new) as write:
        write(data)


@contextmanager
def whole_file(path: str, *, is_new: bool = False) -> Iterator[Callable[[bytes], None]]:
    """Writes a private file that appears, complete and durable, only if the block ends without an error.

    Other users may be able to write in the directory: they cannot guess the temporary name, nor lead it elsewhere.

    OSError that contains ``path``, also if it is a device or a pipe, which must not be replaced; ConflictError if it
    exists but ``is_new``. A symbolic link stays, and its target is written.
    """
    fs = OsFileSystem()
    if is_new:
        require_absent(fs, path)
    target = os.path.realpath(path)
    if os.path.exists(target) and not (os.path.isfile(target) or os.path.isdir(target)):
        raise OSError(errno.EINVAL, "not a regular file", path)
    written = 0
    with _with_target_path(path):
        file = fs.create_temporary(target)

    def write(data: bytes) -> None:
        nonlocal written
        with _with_target_path(path):
            file.pwrite(data, written)
        written += len(data)

    try:
        try:
            yield write
            with _with_target_path(path):
                file.sync()
        finally:
            file.close()
        with _with_target_path(path):
            if is_new:
                put_in_place(fs, file.path, target)
            else:
                fs.rename(file.path, target)
    finally:
        with suppress(FileNotFoundError):
            fs.remove(file.path)
    with _with_target_path(path):
        fs.sync_directory(os.path.dirname(target))


@contextmanager
def _with_target_path(path: str) -> Iterator[None]:
    """Add the file's path to an error: a temporary name would mislead."""
    try:
        yield
    except OSError as error:
        error.filename, error.filename2 = path, None
        raise


def require_absent(fs: FileSystem, path: str) -> None:
    """ConflictError if there is a file: checked before the work that fills it."""
    if fs.exists(path):
        raise _exists(path)


def put_in_place(fs: FileSystem, temporary: str, path: str) -> None:
    """Give a finished file its name. Its temporary name may remain. ConflictError if the name is taken; OSError."""
    try:
        fs.link(temporary, path)
    except FileExistsError:
        raise _exists(path) from None
    except OSError as error:
        if error.errno not in _NO_LINKS or fs.exists(path):
            raise
        fs.rename(temporary, path)


def _exists(path: str) -> ConflictError:
    return ConflictError(f"{path} already exists: specify a new file")
