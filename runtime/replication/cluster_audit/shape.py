"""What ledgers with the same write sets have in common. It is found out once, however many there are. Pure.

This is how they are spread over racks, whether they are in their isolation groups, and what they can still do after
the loss of bookies, exactly over their write sets. A lost bookie never returns. One that is down and has a cookie may
return with its copies. So a write set without a live copy is unreadable if a bookie of it is down, and lost if all of
them are lost, or were removed from the cluster.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple, TypeAlias

from bkctl.runtime.placement.rules import judge_members, places_of
from bkctl.runtime.replication.cluster_audit.facts import KnownBookies
from bkctl.runtime.replication.judge.verdict import ReplicationRow, ReplicationState, has_enough_answers

ShapeKey: TypeAlias = tuple[object, ...]


def shape_key(rows: Sequence[ReplicationRow]) -> ShapeKey:
    """Equal for ledgers of one shape: state, quorums, write sets, what of these was given up, and isolation groups."""
    first = rows[0].write_set
    last = 0
    if first.ledger_state != "closed":
        last = sum(row.write_set.segment_last_entry_id is None for row in rows)
    quorums = first.write_quorum_size, first.ack_quorum_size
    write_sets = [row.write_set.write_set for row in rows]
    for index, row in enumerate(rows):
        if row.removed or row.replication is ReplicationState.GIVEN_UP:
            write_sets.append(("needed", str(index), *row.needed))
    if first.isolation is None:
        return (first.ledger_state, *quorums, last, *write_sets)
    demand, segments = (first.isolation, first.ensemble_size), None
    if first.ensemble_size != first.write_quorum_size:  # otherwise a segment has one write set
        # Groups are judged for each segment, so it matters which write sets are of the same one.
        segments = tuple(len(each) for each in _segments(rows))
    return (first.ledger_state, *quorums, last, *write_sets, demand, segments)


def _segments(rows: Sequence[ReplicationRow]) -> list[list[ReplicationRow]]:
    """The rows of each segment that has write sets."""
    segments = groupby(rows, key=lambda row: row.write_set.segment_first_entry_id)
    return [list(found) for first_entry_id, found in segments if first_entry_id is not None]


class LedgerShape:
    """The write sets of a ledger, without its entries and bytes, and how they are spread over racks and groups.

    No count of racks is above 0 if racks do not matter or are unknown; the same of groups.
    """

    def __init__(self, rows: Sequence[ReplicationRow], known: KnownBookies) -> None:
        first = rows[0].write_set
        assert first.ledger_state is not None
        assert first.write_quorum_size is not None
        assert first.ack_quorum_size is not None
        self.ledger_state = first.ledger_state
        self.write_quorum_size = first.write_quorum_size
        self.ack_quorum_size = first.ack_quorum_size
        self.write_sets = tuple(row.write_set.write_set for row in rows if row.write_set.write_set)
        self.needed_sets = tuple(
            row.needed for row in rows if row.live_copies or row.replication is not ReplicationState.GIVEN_UP
        )
        """Those whose entries were not given up, without the bookies that were."""
        self.members = frozenset(bookie_id for write_set in self.needed_sets for bookie_id in write_set)
        self.is_open = self.ledger_state == "open"
        """Whether it accepts writes."""
        self.is_closable: bool | None = None
        """Whether the registered bookies can prove where it ends; None if it is closed."""
        self.last_write_sets: tuple[tuple[str, ...], ...] = ()
        """Those of the last segment, of a ledger that is not closed."""
        if self.ledger_state != "closed":
            last = [row.write_set for row in rows if row.write_set.segment_last_entry_id is None]
            self.last_write_sets = tuple(each.write_set for each in last)
            quorums = self.write_quorum_size, self.ack_quorum_size
            self.is_closable = all(has_enough_answers(each, *quorums, known.live) for each in self.last_write_sets)
        self.ensemble = frozenset(bookie_id for write_set in self.last_write_sets for bookie_id in write_set)
        """Bookies of the last segment, of a ledger that is not closed."""

        self.isolation = first.isolation
        """The groups that it demands; None: none."""
        self.demanded = first.isolation_groups or (), first.secondary_groups or ()
        """Their names, sorted: primary ones, secondary ones."""
        self.outside_bookies: tuple[str, ...] = ()
        """Bookies of write sets that are not in these groups, sorted."""
        self.misplaced_write_sets = 0
        """Write sets that break a rule whatever the racks are that are unknown."""
        self.racks_min: int | None = None
        """Racks of the write set that spans the fewest, of those that break a rule about racks; None: none does."""
        self.has_one_rack = False
        """Some write set of several bookies is in one rack."""
        self.has_unknown_rack = False
        """Some write set may break a rule: the rack of a bookie is unknown."""
        outside = self._outside_groups(rows, known)
        self.outside_bookies = tuple(sorted(frozenset().union(*outside)))
        for index, write_set in enumerate(self.write_sets):
            is_broken = known.rules.has_racks and self._breaks_racks(dict.fromkeys(write_set), known)
            self.misplaced_write_sets += is_broken or bool(outside and not outside[index].isdisjoint(write_set))

    def _outside_groups(self, rows: Sequence[ReplicationRow], known: KnownBookies) -> list[frozenset[str]]:
        """For each write set, the bookies of its segment that are not in the groups; empty if no group matters."""
        if self.isolation is None or not known.groups:
            return []
        size, found = rows[0].write_set.ensemble_size or 0, []
        for segment in _segments(rows):
            members = frozenset(bookie_id for row in segment for bookie_id in row.write_set.write_set)
            found += [known.outside_groups(self.isolation, members, size)] * len(segment)
        return found

    def _breaks_racks(self, members: dict[str, None], known: KnownBookies) -> bool:
        racks = [known.rack_of(each) for each in members]
        unknown = racks.count(None)
        known_racks = set(racks) - {None}
        is_broken = known.rules.needs_known_rack and any(judge_members(known.view, known.rules, members, None))
        for spread in known.spreads:
            missing = min(spread.minimum, self.write_quorum_size) - len(places_of(spread, members))
            is_broken = is_broken or missing > unknown
            self.has_unknown_rack = self.has_unknown_rack or 0 < missing <= unknown
        self.has_one_rack = self.has_one_rack or (len(members) > 1 and not unknown and len(known_racks) == 1)
        if is_broken:
            self.racks_min = min(len(members) if self.racks_min is None else self.racks_min, len(known_racks))
        return is_broken


class LedgerProblems(NamedTuple):
    """What is wrong with a ledger, by the counters of ``LossEffect``. Unreadable ones include those that are lost."""

    unwritable_ledgers: bool
    unreplaceable_ledgers: bool
    unreadable_ledgers: bool
    lost_ledgers: bool


def problems_of(
    shape: LedgerShape,
    known: KnownBookies,
    lost: frozenset[str] = frozenset(),
    lost_writable: frozenset[str] = frozenset(),
) -> LedgerProblems:
    """What is wrong with a ledger without ``lost``: bookies of it. ``lost_writable``: all writable bookies that are
    lost."""
    is_unreadable = is_lost = False
    for write_set in filter(None, shape.needed_sets):
        left = [each for each in write_set if each not in lost]
        if known.live.isdisjoint(left):
            is_unreadable = True
            if not any(known.may_return(each) for each in left):
                is_lost = True
    is_unwritable = is_unreplaceable = False
    if shape.is_open:
        members = shape.ensemble & known.writable
        left_members = members - lost
        is_unwritable = any(
            sum(each in left_members for each in write_set) < shape.ack_quorum_size
            for write_set in shape.last_write_sets
        )
        needed = len(shape.ensemble) - len(left_members)
        outside = len(known.writable) - len(lost_writable | members)
        is_concerned = not lost or len(left_members) < len(members)
        is_unreplaceable = is_concerned and needed > outside
    return LedgerProblems(is_unwritable, is_unreplaceable, is_unreadable, is_lost)


def outcomes(shape: LedgerShape, known: KnownBookies, now: LedgerProblems) -> Iterator[tuple[str, str, LedgerProblems]]:
    """Every loss of one bookie, of one rack, and of those asked about, that makes something worse for a ledger: its
    kind, its name, and what becomes wrong."""
    bookies, racks = _candidates(shape, known)
    supposed = [("bookie", each, frozenset((each,)), known.writable & {each}) for each in bookies]
    for rack in racks:
        lost = frozenset(each for each in shape.members if known.rack_of(each) == rack)
        supposed.append(("rack", rack, lost, known.writable_in_rack.get(rack, frozenset())))
    for loss, writable in known.what_if:
        lost = frozenset(each for each in shape.members if known.is_part_of(loss, each))
        supposed.append(("set", loss.name, lost, writable))
    for kind, name, lost, lost_writable in supposed:
        after = problems_of(shape, known, lost, lost_writable)
        became = LedgerProblems(
            after.unwritable_ledgers and not now.unwritable_ledgers,
            after.unreplaceable_ledgers and not now.unreplaceable_ledgers,
            after.unreadable_ledgers and not after.lost_ledgers and not now.unreadable_ledgers,
            after.lost_ledgers and not now.lost_ledgers,
        )
        if lost and any(became):
            yield kind, name, became


def _candidates(shape: LedgerShape, known: KnownBookies) -> tuple[set[str], set[str]]:
    """The bookies and racks whose loss may matter: those that hold all live copies of a write set, or all copies that
    may return if none is live; and those that the writer uses."""
    bookies = {each for each in shape.ensemble if each in known.writable} if shape.is_open else set()
    racks = {known.rack_of(each) for each in bookies}
    for write_set in shape.needed_sets:
        holders = {each for each in write_set if each in known.live}
        holders = holders or {each for each in write_set if known.may_return(each)}
        if len(holders) == 1:
            bookies |= holders
        holder_racks = {known.rack_of(each) for each in holders}
        if len(holder_racks) == 1:
            racks |= holder_racks
    return bookies, {rack for rack in racks if rack is not None}
