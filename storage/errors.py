"""Errors of the storage floor, and the root that every floor shares.

BkctlError                      carries one sentence for the user
└── StorageError                something on disk
    ├── CorruptFileError        bytes that no crash explains: refuse, name file and offset
    ├── JournalError
    │   ├── JournalFailedError  a write or sync failed: final, nothing more is acknowledged
│   └── JournalFullError    no room for a write: nothing was acknowledged, the same may be tried again
    ├── EntryLogError           an entry that the index names cannot be read: never "no such entry"
    │   ├── EntryLogMissingError  its log is not there: compaction may have moved it meanwhile
    │   └── EntryDamagedError   something else is there, which was read without an error
    ├── IndexDamagedError       the database lost or damaged part of what was sealed
    ├── IndexMissingError       entry logs without the index that belongs to them
    ├── IndexFailedError        an index write failed: final for this process, no checkpoint can succeed
    ├── IndexFullError          LevelDB has no room for a write: nothing is damaged
    ├── ChildFailedError        a child process of a long job was ended from outside, or broke
    ├── DirectoryLockedError    another process owns the folder
    ├── DiskUnusableError       a folder cannot be used any more: gone, mounted read-only, failing
    ├── NoWritableDiskError     a disk is full, and the settings forbid to go on read-only
    ├── NoRoomToStartError      a start needs room that a disk does not have
    ├── MemtableFullError       the write cache has no room: throttle, nothing was stored
    ├── EntryTooLargeError      the entry can never fit
    ├── AdoptionRefusedError    folders cannot be taken over from Java, or handed back, as they are
    ├── LedgerCollectedError    the ledger is closed and its copy was collected: its fence outlives the copy
    ├── DeletionPendingError    the ledger's id cannot be used again before its deletion is durable: try again
    ├── MisplacedLedgerError    a directory holds a ledger that belongs in another: their list has changed
    └── MasterKeyMismatchError  the ledger is known under another key
"""

from __future__ import annotations


class BkctlError(Exception):
    """Root of all errors that bkctl raises on purpose; ``str()`` is one clear sentence for the user."""


class StorageError(BkctlError):
    """Something on disk is not as it must be."""


class CorruptFileError(StorageError):
    """A file holds bytes that no crash explains. ``advice``: what to do about it, for the user."""

    def __init__(self, path: str, offset: int, reason: str, advice: str = "") -> None:
        super().__init__(f"{path}: {reason} at offset {offset}" + (f"; {advice}" if advice else ""))
        self.path = path
        self.offset = offset
        self.reason = reason


class JournalError(StorageError):
    """The journal cannot be opened or replayed."""


class JournalFailedError(JournalError):
    """A journal write or sync failed. Final: what was not acknowledged stays so, and the bookie stops."""


class JournalFullError(JournalError):
    """The disk has no room for what was to be journaled. Nothing was acknowledged; the same may be tried again."""


class EntryLogError(StorageError):
    """An entry that the index names could not be read. The answer is "I/O error", never "no such entry"."""


class EntryLogMissingError(EntryLogError):
    """The log that the index names is not there. Whoever looked the location up earlier looks once more."""


class EntryDamagedError(EntryLogError):
    """At its place in the log is something else; the disk has read it without an error."""


class IndexDamagedError(StorageError):
    """The index database does not hold the unbroken run of batches that was sealed."""


class IndexMissingError(StorageError):
    """There are entry logs, but the index that belongs to them is missing or empty."""


class IndexFailedError(StorageError):
    """A write to the index failed. Final for this process: the next boot tells what is really there."""


class IndexFullError(StorageError):
    """LevelDB found no room on its disk. The database is as it was, or as a crash would leave it. ``number``: errno."""

    def __init__(self, sentence: str, number: int) -> None:
        super().__init__(sentence)
        self.number = number


class ChildFailedError(StorageError):
    """A child process that a long job had started has ended before its work was done. ``cause`` says how, without
    what to do about it."""

    def __init__(self, cause: str) -> None:
        super().__init__(f"{cause}: nothing was changed, run the command again")
        self.cause = cause


class DirectoryLockedError(StorageError):
    """Another process owns the folder."""


class DiskUnusableError(StorageError):
    """A folder of the bookie cannot be used any more: it is gone, mounted read-only, or its disk fails."""


class NoWritableDiskError(StorageError):
    """A disk is full, and read-only mode is switched off."""


class NoRoomToStartError(StorageError):
    """A start needs room that a disk does not have, even to be read-only. Nothing is lost."""


class MemtableFullError(StorageError):
    """The write cache has no room for the entry now; nothing was stored."""


class EntryTooLargeError(StorageError):
    """The entry is larger than a whole write cache and can never be stored."""


class LedgerCollectedError(StorageError):
    """The ledger is closed, and its copy was collected here: ordinary adds are refused, as on a fenced ledger."""


class DeletionPendingError(StorageError):
    """The ledger was deleted, and a crash now would bring it back: its id can be used again after a checkpoint."""


class MasterKeyMismatchError(StorageError):
    """The ledger is stored under another master key."""


class AdoptionRefusedError(StorageError):
    """Folders cannot be taken over from a Java bookie, or handed back to one, as they are; nothing was changed."""


class MisplacedLedgerError(StorageError):
    """A ledger directory holds a ledger that is looked for in another one: the list of directories has changed."""
