"""Adapter of the ``Database`` port (``bkctl.runtime.replication.plan.store``): SQLite. No other module imports it."""

from __future__ import annotations

import errno
import os
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any, Final

from bkctl.storage.adapters.filesystem import OsFileSystem

_BUSY_S: Final = 1.0
"""How long to wait for a process that only reads the file."""
_ERRNO: Final = {
    sqlite3.SQLITE_FULL: (errno.ENOSPC, os.strerror(errno.ENOSPC)),
    sqlite3.SQLITE_BUSY: (errno.EAGAIN, "another process uses it"),
}


class SqliteDatabase:
    """One database; implements ``Database``. It closes itself when nothing refers to it."""

    def __init__(self, path: str, *, is_exclusive: bool = False) -> None:
        """``is_exclusive``: no other process may use it until it is closed; BlockingIOError if one does. OSError."""
        self._path = path
        try:
            self._connection = sqlite3.connect(path, _BUSY_S, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as error:
            raise self._mapped(error) from error
        if is_exclusive:
            for statement in ("PRAGMA locking_mode = EXCLUSIVE", "BEGIN EXCLUSIVE", "COMMIT"):
                self.execute(statement)

    @property
    def path(self) -> str:
        """Its file, for messages."""
        return self._path or "a temporary database"

    def execute(self, statement: str, values: Sequence[Any] = ()) -> Iterator[tuple[Any, ...]]:
        """Run a statement of SQL. Its rows are read when the caller takes them."""
        try:
            return self._rows(self._connection.execute(statement, values))
        except sqlite3.Error as error:
            raise self._mapped(error) from error

    def close(self) -> None:
        """Close; safe to repeat. What is not committed is lost."""
        self._connection.close()

    def __del__(self) -> None:
        if hasattr(self, "_connection"):
            self.close()

    def _rows(self, cursor: sqlite3.Cursor) -> Iterator[tuple[Any, ...]]:
        try:
            yield from cursor
        except sqlite3.Error as error:
            raise self._mapped(error) from error

    def _mapped(self, error: sqlite3.Error) -> OSError:
        number, reason = _ERRNO.get(error.sqlite_errorcode & 0xFF, (errno.EIO, str(error)))
        return OSError(number, reason, self.path)


def create_database(path: str) -> SqliteDatabase:
    """A new file that only its owner may read, for this process alone; FileExistsError, OSError."""
    file_system = OsFileSystem()
    file_system.create(path).close()
    file_system.sync_directory(os.path.dirname(path))
    return SqliteDatabase(path, is_exclusive=True)


def temporary_database() -> SqliteDatabase:
    """A database that may be larger than the memory, and ends with this process."""
    try:
        tempfile.gettempdir()
    except FileNotFoundError:  # there is no place for its file
        return memory_database()
    return SqliteDatabase("")  # SQLite's name for a file that has none, and begins when 2 MB do not suffice


def memory_database() -> SqliteDatabase:
    """A database in memory, for simulations."""
    return SqliteDatabase(":memory:")
