"""Outcome of each ledger of a recovery, and the report of the run. Pure."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from runtime.placement.rules import BrokenRule, PlacementRule
from runtime.replication.config import VerifyMode
from runtime.replication.fragments import EntryRange, format_ranges
from runtime.replication.source_reads import SourceDefect

MEBIBYTE = 1024 * 1024


class FailureReason(enum.Enum):
    """Why a ledger, or a part of it, could not be moved. The names appear in reports."""

    LOST = "no good copy is left"
    UNREADABLE = "surviving copies cannot be read"
    NOT_ENOUGH_BOOKIES = "no bookie to copy to"
    TARGET_GONE = "the bookie that got the copies has left the cluster"
    PLACEMENT = "no bookie that keeps the placement rules"
    NOT_CLOSED = "the ledger could not be closed"
    LOCKED = "another process has the replication lock"
    LOCK_LOST = "the replication lock was lost"
    METADATA_UNREADABLE = "the ledger metadata cannot be read"
    METADATA_NEWER = "a newer release wrote the ledger metadata"
    CONFLICT = "the ledger metadata kept changing"
    OPEN = "open: its writer may still add"
    NOT_PLANNED = "not in the plan of the continued job"
    ERROR = "error"


class LedgerFailure(msgspec.Struct, frozen=True):
    """A part of a ledger that could not be moved: the affected entries, if any, and a sentence with the reason."""

    ledger_id: int
    reason: FailureReason
    entries: tuple[EntryRange, ...]
    detail: str
    owner: str | None = None

    @property
    def place(self) -> str:
        """The ledger and the affected entries, if any."""
        return f"ledger {self.ledger_id}" + (f", entries {format_ranges(self.entries)}" if self.entries else "")

    @property
    def bare_detail(self) -> str:
        """The detail without the ledger prefix of ledger errors."""
        return self.detail.removeprefix(f"ledger {self.ledger_id}: ")

    def __str__(self) -> str:
        return f"{self.place}: {self.reason.value}: {self.bare_detail}"


class LedgerOutcome(enum.Enum):
    """Outcome of one ledger of a plan; each ledger has exactly one."""

    REPAIRED = "repaired"
    REPAIRED_BY_OTHERS = "repaired by another process"
    """Another recovery or its own writer had already replaced the failed bookies."""
    DELETED = "deleted"
    FAILED = "failed"


class LedgerRepaired(msgspec.Struct, frozen=True, kw_only=True):
    """Result for one ledger. ``fragments``: rewritten segments; ``entries`` and ``bytes_copied``: copies made.

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
    broken_rules: tuple[BrokenRule, ...] = ()
    """Placement rules that the new copies break, one for each copy and rule."""

    def with_owner(self, owner: str | None) -> LedgerRepaired:
        """The same, with the owner of the ledger in it and in its failures."""
        failures = tuple(msgspec.structs.replace(failure, owner=owner) for failure in self.failures)
        return msgspec.structs.replace(self, owner=owner, failures=failures)

    @property
    def outcome(self) -> LedgerOutcome:
        """The outcome of the ledger."""
        if self.failures:
            return LedgerOutcome.FAILED
        if self.was_deleted:
            return LedgerOutcome.DELETED
        if self.fragments or self.was_closed:
            return LedgerOutcome.REPAIRED
        return LedgerOutcome.REPAIRED_BY_OTHERS


class FencedLedger(msgspec.Struct, frozen=True):
    """An open ledger that the run fenced and closed."""

    ledger_id: int
    owner: str | None


def rule_counts(counts: Mapping[PlacementRule, int]) -> dict[str, int]:
    """How often each rule is broken, by its name; the most serious rule first."""
    return {rule.value: counts[rule] for rule in PlacementRule if counts.get(rule)}


class RecoveryReport(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a recovery. ``failures``: ledgers that still reference the failed bookies, with range and reason."""

    bookie_ids: tuple[str, ...]
    ledgers: int
    """Ledgers of the plan: the sum of repaired, repaired by another process, deleted and failed ones."""
    ledgers_repaired: int
    """Ledgers that this run repaired completely, by rewriting a segment or closing the ledger."""
    ledgers_repaired_by_others: int
    """Ledgers in which another recovery or the writer had already replaced the failed bookies."""
    ledgers_deleted: int
    """Ledgers that were deleted before they were repaired."""
    ledgers_failed: int
    """Ledgers that still reference the failed bookies, including partly repaired ones."""
    ledgers_unreadable: int
    """Ledgers outside the plan with unreadable metadata, which may reference the bookies."""
    fenced: tuple[FencedLedger, ...]
    """Open ledgers that were fenced and closed; these also count above."""
    fragments: int
    entries: int
    bytes_copied: int
    seconds: float
    failures: tuple[LedgerFailure, ...]
    defects: tuple[SourceDefect, ...]
    """Bad copies on surviving bookies. They were not used, and still exist."""
    broken_rules: Mapping[str, int] = {}
    """Copies that break a placement rule, by rule."""
    verify: VerifyMode = VerifyMode.ALL
    """Which copies were read back."""

    @property
    def ledgers_closed(self) -> int:
        """Number of fenced ledgers."""
        return len(self.fenced)

    @property
    def mebibytes_per_second(self) -> float:
        """Verified bytes copied per second of the whole run."""
        return self.bytes_copied / MEBIBYTE / self.seconds if self.seconds > 0 else 0.0

    @property
    def has_progress(self) -> bool:
        """Whether anything was changed."""
        return self.fragments > 0 or bool(self.fenced)

    def with_left(self, ledger_ids: Sequence[int], unreadable: Sequence[LedgerFailure]) -> RecoveryReport:
        """The same, with ledgers that were not in the plan: those that a last scan found, and unreadable ones."""
        detail = f"it references {', '.join(self.bookie_ids)}: run the command again without --resume"
        left = [LedgerFailure(each, FailureReason.NOT_PLANNED, (), detail) for each in ledger_ids]
        failures = sorted([*self.failures, *left, *unreadable], key=lambda failure: failure.ledger_id)
        return msgspec.structs.replace(
            self,
            ledgers=self.ledgers + len(left),
            ledgers_failed=self.ledgers_failed + len(left),
            ledgers_unreadable=self.ledgers_unreadable + len(unreadable),
            failures=tuple(failures),
        )

    @property
    def is_complete(self) -> bool:
        """Whether all planned work is done."""
        return not self.failures


class RecoveryTally:
    """Counts the results of a run, and keeps only those that a report names."""

    def __init__(self, verify: VerifyMode = VerifyMode.ALL) -> None:
        """``verify``: which copies the run reads back."""
        self._verify = verify
        self._outcomes: Counter[LedgerOutcome] = Counter()
        self._fragments = self._entries = self._bytes_copied = 0
        self._failures: list[LedgerFailure] = []
        self._defects: list[SourceDefect] = []
        self._broken_rules: Counter[PlacementRule] = Counter()
        self._fenced: list[FencedLedger] = []

    @property
    def ledgers(self) -> int:
        """Results so far."""
        return self._outcomes.total()

    @property
    def ledgers_failed(self) -> int:
        """Ledgers that could not be moved completely."""
        return self._outcomes[LedgerOutcome.FAILED]

    def add(self, result: LedgerRepaired) -> None:
        """Count the result of one more ledger."""
        self._outcomes[result.outcome] += 1
        self._fragments += result.fragments
        self._entries += result.entries
        self._bytes_copied += result.bytes_copied
        self._failures += result.failures
        self._defects += result.defects
        self._broken_rules.update(broken.rule for broken in result.broken_rules)
        if result.was_closed:
            self._fenced.append(FencedLedger(result.ledger_id, result.owner))

    def report(
        self, bookie_ids: tuple[str, ...], seconds: float, unreadable: Sequence[LedgerFailure] = ()
    ) -> RecoveryReport:
        """Summarize the run. ``unreadable``: ledgers outside the plan with unreadable metadata."""
        return RecoveryReport(
            bookie_ids=bookie_ids,
            ledgers=self.ledgers,
            ledgers_repaired=self._outcomes[LedgerOutcome.REPAIRED],
            ledgers_repaired_by_others=self._outcomes[LedgerOutcome.REPAIRED_BY_OTHERS],
            ledgers_deleted=self._outcomes[LedgerOutcome.DELETED],
            ledgers_failed=self.ledgers_failed,
            ledgers_unreadable=len(unreadable),
            fenced=tuple(sorted(self._fenced, key=lambda each: each.ledger_id)),
            fragments=self._fragments,
            entries=self._entries,
            bytes_copied=self._bytes_copied,
            seconds=seconds,
            failures=tuple(sorted([*unreadable, *self._failures], key=lambda failure: failure.ledger_id)),
            broken_rules=rule_counts(self._broken_rules),
            verify=self._verify,
            defects=tuple(sorted(self._defects, key=lambda defect: (defect.ledger_id, defect.bookie_id))),
        )
