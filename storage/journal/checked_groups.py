"""Reading the groups of a journal file that end with a checksum (``journal_group``).

A group whose checksum is right is what the writer wrote, so its records need no further look. What to make of one that
is not whole is ``journal_damage``'s part.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from storage.framing import LENGTH_BYTES, ReadWindow
from storage.ids import JournalId
from storage.journal.format import PADDING_HEADER_BYTES
from storage.journal.group import (
    CHECKSUM_BYTES,
    GroupChecksum,
    decode_checksum,
    is_checksum_right,
    split_group,
)

_LENGTH = struct.Struct(">i")
_FIRST_LOOK_BYTES: Final = 64 * 1024
_GROUP_END_BYTES: Final = PADDING_HEADER_BYTES + CHECKSUM_BYTES


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


def _length_at(data: bytes, index: int) -> int:
    """Length word at an index, 0 for what is no length of a record."""
    if index + LENGTH_BYTES > len(data):
        return 0
    return max(0, int(_LENGTH.unpack_from(data, index)[0]))
