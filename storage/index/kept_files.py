"""The files of a database as they were before it was opened, kept until the opening is durable.

Opening a LevelDB database rewrites it: its log becomes a table, a new manifest is written, CURRENT is pointed at it,
and the old log and manifest are deleted. LevelDB does not sync the directory in between, so a file system that does not
order directory changes may lose the new CURRENT and keep the deletions: then nothing is left to open. So the old files
first get second names in a directory next to the database. If that directory exists at the next opening, the previous
one did not finish and nothing was written since, and the database is restored.

``<database>.kept`` holds a complete set; ``<database>.kept.tmp`` is one being made or given up.
"""

from __future__ import annotations

import os
from typing import Final

from bkctl.storage.filenames import KEPT_SUFFIX, TEMPORARY_SUFFIX
from bkctl.storage.ports import FileSystem

_NOT_CONTENTS: Final = frozenset({"LOCK", "LOG", "LOG.old"})
"""LevelDB's lock file and its message logs: not part of the database."""


class KeptFiles:
    """The kept files of the database directory ``path``; all errors are OSError."""

    def __init__(self, filesystem: FileSystem, path: str) -> None:
        self._filesystem = filesystem
        self._path = path
        self._kept = path + KEPT_SUFFIX
        self._unfinished = path + KEPT_SUFFIX + TEMPORARY_SUFFIX

    @property
    def current_path(self) -> str:
        """Directory of the database as it was before an unfinished opening, or as it is."""
        return self._kept if self._filesystem.exists(self._kept) else self._path

    def restore(self) -> None:
        """Restore the database as it was before an unfinished opening; safe to repeat when interrupted."""
        if not self._filesystem.exists(self._kept):
            return
        remove_files(self._filesystem, self._path)
        self._link_all(self._kept, self._path)

    def keep(self) -> None:
        """Keep the current files durably. Call ``restore`` first."""
        if not self._filesystem.exists(self._path):
            return
        self.drop()
        self._filesystem.make_directories(self._unfinished)
        self._link_all(self._path, self._unfinished)
        self._filesystem.rename(self._unfinished, self._kept)
        self._filesystem.sync_directory(os.path.dirname(self._kept))

    def drop(self) -> None:
        """Drop the kept files, once the opened database is durable and before anything is written to it."""
        if self._filesystem.exists(self._unfinished):
            self._remove_unfinished()
        if self._filesystem.exists(self._kept):
            # In one step, because half a set must never be restored.
            self._filesystem.rename(self._kept, self._unfinished)
            self._filesystem.sync_directory(os.path.dirname(self._kept))
            self._remove_unfinished()

    def _link_all(self, source: str, target: str) -> None:
        for name in self._filesystem.list_directory(source):
            if name not in _NOT_CONTENTS:
                self._filesystem.link(os.path.join(source, name), os.path.join(target, name))
        self._filesystem.sync_directory(target)

    def _remove_unfinished(self) -> None:
        remove_files(self._filesystem, self._unfinished)
        self._filesystem.remove_directory(self._unfinished)


def remove_files(filesystem: FileSystem, path: str) -> None:
    """Delete all files of a database directory durably; the directory stays."""
    for name in filesystem.list_directory(path):
        filesystem.remove(os.path.join(path, name))
    filesystem.sync_directory(path)
