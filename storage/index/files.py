"""Decoding the files of a LevelDB database: log, manifest, tables. Free of I/O.

Logs and manifests are records in blocks of 32 KiB: u32 masked CRC-32C of type and data, u16 length (little-endian), u8
type (1 whole, 2 first, 3 middle, 4 last part), data; less than seven bytes at a block's end are zeros. A record of a
log is a batch of rows, one of the manifest a change of the set of tables. A table is blocks of rows, the last of which
is the index of the others, and a footer; keys are internal ones: the key, then u64 sequence number << 8 | type.

Raises ValueError for everything that LevelDB does not write: without LevelDB's own repair, guessing would be wrong.
Sources: LevelDB's documents impl, log_format and table_format. Encoding: ``table``, ``manifest``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias

import msgspec
from crc32c import crc32c

_BLOCK_BYTES: Final = 32 * 1024
_HEADER = struct.Struct("<IHB")
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_BATCH_HEADER_BYTES: Final = 12
_DELETION, _VALUE = 0, 1
_COMPARATOR: Final = b"leveldb.BytewiseComparator"
_TAG_COMPARATOR, _TAG_LOG, _TAG_NEXT_FILE, _TAG_LAST_SEQUENCE, _TAG_COMPACTION = 1, 2, 3, 4, 5
_TAG_DELETED_TABLE, _TAG_NEW_TABLE, _TAG_PREVIOUS_LOG = 6, 7, 9
FOOTER_BYTES: Final = 48
MAGIC: Final = struct.pack("<Q", 0xDB4775248B80FB57)
_INTERNAL_KEY_TAIL = struct.Struct("<Q")
BLOCK_TRAILER_BYTES: Final = 5
_CRC_DELTA: Final = 0xA282EAD8

NEWEST: Final = 2**64
"""Age of the rows of a log: newer than every row of a table."""


class KeyState(NamedTuple):
    """One state of a key. ``value`` None: deleted. Sorts by key, then newest first."""

    key: bytes
    negative_age: int
    value: bytes | None


class IndexTable(NamedTuple):
    """A table listed in the manifest; ``first`` and ``last`` are keys without their internal tails."""

    level: int
    number: int
    size_bytes: int
    first: bytes
    last: bytes


class Manifest(msgspec.Struct):
    """State after all changes of the manifest."""

    tables: dict[tuple[int, int], IndexTable] = {}
    """By level and number."""
    log_number: int = 0
    """The rows of logs with smaller numbers are in tables, except those of ``previous_log_number``."""
    previous_log_number: int = 0


Handle: TypeAlias = tuple[int, int]
"""Offset and length of a block in its table, without its trailer."""


class _Fragment(NamedTuple):
    """A record of a log, or a part of one."""

    offset: int
    end: int
    """After its data; may be after the end of the file."""
    checksum: int
    kind: int


def _fragments(data: bytes) -> Iterator[_Fragment]:
    """Fragments according to the headers in a log, unchecked."""
    offset = 0
    while True:
        left_bytes = _BLOCK_BYTES - offset % _BLOCK_BYTES
        if left_bytes < _HEADER.size:
            offset += left_bytes
        if offset + _HEADER.size > len(data):
            return
        checksum, size_bytes, kind = _HEADER.unpack_from(data, offset)
        end = offset + _HEADER.size + size_bytes
        yield _Fragment(offset, end, checksum, kind)
        offset = end


def last_record_start(data: bytes) -> int:
    """Start of the last complete record in ``data``; 0 if that is the first one, or there is none."""
    start = last = 0
    for offset, end, _, kind in _fragments(data):
        if not _WHOLE <= kind <= _LAST or end > len(data):
            break
        if kind in {_WHOLE, _FIRST}:
            start = offset
        if kind in {_WHOLE, _LAST}:
            last = start
    return last


def decode_log(data: bytes) -> Iterator[bytes]:
    """The records of a log or manifest, up to one that is incomplete in the file because of a crash."""
    parts: list[bytes] = []
    for offset, end, checksum, kind in _fragments(data):
        if end > offset - offset % _BLOCK_BYTES + _BLOCK_BYTES:
            raise ValueError(f"a record at offset {offset} that crosses its block")
        if end > len(data):
            return
        if checksum != masked_crc(memoryview(data)[offset + _HEADER.size - 1 : end]):
            raise ValueError(f"a record at offset {offset} does not match its checksum")
        if (kind in {_WHOLE, _FIRST}) is bool(parts) or kind > _LAST or kind == 0:
            raise ValueError(f"a fragment at offset {offset} that does not belong there")
        parts.append(data[offset + _HEADER.size : end])
        if kind in {_WHOLE, _LAST}:
            yield b"".join(parts)
            parts.clear()


def apply_batch(batch: bytes, rows: dict[bytes, bytes | None]) -> None:
    """Apply one record of a log to ``rows``; None: deleted."""
    position = _BATCH_HEADER_BYTES
    while position < len(batch):
        kind = batch[position]
        key, position = _sized(batch, position + 1)
        if kind == _VALUE:
            rows[key], position = _sized(batch, position)
        elif kind == _DELETION:
            rows[key] = None
        else:
            raise ValueError(f"a row of type {kind} in a batch")


def decode_manifest(data: bytes) -> Manifest:
    """The state after all changes."""
    manifest = Manifest()
    for change in decode_log(data):
        _apply_change(change, manifest)
    return manifest


def decode_footer(footer: bytes) -> Handle:
    """Position of a table's index."""
    if len(footer) != FOOTER_BYTES or not footer.endswith(MAGIC):
        raise ValueError("no table ends there")
    _, position = _handle(footer, 0)
    return _handle(footer, position)[0]


def decode_index(block: bytes) -> list[tuple[bytes, Handle]]:
    """The blocks of a table in order: a key >= those of the block and < all later keys, and the position."""
    return [(key[: -_INTERNAL_KEY_TAIL.size], _handle(value, 0)[0]) for key, value in _decode_block(block)]


def decode_rows(block: bytes) -> list[KeyState]:
    """The rows of a block, in order."""
    rows: list[KeyState] = []
    for key, value in _decode_block(block):
        (tail,) = _INTERNAL_KEY_TAIL.unpack(key[-_INTERNAL_KEY_TAIL.size :])
        kind = tail & 0xFF
        if kind > _VALUE:
            raise ValueError(f"a row of type {kind}")
        rows.append(KeyState(key[: -_INTERNAL_KEY_TAIL.size], -(tail >> 8), value if kind == _VALUE else None))
    return rows


def checked_block(data: bytes) -> bytes:
    """A block without its trailer; ValueError unless it is complete and, like all of ours, not compressed."""
    block, trailer = data[:-BLOCK_TRAILER_BYTES], data[-BLOCK_TRAILER_BYTES:]
    if len(trailer) < BLOCK_TRAILER_BYTES or trailer[0] != 0:
        raise ValueError("a block that is truncated or compressed")
    if int.from_bytes(trailer[1:], "little") != masked_crc(memoryview(data)[: len(block) + 1]):
        raise ValueError("a block does not match its checksum")
    return block


def _apply_change(change: bytes, manifest: Manifest) -> None:
    position = 0
    while position < len(change):
        tag, position = _varint(change, position)
        if tag == _TAG_COMPARATOR:
            name, position = _sized(change, position)
            if name != _COMPARATOR:
                raise ValueError("keys out of order")
        elif tag == _TAG_LOG:
            manifest.log_number, position = _varint(change, position)
        elif tag == _TAG_PREVIOUS_LOG:
            manifest.previous_log_number, position = _varint(change, position)
        elif tag in {_TAG_NEXT_FILE, _TAG_LAST_SEQUENCE}:
            _, position = _varint(change, position)
        elif tag == _TAG_COMPACTION:
            _, position = _varint(change, position)
            _, position = _sized(change, position)
        elif tag == _TAG_DELETED_TABLE:
            level, position = _varint(change, position)
            number, position = _varint(change, position)
            del manifest.tables[level, number]
        elif tag == _TAG_NEW_TABLE:
            table, position = _new_table(change, position)
            manifest.tables[table.level, table.number] = table
        else:
            raise ValueError(f"a change with the unknown tag {tag}")


def _new_table(change: bytes, position: int) -> tuple[IndexTable, int]:
    level, position = _varint(change, position)
    number, position = _varint(change, position)
    size_bytes, position = _varint(change, position)
    first, position = _sized(change, position)
    last, position = _sized(change, position)
    tail = _INTERNAL_KEY_TAIL.size
    return IndexTable(level, number, size_bytes, first[:-tail], last[:-tail]), position


def _decode_block(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    restart_count = int.from_bytes(block[-4:], "little")
    end = len(block) - 4 * (restart_count + 1)
    position = 0
    key = b""
    while position < end:
        shared, position = _varint(block, position)
        rest, position = _varint(block, position)
        value_bytes, position = _varint(block, position)
        key_end = position + rest
        key = key[:shared] + block[position:key_end]
        position = key_end + value_bytes
        yield key, block[key_end:position]


def _handle(data: bytes, position: int) -> tuple[Handle, int]:
    offset, position = _varint(data, position)
    size_bytes, position = _varint(data, position)
    return (offset, size_bytes), position


def _sized(data: bytes, position: int) -> tuple[bytes, int]:
    size_bytes, position = _varint(data, position)
    end = position + size_bytes
    if end > len(data):
        raise ValueError("a length beyond the end")
    return data[position:end], end


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """A number, seven bits in each byte, the lowest first, and the position after it."""
    number = data[position]
    if number < 0x80:
        return number, position + 1
    number &= 0x7F
    shift = 7
    while True:
        position += 1
        byte = data[position]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position + 1
        shift += 7


def masked_crc(data: bytes | memoryview) -> int:
    """CRC-32C in LevelDB's masked form."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + _CRC_DELTA) & 0xFFFFFFFF
