"""Bytes of an entry log: header, ledgers map. Free of I/O.

A log is a header of 1024 bytes, then entries of many ledgers, each an i32 size and a body, then, once the log is full,
a map of the bytes of each ledger in it. There is no checksum and no end marker. Source: storage sections 4.2 to 4.4.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from bkctl.storage.framing import LENGTH_BYTES
from bkctl.storage.ids import LedgerId

HEADER_BYTES = 1024
"""Length of the header; the first size word follows. Direct-I/O logs fill up to 4096 with a frame of ledger -1."""

ENTRY_BYTES_MIN = 16
"""A body holds at least the ledger id and the entry id."""

BODY_OFFSET_MIN = HEADER_BYTES + 4
"""Smallest offset of a location; 0 is never one."""

FRAME_START_BYTES = 20
"""Size word, ledger id and entry id, which identify a frame."""

MAP_LEDGER_ID: LedgerId = -1
"""Ledger id of frames that hold no entry: batches of the map, and the filler of direct-I/O logs."""

HEADER_MAP_FIELDS_OFFSET = 8
"""Offset of the two fields that are written when the log is rolled."""

_MAGIC = b"BKLO"
_VERSION_WRITTEN = 1
_MAP_ENTRY_ID = -2
_MAP_BATCH_COUNT_MAX = 10_000

_HEADER = struct.Struct(">4siqi")
_MAP_FIELDS = struct.Struct(">qi")
_FRAME_START = struct.Struct(">iqq")
_MAP_BATCH_START = struct.Struct(">iqqi")
_MAP_ROW = struct.Struct(">qq")
_MAP_BATCH_SIZE_MIN = _MAP_BATCH_START.size - 4


class EntryLogHeader(msgspec.Struct, frozen=True, gc=False):
    """Header of an entry log."""

    version: int
    map_offset: int
    """Offset of the size word of the map's first batch; 0 if the log was not rolled."""
    ledger_count: int
    """Number of ledgers in all batches of the map."""

    @property
    def has_map(self) -> bool:
        """Whether the header claims a usable map (storage section 4.7)."""
        return self.version >= 1 and self.map_offset >= HEADER_BYTES and self.ledger_count > 0


class FrameStart(msgspec.Struct, frozen=True, gc=False):
    """The first bytes of an entry, or of a batch of the map."""

    size_bytes: int
    """Bytes after the size word."""
    ledger_id: int
    entry_id: int


def is_stray(ledger_id: int, entry_id: int) -> bool:
    """Whether a frame has ids that neither an entry nor a batch of the map nor the filler has."""
    return (ledger_id < 0 or entry_id < 0) and ledger_id != MAP_LEDGER_ID


class StrayRecord(NamedTuple):
    """A record with a negative ledger or entry id. It may be a damaged entry of any ledger."""

    offset: int
    """Of its size word."""
    ledger_id: int
    entry_id: int


def encode_header() -> bytes:
    """Header of a log that is not rolled yet."""
    return _HEADER.pack(_MAGIC, _VERSION_WRITTEN, 0, 0).ljust(HEADER_BYTES, b"\0")


def encode_map_fields(map_offset: int, ledger_count: int) -> bytes:
    """Bytes 8 to 19 of the header of a rolled log."""
    return _MAP_FIELDS.pack(map_offset, ledger_count)


def decode_header(start: bytes) -> EntryLogHeader | None:
    """Header from the first bytes of a log; None for an empty log, a shorter one, or one without the magic."""
    if len(start) < _HEADER.size or not start.startswith(_MAGIC):
        return None
    _, version, map_offset, ledger_count = _HEADER.unpack_from(start)
    return EntryLogHeader(version, map_offset, ledger_count)


def decode_frame_start(start: bytes) -> FrameStart | None:
    """Size word and ids; None for fewer than 20 bytes."""
    if len(start) < FRAME_START_BYTES:
        return None
    return FrameStart(*_FRAME_START.unpack_from(start))


def matching_bodies(
    data: bytes, starts: Iterable[int], ledger_id: int, first_entry_id: int, body_bytes: range
) -> list[bytes]:
    """Bodies of consecutive entries whose frames are whole in ``data`` and start at ``starts``, up to the first that is
    another one or has a size outside of ``body_bytes``."""
    bodies: list[bytes] = []
    unpack, end = _FRAME_START.unpack_from, len(data)
    for entry_id, start in enumerate(starts, first_entry_id):
        if start + FRAME_START_BYTES > end:
            break
        size_bytes, found_ledger_id, found_entry_id = unpack(data, start)
        body_start = start + LENGTH_BYTES
        stop = body_start + size_bytes
        if found_entry_id != entry_id or found_ledger_id != ledger_id or size_bytes not in body_bytes or stop > end:
            break
        bodies.append(data[body_start:stop])
    return bodies


def encode_ledgers_map(ledger_bytes: Mapping[LedgerId, int]) -> bytes:
    """The map of a log: consecutive batches of at most 10000 ledgers."""
    rows = iter(ledger_bytes.items())
    return b"".join(_map_batches(rows))


def decode_map_batch_size(start: bytes) -> int | None:
    """Bytes of the batch that starts here, size word included; None if no batch does."""
    if len(start) < _MAP_BATCH_START.size:
        return None
    size, ledger_id, entry_id, count = _MAP_BATCH_START.unpack_from(start)
    is_batch = ledger_id == MAP_LEDGER_ID and entry_id == _MAP_ENTRY_ID and count > 0
    if not is_batch or size != _MAP_BATCH_SIZE_MIN + count * _MAP_ROW.size:
        return None
    return int(size) + 4


def decode_map_batch(batch: bytes) -> list[tuple[LedgerId, int]]:
    """Rows (ledger id, bytes) of a whole batch, whose size is from ``decode_map_batch_size``."""
    return list(_MAP_ROW.iter_unpack(memoryview(batch)[_MAP_BATCH_START.size :]))


def _map_batches(rows: Iterator[tuple[LedgerId, int]]) -> Iterator[bytes]:
    while batch := list(itertools.islice(rows, _MAP_BATCH_COUNT_MAX)):
        size = _MAP_BATCH_SIZE_MIN + len(batch) * _MAP_ROW.size
        yield _MAP_BATCH_START.pack(size, MAP_LEDGER_ID, _MAP_ENTRY_ID, len(batch))
        yield from itertools.starmap(_MAP_ROW.pack, batch)
