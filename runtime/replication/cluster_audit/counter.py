"""Counts judged ledgers into totals, and makes the report of them. Pure.

Most ledgers of a cluster have one of few shapes. What follows from the shape is found out once, and added when all of
them are counted, or when the shapes become too many.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence, Set
from functools import lru_cache

from bkctl.runtime.ledger.owner import owner_group
from bkctl.runtime.replication.cluster_audit.facts import AuditFacts, KnownBookies
from bkctl.runtime.replication.cluster_audit.shape import LedgerShape, ShapeKey, outcomes, problems_of, shape_key
from bkctl.runtime.replication.cluster_audit.tables import (
    NO_OWNER,
    BookieReplication,
    GroupReplication,
    ListedLedger,
    LossEffect,
    MisplacedLedger,
    OpenLedgerAges,
    OwnerReplication,
    RackReplication,
    UnderReplicatedLedger,
    UnreadableLedger,
)
from bkctl.runtime.replication.cluster_audit.totals import AGES, UNKNOWN_AGE, AuditTotals, loss_key
from bkctl.runtime.replication.judge.no_live_copy import startable_holders
from bkctl.runtime.replication.judge.verdict import (
    UNDER_REPLICATED_STATES,
    LedgerVerdict,
    ReplicationRow,
    ReplicationState,
    WriteSetRow,
    judge_rows,
)

SHAPES_MAX = 10_000
"""Shapes that are counted at the same time."""
_LISTED_STATES = UNDER_REPLICATED_STATES | {ReplicationState.GIVEN_UP}
_ENDED_BY_METADATA = ("unclosable", "unwritable", "unreplaceable", "misplaced", "one_rack", "rack_unknown")
_owner_group = lru_cache(maxsize=4096)(owner_group)


class _CountedShape(LedgerShape):
    """A shape, what follows from it, and how many ledgers have it, with the sums of their entries and bytes."""

    def __init__(self, verdict: LedgerVerdict, known: KnownBookies) -> None:
        rows = verdict.rows
        super().__init__(rows, known)
        self.problems = problems = problems_of(self, known)
        self.outcomes = tuple(outcomes(self, known, problems))
        self.live_copies = [row.live_copies for row in rows]
        self.under_replicated = [row.replication in UNDER_REPLICATED_STATES for row in rows]
        self.widths = [len(set(row.write_set.write_set)) for row in rows]
        self.findings = {
            "open_ledgers": self.ledger_state != "closed",
            "in_recovery_ledgers": self.ledger_state == "in_recovery",
            "one_copy": any(row.live_copies == 1 < row.expected_copies for row in rows),
            "lost": problems.lost_ledgers,
            "unclosable": self.is_closable is False,
            "unwritable": problems.unwritable_ledgers,
            "unreplaceable": problems.unreplaceable_ledgers,
            "ack_quorum_one": self.ack_quorum_size == 1,
            "write_quorum_one": self.write_quorum_size == 1,
            "misplaced": self.misplaced_write_sets > 0,
            "too_few_racks": self.racks_min is not None,
            "outside_groups": bool(self.outside_bookies),
            "one_rack": self.has_one_rack,
            "rack_unknown": self.has_unknown_rack,
        }
        """By the counts of ``AuditTotals``."""
        self.count = 0
        self.entries = [0] * len(rows)
        self.bytes = [0] * len(rows)


class AuditCounter:
    """Add the verdict on every ledger, then take the ``totals``."""

    def __init__(self, facts: AuditFacts, totals: AuditTotals | None = None) -> None:
        """``totals``: where to begin, with limits of its own."""
        self._known = KnownBookies(facts)
        self._now_ms = facts.now_ms
        self._totals = AuditTotals() if totals is None else totals
        self._shapes: dict[ShapeKey, _CountedShape] = {}

    def judge(self, rows: Sequence[WriteSetRow]) -> LedgerVerdict:
        """The verdict on the write sets of one ledger, by what is known about the bookies."""
        note = self._known.facts.given_up.get(rows[0].ledger_id)
        return judge_rows(rows, self._known.live, note)

    def add(self, verdict: LedgerVerdict) -> None:
        """Count one ledger."""
        first = verdict.rows[0].write_set
        if verdict.replication is ReplicationState.UNREADABLE:
            self._totals.count("unreadable")
            self._totals.list_ledger("unreadable", UnreadableLedger(first.ledger_id, first.problem or ""))
            return
        shape = self._shape_of(verdict)
        shape.count += 1
        entries = copy_bytes = 0
        for index, row in enumerate(verdict.rows):
            write_set = row.write_set
            row_entries, row_bytes = write_set.entry_count or 0, write_set.payload_bytes or 0
            shape.entries[index] += row_entries
            shape.bytes[index] += row_bytes
            entries += row_entries
            copy_bytes += row_bytes * shape.widths[index]
        totals = self._totals
        totals.count(verdict.replication.value)
        totals.count("copy_bytes", copy_bytes)
        totals.count("payload_bytes", first.length or 0)
        size = first.ensemble_size or 0
        totals.sizes[size] = totals.sizes.get(size, 0) + 1
        owner = totals.owner(NO_OWNER if first.owner is None else _owner_group(first.owner))
        owner.ledgers += 1
        owner.copy_bytes += copy_bytes
        owner.payload_bytes += first.length or 0
        if first.ledger_state == "closed":
            totals.count("entries", entries)
            owner.entries += entries
        else:
            self._add_open(first, shape, owner)
        self._list(verdict, first, shape, owner)

    def has_finding(self, verdict: LedgerVerdict) -> bool:
        """Whether a ledger that can be read, and misses no copy, has a finding that a change of its metadata ends: it
        cannot be closed or written, no bookie can replace one of its own, or it breaks a rule of placement or may."""
        findings = self._shape_of(verdict).findings
        return any(findings[each] for each in _ENDED_BY_METADATA)

    def _shape_of(self, verdict: LedgerVerdict) -> _CountedShape:
        key = shape_key(verdict.rows)
        shape = self._shapes.get(key)
        if shape is None:
            if len(self._shapes) >= SHAPES_MAX:
                self._fold()
            shape = self._shapes[key] = _CountedShape(verdict, self._known)
        return shape

    def _add_open(self, first: WriteSetRow, shape: _CountedShape, owner: OwnerReplication) -> None:
        owner.open_ledgers += 1
        if first.created_ms is not None:
            oldest = owner.oldest_open_ms
            owner.oldest_open_ms = first.created_ms if oldest is None else min(oldest, first.created_ms)
        is_unclosable = shape.is_closable is False
        owner.unclosable += is_unclosable
        age = age_range(self._now_ms, first.created_ms)
        ages = self._totals.ages.setdefault(age, OpenLedgerAges(age))
        if shape.is_open:
            ages.open_ledgers += 1
        else:
            ages.in_recovery_ledgers += 1
        ages.unclosable_ledgers += is_unclosable
        self._totals.list_ledger("oldest_open", _listed(first, shape))

    def _list(self, verdict: LedgerVerdict, first: WriteSetRow, shape: _CountedShape, owner: OwnerReplication) -> None:
        """Put the ledger on the lists of its findings."""
        totals = self._totals
        if verdict.replication in _LISTED_STATES:
            state = verdict.replication.value
            if verdict.replication in UNDER_REPLICATED_STATES:
                setattr(owner, state, getattr(owner, state) + 1)
            found = under_replicated_ledger(
                verdict,
                is_closable=shape.is_closable,
                is_lost=shape.problems.lost_ledgers,
                may_return=self._known.may_return,
                writable=self._known.writable,
            )
            totals.list_ledger("under_replicated", found)
        if shape.ack_quorum_size == 1:
            owner.ack_quorum_one += 1
            totals.list_ledger("ack_quorum_one", _listed(first, shape))
        if shape.misplaced_write_sets:
            owner.misplaced += 1
            totals.list_ledger("misplaced", _misplaced(first, shape))

    @property
    def totals(self) -> AuditTotals:
        """The sums of all ledgers so far."""
        self._fold()
        self._totals.shorten()
        return self._totals

    def _fold(self) -> None:
        """Add what follows from the shapes, and begin again."""
        for shape in self._shapes.values():
            if not shape.count:
                continue  # of a ledger that was looked up, and has another shape now
            for name, is_found in shape.findings.items():
                self._totals.count(name, shape.count * is_found)
            self._fold_bookies_and_racks(shape)
            self._fold_groups(shape)
            for kind, name, problems in shape.outcomes:
                effect = self._totals.losses.setdefault(loss_key(kind, name), LossEffect(kind, name))
                for counter, is_found in problems._asdict().items():
                    setattr(effect, counter, getattr(effect, counter) + shape.count * is_found)
        self._shapes.clear()

    def _fold_bookies_and_racks(self, shape: _CountedShape) -> None:
        bookies, racks, count = self._totals.bookies, self._totals.racks, shape.count
        for bookie_id in shape.members:
            bookie = bookies.setdefault(bookie_id, BookieReplication(bookie_id))
            bookie.ledgers += count
            bookie.open_ledgers += count * (bookie_id in shape.ensemble)
        last_copies: set[str] = set()
        for index, write_set in enumerate(shape.write_sets):
            entries, payload_bytes = shape.entries[index], shape.bytes[index]
            under_replicated = count * shape.under_replicated[index]
            for bookie_id in shape.members.intersection(write_set):
                bookie = bookies[bookie_id]
                bookie.write_sets += count
                bookie.under_replicated_write_sets += under_replicated
                bookie.entry_copies += entries
                bookie.payload_bytes += payload_bytes
            if shape.live_copies[index] == 1:
                last_copies |= self._known.live.intersection(write_set)
        for bookie_id in last_copies:
            bookies[bookie_id].last_copy_ledgers += count
        if self._known.has_racks:
            for rack in {self._known.rack_of(each) for each in shape.members}:
                racks.setdefault(rack or "", RackReplication(rack)).ledgers += count
            for rack in {self._known.rack_of(each) for each in shape.ensemble}:
                racks[rack or ""].open_ledgers += count

    def _fold_groups(self, shape: _CountedShape) -> None:
        """Sums by isolation group, of those that have bookies: metadata may name any number of others."""
        if shape.isolation is not None:
            for name in shape.isolation.primary & self._known.groups.keys():
                group = self._totals.groups.setdefault(name, GroupReplication(name))
                group.ledgers += shape.count
                group.outside_ledgers += shape.count * bool(shape.outside_bookies)


def age_range(now_ms: int, created_ms: int | None) -> str:
    """The range of ages of a ledger. One that was created after ``now_ms``, by another clock, has the age 0."""
    if created_ms is None:
        return UNKNOWN_AGE
    age_s = (now_ms - created_ms) / 1000
    return next(name for name, end_s in AGES if end_s is None or age_s < end_s)


def under_replicated_ledger(
    verdict: LedgerVerdict,
    *,
    is_closable: bool | None,
    is_lost: bool,
    may_return: Callable[[str], bool],
    writable: Set[str],
) -> UnderReplicatedLedger:
    """Summarize a ledger of which at least one write set has missing copies."""
    affected = [row for row in verdict.rows if row.replication in UNDER_REPLICATED_STATES]
    affected = affected or [row for row in verdict.rows if row.replication is ReplicationState.GIVEN_UP]
    affected = affected or [*verdict.rows]  # it was closed with a loss, which no write set shows
    first = affected[0].write_set
    assert first.ack_quorum_size is not None
    without_copy = [row for row in affected if row.replication is ReplicationState.UNAVAILABLE]
    ensembles, missing = defaultdict[int | None, set[str]](set), defaultdict[int | None, set[str]](set)
    for row in verdict.rows:
        ensembles[row.write_set.segment_first_entry_id].update(row.write_set.write_set)
        missing[row.write_set.segment_first_entry_id].update(row.missing_bookies)
    lost_segments = {row.write_set.segment_first_entry_id for row in without_copy}
    return UnderReplicatedLedger(
        *_head(first),
        replication=verdict.replication.value,
        expected_copies=affected[0].expected_copies,
        live_copies_min=min(row.live_copies for row in affected),
        ack_quorum_size=first.ack_quorum_size,
        write_sets=len(affected),
        entry_count=sum(row.write_set.entry_count or 0 for row in affected),
        payload_bytes=sum(row.write_set.payload_bytes or 0 for row in affected),
        is_closable=is_closable,
        is_lost=is_lost,
        missing_bookies=_missing_bookies(affected),
        no_copy_bookies=tuple(sorted({bookie_id for row in without_copy for bookie_id in row.write_set.write_set})),
        ensemble_size=first.ensemble_size or 0,
        no_copy_sets=tuple(sorted(tuple(sorted(each)) for each in startable_holders(affected, may_return))),
        has_source=any(row.write_set.segment_first_entry_id not in lost_segments for row in affected),
        has_target=any(len(writable - ensembles[each]) >= len(gone) for each, gone in missing.items() if gone),
    )


def _missing_bookies(rows: Iterable[ReplicationRow]) -> tuple[str, ...]:
    return tuple(sorted({bookie_id for row in rows for bookie_id in row.missing_bookies}))


def _misplaced(first: WriteSetRow, shape: _CountedShape) -> MisplacedLedger:
    places = shape.misplaced_write_sets, shape.racks_min, first.length or 0
    return MisplacedLedger(*_head(first), *places, *shape.demanded, shape.outside_bookies)


def _listed(first: WriteSetRow, shape: _CountedShape) -> ListedLedger:
    quorums = shape.write_quorum_size, shape.ack_quorum_size
    return ListedLedger(*_head(first), first.ensemble_size or 0, *quorums, first.length or 0, shape.is_closable)


def _head(first: WriteSetRow) -> tuple[int, str, str | None, int | None]:
    """The fields of ``LedgerHead``."""
    assert first.ledger_state is not None
    return first.ledger_id, first.ledger_state, first.owner, first.created_ms
