"""Bytes of a ZooKeeper snapshot file. Pure. Observed in files of ZooKeeper 3.9; all numbers are big-endian.

    "ZKSN", version 2 (4), database id (8)
    count of sessions (4); each: id (8), time-out in ms (4)
    count of ACLs (4); each: id (8), count of its entries (4); each entry: permissions (4), two texts
    nodes, each before its children: path (text), data (bytes), id of its ACL (8), then 60 bytes of statistics:
        created and modified in transaction (8 each), created and modified in ms (8 each), versions of data, children
        and ACL (4 each), session that owns it (8, 0: persistent), last transaction that changed its children (8)
    the text "/" as the end of the nodes
    a seal: Adler-32 of all bytes before it (8), the text "/"
    since 3.6: digests and the last transaction, each followed by another seal

A text is its length in bytes (4) and UTF-8. Bytes are their length (4; -1: none) and themselves. The path of the root
is empty.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from struct import Struct

import msgspec

MAGIC = b"ZKSN"
SEAL_BYTES = 13
"""Length of a seal."""
END_OF_NODES = b"/"

_VERSION = 2
_PATH_BYTES_MAX = 1024 * 1024
_DATA_BYTES_MAX = 256 * 1024 * 1024
"""Far above what a server accepts (jute.maxbuffer); a greater length is damage."""
_SESSION_BYTES = 12
_TEXT_BYTES_MAX = 64 * 1024

_HEADER = Struct(">4siq")
_COUNT = Struct(">i")
_READ_COUNT = _COUNT.unpack_from
_STATISTICS = Struct(">qqqqqiiiqq")
_STATISTICS_BYTES = _STATISTICS.size
_MTIME = Struct(">q")
_MTIME_FROM_END = _STATISTICS_BYTES - 4 * _MTIME.size
_SEAL = Struct(">qi1s")


class SnapshotDamageError(ValueError):
    """The bytes at ``offset`` of the buffer are no snapshot, or a damaged one."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(reason)
        self.offset = offset


class FileNode(msgspec.Struct, frozen=True, gc=False):
    """A node: its path from the root of the tree, its data, version, times in ms since 1970, and the session that owns
    it (0: persistent)."""

    path: str
    data: bytes
    version: int
    ctime_ms: int
    mtime_ms: int
    ephemeral_owner: int


def find_first_node(buffer: bytes) -> int | None:
    """Offset of the first node in the beginning of a file; None when the buffer is too short to see it.

    SnapshotDamageError when it is not the beginning of a snapshot.
    """
    if not MAGIC.startswith(buffer[: len(MAGIC)]):
        raise SnapshotDamageError(0, "it is not a ZooKeeper snapshot")
    if len(buffer) < _HEADER.size:
        return None
    try:
        _, version, _ = _HEADER.unpack_from(buffer)
        if version != _VERSION:
            raise SnapshotDamageError(len(MAGIC), f"its version is {version}, not {_VERSION}")
        offset = _HEADER.size
        offset += _COUNT.size + _count_at(buffer, offset) * _SESSION_BYTES
        acls_count, offset = _count_at(buffer, offset), offset + _COUNT.size
        for _ in range(acls_count):
            entries_count = _count_at(buffer, offset + 8)
            offset += 8 + _COUNT.size
            for _ in range(entries_count):
                offset = _text_end(buffer, _text_end(buffer, offset + 4))
    except _TooShortError:
        return None
    return offset if offset <= len(buffer) else None


class _TooShortError(Exception):
    pass


def _count_at(buffer: bytes, offset: int) -> int:
    if offset + _COUNT.size > len(buffer):
        raise _TooShortError
    (count,) = _READ_COUNT(buffer, offset)
    if count < 0:
        raise SnapshotDamageError(offset, f"a count is {count}")
    return int(count)


def _text_end(buffer: bytes, offset: int) -> int:
    length = _count_at(buffer, offset)
    if length > _TEXT_BYTES_MAX:
        raise SnapshotDamageError(offset, f"a text has {length} bytes")
    return offset + _COUNT.size + length


def scan_nodes(buffer: bytes, offset: int) -> Iterator[tuple[bytes, int, int]]:
    """Path, start and end of each whole node from ``offset`` on; the last one may be ``END_OF_NODES``.

    SnapshotDamageError at an impossible length.
    """
    last_count = len(buffer) - _COUNT.size
    while offset <= last_count:
        path_start = offset + _COUNT.size
        (path_bytes,) = _READ_COUNT(buffer, offset)
        if not 0 <= path_bytes <= _PATH_BYTES_MAX:
            raise SnapshotDamageError(offset, f"a path has {path_bytes} bytes")
        data_start = path_start + path_bytes
        if data_start > len(buffer):
            return
        path = buffer[path_start:data_start]
        if path == END_OF_NODES:
            yield path, offset, data_start
            return
        if data_start > last_count:
            return
        (data_bytes,) = _READ_COUNT(buffer, data_start)
        if not -1 <= data_bytes <= _DATA_BYTES_MAX:
            raise SnapshotDamageError(data_start, f"the data of a node has {data_bytes} bytes")
        end = data_start + _COUNT.size + max(data_bytes, 0) + _STATISTICS_BYTES
        if end > len(buffer):
            return
        yield path, offset, end
        offset = end


def decode_node(buffer: bytes, path: bytes, start: int, end: int) -> FileNode:
    """A node that ``scan_nodes`` found; SnapshotDamageError when its path is not UTF-8."""
    try:
        text = path.decode()
    except UnicodeDecodeError:
        raise SnapshotDamageError(start, "a path is not UTF-8") from None
    statistics = end - _STATISTICS_BYTES
    data = buffer[start + 2 * _COUNT.size + len(path) : statistics]
    _, _, _, ctime_ms, mtime_ms, version, _, _, ephemeral_owner, _ = _STATISTICS.unpack_from(buffer, statistics)
    return FileNode(text, data, version, ctime_ms, mtime_ms, ephemeral_owner)


def changed_ms(buffer: bytes, end: int) -> int:
    """When the node that ends here was last changed."""
    return int(_MTIME.unpack_from(buffer, end - _MTIME_FROM_END)[0])


def encode_node(node: FileNode) -> bytes:
    """Bytes of a node. Transactions, ACL and the other versions are 0: nothing here needs them."""
    path = node.path.encode()
    return b"".join(
        (
            _COUNT.pack(len(path)),
            path,
            _COUNT.pack(len(node.data)),
            node.data,
            _STATISTICS.pack(0, 0, 0, node.ctime_ms, node.mtime_ms, node.version, 0, 0, node.ephemeral_owner, 0),
        )
    )


def encode_header() -> bytes:
    """The beginning of a file without sessions and ACLs."""
    return _HEADER.pack(MAGIC, _VERSION, -1) + _COUNT.pack(0) + _COUNT.pack(0)


def encode_end(checksum: int) -> bytes:
    """What follows the nodes; ``checksum`` is the Adler-32 of all bytes before it."""
    end = _COUNT.pack(len(END_OF_NODES)) + END_OF_NODES
    return end + _SEAL.pack(zlib.adler32(end, checksum), 1, END_OF_NODES)


def is_seal(data: bytes, checksum: int) -> bool:
    """Whether the bytes are the seal of bytes with this Adler-32."""
    return data == _SEAL.pack(checksum, 1, END_OF_NODES)
