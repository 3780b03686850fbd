"""Adapter of the ``IndexStore`` port: LevelDB through plyvel. Only this module imports plyvel.

Source: storage section 5.9.
"""

from __future__ import annotations

import collections
import errno
import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import plyvel

from bkctl.storage.disk_room import OUT_OF_ROOM
from bkctl.storage.errors import (
    DirectoryLockedError,
    IndexDamagedError,
    IndexFullError,
    IndexMissingError,
    StorageError,
)

WRITE_BUFFER_BYTES: Final = 64 * 1024 * 1024
"""With its default of 4 MiB, LevelDB stalls for seconds under load."""
TABLE_FILE_BYTES_MAX: Final = 32 * 1024 * 1024
BLOOM_FILTER_BITS: Final = 10

_CURRENT = "CURRENT"
"""LevelDB's pointer to its manifest: a directory without it contains no database."""

_LOST_OR_CUT = (os.strerror(errno.ENOENT), os.strerror(errno.EINVAL))
"""LevelDB's messages for a missing or truncated file. It reports these as I/O errors, but they mean damage."""

_NO_ROOM = {os.strerror(number): number for number in OUT_OF_ROOM}
"""LevelDB's messages for a full disk; it reports no error number."""


class PlyvelIndexStore:
    """One LevelDB database; implements ``IndexStore``. Several reading threads may run alongside one writer."""

    def __init__(self, database: Any, path: str) -> None:
        self._database = database
        self._path = path

    def get(self, key: bytes) -> bytes | None:
        """Value of a key, or None if it is certainly absent."""
        try:
            value: bytes | None = self._database.get(key, verify_checksums=True)
        except plyvel.Error as error:
            raise _mapped(self._path, error) from error
        return value

    def floor(self, key: bytes, lower: bytes) -> tuple[bytes, bytes] | None:
        """Row with the greatest key that is at most ``key`` and at least ``lower``."""
        rows = self._raw_iterator()
        try:
            rows.seek(key)
            if not rows.valid():
                rows.seek_to_last()
            elif rows.key() > key:
                rows.prev()
            if not rows.valid():
                return None
            found: tuple[bytes, bytes] = rows.item()
        except plyvel.Error as error:
            raise _mapped(self._path, error) from error
        finally:
            rows.close()
        return found if found[0] >= lower else None

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Rows from ``start`` (included) to ``stop`` (excluded) in key order, of one point in time."""
        rows = self._raw_iterator()
        try:
            rows.seek(start)
            while rows.valid():
                key, value = rows.item()
                if key >= stop:
                    return
                yield key, value
                rows.next()
        except plyvel.Error as error:
            raise _mapped(self._path, error) from error
        finally:
            rows.close()

    def write(self, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes] = ()) -> None:
        """Apply one batch atomically and make it durable; a key in both is put."""
        try:
            batch = self._database.write_batch(transaction=False, sync=True)
            delete: Callable[[bytes], None] = batch.delete
            for key in deletes:
                delete(key)
            # This loop runs in C code, without bytecode per row.
            collections.deque(itertools.starmap(batch.put, puts), maxlen=0)
            batch.write()
        except plyvel.Error as error:
            raise _mapped(self._path, error) from error

    def close(self) -> None:
        """Close; safe to repeat. No other thread may be inside a call."""
        self._database.close()

    def _raw_iterator(self) -> Any:
        # plyvel's ordinary iterator checks its bounds before LevelDB's status. So a damaged block at the edge of a
        # range silently ends the range, and "damaged" becomes "absent" (seen with plyvel 1.5.1). The raw iterator
        # checks the status after every step.
        return self._database.raw_iterator(verify_checksums=True)


def open_plyvel(path: str, *, create: bool, strict: bool) -> PlyvelIndexStore:
    """Open the database directory ``path`` (the OpenIndexStore port).

    Raises IndexMissingError if it is absent and ``create`` is False, DirectoryLockedError if another process has it
    open, IndexDamagedError for damage found while opening: any if ``strict``, else only what LevelDB cannot drop.
    """
    # Even without ``create`` LevelDB would leave a directory with a lock file.
    if not create and not os.path.exists(os.path.join(path, _CURRENT)):
        raise IndexMissingError(f"{path}: no index database")
    try:
        database = plyvel.DB(
            path,
            create_if_missing=create,
            paranoid_checks=strict,
            write_buffer_size=WRITE_BUFFER_BYTES,
            max_file_size=TABLE_FILE_BYTES_MAX,
            bloom_filter_bits=BLOOM_FILTER_BITS,
            compression=None,
        )
    except plyvel.Error as error:
        raise _mapped(path, error) from error
    return PlyvelIndexStore(database, path)


def _mapped(path: str, error: Exception) -> StorageError:
    """Convert an error of plyvel: damage, a lock held by another process, or any other failure."""
    detail = error.args[0] if error.args else ""
    sentence = detail.decode(errors="replace") if isinstance(detail, bytes) else str(detail)
    if isinstance(error, plyvel.CorruptionError) or sentence.endswith(_LOST_OR_CUT):
        return IndexDamagedError(f"{path}: {sentence}")
    if f"lock {os.path.join(path, 'LOCK')}:" in sentence:
        return DirectoryLockedError(f"{path}: another process has opened the index database ({sentence})")
    for text, number in _NO_ROOM.items():
        if sentence.endswith(text):
            return IndexFullError(f"{path}: {sentence}", number)
    return StorageError(f"{path}: {sentence}")
