"""Contents of Pulsar's nodes, byte by byte from metadata section 16, without the code under test."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import pyarrow

CODECS = ("NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY")


def varint(number: int) -> bytes:
    number &= 2**64 - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def field(number: int, value: int | bytes | str) -> bytes:
    """A field: a varint, or bytes with their length."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def topic(ledger_ids: Iterable[int], *, offloaded: Iterable[int] = (), copied: Iterable[int] = ()) -> bytes:
    """``offloaded``: Pulsar has deleted them from BookKeeper; ``copied``: not yet."""
    data = b"".join(field(1, field(1, each) + field(2, 10) + field(3, 999) + field(4, 1_700)) for each in ledger_ids)
    for is_deleted, ids in ((1, offloaded), (0, copied)):
        context = field(1, -5) + field(2, 77) + field(3, 1) + field(4, is_deleted) + field(5, 1_700) + field(6, b"s3")
        data += b"".join(field(1, field(1, each) + field(5, context)) for each in ids)
    return data + field(3, field(1, "key") + field(2, "value"))


def cursor(
    ledger_id: int = -1, *, compacted: int | None = None, buckets: dict[str, str] | None = None, active: int = 1_700
) -> bytes:
    data = field(1, ledger_id) + field(2, 3) + field(3, 99) + field(4, b"\x0a\x00") + field(6, active)
    data += field(5, field(1, "other") + field(2, 1))
    if compacted is not None:
        data += field(5, field(1, "CompactedTopicLedger") + field(2, compacted))
    for span, text in (buckets or {}).items():
        data += field(8, field(1, f"#pulsar.internal.delayed.bucket_{span}") + field(2, text))
    return data + field(8, field(1, "owner") + field(2, "someone"))


def cursor_entry(compacted: int | None = None) -> bytes:
    """An entry of a cursor's ledger."""
    labels = b"" if compacted is None else field(4, field(1, "CompactedTopicLedger") + field(2, compacted))
    return field(1, 3) + field(2, 99) + field(3, b"") + labels


def schema_version(number: int, ledger_id: int) -> bytes:
    return field(1, number) + field(2, field(1, ledger_id) + field(2, 0)) + field(3, b"hash")


def schema(ledger_ids: Iterable[int], *, first: int = 0) -> bytes:
    """A schema with one version in each ledger; their numbers begin with ``first``."""
    versions = [schema_version(number, each) for number, each in enumerate(ledger_ids, first)]
    return field(1, versions[-1]) + b"".join(field(2, each) for each in versions)


def compressed(data: bytes, codec: str, size: int | None = None) -> bytes:
    """A compressed node; ``size``: what its header says of the uncompressed bytes."""
    if codec in {"NONE", "ZLIB"}:
        payload = data if codec == "NONE" else zlib.compress(data)
    else:
        name = "lz4_raw" if codec == "LZ4" else codec.lower()
        payload = bytes(pyarrow.compress(data, codec=name, asbytes=True))
    header = field(1, CODECS.index(codec)) + field(2, len(data) if size is None else size)
    return b"\x47\x78" + len(header).to_bytes(4, "big") + header + payload
