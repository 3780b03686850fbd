"""The real disk, noting every change in order, and failing where a test says so."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.ports import Buffer, File


class TracedDisk(OsFileSystem):
    """``calls`` holds (operation, file name); ``fail_on`` makes one operation fail from now on."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.fail_on: str | None = None

    def note(self, operation: str, path: str) -> None:
        self.calls.append((operation, os.path.basename(path)))
        if operation == self.fail_on:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    def take_calls(self) -> list[tuple[str, str]]:
        calls, self.calls = self.calls, []
        return calls

    def create(self, path: str) -> File:
        self.note("create", path)
        return TracedFile(self, super().create(path))

    def open(self, path: str, *, writable: bool = False) -> File:
        return TracedFile(self, super().open(path, writable=writable))

    def write_file_atomically(self, path: str, data: bytes) -> None:
        self.note("replace", path)
        super().write_file_atomically(path, data)

    def link(self, source: str, target: str) -> None:
        self.note("link", target)
        super().link(source, target)

    def remove(self, path: str) -> None:
        self.note("remove", path)
        super().remove(path)

    def rename(self, source: str, target: str) -> None:
        self.note("rename", source)
        super().rename(source, target)

    def sync_directory(self, path: str) -> None:
        self.note("sync directory", path)
        super().sync_directory(path)


class TracedFile:
    def __init__(self, disk: TracedDisk, file: File) -> None:
        self._disk = disk
        self._file = file

    @property
    def path(self) -> str:
        return self._file.path

    def size(self) -> int:
        return self._file.size()

    def pread(self, size_bytes: int, offset: int) -> bytes:
        return self._file.pread(size_bytes, offset)

    def pwrite(self, data: Buffer, offset: int) -> None:
        self._disk.note("write", self.path)
        self._file.pwrite(data, offset)

    def pwritev(self, parts: Sequence[Buffer], offset: int) -> int:
        self._disk.note("write", self.path)
        return self._file.pwritev(parts, offset)

    def truncate(self, size_bytes: int) -> None:
        self._disk.note("truncate", self.path)
        self._file.truncate(size_bytes)

    def sync_data(self) -> None:
        self._disk.note("sync", self.path)
        self._file.sync_data()

    def sync(self) -> None:
        self._disk.note("sync", self.path)
        self._file.sync()

    def reserve(self, size_bytes: int, offset: int) -> None:
        self._disk.note("reserve", self.path)
        self._file.reserve(size_bytes, offset)

    def begin_writing_back(self, size_bytes: int, offset: int) -> None:
        self._disk.note("write back", self.path)
        self._file.begin_writing_back(size_bytes, offset)

    def drop_from_cache(self, size_bytes: int, offset: int) -> None:
        self._disk.note("drop", self.path)
        self._file.drop_from_cache(size_bytes, offset)

    def close(self) -> None:
        self._file.close()
