"""Distinguishing a group that a crash tore from damage, in journal files that this bookie wrote.

A crash can tear only one group: the one being written, which was not acknowledged. All groups before it were synced. So
the reader may drop a tail if a crash can have made it, and must refuse it otherwise, because it may then hold
acknowledged entries. By the guarantees of ``writer``, a crash can leave this:

- Each sector of the torn group, 512 bytes, holds what was written, or zeros, as it was never written before. Groups
  begin on sectors. The kernel chooses the order: later sectors can be there without earlier ones.
- The torn group is the last one: nothing follows it. It ends with padding, and its length is bounded.
- The file is at least as long as its groups: its length was synced before them.

A checksum in a group (``group``) shows more. A group that does not match it is damaged, unless it has a sector of zeros
that was never written. A group whose checksum says that it began later proves that earlier ones were synced.

A hole of whole sectors that reaches into the last group is ambiguous, because nothing on disk shows what had been
synced. It is treated as torn, and reported (decisions 6 and 9).
"""

from __future__ import annotations

import struct

from bkctl.storage.config import JOURNAL_BLOCK_BYTES, JOURNAL_VERSION_MAX, JOURNAL_VERSION_MIN
from bkctl.storage.errors import CorruptFileError
from bkctl.storage.framing import LENGTH_BYTES, ReadWindow
from bkctl.storage.journal.catalog import CatalogedJournal
from bkctl.storage.journal.format import (
    HEADER_BYTES,
    PADDING_HEADER_BYTES,
    PADDING_MARK,
    PADDING_VERSION_MIN,
    RECORD_START_BYTES,
    VERSION_HEADER_BYTES,
    decode_version,
    is_record_start,
)
from bkctl.storage.journal.group import CHECKSUM_BYTES, CHECKSUM_MARK, JournalGroup, decode_checksum, is_checksum_right

_LENGTH = struct.Struct(">i")
_PADDING_WORD = _LENGTH.pack(PADDING_MARK)


def require_whole_file(window: ReadWindow, path: str, journal: CatalogedJournal) -> None:
    """Raise CorruptFileError unless the file has its header and the length that the writer gave it."""
    version = decode_version(window.read(VERSION_HEADER_BYTES, 0))
    if window.size_bytes < HEADER_BYTES or not JOURNAL_VERSION_MIN <= version <= JOURNAL_VERSION_MAX:
        raise CorruptFileError(path, 0, "no journal header, but acknowledged entries may follow,")
    if version < PADDING_VERSION_MIN and (journal.has_checksums or not journal.is_loose):
        raise CorruptFileError(path, 0, f"version {version}, in a file that was started with a later one,")
    if journal.is_loose and journal.end_offset == 0:
        return  # It may have grown without a sync.
    size_bytes = window.size_bytes
    last_step = size_bytes - size_bytes % journal.step_bytes
    # A crash can leave an incomplete step, but then nothing was written there yet.
    if size_bytes < journal.step_bytes or window.skip_zeros(last_step) < size_bytes:
        raise CorruptFileError(path, size_bytes, f"truncated: it grows by {journal.step_bytes} bytes, and ends")


class GroupDamage:
    """Checks whether a crash can explain what is wrong in a group of a file that this bookie wrote."""

    def __init__(self, window: ReadWindow, path: str, journal: CatalogedJournal, unsynced_bytes_max: int) -> None:
        self._window = window
        self._path = path
        self._journal = journal
        self._unsynced_bytes_max = unsynced_bytes_max

    def require_torn(self, group_start: int, offset: int, size_bytes: int, reason: str) -> None:
        """Raise CorruptFileError with ``reason`` unless a crash can explain the bytes at ``offset``.

        All length words of the group before ``offset`` lead there. The ``size_bytes`` at ``offset`` cannot be what the
        writer wrote; 0 if that is not visible.
        """
        self._require_unfinished(offset, reason)
        if size_bytes and self._is_written_as_read(group_start, offset, size_bytes):
            raise CorruptFileError(self._path, offset, reason)
        self._require_last(group_start, offset, reason)

    def require_torn_group(self, group: JournalGroup) -> bool:
        """Raise CorruptFileError unless a crash can explain that a group does not match its checksum.

        Returns whether its sectors of zeros are certainly missing, so that records in them are not what was written.
        """
        reason = "a group that does not match its checksum"
        start = group.start_offset
        self._require_unfinished(start, reason)
        end = group.padding_offset + PADDING_HEADER_BYTES + CHECKSUM_BYTES
        if self._is_written(start, start, end - start):
            raise CorruptFileError(self._path, start, reason)
        self._require_last(start, start, reason)
        return not group.checksum.may_hold_zero_sectors

    def require_checksum(self, group_start: int, padding_offset: int) -> None:
        """Raise CorruptFileError for padding without a checksum, unless the sector of the checksum can be missing."""
        size_bytes = PADDING_HEADER_BYTES + CHECKSUM_BYTES
        if decode_checksum(self._window.read(size_bytes, padding_offset)) is None:
            self.require_torn(group_start, padding_offset, size_bytes, "padding without a checksum")

    def is_missing(self, group_start: int, offset: int, size_bytes: int) -> bool:
        """Whether a range of a torn group reaches into a sector of zeros, if such sectors are missing ones."""
        return not self._is_written(group_start, offset, size_bytes)

    def require_longer_file(self, offset: int) -> None:
        """Raise CorruptFileError if the file ends with its data, which ends at ``offset``: then it was truncated there.

        The writer extends the file durably before it writes a group that would reach its end.
        """
        size_bytes = self._window.size_bytes
        if self._journal.has_checksums and size_bytes - size_bytes % self._journal.step_bytes <= offset:
            raise CorruptFileError(self._path, offset, "truncated: it is always longer than its data, which ends")

    def require_end(self, offset: int) -> None:
        """Raise CorruptFileError if the data ends before the end that the writer recorded."""
        if offset < self._journal.end_offset:
            raise CorruptFileError(self._path, offset, f"data up to {self._journal.end_offset} is missing: zeros")

    def _require_last(self, group_start: int, offset: int, reason: str) -> None:
        """Raise CorruptFileError if later data than the group follows it."""
        data_end = self._window.data_end(offset)
        if data_end > group_start + self._unsynced_bytes_max:
            raise CorruptFileError(self._path, offset, f"{reason}, followed by too much data for one group,")
        next_start = self._next_group(offset, data_end)
        if next_start is None and self._journal.has_checksums:
            next_start = self._next_checksum(group_start, data_end)
        if next_start is not None:
            raise CorruptFileError(self._path, offset, f"{reason}, followed by a later group (at {next_start}),")

    def _require_unfinished(self, offset: int, reason: str) -> None:
        if self._journal.end_offset > 0:
            raise CorruptFileError(self._path, offset, f"{reason}, in a complete file,")

    def _is_written_as_read(self, group_start: int, offset: int, size_bytes: int) -> bool:
        """Whether the sectors of all length words up to here were written, so that the words are correct.

        Otherwise a missing sector may have changed a word, and what it led to proves nothing.
        """
        position = group_start
        while position < offset:
            if not self._is_written(group_start, position, LENGTH_BYTES):
                return False
            position += LENGTH_BYTES + _LENGTH.unpack(self._window.read(LENGTH_BYTES, position))[0]
        return self._is_written(group_start, offset, size_bytes)

    def _is_written(self, group_start: int, offset: int, size_bytes: int) -> bool:
        """Whether each sector of a range holds data of the group."""
        end = min(offset + size_bytes, self._window.size_bytes)
        for sector in range(offset - offset % JOURNAL_BLOCK_BYTES, end, JOURNAL_BLOCK_BYTES):
            start = max(sector, group_start)
            if not self._window.read(sector + JOURNAL_BLOCK_BYTES - start, start).strip(b"\0"):
                return False
        return True

    def _next_group(self, offset: int, data_end: int) -> int | None:
        """Start of a group after ``offset``: where padding leads, if a record can start there."""
        tail = self._window.read(data_end - offset, offset)
        found = -1
        while (found := tail.find(_PADDING_WORD, found + 1)) >= 0:
            padding = tail[found + LENGTH_BYTES : found + PADDING_HEADER_BYTES]
            if len(padding) < LENGTH_BYTES:
                break
            zeros = found + PADDING_HEADER_BYTES
            start: int = zeros + _LENGTH.unpack(padding)[0]
            if not zeros <= start <= len(tail) or (offset + start) % JOURNAL_BLOCK_BYTES != 0:
                continue
            left_bytes = self._window.size_bytes - offset - start
            if tail.startswith(CHECKSUM_MARK, zeros):
                zeros += CHECKSUM_BYTES
            is_padding = not tail[zeros:start].strip(b"\0")
            if is_padding and is_record_start(tail[start : start + RECORD_START_BYTES], left_bytes):
                return offset + start
        return None

    def _next_checksum(self, group_start: int, data_end: int) -> int | None:
        """Start of a group after ``group_start``, according to its own checksum."""
        tail = self._window.read(data_end - group_start, group_start)
        found = PADDING_HEADER_BYTES
        while (found := tail.find(CHECKSUM_MARK, found)) >= 0:
            padding = found - PADDING_HEADER_BYTES
            checksum = decode_checksum(tail[padding : found + CHECKSUM_BYTES])
            found += 1
            if checksum is None:
                continue
            first = checksum.group_start - group_start
            if 0 < first < padding and is_checksum_right(checksum, self._journal.journal_id, tail, first, padding):
                return checksum.group_start
        return None
