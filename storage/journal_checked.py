"""Reading the groups of a journal file that end with a checksum (``journal_group``).

A group whose checksum is right is what the writer wrote, so its records need no further look. What to make of one that
is not whole is ``journal_damage``'s part.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from storage.config import MEBIBYTE
from storage.framing import LENGTH_BYTES, ReadWindow
from storage.ids import JournalId
from storage.journal_format import PADDING_HEADER_BYTES
from storage.journal_group import (
    CHECKSUM_BYTES,
    CHECKSUM_MARK,
    GroupChecksum,
    decode_checksum,
    is_checksum_right,
    split_group,
)

_LENGTH = struct.Struct(">i")
_FIRST_LOOK_BYTES: Final = 64 * 1024
_GROUP_END_BYTES: Final = PADDING_HEADER_BYTES + CHECKSUM_BYTES
_PADDING_BYTES_MAX: Final = MEBIBYTE + _GROUP_END_BYTES
"""Padding reaches from a group's last record to the next multiple of journalAlignmentSize."""


class JournalGroup(msgspec.Struct, frozen=True):
    """Where the lengths of records lead: to padding with a checksum."""

    data: bytes
    """Of the file, with the group in it."""
    starts: list[int]
    """Index in ``data`` of the length word of each record; behind the last one comes the padding."""
    start_offset: int
    padding_offset: int
    checksum: GroupChecksum
    is_whole: bool
    """Whether the checksum is right, so that the records are what was written."""

    @property
    def records(self) -> list[bytes]:
        """The records, without their length words."""
        unpack, data = _LENGTH.unpack_from, self.data
        bodies = ((start + LENGTH_BYTES, unpack(data, start)[0]) for start in self.starts)
        return [data[start : start + length] for start, length in bodies]

    @property
    def end_offset(self) -> int:
        """Where the next group begins."""
        return self.padding_offset + self.checksum.padding_bytes


def read_group(window: ReadWindow, journal_id: JournalId, start: int, bytes_max: int) -> JournalGroup | None:
    """The group at ``start``, or None if the lengths there lead to no checksum within ``bytes_max``; OSError."""
    wanted = _FIRST_LOOK_BYTES
    while True:
        data, first = window.loaded(wanted, start)
        starts, index = split_group(data, first)
        needed = index - first + max(_GROUP_END_BYTES, LENGTH_BYTES + _length_at(data, index))
        if first + needed <= len(data):
            break
        # Compared before anything is read: the length may be garbage (H20).
        if needed > bytes_max or start + needed > window.size_bytes:
            return None
        wanted = min(max(needed, 4 * wanted), bytes_max)
    checksum = decode_checksum(data[index : index + _GROUP_END_BYTES])
    if checksum is None:
        return None
    padding_offset = start + index - first
    is_whole = checksum.group_start == start and is_checksum_right(checksum, journal_id, data, first, index)
    return JournalGroup(data, starts, start, padding_offset, checksum, is_whole)


def find_group_end(window: ReadWindow, journal_id: JournalId, offset: int, bytes_max: int) -> int | None:
    """Where the first group ends that ends at ``offset`` or behind it, has a right checksum and is no longer than
    ``bytes_max``; None without one. OSError."""
    position = max(offset - _PADDING_BYTES_MAX, 0)
    while position < window.size_bytes:
        data, first = window.loaded(_FIRST_LOOK_BYTES, position)
        mark = data.find(CHECKSUM_MARK, first)
        if mark < 0:
            position += max(len(data) - first - len(CHECKSUM_MARK) + 1, 1)
            continue
        position += mark - first
        padding = position - PADDING_HEADER_BYTES
        end = _end_of_group(window, journal_id, padding, bytes_max)
        if end is not None and end >= offset:
            return end
        position += len(CHECKSUM_MARK)
    return None


def _end_of_group(window: ReadWindow, journal_id: JournalId, padding_offset: int, bytes_max: int) -> int | None:
    """Where the group ends whose padding stands there, or None if none does."""
    checksum = decode_checksum(window.read(_GROUP_END_BYTES, padding_offset)) if padding_offset >= 0 else None
    if checksum is None or not 0 < padding_offset - checksum.group_start <= bytes_max:
        return None
    size_bytes = padding_offset - checksum.group_start
    data, first = window.loaded(size_bytes + _GROUP_END_BYTES, checksum.group_start)
    is_whole = is_checksum_right(checksum, journal_id, data, first, first + size_bytes)
    return padding_offset + checksum.padding_bytes if is_whole else None


def _length_at(data: bytes, index: int) -> int:
    """Length word at an index, 0 for what is no length of a record."""
    if index + LENGTH_BYTES > len(data):
        return 0
    return max(0, int(_LENGTH.unpack_from(data, index)[0]))
