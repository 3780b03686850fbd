"""Plan of a recovery of failed bookies, outcome of each ledger, and report. Pure."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec

from runtime.ledger.metadata import LedgerMetadata
from runtime.ledger.write_set import write_set
from runtime.placement.rules import BrokenRule, PlacementRule
from runtime.replication.config import VerifyMode
from runtime.replication.fragments import EntryRange, Fragment, format_ranges, fragments_naming, stripe_count
from runtime.replication.source_reads import SourceDefect

MEBIBYTE = 1024 * 1024


class FailureReason(enum.Enum):
    """Why a ledger, or a part of it, could not be moved. The names appear in reports."""

    LOST = "no good copy is left"
    UNREADABLE = "surviving copies cannot be read"
    NOT_ENOUGH_BOOKIES = "no bookie to copy to"
    PLACEMENT = "no bookie that keeps the placement rules"
    NOT_CLOSED = "the ledger could not be closed"
    LOCKED = "another process has the replication lock"
    LOCK_LOST = "the replication lock was lost"
    METADATA_UNREADABLE = "the ledger metadata cannot be read"
    CONFLICT = "the ledger metadata kept changing"
    OPEN = "open: its writer may still add"
    ERROR = "error"


class LedgerFailure(msgspec.Struct, frozen=True):
    """A part of a ledger that could not be moved: the affected entries, if any, and a sentence with the reason."""

    ledger_id: int
    reason: FailureReason
    entries: tuple[EntryRange, ...]
    detail: str

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
    failures: tuple[LedgerFailure, ...] = ()
    defects: tuple[SourceDefect, ...] = ()
    broken_rules: tuple[BrokenRule, ...] = ()
    """Placement rules that the new copies break, one for each copy and rule."""

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


class FragmentPlan(msgspec.Struct, frozen=True):
    """One segment that references a leaving bookie.

    ``entries`` to copy and ``last_entry_id`` are None in an open segment, whose end is known only after its close.
    ``surviving_copies``: live copies of the worst entry to copy; 0 means that entries may be lost. ``broken_rules``:
    placement rules that even the best targets break.
    """

    first_entry_id: int
    last_entry_id: int | None
    ensemble: tuple[str, ...]
    failed_bookies: tuple[str, ...]
    entries: int | None
    surviving_copies: int
    broken_rules: tuple[BrokenRule, ...] = ()


class LedgerPlan(msgspec.Struct, frozen=True):
    """One ledger that references a failed bookie. ``needs_fencing``: it will be fenced and closed first."""

    ledger_id: int
    metadata_version: int
    ledger_state: str
    needs_fencing: bool
    fragments: tuple[FragmentPlan, ...]

    @property
    def surviving_copies(self) -> int:
        """Surviving copies of the worst fragment."""
        return min(fragment.surviving_copies for fragment in self.fragments)


class RecoveryPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Plan of a recovery. Planning writes nothing.

    ``bookie_ids``: the leaving bookies, which the recovery replaces. ``unreachable``: bookies that it never asks; these
    are the same ones if they are dead. ``ledgers`` are in the order of work: fewest surviving copies first, then the
    newest. ``unreadable``: ledgers with unreadable metadata, which may reference the bookies and stay unchanged.
    ``targets``: writable bookies to copy to. ``registered``: leaving bookies that are still registered. If one of them
    is to be unreachable, the plan cannot be carried out yet.
    """

    bookie_ids: tuple[str, ...]
    ledgers_scanned: int
    ledgers: tuple[LedgerPlan, ...]
    unreadable: tuple[LedgerFailure, ...]
    targets: tuple[str, ...]
    registered: tuple[str, ...] = ()
    unreachable: tuple[str, ...] = ()

    @property
    def broken_rules(self) -> dict[str, int]:
        """Fragments without targets that keep a placement rule, by rule."""
        fragments = [fragment for ledger in self.ledgers for fragment in ledger.fragments]
        return counted_rules(broken for fragment in fragments for broken in fragment.broken_rules)

    @property
    def ledgers_without_target(self) -> int:
        """Ledgers that cannot be fully recovered because too few writable bookies are outside their ensembles."""
        targets = set(self.targets)
        return sum(
            any(len(targets.difference(part.ensemble)) < len(part.failed_bookies) for part in ledger.fragments)
            for ledger in self.ledgers
        )

    @property
    def without_live_copy(self) -> frozenset[int]:
        """Ledgers with entries that should be on no live bookie."""
        return frozenset(ledger.ledger_id for ledger in self.ledgers if ledger.surviving_copies == 0)

    def without(self, ledger_ids: Collection[int]) -> RecoveryPlan:
        """The plan for all other ledgers."""
        return msgspec.structs.replace(
            self, ledgers=tuple(ledger for ledger in self.ledgers if ledger.ledger_id not in ledger_ids)
        )

    @property
    def fragments(self) -> int:
        """Segments to rewrite."""
        return sum(len(ledger.fragments) for ledger in self.ledgers)

    @property
    def entries(self) -> int:
        """Copies to make, as far as known (open segments do not count)."""
        return sum(fragment.entries or 0 for ledger in self.ledgers for fragment in ledger.fragments)


def counted_rules(broken: Iterable[BrokenRule]) -> dict[str, int]:
    """How often each rule is broken, by its name; the most serious rule first."""
    counts = Counter(each.rule for each in broken)
    return {rule.value: counts[rule] for rule in PlacementRule if counts[rule]}


def plan_ledger(
    ledger_id: int,
    metadata: LedgerMetadata,
    version: int,
    failed: frozenset[str],
    live: frozenset[str],
    broken_rules: Callable[[LedgerMetadata, Fragment], tuple[BrokenRule, ...]] = lambda *_: (),
) -> LedgerPlan:
    """Plan for one ledger that references ``failed`` bookies; ``live``: the other registered bookies. Pure.

    ``broken_rules``: the placement rules that the best targets for a fragment break.
    """
    fragments = fragments_naming(metadata, failed)
    return LedgerPlan(
        ledger_id=ledger_id,
        metadata_version=version,
        ledger_state=metadata.state.name.lower(),
        needs_fencing=any(fragment.is_open for fragment in fragments),
        fragments=tuple(
            _plan_fragment(metadata, fragment, failed, live, broken_rules(metadata, fragment)) for fragment in fragments
        ),
    )


def _plan_fragment(
    metadata: LedgerMetadata,
    fragment: Fragment,
    failed: frozenset[str],
    live: frozenset[str],
    broken_rules: tuple[BrokenRule, ...],
) -> FragmentPlan:
    sizes = (metadata.ensemble_size, metadata.write_quorum_size)
    return FragmentPlan(
        first_entry_id=fragment.entries.first_entry_id,
        last_entry_id=None if fragment.is_open else fragment.entries.last_entry_id,
        ensemble=fragment.ensemble,
        failed_bookies=tuple(sorted(failed.intersection(fragment.ensemble))),
        entries=None
        if fragment.is_open
        else sum(stripe_count(fragment.entries, index, *sizes) for index in fragment.bookie_indexes),
        surviving_copies=_surviving_copies(metadata, fragment, live),
        broken_rules=broken_rules,
    )


def _surviving_copies(metadata: LedgerMetadata, fragment: Fragment, live: frozenset[str]) -> int:
    """Live copies of the worst entry that is stored at an affected index; Qw if there is none."""
    size, quorum = metadata.ensemble_size, metadata.write_quorum_size
    used = size if fragment.is_open else min(size, fragment.entries.count)
    first = fragment.entries.first_entry_id
    counts = [
        len({fragment.ensemble[index] for index in indexes} & live)
        for indexes in (write_set(entry_id, size, quorum) for entry_id in range(first, first + used))
        if not set(indexes).isdisjoint(fragment.bookie_indexes)
    ]
    return min(counts, default=quorum)


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
    ledgers_closed: int
    """Open ledgers that were fenced and closed; these also count above."""
    fragments: int
    entries: int
    bytes_copied: int
    seconds: float
    failures: tuple[LedgerFailure, ...]
    defects: tuple[SourceDefect, ...]
    """Bad copies on surviving bookies. They were not used and still exist: run a verification."""
    broken_rules: Mapping[str, int] = {}
    """Copies that break a placement rule, by rule."""
    verify: VerifyMode = VerifyMode.ALL
    """Which copies were read back."""

    @property
    def mebibytes_per_second(self) -> float:
        """Verified bytes copied per second of the whole run."""
        return self.bytes_copied / MEBIBYTE / self.seconds if self.seconds > 0 else 0.0

    @property
    def failures_by_reason(self) -> dict[str, tuple[int, ...]]:
        """Ascending ledger ids by reason, without duplicates."""
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
        """Whether all planned work is done."""
        return not self.failures


def recovery_report(
    plan: RecoveryPlan, results: Sequence[LedgerRepaired], seconds: float, verify: VerifyMode = VerifyMode.ALL
) -> RecoveryReport:
    """Summarize the results of a run. Pure."""
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
        broken_rules=counted_rules(broken for result in results for broken in result.broken_rules),
        verify=verify,
        defects=tuple(
            sorted(
                (defect for result in results for defect in result.defects),
                key=lambda defect: (defect.ledger_id, defect.bookie_id),
            )
        ),
    )
