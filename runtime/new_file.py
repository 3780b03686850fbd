"""Output files that a command creates and must never overwrite."""

from __future__ import annotations

import errno

from runtime.errors import ConflictError
from storage.ports import FileSystem

_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
"""Errors that report a file system without hard links."""


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
