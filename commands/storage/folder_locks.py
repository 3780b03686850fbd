"""Holding a bookie's folders against a bookie that would start: at first without leaving a trace.

A bookie locks a file in every one of its folders and leaves it there. So whoever only looks, plans or asks needs no
other locks than those on the files that are there: the folders may be the wrong ones. Files that are not there are made
just before something is changed.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from storage.errors import DirectoryLockedError

if TYPE_CHECKING:
    from storage.config import StorageConfig
    from storage.ports import DirectoryLock, FileSystem


class FolderLocks:
    """The locks of all folders of a bookie."""

    def __init__(self, file_system: FileSystem, config: StorageConfig) -> None:
        from storage.filenames import current_directory

        self._file_system = file_system
        self._held: dict[str, DirectoryLock | None] = dict.fromkeys(map(current_directory, config.all_directories))

    def hold(self) -> None:
        """Lock the folders that a bookie has locked before; DirectoryLockedError while one runs, OSError."""
        for folder in self._held:
            if self._is_lockable(folder):
                self._lock(folder)

    def claim(self) -> None:
        """Lock the others too, and make those that are new, before something is changed; errors as for ``hold``.

        DirectoryLockedError also when somebody had one of them meanwhile: what was looked at may have changed.
        """
        for folder, lock in self._held.items():
            if lock is not None:
                continue
            if self._is_lockable(folder):
                raise DirectoryLockedError(
                    f"nothing was changed: {folder} was in use by another process meanwhile: run this again"
                )
            self._file_system.make_directories(folder)
            self._lock(folder)

    def release(self) -> None:
        """Give all folders up; safe to repeat."""
        for folder, lock in self._held.items():
            if lock is not None:
                lock.release()
                self._held[folder] = None

    def _is_lockable(self, folder: str) -> bool:
        from storage.filenames import LOCK

        return self._file_system.exists(os.path.join(folder, LOCK))

    def _lock(self, folder: str) -> None:
        try:
            self._held[folder] = self._file_system.lock_directory(folder)
        except DirectoryLockedError as error:
            raise DirectoryLockedError(f"nothing was changed: {error}: stop the bookie first") from error
