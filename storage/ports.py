"""Ports of the storage floor: the disk and the index database.

The real adapters are ``storage.filesystem.OsFileSystem`` and ``storage.index_store.PlyvelIndexStore``. A simulator
implements the same protocols; one contract test suite per port holds all adapters to the docstrings below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview

Progress: TypeAlias = Callable[[int], None]
"""Takes how much more of a long job is done now, in the job's own unit."""


class File(Protocol):
    """An open file addressed by explicit offsets; errors are OSError."""

    @property
    def path(self) -> str:
        """Path it was opened under."""

    def size(self) -> int:
        """Length in bytes."""

    def pread(self, size_bytes: int, offset: int) -> bytes:
        """Read up to ``size_bytes`` at ``offset``; shorter only at the end of the file."""

    def pwrite(self, data: Buffer, offset: int) -> None:
        """Write all of ``data`` at ``offset``; raises when less was written. Not durable before a sync."""

    def pwritev(self, parts: Sequence[Buffer], offset: int) -> int:
        """Write all ``parts`` one behind the other at ``offset``; returns the bytes written."""

    def truncate(self, size_bytes: int) -> None:
        """Set the length."""

    def sync_data(self) -> None:
        """Make contents, and the size needed to read them, durable (fdatasync)."""

    def sync(self) -> None:
        """Make contents and all metadata durable (fsync)."""

    def begin_writing_back(self, size_bytes: int, offset: int) -> None:
        """Say that these bytes will be synced soon: the disk may begin now. Promises nothing, and never raises."""

    def drop_from_cache(self, size_bytes: int, offset: int) -> None:
        """Say that these bytes, which are durable, will not be read again; contents do not change. Never raises."""

    def close(self) -> None:
        """Close; safe to repeat. Does not sync."""


class DirectoryLock(Protocol):
    """An exclusive claim on a folder that ends with the process at the latest."""

    def release(self) -> None:
        """Give the folder up; safe to repeat."""


class DiskSpace(NamedTuple):
    """Bytes of the file system that holds a path."""

    total_bytes: int
    usable_bytes: int
    filesystem_id: int
    is_read_only: bool = False
    """Whether it is mounted so: what the kernel does to a disk that fails."""


class FileSystem(Protocol):
    """The disk. Paths are absolute or relative strings; errors are OSError."""

    def create(self, path: str) -> File:
        """Create a file that must not exist, open it for reading and writing."""

    def open(self, path: str, *, writable: bool = False) -> File:
        """Open an existing file."""

    def read_file(self, path: str) -> bytes:
        """Whole contents of a small file; FileNotFoundError if absent."""

    def write_file_atomically(self, path: str, data: bytes) -> None:
        """Replace ``path`` by ``data``, all or nothing after a crash: temporary file, fsync, rename, dir fsync."""

    def list_directory(self, path: str) -> list[str]:
        """Sorted names in a folder; FileNotFoundError if absent."""

    def exists(self, path: str) -> bool:
        """Whether anything has this name. OSError where nobody can know: no rights, a bad disk."""

    def make_directories(self, path: str) -> None:
        """Create a folder and its parents, durable on return; existing ones are fine."""

    def rename(self, source: str, target: str) -> None:
        """Atomically give ``source`` the name ``target``; durable only after ``sync_directory``."""

    def link(self, source: str, target: str) -> None:
        """Give the file a second name."""

    def remove(self, path: str) -> None:
        """Delete a file."""

    def remove_directory(self, path: str) -> None:
        """Delete an empty folder."""

    def sync_directory(self, path: str) -> None:
        """Make creations, renames and removals in this folder durable."""

    def space(self, path: str) -> DiskSpace:
        """Size and free bytes (for this user) of the file system under ``path``."""

    def lock_directory(self, path: str) -> DirectoryLock:
        """Claim a folder for this process; DirectoryLockedError naming the owner's pid when it is taken."""


class IndexStore(Protocol):
    """An ordered map of byte strings on disk. Every write is one atomic batch, durable on return.

    Errors are StorageError; a read that fails its checksum raises IndexDamagedError and is never "absent".
    """

    def get(self, key: bytes) -> bytes | None:
        """Value of a key, or None when it is certainly absent."""

    def floor(self, key: bytes, lower: bytes) -> tuple[bytes, bytes] | None:
        """Row with the greatest key that is at most ``key`` and at least ``lower``."""

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Rows from ``start`` (included) to ``stop`` (excluded) in key order, of one point in time."""

    def write(self, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes] = ()) -> None:
        """Apply one batch atomically and make it durable."""

    def close(self) -> None:
        """Close; safe to repeat."""


class OpenIndexStore(Protocol):
    """How an engine opens its databases: the real one is ``storage.index_store.open_plyvel``."""

    def __call__(self, path: str, *, create: bool, strict: bool) -> IndexStore:
        """Open the database folder ``path``.

        ``create`` False: IndexMissingError if absent. ``strict``: refuse (IndexDamagedError) on any damage found while
        opening, instead of dropping what is damaged.
        """
