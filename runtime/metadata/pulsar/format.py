"""Which ledgers a node of Pulsar's metadata names. Pure. Source: metadata section 16.

The decoders are strict, because a ledger that no node names may be deleted: a field that is not known here may name
ledgers, so a message with one cannot be decoded.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeVar

import msgspec

from bkctl.runtime.errors import MetadataFormatError
from bkctl.runtime.metadata.pulsar.compression import split_compressed, unpack

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from bkctl.runtime.metadata.pulsar.pulsar_nodes_pb2 import NumberLabel

    MessageT = TypeVar("MessageT", bound=Message)

COMPACTION_CURSOR = "__compaction"
_COMPACTED_LEDGER = b"CompactedTopicLedger"
_BUCKET_PREFIX = b"#pulsar.internal.delayed.bucket"
_ID_DIGITS_MAX = 19


class NamedLedgers(msgspec.Struct, frozen=True, kw_only=True):
    """The ledgers that a node names.

    ``offloaded_ids``: those whose data Pulsar has moved to another storage, and whose copy in BookKeeper it has deleted
    or will delete. ``compacted_id``: the compacted ledger of the topic, None if the node names none.
    """

    ledger_ids: frozenset[int] = frozenset()
    offloaded_ids: frozenset[int] = frozenset()
    cursor_ledger_id: int | None = None
    compacted_id: int | None = None


def decode_topic(data: bytes) -> NamedLedgers:
    """The data ledgers of a topic's node; none for an empty node. MetadataFormatError."""
    from bkctl.runtime.metadata.pulsar.pulsar_nodes_pb2 import TopicRecord  # noqa: PLC0415  most commands do not need it

    ledger_ids, offloaded_ids = set[int](), set[int]()
    for ledger in _parse(TopicRecord(), _unpacked(data), "topic").ledgers:
        if not ledger.HasField("ledgerId") or ledger.ledgerId < 0:
            raise MetadataFormatError("topic: a ledger has no id")
        is_offloaded = ledger.offload.isComplete and ledger.offload.isDeletedFromBookies
        (offloaded_ids if is_offloaded else ledger_ids).add(ledger.ledgerId)
    return NamedLedgers(ledger_ids=frozenset(ledger_ids), offloaded_ids=frozenset(offloaded_ids - ledger_ids))


def decode_cursor(data: bytes) -> NamedLedgers:
    """The ledger of a cursor's node, its delayed-delivery buckets and the compacted ledger. MetadataFormatError."""
    from bkctl.runtime.metadata.pulsar.pulsar_nodes_pb2 import CursorRecord  # noqa: PLC0415  as above

    record = _parse(CursorRecord(), _unpacked(data), "cursor")
    if not record.HasField("cursorLedgerId"):
        raise MetadataFormatError("cursor: the id of its ledger is missing")
    buckets = {_bucket_id(each.text) for each in record.textLabels if each.name.startswith(_BUCKET_PREFIX)}
    own = {record.cursorLedgerId} if record.cursorLedgerId >= 0 else set()
    compacted_id = _compacted_id(record.numberLabels)
    compacted = set() if compacted_id is None else {compacted_id}
    return NamedLedgers(
        ledger_ids=frozenset(own | buckets | compacted),
        cursor_ledger_id=next(iter(own), None),
        compacted_id=compacted_id,
    )


def decode_cursor_entry(data: bytes) -> NamedLedgers:
    """The compacted ledger that an entry of a cursor's ledger names, if it names one. MetadataFormatError."""
    from bkctl.runtime.metadata.pulsar.pulsar_nodes_pb2 import CursorEntryRecord  # noqa: PLC0415  as above

    record = _parse(CursorEntryRecord(), data, "entry of a cursor's ledger")
    if not record.HasField("readLedgerId") or not record.HasField("readEntryId"):
        raise MetadataFormatError("entry of a cursor's ledger: the position is missing")
    compacted_id = _compacted_id(record.numberLabels)
    named = frozenset() if compacted_id is None else frozenset({compacted_id})
    return NamedLedgers(ledger_ids=named, compacted_id=compacted_id)


def decode_schema(data: bytes) -> NamedLedgers:
    """The ledgers of all versions of a schema. MetadataFormatError, also if the node has not all versions."""
    from bkctl.runtime.metadata.pulsar.pulsar_nodes_pb2 import SchemaRecord  # noqa: PLC0415  as above

    record = _parse(SchemaRecord(), data, "schema")
    if not record.HasField("newest"):
        raise MetadataFormatError("schema: the newest version is missing")
    versions = [record.newest, *record.versions]
    if not all(each.HasField("number") and each.position.HasField("ledgerId") for each in versions):
        raise MetadataFormatError("schema: a version has no number or no ledger")
    if min(each.number for each in versions) > 0:
        raise MetadataFormatError("schema: only its ledgers name the first versions")
    return NamedLedgers(
        ledger_ids=frozenset(each.position.ledgerId for each in versions if each.position.ledgerId >= 0)
    )


def _unpacked(data: bytes) -> bytes:
    from bkctl.runtime.metadata.pulsar.pulsar_nodes_pb2 import CompressionRecord  # noqa: PLC0415  as above

    parts = split_compressed(data)
    if parts is None:
        return data
    header = _parse(CompressionRecord(), parts.header, "compression header")
    if not header.HasField("codec") or not header.HasField("uncompressedBytes"):
        raise MetadataFormatError("compression header: codec or size is missing")
    return unpack(parts.payload, header.codec, header.uncompressedBytes)


def _parse(message: MessageT, data: bytes, what: str) -> MessageT:
    from google.protobuf.message import DecodeError  # noqa: PLC0415  as above

    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise MetadataFormatError(f"{what}: not a protobuf message: {error}") from error
    size_bytes = message.ByteSize()
    message.DiscardUnknownFields()
    if message.ByteSize() != size_bytes:
        raise MetadataFormatError(f"{what}: it has a field that this version of bkctl does not know")
    return message


def _compacted_id(labels: Iterable[NumberLabel]) -> int | None:
    """The last label of this name counts, as in Pulsar."""
    found = None
    for label in labels:
        if label.name == _COMPACTED_LEDGER:
            if not label.HasField("number") or label.number < 0:
                raise MetadataFormatError("cursor: the id of the compacted ledger is missing")
            found = label.number
    return found


def _bucket_id(text: bytes) -> int:
    if not text.isdigit() or len(text) > _ID_DIGITS_MAX:
        raise MetadataFormatError("cursor: the ledger of a delayed-delivery bucket is not a number")
    return int(text)
