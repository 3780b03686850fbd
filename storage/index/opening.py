"""Opening the two indexes of a ledger directory, creating them where nothing was ever stored, and inspecting them."""

from __future__ import annotations

import contextlib
import enum
import os

import msgspec

from bkctl.storage.advice import ADOPTION_ADVICE, REBUILD_ADVICE, without_advice
from bkctl.storage.entry_log.format import HEADER_BYTES
from bkctl.storage.entry_log.reader import list_entry_logs
from bkctl.storage.errors import IndexDamagedError, IndexMissingError, NoRoomToStartError, StorageError
from bkctl.storage.filenames import (
    DATABASES,
    LEDGERS_DATABASE,
    entry_log_file_name,
    last_mark_file_name,
    seal_file_name,
)
from bkctl.storage.index.java_index import find_java_index
from bkctl.storage.index.ledger_index import LedgerIndex
from bkctl.storage.index.seal import (
    SealedIndex,
    bytes_to_open,
    create_sealed_index,
    is_sealed_index_present,
    open_sealed_index,
    view_sealed_index,
)
from bkctl.storage.index.swap import finish_swap, rebuilt_path
from bkctl.storage.ports import FileSystem, OpenIndexStore
from bkctl.storage.words import size


def open_indexes(
    filesystem: FileSystem, open_index: OpenIndexStore, ledger_directory: str, index_directory: str
) -> tuple[SealedIndex, SealedIndex]:
    """The ledgers and the locations database of a directory (both directories are ``current`` ones).

    Raises IndexMissingError when one is missing although something was stored, IndexDamagedError when one lost or
    damaged a sealed batch: starting with less would turn lost entries into "no such entry" (H15).
    """
    missing = []
    for name in DATABASES:
        path = os.path.join(index_directory, name)
        finish_swap(filesystem, path)
        if not is_sealed_index_present(filesystem, path):
            missing.append(name)
    if missing:
        _require_no_history(filesystem, ledger_directory, os.path.join(index_directory, missing[0]))
    return _open_or_create(filesystem, open_index, index_directory, missing)


def require_indexes(
    filesystem: FileSystem, open_index: OpenIndexStore, ledger_directory: str, index_directory: str
) -> None:
    """Check what ``open_indexes`` requires without writing a byte. Errors as there.

    The rows of a database that LevelDB must repair first, or that is being replaced, are not checked.
    """
    paths = [os.path.join(index_directory, name) for name in DATABASES]
    if any(filesystem.exists(seal_file_name(rebuilt_path(path))) for path in paths):
        return
    missing = [path for path in paths if not is_sealed_index_present(filesystem, path)]
    if missing:
        _require_no_history(filesystem, ledger_directory, missing[0])
    for path in paths:
        if path not in missing:
            with contextlib.suppress(ValueError):
                view_sealed_index(filesystem, open_index, path).close()


def _open_or_create(
    filesystem: FileSystem, open_index: OpenIndexStore, index_directory: str, missing: list[str]
) -> tuple[SealedIndex, SealedIndex]:
    """Open or, where missing, create the ledgers and the locations database."""
    opened: list[SealedIndex] = []
    try:
        for database in DATABASES:
            open_or_create = create_sealed_index if database in missing else open_or_view_index
            opened.append(open_or_create(filesystem, open_index, os.path.join(index_directory, database)))
    except BaseException:
        for index in opened:
            index.close()
        raise
    ledger_rows, location_rows = opened
    return ledger_rows, location_rows


def open_or_view_index(filesystem: FileSystem, open_index: OpenIndexStore, path: str) -> SealedIndex:
    """Open a database; on a disk without room for that, view it until the first write.

    Raises the errors of ``open_sealed_index``, and NoRoomToStartError if it would have to be repaired first.
    """
    free_bytes = _free_bytes(filesystem, path)
    if free_bytes is None or free_bytes >= (needed_bytes := bytes_to_open(filesystem, path)):
        return open_sealed_index(filesystem, open_index, path)
    try:
        return view_sealed_index(filesystem, open_index, path)
    except ValueError as error:
        raise NoRoomToStartError(
            f"{path}: {size(free_bytes)} are free, {size(needed_bytes - free_bytes)} more are needed to open "
            f"this index, which must be repaired ({error}): free disk space"
        ) from error


def viewing_index(
    filesystem: FileSystem, open_index: OpenIndexStore, index_directory: str, database: str
) -> contextlib.closing[SealedIndex]:
    """``open_or_view_index`` for a ``with`` block."""
    path = os.path.join(index_directory, database)
    return contextlib.closing(open_or_view_index(filesystem, open_index, path))


def _free_bytes(filesystem: FileSystem, path: str) -> int | None:
    """None if the file system does not report it, or there is no database."""
    if not filesystem.exists(path):
        return None
    space = filesystem.space(path)
    return space.usable_bytes if space.total_bytes > 0 else None


def find_history(filesystem: FileSystem, ledger_directory: str) -> str | None:
    """Path of a file that shows that a ledger directory once stored something, or None. OSError.

    A log with only a header holds no entry. A mark shows that rows were flushed here, entries or not.
    """
    mark_name = last_mark_file_name(0, 1)
    for name in filesystem.list_directory(ledger_directory):
        if name.startswith(mark_name):
            return os.path.join(ledger_directory, name)
    for log_id in list_entry_logs(filesystem, ledger_directory):
        path = os.path.join(ledger_directory, entry_log_file_name(log_id))
        if filesystem.size(path) > HEADER_BYTES:
            return path
    return None


def _require_no_history(filesystem: FileSystem, ledger_directory: str, index_path: str) -> None:
    """Refuse to create an empty index where an index must have been lost (H15, storage section 5.9)."""
    witness = find_history(filesystem, ledger_directory)
    if witness is not None:
        java_index = find_java_index(filesystem, os.path.dirname(index_path))
        # An index rebuilt from the logs would be missing what only Java's index has.
        advice = ADOPTION_ADVICE if java_index.names else REBUILD_ADVICE
        raise IndexMissingError(
            f"{index_path} is missing, but {witness} exists, so stored entries would be reported as missing; {advice}"
        )


class IndexCondition(enum.Enum):
    """State of an index, judged without the entry logs."""

    SOUND = "sound"
    """Opened strictly, the sealed range is complete, and every ledger row could be read."""
    MISSING = "missing"
    """Missing although something was stored."""
    DAMAGED = "damaged"
    NEW = "new"
    """Nothing was ever stored: the first start creates it."""


class IndexState(msgspec.Struct, frozen=True):
    """One database of one directory."""

    condition: IndexCondition
    detail: str = ""
    """The problem, in one sentence."""

    @property
    def is_lost(self) -> bool:
        """Whether it must be rebuilt."""
        return self.condition in {IndexCondition.MISSING, IndexCondition.DAMAGED}

    def as_error(self, advice: str) -> StorageError:
        """A lost index as an error. ``advice``: how to fix it, the end of a sentence."""
        error = IndexMissingError if self.condition is IndexCondition.MISSING else IndexDamagedError
        return error(f"{self.detail}; {advice}")


def inspect_index(
    filesystem: FileSystem, open_index: OpenIndexStore, ledger_directory: str, index_directory: str, database: str
) -> IndexState:
    """Open an index as a boot would and close it again; both directories are locked ``current`` ones.

    Finishes a swap that an earlier rebuild began, as a boot would. StorageError, OSError for anything but a missing or
    damaged index, for instance one that another process has open.
    """
    path = os.path.join(index_directory, database)
    try:
        finish_swap(filesystem, path)
        if not is_sealed_index_present(filesystem, path):
            witness = find_history(filesystem, ledger_directory)
            if witness is None:
                return IndexState(IndexCondition.NEW)
            return IndexState(IndexCondition.MISSING, f"{path} is missing, but {witness} exists")
        rows = open_or_view_index(filesystem, open_index, path)
        try:
            if database == LEDGERS_DATABASE:
                LedgerIndex.load(rows)
        finally:
            rows.close()
    except IndexMissingError as error:
        return IndexState(IndexCondition.MISSING, without_advice(error))
    except IndexDamagedError as error:
        return IndexState(IndexCondition.DAMAGED, without_advice(error))
    return IndexState(IndexCondition.SOUND)
