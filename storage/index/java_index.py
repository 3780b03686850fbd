"""The index of a Java bookie in an index directory: which files there are, and the bytes of ``.idx`` files.

RocksDB directories can only be moved: their contents are rebuilt from entry logs and journals.

An ``.idx`` file is the index of one ledger in Interleaved and Sorted storage: a header of 1024 bytes with its key,
fence and explicit LAC, then an i64 location for each entry id from 0 on, 0 where there is no entry. Source: storage
section 11.5.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from bkctl.storage.filenames import JAVA_BLOCK, JAVA_DATABASES, idx_path, is_idx_directory, parse_idx_file_name
from bkctl.storage.ids import LedgerId
from bkctl.storage.index.ledger_index import EXPLICIT_LAC_BYTES_MIN
from bkctl.storage.ports import FileSystem


class JavaIndex(NamedTuple):
    """Names in one index directory (its ``current``)."""

    idx_directories: tuple[str, ...]
    """Top directories of the tree of ``.idx`` files; only those that contain such a file."""
    databases: tuple[str, ...]
    """RocksDB directories."""

    @property
    def names(self) -> tuple[str, ...]:
        """All names that a Java bookie would read as its index."""
        return (*self.idx_directories, *self.databases)


def find_java_index(fs: FileSystem, directory: str) -> JavaIndex:
    """Java's files in an index directory (``current``), none if the directory does not exist; OSError."""
    names = _names_in(fs, directory)
    idx_directories = (name for name in names if is_idx_directory(name) and any(_idx_names(fs, directory, name)))
    return JavaIndex(tuple(idx_directories), tuple(name for name in JAVA_DATABASES if name in names))


def block_java(fs: FileSystem, journal_directories: Iterable[str]) -> None:
    """Keep Java bookies from starting on directories without an index of theirs; OSError. The directories are
    ``current``."""
    for directory in journal_directories:
        path = os.path.join(directory, JAVA_BLOCK)
        if not fs.exists(path):
            fs.write_file_atomically(path, b"")


def unblock_java(fs: FileSystem, journal_directories: Iterable[str]) -> None:
    """Undo ``block_java``; OSError."""
    for directory in journal_directories:
        path = os.path.join(directory, JAVA_BLOCK)
        if fs.exists(path):
            fs.remove(path)
            fs.sync_directory(directory)


def list_idx_ledgers(fs: FileSystem, directory: str) -> list[LedgerId]:
    """Ledgers with an index file in a directory (``current``), ascending. OSError."""
    firsts = filter(is_idx_directory, fs.list_directory(directory))
    return sorted(ledger_id for first in firsts for ledger_id in _idx_names(fs, directory, first))


def _idx_names(fs: FileSystem, directory: str, first: str) -> Iterator[LedgerId]:
    for second in _names_in(fs, os.path.join(directory, first)):
        if not is_idx_directory(second):
            continue
        for name in _names_in(fs, os.path.join(directory, first, second)):
            ledger_id = parse_idx_file_name(name)
            # Java looks for a ledger only at this path.
            if ledger_id is not None and idx_path(ledger_id) == os.path.join(first, second, name):
                yield ledger_id


def _names_in(fs: FileSystem, path: str) -> list[str]:
    try:
        return fs.list_directory(path)
    except (FileNotFoundError, NotADirectoryError):
        return []


HEADER_BYTES = 1024
LOCATION_BYTES = 8
VERSION_MAX = 1

_MAGIC = b"BKLE"
_START = struct.Struct(">4sii")
_WORD = struct.Struct(">i")
_FENCED_BIT = 1


class IdxHeader(msgspec.Struct, frozen=True):
    """The ledger's state in an index file."""

    version: int
    master_key: bytes
    is_fenced: bool
    explicit_lac: bytes | None
    """Body of the last explicit-LAC request, as in our rows; files of version 0 have none."""


def decode_idx_header(data: bytes) -> IdxHeader:
    """Decode the first ``HEADER_BYTES`` of a file; ValueError, with the reason, for a header that no bookie writes."""
    if len(data) < HEADER_BYTES:
        raise ValueError(f"it has {len(data)} bytes, its header alone has {HEADER_BYTES}")
    magic, version, key_bytes = _START.unpack_from(data)
    if magic != _MAGIC or not 0 <= version <= VERSION_MAX:
        raise ValueError("it does not start like an index file")
    master_key, offset = _counted(data, _START.size, key_bytes)
    state, offset = _word(data, offset)
    explicit_lac = b""
    if version >= 1:
        lac_bytes, offset = _word(data, offset)
        explicit_lac, _ = _counted(data, offset, lac_bytes)
    if explicit_lac and len(explicit_lac) < EXPLICIT_LAC_BYTES_MIN:
        raise ValueError(f"its explicit LAC has {len(explicit_lac)} bytes")
    return IdxHeader(version, master_key, bool(state & _FENCED_BIT), explicit_lac or None)


def decode_locations(data: bytes) -> Sequence[int]:
    """Packed locations in the order of the entry ids; ignores an incomplete one at the end, which a crash left."""
    count = len(data) // LOCATION_BYTES
    return struct.unpack_from(f">{count}q", data)


def _word(data: bytes, offset: int) -> tuple[int, int]:
    if offset + _WORD.size > HEADER_BYTES:
        raise ValueError("its header ends inside a field")
    return _WORD.unpack_from(data, offset)[0], offset + _WORD.size


def _counted(data: bytes, offset: int, size_bytes: int) -> tuple[bytes, int]:
    if not 0 <= size_bytes <= HEADER_BYTES - offset:
        raise ValueError(f"a field of its header has the length {size_bytes}")
    return data[offset : offset + size_bytes], offset + size_bytes
