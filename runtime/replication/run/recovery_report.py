"""Report of a run over many ledgers. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from bkctl.runtime.placement.rules import PlacementRule
from bkctl.runtime.replication.config import VerifyMode
from bkctl.runtime.replication.judge.ledger_result import (
    FailureReason,
    LedgerFailure,
    LedgerOutcome,
    LedgerResult,
    SourceDefect,
    rule_counts,
)

MEBIBYTE = 1024 * 1024


class FencedLedger(msgspec.Struct, frozen=True):
    """An open ledger that the run fenced and closed."""

    ledger_id: int
    owner: str | None


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

    def add(self, result: LedgerResult) -> None:
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
            ledgers=self._outcomes.total(),
            ledgers_repaired=self._outcomes[LedgerOutcome.REPAIRED],
            ledgers_repaired_by_others=self._outcomes[LedgerOutcome.REPAIRED_BY_OTHERS],
            ledgers_deleted=self._outcomes[LedgerOutcome.DELETED],
            ledgers_failed=self._outcomes[LedgerOutcome.FAILED],
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
