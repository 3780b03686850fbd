"""What was done with one ledger, and what is left of it, with the reason. Pure."""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping

import msgspec

from bkctl.runtime.placement.rules import BrokenRule, PlacementRule
from bkctl.runtime.replication.judge.copies import CopyState
from bkctl.runtime.replication.judge.fragments import EntryRange, format_ranges


class FailureReason(enum.Enum):
    """Why a ledger, or a part of it, stays as it is. The names appear in reports."""

    LOST = "no good copy is left"
    UNREADABLE = "surviving copies cannot be read"
    NOT_ENOUGH_BOOKIES = "no bookie to copy to"
    TARGETS_FAILED = "every other writable bookie failed"
    TARGET_GONE = "the bookie that got the copies has left the cluster"
    PLACEMENT = "no bookie that keeps the placement rules"
    NOT_CLOSED = "the ledger could not be closed"
    LOCKED = "another process has the replication lock"
    LOCK_LOST = "the replication lock was lost"
    METADATA_UNREADABLE = "the ledger metadata cannot be read"
    METADATA_NEWER = "a newer release wrote the ledger metadata"
    NO_PERMISSION = "ZooKeeper refuses the change"
    CONFLICT = "the ledger metadata kept changing"
    DIFFERENT = "the copies differ"
    UNREACHABLE = "the bookie does not answer"
    REFUSES_CLIENT = "the bookie refuses this client"
    READ_ONLY = "the bookie is read-only"
    REFUSED = "the bookie did not store the copy"
    STILL_BAD = "the bookie still returns a bad copy"
    STRIPE = "another entry of the stripe has no good copy"
    BAD_RECORD = "corrupt or unreadable on a bookie other than bkctl's"
    OPEN = "open: its writer may still add"
    NOT_PLANNED = "not in the plan of the continued job"
    ERROR = "error"


class LedgerFailure(msgspec.Struct, frozen=True):
    """A part of a ledger that stays as it is: the affected entries, if any, and a sentence with the reason.

    ``bookie_id`` and ``copies``: bad copies on this bookie that were not repaired; ``detail`` is about the first.
    ``absent``: bookies that are not registered or do not answer, and may have what is missing. ``is_refused``: only
    because each bookie that could help, or ZooKeeper, refuses this client: its login, certificate or role.
    ``lacks_bookies``: a loss cannot be accepted either, because too few bookies are writable to take the places of
    those that are lost.
    ``has_live_member``: a bookie that answers should have the entries, so metadata does not show that they are lost.
    """

    ledger_id: int
    reason: FailureReason
    entries: tuple[EntryRange, ...]
    detail: str
    owner: str | None = None
    bookie_id: str = ""
    copies: int = 0
    absent: tuple[str, ...] = ()
    is_refused: bool = False
    lacks_bookies: bool = False
    has_live_member: bool = False

    @property
    def ledger_and_entries(self) -> str:
        """The ledger and the affected entries, if any."""
        return f"ledger {self.ledger_id}" + (f", entries {format_ranges(self.entries)}" if self.entries else "")

    @property
    def bare_detail(self) -> str:
        """The detail without the ledger prefix of ledger errors."""
        return self.detail.removeprefix(f"ledger {self.ledger_id}: ")

    @property
    def cause(self) -> str:
        """Why, without the ledger and the entries."""
        return f"{self.reason.value}: {self.bare_detail}"

    def __str__(self) -> str:
        return f"{self.ledger_and_entries}: {self.cause}"


def are_refusals(failures: Collection[LedgerFailure]) -> bool:
    """Whether something is left, all of it only because bookies or ZooKeeper refuse this client."""
    refusals = {FailureReason.REFUSES_CLIENT, FailureReason.NO_PERMISSION}
    return bool(failures) and all(each.is_refused or each.reason in refusals for each in failures)


class LedgerOutcome(enum.Enum):
    """Outcome of one ledger of a plan; each ledger has exactly one."""

    REPAIRED = "repaired"
    REPAIRED_BY_OTHERS = "repaired by another process"
    """Another recovery or its own writer had already replaced the failed bookies."""
    DELETED = "deleted"
    FAILED = "failed"


class LedgerResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result for one ledger. ``fragments``: segments with new members; ``entries``: the copies that these got.
    ``copies_written``: bad copies that were written again in place. ``bytes_copied``: of both.

    A ledger that was deleted meanwhile, or no longer references the bookies, has no fragments and no failures.
    """

    ledger_id: int
    fragments: int = 0
    entries: int = 0
    bytes_copied: int = 0
    was_closed: bool = False
    """Whether an open ledger was fenced and closed."""
    was_deleted: bool = False
    owner: str | None = None
    """The owner of a ledger that was closed."""
    failures: tuple[LedgerFailure, ...] = ()
    defects: tuple[SourceDefect, ...] = ()
    copies_written: int = 0
    stripes_moved: int = 0
    """Stripes with bad copies that are on other bookies now."""
    copies_moved: int = 0
    """Number of these bad copies."""
    broken_rules: tuple[BrokenRule, ...] = ()
    """Placement rules that the new copies break, one for each copy and rule."""

    def with_owner(self, owner: str | None) -> LedgerResult:
        """The same, with the owner of the ledger in it and in its failures."""
        failures = tuple(msgspec.structs.replace(failure, owner=owner) for failure in self.failures)
        return msgspec.structs.replace(self, owner=owner, failures=failures)

    def after(self, first: LedgerResult) -> LedgerResult:
        """The result of both of two attempts; what is left is what this one, the second, has left."""
        return msgspec.structs.replace(
            self,
            fragments=first.fragments + self.fragments,
            entries=first.entries + self.entries,
            bytes_copied=first.bytes_copied + self.bytes_copied,
            was_closed=first.was_closed or self.was_closed,
            defects=first.defects + self.defects,
            copies_written=first.copies_written + self.copies_written,
            stripes_moved=first.stripes_moved + self.stripes_moved,
            copies_moved=first.copies_moved + self.copies_moved,
            broken_rules=first.broken_rules + self.broken_rules,
        )

    @property
    def outcome(self) -> LedgerOutcome:
        """The outcome of the ledger."""
        if self.failures:
            return LedgerOutcome.FAILED
        if self.was_deleted:
            return LedgerOutcome.DELETED
        if self.fragments or self.was_closed or self.copies_written:
            return LedgerOutcome.REPAIRED
        return LedgerOutcome.REPAIRED_BY_OTHERS


def rule_counts(counts: Mapping[PlacementRule, int]) -> dict[str, int]:
    """How often each rule is broken, by its name; the most serious rule first."""
    return {rule.value: counts[rule] for rule in PlacementRule if counts.get(rule)}


class SourceDefect(msgspec.Struct, frozen=True):
    """Bad copies of a ledger on one bookie (missing, corrupt or failed), found during a search of good ones, or left by
    the close of the ledger (then "corrupt" includes those that the bookie cannot read)."""

    ledger_id: int
    bookie_id: str
    state: CopyState
    entries: tuple[EntryRange, ...]


def failed(ledger_id: int, reason: FailureReason, detail: str) -> LedgerResult:
    """A result with one failure that is about the whole ledger."""
    return LedgerResult(ledger_id=ledger_id, failures=(LedgerFailure(ledger_id, reason, (), detail),))
