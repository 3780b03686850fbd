"""Makes one plain snapshot file of what an operator has: a snapshot, plain or compressed, its directory, or a backup.

What a file is follows from its first bytes. Executors read pieces of a file, and a compressed one cannot be read from
the middle; so it is unpacked first, and a backup is rewritten as a snapshot. ZooKeeper compresses with gzip or snappy
(``snapshot.compression.method``).
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import io
import logging
import os
import re
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from typing import NamedTuple, Protocol, Self, TypeVar

from bkctl.runtime.errors import MetadataFormatError
from bkctl.runtime.metadata.backup.archive import ArchiveReader, ByteStream
from bkctl.runtime.metadata.snapshot.format import END_OF_NODES, MAGIC, FileNode, encode_end, encode_header, encode_node
from bkctl.runtime.optional_packages import require_package
from bkctl.storage.ports import File, FileSystem

T = TypeVar("T")

logger = logging.getLogger(__name__)

_GZIP = b"\x1f\x8b"
_SNAPPY = b"\x82SNAPPY\0"
_SNAPPY_HEADER_BYTES = 16
_SNAPPY_BLOCK_BYTES_MAX = 64 * 1024 * 1024
_COMPRESSED = (".gz", ".snappy")
_BACKUP = b"{"
_NAME = re.compile(r"snapshot\.([0-9a-f]{1,16})(?:\.gz|\.snappy)?")
VERSION_DIRECTORY = "version-2"
_LAST_BYTES = struct.pack(">i", 1) + END_OF_NODES
ENDS_BYTES = len(_LAST_BYTES)
_CHUNK_BYTES = 4 * 1024 * 1024
_UNPACKED_BYTES_MIN = 64 * 1024 * 1024
_GROWTH_MAX = 200
"""A snapshot unpacks to 5 to 50 times its size; a file that is made to fill the disk, to 1,000 times."""


class PlainFile(NamedTuple):
    """A plain snapshot file. ``backup_root``: ledgers root of the backup it was made of; None if of none.

    ``backup_ms``: when that backup was made; None if of none, or not known.
    """

    path: str
    backup_root: str | None = None
    backup_ms: int | None = None
    is_original: bool = False
    """Whether it is the file itself, not a copy."""


class SnapshotPath(Protocol):
    """A file, or a directory of ZooKeeper, in some file system. ``str`` of it is its name for people."""

    def names(self) -> list[str] | None:
        """What is in the directory; None if it is a file."""

    def child(self, name: str) -> Self:
        """A file in the directory."""

    def ends(self) -> tuple[bytes, bytes]:
        """The first and the last ``ENDS_BYTES`` of the file."""


P = TypeVar("P", bound=SnapshotPath)


def read_newest(path: P, read: Callable[[P], T], warn: Callable[[str], None] = logger.warning) -> tuple[T, int]:
    """What ``read`` makes of a file or, of a directory of ZooKeeper, of its newest whole snapshot, as a server does.

    The number is that of newer snapshots, about each of which ``warn`` gets a sentence: those that do not look
    complete, and those for which ``read`` raises MetadataFormatError. FileNotFoundError if none is left.
    """
    names = path.names()
    if names is None:
        return read(path), 0
    snapshots = [(int(match[1], 16), name) for name in names if (match := _NAME.fullmatch(name))]
    found = [name for _, name in sorted(snapshots, reverse=True)]
    for skipped, name in enumerate(found):
        candidate = path.child(name)
        if not looks_complete(name, *candidate.ends()):
            warn(f"{candidate} is not complete: reading an older snapshot")
            continue
        try:
            return read(candidate), skipped
        except MetadataFormatError as error:
            warn(f"{error}: reading an older snapshot")
    if not found and VERSION_DIRECTORY in names:
        return read_newest(path.child(VERSION_DIRECTORY), read, warn)
    raise FileNotFoundError(errno.ENOENT, "there is no complete snapshot file in it", str(path))


class LocalPath(NamedTuple):
    """A path on this machine."""

    fs: FileSystem
    path: str

    def names(self) -> list[str] | None:
        """What is in the directory; None if it is a file. OSError."""
        try:
            return self.fs.list_directory(self.path)
        except NotADirectoryError:
            return None

    def child(self, name: str) -> LocalPath:
        """A file in the directory."""
        return LocalPath(self.fs, f"{self.path}/{name}")

    def ends(self) -> tuple[bytes, bytes]:
        """The first and the last bytes of the file."""
        with contextlib.closing(self.fs.open(self.path)) as file:
            return file.pread(ENDS_BYTES, 0), file.pread(ENDS_BYTES, max(0, file.size() - ENDS_BYTES))

    def __str__(self) -> str:
        return self.path


def looks_complete(name: str, beginning: bytes, end: bytes) -> bool:
    """Whether ZooKeeper has written all of a snapshot, as far as its ends show: ``ENDS_BYTES`` of each."""
    if beginning.startswith(MAGIC):
        return end == _LAST_BYTES
    return bool(end) and name.endswith(_COMPRESSED)


def open_plain(fs: FileSystem, path: str, directory: str, *, shown: str | None = None) -> PlainFile:
    """The file, or a plain copy of it in ``directory``, readable by its owner only: backups have passwords.

    MetadataFormatError when it is damaged or something else, which names it ``shown``; OSError.
    """
    # Executors have the files of all audits of a session in one directory: their names must differ.
    copy = f"{directory}/{os.path.basename(directory)}.snapshot"
    with contextlib.closing(fs.open(path)) as file:
        beginning = file.pread(len(_SNAPPY), 0)
        if beginning.startswith(_GZIP):
            parts: Iterable[bytes] = _gunzip(file, shown or path)
            if next(iter(_gunzip(file, shown or path)), b"").startswith(_BACKUP):
                return _plain_backup(fs, path, copy, file.size(), shown or path)
        elif beginning == _SNAPPY:
            parts = _unsnap(file, shown or path)
        else:
            return PlainFile(path, is_original=True)
        return PlainFile(_write(fs, copy, _checked(parts, file.size(), shown or path)))


def _plain_backup(fs: FileSystem, path: str, target: str, size: int, shown: str) -> PlainFile:
    with ArchiveReader(fs, path) as archive:
        root = archive.header.root
        parts = _checked(_sealed(_nodes_of(archive, root)), size, shown)
        made_ms = None
        with suppress(ValueError):
            made_ms = int(datetime.fromisoformat(archive.header.created).timestamp() * 1000)
        return PlainFile(_write(fs, target, parts), root, made_ms)


def _nodes_of(archive: ArchiveReader, root: str) -> Iterator[bytes]:
    for node in archive.nodes():
        path = f"{root}/{node.path}" if node.path else root
        yield encode_node(FileNode(path, node.data, node.version, node.ctime_ms, node.ctime_ms, 0))


def _sealed(nodes: Iterable[bytes]) -> Iterator[bytes]:
    header = encode_header()
    checksum = zlib.adler32(header)
    yield header
    for node in nodes:
        checksum = zlib.adler32(node, checksum)
        yield node
    yield encode_end(checksum)


def _checked(parts: Iterable[bytes], packed_bytes: int, shown: str) -> Iterator[bytes]:
    """The parts of a snapshot; MetadataFormatError for something else, or too much of it, before it fills the disk."""
    left = max(_UNPACKED_BYTES_MIN, _GROWTH_MAX * packed_bytes)
    for number, part in enumerate(parts):
        if number == 0 and not part.startswith(MAGIC):
            raise MetadataFormatError(f"{shown}: what is packed in it is not a ZooKeeper snapshot")
        left -= len(part)
        if left < 0:
            raise MetadataFormatError(f"{shown} unpacks to more than {_GROWTH_MAX} times its size: unpack it yourself")
        yield part


def _write(fs: FileSystem, path: str, parts: Iterable[bytes]) -> str:
    file = fs.create(path)
    try:
        pending, written = bytearray(), 0
        for part in parts:
            pending += part
            if len(pending) >= _CHUNK_BYTES:
                file.pwrite(pending, written)
                written += len(pending)
                pending.clear()
        file.pwrite(pending, written)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        reason = f"no space left in {os.path.dirname(path)} for an unpacked copy: set TMPDIR to another directory"
        raise OSError(errno.ENOSPC, reason, path) from error
    finally:
        file.close()
    return path


def _gunzip(file: File, shown: str) -> Iterator[bytes]:
    stream = gzip.GzipFile(fileobj=io.BufferedReader(ByteStream(file), _CHUNK_BYTES), mode="rb")
    unpacked = 0
    while True:
        try:
            part = stream.read(_CHUNK_BYTES)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise MetadataFormatError(f"{shown} is damaged after {unpacked} unpacked bytes: {error}") from error
        if not part:
            return
        unpacked += len(part)
        yield part


def _unsnap(file: File, shown: str) -> Iterator[bytes]:
    """Blocks, each with its length before it (4 bytes)."""
    require_package("pyarrow", f"{shown} is compressed with snappy, and unpacking it needs PyArrow")
    import pyarrow as pa  # noqa: PLC0415  half a second

    offset = _SNAPPY_HEADER_BYTES
    while prefix := file.pread(4, offset):
        size = int.from_bytes(prefix)
        block = file.pread(min(size, _SNAPPY_BLOCK_BYTES_MAX), offset + len(prefix))
        if len(block) != size:
            raise MetadataFormatError(f"{shown} is damaged at byte {offset}: it is truncated")
        try:
            yield pa.decompress(block, _snappy_length(block), codec="snappy", asbytes=True)
        except (ValueError, OSError) as error:
            raise MetadataFormatError(f"{shown} is damaged at byte {offset}: {error}") from error
        offset += len(prefix) + size


def _snappy_length(block: bytes) -> int:
    """Length of a block when unpacked: seven bits in each byte, the last one without the high bit."""
    length = 0
    for shift, byte in enumerate(block[:5]):
        length |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            break
    if length > _SNAPPY_BLOCK_BYTES_MAX:
        raise ValueError(f"a block has {length} bytes")
    return length
