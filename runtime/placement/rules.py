"""The rules of placement, and whether an ensemble keeps them. Pure. Source: replication section 5, protocol section 9.

As in Java, an ensemble adheres if each window of Qw consecutive members (a write quorum) spans enough racks.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

import msgspec

from bkctl.runtime.ledger.write_set import write_set
from bkctl.runtime.placement.isolation import IsolationDemand, admitted_bookies
from bkctl.runtime.placement.view import ClusterView, is_default_rack, region_of
from bkctl.storage.words import counted


class PlacementRule(enum.Enum):
    """A rule that an ensemble can break, most serious first. The names appear in reports."""

    ISOLATION = "isolation groups"
    KNOWN_RACK = "known racks only"
    REGIONS = "regions per write quorum"
    RACKS = "racks per write quorum"


class PlacementRules(msgspec.Struct, frozen=True, kw_only=True):
    """The rules of one cluster; the defaults are random placement.

    The numbers are limited by the size of the write quorum; 0: off. ``needs_known_rack``: no bookie without a rack
    (Java's enforceMinNumRacksPerWriteQuorum implies it). ``is_strict``: choose no bookie that breaks a rule.
    ``reserve_fraction``: part of a bookie's disk space that new copies leave free, always.
    """

    min_racks_per_write_quorum: int = 0
    min_regions_per_write_quorum: int = 0
    needs_known_rack: bool = False
    is_strict: bool = False
    is_weighted_by_free_space: bool = False
    reserve_fraction: float = 0.0

    @property
    def has_racks(self) -> bool:
        """Whether racks matter."""
        return bool(self.min_racks_per_write_quorum or self.min_regions_per_write_quorum or self.needs_known_rack)


class BrokenRule(msgspec.Struct, frozen=True):
    """A rule that an ensemble breaks; ``detail`` shows how, with the first bookies that do."""

    rule: PlacementRule
    detail: str

    def __str__(self) -> str:
        return f"{self.rule.value}: {self.detail}"


class Spread(NamedTuple):
    """A number of different racks, or regions, that each write quorum spans."""

    rule: PlacementRule
    minimum: int
    unit: str
    place_of: Callable[[str], str | None]
    """The rack or region of a bookie; None if unknown."""


def spreads(view: ClusterView, rules: PlacementRules) -> tuple[Spread, ...]:
    """The spreads that the rules require, most serious first."""
    regions, racks = rules.min_regions_per_write_quorum, rules.min_racks_per_write_quorum
    found = []
    if regions:
        place = PlacementRule.REGIONS, regions, "region", lambda bookie_id: region_of(view.rack_of(bookie_id))
        found.append(Spread(*place))
    if racks:
        found.append(Spread(PlacementRule.RACKS, racks, "rack", view.rack_of))
    return tuple(found)


def write_quorums(ensemble_size: int, write_quorum_size: int) -> list[tuple[int, ...]]:
    """The different write quorums of an ensemble: sorted indexes, in the order of their first entry."""
    quorums = (tuple(sorted(write_set(first, ensemble_size, write_quorum_size))) for first in range(ensemble_size))
    return list(dict.fromkeys(quorums))


def judge_ensemble(
    view: ClusterView,
    rules: PlacementRules,
    ensemble: Sequence[str],
    write_quorum_size: int,
    isolation: IsolationDemand | None = None,
) -> tuple[BrokenRule, ...]:
    """The rules that a stored ensemble breaks, most serious first; empty if it keeps all.

    Every member whose rack is in the view counts. Java's auditor counts only writable bookies: for its verdict, leave
    the others out of the view.
    """
    known = view.writable | set(ensemble)
    admitted = admitted_bookies(isolation, view.groups, known, len(ensemble))
    return (
        *judge_members(view, rules, ensemble, admitted),
        *_judge_spreads(view, rules, ensemble, write_quorum_size),
    )


def judge_members(
    view: ClusterView, rules: PlacementRules, bookie_ids: Collection[str], admitted: Collection[str] | None
) -> Iterator[BrokenRule]:
    """The rules that single bookies break, whatever the other members of the ensemble are."""
    outside = [] if admitted is None else [each for each in bookie_ids if each not in admitted]
    if outside:
        yield BrokenRule(PlacementRule.ISOLATION, f"not in the ledger's groups: {', '.join(outside)}")
    unracked = [each for each in bookie_ids if is_default_rack(view.rack_of(each))] if rules.needs_known_rack else []
    if unracked:
        yield BrokenRule(PlacementRule.KNOWN_RACK, f"without a rack: {', '.join(unracked)}")


def _judge_spreads(
    view: ClusterView, rules: PlacementRules, ensemble: Sequence[str], write_quorum_size: int
) -> Iterator[BrokenRule]:
    for spread in spreads(view, rules):
        for quorum in write_quorums(len(ensemble), write_quorum_size):
            members = [ensemble[index] for index in quorum]
            wanted = min(spread.minimum, write_quorum_size)
            if len(places_of(spread, members)) < wanted:
                yield too_narrow(spread, members, wanted)
                break


def faults_of(
    view: ClusterView,
    rules: PlacementRules,
    ensemble: Sequence[str],
    write_quorum_size: int,
    isolation: IsolationDemand | None,
) -> tuple[int, ...]:
    """How far an ensemble is from keeping each rule, in the order of ``PlacementRule``: members in a wrong place, and
    regions and racks that its write quorums lack.

    Of two ensembles the one with the smaller tuple is better.
    """
    admitted = admitted_bookies(isolation, view.groups, view.writable | set(ensemble), len(ensemble))
    faults = dict.fromkeys(PlacementRule, 0)
    if admitted is not None:
        faults[PlacementRule.ISOLATION] = sum(each not in admitted for each in ensemble)
    if rules.needs_known_rack:
        faults[PlacementRule.KNOWN_RACK] = sum(is_default_rack(view.rack_of(each)) for each in ensemble)
    for spread in spreads(view, rules):
        for quorum in write_quorums(len(ensemble), write_quorum_size):
            count = len(places_of(spread, [ensemble[index] for index in quorum]))
            faults[spread.rule] += max(0, min(spread.minimum, write_quorum_size) - count)
    return tuple(faults.values())


def places_of(spread: Spread, bookie_ids: Collection[str]) -> set[str]:
    """The different racks or regions of bookies."""
    return {place for bookie_id in bookie_ids if (place := spread.place_of(bookie_id)) is not None}


def too_narrow(spread: Spread, members: Sequence[str], wanted: int) -> BrokenRule:
    """Describe a write quorum that spans too few racks or regions."""
    count = len(places_of(spread, members))
    names = ", ".join(dict.fromkeys(members))
    return BrokenRule(spread.rule, f"{names}: {counted(count, spread.unit)} instead of {wanted}")
