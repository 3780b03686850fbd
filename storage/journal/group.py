"""Groups of journal records, which are written and synced together, and the checksum that ends them.

A group is its framed records and padding up to the alignment (storage section 3.4). At the start of the padding, which
Java skips unread, bkctl stores where the group began and a CRC-32C of it, to distinguish a group that a crash tore from
a damaged one (decision 9). Version 4 has no padding, and therefore no checksum.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import crc32c
import msgspec

from bkctl.storage.config import JOURNAL_BLOCK_BYTES
from bkctl.storage.entry import ENTRY_HEADER_BYTES_MIN
from bkctl.storage.framing import LENGTH_BYTES, ReadWindow, framed, framed_bytes
from bkctl.storage.ids import JournalId
from bkctl.storage.journal.format import (
    PADDING_HEADER_BYTES,
    PADDING_MARK,
    PADDING_VERSION_MIN,
    RECORD_BYTES_MIN,
    VERSION_MAX,
    decode_record,
    encode_padding,
    is_zero_filled,
)
from bkctl.storage.ports import Buffer
from bkctl.storage.step_sizes import USUAL_STEPS, StepSizes

CHECKSUM_BYTES = 16
"""In the padding, after its count: four bytes that identify it, i64 start of the group, u32 CRC-32C of an i64 journal
id and of everything from the group's start up to the CRC itself."""

CHECKSUM_MARK = b"bkg"
"""Begins the checksum; the next byte says whether a sector of zeros can be what was written."""

_WITHOUT_ZEROS = b"\1"
"""There are no 512 consecutive zeros before the end of the padding's count: a sector of zeros was not written."""
_WITH_ZEROS = b"\2"

_JOURNAL_ID = struct.Struct(">q")
_CHECKSUM = struct.Struct(">3scq")
_CRC = struct.Struct(">I")
_CRC_AT = PADDING_HEADER_BYTES + _CHECKSUM.size
_PADDING = struct.Struct(">ii")
_LENGTH = struct.Struct(">i")

_FIRST_LOOK_BYTES: Final = 64 * 1024
_GROUP_END_BYTES: Final = PADDING_HEADER_BYTES + CHECKSUM_BYTES

_ZERO_RUN = bytes(JOURNAL_BLOCK_BYTES - LENGTH_BYTES + 1)
"""Zeros that one part must have if two share a sector of zeros: the other has at most three, of a length word."""
_SAMPLE_BYTES = 128
_ZERO_SAMPLES = bytes(len(_ZERO_RUN) // _SAMPLE_BYTES)
_ZERO_IDS = bytes(RECORD_BYTES_MIN)


class EncodedGroup(NamedTuple):
    """A group to be written."""

    size_bytes: int
    writes: Iterator[list[Buffer]]
    """Parts to be written one after the other, in lists for one write each, which ends with a sector; encoded
    lazily."""


class GroupChecksum(msgspec.Struct, frozen=True):
    """The checksum at the end of a group."""

    group_start: int
    crc: int
    padding_bytes: int
    """Length of its padding, all words included."""
    may_hold_zero_sectors: bool
    """Whether the group may have been written with a sector of zeros before its checksum."""


class JournalGroup(msgspec.Struct, frozen=True):
    """A group as read: the lengths of its records lead to padding with a checksum."""

    data: bytes
    """Bytes of the file that include the group."""
    starts: list[int]
    """Index in ``data`` of the length word of each record; the padding follows the last one."""
    start_offset: int
    padding_offset: int
    checksum: GroupChecksum
    is_whole: bool
    """Whether the checksum is correct, so that the records are what was written."""

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


def encode_group(
    records: Sequence[bytes],
    position: int,
    alignment_bytes: int,
    journal_id: JournalId | None = None,
    version: int = VERSION_MAX,
    steps: StepSizes = USUAL_STEPS,
) -> EncodedGroup:
    """Encode a group of raw records at ``position`` in a file of ``version``.

    With ``journal_id`` it carries a checksum. ValueError for a record that readers would refuse: once acknowledged, it
    would stop every boot.
    """
    lengths = list(map(len, records))
    _require_replayable(records, lengths)
    size_bytes = sum(lengths) + LENGTH_BYTES * len(records)
    parts = _framed(records, lengths, size_bytes, steps.journal_part_bytes)
    if version < PADDING_VERSION_MIN:
        return EncodedGroup(size_bytes, _writes(parts, position, steps.journal_write_bytes))
    content_bytes = 0 if journal_id is None else CHECKSUM_BYTES
    padding = encode_padding(position + size_bytes, alignment_bytes, content_bytes)
    if journal_id is None:
        parts = itertools.chain(parts, [padding])
    else:
        parts = _with_checksum(parts, padding, journal_id, position)
    return EncodedGroup(size_bytes + len(padding), _writes(parts, position, steps.journal_write_bytes))


def split_group(data: bytes, first: int) -> tuple[list[int], int]:
    """Starts (at length words) of the consecutive records in ``data`` from index ``first`` on, and the index after.

    Checks only lengths: the result is valid once the checksum has been compared.
    """
    starts: list[int] = []
    unpack = _LENGTH.unpack_from
    last = len(data) - LENGTH_BYTES
    while first <= last:
        length = unpack(data, first)[0]
        end = first + LENGTH_BYTES + length
        if length < RECORD_BYTES_MIN or end > len(data):
            break
        starts.append(first)
        first = end
    return starts, first


def decode_checksum(padding: bytes) -> GroupChecksum | None:
    """The checksum at the start of padding (which includes its two words), or None for padding without one."""
    if len(padding) < PADDING_HEADER_BYTES + CHECKSUM_BYTES:
        return None
    mark, count = _PADDING.unpack_from(padding)
    name, kind, group_start = _CHECKSUM.unpack_from(padding, PADDING_HEADER_BYTES)
    (crc,) = _CRC.unpack_from(padding, _CRC_AT)
    if mark != PADDING_MARK or count < CHECKSUM_BYTES or name != CHECKSUM_MARK:
        return None
    return GroupChecksum(group_start, crc, PADDING_HEADER_BYTES + count, kind != _WITHOUT_ZEROS)


def is_checksum_right(checksum: GroupChecksum, journal_id: JournalId, data: bytes, first: int, padding: int) -> bool:
    """Whether a checksum matches ``data`` from index ``first`` on, with its padding at index ``padding``."""
    with memoryview(data) as view, view[first : padding + _CRC_AT] as covered:
        return crc32c.crc32c(covered, crc32c.crc32c(_JOURNAL_ID.pack(journal_id))) == checksum.crc


def read_group(window: ReadWindow, journal_id: JournalId, start: int, bytes_max: int) -> JournalGroup | None:
    """The group at ``start``, or None if the lengths there lead to no checksum within ``bytes_max``; OSError."""
    wanted = _FIRST_LOOK_BYTES
    while True:
        data, first = window.loaded(wanted, start)
        starts, index = split_group(data, first)
        length = _LENGTH.unpack_from(data, index)[0] if index + LENGTH_BYTES <= len(data) else 0
        needed = index - first + max(_GROUP_END_BYTES, LENGTH_BYTES + length)
        if first + needed <= len(data):
            break
        # Check before reading: the length may be garbage (H20).
        if needed > bytes_max or start + needed > window.size_bytes:
            return None
        wanted = min(max(needed, 4 * wanted), bytes_max)
    checksum = decode_checksum(data[index : index + _GROUP_END_BYTES])
    if checksum is None:
        return None
    padding_offset = start + index - first
    is_whole = checksum.group_start == start and is_checksum_right(checksum, journal_id, data, first, index)
    return JournalGroup(data, starts, start, padding_offset, checksum, is_whole)


def _writes(parts: Iterable[Buffer], position: int, bytes_min: int) -> Iterator[list[Buffer]]:
    """Parts at ``position`` as lists for one write each. Rule: only the last write may end within a sector, so that a
    sector holds all of its data or none even if the process ends between two writes."""
    write: list[Buffer] = []
    write_bytes = 0
    for part in parts:
        if write_bytes >= bytes_min:
            rest_bytes = (position + write_bytes) % JOURNAL_BLOCK_BYTES
            rest = _cut_off(write, rest_bytes)
            yield write
            position += write_bytes - rest_bytes
            write, write_bytes = rest, rest_bytes
        write.append(part)
        write_bytes += len(part)
    yield write


def _cut_off(parts: list[Buffer], size_bytes: int) -> list[Buffer]:
    """Cut ``size_bytes`` off the end of ``parts``, which are longer; returns that end."""
    rest: list[Buffer] = []
    while size_bytes >= len(parts[-1]):
        size_bytes -= len(parts[-1])
        rest.append(parts.pop())
    if size_bytes:
        last = memoryview(parts.pop())
        parts.append(last[:-size_bytes])
        rest.append(last[-size_bytes:])
    return rest[::-1]


def _framed(records: Sequence[bytes], lengths: Sequence[int], size_bytes: int, part_bytes: int) -> Iterator[Buffer]:
    """Framed records in parts of about ``part_bytes``; does not copy records that are large on average."""
    count = len(records) * part_bytes // size_bytes
    if count <= 1:
        yield from framed(records)
        return
    all_lengths = set(lengths)
    known = all_lengths if len(all_lengths) == 1 else None
    for first in range(0, len(records), count):
        yield framed_bytes(records[first : first + count], known)


def _with_checksum(parts: Iterable[Buffer], padding: bytes, journal_id: JournalId, position: int) -> Iterator[Buffer]:
    """The parts, then the padding with their checksum."""
    crc = crc32c.crc32c(_JOURNAL_ID.pack(journal_id))
    kind = _WITHOUT_ZEROS
    for part in parts:
        crc = crc32c.crc32c(part, crc)
        # A zero sector has three zero samples in a row, so looking at every 128th byte avoids most full searches.
        if _ZERO_SAMPLES in part[::_SAMPLE_BYTES] and _ZERO_RUN in part:
            kind = _WITH_ZEROS
        yield part
    end = bytearray(padding)
    _CHECKSUM.pack_into(end, PADDING_HEADER_BYTES, CHECKSUM_MARK, kind, position)
    _CRC.pack_into(end, _CRC_AT, crc32c.crc32c(end[:_CRC_AT], crc))
    yield end


def _require_replayable(records: Sequence[bytes], lengths: Sequence[int]) -> None:
    if min(lengths) < ENTRY_HEADER_BYTES_MIN:
        for record in records:
            if len(record) < ENTRY_HEADER_BYTES_MIN:
                decode_record(record, 0, VERSION_MAX)
    # Zeros sort first: if the smallest record does not begin with zeros, no record does.
    if min(records).startswith(_ZERO_IDS) and any(map(is_zero_filled, records)):
        raise ValueError("a record of zeros only, which replay could not distinguish from a hole")
