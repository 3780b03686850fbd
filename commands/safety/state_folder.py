"""The directory with everything needed to undo a mistake: backups, trash, the audit trail.

``$BKCTL_STATE_DIR``, else ``$XDG_STATE_HOME/bkctl``, else ``~/.local/state/bkctl``. Directories are 0700, files 0600:
ledger metadata has passwords in clear text.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from commands.config import Settings
from runtime.errors import RefusedError
from runtime.new_file import put_in_place, require_absent
from storage.adapters.filesystem import OsFileSystem

_FOLDER_MODE = 0o700
_FILE_MODE = 0o600


def state_folder(settings: Settings, name: str = "") -> str:
    """Path of a directory below the state directory, created if necessary; RefusedError when that fails."""
    if not settings.state_directory:
        raise RefusedError("nothing was changed: no directory for undo data: set BKCTL_STATE_DIR to a persistent one")
    path = os.path.join(settings.state_directory, name) if name else settings.state_directory
    try:
        for folder in (settings.state_directory, path):  # makedirs applies the mode only to the last part of a path
            os.makedirs(folder, mode=_FOLDER_MODE, exist_ok=True)
    except OSError as error:
        raise RefusedError(
            f"nothing was changed: cannot create the directory {path} for undo data ({error.strerror}); "
            "set BKCTL_STATE_DIR to another directory"
        ) from error
    return path


def open_private(path: str) -> int:
    """Descriptor of a file that only its owner may read, opened to append; OSError."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, _FILE_MODE)


def append_synced(descriptor: int, data: bytes) -> None:
    """Append all of it and make it durable; OSError."""
    write_all(descriptor, data)
    os.fsync(descriptor)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of it; OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def write_whole(path: str, data: bytes, *, is_new: bool = False) -> None:
    """Put a private file in place, all or nothing; errors as in ``whole_file``."""
    with whole_file(path, is_new=is_new) as write:
        write(data)


@contextmanager
def whole_file(path: str, *, is_new: bool = False) -> Iterator[Callable[[bytes], None]]:
    """Writes a private file that appears, complete and durable, only if the block ends without an error.

    OSError that contains ``path``, also if it is a device or a pipe, which must not be replaced; ConflictError if it
    exists but ``is_new``. A symbolic link stays, and its target is written.
    """
    if is_new:
        require_absent(OsFileSystem(), path)
    target = os.path.realpath(path)
    if os.path.exists(target) and not (os.path.isfile(target) or os.path.isdir(target)):
        raise OSError(errno.EINVAL, "not a regular file", path)
    temporary = f"{target}.{os.getpid()}.tmp"
    with _named(path):
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _FILE_MODE)

    def write(data: bytes) -> None:
        with _named(path):
            write_all(descriptor, data)

    try:
        try:
            yield write
            with _named(path):
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        with _named(path):
            if is_new:
                put_in_place(OsFileSystem(), temporary, target)
            else:
                os.replace(temporary, target)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary)


@contextmanager
def _named(path: str) -> Iterator[None]:
    """Add the file's path to an error: calls on descriptors do not, and a temporary name would mislead."""
    try:
        yield
    except OSError as error:
        error.filename = path
        raise
