"""Moving entries from one entry log to another, and removing logs: the primitives of compaction.

For the lane that writes checkpoints, in bounded jobs between them. A copy replaces its original only once the copy is
durable, and only while the index references that original, so neither a newer copy nor a deletion is undone (storage
section 7.3).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple

from bkctl.storage.engine.directory_files import DirectoryFiles
from bkctl.storage.entry_log.format import FrameStart, decode_frame_start
from bkctl.storage.entry_log.reader import list_entry_logs
from bkctl.storage.errors import CorruptFileError, EntryLogError
from bkctl.storage.filenames import entry_log_file_name
from bkctl.storage.framing import LENGTH_BYTES
from bkctl.storage.ids import EntryId, EntryLocation, EntryLogId, LedgerId, pack_location
from bkctl.storage.index.location_index import decode_row, encode_keys, encode_locations
from bkctl.storage.ports import Buffer, File, FileSystem

_BATCH_ROW_COUNT_MAX = 8192
_SWEEP_ROW_COUNT_MAX = 32_768


class EntryMove(NamedTuple):
    """A copy of an entry, and the original that it replaces."""

    ledger_id: LedgerId
    entry_id: EntryId
    from_location: EntryLocation
    to_location: EntryLocation


class RowsNaming(NamedTuple):
    """Rows in one section of the index that reference some logs."""

    found: list[tuple[LedgerId, EntryId, EntryLocation]]
    next_start: bytes | None
    """Where the next section begins; None if that was the last one."""


class EntryRelocation:
    """The entry logs of one ledger directory as compaction sees them."""

    def __init__(self, files: DirectoryFiles, hidden_ledgers: AbstractSet[LedgerId]) -> None:
        self._files = files
        self.ledger_directory = files.ledger_directory
        self._locations = files.locations
        self._log_writer = files.log_writer
        self._hidden_ledgers = hidden_ledgers
        self._discards_seen: int | None = None
        """``discard_count`` of the log writer at the first unsynced copy; None if there is no unsynced copy."""

    def log_ids(self) -> list[EntryLogId]:
        """Ids of all logs in the directory, including the active one, ascending as numbers. OSError."""
        return list_entry_logs(self._files.filesystem, self._files.ledger_directory)

    def finished_log_ids(self) -> list[EntryLogId]:
        """Like ``log_ids`` without those that are still being written or prepared for that."""
        there = self.log_ids()  # listed first, so that a log begun in between is not in the list
        unfinished = self._log_writer.unfinished_log_ids
        return [log_id for log_id in there if log_id not in unfinished]

    def claim_log_id(self) -> EntryLogId:
        """Reserve an id for a log that the caller writes; no other log gets it. EntryLogError."""
        return self._log_writer.claim_log_id()

    def current_locations(self, keys: Sequence[tuple[LedgerId, EntryId]]) -> list[EntryLocation | None]:
        """Current location of each (ledger, entry) in the index; None: it was deleted or never stored."""
        return [
            None if ledger_id in self._hidden_ledgers else self._locations.find(ledger_id, entry_id)
            for ledger_id, entry_id in keys
        ]

    def append_survivors(self, bodies: Sequence[tuple[LedgerId, Buffer]]) -> list[EntryLocation]:
        """Copy bodies, each with its ledger, to the active log; the locations may be used only after ``sync_logs``.

        EntryLogError when the copies could not be written; all copies since the last ``sync_logs`` are then lost.
        """
        if self._discards_seen is None:
            self._discards_seen = self._log_writer.discard_count
        try:
            return self._log_writer.append(bodies)
        except EntryLogError:
            self._log_writer.discard_unsynced()
            raise

    def sync_logs(self) -> None:
        """Make the copies appended so far durable.

        EntryLogError when one of them was given up, here or with a failed checkpoint: copy again everything appended
        since the last successful ``sync_logs``.
        """
        discards_seen, self._discards_seen = self._discards_seen, None
        if discards_seen is not None and discards_seen != self._log_writer.discard_count:
            raise EntryLogError(
                f"{self._files.ledger_directory}: entries copied by the compaction were lost with a failed write"
            )
        try:
            self._log_writer.sync()
        except EntryLogError:
            self._log_writer.discard_unsynced()
            raise

    def relocate(self, moves: Sequence[EntryMove]) -> int:
        """Replace originals by their durable copies in the index, durably; returns the number replaced.

        Skips a move if the row no longer references its original. Repeatable. IndexFailedError, IndexDamagedError.
        """
        assert self._discards_seen is None, "sync_logs comes first: no row may name bytes that a crash can take"
        moved_count = 0
        for first in range(0, len(moves), _BATCH_ROW_COUNT_MAX):
            batch = sorted(moves[first : first + _BATCH_ROW_COUNT_MAX])
            current = self.current_locations([(move.ledger_id, move.entry_id) for move in batch])
            due = [move for move, location in zip(batch, current, strict=True) if location == move.from_location]
            if due:
                keys = encode_keys([move.ledger_id for move in due], [move.entry_id for move in due])
                self._locations.replace(keys, encode_locations([pack_location(move.to_location) for move in due]))
                moved_count += len(due)
        self._locations.seal()
        return moved_count

    def rows_naming(
        self,
        log_ids: AbstractSet[EntryLogId],
        ledger_ids: Sequence[LedgerId] | None,
        start: bytes,
        row_count_max: int = _SWEEP_ROW_COUNT_MAX,
    ) -> RowsNaming:
        """Search the next rows from the key ``start`` on (empty: the first) for rows that reference some logs.

        Of the ledgers given, ascending; None: of the whole index. IndexDamagedError.
        """
        rows = self._locations.page(start, row_count_max, ledger_ids)
        prefixes = {log_id.to_bytes(4, "big") for log_id in log_ids}
        found = [decode_row(key, value) for key, value in rows if value[:4] in prefixes]
        next_start = rows[-1][0] + b"\0" if len(rows) == row_count_max else None
        return RowsNaming(found, next_start)

    def remove_log(self, log_id: EntryLogId) -> None:
        """Delete a log that no row references; a missing log is not an error. OSError.

        A read that looked up its location before this looks it up again.
        """
        assert log_id not in self._log_writer.unfinished_log_ids, "a log that is being written is never removed"
        path = os.path.join(self.ledger_directory, entry_log_file_name(log_id))
        if self._files.filesystem.exists(path):
            self._files.filesystem.remove(path)
            self._files.filesystem.sync_directory(self.ledger_directory)
        self._files.log_reader.forget(log_id)


_READ_BYTES_MAX: Final = 1024 * 1024
_GAP_BYTES_MAX: Final = 16 * 1024
"""Entries no further apart than this are read in one operation."""


class SourceEntry(NamedTuple):
    """An entry of the log being compacted."""

    ledger_id: LedgerId
    entry_id: EntryId
    offset: int
    """Offset of the body."""
    size_bytes: int


class SelectedEntries(NamedTuple):
    """Some entries of the log, classified."""

    live: list[SourceEntry]
    """In use: to be copied."""
    unplaced_ledger_ids: frozenset[LedgerId]
    """Ledgers of entries for which the index has no location in any log."""


class CompactionSource:
    """The log being compacted: which of its entries the index still references, and their bodies."""

    def __init__(self, fs: FileSystem, relocation: EntryRelocation, log_id: EntryLogId) -> None:
        self._relocation = relocation
        self._path = os.path.join(relocation.ledger_directory, entry_log_file_name(log_id))
        self._fs = fs
        self._file: File | None = None
        self.log_id = log_id

    def select_live(self, entries: Sequence[SourceEntry]) -> SelectedEntries:
        """The entries whose location in the index is exactly this one: others are deleted or have newer copies."""
        places = self._relocation.current_locations([(entry.ledger_id, entry.entry_id) for entry in entries])
        placed = list(zip(entries, places, strict=True))
        return SelectedEntries(
            [entry for entry, place in placed if place == EntryLocation(self.log_id, entry.offset)],
            frozenset(entry.ledger_id for entry, place in placed if place is None),
        )

    def read_bodies(self, entries: Sequence[SourceEntry]) -> list[bytes]:
        """Bodies of entries given in file order. CorruptFileError when one differs from the scan; OSError."""
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
