"""Plans and reports of recoveries: rows, totals and sentences."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, overload

from bkctl.commands.rendering import Column, Table, time_text
from bkctl.commands.safety.plan import PlanFinding, time_at_limit
from bkctl.runtime.replication.config import DEFAULT_POLICY, CopyPace, OpenLedgers, PlacementMode, Policy
from bkctl.runtime.replication.judge.advice import GivenUpLedger
from bkctl.runtime.replication.judge.ledger_result import LedgerFailure, rule_counts
from bkctl.runtime.replication.judge.needed_bookies import Idle, more_targets, targets_to_gain
from bkctl.runtime.replication.plan.recovery_plan import LedgerPlan, OpenSegment, PlanTotals, RecoveryPlan
from bkctl.runtime.replication.run.recovery import RecoveryReport
from bkctl.storage.severity import Severity
from bkctl.storage.words import SHOWN_MAX, counted, decimal, duration, enumerated, listed, size

_ASSUMED_BYTES_PER_S = 100 * 2**20
"""Of a recovery without a limit, for an estimate: entries of some KiB, bookies on SSDs."""

PLAN_TABLE = Table(
    "Changes",
    Column("action", "ACTION"),
    Column("ledger_id", "LEDGER", is_right=True),
    Column("state", "STATE", priority=1),
    Column("fragments", "FRAGMENTS", is_right=True, priority=2),
    Column("entries", "ENTRIES", is_right=True, priority=1),
    Column("bytes", "BYTES", size, is_right=True, priority=1),
    Column("surviving_copies", "COPIES LEFT", is_right=True, priority=1),
    Column("needs_fencing", "FENCED FIRST", priority=3),
    Column("owner", "OWNER", is_wide=True),
    Column("problem", "PROBLEM"),
)
LEAVING_PLAN_TABLE = Table(
    "Changes", PLAN_TABLE.columns[0], Column("bookie_id", "BOOKIE", priority=1), *PLAN_TABLE.columns[1:]
)
"""Of bookies that leave: its other changes name them."""
FAILURE_TABLE = Table(
    "Failures",
    Column("reason", "REASON"),
    Column("ledger_id", "LEDGER", is_right=True),
    Column("owner", "OWNER", priority=1),
    Column("entries", "ENTRIES"),
    Column("detail", "DETAIL"),
)


def _rule_counts(counts: object) -> str:
    assert isinstance(counts, dict)
    return ", ".join(f"{rule}: {count}" for rule, count in counts.items()) or "0"


REPORT_SHOW = {
    "bytes": size,
    "seconds": decimal,
    "mebibytes_per_second": decimal,
    "copies_breaking_placement": _rule_counts,
}
_IDS_SHOWN_MAX = 10


def plan_body(plan: RecoveryPlan, policy: Policy = DEFAULT_POLICY) -> dict[str, object]:
    """A plan as a structured result."""
    totals = plan.totals
    left = 0
    if policy.leaves_writers(is_drain=plan.is_drain):
        left = sum(ledger.may_have_writer and not ledger.close_needs for ledger in plan.ledgers)
    return {
        "bookie_ids": list(plan.bookie_ids),
        "registered": list(plan.registered),
        "ledgers_scanned": plan.ledgers_scanned,
        "ledgers": totals.ledgers,
        "fragments": totals.fragments,
        "entries": totals.entries,
        "bytes": totals.bytes_to_copy,
        "ledgers_of_unknown_size": totals.ledgers_of_unknown_size,
        "ledgers_fenced_first": totals.ledgers_fenced_first - left,
        "ledgers_without_live_copy": totals.ledgers_without_live_copy,
        "ledgers_without_target": totals.ledgers_without_target,
        "ledgers_unreadable": len(plan.unreadable),
        "fragments_breaking_placement": rule_counts(totals.broken_rules),
        "targets": list(plan.targets),
    }


class PlanItems(Sequence[dict[str, Any]]):
    """The ledgers of a plan as items for the gate, made when they are needed, followed by other items."""

    def __init__(
        self,
        ledgers: Sequence[LedgerPlan],
        item_of: Callable[[LedgerPlan], dict[str, Any]],
        more: Sequence[dict[str, Any]] = (),
    ) -> None:
        self._ledgers = ledgers
        self._item_of = item_of
        self._more = more

    def __len__(self) -> int:
        return len(self._ledgers) + len(self._more)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        yield from map(self._item_of, self._ledgers)
        yield from self._more

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Any]]: ...
    def __getitem__(self, index: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        if isinstance(index, slice):
            rows: Iterator[LedgerPlan | dict[str, Any]] = chain(self._ledgers, self._more)
            found = islice(rows, *index.indices(len(self)))
            return [each if isinstance(each, dict) else self._item_of(each) for each in found]
        position = range(len(self))[index]
        count = len(self._ledgers)
        return self._item_of(self._ledgers[position]) if position < count else self._more[position - count]


def plan_row(ledger: LedgerPlan, policy: Policy = DEFAULT_POLICY, *, is_drain: bool = False) -> dict[str, Any]:
    """One ledger of a plan."""
    leaves_writers = policy.leaves_writers(is_drain=is_drain)
    is_unclosable = _is_unclosable(ledger, leaves_writers=leaves_writers)
    is_skipped = leaves_writers and ledger.may_have_writer
    return {
        "ledger_id": str(ledger.ledger_id),
        "expected_version": ledger.metadata_version,
        "state": ledger.ledger_state,
        "fragments": ledger.fragments,
        "entries": None if ledger.needs_fencing else ledger.entries,
        "bytes": ledger.bytes_to_copy,
        "surviving_copies": ledger.surviving_copies,
        "needs_fencing": ledger.needs_fencing and not is_skipped and not is_unclosable,
        "owner": None if ledger.open_segment is None else ledger.open_segment.owner,
        "created": None if ledger.open_segment is None else time_text(ledger.open_segment.created_ms),
        "problem": _problem(ledger, policy, is_unclosable=is_unclosable),
    }


def _problem(ledger: LedgerPlan, policy: Policy, *, is_unclosable: bool) -> str | None:
    """Why a part of the ledger will stay as it is, as far as the plan can know."""
    if ledger.surviving_copies == 0:
        return "some entries have no live copy"
    if is_unclosable:
        return _why_not_closed(ledger)
    if policy.open_ledgers is OpenLedgers.SKIP and ledger.may_have_writer:
        return "its last segment is open, and such ledgers are skipped"
    if ledger.why_no_target is not None:
        return f"too few bookies to copy to: {ledger.why_no_target}"
    if ledger.broken_rules and policy.config.placement is PlacementMode.STRICT:
        return f"every target breaks a placement rule: {ledger.broken_rules[0]}"
    return None


def _is_unclosable(ledger: LedgerPlan, *, leaves_writers: bool) -> bool:
    """Whether the ledger would have to be closed first, and cannot be."""
    return bool(ledger.close_needs) and not (leaves_writers and ledger.may_have_writer)


def _why_not_closed(ledger: LedgerPlan) -> str:

    return f"it cannot be closed: entries may exist that only {enumerated(ledger.close_needs)} can have"


def plan_summary(plan: RecoveryPlan, policy: Policy = DEFAULT_POLICY, drain_wait_s: float = 0.0) -> list[str]:
    """A plan in sentences, for the operator who must confirm it.

    ``drain_wait_s``: how long writers get to leave bookies that serve.
    """
    leaves_writers = policy.leaves_writers(is_drain=plan.is_drain)
    scanned = counted(plan.ledgers_scanned, "ledger")
    movable, partly, lost = PlanTotals(), PlanTotals(), 0
    opened: list[LedgerPlan] = []
    for ledger in plan.ledgers:  # only once: it is read from a database
        is_unclosable = _is_unclosable(ledger, leaves_writers=leaves_writers)
        if _problem(ledger, policy, is_unclosable=is_unclosable) is None:
            movable.add(ledger)
        elif (part := ledger.movable_part) is not None:
            partly.add_part(part)
        else:
            lost += not ledger.surviving_copies
        if ledger.needs_fencing:
            opened.append(ledger)
    summary = _movable_sentences(plan, movable, partly, lost, policy.pace)
    if not plan.ledgers:
        if plan.unreadable:
            scanned = f"{counted(plan.ledgers_scanned - len(plan.unreadable), 'ledger')} that can be read"
        summary.append(f"nothing to recover: none of {scanned} needs to be moved from {', '.join(plan.bookie_ids)}")
    summary += _open_ledger_sentences(opened, policy, is_drain=plan.is_drain, drain_wait_s=drain_wait_s)
    if plan.ledgers and plan.placement:
        summary.append(plan.placement)
    return summary


def plan_findings(
    plan: RecoveryPlan,
    policy: Policy = DEFAULT_POLICY,
    accepted: Mapping[int, GivenUpLedger] = {},
    idle: Mapping[str, Idle] = {},
) -> list[PlanFinding]:
    """What a recovery will leave as it is, and rules that it breaks. ``accepted``: losses that an operator accepted.
    ``idle``: see ``more_targets``."""
    leaves_writers = policy.leaves_writers(is_drain=plan.is_drain)
    lost: list[int] = []
    unclosable: list[LedgerPlan] = []
    blocked: list[LedgerPlan] = []
    for ledger in plan.ledgers:  # only once: it is read from a database
        loss = accepted.get(ledger.ledger_id)
        if not ledger.surviving_copies and (loss is None or not loss.is_whole):
            lost.append(ledger.ledger_id)
        if ledger.needs_fencing and _is_unclosable(ledger, leaves_writers=leaves_writers):
            unclosable.append(ledger)
        if ledger.why_no_target is not None:
            blocked.append(ledger)
    warnings = []
    if unclosable:
        number, why = counted(len(unclosable), "ledger"), _why_not_closed(unclosable[0])
        warnings.append(f"will leave the last segment of {number} as it is: {_first_names(unclosable)}; {why}")
    if blocked:
        remedy, _ = more_targets(targets_to_gain(idle, plan.bookie_ids), plan.targets if plan.is_restricted else ())
        warnings.append(
            f"{counted(len(blocked), 'ledger')} cannot be recovered completely: too few bookies to copy to "
            f"({blocked[0].why_no_target}); {remedy}"
        )
    if broken := rule_counts(plan.totals.broken_rules):
        warnings.append(
            f"no target keeps the placement rules for some fragments ({_rule_counts(broken)}); they are "
            + (
                "copied all the same"
                if policy.config.placement is PlacementMode.BEST_EFFORT
                else "left alone without --placement best-effort"
            )
        )
    if plan.unreadable:
        ids = shortened([failure.ledger_id for failure in plan.unreadable])
        warnings.append(
            f"will skip {counted(len(plan.unreadable), 'ledger')}, which may reference {', '.join(plan.bookie_ids)}: "
            f"the metadata cannot be read (ledger {ids}): {plan.unreadable[0].detail}"
        )
    found = [PlanFinding(Severity.WARNING, each) for each in warnings]
    if lost:
        sentence = (
            f"will not move {counted(len(lost), 'ledger')} completely unless a bookie comes back, or one outside "
            "of the ensembles has the entries, which only the run asks: some have no live copy "
            f"(ledger {shortened(lost)})"
        )
        found.insert(0, PlanFinding(Severity.CRITICAL, sentence))
    return found


def _unmovable_sentence(plan: RecoveryPlan, lost: int) -> str:
    verb, names, left = "move" if plan.is_drain else "recover", ", ".join(plan.bookie_ids), len(plan.ledgers) - lost
    if not lost:
        return f"will {verb} nothing now: {counted(left, 'ledger')} of {names} cannot be moved"
    sentence = (
        f"will {verb} {counted(lost, 'ledger')} of {names} only as far as bookies outside of the ensembles have the "
        "entries, which the run asks"
    )
    return sentence + (f"; {counted(left, 'other ledger')} cannot be moved now" if left else "")


def _movable_sentences(
    plan: RecoveryPlan, movable: PlanTotals, partly: PlanTotals, lost: int, pace: CopyPace
) -> list[str]:
    """``partly``: the ledgers of which only a part is moved. ``lost``: how many others have no live copy."""
    ledgers = movable.ledgers + partly.ledgers
    if not ledgers and plan.ledgers:
        return [_unmovable_sentence(plan, lost)]
    if not ledgers:
        return []
    verb = "move" if plan.is_drain else "recover"
    which = f"{ledgers} of {counted(plan.ledgers_scanned, 'ledger')} from {', '.join(plan.bookie_ids)}"
    if partly.ledgers:
        which += ", all of them in part" if not movable.ledgers else f", {partly.ledgers} of them in part"
    entries, bytes_to_copy = movable.entries + partly.entries, movable.bytes_to_copy + partly.bytes_to_copy
    sentence = (
        f"will {verb} {which}: {counted(movable.fragments + partly.fragments, 'fragment')}, "
        f"{counted(entries, 'entry', 'entries')}, about {size(bytes_to_copy)}, to copy to "
        f"{counted(len(plan.targets), 'bookie')}"
    )
    if movable.ledgers_of_unknown_size:
        sentence += f"; the size of {counted(movable.ledgers_of_unknown_size, 'open ledger')} is unknown"
    return [sentence, *time_to_copy(bytes_to_copy, pace, len(plan.targets))]


def time_to_copy(bytes_to_copy: int, pace: CopyPace, targets: int) -> tuple[str, ...]:
    """How long copies take at least, as far as their limits say, in a sentence; without a limit, at an assumed rate."""
    if not bytes_to_copy:
        return ("how long it takes shows only when it runs",)
    limits: list[tuple[float, str]] = []
    if pace.bytes_per_s:
        limits.append((bytes_to_copy / pace.bytes_per_s, f"{size(pace.bytes_per_s)}/s"))
    if pace.bytes_per_s_per_bookie and targets:
        rate = pace.bytes_per_s_per_bookie
        limits.append((bytes_to_copy / rate / targets, f"{size(rate)}/s for each bookie"))
    if limits:
        return time_at_limit(*max(limits)) or (f"the limit of {max(limits)[1]} delays it by less than 1 s",)
    time_s = bytes_to_copy / _ASSUMED_BYTES_PER_S
    assumed = "less than 1 s" if time_s < 1 else f"about {duration(time_s)}"
    at_rate = f"{assumed} at {size(_ASSUMED_BYTES_PER_S)}/s"
    return (f"copying would take {at_rate}; how fast it is shows only when it runs (no --copy-rate)",)


def _open_ledger_sentences(
    ledgers: Sequence[LedgerPlan], policy: Policy, *, is_drain: bool, drain_wait_s: float
) -> list[str]:
    """What happens to ledgers that are not closed, with their owners and ages."""
    leaves_writers = policy.leaves_writers(is_drain=is_drain)
    closable = [ledger for ledger in ledgers if not _is_unclosable(ledger, leaves_writers=leaves_writers)]
    written = [ledger for ledger in closable if ledger.may_have_writer]
    in_recovery = [ledger for ledger in closable if not ledger.may_have_writer]
    sentences = []
    if written:
        number, names = counted(len(written), "open ledger"), _first_names(written)
        if policy.open_ledgers is OpenLedgers.FENCE:
            sentences.append(f"will fence and close {number} first, which stops the writers: {names}")
        elif policy.open_ledgers is OpenLedgers.SKIP:
            sentences.append(f"will leave the last segment of {number} as it is: {names}")
        elif is_drain:
            sentences.append(f"will wait up to {drain_wait_s:g} s for the writers of {number}: {names}")
        else:
            sentences.append(
                f"will fence and close {number}, which stops the writers, unless these replace the bookie within "
                f"{policy.config.open_ledger_wait_s:g} s: {names}"
            )
    if in_recovery:
        sentences.append(
            f"will close {counted(len(in_recovery), 'ledger')} in recovery first: {_first_names(in_recovery)}"
        )
    return sentences


def _first_names(ledgers: Sequence[LedgerPlan]) -> str:
    names = [f"{ledger.ledger_id} ({_about(ledger.open_segment)})" for ledger in ledgers[:SHOWN_MAX]]
    return listed(names, total=len(ledgers))


def _about(open_segment: OpenSegment | None) -> str:
    assert open_segment is not None
    owner = open_segment.owner or "no known owner"
    if open_segment.created_ms is None:
        return f"{owner}, of unknown age"
    return f"{owner}, {duration(max(0.0, time.time() - open_segment.created_ms / 1000))} old"


def report_body(report: RecoveryReport) -> dict[str, object]:
    """A report as a structured result; ``ledgers`` is the sum of those repaired, by any process, deleted and failed."""
    return {
        "bookie_ids": list(report.bookie_ids),
        "ledgers": report.ledgers,
        "ledgers_repaired": report.ledgers_repaired,
        "ledgers_repaired_by_others": report.ledgers_repaired_by_others,
        "ledgers_deleted": report.ledgers_deleted,
        "ledgers_failed": report.ledgers_failed,
        "ledgers_unreadable": report.ledgers_unreadable,
        "ledgers_closed": report.ledgers_closed,
        "fragments": report.fragments,
        "entries": report.entries,
        "bytes": report.bytes_copied,
        "seconds": round(report.seconds, 3),
        "mebibytes_per_second": round(report.mebibytes_per_second, 3),
        "bad_copies_found": len(report.defects),
        "copies_breaking_placement": dict(report.broken_rules),
        "verify": report.verify.value,
    }


def failure_rows(report: RecoveryReport) -> list[dict[str, object]]:
    """One row per reason, with the ledgers, their owners and entries."""
    by_reason: dict[str, list[LedgerFailure]] = {}
    for failure in report.failures:
        by_reason.setdefault(failure.reason.value, []).append(failure)
    return [
        {
            "reason": reason,
            "count": len({failure.ledger_id for failure in failures}),
            "ledger_ids": [str(each) for each in dict.fromkeys(failure.ledger_id for failure in failures)],
            "ledgers": [
                {
                    "ledger_id": str(failure.ledger_id),
                    "owner": failure.owner,
                    "entries": [str(entries) for entries in failure.entries],
                    "detail": failure.bare_detail,
                }
                for failure in failures
            ],
        }
        for reason, failures in sorted(by_reason.items())
    ]


def failure_lines(row: dict[str, object]) -> list[dict[str, object]]:
    """The first failures of a reason as lines of a table, each once, and how many more there are."""
    ledgers = row["ledgers"]
    assert isinstance(ledgers, list)
    found = [{"reason": row["reason"], **each, "entries": shortened(each["entries"]) or None} for each in ledgers]
    lines = list({tuple(each.values()): each for each in found}.values())
    if len(lines) > SHOWN_MAX:
        more = {"reason": row["reason"], "detail": f"and {len(lines) - SHOWN_MAX:,} more (-o json has all)"}
        return [*lines[:SHOWN_MAX], more]
    return lines


def shortened(ledger_ids: object) -> str:
    """The first ids, and how many more there are."""
    assert isinstance(ledger_ids, (list, tuple))
    return listed(ledger_ids, _IDS_SHOWN_MAX)
