"""Builds our indexes of one ledger directory from the ``.idx`` files of a Java bookie, under temporary names.

Interleaved and Sorted storage write a ledger's entries to the logs of any directory. Our locations are valid only
within one directory, so each ledger belongs to the directory that its id selects. Entries in other directories are
copied into a log of the right one; the old copies stay.

An entry that cannot be read gets no row, and its ledger is in limbo: missing entries are reported as "unknown" rather
than "no such entry" until the integrity check has restored them from another bookie (storage section 9.2).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import struct
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from bkctl.storage.config import EntryLogConfig
from bkctl.storage.entry_log.format import BODY_OFFSET_MIN, ENTRY_BYTES_MIN
from bkctl.storage.entry_log.reader import EntryLogReader
from bkctl.storage.entry_log.writer import EntryLogWriter
from bkctl.storage.errors import AdoptionRefusedError, EntryLogError
from bkctl.storage.filenames import (
    ADOPTING_SUFFIX,
    DATABASES,
    LEDGERS_DATABASE,
    LOCATIONS_DATABASE,
    entry_log_file_name,
    seal_file_name,
)
from bkctl.storage.ids import EntryId, EntryLocation, EntryLogId, LedgerId, pack_location, unpack_location
from bkctl.storage.index.java_index import HEADER_BYTES, LOCATION_BYTES, IdxHeader, decode_idx_header, decode_locations
from bkctl.storage.index.journaled_rows import JournaledLedger, JournaledLedgers, Unreadable, row_with_journals
from bkctl.storage.index.kept_files import KeptFiles, remove_files
from bkctl.storage.index.ledger_index import LedgerIndex, LedgerRow, encode_row, explicit_lac_of, is_placeholder_key
from bkctl.storage.index.seal import SealedIndex, create_sealed_index
from bkctl.storage.ports import FileSystem, OpenIndexStore

_PAGE_LOCATION_COUNT = 64 * 1024
_BATCH_ROW_COUNT_MAX = 8192
_UNREADABLE_TOLD_MAX = 1000
_LEDGER_KEY = struct.Struct(">q")
_ENTRY_KEY = struct.Struct(">qq")
_LOCATION = struct.Struct(">q")


class BuildReport(msgspec.Struct):
    """Contents of the indexes that adoption built."""

    ledger_count: int = 0
    entry_count: int = 0
    copied_entry_count: int = 0
    """Entries that were copied into a log of their ledger's directory."""
    unreadable_count: int = 0
    unreadable: list[Unreadable] = []
    """The first ``_UNREADABLE_TOLD_MAX`` of them."""

    def note(self, path: str, reason: str) -> None:
        """Count one more unreadable item."""
        self.unreadable_count += 1
        if len(self.unreadable) < _UNREADABLE_TOLD_MAX:
            self.unreadable.append(Unreadable(path, reason))


class LocatedLogs(msgspec.Struct, frozen=True):
    """Directory of each entry log of a bookie with Interleaved storage, whose log ids are unique in all directories."""

    directories: Sequence[str]
    """Ledger directories (``current``)."""
    positions: Mapping[EntryLogId, int]
    sizes_bytes: Mapping[EntryLogId, int]

    @property
    def last_log_id(self) -> EntryLogId:
        """The highest log id, or -1 if there are no logs."""
        return max(self.positions, default=-1)

    def why_not_there(self, place: EntryLocation) -> str | None:
        """Why no entry can be at this location, or None. Does not read the entry; only a copy does that."""
        if place.log_id < 0 or place.offset < BODY_OFFSET_MIN:
            return f"no entry can be at the location {place.log_id:x}:{place.offset}"
        size_bytes = self.sizes_bytes.get(place.log_id)
        if size_bytes is None:
            return f"its entry log {entry_log_file_name(place.log_id)} is missing"
        if place.offset + ENTRY_BYTES_MIN > size_bytes:
            return f"its entry log {entry_log_file_name(place.log_id)} ends before offset {place.offset}"
        return None


def read_idx_header(fs: FileSystem, path: str) -> IdxHeader:
    """Header of an index file; ValueError, OSError."""
    file = fs.open(path)
    try:
        return decode_idx_header(file.pread(HEADER_BYTES, 0))
    finally:
        file.close()


def read_idx_locations(fs: FileSystem, paths: Sequence[str]) -> Iterator[tuple[EntryId, int]]:
    """Entry ids with their locations. If a move left two files of the ledger, the later copy counts. OSError."""
    with contextlib.ExitStack() as undo:
        files = [fs.open(path) for path in paths]
        for file in files:
            undo.callback(file.close)
        for first in itertools.count(0, _PAGE_LOCATION_COUNT):
            size_bytes, offset = _PAGE_LOCATION_COUNT * LOCATION_BYTES, HEADER_BYTES + first * LOCATION_BYTES
            pages = [decode_locations(file.pread(size_bytes, offset)) for file in files]
            if not any(pages):
                return
            for entry_id, found in enumerate(itertools.zip_longest(*pages, fillvalue=0), first):
                if any(found):
                    yield entry_id, max(found, key=abs)


class IndexBuild:
    """Fills the new indexes of the ledger directory at ``position``. Always call ``close``, finished or not.

    After EntryLogError, OSError or an error of the index, discard the build and start again.
    """

    def __init__(
        self,
        fs: FileSystem,
        open_index: OpenIndexStore,
        logs: LocatedLogs,
        position: int,
        index_directory: str,
        config: EntryLogConfig,
        journaled: JournaledLedgers,
        report: BuildReport,
    ) -> None:
        self._fs = fs
        self._logs = logs
        self._journaled = journaled
        self._position = position
        self._report = report
        self._undo = contextlib.ExitStack()
        try:
            self._ledgers = self._create(open_index, index_directory, LEDGERS_DATABASE)
            self._locations = self._create(open_index, index_directory, LOCATIONS_DATABASE)
        except BaseException:
            self._undo.close()
            raise
        # Use ids after those of all directories: if a Java bookie is started after all, it must find each id once.
        self._writer = EntryLogWriter(fs, logs.directories[position], config, logs.last_log_id)
        self._undo.callback(self._writer.close)
        self._readers = [EntryLogReader(fs, directory, config) for directory in logs.directories]
        for reader in self._readers:
            self._undo.callback(reader.close)
        self._ledger_rows: list[tuple[bytes, bytes]] = []
        self._location_rows: list[tuple[bytes, bytes]] = []

    def add(self, ledger_id: LedgerId, paths: Sequence[str]) -> None:
        """Add a ledger with its index files; call this in ascending order of ledger ids.

        AdoptionRefusedError if two index files of the ledger contain different keys.
        """
        row: LedgerRow | None = None
        is_whole = True
        readable: list[str] = []
        for path in paths:
            try:
                header = read_idx_header(self._fs, path)
            except (ValueError, OSError) as error:
                self._report.note(path, str(error))
                is_whole = False
            else:
                found = LedgerRow(header.master_key, is_fenced=header.is_fenced, explicit_lac=header.explicit_lac)
                row = found if row is None else _merged(path, row, found)
                readable.append(path)
        for entry_id, location in read_idx_locations(self._fs, readable):
            place = self._placed(ledger_id, entry_id, location)
            is_whole = is_whole and place is not None
            if place is not None:
                self._location_rows.append((_ENTRY_KEY.pack(ledger_id, entry_id), _LOCATION.pack(place)))
                self._write_locations(_BATCH_ROW_COUNT_MAX)
        journaled = self._journaled.ledgers.get(ledger_id, JournaledLedger())
        row = row_with_journals(row or LedgerRow(is_fenced=True), journaled)
        # Rule: a ledger is fenced unless proven otherwise. An unreadable journal may contain its fence.
        is_fenced = row.is_fenced or bool(self._journaled.unreadable)
        row = msgspec.structs.replace(row, is_fenced=is_fenced, is_limbo=not is_whole)
        self._ledger_rows.append((_LEDGER_KEY.pack(ledger_id), encode_row(row)))
        self._report.ledger_count += 1
        self._write_ledgers(_BATCH_ROW_COUNT_MAX)

    def finish(self, *, flags: int) -> None:
        """Sync everything. ``flags``: storage flags of the bookie, stored in its first directory only."""
        self._write_locations(1)
        self._write_ledgers(1)
        self._writer.roll()
        self._writer.sync()
        if flags:
            LedgerIndex.load(self._ledgers).write_flags(flags)
        self._ledgers.record()
        self._locations.record()

    def close(self) -> None:
        """Close all files; safe to repeat."""
        self._undo.close()

    def _create(self, open_index: OpenIndexStore, index_directory: str, database: str) -> SealedIndex:
        index = create_sealed_index(self._fs, open_index, building_path(index_directory, database))
        self._undo.callback(index.close)
        return index

    def _placed(self, ledger_id: LedgerId, entry_id: EntryId, location: int) -> int | None:
        """Location of an entry in this directory, copying it here if necessary; None if it cannot be read."""
        place = unpack_location(location)
        reason = self._logs.why_not_there(place)
        source = self._logs.positions.get(place.log_id)
        if reason is None and source is not None and source != self._position:
            try:
                body = self._readers[source].read(place, ledger_id, entry_id)
            except EntryLogError as error:
                reason = str(error)
            else:
                (copy,) = self._writer.append([(ledger_id, body)])
                location = pack_location(copy)
                self._report.copied_entry_count += 1
        if reason is not None:
            self._report.note(f"ledger {ledger_id} entry {entry_id}", reason)
            return None
        self._report.entry_count += 1
        return location

    def _write_locations(self, row_count_min: int) -> None:
        if len(self._location_rows) >= row_count_min:
            # Rule: entries are durable before the index references them.
            self._writer.sync()
            self._locations.write(self._location_rows)
            self._location_rows.clear()

    def _write_ledgers(self, row_count_min: int) -> None:
        if len(self._ledger_rows) >= row_count_min:
            self._ledgers.write(self._ledger_rows)
            self._ledger_rows.clear()


def discard_build(fs: FileSystem, index_directory: str) -> None:
    """Delete the files of an unfinished build from an index directory (``current``); safe to repeat. OSError."""
    for database in DATABASES:
        path = building_path(index_directory, database)
        if fs.exists(path):
            KeptFiles(fs, path).drop()
            remove_files(fs, path)
            fs.remove_directory(path)
        if fs.exists(record_path := seal_file_name(path)):
            fs.remove(record_path)
    fs.sync_directory(index_directory)


def building_path(index_directory: str, database: str) -> str:
    """Directory of a database while adoption fills it."""
    return os.path.join(index_directory, database + ADOPTING_SUFFIX)


def _merged(path: str, one: LedgerRow, other: LedgerRow) -> LedgerRow:
    """Merge the rows of two index files of one ledger. Java moves a file by copying it, so a crash can leave both."""
    keys = {row.master_key for row in (one, other) if not is_placeholder_key(row.master_key)}
    if len(keys) > 1:
        raise AdoptionRefusedError(
            f"nothing was changed: {path} has a different key of its ledger than the index file in another "
            "directory; move the wrong one elsewhere"
        )
    lacs = [row.explicit_lac for row in (one, other) if row.explicit_lac is not None]
    return LedgerRow(
        master_key=other.master_key if is_placeholder_key(one.master_key) else one.master_key,
        is_fenced=one.is_fenced or other.is_fenced,
        explicit_lac=max(lacs, key=explicit_lac_of, default=None),
    )
