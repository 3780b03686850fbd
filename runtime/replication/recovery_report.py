"""What a recovery of failed bookies did, summed up. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from runtime.replication.ledger_outcome import LedgerFailure, LedgerOutcome, LedgerRepaired
from runtime.replication.recovery_plan import RecoveryPlan
from runtime.replication.replicator import SourceDefect

MEBIBYTE = 1024 * 1024


class RecoveryReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a recovery did. ``failures``: every ledger that still needs the failed bookies, with range and reason."""

    bookie_ids: tuple[str, ...]
    ledgers: int
    """Ledgers of the plan: the sum of those repaired, repaired by others, deleted and failed."""
    ledgers_repaired: int
    """Ledgers of which this run rewrote a segment, or which it closed, and which nothing is left to do for."""
    ledgers_repaired_by_others: int
    """Ledgers that named the bookies no more: another recovery, or their own writer, was faster."""
    ledgers_deleted: int
    """Ledgers that were deleted before they were repaired."""
    ledgers_failed: int
    """Ledgers that still need the failed bookies somewhere, whatever else was repaired of them."""
    ledgers_unreadable: int
    """Ledgers outside of the plan whose metadata nobody can read: they may name the bookies."""
    ledgers_closed: int
    """Open ledgers that were fenced and closed, counted above as well."""
    fragments: int
    entries: int
    bytes_copied: int
    seconds: float
    failures: tuple[LedgerFailure, ...]
    defects: tuple[SourceDefect, ...]
    """Bad copies found on surviving bookies. They were not used, and are still there: run a verification."""

    @property
    def mebibytes_per_second(self) -> float:
        """Verified bytes copied over the time of the whole run."""
        return self.bytes_copied / MEBIBYTE / self.seconds if self.seconds > 0 else 0.0

    @property
    def failures_by_reason(self) -> dict[str, tuple[int, ...]]:
        """Reason to ascending ledger ids, each id once."""
        grouped: dict[str, set[int]] = {}
        for failure in self.failures:
            grouped.setdefault(failure.reason.value, set()).add(failure.ledger_id)
        return {reason: tuple(sorted(ledger_ids)) for reason, ledger_ids in sorted(grouped.items())}

    @property
    def has_progress(self) -> bool:
        """Whether anything was changed."""
        return self.fragments > 0 or self.ledgers_closed > 0

    @property
    def is_complete(self) -> bool:
        """Nothing that was planned is left."""
        return not self.failures


def recovery_report(plan: RecoveryPlan, results: Sequence[LedgerRepaired], seconds: float) -> RecoveryReport:
    """Sum up the results of a run. Pure."""
    outcomes = Counter(result.outcome for result in results)
    failures = [*plan.unreadable, *(failure for result in results for failure in result.failures)]
    return RecoveryReport(
        bookie_ids=plan.bookie_ids,
        ledgers=len(results),
        ledgers_repaired=outcomes[LedgerOutcome.REPAIRED],
        ledgers_repaired_by_others=outcomes[LedgerOutcome.REPAIRED_BY_OTHERS],
        ledgers_deleted=outcomes[LedgerOutcome.DELETED],
        ledgers_failed=outcomes[LedgerOutcome.FAILED],
        ledgers_unreadable=len(plan.unreadable),
        ledgers_closed=sum(result.was_closed for result in results),
        fragments=sum(result.fragments for result in results),
        entries=sum(result.entries for result in results),
        bytes_copied=sum(result.bytes_copied for result in results),
        seconds=seconds,
        failures=tuple(sorted(failures, key=lambda failure: failure.ledger_id)),
        defects=tuple(
            sorted(
                (defect for result in results for defect in result.defects),
                key=lambda defect: (defect.ledger_id, defect.bookie_id),
            )
        ),
    )
