"""A disk in memory: the FileSystem port, and what is left of it after a power failure."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Sequence

from bkctl.storage.errors import DirectoryLockedError
from bkctl.storage.filenames import LOCK, TEMPORARY_SUFFIX
from bkctl.storage.ports import Buffer, DiskSpace
from tests.crash.model_disk import Mode, ModelDisk
from tests.crash.trace import (
    Change,
    Create,
    Link,
    MakeDirectory,
    Remove,
    Rename,
    SyncDirectory,
    SyncFile,
    Truncate,
    Write,
)

TOTAL_BYTES = 1 << 40


class LosesAll(random.Random):
    """Draws the worst outcome of a power failure: nothing survives that was not synced."""

    def choice(self, seq: Sequence[float]) -> float:  # type: ignore[override]
        return seq[0]

    def randint(self, a: int, b: int) -> int:
        return a

    def random(self) -> float:
        return 1.0


class _Inode:
    def __init__(self, number: int) -> None:
        self.number = number
        self.data = bytearray()


class MemoryDisk:
    """Files and directories by absolute path.

    ``unsynced_suffix``: syncs of files with such names do nothing. ``fails_at``: the change with this number fails.
    ``usable_bytes``: what ``space`` reports; no change uses any of it.
    """

    def __init__(self, mode: Mode, survivors: dict[str, bytes | None] | None = None) -> None:
        self._mode = mode
        self._model = ModelDisk(mode)
        self._change_count = 0
        self._inode_count = 0
        self._names: dict[str, _Inode | None] = {"/": None}
        self._locked: set[str] = set()
        self.unsynced_suffix: str | None = None
        self.fails_at: int | None = None
        self.usable_bytes = TOTAL_BYTES // 2
        for path, contents in (survivors or {}).items():
            if contents is None:
                self.make_directories("/" + path)
            else:
                self.create("/" + path).write_all(contents)
                self.sync_directory(os.path.dirname("/" + path))

    def after_power_failure(self, chance: random.Random) -> MemoryDisk:
        """The disk of the machine that starts after a power failure now."""
        return MemoryDisk(self._mode, self._model.survivors(chance))

    def change(self, change: Change) -> None:
        if self._change_count == self.fails_at:
            self.fails_at = None
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self._model.apply(self._change_count, change)
        self._change_count += 1

    @property
    def change_count(self) -> int:
        return self._change_count

    # -- the port -------------------------------------------------------------------------------------------------

    def create_temporary(self, path: str) -> MemoryFile:
        return self.create(f"{path}.{self._inode_count}{TEMPORARY_SUFFIX}")

    def create(self, path: str) -> MemoryFile:
        if path in self._names:
            raise _error(errno.EEXIST, path)
        self._require_directory(os.path.dirname(path))
        inode = _Inode(self._inode_count)
        self.change(Create(_relative(path), inode.number))
        self._inode_count += 1
        self._names[path] = inode
        return MemoryFile(self, path, inode)

    def open(self, path: str, *, writable: bool = False) -> MemoryFile:
        return MemoryFile(self, path, self._inode(path))

    def read_file(self, path: str) -> bytes:
        return bytes(self._inode(path).data)

    def write_file_atomically(self, path: str, data: bytes) -> None:
        temporary = path + TEMPORARY_SUFFIX
        if temporary in self._names:
            self.remove(temporary)
        self.create(temporary).write_all(data)
        self.rename(temporary, path)
        self.sync_directory(os.path.dirname(path))

    def size(self, path: str) -> int:
        return len(self._inode(path).data)

    def list_directory(self, path: str) -> list[str]:
        self._require_directory(path)
        return sorted(os.path.basename(name) for name in self._names if os.path.dirname(name) == path != name)

    def exists(self, path: str) -> bool:
        return path in self._names

    def make_directories(self, path: str) -> None:
        if path in self._names:
            self._require_directory(path)
            return
        parent = os.path.dirname(path)
        self.make_directories(parent)
        self.change(MakeDirectory(_relative(path)))
        self._names[path] = None
        self.sync_directory(parent)

    def rename(self, source: str, target: str) -> None:
        if source not in self._names:
            raise _error(errno.ENOENT, source)
        self._require_directory(os.path.dirname(target))
        if source == target or self._names[source] is self._names.get(target, self):
            return  # two names of one file: POSIX keeps both
        self.change(Rename(_relative(source), _relative(target)))
        self._names[target] = self._names.pop(source)
        below = [path for path in self._names if path.startswith(source + "/")]
        for path in below:
            self._names[target + path.removeprefix(source)] = self._names.pop(path)

    def link(self, source: str, target: str) -> None:
        inode = self._inode(source)
        self._require_directory(os.path.dirname(target))
        if target in self._names:
            raise _error(errno.EEXIST, target)
        self.change(Link(_relative(source), _relative(target)))
        self._names[target] = inode

    def remove(self, path: str) -> None:
        self._inode(path)
        self.change(Remove(_relative(path)))
        del self._names[path]

    def remove_directory(self, path: str) -> None:
        if self.list_directory(path):
            raise _error(errno.ENOTEMPTY, path)
        self.change(Remove(_relative(path)))
        del self._names[path]

    def sync_directory(self, path: str) -> None:
        self._require_directory(path)
        self.change(SyncDirectory(_relative(path), self._change_count))

    def space(self, path: str) -> DiskSpace:
        self.exists(path)
        return DiskSpace(TOTAL_BYTES, self.usable_bytes, filesystem_id=1)

    def lock_directory(self, path: str) -> MemoryLock:
        if path in self._locked:
            raise DirectoryLockedError(f"{path} is in use by this process")
        if not self.exists(os.path.join(path, LOCK)):
            self.create(os.path.join(path, LOCK))
        self._locked.add(path)
        return MemoryLock(self._locked, path)

    @property
    def locked(self) -> frozenset[str]:
        """Directories that are locked now."""
        return frozenset(self._locked)

    def _inode(self, path: str) -> _Inode:
        inode = self._names.get(path)
        if inode is None:
            raise _error(errno.EISDIR if path in self._names else errno.ENOENT, path)
        return inode

    def _require_directory(self, path: str) -> None:
        if self._names.get(path, self) is not None:
            raise _error(errno.ENOTDIR if path in self._names else errno.ENOENT, path)


class MemoryFile:
    """An open file of a ``MemoryDisk``."""

    def __init__(self, disk: MemoryDisk, path: str, inode: _Inode) -> None:
        self._disk = disk
        self._inode = inode
        self.path = path

    def size(self) -> int:
        return len(self._inode.data)

    def pread(self, size_bytes: int, offset: int) -> bytes:
        return bytes(self._inode.data[offset : offset + size_bytes])

    def pwrite(self, data: Buffer, offset: int) -> None:
        self._disk.change(Write(self._inode.number, offset, bytes(data)))
        contents = self._inode.data
        contents.extend(bytes(max(0, offset - len(contents))))
        contents[offset : offset + len(data)] = data

    def pwritev(self, parts: Sequence[Buffer], offset: int) -> int:
        data = b"".join(parts)
        self.pwrite(data, offset)
        return len(data)

    def truncate(self, size_bytes: int) -> None:
        self._disk.change(Truncate(self._inode.number, size_bytes))
        contents = self._inode.data
        del contents[size_bytes:]
        contents.extend(bytes(size_bytes - len(contents)))

    def sync_data(self) -> None:
        suffix = self._disk.unsynced_suffix
        if suffix is None or not self.path.endswith(suffix):
            self._disk.change(SyncFile(self._inode.number, self._disk.change_count))

    def sync(self) -> None:
        self.sync_data()

    def reserve(self, size_bytes: int, offset: int) -> None:
        """There is as much room without it."""

    def begin_writing_back(self, size_bytes: int, offset: int) -> None:
        """Nothing is written back before a sync."""

    def drop_from_cache(self, size_bytes: int, offset: int) -> None:
        """There is no cache."""

    def close(self) -> None:
        """Nothing to give back."""

    def write_all(self, data: bytes) -> None:
        """The durable contents of a new file."""
        self.pwrite(data, 0)
        self.sync()


class MemoryLock:
    """A directory that is locked."""

    def __init__(self, locked: set[str], path: str) -> None:
        self._locked = locked
        self._path = path

    def release(self) -> None:
        self._locked.discard(self._path)


def _relative(path: str) -> str:
    return path.lstrip("/")


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
