"""The index of a Java bookie as it lies in an index directory: what is there, never what is in a RocksDB.

RocksDB folders can only be moved: their contents are rebuilt from entry logs and journals. ``.idx`` files are read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from storage.filenames import JAVA_DATABASES, idx_path, is_idx_folder, parse_idx_file_name
from storage.ids import LedgerId
from storage.ports import FileSystem


class JavaIndex(NamedTuple):
    """Names in one index directory (its ``current``)."""

    idx_folders: tuple[str, ...]
    """First folders of the tree of ``.idx`` files; only when there is such a file below."""
    databases: tuple[str, ...]
    """RocksDB folders."""

    @property
    def names(self) -> tuple[str, ...]:
        """All that a Java bookie would take for its index."""
        return (*self.idx_folders, *self.databases)


def find_java_index(fs: FileSystem, directory: str) -> JavaIndex:
    """What a Java bookie left in an index directory (``current``), nothing if that is not there; OSError."""
    names = _names_in(fs, directory)
    idx_folders = (name for name in names if is_idx_folder(name) and any(_idx_names(fs, directory, name)))
    return JavaIndex(tuple(idx_folders), tuple(name for name in JAVA_DATABASES if name in names))


def list_idx_ledgers(fs: FileSystem, directory: str) -> list[LedgerId]:
    """Ledgers that have an index file in a directory (``current``), ascending. OSError."""
    folders = filter(is_idx_folder, fs.list_directory(directory))
    return sorted(ledger_id for folder in folders for ledger_id in _idx_names(fs, directory, folder))


def _idx_names(fs: FileSystem, directory: str, folder: str) -> Iterator[LedgerId]:
    for second in _names_in(fs, os.path.join(directory, folder)):
        if not is_idx_folder(second):
            continue
        for name in _names_in(fs, os.path.join(directory, folder, second)):
            ledger_id = parse_idx_file_name(name)
            # Java looks for a ledger nowhere but at its own place.
            if ledger_id is not None and idx_path(ledger_id) == os.path.join(folder, second, name):
                yield ledger_id


def _names_in(fs: FileSystem, path: str) -> list[str]:
    try:
        return fs.list_directory(path)
    except (FileNotFoundError, NotADirectoryError):
        return []
