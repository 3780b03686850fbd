"""Compressed nodes of Pulsar: magic number, header with codec and size, payload. Source: metadata section 16.

No uncompressed node starts with the magic number: as protobuf it would be a field of a type that does not exist.
"""

from __future__ import annotations

import zlib
from typing import NamedTuple

from bkctl.runtime.errors import MetadataFormatError
from bkctl.runtime.optional_packages import require_package

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
    """Header and payload; None if the node is not compressed. MetadataFormatError."""
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
