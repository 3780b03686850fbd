"""A table file of LevelDB, made from many sorted rows in one operation. Free of I/O; for child processes.

LevelDB builds a table row by row. Here all keys have 16 bytes and all values 8, so that a block of a fixed number of
rows is an array, and one operation makes all blocks of a table that share a prefix length.

A table is data blocks, a filter block, a block that references the filter, an index of the data blocks, and a footer.
Every block is followed by a type (0: not compressed) and the masked CRC-32C of block and type. In a block a key is
written without the prefix that it shares with the key before; every 16th is written whole, and its offset is at the end
of the block. LevelDB accepts any shared length that is correct: here it is the common prefix of the block. Source:
LevelDB's documents table_format and impl; decision 10.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from bkctl.storage.index.files import MAGIC, masked_crc
from bkctl.storage.index.location_index import KEY_BYTES, LOCATION_BYTES

Bytes2d: TypeAlias = "np.ndarray[Any, np.dtype[np.uint8]]"
"""Two-dimensional: one row of bytes for each key or value."""

TABLE_ROW_COUNT_MAX: Final = 1_000_000
"""Rows of one table: 22 to 36 MB, close to the size of the tables that LevelDB makes itself here."""

SEQUENCE_NUMBER: Final = 1
"""Sequence number of every row: the database is new, so no key occurs twice."""

_GROUP_ROW_COUNT = 16
"""LevelDB's own restart interval."""
_BLOCK_GROUP_COUNT = 11
BLOCK_ROW_COUNT = _GROUP_ROW_COUNT * _BLOCK_GROUP_COUNT
"""With the usual shared prefix of 14 bytes a block has about 4 KiB, LevelDB's own size; always more than 2 KiB, so that
no two blocks share a filter."""
_CHUNK_BLOCK_COUNT = 256

_INTERNAL_KEY_TAIL = struct.pack("<Q", SEQUENCE_NUMBER << 8 | 1)
"""Sequence number and the type "value"."""
_INTERNAL_KEY_BYTES = KEY_BYTES + len(_INTERNAL_KEY_TAIL)
_ROW_BYTES_MAX = 3 + _INTERNAL_KEY_BYTES + LOCATION_BYTES
_FILTER_NAME = b"filter.leveldb.BuiltinBloomFilter2"
_FILTER_BASE_BITS = 11
_FILTER_BITS_PER_KEY = 10
_FILTER_PROBE_COUNT = 6
_FILTER_BITS_MIN = 64
_FOOTER_HANDLES_BYTES = 40


class EncodedTable(NamedTuple):
    """A table file and its data for the manifest."""

    parts: list[bytes]
    size_bytes: int
    first_key: bytes
    """Internal keys, 24 bytes: key, sequence number, type."""
    last_key: bytes
    block_first_keys: Bytes2d
    """First key of every data block, 16 bytes each."""


class _Handle(NamedTuple):
    offset: int
    size_bytes: int

    def encode(self) -> bytes:
        return encode_varint(self.offset) + encode_varint(self.size_bytes)


def encode_table(keys: Bytes2d, values: Bytes2d) -> EncodedTable:
    """Encode 1 to ``TABLE_ROW_COUNT_MAX`` rows, strictly ascending: ``keys`` n times 16, ``values`` n times 8."""
    count = len(keys)
    assert 0 < count <= TABLE_ROW_COUNT_MAX, f"{count} rows"
    parts: list[bytes] = []
    handles: list[_Handle] = []
    filters: list[bytes] = []
    offset = 0
    step = _CHUNK_BLOCK_COUNT * BLOCK_ROW_COUNT
    for first in range(0, count, step):
        chunk_keys, chunk_values = keys[first : first + step], values[first : first + step]
        for block in _data_blocks(chunk_keys, chunk_values):
            handles.append(_Handle(offset, len(block)))
            parts.append(with_trailer(block))
            offset += len(parts[-1])
        filters += _filters(chunk_keys)
    filter_handle = _Handle(offset, _append(parts, _filter_block(filters, handles)))
    offset += len(parts[-1])
    names_handle = _Handle(offset, _append(parts, encode_block([(_FILTER_NAME, filter_handle.encode())])))
    offset += len(parts[-1])
    last_keys = keys[np.minimum(np.arange(1, len(handles) + 1) * BLOCK_ROW_COUNT, count) - 1]
    index = [(internal_key(key.tobytes()), handle.encode()) for key, handle in zip(last_keys, handles, strict=True)]
    index_handle = _Handle(offset, _append(parts, encode_block(index)))
    offset += len(parts[-1])
    parts.append((names_handle.encode() + index_handle.encode()).ljust(_FOOTER_HANDLES_BYTES, b"\0") + MAGIC)
    return EncodedTable(
        parts,
        offset + len(parts[-1]),
        internal_key(keys[0].tobytes()),
        internal_key(keys[-1].tobytes()),
        keys[::BLOCK_ROW_COUNT],
    )


def internal_key(key: bytes) -> bytes:
    """A key as stored in tables and manifests."""
    return key + _INTERNAL_KEY_TAIL


def encode_block(rows: list[tuple[bytes, bytes]]) -> bytes:
    """A block of a few rows of any shape, every key written whole."""
    encoded = [
        encode_varint(0) + encode_varint(len(key)) + encode_varint(len(value)) + key + value for key, value in rows
    ]
    restarts = np.cumsum([0, *map(len, encoded[:-1])], dtype="<u4").astype("<u4").tobytes()
    return b"".join(encoded) + restarts + struct.pack("<I", len(rows))


def with_trailer(block: bytes) -> bytes:
    """A block as stored in a file: not compressed, with its checksum."""
    typed = block + b"\0"
    return typed + struct.pack("<I", masked_crc(typed))


def encode_varint(number: int) -> bytes:
    """Seven bits in each byte, the lowest first, 0x80 on all but the last."""
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _append(parts: list[bytes], block: bytes) -> int:
    parts.append(with_trailer(block))
    return len(block)


def _data_blocks(keys: Bytes2d, values: Bytes2d) -> Iterator[bytes]:
    """The blocks of some rows in order; all but the last have the same number of rows."""
    count = len(keys) // BLOCK_ROW_COUNT
    whole = count * BLOCK_ROW_COUNT
    block_keys = keys[:whole].reshape(count, BLOCK_ROW_COUNT, KEY_BYTES)
    block_values = values[:whole].reshape(count, BLOCK_ROW_COUNT, LOCATION_BYTES)
    # The keys are sorted, so a prefix of the first and the last key is one of all keys.
    shared_bytes = (block_keys[:, 0] != block_keys[:, -1]).argmax(axis=1)
    blocks: list[bytes] = [b""] * count
    for shared in np.unique(shared_bytes).tolist():
        chosen = np.flatnonzero(shared_bytes == shared)
        encoded = _encode_alike(block_keys[chosen], block_values[chosen], shared)
        for position, block in zip(chosen.tolist(), encoded, strict=True):
            blocks[position] = block.tobytes()
    yield from blocks
    if whole < len(keys):
        rest = [
            (internal_key(key.tobytes()), value.tobytes())
            for key, value in zip(keys[whole:], values[whole:], strict=True)
        ]
        yield encode_block(rest)


def _encode_alike(keys: Bytes2d, values: Bytes2d, shared: int) -> Bytes2d:
    """Encode blocks, one per row, whose keys (blocks, rows, 16) share their first ``shared`` bytes."""
    count = len(keys)
    short = _ROW_BYTES_MAX - shared
    group_bytes = _ROW_BYTES_MAX + (_GROUP_ROW_COUNT - 1) * short
    restarts = [group * group_bytes for group in range(_BLOCK_GROUP_COUNT)]
    tail = struct.pack(f"<{_BLOCK_GROUP_COUNT + 1}I", *restarts, _BLOCK_GROUP_COUNT)
    rows_bytes = _BLOCK_GROUP_COUNT * group_bytes
    blocks = np.empty((count, rows_bytes + len(tail)), np.uint8)
    blocks[:, rows_bytes:] = np.frombuffer(tail, np.uint8)
    groups = blocks[:, :rows_bytes].reshape(count, _BLOCK_GROUP_COUNT, group_bytes)
    keys = keys.reshape(count, _BLOCK_GROUP_COUNT, _GROUP_ROW_COUNT, KEY_BYTES)
    values = values.reshape(count, _BLOCK_GROUP_COUNT, _GROUP_ROW_COUNT, LOCATION_BYTES)
    _put_rows(groups[:, :, :_ROW_BYTES_MAX], keys[:, :, 0], values[:, :, 0], 0)
    behind = groups[:, :, _ROW_BYTES_MAX:]
    rest = np.lib.stride_tricks.as_strided(
        behind,
        (count, _BLOCK_GROUP_COUNT, _GROUP_ROW_COUNT - 1, short),
        (*behind.strides[:2], short, 1),
    )
    _put_rows(rest, keys[:, :, 1:], values[:, :, 1:], shared)
    return blocks


def _put_rows(target: Bytes2d, keys: Bytes2d, values: Bytes2d, shared: int) -> None:
    """Write rows into the last axis of ``target``: the three lengths, the rest of the key, the value."""
    key_end = 3 + KEY_BYTES - shared
    lengths = (shared, _INTERNAL_KEY_BYTES - shared, LOCATION_BYTES)
    target[..., :3] = np.array(lengths, np.uint8)
    target[..., 3:key_end] = keys[..., shared:]
    target[..., key_end:-LOCATION_BYTES] = np.frombuffer(_INTERNAL_KEY_TAIL, np.uint8)
    target[..., -LOCATION_BYTES:] = values


def _filters(keys: Bytes2d) -> list[bytes]:
    """One Bloom filter for each block."""
    hashes = _hashes(keys)
    whole = len(hashes) // BLOCK_ROW_COUNT * BLOCK_ROW_COUNT
    made = _filters_alike(hashes[:whole].reshape(-1, BLOCK_ROW_COUNT))
    return made + (_filters_alike(hashes[whole:].reshape(1, -1)) if whole < len(hashes) else [])


def _filters_alike(hashes: np.ndarray[Any, np.dtype[np.uint32]]) -> list[bytes]:
    """Filters of blocks, one per row, with the same number of keys."""
    count, key_count = hashes.shape
    filter_bytes = (max(key_count * _FILTER_BITS_PER_KEY, _FILTER_BITS_MIN) + 7) // 8
    bits = np.zeros((count, filter_bytes * 8), np.uint8)
    flat = bits.ravel()
    bases = (np.arange(count, dtype=np.uint32) * np.uint32(filter_bytes * 8))[:, None]
    step = hashes >> np.uint32(17) | hashes << np.uint32(15)
    probe = hashes.copy()
    for _ in range(_FILTER_PROBE_COUNT):
        flat[bases + probe % np.uint32(filter_bytes * 8)] = 1
        probe += step
    packed = np.packbits(bits, axis=1, bitorder="little")
    end = bytes([_FILTER_PROBE_COUNT])
    return [row.tobytes() + end for row in packed]


def _hashes(keys: Bytes2d) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """LevelDB's hash of each key, for its Bloom filter."""
    factor = np.uint32(0xC6A4A793)
    words = np.ascontiguousarray(keys).view("<u4").astype(np.uint32)
    seed = (0xBC9F1D34 ^ KEY_BYTES * 0xC6A4A793) & 0xFFFFFFFF
    found = np.full(len(keys), seed, np.uint32)
    for column in range(words.shape[1]):
        found += words[:, column]
        found *= factor
        found ^= found >> np.uint32(16)
    return found


def _filter_block(filters: list[bytes], handles: list[_Handle]) -> bytes:
    """Filters of the blocks that start in each range of 2 KiB, then the offset of each range's filter."""
    stretches = np.array([handle.offset >> _FILTER_BASE_BITS for handle in handles])
    ends = np.cumsum([0, *map(len, filters)])
    starts = ends[np.searchsorted(stretches, np.arange(stretches[-1] + 1))].astype("<u4").tobytes()
    return b"".join(filters) + starts + struct.pack("<IB", int(ends[-1]), _FILTER_BASE_BITS)
