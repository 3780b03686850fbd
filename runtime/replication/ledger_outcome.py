"""What became of one ledger in a recovery, and why it may have failed. Pure."""

from __future__ import annotations

import enum

import msgspec

from runtime.replication.entry_ranges import EntryRange, format_ranges
from runtime.replication.replicator import SourceDefect


class FailureReason(enum.Enum):
    """Why a ledger, or a part of it, could not be moved. The names are the values in the reports."""

    LOST = "no good copy is left"
    UNREADABLE = "surviving copies cannot be read"
    NOT_ENOUGH_BOOKIES = "no bookie to copy to"
    NOT_CLOSED = "the ledger could not be closed"
    LOCKED = "somebody else holds the replication lock"
    LOCK_LOST = "the replication lock was lost"
    METADATA_UNREADABLE = "the ledger metadata cannot be read"
    CONFLICT = "the ledger metadata kept changing"
    ERROR = "error"


class LedgerFailure(msgspec.Struct, frozen=True):
    """What could not be moved, of one ledger: the entries, where it concerns entries, and a sentence why."""

    ledger_id: int
    reason: FailureReason
    entries: tuple[EntryRange, ...]
    detail: str

    @property
    def place(self) -> str:
        """Ledger, and entries where it concerns entries."""
        return f"ledger {self.ledger_id}" + (f", entries {format_ranges(self.entries)}" if self.entries else "")

    @property
    def bare_detail(self) -> str:
        """The detail without the name of the ledger, with which the errors of ledgers begin."""
        return self.detail.removeprefix(f"ledger {self.ledger_id}: ")

    def __str__(self) -> str:
        return f"{self.place}: {self.reason.value}: {self.bare_detail}"


class LedgerOutcome(enum.Enum):
    """What became of one ledger of a plan: exactly one of these."""

    REPAIRED = "repaired"
    REPAIRED_BY_OTHERS = "repaired by others"
    """It named the failed bookies no more when its turn came: another recovery, or its own writer, was faster."""
    DELETED = "deleted"
    FAILED = "failed"


class LedgerRepaired(msgspec.Struct, frozen=True, kw_only=True):
    """What was done to one ledger. ``fragments`` counts segments rewritten; entries and bytes count copies made.

    A ledger that was deleted meanwhile, or names the bookies no more, has no fragments and no failures.
    """

    ledger_id: int
    fragments: int = 0
    entries: int = 0
    bytes_copied: int = 0
    was_closed: bool = False
    """An open ledger was fenced and closed on the way."""
    was_deleted: bool = False
    failures: tuple[LedgerFailure, ...] = ()
    defects: tuple[SourceDefect, ...] = ()

    @property
    def outcome(self) -> LedgerOutcome:
        """What became of the ledger."""
        if self.failures:
            return LedgerOutcome.FAILED
        if self.was_deleted:
            return LedgerOutcome.DELETED
        if self.fragments or self.was_closed:
            return LedgerOutcome.REPAIRED
        return LedgerOutcome.REPAIRED_BY_OTHERS
