"""What ledgers with the same write sets have in common. It is found out once, however many there are. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from runtime.placement.rules import judge_members, places_of
from runtime.replication.cluster_audit.facts import KnownBookies
from runtime.replication.judge.verdict import ReplicationRow, has_enough_answers

ShapeKey: TypeAlias = tuple[object, ...]


def shape_key(rows: Sequence[ReplicationRow]) -> ShapeKey:
    """Equal for ledgers of one shape: state, quorums, and write sets."""
    first = rows[0].write_set
    last = 0
    if first.ledger_state != "closed":
        last = sum(row.write_set.segment_last_entry_id is None for row in rows)
    quorums = first.write_quorum_size, first.ack_quorum_size
    return (first.ledger_state, *quorums, last, *(row.write_set.write_set for row in rows))


class LedgerShape:
    """The write sets of a ledger, without its entries and bytes."""

    def __init__(self, rows: Sequence[ReplicationRow]) -> None:
        first = rows[0].write_set
        assert first.ledger_state is not None
        assert first.write_quorum_size is not None
        assert first.ack_quorum_size is not None
        self.ledger_state = first.ledger_state
        self.write_quorum_size = first.write_quorum_size
        self.ack_quorum_size = first.ack_quorum_size
        self.write_sets = tuple(row.write_set.write_set for row in rows if row.write_set.write_set)
        self.last_write_sets: tuple[tuple[str, ...], ...] = ()
        """Those of the last segment, of a ledger that is not closed."""
        if first.ledger_state != "closed":
            self.last_write_sets = tuple(
                row.write_set.write_set for row in rows if row.write_set.segment_last_entry_id is None
            )
        self.ensemble = frozenset(bookie_id for write_set in self.last_write_sets for bookie_id in write_set)
        """Bookies of the last segment, of a ledger that is not closed."""
        self.members = frozenset(bookie_id for write_set in self.write_sets for bookie_id in write_set)

    @property
    def is_open(self) -> bool:
        """Whether it accepts writes."""
        return self.ledger_state == "open"

    def is_closable(self, known: KnownBookies) -> bool | None:
        """Whether the registered bookies can prove where it ends; None if it is closed."""
        if self.ledger_state == "closed":
            return None
        quorums = self.write_quorum_size, self.ack_quorum_size
        return all(has_enough_answers(write_set, *quorums, known.live) for write_set in self.last_write_sets)


class RackSpread:
    """How the write sets of a shape are spread over racks. Nothing counts if racks do not matter or are unknown."""

    def __init__(self, shape: LedgerShape, known: KnownBookies) -> None:
        self.misplaced_write_sets = 0
        """Write sets that break a rule whatever the racks are that are unknown."""
        self.racks_min = 0
        """Racks of the misplaced write set that spans the fewest."""
        self.has_one_rack = False
        """Some write set of several bookies is in one rack."""
        self.has_unknown = False
        """Some write set may break a rule: the rack of a bookie is unknown."""
        if known.rules.has_racks:
            for write_set in shape.write_sets:
                self._judge(dict.fromkeys(write_set), shape.write_quorum_size, known)

    def _judge(self, members: dict[str, None], write_quorum_size: int, known: KnownBookies) -> None:
        racks = [known.rack_of(each) for each in members]
        unknown = racks.count(None)
        known_racks = set(racks) - {None}
        is_broken = known.rules.needs_known_rack and any(judge_members(known.view, known.rules, members, None))
        for spread in known.spreads:
            missing = min(spread.minimum, write_quorum_size) - len(places_of(spread, members))
            is_broken = is_broken or missing > unknown
            self.has_unknown = self.has_unknown or 0 < missing <= unknown
        self.has_one_rack = self.has_one_rack or (len(members) > 1 and not unknown and len(known_racks) == 1)
        if is_broken:
            self.racks_min = min(self.racks_min, len(known_racks)) if self.misplaced_write_sets else len(known_racks)
            self.misplaced_write_sets += 1
