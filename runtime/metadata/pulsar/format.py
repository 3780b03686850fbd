"""Which ledgers a node of Pulsar's metadata names. Pure. Source: metadata section 16.

The decoders are strict, because a ledger that no node names may be deleted: a field that is not known here may name
ledgers, so a message with one cannot be decoded.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from bkctl.runtime.errors import MetadataFormatError
from bkctl.runtime.optional_packages import require_package

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from bkctl.runtime.metadata.pulsar.pulsar_nodes_pb2 import NumberLabel

    MessageT = TypeVar("MessageT", bound=Message)


_MAGIC = b"\x47\x78"
_LENGTH_BYTES = 4
_NONE, _ZLIB = 0, 2
_ARROW_CODECS = {1: "lz4_raw", 3: "zstd", 4: "snappy"}
_UNPACKED_BYTES_MAX = 128 << 20
"""Far above any node: ZooKeeper's limit is 1 MiB by default. A damaged size must not take all memory."""


class CompressedParts(NamedTuple):
    """A compressed node before its header is decoded."""

    header: bytes
    payload: bytes


def split_compressed(data: bytes) -> CompressedParts | None:
    """Header and payload; None if the node is not compressed. MetadataFormatError.

    No uncompressed node starts with the magic number: as protobuf it would be a field of a type that does not exist.
    """
    if not data.startswith(_MAGIC):
        return None
    start = len(_MAGIC) + _LENGTH_BYTES
    header_bytes = int.from_bytes(data[len(_MAGIC) : start], "big", signed=True)
    if len(data) < start or not 0 <= header_bytes <= len(data) - start:
        raise MetadataFormatError("compression header: it is incomplete")
    return CompressedParts(data[start : start + header_bytes], data[start + header_bytes :])


def unpack(payload: bytes, codec: int, size_bytes: int) -> bytes:
    """Decompress to exactly ``size_bytes``; MetadataFormatError."""
    if not 0 <= size_bytes <= _UNPACKED_BYTES_MAX:
        raise MetadataFormatError(f"compression header: {size_bytes} is not a possible size")
    if codec in _ARROW_CODECS:
        return _unpack_with_arrow(payload, _ARROW_CODECS[codec], size_bytes)
    if codec == _ZLIB:
        found = _unpack_zlib(payload, size_bytes)
    elif codec == _NONE:
        found = payload
    else:
        raise MetadataFormatError(f"compression header: codec {codec} is not known")
    if len(found) != size_bytes:
        raise MetadataFormatError(f"compressed node: {len(found)} bytes instead of {size_bytes}")
    return found


def _unpack_zlib(payload: bytes, size_bytes: int) -> bytes:
    unpacker = zlib.decompressobj()
    try:
        found = unpacker.decompress(payload, size_bytes + 1)
    except zlib.error as error:
        raise MetadataFormatError(f"compressed node: {error}") from error
    if not unpacker.eof or unpacker.unused_data:
        raise MetadataFormatError("compressed node: it does not end where its data ends")
    return found


def _unpack_with_arrow(payload: bytes, name: str, size_bytes: int) -> bytes:
    """Arrow fills a buffer of the given size, and does not say if less arrived: one byte less must not suffice."""
    require_package("pyarrow", f"metadata that Pulsar has compressed with {name.removesuffix('_raw')} needs PyArrow")
    import pyarrow  # noqa: PLC0415  slow to import, and nodes are rarely compressed

    try:
        found: bytes = pyarrow.decompress(payload, decompressed_size=size_bytes, codec=name, asbytes=True)
    except (OSError, pyarrow.ArrowInvalid) as error:
        raise MetadataFormatError(f"compressed node: {error}") from error
    if size_bytes > 0 and _fits(payload, name, size_bytes - 1):
        raise MetadataFormatError(f"compressed node: fewer bytes than {size_bytes}")
    return found


def _fits(payload: bytes, name: str, size_bytes: int) -> bool:
    import pyarrow  # noqa: PLC0415  as above

    try:
        pyarrow.decompress(payload, decompressed_size=size_bytes, codec=name, asbytes=True)
    except (OSError, pyarrow.ArrowInvalid):
        return False
    return True


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
