"""Finds index rows that reference missing entry logs, or offsets after the end of a log.

The only trace of a missing log are the rows that reference it. While these rows exist, reads of the entries fail with
I/O errors rather than "no such entry". Only offline commands import this module: a bookie must not load numpy.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final

import msgspec
import numpy as np

from bkctl.storage.entry_log.reader import list_entry_logs
from bkctl.storage.filenames import entry_log_file_name
from bkctl.storage.ids import EntryLogId, LedgerId
from bkctl.storage.index.location_index import KEY_BYTES, KEY_END, LOCATION_BYTES
from bkctl.storage.index.rows import STORED_ROW
from bkctl.storage.index.seal import SealedIndex
from bkctl.storage.ports import FileSystem
from bkctl.storage.words import counted, listed

PIECE_ROW_COUNT: Final = 100_000
"""Rows per piece."""

INVALID_ROWS_KEPT_MAX: Final = 1000

UNMEASURED: Final = sys.maxsize
"""Size of an existing log when each entry is looked up anyway, or when the log cannot be opened."""


class LogShortfall(msgspec.Struct, frozen=True):
    """Entries whose index rows point at a missing log or after its end."""

    log_id: EntryLogId
    is_missing: bool
    """The file does not exist; otherwise the entries are after its end."""
    entry_count: int
    ledger_ids: tuple[LedgerId, ...]
    """Ascending, at least one."""

    @property
    def reason(self) -> str:
        """Description for a message, one sentence."""
        what = f"{counted(self.entry_count, 'entry')} of {counted(len(self.ledger_ids), 'ledger')}"
        what += f" ({listed(self.ledger_ids)})"
        was, lay = ("was", "lies") if self.entry_count == 1 else ("were", "lie")
        return f"there is no such log: {what} {was} in it" if self.is_missing else f"{what} {lay} beyond its end"


class LogShortfalls:
    """Counts index rows that reference missing data, one piece at a time.

    ``sizes_bytes``: size of each log in the directory; UNMEASURED to detect missing logs only.
    """

    def __init__(self, sizes_bytes: Mapping[EntryLogId, int]) -> None:
        self._sizes_bytes = sizes_bytes
        self._entry_counts: dict[EntryLogId, int] = {}
        self._ledger_ids: dict[EntryLogId, set[LedgerId]] = {}

    def take(self, rows: bytes) -> bytes:
        """Count the rows (24 bytes each, concatenated) and return those whose logs exist.

        Rows with a negative log id are returned too: no log with such an id can exist.
        """
        all_rows = np.frombuffer(rows, STORED_ROW)
        log_ids = all_rows["log_id"].astype(np.int64)
        is_there = np.ones(len(all_rows), bool)
        for log_id in np.unique(log_ids).tolist():
            if log_id < 0:
                continue
            is_named = log_ids == log_id
            size_bytes = self._sizes_bytes.get(log_id)
            if size_bytes is None:
                is_there &= ~is_named
                self._note(log_id, all_rows["ledger_id"][is_named])
            else:
                self._note(log_id, all_rows["ledger_id"][is_named & (all_rows["offset"] >= size_bytes)])
        return all_rows[is_there].tobytes()

    def found(self) -> list[LogShortfall]:
        """Shortfalls in all rows taken so far, one per log."""
        return [
            LogShortfall(log_id, log_id not in self._sizes_bytes, count, tuple(sorted(self._ledger_ids[log_id])))
            for log_id, count in sorted(self._entry_counts.items())
        ]

    def _note(self, log_id: EntryLogId, ledger_ids: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
        if len(ledger_ids):
            self._entry_counts[log_id] = self._entry_counts.get(log_id, 0) + len(ledger_ids)
            self._ledger_ids.setdefault(log_id, set()).update(np.unique(ledger_ids).tolist())


def log_sizes_bytes(filesystem: FileSystem, directory: str) -> dict[EntryLogId, int]:
    """Size of each log in a directory (``current``); UNMEASURED for one that cannot be opened. OSError.

    Such a log does not count as a shortfall: reading it reports the error.
    """
    sizes: dict[EntryLogId, int] = {}
    for log_id in list_entry_logs(filesystem, directory):
        try:
            file = filesystem.open(os.path.join(directory, entry_log_file_name(log_id)))
        except OSError:
            sizes[log_id] = UNMEASURED
            continue
        try:
            sizes[log_id] = file.size()
        finally:
            file.close()
    return sizes


class LocationRows:
    """Reads a locations index in pieces and skips rows of ledgers that no longer exist.

    ``owners``: existing ledgers; other rows are leftovers of deleted ledgers. None: skip nothing.
    """

    def __init__(self, rows: SealedIndex, owners: Collection[LedgerId] | None) -> None:
        self._rows = rows
        self._owners = owners
        self.count = self.leftover_count = self.invalid_count = 0
        self.invalid: list[str] = []
        """Malformed rows as text: the first INVALID_ROWS_KEPT_MAX of ``invalid_count``."""

    def pieces(self) -> Iterator[bytes]:
        """Concatenated rows of 24 bytes each. IndexDamagedError if the database cannot be read to its end."""
        parts: list[bytes] = []
        owner, is_owned = b"", True
        for key, value in self._rows.scan(b"", KEY_END):
            if len(key) != KEY_BYTES or len(value) != LOCATION_BYTES:
                self.invalid_count += 1
                if self.invalid_count <= INVALID_ROWS_KEPT_MAX:
                    self.invalid.append(f"{key.hex()} -> {value.hex()}")
                continue
            if key[:8] != owner:
                owner = key[:8]
                is_owned = self._owners is None or int.from_bytes(owner, signed=True) in self._owners
            self.count += 1
            if not is_owned:
                self.leftover_count += 1
                continue
            parts += (key, value)
            if len(parts) >= 2 * PIECE_ROW_COUNT:
                yield b"".join(parts)
                parts = []
        if parts:
            yield b"".join(parts)


def find_shortfalls(
    rows: SealedIndex,
    owners: Collection[LedgerId] | None,
    sizes_bytes: Mapping[EntryLogId, int],
    on_progress: Callable[[], None],
) -> list[LogShortfall]:
    """Find the shortfalls of a whole locations index (``LocationRows``), skipping malformed rows."""
    shortfalls = LogShortfalls(sizes_bytes)
    for piece in LocationRows(rows, owners).pieces():
        shortfalls.take(piece)
        on_progress()
    return shortfalls.found()
