"""Reading the groups of a journal file that end with a checksum (``journal_group``).

A group whose checksum is right is what the writer wrote, so its records need no further look. What to make of one that
is not whole is ``journal_damage``'s part.
"""

from __future__ import annotations

import itertools
import re
import struct
from collections.abc import Iterator
from typing import Final

import msgspec

from storage.framing import LENGTH_BYTES, ReadWindow
from storage.ids import JournalId
from storage.journal_format import PADDING_HEADER_BYTES, PADDING_MARK
from storage.journal_group import (
    CHECKSUM_BYTES,
    CHECKSUM_MARK,
    GroupChecksum,
    decode_checksum,
    is_checksum_right,
    split_group,
)
from storage.setting import MEBIBYTE

_LENGTH = struct.Struct(">i")
_FIRST_LOOK_BYTES: Final = 64 * 1024
_GROUP_END_BYTES: Final = PADDING_HEADER_BYTES + CHECKSUM_BYTES
_PADDING_BYTES_MAX: Final = MEBIBYTE + _GROUP_END_BYTES
"""Padding reaches from a group's last record to the next multiple of journalAlignmentSize."""
_GROUP_END: Final = re.compile(re.escape(_LENGTH.pack(PADDING_MARK)) + b"...." + CHECKSUM_MARK, re.DOTALL)
_CANDIDATE_COUNT_MAX: Final = 16_384
_DOUBTED_COUNT_MAX: Final = 32
"""Of what has the form of a group's end: an entry can hold thousands, and each doubted one costs a look at a group."""


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


def find_group_end(
    window: ReadWindow, journal_id: JournalId, offset: int, bytes_max: int, stop_offset: int | None = None
) -> int | None:
    """Where the first group ends that ends at ``offset`` or behind it, has a right checksum and is no longer than
    ``bytes_max``; None where none begins before ``stop_offset``, or where too much looks like one. OSError."""
    doubted_count = 0
    end = window.size_bytes if stop_offset is None else stop_offset + bytes_max + _GROUP_END_BYTES
    candidates = _checksums(window, max(offset - _PADDING_BYTES_MAX, 0), min(end, window.size_bytes))
    for padding, checksum in itertools.islice(candidates, _CANDIDATE_COUNT_MAX):
        size_bytes = padding - checksum.group_start
        if padding + checksum.padding_bytes < offset or checksum.group_start < 0 or not 0 < size_bytes <= bytes_max:
            continue
        data, first = window.loaded(size_bytes + _GROUP_END_BYTES, checksum.group_start)
        if is_checksum_right(checksum, journal_id, data, first, first + size_bytes):
            return padding + checksum.padding_bytes
        doubted_count += 1
        if doubted_count == _DOUBTED_COUNT_MAX:
            break
    return None


def _checksums(window: ReadWindow, offset: int, stop_offset: int) -> Iterator[tuple[int, GroupChecksum]]:
    """Whatever has the form of padding with a checksum between two offsets, and where."""
    while offset < stop_offset:
        data, first = window.loaded(_FIRST_LOOK_BYTES, offset)
        found = _GROUP_END.search(data, first)
        if found is None:
            # The next one may begin in what is loaded already.
            offset += max(len(data) - first - _GROUP_END_BYTES, 1)
            continue
        offset += found.start() - first
        checksum = decode_checksum(window.read(_GROUP_END_BYTES, offset))
        if checksum is not None:
            yield offset, checksum
        offset += PADDING_HEADER_BYTES


def _length_at(data: bytes, index: int) -> int:
    """Length word at an index, 0 for what is no length of a record."""
    if index + LENGTH_BYTES > len(data):
        return 0
    return max(0, int(_LENGTH.unpack_from(data, index)[0]))
