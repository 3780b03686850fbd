"""Ports of storage: the disk, the index database, and child processes.

The real adapters are ``OsFileSystem``, ``PlyvelIndexStore`` and ``ChildProcesses`` in ``storage/adapters``. The
simulator implements the same protocols. Contract tests check that all adapters behave as the docstrings below say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

import msgspec

Buffer: TypeAlias = bytes | bytearray | memoryview
TaskT = TypeVar("TaskT", bound=msgspec.Struct)
AnswerT = TypeVar("AnswerT")

OnProgress: TypeAlias = Callable[[int], None]
"""Receives the additional progress of a long operation, in the operation's unit."""

OnStage: TypeAlias = Callable[[str, int], None]
"""A stage of a long operation begins: its name, and its total in the unit of the progress."""


RESERVE_BYTES_MIN: Final = 512 * 1024


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
        """Write all ``parts`` in sequence at ``offset``; returns the bytes written."""

    def truncate(self, size_bytes: int) -> None:
        """Set the length."""

    def sync_data(self) -> None:
        """Make contents, and the size needed to read them, durable (fdatasync)."""

    def sync(self) -> None:
        """Make contents and all metadata durable (fsync)."""

    def reserve(self, size_bytes: int, offset: int) -> None:
        """Hint that these bytes will be written now. Changes neither contents nor length; never raises.

        With the disk space known, a long write costs less CPU time; one below ``RESERVE_BYTES_MIN`` is slower.
        """

    def begin_writing_back(self, size_bytes: int, offset: int) -> None:
        """Hint that these bytes will be synced soon, so the disk may start now. Guarantees nothing; never raises."""

    def drop_from_cache(self, size_bytes: int, offset: int) -> None:
        """Hint that these durable bytes will not be read again. Contents do not change. Never raises."""

    def close(self) -> None:
        """Close; safe to repeat. Does not sync."""


class DirectoryLock(Protocol):
    """An exclusive lock on a directory. It ends with the process at the latest."""

    def release(self) -> None:
        """Release the lock; safe to repeat."""


class DiskSpace(NamedTuple):
    """Sizes of the file system that contains a path."""

    total_bytes: int
    usable_bytes: int
    filesystem_id: int
    is_read_only: bool = False
    """Whether it is mounted read-only, as the kernel does after disk errors."""


class FileSystem(Protocol):
    """The disk. Paths are absolute or relative strings; errors are OSError."""

    def create(self, path: str) -> File:
        """Create a file that must not exist and open it for reading and writing. Only its owner has access."""

    def create_temporary(self, path: str) -> File:
        """As ``create``, next to ``path``, with a name that no other process can know before."""

    def open(self, path: str, *, writable: bool = False) -> File:
        """Open an existing file."""

    def read_file(self, path: str) -> bytes:
        """Whole contents of a small file; FileNotFoundError if absent."""

    def write_file_atomically(self, path: str, data: bytes) -> None:
        """Replace the contents of ``path``, atomically even in a crash: temporary file, fsync, rename, dir fsync.

        For directories in which only this user can write: what a crash left under the temporary name is overwritten.
        """

    def size(self, path: str) -> int:
        """Length of a file in bytes; FileNotFoundError if absent."""

    def list_directory(self, path: str) -> list[str]:
        """Sorted names in a directory; FileNotFoundError if absent."""

    def exists(self, path: str) -> bool:
        """Whether the path exists. OSError if this cannot be determined: no permission, a failing disk."""

    def make_directories(self, path: str) -> None:
        """Create a directory and its parents for their owner alone, durable on return; existing ones are fine."""

    def rename(self, source: str, target: str) -> None:
        """Atomically rename ``source`` to ``target``; durable only after ``sync_directory``."""

    def link(self, source: str, target: str) -> None:
        """Create a hard link ``target`` to ``source``."""

    def remove(self, path: str) -> None:
        """Delete a file."""

    def remove_directory(self, path: str) -> None:
        """Delete an empty directory."""

    def sync_directory(self, path: str) -> None:
        """Make creations, renames and removals in this directory durable."""

    def space(self, path: str) -> DiskSpace:
        """Size and free bytes (for this user) of the file system that contains ``path``."""

    def lock_directory(self, path: str) -> DirectoryLock:
        """Lock a directory for this process; DirectoryLockedError with the owner's pid if it is locked."""


class IndexStore(Protocol):
    """An ordered map of byte strings on disk. Every write is one atomic batch, durable on return.

    Errors are StorageError. A read with a wrong checksum raises IndexDamagedError, never reports "absent".
    """

    def get(self, key: bytes) -> bytes | None:
        """Value of a key, or None if it is certainly absent."""

    def floor(self, key: bytes, lower: bytes) -> tuple[bytes, bytes] | None:
        """Row with the greatest key that is at most ``key`` and at least ``lower``."""

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Rows from ``start`` (included) to ``stop`` (excluded) in key order, of one point in time."""

    def write(self, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes] = ()) -> None:
        """Apply one batch atomically and make it durable."""

    def close(self) -> None:
        """Close; safe to repeat."""


class OpenIndexStore(Protocol):
    """Opens the databases of an engine; the real one is ``bkctl.storage.adapters.index_store.open_plyvel``."""

    def __call__(self, path: str, *, create: bool, strict: bool) -> IndexStore:
        """Open the database directory ``path``.

        ``create`` False: IndexMissingError if absent. ``strict``: raise IndexDamagedError for any damage found while
        opening, instead of dropping the damaged part.
        """


class ChildPool(Protocol):
    """Child processes that take tasks of one module; each runs one task at a time."""

    def run(
        self,
        tasks: Iterable[TaskT],
        answer_type: type[AnswerT],
        on_progress: OnProgress | None = None,
        on_stage: OnStage | None = None,
    ) -> Iterator[tuple[TaskT, AnswerT]]:
        """Give each task to a free child; yields every task with its answer, in order of completion.

        ``on_progress`` receives the amounts that the children report, ``on_stage`` the stages that they begin.

        ChildFailedError if a child cannot start or ends early; StorageError and OSError as the child raised them.
        """

    def stream(self, task: msgspec.Struct, part_type: Any) -> Iterator[Any]:
        """Give a task to a child whose handler is a generator; yields its items as they arrive. Errors as in ``run``.

        ``part_type``: type of the items; may be a union.
        """

    def stop(self) -> None:
        """Kill the children, from any thread. A ``run`` or ``stream`` in progress raises ChildFailedError."""


class Children(Protocol):
    """Child processes for work on whole files, which would block the parent for too long.

    A child module has ``HANDLERS``, a mapping from task types to ``ChildHandler`` functions, and may have ``NICENESS``.
    Tasks and answers are msgspec structs.
    """

    @property
    def core_count(self) -> int:
        """Cores that this process may use. More children than cores are not faster."""

    def pool(self, module: str, directory: str, count: int) -> AbstractContextManager[ChildPool]:
        """Up to ``count`` children for the tasks of ``module``, started when needed and killed at the end of the block.

        ``directory``: the children's working directory. If the parent dies, a child ends at its next report or
        answer. It writes only in its working directory, so once that is deleted, a child that outlives its parent for
        a moment cannot write anything.
        """


class ChildContext(NamedTuple):
    """The ports and the environment of a child."""

    file_system: FileSystem
    open_index: OpenIndexStore
    children: Children
    directory: str
    """Path of the working directory, as the child must use it."""
    report: OnProgress
    """Reports additional progress of the task to the parent."""
    begin: OnStage
    """Reports to the parent that a stage of the task begins."""


ChildHandler: TypeAlias = Callable[[Any, ChildContext], Any]
"""Takes a task; returns the answer, or is a generator that yields its parts."""

ChildHandlers: TypeAlias = Mapping[type[msgspec.Struct], ChildHandler]
