"""The log that is being compacted: which of its entries the index still points at, and their bodies.

For the lane that writes checkpoints, in bounded jobs.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final, NamedTuple

from storage.engine.engine import LedgerDirectoryEngine
from storage.entry_log.format import FrameStart, decode_frame_start
from storage.errors import CorruptFileError
from storage.filenames import entry_log_file_name
from storage.framing import LENGTH_BYTES
from storage.ids import EntryId, EntryLocation, EntryLogId, LedgerId
from storage.ports import File, FileSystem

_READ_BYTES_MAX: Final = 1024 * 1024
_GAP_BYTES_MAX: Final = 16 * 1024
"""Entries this near to each other are read in one go."""


class SourceEntry(NamedTuple):
    """An entry of the log that is compacted."""

    ledger_id: LedgerId
    entry_id: EntryId
    offset: int
    """Of the body."""
    size_bytes: int


class SelectedEntries(NamedTuple):
    """What becomes of some entries of the log."""

    live: list[SourceEntry]
    """In use: they are copied."""
    unplaced_ledger_ids: frozenset[LedgerId]
    """Ledgers of those that the index places nowhere, neither here nor in another log."""


class CompactionSource:
    """One finished log of a ledger directory."""

    def __init__(self, fs: FileSystem, engine: LedgerDirectoryEngine, log_id: EntryLogId) -> None:
        self._engine = engine
        self._path = os.path.join(engine.ledger_directory, entry_log_file_name(log_id))
        self._fs = fs
        self._file: File | None = None
        self.log_id = log_id

    def select_live(self, entries: Sequence[SourceEntry]) -> SelectedEntries:
        """Those that the index points at in this very place: others are gone, or there are newer copies of them."""
        places = self._engine.relocation.current_locations([(entry.ledger_id, entry.entry_id) for entry in entries])
        placed = list(zip(entries, places, strict=True))
        return SelectedEntries(
            [entry for entry, place in placed if place == EntryLocation(self.log_id, entry.offset)],
            frozenset(entry.ledger_id for entry, place in placed if place is None),
        )

    def read_bodies(self, entries: Sequence[SourceEntry]) -> list[bytes]:
        """Bodies of entries given in file order. CorruptFileError when one is not what was scanned; OSError."""
        if self._file is None:
            self._file = self._fs.open(self._path)
        bodies: list[bytes] = []
        first = 0
        while first < len(entries):
            start = entries[first].offset - LENGTH_BYTES
            stop = first + 1
            while stop < len(entries) and _is_near(start, entries[stop - 1], entries[stop]):
                stop += 1
            end = entries[stop - 1].offset + entries[stop - 1].size_bytes
            data = self._file.pread(end - start, start)
            bodies += [self._body(data, start, entry) for entry in entries[first:stop]]
            first = stop
        return bodies

    def close(self) -> None:
        """Close the file; safe to repeat."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _body(self, data: bytes, start: int, entry: SourceEntry) -> bytes:
        first = entry.offset - start
        frame = decode_frame_start(data[first - LENGTH_BYTES : first + 16])
        body = data[first : first + entry.size_bytes]
        if frame != FrameStart(entry.size_bytes, entry.ledger_id, entry.entry_id) or len(body) != entry.size_bytes:
            reason = f"entry {entry.ledger_id}:{entry.entry_id} changed while it was compacted"
            raise CorruptFileError(self._path, entry.offset, reason)
        return body


def _is_near(start: int, previous: SourceEntry, entry: SourceEntry) -> bool:
    gap_bytes = entry.offset - LENGTH_BYTES - (previous.offset + previous.size_bytes)
    return gap_bytes <= _GAP_BYTES_MAX and entry.offset + entry.size_bytes - start <= _READ_BYTES_MAX
