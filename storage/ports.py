"""Ports of storage: the disk, the index database, and child processes.

The real adapters are ``OsFileSystem``, ``PlyvelIndexStore`` and ``ChildProcesses`` in ``storage/adapters``. A simulator
has the same protocols; one contract test suite per port holds all adapters to the docstrings below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

import msgspec

Buffer: TypeAlias = bytes | bytearray | memoryview
TaskT = TypeVar("TaskT", bound=msgspec.Struct)
AnswerT = TypeVar("AnswerT")

OnProgress: TypeAlias = Callable[[int], None]
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

    def create(self, path: str, *, is_private: bool = False) -> File:
        """Create a file that must not exist, open it for reading and writing; ``is_private``: for its owner alone."""

    def open(self, path: str, *, writable: bool = False) -> File:
        """Open an existing file."""

    def read_file(self, path: str) -> bytes:
        """Whole contents of a small file; FileNotFoundError if absent."""

    def write_file_atomically(self, path: str, data: bytes) -> None:
        """Replace ``path`` by ``data``, all or nothing after a crash: temporary file, fsync, rename, dir fsync."""

    def size(self, path: str) -> int:
        """Length of a file in bytes; FileNotFoundError if absent."""

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
    """How an engine opens its databases: the real one is ``storage.adapters.index_store.open_plyvel``."""

    def __call__(self, path: str, *, create: bool, strict: bool) -> IndexStore:
        """Open the database folder ``path``.

        ``create`` False: IndexMissingError if absent. ``strict``: refuse (IndexDamagedError) on any damage found while
        opening, instead of dropping what is damaged.
        """


class ChildPool(Protocol):
    """Child processes that take tasks of one module; each runs one task at a time."""

    def run(
        self, tasks: Iterable[TaskT], answer_type: type[AnswerT], on_progress: OnProgress | None = None
    ) -> Iterator[tuple[TaskT, AnswerT]]:
        """Give each task to a free child; yields every task with its answer, in the order in which they finish.

        ``on_progress`` gets the amounts that the children report.

        ChildFailedError when a child cannot start or ends early; StorageError and OSError as the child raised them.
        """

    def stream(self, task: msgspec.Struct, part_type: Any) -> Iterator[Any]:
        """Give a task to a child whose handler is a generator; yields its items as they come. Errors as ``run``.

        ``part_type``: of the items; may be a union.
        """

    def stop(self) -> None:
        """Kill the children. Any thread may call this. A ``run`` or ``stream`` under way fails: ChildFailedError."""


class Children(Protocol):
    """Child processes for work over whole files, which would block the parent for too long.

    A child module has ``HANDLERS``, a mapping from task types to ``ChildHandler`` functions, and may have ``NICENESS``.
    Tasks and answers are msgspec structs.
    """

    @property
    def core_count(self) -> int:
        """Cores that this process may use: more children than that make nothing faster."""

    def pool(self, module: str, directory: str, count: int) -> AbstractContextManager[ChildPool]:
        """Up to ``count`` children for the tasks of ``module``, started when needed and killed at the end of the block.

        ``directory``: the children's working folder. A child also ends by itself, at its next report or answer, when
        its parent has ended in any way. It writes only below its working folder: once that is deleted, a child that
        outlives its parent for a moment can write nothing.
        """


class ChildContext(NamedTuple):
    """The ports of a child, and its surroundings."""

    file_system: FileSystem
    open_index: OpenIndexStore
    children: Children
    directory: str
    """The working folder, as the child must name it."""
    report: OnProgress
    """Reports to the parent how much more of the task is done."""


ChildHandler: TypeAlias = Callable[[Any, ChildContext], Any]
"""Takes a task; returns the answer, or is a generator that yields its parts."""

ChildHandlers: TypeAlias = Mapping[type[msgspec.Struct], ChildHandler]
