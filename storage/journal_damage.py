"""Telling a group that a crash tore from damage, in journal files that this bookie wrote.

A crash can tear one group only: the one being written, which nobody was told of. All before it were synced. So the
reader may drop a tail if a crash can have made it, and must refuse if none can, because the tail may then hold entries
that were acknowledged. What a crash can make, by the promises of ``journal_writer``:

- Each sector of the torn group, 512 bytes, holds what was written, or zeros: it was never written before. Groups begin
  on sectors. The order is the kernel's: later sectors can be there without earlier ones.
- The torn group is the last one: nothing follows it. It ends with padding, and is at most so long.
- The file is no shorter than its groups: its length was synced before them.

What remains is a hole of whole sectors that reaches into the last group, or over the padding in front of it. Nothing on
disk tells there what had been synced; it is taken for torn, and reported (docs/decisions/0006).
"""

from __future__ import annotations

import struct

from storage.config import JOURNAL_BLOCK_BYTES
from storage.errors import CorruptFileError
from storage.framing import LENGTH_BYTES, ReadWindow
from storage.journal_catalog import CatalogedJournal
from storage.journal_format import (
    HEADER_BYTES,
    PADDING_HEADER_BYTES,
    PADDING_MARK,
    PADDING_VERSION_MIN,
    RECORD_START_BYTES,
    VERSION_HEADER_BYTES,
    VERSION_MAX,
    decode_version,
    is_record_start,
)

_LENGTH = struct.Struct(">i")
_PADDING_WORD = _LENGTH.pack(PADDING_MARK)


def require_whole_file(window: ReadWindow, path: str, journal: CatalogedJournal) -> None:
    """Raise CorruptFileError unless the file has its header and the length that the writer gave it."""
    version = decode_version(window.read(VERSION_HEADER_BYTES, 0))
    if window.size_bytes < HEADER_BYTES or not PADDING_VERSION_MIN <= version <= VERSION_MAX:
        raise CorruptFileError(path, 0, "no journal header, though acknowledged entries may follow,")
    size_bytes = window.size_bytes
    last_step = size_bytes - size_bytes % journal.step_bytes
    # A crash can leave a part of a step, but then nothing was written there yet.
    if size_bytes < journal.step_bytes or window.skip_zeros(last_step) < size_bytes:
        raise CorruptFileError(path, size_bytes, f"file cut: it grows by {journal.step_bytes} bytes, and ends")


class GroupDamage:
    """What is wrong in one group of a file that this bookie wrote, and whether a crash can have done it."""

    def __init__(self, window: ReadWindow, path: str, journal: CatalogedJournal, unsynced_bytes_max: int) -> None:
        self._window = window
        self._path = path
        self._journal = journal
        self._unsynced_bytes_max = unsynced_bytes_max

    def require_torn(self, group_start: int, offset: int, size_bytes: int, reason: str) -> None:
        """Raise CorruptFileError with ``reason`` unless a crash can explain what stands at ``offset``.

        All length words of the group before ``offset`` lead there. The ``size_bytes`` at ``offset`` cannot be what
        the writer wrote; 0 if that does not show.
        """
        self._require_unfinished(offset, reason)
        if size_bytes and self._is_written_as_read(group_start, offset, size_bytes):
            raise CorruptFileError(self._path, offset, reason)
        data_end = self._window.data_end(offset)
        if data_end > group_start + self._unsynced_bytes_max:
            raise CorruptFileError(self._path, offset, f"{reason}, with too much data behind it for one group,")
        next_start = self._next_group(offset, data_end)
        if next_start is not None:
            raise CorruptFileError(self._path, offset, f"{reason}, with a later group behind it (at {next_start}),")

    def require_end(self, offset: int) -> None:
        """Raise CorruptFileError if the data ends before the place where the writer noted its end."""
        if offset < self._journal.end_offset:
            raise CorruptFileError(self._path, offset, f"data up to {self._journal.end_offset} is missing: zeros")

    def _require_unfinished(self, offset: int, reason: str) -> None:
        if self._journal.end_offset > 0:
            raise CorruptFileError(self._path, offset, f"{reason}, in a file that was complete,")

    def _is_written_as_read(self, group_start: int, offset: int, size_bytes: int) -> bool:
        """Whether the sectors of all length words up to here were written: then the words are what was meant.

        Else a word may have lost a part to a sector that is not there, and what it led to says nothing.
        """
        position = group_start
        while position < offset:
            if not self._is_written(group_start, position, LENGTH_BYTES):
                return False
            position += LENGTH_BYTES + _LENGTH.unpack(self._window.read(LENGTH_BYTES, position))[0]
        return self._is_written(group_start, offset, size_bytes)

    def _is_written(self, group_start: int, offset: int, size_bytes: int) -> bool:
        """Whether each sector of a range holds something of the group."""
        end = min(offset + size_bytes, self._window.size_bytes)
        for sector in range(offset - offset % JOURNAL_BLOCK_BYTES, end, JOURNAL_BLOCK_BYTES):
            start = max(sector, group_start)
            if not self._window.read(sector + JOURNAL_BLOCK_BYTES - start, start).strip(b"\0"):
                return False
        return True

    def _next_group(self, offset: int, data_end: int) -> int | None:
        """Start of a group behind ``offset``: what padding leads to, if a record can start there."""
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
            if is_record_start(tail[start : start + RECORD_START_BYTES], left_bytes) and not tail[zeros:start].strip(
                b"\0"
            ):
                return offset + start
        return None
