"""Plan of a recovery: one small record for each ledger, and the plan of all of them. Pure.

A plan may have millions of ledgers, so a record has counts and no segments: a recovery reads the metadata again, except
that of some ledgers, which is kept next to the records.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence

import msgspec

from bkctl.runtime.client.recovery import blocking_members
from bkctl.runtime.ledger.metadata import LedgerMetadata, LedgerState, Segment
from bkctl.runtime.ledger.owner import owner_of
from bkctl.runtime.ledger.write_set import write_set
from bkctl.runtime.metadata.store import Versioned
from bkctl.runtime.placement.rules import BrokenRule, PlacementRule
from bkctl.runtime.replication.judge.fragments import Fragment, fragments_naming, stripe_count
from bkctl.runtime.replication.judge.ledger_result import LedgerFailure
from bkctl.runtime.replication.judge.targets import TargetForecast, stripe_bytes

ENTRY_HEAD_BYTES = 40
"""Bytes of an entry in addition to its payload: the head and an average digest."""
_STATE_NAMES = {state: state.name.lower() for state in LedgerState}


class OpenSegment(msgspec.Struct, frozen=True, gc=False):
    """A ledger with a leaving bookie in its open last segment, as the plan saw it: it may have to be fenced."""

    segment: Segment
    owner: str | None
    created_ms: int | None


class MovablePart(msgspec.Struct, frozen=True, gc=False):
    """What a recovery copies of a ledger that it cannot move completely: fragments and copies of entries in it."""

    fragments: int
    entries: int
    bytes_to_copy: int


class LedgerPlan(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One ledger that references a leaving bookie.

    ``entries``: copies to make; ``bytes_to_copy``: their estimated bytes. Both are without the open last segment, whose
    end is known only after its close. ``surviving_copies``: live copies of the worst entry to copy; 0 means that
    entries may be lost. ``broken_rules``: placement rules that even the best targets break, for each fragment.
    """

    ledger_id: int
    metadata_version: int
    ledger_state: str
    fragments: int
    entries: int
    bytes_to_copy: int | None
    """None: the ledger is not closed, so its size is unknown."""
    surviving_copies: int
    open_segment: OpenSegment | None = None
    broken_rules: tuple[BrokenRule, ...] = ()
    why_no_target: str | None = None
    """Why the targets are not enough for some fragment, whatever the rules."""
    close_needs: tuple[str, ...] = ()
    """Bookies that are down without which its end cannot be found, so that it cannot be closed first."""
    movable_part: MovablePart | None = None
    """What is copied if the rest is left, as an open last segment may be. None: nothing, or nothing can be left."""

    @property
    def needs_fencing(self) -> bool:
        """Whether a leaving bookie is in its open last segment, so that the ledger must be closed first."""
        return self.open_segment is not None

    @property
    def may_have_writer(self) -> bool:
        """Whether a writer may still replace a leaving bookie itself: one that is in recovery is fenced already."""
        return self.needs_fencing and self.ledger_state == _STATE_NAMES[LedgerState.OPEN]


@dataclasses.dataclass
class PlanTotals:
    """Sums over the ledgers of a plan."""

    ledgers: int = 0
    fragments: int = 0
    entries: int = 0
    bytes_to_copy: int = 0
    ledgers_of_unknown_size: int = 0
    ledgers_fenced_first: int = 0
    ledgers_without_live_copy: int = 0
    ledgers_without_target: int = 0
    broken_rules: Counter[PlacementRule] = dataclasses.field(default_factory=Counter)
    """Fragments without targets that keep a rule, by rule."""

    def add(self, ledger: LedgerPlan) -> None:
        """Count one more ledger."""
        self.ledgers += 1
        self.fragments += ledger.fragments
        self.entries += ledger.entries
        self.bytes_to_copy += ledger.bytes_to_copy or 0
        self.ledgers_of_unknown_size += ledger.bytes_to_copy is None
        self.ledgers_fenced_first += ledger.needs_fencing and not ledger.close_needs
        self.ledgers_without_live_copy += ledger.surviving_copies == 0
        self.ledgers_without_target += ledger.why_no_target is not None
        self.broken_rules.update(broken.rule for broken in ledger.broken_rules)

    def add_part(self, part: MovablePart) -> None:
        """Count one more ledger, and what is copied of it."""
        self.ledgers += 1
        self.fragments += part.fragments
        self.entries += part.entries
        self.bytes_to_copy += part.bytes_to_copy


def totals_of(ledgers: Iterable[LedgerPlan]) -> PlanTotals:
    """Sums over some ledgers."""
    totals = PlanTotals()
    for ledger in ledgers:
        totals.add(ledger)
    return totals


class RecoveryPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Plan of a recovery. Planning writes nothing.

    ``bookie_ids``: the leaving bookies, which the recovery replaces. ``unreachable``: bookies that it never asks; these
    are the same ones if they are dead. ``ledgers`` are in the order of work: fewest surviving copies first, then the
    newest. ``unreadable``: ledgers with unreadable metadata, which may reference the bookies and stay unchanged.
    ``targets``: writable bookies to copy to; with ``is_restricted`` no others are used, even if they register later.
    ``registered``: leaving bookies that are still registered. If one of them is to be unreachable, the plan cannot be
    carried out yet. ``unreferenced``: leaving bookies that no ledger references. ``scanned_at_ns``: time on the
    monotonic clock when all metadata had been read. ``known_totals``: the sums over ``ledgers``, if they are known.
    ``placement``: a sentence that says where racks and groups come from; empty if there are none.
    ``scanned_metadata``: metadata of closed ledgers, for a run that follows; a run takes it out. ``is_of_ledgers``: the
    caller chose the ledgers, so others may reference the bookies. ``is_unfinished_job``: what an interrupted job left,
    which was to move all ledgers.
    """

    bookie_ids: tuple[str, ...]
    ledgers_scanned: int
    ledgers: Sequence[LedgerPlan]
    unreadable: tuple[LedgerFailure, ...]
    targets: tuple[str, ...]
    is_restricted: bool = False
    registered: tuple[str, ...] = ()
    unreachable: tuple[str, ...] = ()
    unreferenced: tuple[str, ...] = ()
    scanned_at_ns: int = 0
    known_totals: PlanTotals | None = None
    placement: str = ""
    scanned_metadata: dict[int, Versioned[LedgerMetadata]] = {}
    is_of_ledgers: bool = False
    is_unfinished_job: bool = False
    is_drain: bool = False

    @property
    def totals(self) -> PlanTotals:
        """Sums over all ledgers."""
        return self.known_totals or totals_of(self.ledgers)

    def without(self, ledger_ids: Collection[int]) -> RecoveryPlan:
        """The plan for all other ledgers."""
        if not ledger_ids:
            return self
        rest = tuple(ledger for ledger in self.ledgers if ledger.ledger_id not in ledger_ids)
        return msgspec.structs.replace(self, ledgers=rest, known_totals=None)


def plan_ledger(
    ledger_id: int,
    metadata: LedgerMetadata,
    version: int,
    leaving: frozenset[str],
    live: frozenset[str],
    forecast: Callable[[LedgerMetadata, Fragment], TargetForecast] = lambda *_: TargetForecast(),
    created_ms: int | None = None,
) -> LedgerPlan:
    """Plan for one ledger that references ``leaving`` bookies; ``live``: registered bookies that may be read. Pure."""
    fragments = fragments_naming(metadata, leaving)
    forecasts = [forecast(metadata, fragment) for fragment in fragments]
    complete = _part_of(metadata, [each for each in fragments if not each.is_open])
    is_open = any(fragment.is_open for fragment in fragments)
    surviving = min(_surviving_copies(metadata, fragment, live) for fragment in fragments)
    why_no_target = next((each.why_none for each in forecasts if each.why_none is not None), None)
    close_needs = tuple(sorted(blocking_members(metadata, live))) if is_open else ()
    broken_rules = tuple(broken for each in forecasts for broken in each.broken)
    part = open_segment = None
    if is_open:
        owner = owner_of(dict(metadata.custom_metadata))
        open_segment = OpenSegment(metadata.last_segment, owner, metadata.created_ms(created_ms))
    if is_open or not surviving or why_no_target is not None or broken_rules:
        free = [found for found, each in zip(fragments, forecasts, strict=True) if each == TargetForecast()]
        part = _part_of(metadata, [each for each in free if not each.is_open], live)
    return LedgerPlan(
        ledger_id=ledger_id,
        metadata_version=version,
        ledger_state=_STATE_NAMES[metadata.state],
        fragments=len(fragments),
        entries=complete.entries,
        bytes_to_copy=complete.bytes_to_copy if metadata.is_closed else None,
        surviving_copies=surviving,
        open_segment=open_segment,
        broken_rules=broken_rules,
        why_no_target=why_no_target,
        close_needs=close_needs,
        movable_part=part if part is not None and part.fragments else None,
    )


def _part_of(
    metadata: LedgerMetadata, fragments: Iterable[Fragment], live: frozenset[str] | None = None
) -> MovablePart:
    """What each leaving bookie has of these fragments; with ``live``, unless one of its entries has no live copy."""
    copies = [
        (fragment, index)
        for fragment in fragments
        for index in fragment.bookie_indexes
        if live is None or _surviving_copies(metadata, msgspec.structs.replace(fragment, bookie_indexes=(index,)), live)
    ]
    entries = sum(stripe_count(fragment.entries, index, *metadata.sizes) for fragment, index in copies)
    payload_bytes = sum(stripe_bytes(metadata, fragment, index) for fragment, index in copies)
    segments = {fragment.segment_index for fragment, _ in copies}
    return MovablePart(len(segments), entries, payload_bytes + entries * ENTRY_HEAD_BYTES)


def _surviving_copies(metadata: LedgerMetadata, fragment: Fragment, live: frozenset[str]) -> int:
    """Live copies of the worst entry that is stored at an affected index; Qw if there is none."""
    size, quorum = metadata.sizes
    used = size if fragment.is_open else min(size, fragment.entries.count)
    first = fragment.entries.first_entry_id
    counts = [
        len({fragment.ensemble[index] for index in indexes} & live)
        for indexes in (write_set(entry_id, size, quorum) for entry_id in range(first, first + used))
        if not set(indexes).isdisjoint(fragment.bookie_indexes)
    ]
    return min(counts, default=quorum)
