"""Reading entry logs: single entries by location, whole logs by scan, and the bytes of each ledger in a log.

Every failure to read a requested entry is an EntryLogError, never "no such entry": a wrong "no" could make ledger
recovery truncate an acknowledged entry (storage sections 4.8 and 12). Lengths are compared with the size of the file
before anything is allocated (hazard H20).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections import Counter, OrderedDict
from collections.abc import Iterator
from typing import NamedTuple

from bkctl.storage.advice import without_path
from bkctl.storage.config import EntryLogConfig
from bkctl.storage.entry import ENTRY_HEADER_BYTES_MIN
from bkctl.storage.entry_log.format import (
    BODY_OFFSET_MIN,
    ENTRY_BYTES_MIN,
    FRAME_START_BYTES,
    HEADER_BYTES,
    MAP_LEDGER_ID,
    decode_frame_start,
    decode_header,
    decode_map_batch,
    decode_map_batch_size,
    is_stray,
    matching_bodies,
)
from bkctl.storage.errors import EntryDamagedError, EntryLogError, EntryLogMissingError
from bkctl.storage.filenames import entry_log_file_name, parse_entry_log_file_name
from bkctl.storage.framing import LENGTH_BYTES, ReadWindow
from bkctl.storage.ids import EntryId, EntryLocation, EntryLogId, LedgerId, LocationRun
from bkctl.storage.ports import File, FileSystem

_FIRST_READ_BYTES = 4096
"""One read usually returns the size word and the whole entry."""

FILLER_BYTES = b"\x00\xf0"
"""Bytes between entries: zeros where nothing was written, or the filler of direct-I/O logs."""
_NEGATIVE = re.compile(rb"[\x80-\xff]*")
"""Bytes that cannot start a positive size word."""


class ScannedEntry(NamedTuple):
    """An entry that a scan found."""

    location: EntryLocation
    ledger_id: LedgerId
    entry_id: EntryId
    size_bytes: int
    """Bytes of the body."""


class EntryLogScan:
    """The entries of one log, in file order; iterate once. Afterwards ``dropped_bytes`` is final."""

    def __init__(self, fs: FileSystem, directory: str, log_id: EntryLogId) -> None:
        self._fs = fs
        self._path = os.path.join(directory, entry_log_file_name(log_id))
        self._log_id = log_id
        self.dropped_bytes = 0
        """Bytes at the end of the log that start like an entry but are incomplete: torn or damaged."""

    def __iter__(self) -> Iterator[ScannedEntry]:
        return (each for each in self.with_strays() if not is_stray(each.ledger_id, each.entry_id))

    def with_strays(self) -> Iterator[ScannedEntry]:
        """The entries and the records with a negative id, which no reader can ask for."""
        try:
            file = self._fs.open(self._path)
        except OSError as error:
            raise EntryLogError(f"{self._path}: cannot scan: {without_path(error)}") from error
        try:
            yield from self._entries(ReadWindow(file))
        except OSError as error:
            raise EntryLogError(f"{self._path}: cannot scan: {without_path(error)}") from error
        finally:
            file.close()

    def _entries(self, window: ReadWindow) -> Iterator[ScannedEntry]:
        """Storage section 4.6, with every size bounded by the bytes left."""
        offset = HEADER_BYTES
        while True:
            frame = decode_frame_start(window.read(FRAME_START_BYTES, offset))
            if frame is None:
                self.dropped_bytes = len(window.read(FRAME_START_BYTES, offset).strip(FILLER_BYTES))
                return
            if frame.size_bytes < ENTRY_BYTES_MIN:
                # Filler, not an entry. Continue byte by byte, except in runs in which no size word can start.
                offset = behind_filler(window, offset)
                continue
            if frame.size_bytes > window.size_bytes - offset - LENGTH_BYTES:
                self.dropped_bytes = window.data_end(offset) - offset
                return
            if frame.ledger_id != MAP_LEDGER_ID:
                location = EntryLocation(self._log_id, offset + LENGTH_BYTES)
                yield ScannedEntry(location, frame.ledger_id, frame.entry_id, frame.size_bytes)
            offset += LENGTH_BYTES + frame.size_bytes


class _SharedFile:
    """A file that is closed when its last user drops it, so that forgetting a log never interrupts a read."""

    def __init__(self, file: File) -> None:
        self.file = file

    def __del__(self) -> None:
        self.file.close()


class EntryLogReader:
    """Reads the entry logs of one ledger directory, including the active one.

    Several lanes may call ``read`` and ``forget`` concurrently: they share only the dict of open files, and every
    access to it is a single atomic operation of the interpreter.
    """

    def __init__(self, fs: FileSystem, directory: str, config: EntryLogConfig) -> None:
        self._fs = fs
        self._directory = directory
        self._config = config
        self._open: OrderedDict[EntryLogId, _SharedFile] = OrderedDict()

    def read(self, location: EntryLocation, ledger_id: LedgerId, entry_id: EntryId) -> bytes:
        """Body of an entry at its ``location`` in the index; EntryLogError for any failure.

        EntryLogMissingError when the log does not exist, EntryDamagedError when something else is at that offset.
        """
        shared = self._opened(location, ledger_id, entry_id)
        try:
            start = shared.file.pread(_FIRST_READ_BYTES, self._frame_offset(location))
            frame_bytes = self._frame_bytes(start, location, ledger_id, entry_id)
            if len(start) < frame_bytes:
                rest_offset = self._frame_offset(location) + len(start)
                start += shared.file.pread(frame_bytes - len(start), rest_offset)
        except OSError as error:
            raise self._error(location, ledger_id, entry_id, str(error)) from error
        return self._body(start, frame_bytes, location, ledger_id, entry_id)

    def read_run(self, locations: LocationRun, ledger_id: LedgerId, entry_id: EntryId, bytes_max: int) -> list[bytes]:
        """Bodies of an entry and of the next ones that follow it in its log, within ``bytes_max``.

        ``locations``: of the entry and of those with the next ids, from the index; each body is checked against its own
        location, so that none is an older copy (H18). Raises like ``read``, but only for the first entry.
        """
        bytes_max = max(bytes_max, _FIRST_READ_BYTES)
        location = EntryLocation(locations.log_id, locations.offsets[0])
        start = self._frame_offset(location)
        reach = range(location.offset, location.offset + bytes_max)
        near = list(itertools.takewhile(reach.__contains__, locations.offsets))
        last_bytes = max(_FIRST_READ_BYTES, near[-1] - near[-2]) if len(near) > 1 else _FIRST_READ_BYTES
        file = self._opened(location, ledger_id, entry_id).file
        try:
            data = file.pread(min(bytes_max, near[-1] - start + last_bytes), start)
            first_bytes = self._frame_bytes(data, location, ledger_id, entry_id)
            if len(data) < first_bytes:
                data += file.pread(first_bytes - len(data), start + len(data))
        except OSError as error:
            raise self._error(location, ledger_id, entry_id, str(error)) from error
        first = self._body(data[:first_bytes], first_bytes, location, ledger_id, entry_id)
        starts = [offset - LENGTH_BYTES - start for offset in near[1:]]
        body_bytes = range(ENTRY_HEADER_BYTES_MIN, self._config.entry_bytes_max + 1)
        return [first, *matching_bodies(data, starts, ledger_id, entry_id + 1, body_bytes)]

    def scan(self, log_id: EntryLogId) -> EntryLogScan:
        """Entries of a log in file order; iterating raises EntryLogError if the log is missing or cannot be read.

        A log of 0 bytes has none: Java prepares such files. Entries with negative entry or ledger ids are left out.
        """
        return EntryLogScan(self._fs, self._directory, log_id)

    def ledgers_map(self, log_id: EntryLogId) -> dict[LedgerId, int]:
        """Bytes, size words included, of each ledger in a log: from its map, otherwise by a scan.

        EntryLogError if the log is missing or cannot be read.
        """
        ledger_bytes = self.stored_ledgers_map(log_id)
        if ledger_bytes is not None:
            return ledger_bytes
        counted: Counter[LedgerId] = Counter()
        for entry in self.scan(log_id):
            counted[entry.ledger_id] += LENGTH_BYTES + entry.size_bytes
        return dict(counted)

    def stored_ledgers_map(self, log_id: EntryLogId) -> dict[LedgerId, int] | None:
        """The map at the end of a log; None if it has no valid one. Raises like ``ledgers_map``."""
        path = os.path.join(self._directory, entry_log_file_name(log_id))
        try:
            file = self._fs.open(path)
            try:
                return read_ledgers_map(ReadWindow(file))
            finally:
                file.close()
        except OSError as error:
            raise EntryLogError(f"{path}: cannot read the ledgers map: {without_path(error)}") from error

    def forget(self, log_id: EntryLogId) -> None:
        """Close a log that was removed; call this after the removal. Running reads can finish."""
        self._open.pop(log_id, None)

    def close(self) -> None:
        """Close all files; safe to repeat."""
        self._open.clear()

    def _opened(self, location: EntryLocation, ledger_id: LedgerId, entry_id: EntryId) -> _SharedFile:
        try:
            return self._shared_file(location.log_id)
        except FileNotFoundError as error:
            raise EntryLogMissingError(self._sentence(location, ledger_id, entry_id, str(error))) from error
        except OSError as error:
            raise self._error(location, ledger_id, entry_id, str(error)) from error

    def _shared_file(self, log_id: EntryLogId) -> _SharedFile:
        shared = self._open.get(log_id)
        if shared is not None:
            with contextlib.suppress(KeyError):  # another lane may forget it at any moment
                self._open.move_to_end(log_id)
            return shared
        path = os.path.join(self._directory, entry_log_file_name(log_id))
        shared = _SharedFile(self._fs.open(path))
        self._open[log_id] = shared
        if not self._fs.exists(path):
            # Removed in between: ``forget`` may have come too early, and the open file would keep its disk space.
            self.forget(log_id)
        while len(self._open) > self._config.open_files_max:
            with contextlib.suppress(KeyError):  # another lane may have emptied it
                self._open.popitem(last=False)
        return shared

    def _frame_offset(self, location: EntryLocation) -> int:
        return max(location.offset, BODY_OFFSET_MIN) - LENGTH_BYTES

    def _frame_bytes(self, start: bytes, location: EntryLocation, ledger_id: LedgerId, entry_id: EntryId) -> int:
        """Bytes of the frame, checked against the index."""
        frame = decode_frame_start(start)
        if location.offset < BODY_OFFSET_MIN or frame is None:
            raise self._damage(location, ledger_id, entry_id, "no entry can be there")
        if (frame.ledger_id, frame.entry_id) != (ledger_id, entry_id):
            raise self._damage(location, ledger_id, entry_id, f"found {frame.ledger_id}:{frame.entry_id} instead")
        if not ENTRY_HEADER_BYTES_MIN <= frame.size_bytes <= self._config.entry_bytes_max:
            raise self._damage(location, ledger_id, entry_id, f"its size word is {frame.size_bytes}")
        return LENGTH_BYTES + frame.size_bytes

    def _body(
        self, frame: bytes, frame_bytes: int, location: EntryLocation, ledger_id: LedgerId, entry_id: EntryId
    ) -> bytes:
        if len(frame) < frame_bytes:
            raise self._damage(location, ledger_id, entry_id, f"only {len(frame)} of {frame_bytes} bytes are present")
        return frame[LENGTH_BYTES:frame_bytes]

    def _error(self, location: EntryLocation, ledger_id: LedgerId, entry_id: EntryId, reason: str) -> EntryLogError:
        return EntryLogError(self._sentence(location, ledger_id, entry_id, reason))

    def _damage(
        self, location: EntryLocation, ledger_id: LedgerId, entry_id: EntryId, reason: str
    ) -> EntryDamagedError:
        return EntryDamagedError(self._sentence(location, ledger_id, entry_id, reason))

    def _sentence(self, location: EntryLocation, ledger_id: LedgerId, entry_id: EntryId, reason: str) -> str:
        path = os.path.join(self._directory, entry_log_file_name(location.log_id))
        return f"{path}: entry {ledger_id}:{entry_id} at offset {location.offset}: {reason}"


def list_entry_logs(fs: FileSystem, directory: str) -> list[EntryLogId]:
    """Ids of the logs in a directory, ascending as numbers. OSError if the directory cannot be read."""
    log_ids = map(parse_entry_log_file_name, fs.list_directory(directory))
    return sorted(log_id for log_id in log_ids if log_id is not None)


def behind_filler(window: ReadWindow, offset: int) -> int:
    """Next offset at which a positive size word can start; the same that single steps would reach."""
    if window.read(1, offset)[0] >= 0x80:
        return window.skip(_NEGATIVE, offset)
    # Zeros, or a small number: continue at the word whose last byte is the first nonzero one.
    return max(offset + 1, window.skip_zeros(offset) - LENGTH_BYTES + 1)


def read_ledgers_map(window: ReadWindow) -> dict[LedgerId, int] | None:
    """The map of a log (storage section 4.7); None if it has no valid one."""
    header = decode_header(window.read(HEADER_BYTES, 0))
    if header is None or not header.has_map:
        return None
    ledger_bytes: dict[LedgerId, int] = {}
    row_count, offset = 0, header.map_offset
    while row_count < header.ledger_count:
        batch_bytes = decode_map_batch_size(window.read(24, offset))
        if batch_bytes is None or batch_bytes > window.size_bytes - offset:
            return None
        rows = decode_map_batch(window.read(batch_bytes, offset))
        ledger_bytes.update(rows)
        row_count += len(rows)
        offset += batch_bytes
    # A repeated ledger, or more rows than announced: the header and the map do not belong together.
    if len(ledger_bytes) != header.ledger_count or min(ledger_bytes) < 0:
        return None
    return ledger_bytes
