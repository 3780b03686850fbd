"""Adapter of the ``FileSystem`` port: the file system of the operating system."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import itertools
import mmap
import os
import secrets
import time
from collections.abc import Callable, Sequence
from types import TracebackType

from bkctl.storage.errors import DirectoryLockedError
from bkctl.storage.filenames import LOCK, TEMPORARY_SUFFIX
from bkctl.storage.ports import Buffer, DirectoryLock, DiskSpace, File

_PARTS_MAX = 1024
"""IOV_MAX of Linux: maximum parts per ``pwritev``."""

_FILE_MODE = 0o600
_DIRECTORY_MODE = 0o700

_DEAD_OWNER_S = 10.0
"""How long to wait for a lock whose owner has ended. On a busy machine, a child that it was starting takes seconds."""

_FALLOC_FL_KEEP_SIZE = 1

_SYNC_FILE_RANGE_WRITE = 2
"""Start writeback without waiting. The following sync still reports any error."""


def _find_in_libc(name: str, *argument_types: type) -> Callable[[int, int, int, int], int] | None:
    """Find a function that exists on Linux only, and that ``os`` does not provide."""
    found = getattr(ctypes.CDLL(None), name, None)
    if found is not None:
        found.argtypes = argument_types
    return found


_sync_file_range = _find_in_libc("sync_file_range", ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
_fallocate = _find_in_libc("fallocate64", ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
"""Without the slow emulation of ``os.posix_fallocate``."""

_advise = getattr(os, "posix_fadvise", None)
"""Not on macOS."""


class _ErrorsNamed:
    """Adds the path to errors of calls on a descriptor: "no space left" is useless without it."""

    __slots__ = ("_path",)

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, _class: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if isinstance(error, OSError) and error.filename is None:
            error.filename = self._path


class OsFile:
    """An open file; implements ``File``. Reads and writes carry their own offset, so threads may share it."""

    def __init__(self, path: str, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor
        self._errors_named = _ErrorsNamed(path)

    @property
    def path(self) -> str:
        """Path it was opened under."""
        return self._path

    def size(self) -> int:
        """Length in bytes."""
        with self._errors_named:
            return os.fstat(self._descriptor).st_size

    def pread(self, size_bytes: int, offset: int) -> bytes:
        """Read up to ``size_bytes`` at ``offset``; shorter only at the end of the file."""
        with self._errors_named:
            data = os.pread(self._descriptor, size_bytes, offset)
            while 0 < len(data) < size_bytes:
                # A call may return less: Linux stops at 2 GiB, and a signal can interrupt any read.
                more = os.pread(self._descriptor, size_bytes - len(data), offset + len(data))
                if not more:
                    break
                data += more
            return data

    def pwrite(self, data: Buffer, offset: int) -> None:
        """Write all of ``data`` at ``offset``; raises when less was written. Not durable before a sync."""
        with self._errors_named:
            count = os.pwrite(self._descriptor, data, offset)
            if count == len(data):
                return
            # A short write has no error code. The next call fails with one (disk full, file too large) or continues.
            rest = memoryview(data)[count:]
            while rest:
                offset += count
                count = os.pwrite(self._descriptor, rest, offset)
                if count == 0:
                    raise OSError(errno.EIO, "nothing was written", self._path)
                rest = rest[count:]

    def pwritev(self, parts: Sequence[Buffer], offset: int) -> int:
        """Write all ``parts`` in sequence at ``offset``; returns the bytes written."""
        start = offset
        for first in range(0, len(parts), _PARTS_MAX):
            batch = parts[first : first + _PARTS_MAX]
            expected = sum(map(len, batch))
            with self._errors_named:
                count = os.pwritev(self._descriptor, batch, offset)
            if count < expected:
                self.pwrite(memoryview(b"".join(batch))[count:], offset + count)
            offset += expected
        return offset - start

    def truncate(self, size_bytes: int) -> None:
        """Set the length."""
        with self._errors_named:
            os.ftruncate(self._descriptor, size_bytes)

    def sync_data(self) -> None:
        """Make contents, and the size needed to read them, durable (fdatasync)."""
        with self._errors_named:
            os.fdatasync(self._descriptor)

    def sync(self) -> None:
        """Make contents and all metadata durable (fsync)."""
        with self._errors_named:
            os.fsync(self._descriptor)

    def reserve(self, size_bytes: int, offset: int) -> None:
        """Reserve disk space for these bytes, where the system and the file system support this."""
        if _fallocate is not None:
            _fallocate(self._descriptor, _FALLOC_FL_KEEP_SIZE, offset, size_bytes)

    def begin_writing_back(self, size_bytes: int, offset: int) -> None:
        """Start writeback of these bytes, where the system supports this. The next sync reports any error."""
        # Skip a partial last page: more data will follow, and some disks block access to pages being written.
        start, end = (each // mmap.PAGESIZE * mmap.PAGESIZE for each in (offset, offset + size_bytes))
        if _sync_file_range is not None and end > start:
            _sync_file_range(self._descriptor, start, end - start, _SYNC_FILE_RANGE_WRITE)

    def drop_from_cache(self, size_bytes: int, offset: int) -> None:
        """Advise the system that these bytes will not be read again, where it supports this."""
        if _advise is not None:
            with contextlib.suppress(OSError):  # without the advice the bytes only stay in memory longer
                _advise(self._descriptor, offset, size_bytes, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Close; safe to repeat. Does not sync."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def _lock(descriptor: int) -> None:
    """BlockingIOError if another process holds the lock."""
    give_up_s = time.monotonic() + _DEAD_OWNER_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # A child that the owner was starting inherits the lock until its exec.
            owner = os.pread(descriptor, 32, 0).strip()
            if not owner.isdigit() or _is_running(int(owner)) or time.monotonic() > give_up_s:
                raise
            time.sleep(0.01)
        else:
            return


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # process of another user; not a valid pid
        return True
    return True


class OsDirectoryLock:
    """A directory lock (``flock``); implements ``DirectoryLock``. The kernel releases it when the process ends."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        """Release the lock; safe to repeat. The file stays, because removing it could allow two owners."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def open_to_append(path: str) -> int:
    """Descriptor of a file for logs and records, created for its owner alone; OSError. A symbolic link is followed."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, _FILE_MODE)


class OsFileSystem:
    """The operating system's files; implements ``FileSystem``. Stateless."""

    def create(self, path: str) -> File:
        """Create a file that must not exist and open it for reading and writing. Only its owner has access."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return OsFile(path, os.open(path, flags, _FILE_MODE))

    def create_temporary(self, path: str) -> File:
        """As ``create``, next to ``path``, with a name that no other process can know before."""
        return self.create(f"{path}.{secrets.token_hex(8)}{TEMPORARY_SUFFIX}")

    def open(self, path: str, *, writable: bool = False) -> File:
        """Open an existing file."""
        return OsFile(path, os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC))

    def read_file(self, path: str) -> bytes:
        """Whole contents of a small file; FileNotFoundError if absent."""
        with _ErrorsNamed(path), open(path, "rb") as stream:
            return stream.read()

    def write_file_atomically(self, path: str, data: bytes) -> None:
        """Replace the contents of ``path``, atomically even in a crash: temporary file, fsync, rename, dir fsync.

        For directories in which only this user can write: what a crash left under the temporary name is overwritten.
        """
        temporary = path + TEMPORARY_SUFFIX
        file = OsFile(temporary, os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _FILE_MODE))
        try:
            with contextlib.closing(file):
                file.pwrite(data, 0)
                file.sync()
            os.rename(temporary, path)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        self.sync_directory(os.path.dirname(path))

    def size(self, path: str) -> int:
        """Length of a file in bytes; FileNotFoundError if absent."""
        return os.stat(path).st_size

    def list_directory(self, path: str) -> list[str]:
        """Sorted names in a directory; FileNotFoundError if absent."""
        return sorted(os.listdir(path))

    def exists(self, path: str) -> bool:
        """Whether the path exists. OSError if this cannot be determined: no permission, a failing disk."""
        try:
            os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def make_directories(self, path: str) -> None:
        """Create a directory and its parents for their owner alone, durable on return; existing ones are fine."""
        parts = os.path.abspath(path).split(os.sep)[1:]
        for parent, directory in itertools.pairwise(itertools.accumulate(parts, os.path.join, initial=os.sep)):
            if os.path.isdir(directory):
                continue
            with contextlib.suppress(FileExistsError):
                os.mkdir(directory, _DIRECTORY_MODE)
            self.sync_directory(parent)
        if not os.path.isdir(path):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)

    def rename(self, source: str, target: str) -> None:
        """Atomically rename ``source`` to ``target``; durable only after ``sync_directory``."""
        os.rename(source, target)

    def link(self, source: str, target: str) -> None:
        """Create a hard link ``target`` to ``source``."""
        os.link(source, target)

    def remove(self, path: str) -> None:
        """Delete a file."""
        os.unlink(path)

    def remove_directory(self, path: str) -> None:
        """Delete an empty directory."""
        os.rmdir(path)

    def sync_directory(self, path: str) -> None:
        """Make creations, renames and removals in this directory durable."""
        descriptor = os.open(path or os.curdir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with _ErrorsNamed(path):
                os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def space(self, path: str) -> DiskSpace:
        """Size and free bytes (for this user) of the file system that contains ``path``."""
        numbers = os.statvfs(path)
        return DiskSpace(
            total_bytes=numbers.f_blocks * numbers.f_frsize,
            usable_bytes=numbers.f_bavail * numbers.f_frsize,
            filesystem_id=os.stat(path).st_dev,
            is_read_only=bool(numbers.f_flag & os.ST_RDONLY),
        )

    def lock_directory(self, path: str) -> DirectoryLock:
        """Lock a directory for this process; DirectoryLockedError with the owner's pid if it is locked."""
        lock_path = os.path.join(path, LOCK)
        descriptor = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, _FILE_MODE)
        try:
            _lock(descriptor)
            # Overwrite before truncating: on a full disk a truncated file might not get its space back.
            os.ftruncate(descriptor, os.pwrite(descriptor, b"%d\n" % os.getpid(), 0))
        except BlockingIOError as error:
            owner = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
            os.close(descriptor)
            # The owner writes its pid just after it gets the lock, so the file may be empty for a moment.
            name = f"process {owner}" if owner else "another process"
            raise DirectoryLockedError(f"{path} is in use by {name}") from error
        except OSError as error:
            os.close(descriptor)
            error.filename = lock_path
            raise
        return OsDirectoryLock(descriptor)
