"""Locks on a bookie's directories, which keep a bookie from starting.

A bookie locks a file in each of its directories and leaves it there. Reading and planning locks only existing files,
because the directories may be the wrong ones. Missing files are created just before a change.
"""

from __future__ import annotations

import os

from bkctl.storage.config import StorageConfig
from bkctl.storage.errors import DirectoryLockedError
from bkctl.storage.filenames import LOCK, current_directory
from bkctl.storage.ports import DirectoryLock, FileSystem


class DirectoryLocks:
    """The locks of all directories of a bookie."""

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
