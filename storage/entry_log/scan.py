"""Fast reading of a whole entry log, for work on all entries of a directory: rebuild, compaction, integrity check.

Returns the same entries as ``EntryLogScan``, as arrays instead of one tuple per entry. Most logs are long runs of
frames of the same length: the scan guesses a run from its first frames and checks all of its size words in one
operation. Everything but a plain frame is handled as in ``EntryLogScan``.

For child processes only: one log of 1 GiB keeps an interpreter busy for a second, and a bookie does not load numpy.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from bkctl.storage.advice import without_path
from bkctl.storage.entry import ENTRY_HEADER_BYTES_MIN
from bkctl.storage.entry_log.format import (
    ENTRY_BYTES_MIN,
    FRAME_START_BYTES,
    HEADER_BYTES,
    MAP_LEDGER_ID,
    FrameStart,
    StrayRecord,
    decode_frame_start,
)
from bkctl.storage.entry_log.reader import FILLER_BYTES, behind_filler
from bkctl.storage.errors import EntryLogError
from bkctl.storage.filenames import entry_log_file_name
from bkctl.storage.framing import LENGTH_BYTES, ReadWindow
from bkctl.storage.ids import EntryLogId
from bkctl.storage.ports import FileSystem

Int64Array: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.int64]]"

WINDOW_BYTES: Final = 4 * 1024 * 1024
"""Read in one step; at most 210,000 entries are therefore returned in one step."""

_SIZE_WORD = struct.Struct(">i")
_RUN_FRAME_COUNT_MIN = 8
"""Minimum number of frames of the same length to guess a run."""
_PROBE_FRAME_COUNT = 64
_HIDDEN_BYTES_MAX: Final = 8 * 1024 * 1024
"""Bytes searched for frames after the start of a cut one; longer than any entry that this bookie accepts by default."""
_DIRECT_FILLER = b"\xf0"
_DIRECT_BLOCK_BYTES = 4096


class FoundEntries(NamedTuple):
    """Some entries of a log in file order; four arrays of the same length."""

    ledger_ids: Int64Array
    entry_ids: Int64Array
    offsets: Int64Array
    """Offsets of the bodies: the lower half of a location."""
    sizes_bytes: Int64Array
    """Bytes of the bodies."""

    def taken(self, chosen: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> FoundEntries:
        """Those for which ``chosen`` is true."""
        return FoundEntries(*(column[chosen] for column in self))


class Gap(NamedTuple):
    """Bytes between entries that are neither an entry nor the filler of a direct-I/O log."""

    offset: int
    size_bytes: int


class LogScan:
    """The entries of one log, in file order; iterate once. Afterwards the attributes are final."""

    def __init__(self, fs: FileSystem, directory: str, log_id: EntryLogId, *, window_bytes: int = WINDOW_BYTES) -> None:
        self._fs = fs
        self._path = os.path.join(directory, entry_log_file_name(log_id))
        self._window_bytes = window_bytes
        self.size_bytes = 0
        """Length of the file."""
        self.dropped_bytes = 0
        """As in ``EntryLogScan``."""
        self.cut_frame: FrameStart | None = None
        """Start of an incomplete frame, which ended the scan."""
        self.hides_frames = False
        """Whether there are frames after the start of the cut frame: then its size is damaged and hides them."""
        self.stray: StrayRecord | None = None
        """The first one."""
        self.stray_count = 0
        self.gaps: list[Gap] = []
        """Damaged ranges with data after them, or up to the end of a log that was not filled up."""

    def __iter__(self) -> Iterator[FoundEntries]:
        """Raises EntryLogError if the log is missing or cannot be read."""
        try:
            file = self._fs.open(self._path)
        except OSError as error:
            raise EntryLogError(f"{self._path}: cannot scan: {without_path(error)}") from error
        try:
            yield from self._entries(ReadWindow(file, self._window_bytes))
        except OSError as error:
            raise EntryLogError(f"{self._path}: cannot scan: {without_path(error)}") from error
        finally:
            file.close()

    def _entries(self, window: ReadWindow) -> Iterator[FoundEntries]:
        """Storage section 4.6, with every size bounded by the bytes left."""
        self.size_bytes = window.size_bytes
        offset = HEADER_BYTES
        gap_start = None
        while True:
            start = window.read(FRAME_START_BYTES, offset)
            frame = decode_frame_start(start)
            if frame is None:
                self.dropped_bytes = len(start.strip(FILLER_BYTES))
                if gap_start is not None and not _is_direct(window):
                    self.gaps.append(Gap(gap_start, window.size_bytes - gap_start))
                return
            if frame.size_bytes < ENTRY_BYTES_MIN:
                gap_start = offset if gap_start is None else gap_start
                offset = behind_filler(window, offset)
                continue
            if frame.size_bytes > window.size_bytes - offset - LENGTH_BYTES:
                self.dropped_bytes = window.data_end(offset) - offset
                self.cut_frame = frame
                self.hides_frames = _holds_frames(window.read(min(self.dropped_bytes, _HIDDEN_BYTES_MAX), offset)[1:])
                if gap_start is not None:
                    self._note_gap(window, gap_start, offset)
                return
            if gap_start is not None:
                self._note_gap(window, gap_start, offset)
                gap_start = None
            data, first = window.loaded(FRAME_START_BYTES, offset)
            starts, behind = _frame_starts(data, first, window.size_bytes - offset + first)
            found = _found(data, starts, offset - first)
            is_entry = (found.ledger_ids >= 0) & (found.entry_ids >= 0)
            if not is_entry.all():
                self._note_strays(found.taken(~is_entry & (found.ledger_ids != MAP_LEDGER_ID)))
                found = found.taken(is_entry)
            if len(found.offsets):
                yield found
            offset += behind - first

    def _note_strays(self, found: FoundEntries) -> None:
        if len(found.offsets) and self.stray is None:
            offset = int(found.offsets[0]) - LENGTH_BYTES
            self.stray = StrayRecord(offset, int(found.ledger_ids[0]), int(found.entry_ids[0]))
        self.stray_count += len(found.offsets)

    def _note_gap(self, window: ReadWindow, start: int, end: int) -> None:
        # Only direct-I/O logs, which are filled up to whole blocks, have bytes between entries.
        is_direct = end % _DIRECT_BLOCK_BYTES == 0 and end - start < _DIRECT_BLOCK_BYTES
        if not is_direct or window.read(end - start, start).strip(_DIRECT_FILLER):
            self.gaps.append(Gap(start, end - start))


def _is_direct(window: ReadWindow) -> bool:
    """Whether a log was written by direct I/O: such logs have their full length from the start."""
    frame = decode_frame_start(window.read(FRAME_START_BYTES, HEADER_BYTES))
    dummy_bytes = _DIRECT_BLOCK_BYTES - HEADER_BYTES - LENGTH_BYTES
    return frame is not None and frame.ledger_id < 0 and frame.size_bytes == dummy_bytes


def _holds_frames(data: bytes) -> bool:
    """Whether ``data`` contains an entry's frame, followed by another frame or the end."""
    count = len(data) - FRAME_START_BYTES
    if count <= 0:
        return False
    every_byte = np.frombuffer(data, np.uint8)
    # Sizes below 2^24 and ids below 2^48: other bytes with such a start are rare, even among zeros.
    sizes = every_byte[1 : 1 + count] * np.int64(65536) + every_byte[2 : 2 + count] * np.int64(256)
    sizes += every_byte[3 : 3 + count]
    fits = (sizes >= ENTRY_HEADER_BYTES_MIN) & (np.arange(count) + LENGTH_BYTES + sizes <= len(data))
    for zero in (0, 4, 5, 12, 13):
        fits &= every_byte[zero : zero + count] == 0
    for start in np.flatnonzero(fits).tolist():
        behind = start + LENGTH_BYTES + int(sizes[start])
        following = decode_frame_start(data[behind : behind + FRAME_START_BYTES])
        if behind == len(data) or (following is not None and following.size_bytes >= ENTRY_HEADER_BYTES_MIN):
            return True
    return False


def _frame_starts(data: bytes, position: int, left_bytes: int) -> tuple[Int64Array, int]:
    """Positions of the frames from ``position`` on, and the position after them.

    Ends before anything but a complete frame of a file that has ``left_bytes`` from the start of ``data`` on, and when
    fewer than 20 bytes of a frame are in ``data``.
    """
    parts: list[Int64Array] = []
    singles: list[int] = []
    last = repeated = 0
    end = len(data) - FRAME_START_BYTES
    size_word = _SIZE_WORD.unpack_from
    while position <= end:
        size: int = size_word(data, position)[0]
        behind = position + LENGTH_BYTES + size
        if size < ENTRY_BYTES_MIN or behind > left_bytes:
            break
        repeated = repeated + 1 if size == last else 0
        last = size
        if repeated < _RUN_FRAME_COUNT_MIN:
            singles.append(position)
            position = behind
            continue
        stride = behind - position
        count = _run_length(
            data, position, stride, min((end - position) // stride + 1, (left_bytes - position) // stride)
        )
        parts.append(np.array(singles, np.int64))
        parts.append(np.arange(count, dtype=np.int64) * stride + position)
        singles = []
        repeated = 0
        position += count * stride
    parts.append(np.array(singles, np.int64))
    return np.concatenate(parts), position


def _run_length(data: bytes, position: int, stride: int, count_max: int) -> int:
    """Number of frames from ``position`` on with the length of the first one, at most ``count_max``."""
    count, probe = 1, _PROBE_FRAME_COUNT
    while count < count_max:
        # In growing steps: otherwise each of many short runs would be compared with the whole rest of the window.
        probed = min(probe, count_max - count)
        words: np.ndarray[Any, Any] = np.ndarray(probed, ">i4", data, position + count * stride, (stride,))
        differs = words != stride - LENGTH_BYTES
        first = int(differs.argmax())
        if differs[first]:
            return count + first
        count += probed
        probe *= 8
    return count


def _found(data: bytes, starts: Int64Array, data_offset: int) -> FoundEntries:
    """The frames at these positions, also those that are not entries."""
    if len(starts) == 0:
        nothing = np.empty(0, np.int64)
        return FoundEntries(nothing, nothing, nothing, nothing)
    strides = np.diff(starts)
    if len(strides) and (strides == strides[0]).all():
        # One run: its frames are the rows of a table.
        stride = (int(strides[0]), 1)
        frames = np.ndarray((len(starts), FRAME_START_BYTES), np.uint8, data, int(starts[0]), stride)
        frames = np.ascontiguousarray(frames)
    else:
        every_byte = np.frombuffer(data, np.uint8)
        frames = np.lib.stride_tricks.sliding_window_view(every_byte, FRAME_START_BYTES)[starts]
    sizes = frames[:, :4].copy().view(">i4").ravel().astype(np.int64)
    ids = frames[:, 4:].copy().view(">i8").astype(np.int64)
    return FoundEntries(ids[:, 0], ids[:, 1], starts + (data_offset + LENGTH_BYTES), sizes)
