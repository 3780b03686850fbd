"""Checks the index of a stopped Java bookie: whether its ``.idx`` files can be read, and lead into entry logs.

Adoption would report the same. RocksDB directories are only named: bkctl does not read them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from bkctl.storage.config import StorageConfig
from bkctl.storage.filenames import JAVA_DATABASES
from bkctl.storage.ids import EntryId, LedgerId, unpack_location
from bkctl.storage.index.adoption_note import find_change_under_way
from bkctl.storage.index.java_index import find_java_index
from bkctl.storage.offline.adoption import idx_ledgers, index_directories, locate_logs, own_index_paths
from bkctl.storage.offline.adoption_build import read_idx_header, read_idx_locations
from bkctl.storage.ports import FileSystem
from bkctl.storage.words import counted

_ROCKSDB_FILE: Final = "CURRENT"
"""Every RocksDB directory has it."""


class IdxProblem(msgspec.Struct, frozen=True):
    """An ``.idx`` file that cannot be read, or the first of its entries that cannot be where it says."""

    path: str
    reason: str
    ledger_id: LedgerId
    entry_id: EntryId | None = None


def java_index_paths(fs: FileSystem, config: StorageConfig) -> dict[str, tuple[str, ...]]:
    """Names of a Java bookie's index in each index directory (``current``).

    Empty if bkctl wrote to any of them, if a change from one kind of index to the other was begun, or if a RocksDB
    directory is missing or empty. OSError.
    """
    directories = index_directories(config)
    if find_change_under_way(fs, config) is not None:
        return {}
    if any(fs.exists(path) for directory in directories for path in own_index_paths(directory)):
        return {}
    found = {directory: find_java_index(fs, directory) for directory in directories}
    if not all(_are_made(fs, directory, index.databases) for directory, index in found.items()):
        return {}
    return {directory: index.names for directory, index in found.items() if index.names}


def _are_made(fs: FileSystem, directory: str, databases: tuple[str, ...]) -> bool:
    """Whether these RocksDB directories are none, or complete; a hand-back leaves files in place of them."""
    return not databases or all(fs.exists(os.path.join(directory, name, _ROCKSDB_FILE)) for name in JAVA_DATABASES)


def find_idx_problems(
    fs: FileSystem, config: StorageConfig, on_progress: Callable[[str], None]
) -> Iterator[IdxProblem]:
    """Problems of all ``.idx`` files, by ledger. AdoptionRefusedError, OSError."""
    logs = locate_logs(fs, config, is_unique=True)
    for ledger_id, paths in idx_ledgers(fs, config):
        for path in paths:
            on_progress(path)
            try:
                read_idx_header(fs, path)
                places = ((each, unpack_location(location)) for each, location in read_idx_locations(fs, [path]))
                wrong = [(each, reason) for each, place in places if (reason := logs.why_not_there(place)) is not None]
            except (ValueError, OSError) as error:
                yield IdxProblem(path, str(error), ledger_id)
                continue
            if wrong:
                entry_id, reason = wrong[0]
                more = f", and {counted(len(wrong) - 1, 'more entry')}" if len(wrong) > 1 else ""
                yield IdxProblem(path, f"entry {entry_id} cannot be read: {reason}{more}", ledger_id, entry_id)
