"""Reading journal files back: what replay applies, and what a crash or damage left behind.

A crash can cut the newest file anywhere, and can leave holes of zeros in what was not synced yet: both end the file and
are reported. Bytes that no crash explains are a CorruptFileError. Source: storage sections 3.5 and 3.11; hazards H20
and H21 are excluded by bounds and by refusing zeros.
"""

from __future__ import annotations

import enum
import os
import struct
from collections.abc import Iterator

import msgspec

from storage.config import JOURNAL_BLOCK_BYTES
from storage.errors import CorruptFileError, JournalError
from storage.filenames import journal_file_name, parse_journal_file_name
from storage.framing import LENGTH_BYTES, ReadWindow
from storage.ids import JournalId, LogMark
from storage.journal_format import (
    PADDING_HEADER_BYTES,
    PADDING_MARK,
    PADDING_VERSION_MIN,
    VERSION_HEADER_BYTES,
    VERSION_MAX,
    VERSION_MIN,
    JournalRecord,
    data_start,
    decode_record,
    decode_version,
    is_zero_filled,
)
from storage.ports import FileSystem

_LENGTH = struct.Struct(">i")
_PADDING_WORD = _LENGTH.pack(PADDING_MARK)


class JournalEndReason(enum.Enum):
    """Why a scan ended."""

    ZEROS = "zeros up to the end of the file"
    END_OF_FILE = "end of the file"
    TORN_RECORD = "a record that the file does not hold whole"
    HOLE = "zeros with data behind them"


class JournalEnd(msgspec.Struct, frozen=True):
    """How a scan ended. Nothing was lost if ``dropped_bytes`` is 0."""

    reason: JournalEndReason
    data_end_offset: int
    """Where the last group, or the last whole record, ended."""
    resume_offset: int
    """Where a mark may be set once the records are durable in ledger storage. The end of the file if its tail was
    dropped, so that the tail is not met again when the file is no longer the newest one."""
    dropped_bytes: int
    """Bytes that were not zeros or stood among such, and that no record came from: unsynced, or damaged."""


class JournalScan:
    """The records of one file, read once by iterating; afterwards ``end`` says how the file ended."""

    def __init__(self, fs: FileSystem, path: str, start_offset: int, *, is_newest: bool) -> None:
        self._fs = fs
        self._path = path
        self._start_offset = start_offset
        self._is_newest = is_newest
        self._dropped_bytes = 0
        self._end: JournalEnd | None = None

    @property
    def end(self) -> JournalEnd:
        """How the file ended; RuntimeError before all records were taken."""
        if self._end is None:
            raise RuntimeError(f"{self._path} has not been read to its end")
        return self._end

    def __iter__(self) -> Iterator[JournalRecord]:
        file = self._fs.open(self._path)
        try:
            window = ReadWindow(file)
            version = self._version(window)
            offset = self._start_offset if self._start_offset > 0 else data_start(version)
            yield from self._records(window, version, max(offset, data_start(version)))
        finally:
            file.close()

    def _version(self, window: ReadWindow) -> int:
        version = decode_version(window.read(VERSION_HEADER_BYTES, 0))
        if not VERSION_MIN <= version <= VERSION_MAX:
            raise CorruptFileError(self._path, 0, f"journal version {version} is not known")
        return version

    def _records(self, window: ReadWindow, version: int, offset: int) -> Iterator[JournalRecord]:
        start = offset
        while True:
            word = window.read(LENGTH_BYTES, offset)
            if len(word) < LENGTH_BYTES:
                # No length begins like a padding mark: cut there, the group's records are whole.
                self._finish_cut(window, offset + len(word) if _PADDING_WORD.startswith(word) else offset)
                return
            length = _LENGTH.unpack(word)[0]
            if length == 0:
                self._finish_zeros(window, offset, is_resumed=version >= PADDING_VERSION_MIN and offset == start)
                return
            if length == PADDING_MARK and version >= PADDING_VERSION_MIN:
                behind = self._behind_padding(window, offset)
                if behind is None:
                    # Cut inside the padding: the group's records were whole, so nothing is lost.
                    self._finish(JournalEndReason.END_OF_FILE, offset, window.size_bytes)
                    return
                offset = behind
                continue
            if length < 0:
                raise CorruptFileError(self._path, offset, f"length {length} of a record")
            # Compared before anything is allocated: the word may be garbage (H20).
            if length > window.size_bytes - offset - LENGTH_BYTES:
                self._finish_cut(window, offset)
                return
            record = self._record(window.read(length, offset + LENGTH_BYTES), offset, version)
            offset += LENGTH_BYTES + length
            if record is not None:
                yield record

    def _record(self, data: bytes, offset: int, version: int) -> JournalRecord | None:
        """Decode a record; None for one of zeros only (H21), which in an older file is corruption."""
        if is_zero_filled(data):
            if not self._is_newest:
                raise CorruptFileError(self._path, offset, f"a record of {len(data)} zeros")
            # Its group was not synced, so nobody was told of it. The length word still leads to the next record.
            self._dropped_bytes += LENGTH_BYTES + len(data)
            return None
        try:
            return decode_record(data, offset, version)
        except ValueError as error:
            raise CorruptFileError(self._path, offset, str(error)) from error

    def _behind_padding(self, window: ReadWindow, offset: int) -> int | None:
        """Offset behind the padding at ``offset``; None if the file ends inside it."""
        word = window.read(LENGTH_BYTES, offset + LENGTH_BYTES)
        if len(word) < LENGTH_BYTES:
            return None
        count = _LENGTH.unpack(word)[0]
        if count < 0:
            raise CorruptFileError(self._path, offset, f"length {count} of padding")
        behind: int = offset + PADDING_HEADER_BYTES + count
        if behind <= window.size_bytes:
            return behind
        if window.skip_zeros(offset + PADDING_HEADER_BYTES) < window.size_bytes:
            raise CorruptFileError(self._path, offset, f"padding of {count} bytes reaches behind the file, over data")
        return None

    def _finish_zeros(self, window: ReadWindow, offset: int, *, is_resumed: bool) -> None:
        """End at a zero length word: the end of the journal, unless there is data behind the zeros."""
        data_end = window.data_end(offset)
        if data_end == offset:
            self._finish(JournalEndReason.ZEROS, offset, offset)
            return
        # A mark is a group's end, hence aligned, or the place where an earlier replay stopped: what lies behind that
        # was reported then, and the file has not grown since (storage section 3.9).
        is_replayed_before = is_resumed and offset % JOURNAL_BLOCK_BYTES != 0
        if not self._is_newest and not is_replayed_before:
            raise CorruptFileError(self._path, offset, f"zeros with data behind them, up to offset {data_end},")
        self._dropped_bytes += data_end - offset
        self._finish(JournalEndReason.HOLE, offset, window.size_bytes)

    def _finish_cut(self, window: ReadWindow, offset: int) -> None:
        """End at a record that is not whole."""
        data_end = window.data_end(offset)
        if data_end == offset:
            self._finish(JournalEndReason.END_OF_FILE, offset, max(offset, window.size_bytes))
            return
        self._dropped_bytes += data_end - offset
        self._finish(JournalEndReason.TORN_RECORD, offset, window.size_bytes)

    def _finish(self, reason: JournalEndReason, data_end_offset: int, resume_offset: int) -> None:
        self._end = JournalEnd(reason, data_end_offset, resume_offset, self._dropped_bytes)


def scan_journal(fs: FileSystem, path: str, start_offset: int = 0, *, is_newest: bool) -> JournalScan:
    """Records of the file ``path`` from ``start_offset`` on, or from behind the header if that is 0 or less.

    ``is_newest``: whether no file of the journal has a larger id. Iterating raises CorruptFileError, naming the offset,
    for bytes that no crash explains, and OSError when the file cannot be read. Records of type UNKNOWN are given: the
    caller skips them (storage section 3.6). Whether a ledger belongs to this journal is the caller's to check.
    """
    return JournalScan(fs, path, start_offset, is_newest=is_newest)


def list_journals(fs: FileSystem, directory: str) -> list[JournalId]:
    """Ids of the journal files in a folder, ascending as numbers. OSError if the folder cannot be read."""
    journal_ids = map(parse_journal_file_name, fs.list_directory(directory))
    return sorted(journal_id for journal_id in journal_ids if journal_id is not None)


def journals_to_replay(fs: FileSystem, directory: str, mark: LogMark) -> list[JournalId]:
    """Ids that a replay from ``mark`` reads, ascending (storage section 3.11, step 1).

    JournalError when the file that the mark names is missing: what was acknowledged behind it would be lost unseen.
    """
    journal_ids = [journal_id for journal_id in list_journals(fs, directory) if journal_id >= mark.journal_id]
    if mark.journal_id > 0 and mark.journal_id not in journal_ids:
        missing = os.path.join(directory, journal_file_name(mark.journal_id))
        raise JournalError(f"{missing} is missing, though the log mark names it: acknowledged entries may be in it")
    return journal_ids
