"""What a ledger can still do after the loss of bookies, exactly over its write sets. Pure.

A lost bookie never returns. One that is down and has a cookie may return with its copies. So a write set without a
live copy is unreadable if a bookie of it is down, and lost if all of them are lost, or were removed from the cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from runtime.replication.cluster_audit.facts import KnownBookies
from runtime.replication.cluster_audit.shape import LedgerShape


class LedgerStanding(NamedTuple):
    """What is wrong with a ledger, in the order of the counters of ``LossEffect``.

    ``is_unreadable`` includes the ledgers that are lost.
    """

    is_unwritable: bool
    is_unreplaceable: bool
    is_unreadable: bool
    is_lost: bool


class LossOutcome(NamedTuple):
    """The kind and name of a loss, and what becomes wrong with a ledger by it."""

    kind: str
    name: str
    standing: LedgerStanding


def standing_of(shape: LedgerShape, known: KnownBookies) -> LedgerStanding:
    """What is wrong with a ledger now."""
    return _standing(shape, known, frozenset(), frozenset())


def outcomes(shape: LedgerShape, known: KnownBookies, now: LedgerStanding) -> Iterator[LossOutcome]:
    """Every loss of one bookie, of one rack, and of those asked about, that makes something worse for a ledger."""
    bookies, racks = _candidates(shape, known)
    for bookie_id in bookies:
        lost = frozenset((bookie_id,))
        yield from _outcome("bookie", bookie_id, now, _standing(shape, known, lost, lost & known.writable))
    for rack in racks:
        lost = frozenset(each for each in shape.members if known.rack_of(each) == rack)
        after = _standing(shape, known, lost, known.writable_in_rack.get(rack, frozenset()))
        yield from _outcome("rack", rack, now, after)
    for loss, writable in known.what_if:
        lost = frozenset(each for each in shape.members if known.is_part_of(loss, each))
        if lost:
            yield from _outcome("set", loss.name, now, _standing(shape, known, lost, writable))


def _candidates(shape: LedgerShape, known: KnownBookies) -> tuple[set[str], set[str]]:
    """The bookies and racks whose loss may matter: those that hold all live copies of a write set, or all copies that
    may return if none is live; and those that the writer uses."""
    bookies = {each for each in shape.ensemble if each in known.writable} if shape.is_open else set()
    racks = {known.rack_of(each) for each in bookies}
    for write_set in shape.write_sets:
        holders = {each for each in write_set if each in known.live}
        holders = holders or {each for each in write_set if known.may_return(each)}
        if len(holders) == 1:
            bookies |= holders
        holder_racks = {known.rack_of(each) for each in holders}
        if len(holder_racks) == 1:
            racks |= holder_racks
    return bookies, {rack for rack in racks if rack is not None}


def _standing(
    shape: LedgerShape, known: KnownBookies, lost: frozenset[str], lost_writable: frozenset[str]
) -> LedgerStanding:
    """The standing without ``lost``: bookies of this ledger. ``lost_writable``: all writable bookies that are lost."""
    is_unreadable = is_lost = False
    for write_set in shape.write_sets:
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
    return LedgerStanding(is_unwritable, is_unreplaceable, is_unreadable, is_lost)


def _outcome(kind: str, name: str, now: LedgerStanding, after: LedgerStanding) -> Iterator[LossOutcome]:
    became = LedgerStanding(
        after.is_unwritable and not now.is_unwritable,
        after.is_unreplaceable and not now.is_unreplaceable,
        after.is_unreadable and not after.is_lost and not now.is_unreadable,
        after.is_lost and not now.is_lost,
    )
    if any(became):
        yield LossOutcome(kind, name, became)
