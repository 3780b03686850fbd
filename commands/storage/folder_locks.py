"""Locks on a bookie's directories, which keep a bookie from starting.

A bookie locks a file in each of its directories and leaves it there. Reading and planning locks only existing files,
because the directories may be the wrong ones. Missing files are created just before a change.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from bkctl.storage.errors import DirectoryLockedError

if TYPE_CHECKING:
    from bkctl.storage.config import StorageConfig
    from bkctl.storage.ports import DirectoryLock, FileSystem


class FolderLocks:
    """The locks of all directories of a bookie."""

    def __init__(self, file_system: FileSystem, config: StorageConfig) -> None:
        from bkctl.storage.filenames import current_directory

        self._file_system = file_system
        self._held: dict[str, DirectoryLock | None] = dict.fromkeys(map(current_directory, config.all_directories))

    def hold(self) -> None:
        """Lock the directories that already have a lock file; DirectoryLockedError while a bookie runs, OSError."""
        for folder in self._held:
            if self._is_lockable(folder):
                self._lock(folder)

    def claim(self) -> None:
        """Create and lock the missing lock files, before a change; errors as for ``hold``.

        DirectoryLockedError also if another process has used one of them: data read earlier may have changed.
        """
        for folder, lock in self._held.items():
            if lock is not None:
                continue
            if self._is_lockable(folder):
                raise DirectoryLockedError(
                    f"nothing was changed: {folder} was in use by another process: run the command again"
                )
            self._file_system.make_directories(folder)
            self._lock(folder)

    def release(self) -> None:
        """Release all locks; can be repeated."""
        for folder, lock in self._held.items():
            if lock is not None:
                lock.release()
                self._held[folder] = None

    def _is_lockable(self, folder: str) -> bool:
        from bkctl.storage.filenames import LOCK

        return self._file_system.exists(os.path.join(folder, LOCK))

    def _lock(self, folder: str) -> None:
        try:
            self._held[folder] = self._file_system.lock_directory(folder)
        except DirectoryLockedError as error:
            raise DirectoryLockedError(f"nothing was changed: {error}: stop the bookie first") from error
