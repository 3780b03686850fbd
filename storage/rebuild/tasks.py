"""Messages between parent and children of an index rebuild, and their files in the working directory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec
import numpy as np

from bkctl.storage.entry_log.damage import LogDamage
from bkctl.storage.entry_log.scan import Int64Array
from bkctl.storage.ids import EntryLogId, LedgerId
from bkctl.storage.index.journaled_rows import JournaledLedger
from bkctl.storage.index.location_index import KEY_BYTES, LOCATION_BYTES
from bkctl.storage.index.rows import Key, Run
from bkctl.storage.index.table import Bytes2d
from bkctl.storage.journal.catalog import CatalogedJournal
from bkctl.storage.ports import FileSystem

RUN_ROW_COUNT: Final = 4_000_000
"""Rows that a scan sorts at a time. This limits its memory to 400 MB, whatever the size of the log."""
RANGE_ROW_COUNT: Final = 500_000
"""Rows that a child writes to tables at a time."""


class ScanLog(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Scan one log into runs. ``directory``: absolute."""

    directory: str
    log_id: EntryLogId
    rank: int
    """Position of the log in order of age; 0 is the oldest."""
    position: int
    """Position of the directory: it stores the ledgers whose id modulo ``directory_count`` is this."""
    directory_count: int
    entry_bytes_max: int
    keeps_rows: bool
    """Whether to write runs; otherwise only ledgers and damage are collected."""
    run_row_count: int = RUN_ROW_COUNT


class ScannedLog(msgspec.Struct, frozen=True):
    """Result of scanning one log."""

    runs: list[Run]
    ids_name: str
    """Name of the file with the ids of its ledgers."""
    entry_count: int
    dropped_bytes: int
    damage: LogDamage | None
    misplaced_ledger_id: LedgerId | None
    """A ledger that belongs in another directory, if there is one."""


class LoadRange(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Write the rows of all ``runs`` (oldest first) from key ``lower`` to key ``upper`` to tables."""

    runs: list[Run]
    lower: Key | None
    upper: Key | None
    known_name: str | None
    """Name of the file with the ids of the ledgers to include; None: all."""
    table_number_first: int


class MadeTable(msgspec.Struct, frozen=True):
    """A synced table file; its directory entry may not be durable yet."""

    number: int
    size_bytes: int
    first_key: bytes
    last_key: bytes
    row_count: int


class LoadedRange(msgspec.Struct, frozen=True):
    """The tables of a range, in key order."""

    tables: list[MadeTable]
    row_count: int


class ReadJournal(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Read the ledger state in a whole journal file, regardless of the log mark."""

    path: str
    is_newest: bool
    cataloged: CatalogedJournal | None


class JournalFindings(msgspec.Struct, frozen=True):
    """Ledger state found in a journal file."""

    ledgers: dict[LedgerId, JournaledLedger]
    damage: str | None


def write_ids(fs: FileSystem, path: str, ledger_ids: Iterable[LedgerId]) -> None:
    """Write ledger ids to a new file, ascending; not synced. OSError."""
    _write_new(fs, path, np.array(sorted(ledger_ids), np.int64).tobytes())


def read_ids(fs: FileSystem, path: str) -> Int64Array:
    """Read the ids that ``write_ids`` wrote. OSError."""
    return np.frombuffer(fs.read_file(path), np.int64)


def write_checks(fs: FileSystem, directory: str, number: int, keys: Bytes2d, values: Bytes2d) -> None:
    """Save rows of a table, one per block, for ``read_checks``; not synced. OSError."""
    _write_new(fs, os.path.join(directory, _checks_name(number)), np.concatenate([keys, values], axis=1).tobytes())


def _write_new(fs: FileSystem, path: str, data: bytes) -> None:
    with contextlib.closing(fs.create(path)) as file:
        file.pwrite(data, 0)


def read_checks(fs: FileSystem, directory: str, number: int) -> Iterator[tuple[bytes, bytes]]:
    """Read the rows that LevelDB must find in a table, in key order. OSError."""
    data = fs.read_file(os.path.join(directory, _checks_name(number)))
    for start in range(0, len(data), KEY_BYTES + LOCATION_BYTES):
        middle = start + KEY_BYTES
        yield data[start:middle], data[middle : middle + LOCATION_BYTES]


def _checks_name(number: int) -> str:
    return f"checks-{number}"
