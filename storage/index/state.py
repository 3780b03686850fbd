"""Whether an index of a stopped bookie is there and whole."""

from __future__ import annotations

import enum
import os
from typing import Final

import msgspec

from storage.advice import without_advice
from storage.errors import IndexDamagedError, IndexMissingError, StorageError
from storage.filenames import LEDGERS_DATABASE, LOCATIONS_DATABASE
from storage.index.ledger_index import LedgerIndex
from storage.index.opening import find_history, open_or_view_index
from storage.index.seal import is_sealed_index_present
from storage.index.swap import finish_swap
from storage.ports import FileSystem, OpenIndexStore

DATABASES: Final = (LEDGERS_DATABASE, LOCATIONS_DATABASE)


class IndexCondition(enum.Enum):
    """What can be said of an index without the entry logs."""

    SOUND = "sound"
    """Opened strictly, its sealed run unbroken; of ledger rows, every one could be read."""
    MISSING = "missing"
    """Though something was stored."""
    DAMAGED = "damaged"
    NEW = "new"
    """Nothing was ever stored: the first start makes it."""


class IndexState(msgspec.Struct, frozen=True):
    """One database of one directory."""

    condition: IndexCondition
    detail: str = ""
    """What is wrong, one sentence."""

    @property
    def is_lost(self) -> bool:
        """Whether it must be built anew."""
        return self.condition in {IndexCondition.MISSING, IndexCondition.DAMAGED}

    def as_error(self, advice: str) -> StorageError:
        """A lost index as an error. ``advice``: what to do about it, the end of a sentence."""
        error = IndexMissingError if self.condition is IndexCondition.MISSING else IndexDamagedError
        return error(f"{self.detail}; {advice}")


def inspect_index(
    filesystem: FileSystem, open_index: OpenIndexStore, ledger_directory: str, index_directory: str, database: str
) -> IndexState:
    """Open an index as a boot would and let go of it; both folders are locked ``current`` ones.

    A swap that an earlier rebuild began is finished first, as a boot would, too. StorageError, OSError for what is
    neither there nor damaged, for instance an index that another process has open.
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
