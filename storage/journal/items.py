"""Decoding one item at an offset of a journal file, no matter which writer wrote it.

The reader judges it: a length of zero is the end of one file and damage in another. Source: storage sections 3.3 to
3.6; hazard H20 is excluded by bounds.
"""

from __future__ import annotations

import enum
import struct

import msgspec

from bkctl.storage.framing import LENGTH_BYTES, ReadWindow
from bkctl.storage.journal.format import (
    PADDING_HEADER_BYTES,
    PADDING_MARK,
    PADDING_VERSION_MIN,
    RECORD_START_BYTES,
    JournalRecord,
    decode_record,
    is_zero_filled,
)
from bkctl.storage.journal.group import CHECKSUM_BYTES, CHECKSUM_MARK

_LENGTH = struct.Struct(">i")


class ItemKind(enum.Enum):
    """Kind of an item."""

    RECORD = "a record"
    ZERO_RECORD = "a record of zeros only"
    PADDING = "padding"
    ZEROS = "a length word of zero"
    END = "the end of the file, or a part of a length word before it"
    CUT_RECORD = "a record that extends beyond the file"
    CUT_PADDING = "padding that extends beyond the file, zeros up to its end"
    BAD = "bytes that no writer writes"


class JournalItem(msgspec.Struct, frozen=True, gc=False):
    """One item of a journal file."""

    kind: ItemKind
    end_offset: int
    """Offset of the next item after a record or padding, otherwise of this one."""
    record: JournalRecord | None = None
    """The record, if it is valid."""
    reason: str = ""
    """The problem, for an error message."""
    evidence_bytes: int = LENGTH_BYTES
    """Number of bytes from the item's start that show the problem."""


def read_item(window: ReadWindow, version: int, offset: int) -> JournalItem:
    """The item at ``offset`` in a file of ``version``; OSError."""
    word = window.read(LENGTH_BYTES, offset)
    if len(word) < LENGTH_BYTES:
        return JournalItem(ItemKind.END, offset, reason="file ends inside a group")
    length = _LENGTH.unpack(word)[0]
    if length > 0:
        return _read_record(window, version, offset, length)
    if length == 0:
        return JournalItem(ItemKind.ZEROS, offset, reason="zeros inside a group")
    if length == PADDING_MARK and version >= PADDING_VERSION_MIN:
        return _read_padding(window, offset)
    return JournalItem(ItemKind.BAD, offset, reason=f"length {length} of a record")


def item_around(window: ReadWindow, version: int, start: int, offset: int) -> tuple[int, int] | None:
    """Start and end of the record or padding around ``offset``, found by walking from ``start``; OSError.

    None if one begins at ``offset``, and if it is unknown: after damage, or after the last of them.
    """
    begin = start
    while begin < offset:
        end = read_item(window, version, begin).end_offset
        if end <= begin:
            return None
        if end > offset:
            return begin, end
        begin = end
    return None


def _read_record(window: ReadWindow, version: int, offset: int, length: int) -> JournalItem:
    end = offset + LENGTH_BYTES + length
    # Check before allocating: the word may be garbage (H20).
    if end > window.size_bytes:
        reason = f"record of {length} bytes, which the file does not contain,"
        return JournalItem(ItemKind.CUT_RECORD, offset, reason=reason)
    data = window.read(length, offset + LENGTH_BYTES)
    if is_zero_filled(data):
        return JournalItem(ItemKind.ZERO_RECORD, end, reason=f"a record of {length} zeros")
    try:
        return JournalItem(ItemKind.RECORD, end, decode_record(data, offset, version))
    except ValueError as error:
        return JournalItem(ItemKind.BAD, offset, reason=str(error), evidence_bytes=RECORD_START_BYTES)


def _read_padding(window: ReadWindow, offset: int) -> JournalItem:
    word = window.read(LENGTH_BYTES, offset + LENGTH_BYTES)
    zeros = offset + PADDING_HEADER_BYTES
    count = _LENGTH.unpack(word)[0] if len(word) == LENGTH_BYTES else 0
    kind, end, reason = ItemKind.PADDING, zeros + count, "padding that does not end a group"
    if count < 0:
        kind, end, reason = ItemKind.BAD, offset, f"length {count} of padding"
    elif end > window.size_bytes:
        is_over_data = window.skip_zeros(_behind_checksum(window, zeros)) < window.size_bytes
        kind, end = (ItemKind.BAD if is_over_data else ItemKind.CUT_PADDING), offset
        reason = f"padding of {count} bytes extends beyond the file" + (", over data," if is_over_data else "")
    return JournalItem(kind, end, reason=reason, evidence_bytes=PADDING_HEADER_BYTES)


def _behind_checksum(window: ReadWindow, offset: int) -> int:
    """Where padding continues with zeros: after a checksum of ours (``group``), or a truncated one."""
    start = window.read(len(CHECKSUM_MARK), offset)
    return min(offset + CHECKSUM_BYTES, window.size_bytes) if start and CHECKSUM_MARK.startswith(start) else offset
