"""Bytes of a journal file: header, record framing, padding, record types. Free of I/O.

A file is a header and then records, each an i32 length and a payload that starts with i64 ledger id and i64 entry id. A
group of records that was synced together ends on a multiple of the alignment (version 5 and later); after the last
group there are zeros or nothing. There is no checksum. Source: storage sections 3.2 to 3.6.
"""

from __future__ import annotations

import enum
import struct

import msgspec

from bkctl.storage.entry import ENTRY_HEADER_BYTES_MIN
from bkctl.storage.framing import LENGTH_BYTES
from bkctl.storage.ids import EntryId, LedgerId, MetaEntryKind
from bkctl.storage.setting import MEBIBYTE

VERSION_MIN = 1
VERSION_MAX = 6
PADDING_VERSION_MIN = 5
"""First version in which a length word of ``PADDING_MARK`` introduces padding."""

HEADER_BYTES = 512
"""Header of the versions 5 and 6; those of 2 to 4 are ``VERSION_HEADER_BYTES`` long, version 1 has none."""
VERSION_HEADER_BYTES = 8

GROUP_BYTES_MAX = 8 * MEBIBYTE
"""A group is no longer than this, unless it is a single record."""

PADDING_MARK = -256
PADDING_HEADER_BYTES = 8
RECORD_BYTES_MIN = 16
RECORD_START_BYTES = LENGTH_BYTES + RECORD_BYTES_MIN
"""The length word and the ids: enough to decide whether a record can start at an offset."""

_MAGIC = b"BKLG"
_VERSION = struct.Struct(">4si")
_IDS = struct.Struct(">qq")
_IDS_AND_LENGTH = struct.Struct(">qqi")
_RECORD_START = struct.Struct(">iqq")
_PADDING = struct.Struct(">ii")
_ZERO_HEADER = bytes(ENTRY_HEADER_BYTES_MIN)

EXPLICIT_LAC_VERSION_MIN = 6
"""First version with a record for explicit LACs."""

_VERSION_SINCE = {
    MetaEntryKind.LEDGER_KEY: 3,
    MetaEntryKind.FENCE: 4,
    MetaEntryKind.EXPLICIT_LAC: EXPLICIT_LAC_VERSION_MIN,
}


class JournalRecordKind(enum.Enum):
    """Type of a record; only its entry id determines it."""

    ENTRY = "entry"
    LEDGER_KEY = "ledger key"
    FENCE = "fence"
    EXPLICIT_LAC = "explicit LAC"
    UNKNOWN = "unknown"


_KINDS = {
    MetaEntryKind.LEDGER_KEY: JournalRecordKind.LEDGER_KEY,
    MetaEntryKind.FENCE: JournalRecordKind.FENCE,
    MetaEntryKind.EXPLICIT_LAC: JournalRecordKind.EXPLICIT_LAC,
}


class JournalRecord(msgspec.Struct, frozen=True, gc=False):
    """One record of a journal file."""

    kind: JournalRecordKind
    ledger_id: LedgerId
    entry_id: EntryId
    payload: bytes
    """Entry or unknown: the whole record, which for an entry is its body. Ledger key: the key. Explicit LAC: the body
    of the request that set it. Fence: empty."""
    offset: int
    """Offset of the length word in the file."""


def encode_file_header(version: int = VERSION_MAX) -> bytes:
    """Start of a file of a version, up to its first record."""
    return _VERSION.pack(_MAGIC, version).ljust(data_start(version), b"\0")


def decode_version(start: bytes) -> int:
    """Version in the first eight bytes of a file; 1 without the magic, as the first version had no header.

    The number is not checked: ``VERSION_MIN`` to ``VERSION_MAX`` can be read.
    """
    if len(start) < VERSION_HEADER_BYTES or not start.startswith(_MAGIC):
        return 1
    version: int = _VERSION.unpack_from(start)[1]
    return version


def data_start(version: int) -> int:
    """Offset of the first record in a file of a version."""
    if version == 1:
        return 0
    return VERSION_HEADER_BYTES if version < PADDING_VERSION_MIN else HEADER_BYTES


def encode_padding(position: int, alignment_bytes: int, content_bytes: int = 0) -> bytes:
    """Padding from ``position``, where a group ends, to the next multiple of the alignment (storage section 3.4).

    It has room for at least ``content_bytes``, zeros here, which readers skip.

    Unlike Java, bkctl also pads a group that ends on such a multiple, by a whole block, which Java skips like any
    other: ``damage`` recognizes the ends of groups by their padding.
    """
    missing = -position % alignment_bytes
    if missing < PADDING_HEADER_BYTES + content_bytes:
        missing += alignment_bytes
    count = missing - PADDING_HEADER_BYTES
    return _PADDING.pack(PADDING_MARK, count) + bytes(count)


def encode_ledger_key_record(ledger_id: LedgerId, master_key: bytes) -> bytes:
    """Record of a ledger's master key, which precedes all other records of the ledger."""
    return _IDS_AND_LENGTH.pack(ledger_id, MetaEntryKind.LEDGER_KEY, len(master_key)) + master_key


def encode_fence_record(ledger_id: LedgerId) -> bytes:
    """Record of a fence."""
    return _IDS.pack(ledger_id, MetaEntryKind.FENCE)


def encode_explicit_lac_record(ledger_id: LedgerId, explicit_lac: bytes) -> bytes:
    """Record of an explicit LAC: the whole body of the request, which begins with i64 ledger id and i64 LAC."""
    return _IDS_AND_LENGTH.pack(ledger_id, MetaEntryKind.EXPLICIT_LAC, len(explicit_lac)) + explicit_lac


def is_record_start(data: bytes, left_bytes: int) -> bool:
    """Whether ``data``, ``RECORD_START_BYTES`` long, can start a record of at most ``left_bytes`` in total."""
    if len(data) < RECORD_START_BYTES:
        return False
    length, ledger_id, entry_id = _RECORD_START.unpack_from(data)
    bytes_min = ENTRY_HEADER_BYTES_MIN if entry_id >= 0 else RECORD_BYTES_MIN
    is_known = entry_id >= 0 or entry_id in _KINDS
    return is_known and ledger_id >= 0 and bytes_min <= length <= left_bytes - LENGTH_BYTES


def decode_record(data: bytes, offset: int, version: int) -> JournalRecord:
    """Decode the payload of a record in a file of ``version``; ValueError, with the reason, if it is invalid."""
    if len(data) < RECORD_BYTES_MIN:
        raise ValueError(f"a record of {len(data)} bytes")
    ledger_id, entry_id = _IDS.unpack_from(data)
    if ledger_id < 0:
        raise ValueError(f"a record of ledger {ledger_id}")
    if entry_id >= 0:
        if len(data) < ENTRY_HEADER_BYTES_MIN:
            raise ValueError(f"entry {ledger_id}:{entry_id} of {len(data)} bytes")
        return JournalRecord(JournalRecordKind.ENTRY, ledger_id, entry_id, data, offset)
    kind = _KINDS.get(entry_id, JournalRecordKind.UNKNOWN)
    if kind is JournalRecordKind.UNKNOWN:
        return JournalRecord(kind, ledger_id, entry_id, data, offset)
    if version < _VERSION_SINCE[MetaEntryKind(entry_id)]:
        raise ValueError(f"a record of type {kind.value}, which version {version} does not have")
    payload = b"" if kind is JournalRecordKind.FENCE else _decode_counted(data, kind)
    return JournalRecord(kind, ledger_id, entry_id, payload, offset)


def is_zero_filled(data: bytes) -> bool:
    """Whether a record consists of zeros: its length word reached the disk, the rest did not."""
    return data.startswith(_ZERO_HEADER[:RECORD_BYTES_MIN]) and not data.strip(b"\0")


def _decode_counted(data: bytes, kind: JournalRecordKind) -> bytes:
    if len(data) < _IDS_AND_LENGTH.size:
        raise ValueError(f"a record of type {kind.value} without a length")
    count = _IDS_AND_LENGTH.unpack_from(data)[2]
    if not 0 <= count <= len(data) - _IDS_AND_LENGTH.size:
        raise ValueError(f"a record of type {kind.value} whose inner length {count} does not fit its {len(data)} bytes")
    return data[_IDS_AND_LENGTH.size : _IDS_AND_LENGTH.size + count]
