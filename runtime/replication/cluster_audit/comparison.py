"""What changed between an earlier report and a later one of the same cluster, and over a series of them. Pure.

The reports list the ledgers that miss copies or cannot be read. A ledger that only the earlier one lists was repaired,
or was deleted meanwhile: a report does not name the ledgers that have all copies. Of one that only the later one lists,
its time of creation says whether it had all copies before, or did not exist.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from bkctl.runtime.errors import ConflictError
from bkctl.runtime.replication.cluster_audit.inventory import InventoryWay, knows_all_copies
from bkctl.runtime.replication.cluster_audit.tables import AuditReport, AuditSummary, UnderReplicatedLedger
from bkctl.runtime.replication.judge.verdict import ReplicationState
from bkctl.storage.words import counted, enumerated

NEW, NEWLY_BAD, WORSE, BETTER, HEALED = "new", "newly_bad", "worse", "better", "healed"
CHANGES = (NEW, NEWLY_BAD, WORSE, BETTER, HEALED)
"""The kinds of changes, the one that needs attention first at the beginning. Newly bad: new or worse, it is unknown."""

LOST = "lost"
STATES = (
    ReplicationState.GIVEN_UP.value,
    ReplicationState.UNDER_REPLICATED.value, ReplicationState.AT_RISK.value, ReplicationState.UNREADABLE.value,
    ReplicationState.UNAVAILABLE.value, LOST,
)  # fmt: skip
"""States of listed ledgers, the worst last."""
_COUNTED = (
    "ledgers", "open_ledgers", "unavailable", "lost", "unreadable", "at_risk", "one_copy", "under_replicated",
    "unclosable", "unwritable", "unreplaceable", "misplaced", "too_few_racks", "outside_groups", "one_rack",
    "ack_quorum_one", "write_quorum_one", "payload_bytes", "copy_bytes",
)  # fmt: skip
_COPIES = {
    "bad_copies": ("bad copy", "bad copies"),
    "lost_entries": ("entry without a good copy", "entries without a good copy"),
}
"""Counts of inventories, in words."""


class LedgerChange(msgspec.Struct, frozen=True):
    """A ledger whose state changed. ``before`` and ``now``: a state, ``lost``, or None if it did not exist, or if that
    is unknown."""

    ledger_id: int
    change: str
    before: str | None
    now: str | None
    owner: str | None = None
    missing_bookies: tuple[str, ...] = ()


class CountChange(msgspec.Struct, frozen=True):
    """A count of the summary in both reports; None: it was unknown."""

    name: str
    before: int | None
    now: int | None


class AuditChanges(msgspec.Struct, frozen=True, kw_only=True):
    """``before_ms``: when the earlier report was made. ``ledgers``: by kind of change, the worst first.

    ``has_all``: whether both reports list all of their ledgers. If not, one that is not listed may have been left out:
    then ledgers count as newly bad, or worse than replicated, only if the earlier list has all, and as healed only if
    the later one has.
    ``has_unknown_copies``: both are inventories, but do not know all copies in the same way.
    """

    before_ms: int
    now_ms: int
    counts: tuple[CountChange, ...]
    ledgers: tuple[LedgerChange, ...]
    bookies_gone: tuple[str, ...]
    bookies_back: tuple[str, ...]
    has_all: bool
    has_unknown_copies: bool = False

    @property
    def different_counts(self) -> list[CountChange]:
        """The counts that changed."""
        return [each for each in self.counts if each.before != each.now]

    def number(self, change: str) -> int:
        """How many ledgers changed in this way."""
        return sum(each.change == change for each in self.ledgers)

    def __str__(self) -> str:
        """In one sentence, like "3 ledgers worse and 1 ledger healed or deleted"; bookies first."""
        parts = [f"{counted(len(ids), 'bookie')} {what}" for ids, what in (
            (self.bookies_gone, "gone"), (self.bookies_back, "new or back"))  if ids]  # fmt: skip
        numbers = {change: self.number(change) for change in CHANGES}
        parts += [_counted_ledgers(change, number) for change, number in numbers.items() if number]
        for each in self.different_counts:
            if each.name in _COPIES and each.before is not None and each.now is not None:
                change, nouns = each.now - each.before, _COPIES[each.name]
                number = f"{abs(change):,} {'more' if change > 0 else 'fewer'}"
                parts.append(f"{number} {nouns[abs(change) > 1]}")
        changes = enumerated(parts) if parts else "no ledger is better or worse"
        return f"{changes}; copies were not compared" if self.has_unknown_copies else changes


def _counted_ledgers(change: str, number: int) -> str:
    """How many ledgers changed in this way; of those that the earlier report does not list, what is wrong with them."""
    misses = "misses" if number == 1 else "miss"
    if change == NEW:
        return f"{counted(number, 'new ledger')} that {misses} copies or cannot be read"
    if change == NEWLY_BAD:
        return f"{counted(number, 'ledger')} that newly {misses} copies or cannot be read"
    return f"{counted(number, 'ledger')} {change}" + (" or deleted" if change == HEALED else "")


class _State(msgspec.Struct, frozen=True):
    """What a list says about a ledger; a larger ``rank`` is worse."""

    name: str
    rank: tuple[int, int]
    owner: str | None = None
    missing_bookies: tuple[str, ...] = ()
    created_ms: int | None = None


def require_comparable(before: AuditReport, instance_id: str | None, path: str) -> None:
    """ConflictError if the earlier report, at ``path``, is of a cluster with another identity."""
    known = before.summary.instance_id
    if known is not None and instance_id is not None and known != instance_id:
        raise ConflictError(
            f"{path} is the report of the cluster with the instance id {known}, but this one has {instance_id}: "
            "compare reports of the same cluster"
        )


def compare(before: AuditReport, now: AuditReport) -> AuditChanges:
    """What is different in ``now``."""
    old, new = _states(before), _states(now)
    found = [_change(each, old.get(each), new.get(each), before) for each in {*old, *new}]
    changes = [each for each in found if each is not None and not _may_be_cut_off(each, old, before, now)]
    live_before, live_now = _live(before), _live(now)
    are_comparable = _are_copies_comparable(before.summary, now.summary)
    names = (*_COUNTED, *(_COPIES if are_comparable else ()))
    has_inventories = before.summary.inventory is not None and now.summary.inventory is not None
    return AuditChanges(
        before_ms=before.summary.judged_at_ms,
        now_ms=now.summary.judged_at_ms,
        counts=tuple(CountChange(name, getattr(before.summary, name), getattr(now.summary, name)) for name in names),
        ledgers=tuple(sorted(changes, key=_worst_first)),
        bookies_gone=tuple(sorted(live_before - live_now)),
        bookies_back=tuple(sorted(live_now - live_before)),
        has_all=not before.is_truncated and not now.is_truncated,
        has_unknown_copies=has_inventories and not are_comparable,
    )


def _are_copies_comparable(before: AuditSummary, now: AuditSummary) -> bool:
    """Whether both inventories know all copies in the same way: a copy that was not examined is not repaired."""
    is_whole = all(knows_all_copies(msgspec.structs.asdict(each)) for each in (before, now))
    return is_whole and before.inventory == now.inventory != InventoryWay.SAMPLED.value


def _may_be_cut_off(change: LedgerChange, old: Container[int], before: AuditReport, now: AuditReport) -> bool:
    """Whether the ledger may be listed in the same state, in the rest of a list that was cut."""
    if change.change == HEALED:
        return now.is_truncated
    return before.is_truncated and change.change != NEW and change.ledger_id not in old


def _change(ledger_id: int, old: _State | None, now: _State | None, before: AuditReport) -> LedgerChange | None:
    known, name = now or old, None if old is None else old.name
    assert known is not None
    if now is None:
        change = HEALED
    elif old is None:
        change = _change_of_unlisted(now, before)
        name = ReplicationState.REPLICATED.value if change == WORSE else None
    elif now.rank == old.rank:
        return None
    else:
        change = WORSE if now.rank > old.rank else BETTER
    return LedgerChange(
        ledger_id,
        change,
        before=name,
        now=None if now is None else now.name,
        owner=known.owner,
        missing_bookies=() if now is None else now.missing_bookies,
    )


def _change_of_unlisted(now: _State, before: AuditReport) -> str:
    """Of a ledger that the earlier report does not list."""
    summary = before.summary
    as_of_ms = summary.judged_at_ms if summary.file_written_ms is None else summary.file_written_ms
    if now.created_ms is None:
        return NEWLY_BAD
    return NEW if now.created_ms > as_of_ms else WORSE


def _states(report: AuditReport) -> dict[int, _State]:
    found = {row.ledger_id: _state(row) for row in report.under_replicated}
    unreadable = ReplicationState.UNREADABLE.value
    rank = STATES.index(unreadable), 0
    return found | {row.ledger_id: _State(unreadable, rank) for row in report.unreadable}


def _state(row: UnderReplicatedLedger) -> _State:
    name = LOST if row.is_lost else row.replication
    rank = STATES.index(name), -row.live_copies_min
    return _State(name, rank, row.owner, row.missing_bookies, row.created_ms)


def _worst_first(change: LedgerChange) -> tuple[int, int, int]:
    state = change.now or change.before
    assert state is not None
    return CHANGES.index(change.change), -STATES.index(state), change.ledger_id


def _live(report: AuditReport) -> set[str]:
    return {each.bookie_id for each in report.bookies if each.mode != "unregistered"}


def listed_changes(changes: Iterable[LedgerChange]) -> list[dict[str, object]]:
    """Rows of structured output and of tables."""
    return [msgspec.to_builtins(each) | {"ledger_id": str(each.ledger_id)} for each in changes]


class AuditRun(msgspec.Struct, frozen=True, kw_only=True):
    """What one report adds to the trend. ``run``: the name of its directory.

    ``missing_copies``: ledgers with fewer live copies than Qw, ``lost`` ones included. ``copies`` and ``live_copies``
    are of entries of complete segments. ``bad_copies``, ``lost_entries``: None unless an inventory has read all copies.
    Bytes are those of ``AuditReport``: of all copies, for each owner and bookie.
    """

    run: str
    judged_at_ms: int
    instance_id: str | None
    ledgers: int
    missing_copies: int
    lost: int
    copies: int
    live_copies: int
    copy_bytes: int
    bad_copies: int | None = None
    lost_entries: int | None = None
    owners: dict[str, int]
    bookies: dict[str, int]


def run_of(report: AuditReport, run: str) -> AuditRun:
    """The run that made this report."""
    rows = msgspec.to_builtins([report.summary, report.bookies, report.owners])
    return run_of_rows(run, *rows)


def run_of_rows(
    run: str, summary: Mapping[str, Any], bookies: Sequence[Mapping[str, Any]], owners: Sequence[Mapping[str, Any]]
) -> AuditRun:
    """The run from rows of its tables; older reports have no ``instance_id`` or inventory."""
    is_whole = summary.get("inventory") == InventoryWay.ALL_ENTRIES.value
    is_whole = is_whole and knows_all_copies(summary)
    return AuditRun(
        run=run,
        judged_at_ms=summary["judged_at_ms"],
        instance_id=summary.get("instance_id"),
        ledgers=summary["ledgers"],
        missing_copies=summary["under_replicated"] + summary["at_risk"] + summary["unavailable"],
        lost=summary["lost"],
        copies=sum(each["entry_copies"] for each in bookies),
        live_copies=sum(each["entry_copies"] for each in bookies if each["mode"] != "unregistered"),
        copy_bytes=summary["copy_bytes"],
        bad_copies=summary["bad_copies"] if is_whole else None,
        lost_entries=summary["lost_entries"] if is_whole else None,
        owners={each["owner"]: each["copy_bytes"] for each in owners},
        bookies={each["bookie_id"]: each["payload_bytes"] for each in bookies},
    )


def earlier_runs(runs: Iterable[AuditRun], before_ms: int) -> tuple[AuditRun, ...]:
    """The runs before this time, the oldest first; ConflictError if they are of different clusters."""
    found = sorted((each for each in runs if each.judged_at_ms < before_ms), key=lambda each: each.judged_at_ms)
    known = {each.instance_id: each.run for each in found if each.instance_id is not None}
    if len(known) > 1:
        first, second = list(known.items())[:2]
        raise ConflictError(
            f"{first[1]} is of the cluster with the instance id {first[0]}, and {second[1]} of {second[0]}: keep the "
            "reports of each cluster in a directory of its own"
        )
    return tuple(found)
