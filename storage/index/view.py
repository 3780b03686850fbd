"""Reading a LevelDB database without writing a byte, for a start on a disk without room to open it.

LevelDB writes when it opens a database: the log becomes a table, and it starts a new manifest and log. This module
reads the files as they are. It is slower (a fraction of a millisecond per row), keeps the rows of the log in memory,
and raises ValueError for anything that LevelDB would have to repair first. Docs: decision 11.
"""

from __future__ import annotations

import bisect
import functools
import heapq
import itertools
import operator
import os
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

from bkctl.storage.errors import IndexDamagedError, IndexMissingError, StorageError
from bkctl.storage.index.files import (
    BLOCK_TRAILER_BYTES,
    FOOTER_BYTES,
    NEWEST,
    Handle,
    IndexTable,
    KeyState,
    apply_batch,
    checked_block,
    decode_footer,
    decode_index,
    decode_log,
    decode_manifest,
    decode_rows,
)
from bkctl.storage.ports import FileSystem

_CURRENT: Final = "CURRENT"
_LOG_NAME = re.compile(r"([0-9]+)\.log")
_TABLE_NAME = re.compile(r"([0-9]+)\.(?:ldb|sst)")
MANIFEST_NAME = re.compile(r"MANIFEST-[0-9]+")
_CACHED_INDEX_COUNT: Final = 64
_CACHED_BLOCK_COUNT: Final = 256

_KEY = operator.itemgetter(0)

_Decoded = TypeVar("_Decoded")
_Blocks = list[tuple[bytes, Handle]]


class IndexView:
    """The IndexStore port for reading; ``write`` raises an error. Several threads may read concurrently."""

    def __init__(
        self,
        filesystem: FileSystem,
        path: str,
        paths: dict[int, str],
        tables: Iterable[IndexTable],
        logged: dict[bytes, bytes | None],
    ) -> None:
        """``paths``: paths of the tables, by number. ``logged``: rows of the logs; None: deleted."""
        self._filesystem = filesystem
        self._path = path
        self._paths = paths
        self._tables = sorted(tables, key=lambda table: (table.level, table.first))
        self._logged = logged
        self._logged_keys = sorted(logged)
        self._blocks_of: Callable[[IndexTable], _Blocks] = functools.lru_cache(_CACHED_INDEX_COUNT)(self._read_index)
        self._rows_of: Callable[[IndexTable, Handle], list[KeyState]] = functools.lru_cache(_CACHED_BLOCK_COUNT)(
            self._read_rows
        )

    def get(self, key: bytes) -> bytes | None:
        """Value of a key, or None if it is certainly absent."""
        if key in self._logged:
            return self._logged[key]
        tables = [table for table in self._tables if table.first <= key <= table.last]
        newest = next(heapq.merge(*(self._table_rows(table, key) for table in tables)), None)
        return newest.value if newest is not None and newest.key == key else None

    def floor(self, key: bytes, lower: bytes) -> tuple[bytes, bytes] | None:
        """Row with the greatest key that is at most ``key`` and at least ``lower``."""
        tables = [table for table in self._tables if table.first <= key and table.last >= lower]
        sources = (self._table_rows_back(table, key) for table in tables)
        rows = heapq.merge(self._logged_back(key), *sources, key=_KEY, reverse=True)
        for found, states in itertools.groupby(rows, _KEY):
            if found < lower:
                return None
            newest = min(states)
            if newest.value is not None:
                return found, newest.value
        return None

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Rows from ``start`` (included) to ``stop`` (excluded) in key order; the files never change."""
        tables = [table for table in self._tables if table.first < stop and table.last >= start]
        rows = heapq.merge(self._logged_from(start), *(self._table_rows(table, start) for table in tables))
        for key, states in itertools.groupby(rows, _KEY):
            if key >= stop:
                return
            newest = next(states)
            if newest.value is not None:
                yield key, newest.value

    def write(self, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes] = ()) -> None:  # noqa: ARG002
        """Raises StorageError: a view is read-only."""
        raise StorageError(f"{self._path}: opened read-only")

    def close(self) -> None:
        """Nothing is open."""

    def _logged_from(self, key: bytes) -> Iterator[KeyState]:
        start = bisect.bisect_left(self._logged_keys, key)
        return (self._logged_row(place) for place in range(start, len(self._logged_keys)))

    def _logged_back(self, key: bytes) -> Iterator[KeyState]:
        stop = bisect.bisect_right(self._logged_keys, key)
        return (self._logged_row(place) for place in range(stop - 1, -1, -1))

    def _logged_row(self, place: int) -> KeyState:
        key = self._logged_keys[place]
        return KeyState(key, -NEWEST, self._logged[key])

    def _table_rows(self, table: IndexTable, key: bytes) -> Iterator[KeyState]:
        """Rows of a table from ``key`` on. Reads the first block when the first row is requested."""
        blocks = self._blocks_of(table)
        for place in range(bisect.bisect_left(blocks, key, key=_KEY), len(blocks)):
            for row in self._rows_of(table, blocks[place][1]):
                if row.key >= key:
                    yield row

    def _table_rows_back(self, table: IndexTable, key: bytes) -> Iterator[KeyState]:
        """Rows of a table from ``key`` on, backwards; the states of one key in any order."""
        blocks = self._blocks_of(table)
        for place in range(min(bisect.bisect_right(blocks, key, key=_KEY), len(blocks) - 1), -1, -1):
            for row in reversed(self._rows_of(table, blocks[place][1])):
                if row.key <= key:
                    yield row

    def _read_index(self, table: IndexTable) -> _Blocks:
        footer = self._pread(table, table.size_bytes - FOOTER_BYTES, FOOTER_BYTES)
        try:
            handle = decode_footer(footer)
        except (ValueError, IndexError) as error:
            raise self._damaged(table, error) from error
        return self._decoded(table, handle, decode_index)

    def _read_rows(self, table: IndexTable, handle: Handle) -> list[KeyState]:
        return self._decoded(table, handle, decode_rows)

    def _decoded(self, table: IndexTable, handle: Handle, decode: Callable[[bytes], _Decoded]) -> _Decoded:
        offset, size_bytes = handle
        data = self._pread(table, offset, size_bytes + BLOCK_TRAILER_BYTES)
        try:
            return decode(checked_block(data))
        except (ValueError, IndexError) as error:
            raise self._damaged(table, error) from error

    def _pread(self, table: IndexTable, offset: int, size_bytes: int) -> bytes:
        path = self._paths[table.number]
        try:
            file = self._filesystem.open(path)
            try:
                return file.pread(size_bytes, offset)
            finally:
                file.close()
        except OSError as error:
            raise StorageError(f"{path}: {error.strerror}") from error

    def _damaged(self, table: IndexTable, error: Exception) -> IndexDamagedError:
        return IndexDamagedError(f"{self._paths[table.number]}: {error}")


def open_view(filesystem: FileSystem, path: str) -> IndexView:
    """View the database directory ``path``; no other process may have it open.

    IndexMissingError if it is absent; ValueError if it needs a repair, OSError.
    """
    names = filesystem.list_directory(path) if filesystem.exists(path) else []
    if _CURRENT not in names:
        raise IndexMissingError(f"{path}: no index database")
    manifest_name = filesystem.read_file(os.path.join(path, _CURRENT)).decode("ascii", "replace").strip()
    if MANIFEST_NAME.fullmatch(manifest_name) is None or manifest_name not in names:
        raise ValueError(f"{_CURRENT} references no manifest")
    try:
        manifest = decode_manifest(filesystem.read_file(os.path.join(path, manifest_name)))
        rows = _logged_rows(filesystem, path, names, manifest.log_number, manifest.previous_log_number)
    except (IndexError, KeyError) as error:
        raise ValueError("an incomplete change or batch") from error
    paths = {int(found[1]): os.path.join(path, name) for name in names if (found := _TABLE_NAME.fullmatch(name))}
    tables = list(manifest.tables.values())
    missing = [table.number for table in tables if table.number not in paths]
    if missing:
        raise ValueError(f"table {missing[0]} is missing")
    return IndexView(filesystem, path, paths, tables, rows)


def _logged_rows(
    filesystem: FileSystem, path: str, names: Iterable[str], log_number: int, previous_log_number: int
) -> dict[bytes, bytes | None]:
    numbered = ((int(found[1]), name) for name in names if (found := _LOG_NAME.fullmatch(name)))
    rows: dict[bytes, bytes | None] = {}
    for number, name in sorted(numbered):
        if number >= log_number or number == previous_log_number:
            for batch in decode_log(filesystem.read_file(os.path.join(path, name))):
                apply_batch(batch, rows)
    return rows
