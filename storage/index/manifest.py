"""The files that turn table files into a LevelDB database: manifest and CURRENT. Free of I/O.

A manifest is a log of version edits in blocks of 32 KiB; here it holds one edit, which lists all tables. Source:
LevelDB's documents impl and log_format; decision 10.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from bkctl.storage.index.files import masked_crc
from bkctl.storage.index.table import SEQUENCE_NUMBER, encode_varint

MANIFEST_NAME: Final = "MANIFEST-000001"
CURRENT_NAME: Final = "CURRENT"
CURRENT_CONTENT: Final = f"{MANIFEST_NAME}\n".encode()
TABLE_NUMBER_FIRST: Final = 2

_BLOCK_BYTES = 32 * 1024
_RECORD_HEADER_BYTES = 7
_COMPARATOR = b"leveldb.BytewiseComparator"
_TAG_COMPARATOR, _TAG_LOG, _TAG_NEXT_FILE, _TAG_LAST_SEQUENCE, _TAG_NEW_FILE, _TAG_PREVIOUS_LOG = 1, 2, 3, 4, 7, 9
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_LEVEL_LAST = 6
_LEVEL_BYTES = 10 * 1024 * 1024
"""Size limit of LevelDB's level 1; every further level holds ten times as much."""


class TableFile(NamedTuple):
    """A table as the manifest lists it; keys are internal ones."""

    number: int
    size_bytes: int
    first_key: bytes
    last_key: bytes


def table_name(number: int) -> str:
    """Name of a table file."""
    return f"{number:06d}.ldb"


def encode_manifest(tables: Sequence[TableFile]) -> bytes:
    """Manifest of a new database of these tables, which must not overlap."""
    level = _level_of(sum(table.size_bytes for table in tables))
    next_number = max((table.number for table in tables), default=TABLE_NUMBER_FIRST - 1) + 1
    edit = encode_varint(_TAG_COMPARATOR) + _sized(_COMPARATOR)
    for tag, number in (
        (_TAG_LOG, 0),
        (_TAG_PREVIOUS_LOG, 0),
        (_TAG_NEXT_FILE, next_number),
        (_TAG_LAST_SEQUENCE, SEQUENCE_NUMBER),
    ):
        edit += encode_varint(tag) + encode_varint(number)
    files = (
        encode_varint(_TAG_NEW_FILE)
        + encode_varint(level)
        + encode_varint(table.number)
        + encode_varint(table.size_bytes)
        + _sized(table.first_key)
        + _sized(table.last_key)
        for table in tables
    )
    return b"".join(_records(edit + b"".join(files)))


def _level_of(size_bytes: int) -> int:
    """The first level with room for twice as much, so that LevelDB does not have to compact the new database soon."""
    level, room_bytes = 1, _LEVEL_BYTES
    while level < _LEVEL_LAST and room_bytes < 2 * size_bytes:
        level, room_bytes = level + 1, room_bytes * 10
    return level


def _records(data: bytes) -> Iterator[bytes]:
    """One logical record, split at block boundaries."""
    position = done = 0
    while True:
        room = _BLOCK_BYTES - position % _BLOCK_BYTES - _RECORD_HEADER_BYTES
        part = data[done : done + room]
        is_first, is_last = done == 0, done + len(part) == len(data)
        done += len(part)
        kind = (_FULL if is_last else _FIRST) if is_first else (_LAST if is_last else _MIDDLE)
        typed = bytes([kind]) + part
        yield struct.pack("<IH", masked_crc(typed), len(part)) + typed
        position += _RECORD_HEADER_BYTES + len(part)
        if is_last:
            return


def _sized(data: bytes) -> bytes:
    return encode_varint(len(data)) + data
