"""The IndexStore port on a ``FileSystem``: an ordered map whose batches are appended to one file and synced."""

from __future__ import annotations

import bisect
import os
from collections.abc import Iterable, Iterator

import msgspec

from bkctl.storage.errors import IndexMissingError
from bkctl.storage.ports import FileSystem, OpenIndexStore

_ROWS = "rows"
_decoder = msgspec.msgpack.Decoder(tuple[list[tuple[bytes, bytes]], list[bytes]])


class MemoryIndexStore:
    """All rows are in memory, too. A batch that a crash cut off is dropped when the store is opened."""

    def __init__(self, filesystem: FileSystem, path: str, *, create: bool) -> None:
        self._rows: dict[bytes, bytes] = {}
        self._keys: list[bytes] = []
        name = os.path.join(path, _ROWS)
        if not filesystem.exists(name):
            if not create:
                raise IndexMissingError(f"{path}: no index database")
            filesystem.make_directories(path)
            filesystem.create(name)
            filesystem.sync_directory(path)
        self._file = filesystem.open(name, writable=True)
        self._end = 0
        while (head := self._file.pread(4, self._end)) != b"" and len(
            batch := self._file.pread(int.from_bytes(head, "big"), self._end + 4)
        ) == int.from_bytes(head, "big") > 0:
            self._apply(*_decoder.decode(batch))
            self._end += 4 + len(batch)

    def get(self, key: bytes) -> bytes | None:
        return self._rows.get(key)

    def floor(self, key: bytes, lower: bytes) -> tuple[bytes, bytes] | None:
        position = bisect.bisect_right(self._keys, key)
        if position == 0 or self._keys[position - 1] < lower:
            return None
        found = self._keys[position - 1]
        return found, self._rows[found]

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        first, end = (bisect.bisect_left(self._keys, key) for key in (start, stop))
        return iter([(key, self._rows[key]) for key in self._keys[first:end]])

    def write(self, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes] = ()) -> None:
        puts, deletes = list(puts), list(deletes)
        batch = msgspec.msgpack.encode((puts, deletes))
        self._file.pwrite(len(batch).to_bytes(4, "big") + batch, self._end)
        self._file.sync_data()
        self._end += 4 + len(batch)
        self._apply(puts, deletes)

    def close(self) -> None:
        self._file.close()

    def _apply(self, puts: list[tuple[bytes, bytes]], deletes: list[bytes]) -> None:
        for key in deletes:
            self._rows.pop(key, None)
        self._rows.update(puts)
        self._keys = sorted(self._rows)


def opening_on(filesystem: FileSystem) -> OpenIndexStore:
    """Opens databases on this disk."""

    def open_index(path: str, *, create: bool, strict: bool) -> MemoryIndexStore:
        return MemoryIndexStore(filesystem, path, create=create)

    return open_index
