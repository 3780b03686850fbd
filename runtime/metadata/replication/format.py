"""Bytes of the under-replication nodes and the names that contain ledger ids. Source: metadata sections 5, 10 and 11.

Text is written exactly as Java writes it and read as tolerantly as protobuf allows; a check time is binary. Damaged
bytes are never treated as an empty message. Java 4.18 does so, and its workers then clear the mark.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeVar

import msgspec

from bkctl.runtime.errors import MetadataFormatError
from bkctl.runtime.ledger.protobuf_text import Field, format_fields, parse_fields
from bkctl.runtime.metadata.paths import MARK_PREFIX, VOTE_PREFIX, mark_name
from bkctl.storage.json_text import JsonTextError, decode_json

if TYPE_CHECKING:
    from google.protobuf.message import Message

    MessageT = TypeVar("MessageT", bound=Message)

LAYOUT_TYPE = "BASIC"
LAYOUT_VERSION = 1

_MARK_NAME = re.compile(rf"{MARK_PREFIX}(\d{{10,19}})", re.ASCII)
_VOTE_NAME = re.compile(rf"{VOTE_PREFIX}(-?\d{{1,10}})", re.ASCII)
_GROUP = re.compile(r"[0-9a-f]{4}")
_LEDGER_ID_LIMIT = 2**63
# As Java prints it when no id needs an escape: matches nearly all marks and avoids the parser, which is slow.
_PLAIN_MARK = re.compile(r'((?:replica: "[A-Za-z0-9.\-:-@\[\]^_]+"\n)*)(?:ctime: ([1-9]\d{0,17})\n)?', re.ASCII)


class UnderReplicationMark(msgspec.Struct, frozen=True):
    """Contents of a mark. No missing bookie is legal: then the ledger violates the placement policy."""

    missing_bookies: tuple[str, ...]
    ctime_ms: int | None = None
    """When the last bookie was added; None when the marker does not store it."""


def encode_mark(mark: UnderReplicationMark) -> bytes:
    """Bytes of a mark."""
    fields: list[Field] = [("replica", bookie_id) for bookie_id in mark.missing_bookies]
    if mark.ctime_ms is not None:
        fields.append(("ctime", mark.ctime_ms))
    return format_fields(fields).encode("ascii")


def decode_mark(data: bytes) -> UnderReplicationMark:
    """Mark; MetadataFormatError for anything that may not be one."""
    text = _text(data, "mark")
    if plain := _PLAIN_MARK.fullmatch(text):
        return UnderReplicationMark(tuple(plain[1].split('"')[1::2]), int(plain[2]) if plain[2] else None)
    from bkctl.runtime.metadata.metadata_nodes_pb2 import UnderReplicatedLedgerRecord  # noqa: PLC0415  rarely needed

    record = parse_fields(text, UnderReplicatedLedgerRecord(), "mark")
    ctime_ms = record.ctime if record.HasField("ctime") else None
    if not record.replica and ctime_ms is None:
        raise MetadataFormatError("mark: it has no field of a mark")
    return UnderReplicationMark(tuple(record.replica), ctime_ms)


def encode_lock(holder: str) -> bytes:
    """Bytes of a replication lock; ``holder`` is a host name."""
    return format_fields([("bookieId", holder)]).encode("ascii")


def decode_lock(data: bytes) -> str:
    """Name of the lock's holder, as stored; MetadataFormatError."""
    from bkctl.runtime.metadata.metadata_nodes_pb2 import ReplicationLockRecord  # noqa: PLC0415  half of the commands do not

    record = parse_fields(_text(data, "replication lock"), ReplicationLockRecord(), "replication lock")
    if not record.HasField("bookieId"):
        raise MetadataFormatError("replication lock without owner information")
    return record.bookieId


def encode_vote(bookie_id: str) -> bytes:
    """Bytes of a vote, and of the hint that the winner writes to the directory's own node."""
    return format_fields([("bookieId", bookie_id)]).encode("ascii")


def decode_vote(data: bytes) -> str:
    """The bookie id of a candidate; MetadataFormatError."""
    from bkctl.runtime.metadata.metadata_nodes_pb2 import AuditorVoteRecord  # noqa: PLC0415

    record = parse_fields(_text(data, "vote"), AuditorVoteRecord(), "vote")
    if not record.HasField("bookieId"):
        raise MetadataFormatError("vote: it has no bookie")
    return record.bookieId


def decode_pulsar_auditor(data: bytes) -> str:
    """The bookie id in the node of Pulsar's auditor, a JSON string; MetadataFormatError."""
    try:
        return decode_json(data, str)
    except JsonTextError as error:
        raise MetadataFormatError(f"Pulsar's auditor: {error}") from error


def encode_pulsar_auditor(daemon_id: str) -> bytes:
    """Bytes of the node of Pulsar's auditor."""
    return msgspec.json.encode(daemon_id)


def encode_check_time(time_ms: int) -> bytes:
    """Bytes of a node with the time at which a periodic check last ended."""
    from bkctl.runtime.metadata.metadata_nodes_pb2 import CheckTimeRecord  # noqa: PLC0415

    return CheckTimeRecord(ctime=time_ms).SerializeToString()


def decode_check_time(data: bytes) -> int | None:
    """Ms since 1970, None when the field is missing; MetadataFormatError."""
    from google.protobuf.message import DecodeError  # noqa: PLC0415

    from bkctl.runtime.metadata.metadata_nodes_pb2 import CheckTimeRecord  # noqa: PLC0415

    try:
        record = CheckTimeRecord.FromString(data)
    except DecodeError as error:
        raise MetadataFormatError(f"check time: not a valid message: {error}") from error
    return record.ctime if record.HasField("ctime") else None


def encode_layout() -> bytes:
    """Bytes of the node with the format of the tree."""
    return format_fields([("type", LAYOUT_TYPE), ("version", LAYOUT_VERSION)]).encode("ascii")


def check_layout(data: bytes) -> None:
    """MetadataFormatError unless it is the only existing format of the tree."""
    from bkctl.runtime.metadata.metadata_nodes_pb2 import UnderReplicationLayoutRecord  # noqa: PLC0415

    text = _text(data, "layout")
    record = parse_fields(text, UnderReplicationLayoutRecord(), "layout")
    if (record.type, record.version) != (LAYOUT_TYPE, LAYOUT_VERSION):
        raise MetadataFormatError(f"unknown kind of under-replication tree: {text!r}")


def parse_mark_name(name: str) -> int | None:
    """Ledger id of a mark or a lock, None for a name that no Java process writes."""
    found = _MARK_NAME.fullmatch(name)
    ledger_id = int(found[1]) if found else _LEDGER_ID_LIMIT
    return ledger_id if ledger_id < _LEDGER_ID_LIMIT and name == mark_name(ledger_id) else None


def parse_vote_name(name: str) -> int | None:
    """Number of a vote, None for any other name."""
    found = _VOTE_NAME.fullmatch(name)
    return int(found[1]) if found else None


def parse_group_name(name: str) -> int | None:
    """16 bits of a ledger id, None for a name that is not that of an interior node."""
    return int(name, 16) if _GROUP.fullmatch(name) else None


def _text(data: bytes, what: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise MetadataFormatError(f"{what}: not UTF-8") from error
