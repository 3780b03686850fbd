"""Errors of the storage layer, and the base class of all layers.

BkctlError                      its text is one sentence for the user
└── StorageError                a problem on disk
    ├── CorruptFileError        damage that no crash explains; names file and offset
    ├── JournalError
    │   ├── JournalFailedError  a write or sync failed: final, the bookie acknowledges nothing more
│   └── JournalFullError    no disk space for a write: nothing was acknowledged, a retry is possible
    ├── EntryLogError           an indexed entry cannot be read: never report "no such entry"
    │   ├── EntryLogMissingError  its log is missing: compaction may have moved the entry
    │   └── EntryDamagedError   the log was read without an error but has other data there
    ├── IndexDamagedError       part of the sealed database is lost or damaged
    ├── IndexMissingError       there are entry logs but no index
    ├── IndexFailedError        an index write failed: final for this process, no checkpoint can succeed
    ├── IndexFullError          LevelDB has no disk space for a write: nothing is damaged
    ├── ChildFailedError        a child process of a long operation was killed or failed
    ├── DirectoryLockedError    another process has locked the directory
    ├── DiskUnusableError       a directory is unusable: missing, mounted read-only, failing disk
    ├── NoWritableDiskError     a disk is full, and the settings forbid read-only mode
    ├── NoRoomToStartError      a disk has not enough space for a start
    ├── MemtableFullError       the write cache is full: throttle, nothing was stored
    ├── EntryTooLargeError      the entry is larger than a write cache
    ├── AdoptionRefusedError    directories cannot be adopted from Java, or handed back
    ├── LedgerCollectedError    the ledger is closed and its copy was collected: only its fence remains
    ├── DeletionPendingError    the ledger's deletion is not durable yet: retry later
    ├── MisplacedLedgerError    a ledger is in the wrong directory: the list of directories has changed
    └── MasterKeyMismatchError  the ledger is stored under another key
"""

from __future__ import annotations


class BkctlError(Exception):
    """Base class of all errors that bkctl raises intentionally; ``str()`` is one sentence for the user."""


class StorageError(BkctlError):
    """A problem with the files on disk."""


class CorruptFileError(StorageError):
    """A file is damaged in a way that no crash explains. ``advice``: the fix, for the user."""

    def __init__(self, path: str, offset: int, reason: str, advice: str = "") -> None:
        super().__init__(f"{path}: {reason} at offset {offset}" + (f"; {advice}" if advice else ""))
        self.path = path
        self.offset = offset
        self.reason = reason


class JournalError(StorageError):
    """The journal cannot be opened or replayed."""


class JournalFailedError(JournalError):
    """A journal write or sync failed. Final: the bookie acknowledges nothing more and stops."""


class JournalFullError(JournalError):
    """There is no disk space for a journal write. Nothing was acknowledged; a retry is possible."""


class EntryLogError(StorageError):
    """An indexed entry could not be read. The bookie answers "I/O error", never "no such entry"."""


class EntryLogMissingError(EntryLogError):
    """The log of an indexed entry is missing. A caller with an older location must look it up again."""


class EntryDamagedError(EntryLogError):
    """The log has other data at the entry's location; the disk reported no error."""


class IndexDamagedError(StorageError):
    """The index database does not contain all batches that were sealed."""


class IndexMissingError(StorageError):
    """There are entry logs, but the index that belongs to them is missing or empty."""


class IndexFailedError(StorageError):
    """A write to the index failed. Final for this process; the next boot checks what was written."""


class IndexFullError(StorageError):
    """LevelDB has no disk space. The database is unchanged, or as after a crash. ``number``: errno."""

    def __init__(self, sentence: str, number: int) -> None:
        super().__init__(sentence)
        self.number = number


class ChildFailedError(StorageError):
    """A child process ended before it finished its work. ``cause``: how it ended, without advice."""

    def __init__(self, cause: str) -> None:
        super().__init__(f"{cause}: nothing was changed, run the command again")
        self.cause = cause


class DirectoryLockedError(StorageError):
    """Another process has locked the directory."""


class DiskUnusableError(StorageError):
    """A directory of the bookie is unusable: it is missing, mounted read-only, or its disk fails."""


class NoWritableDiskError(StorageError):
    """A disk is full, and read-only mode is disabled."""


class NoRoomToStartError(StorageError):
    """A disk has not enough space for a start, not even a read-only one. Nothing is lost."""


class MemtableFullError(StorageError):
    """The write cache has no space for the entry at the moment; nothing was stored."""


class EntryTooLargeError(StorageError):
    """The entry is larger than a whole write cache and can never be stored."""


class LedgerCollectedError(StorageError):
    """The ledger is closed, and its copy here was collected: ordinary adds are rejected, as on a fenced ledger."""


class DeletionPendingError(StorageError):
    """The ledger was deleted, but a crash would undo this. Its id is usable again after the next checkpoint."""


class MasterKeyMismatchError(StorageError):
    """The ledger is stored under another master key."""


class AdoptionRefusedError(StorageError):
    """Directories cannot be adopted from a Java bookie, or handed back to one; nothing was changed."""


class UnpairedIndexError(StorageError):
    """The settings do not give each ledger directory an index directory."""


class MisplacedLedgerError(StorageError):
    """A ledger is in the wrong ledger directory: the list of directories has changed."""
