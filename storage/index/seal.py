"""The seal: lost batches of an index database are detected.

LevelDB silently drops a damaged or missing end of its own log. A bookie that then answers "no such entry" helps to
truncate acknowledged entries from a ledger. Therefore:

- every batch carries one more row, the seal row, whose key ends with the number of the batch;
- a small file next to the database records the range of numbers that must be there, ``floor`` to ``number``. It is
  replaced after the batches are durable and before lastMark moves past their contents;
- every open requires this range without a gap. Batches after ``number`` may be there or not: the journal repeats them.

The range need not reach back to the first batch. Opening a database moves the rows of its log into synced tables; from
then on LevelDB can lose an older batch only together with the last one, or with a table that its manifest lists, and
both are detected. So every open, once it has verified the range, moves ``floor`` up to the last batch.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from bkctl.storage.advice import REBUILD_ADVICE
from bkctl.storage.checked_text import decode_checked_numbers, encode_checked_numbers
from bkctl.storage.errors import (
    DirectoryLockedError,
    IndexDamagedError,
    IndexFailedError,
    IndexMissingError,
    StorageError,
)
from bkctl.storage.filenames import seal_file_name
from bkctl.storage.index.files import last_record_start
from bkctl.storage.index.kept_files import KeptFiles, remove_files
from bkctl.storage.index.view import MANIFEST_NAME, open_view
from bkctl.storage.ports import FileSystem, IndexStore, OpenIndexStore

_SEAL_KEY = struct.Struct(">8sQ")
_SEAL_PREFIX = b"\xffseal\x00\x00\x00"
"""The first byte is above 0x7f: as a ledger id it is negative, so no seal row is a ledger's (storage section 5.2)."""
_TRIM_ROW_COUNT_MAX = 4096
_RECORD_FORMAT = "bkctl seal 1"
_RECORD_NAMES = ("floor", "number")
_ROW_FILE_SUFFIXES = (".ldb", ".sst", ".log")
_REWRITTEN_PREFIX = "MANIFEST-"
_REWRITTEN_SUFFIX = ".log"
_OPENING_BYTES = 256 * 1024
"""Space for an opening in addition to the new log and manifest: blocks of small files and directories."""


class SealRecord(NamedTuple):
    """The batches that must exist: ``floor`` to ``number``. 0: creation did not finish."""

    floor: int
    number: int


class SealedIndex:
    """An index database with numbered batches. One lane writes; other lanes may read concurrently."""

    def __init__(
        self,
        filesystem: FileSystem,
        store: IndexStore,
        path: str,
        record: SealRecord,
        number: int,
        open_to_write: Callable[[], SealedIndex] | None = None,
        opening_bytes: int = 0,
    ) -> None:
        """``open_to_write``: opens the same database for writing, if ``store`` is read-only; ``opening_bytes``: space
        needed for that."""
        self._filesystem = filesystem
        self.store = store
        """Used directly for reads that must be fast."""
        self._path = path
        self._record = record
        self._number = number
        self._is_failed = False
        self._open_to_write = open_to_write
        self._opening_bytes = opening_bytes

    @property
    def path(self) -> str:
        """Directory of the database."""
        return self._path

    def get(self, key: bytes) -> bytes | None:
        """See ``IndexStore``."""
        return self.store.get(key)

    def floor(self, key: bytes, stop: bytes) -> tuple[bytes, bytes] | None:
        """See ``IndexStore``."""
        return self.store.floor(key, stop)

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """See ``IndexStore``."""
        return self.store.scan(start, stop)

    def table_bytes(self) -> int:
        """Size of the files that hold the rows."""
        names = [name for name in self._filesystem.list_directory(self._path) if name.endswith(_ROW_FILE_SUFFIXES)]
        return sum(self._filesystem.size(os.path.join(self._path, name)) for name in names)

    @property
    def opening_bytes(self) -> int:
        """Space that the next write needs before it writes: 0 unless the database is only viewed."""
        return 0 if self._open_to_write is None else self._opening_bytes

    def write(self, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes] = ()) -> None:
        """Apply one batch and its seal row atomically and durably.

        Raises IndexFailedError if that failed, now or earlier. This is final, because a batch after a half-written one
        may look like damage later, and because a repeated sync may succeed although the bytes are not on the disk.
        Another StorageError, or OSError, when a database that was only viewed could not be opened: nothing was written.
        """
        if self._open_to_write is not None:
            self._go_on(self._open_to_write())
        if self._is_failed:
            raise IndexFailedError(f"{self._path}: an earlier write failed; restart the bookie")
        number = self._number + 1
        try:
            self.store.write(itertools.chain(puts, [(_seal_key(number), b"")]), deletes)
        except (StorageError, OSError) as error:
            self._is_failed = True
            advice = REBUILD_ADVICE if isinstance(error, IndexDamagedError) else "restart the bookie"
            raise IndexFailedError(f"{self._path}: index write failed ({error}); {advice}") from error
        self._number = number

    def record(self) -> None:
        """Require every later open to find all batches written so far. Call this before lastMark moves past them."""
        if self._record.number == self._number:
            return
        if self._open_to_write is not None:
            self._go_on(self._open_to_write())
        self._write_record(SealRecord(self._record.floor, self._number))

    def close(self) -> None:
        """Close the database; safe to repeat."""
        self.store.close()

    def _go_on(self, opened: SealedIndex) -> None:
        """Switch to the same database opened for writing. Readers in other lanes finish with the old one."""
        self._record, self._number, self.store = opened._record, opened._number, opened.store
        self._open_to_write = None

    def trim(self) -> None:
        """Raise ``floor`` to the last batch, then delete the seal rows below it. Only directly after an open."""
        last = self._number
        if self._record.floor == last == self._record.number:
            return
        self._write_record(SealRecord(last, last))
        rows = self.store.scan(_seal_key(0), _seal_key(last))
        while keys := [key for key, _ in itertools.islice(rows, _TRIM_ROW_COUNT_MAX)]:
            self.write((), keys)

    def _write_record(self, record: SealRecord) -> None:
        # LevelDB syncs the bytes of its log, but not the directory with the name of a new log file.
        self._filesystem.sync_directory(self._path)
        self._filesystem.write_file_atomically(seal_file_name(self._path), encode_seal_record(record))
        self._record = record


@contextlib.contextmanager
def advising_repair() -> Iterator[None]:
    """Around reads of an index at boot: adds the fix to errors about a lost or damaged index."""
    try:
        yield
    except (IndexDamagedError, IndexMissingError) as error:
        if REBUILD_ADVICE in str(error):
            raise
        raise type(error)(f"{error}; {REBUILD_ADVICE}") from error


def is_sealed_index_present(filesystem: FileSystem, path: str) -> bool:
    """Whether a database was ever completed here; raises IndexDamagedError if it exists without its record."""
    record = _read_record(filesystem, path)
    if record is not None:
        return record.number > 0
    if filesystem.exists(path):
        raise IndexDamagedError(f"{seal_file_name(path)} is missing, so {path} cannot be trusted; {REBUILD_ADVICE}")
    return False


def create_sealed_index(filesystem: FileSystem, open_index: OpenIndexStore, path: str) -> SealedIndex:
    """Create a database with its first batch sealed and recorded.

    The record of an unfinished creation is written before the database, so a crash never leaves a database without a
    record.
    """
    unfinished = SealRecord(0, 0)
    filesystem.write_file_atomically(seal_file_name(path), encode_seal_record(unfinished))
    if filesystem.exists(path):
        # A crash interrupted a creation: LevelDB syncs its first files late, and nothing was sealed yet.
        remove_files(filesystem, path)
    with advising_repair():
        store = open_index(path, create=True, strict=True)
        filesystem.sync_directory(os.path.dirname(path))
    index = SealedIndex(filesystem, store, path, SealRecord(1, 0), 0)
    index.write(())
    index.trim()
    return index


def seal_database(filesystem: FileSystem, open_index: OpenIndexStore, path: str) -> None:
    """Seal and record a complete database that was written without seals: this makes it valid."""
    store = open_index(path, create=False, strict=True)
    try:
        index = SealedIndex(filesystem, store, path, SealRecord(1, 0), 0)
        index.write(())
        index.trim()
    finally:
        store.close()


def open_sealed_index(filesystem: FileSystem, open_index: OpenIndexStore, path: str) -> SealedIndex:
    """Open a database and require its recorded range, then trim the range to its end.

    Raises IndexMissingError when the database is gone, IndexDamagedError when the range is incomplete: both name the
    command that rebuilds it.
    """
    record = _read_record(filesystem, path)
    assert record is not None, "is_sealed_index_present comes first"
    kept = KeptFiles(filesystem, path)
    kept.restore()
    kept.keep()
    with advising_repair():
        try:
            store = _open_strictly(filesystem, open_index, path)
        except DirectoryLockedError:
            kept.drop()  # its owner continues to write, so the kept files are outdated
            raise
        except IndexMissingError as error:
            raise IndexMissingError(f"{error}, but {record.number} batches were sealed there") from error
        try:
            number = _verified_end(store, path, record)
            filesystem.sync_directory(path)
            kept.drop()
            index = SealedIndex(filesystem, store, path, record, number)
            index.trim()
        except BaseException:
            store.close()
            raise
    return index


def view_sealed_index(filesystem: FileSystem, open_index: OpenIndexStore, path: str) -> SealedIndex:
    """Open a database without writing a byte, and require its recorded range; the first write opens it normally.

    Raises the errors of ``open_sealed_index``, and ValueError if it needs a repair.
    """
    record = _read_record(filesystem, path)
    assert record is not None, "is_sealed_index_present comes first"
    with advising_repair():
        store = open_view(filesystem, KeptFiles(filesystem, path).current_path)
        number = _verified_end(store, path, record)
    open_to_write = functools.partial(open_sealed_index, filesystem, open_index, path)
    opening_bytes = bytes_to_open(filesystem, path)
    return SealedIndex(filesystem, store, path, record, number, open_to_write, opening_bytes)


def bytes_to_open(filesystem: FileSystem, path: str) -> int:
    """Space that LevelDB, and the steps around it, may need to open a database; OSError."""
    sizes_bytes = 0
    for name in filesystem.list_directory(path):
        if name.startswith(_REWRITTEN_PREFIX) or name.endswith(_REWRITTEN_SUFFIX):
            sizes_bytes += filesystem.size(os.path.join(path, name))
    return sizes_bytes + _OPENING_BYTES


def encode_seal_record(record: SealRecord) -> bytes:
    """Text of the record file."""
    return encode_checked_numbers(_RECORD_FORMAT, dict(zip(_RECORD_NAMES, record, strict=True)))


def decode_seal_record(data: bytes) -> SealRecord | None:
    """The record, or None for bytes that ``encode_seal_record`` does not produce."""
    numbers = decode_checked_numbers(_RECORD_FORMAT, _RECORD_NAMES, data)
    return None if numbers is None else SealRecord(*numbers)


def _read_record(filesystem: FileSystem, path: str) -> SealRecord | None:
    record_path = seal_file_name(path)
    try:
        data = filesystem.read_file(record_path)
    except FileNotFoundError:
        return None
    record = decode_seal_record(data)
    if record is None:
        raise IndexDamagedError(f"{record_path} is not a seal record; {REBUILD_ADVICE}")
    return record


def drop_last_change(filesystem: FileSystem, path: str) -> bool:
    """Remove the last change from the manifest of the database directory ``path``, durably; False: there is none.

    LevelDB writes a change of its tables to the manifest first. Then, just before it syncs the manifest, it syncs the
    directory of the new tables. If file contents can reach the disk before names, a power failure between the two
    leaves a manifest that references missing tables. LevelDB deletes the replaced tables only after the sync, so the
    manifest without its last change describes a complete database; the seal shows whether a batch is missing.

    Hard links of the old manifest keep their content. OSError.
    """
    try:
        name = filesystem.read_file(os.path.join(path, "CURRENT")).decode("ascii", "replace").strip()
        if MANIFEST_NAME.fullmatch(name) is None:
            return False
        manifest = os.path.join(path, name)
        data = filesystem.read_file(manifest)
    except FileNotFoundError:
        return False
    end = last_record_start(data)
    if end <= 0:
        return False
    filesystem.write_file_atomically(manifest, data[:end])
    return True


def _open_strictly(filesystem: FileSystem, open_index: OpenIndexStore, path: str) -> IndexStore:
    """Open strictly, first repairing what a crash can leave; the seal rows show whether that was damage."""
    try:
        return open_index(path, create=False, strict=True)
    except IndexDamagedError:
        try:
            # One non-strict open drops a torn end of LevelDB's log.
            open_index(path, create=False, strict=False).close()
        except IndexDamagedError:
            if not drop_last_change(filesystem, path):
                raise
        return open_index(path, create=False, strict=True)


def _verified_end(store: IndexStore, path: str, record: SealRecord) -> int:
    """Number of the last batch present, after checking that the recorded range is complete."""
    expected = record.floor
    last = record.number
    for number in _numbers(store, path, record.floor):
        if number != expected and expected <= record.number:
            break
        last = number
        expected = number + 1
    if expected <= record.number:
        raise IndexDamagedError(f"{path}: batch {expected} of recorded {record.floor} to {record.number} is missing")
    return last


def _numbers(store: IndexStore, path: str, floor: int) -> Iterator[int]:
    for key, _ in store.scan(_seal_key(floor), _SEAL_END):
        if len(key) != _SEAL_KEY.size:
            raise IndexDamagedError(f"{path}: {key.hex()} is not the key of a seal row")
        yield _SEAL_KEY.unpack(key)[1]


def _seal_key(number: int) -> bytes:
    return _SEAL_KEY.pack(_SEAL_PREFIX, number)


_SEAL_END = _seal_key(2**64 - 1)
