"""The directory with everything needed to undo a mistake: backups, trash, the audit trail.

``$BKCTL_STATE_DIR``, else ``$XDG_STATE_HOME/bkctl``, else ``~/.local/state/bkctl``. Directories are 0700, files 0600:
ledger metadata has passwords in clear text.
"""

from __future__ import annotations

import os

from bkctl.commands.config import Settings
from bkctl.runtime.errors import RefusedError
from bkctl.storage.adapters.filesystem import OsFileSystem


def state_directory(settings: Settings, name: str = "") -> str:
    """Path of a directory below the state directory, created if necessary; RefusedError when that fails."""
    if not settings.state_directory:
        raise RefusedError("nothing was changed: no directory for undo data: set BKCTL_STATE_DIR to a persistent one")
    path = os.path.join(settings.state_directory, name) if name else settings.state_directory
    try:
        OsFileSystem().make_directories(path)
    except OSError as error:
        raise RefusedError(
            f"nothing was changed: cannot create the directory {path} for undo data ({error.strerror}); "
            "set BKCTL_STATE_DIR to another directory"
        ) from error
    return path


def append_synced(descriptor: int, data: bytes) -> None:
    """Append all of it and make it durable; OSError."""
    write_all(descriptor, data)
    os.fsync(descriptor)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of it; OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
