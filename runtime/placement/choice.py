"""Choice of bookies for new ledgers, and for positions of existing ensembles. Pure. Source: replication section 5.

A choice keeps all rules if any choice does. Otherwise it is the one that breaks the fewest, with the rules it breaks.
Unlike Java, a replacement does not prefer the rack of the bookie that it replaces, because a dead rack's data would
all go to the last bookie of that rack (replication section 13, bk#3707).
"""

from __future__ import annotations

import enum
import random
import statistics
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from bkctl.runtime.placement.isolation import IsolationDemand, admitted_bookies
from bkctl.runtime.placement.rules import (
    BrokenRule,
    PlacementRule,
    PlacementRules,
    judge_members,
    places_of,
    spreads,
    too_narrow,
    write_quorums,
)
from bkctl.runtime.placement.search import SearchCandidate, WindowGoal, fill_positions
from bkctl.runtime.placement.view import ClusterView, is_default_rack, region_of

WEIGHT_MAX_IN_MEDIANS = 3
"""A bookie with much free space has at most this many times the weight of the median one, as in Java."""


class Refusal(enum.Enum):
    """Why a bookie is not a candidate, whatever the rules. The names appear in reports."""

    IN_ENSEMBLE = "already in the ensemble"
    EXCLUDED = "excluded"
    NOT_WRITABLE = "not writable"
    NO_ROOM = "no space above its reserve"
    UNKNOWN_ROOM = "did not report its free space"


_ROOM = frozenset({Refusal.NO_ROOM, Refusal.UNKNOWN_ROOM})


class PlacementNeed(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be placed.

    ``bytes_needed``: for each position; no bookie may fall below its reserve by it. ``last_resort``: bookies to choose
    only if the rules leave no other. ``assigned``: work that candidates already have; those with less come first.
    """

    write_quorum_size: int
    isolation: IsolationDemand | None = None
    excluded: frozenset[str] = frozenset()
    last_resort: frozenset[str] = frozenset()
    bytes_needed: int = 0
    assigned: Mapping[str, int] = {}


class Choice(msgspec.Struct, frozen=True):
    """One bookie for each wanted position, and the rules that they break, most serious first.

    A rule counts as broken only if other bookies in these positions could have kept it.
    """

    bookies: tuple[str, ...]
    broken: tuple[BrokenRule, ...] = ()


class NoChoice(msgspec.Struct, frozen=True, kw_only=True):
    """Why there is no choice: too few candidates, or with strict rules only the choice ``best``, which breaks one.

    If an improvement is wanted, ``best`` is none; it may break no rule.
    """

    wanted: int
    candidates: int
    refused: Mapping[str, Refusal]
    """The bookies that are no candidates."""
    best: Choice | None = None

    @property
    def is_by_rules(self) -> bool:
        """Whether a rule or a reserve refuses bookies that could be chosen otherwise."""
        return self.best is not None or not _ROOM.isdisjoint(self.refused.values())

    @property
    def sentence(self) -> str:
        """The reason, without a full stop."""
        if self.best is not None and not self.best.broken:
            return "no other bookie would improve the placement"
        if self.best is not None:
            return "every choice breaks a placement rule: " + "; ".join(map(str, self.best.broken))
        reasons = list(self.refused.values())
        counts = ", ".join(f"{reasons.count(each)} {each.value}" for each in Refusal if each in reasons)
        found = f"{self.wanted} needed, {self.candidates} found"
        return f"{found} ({counts})" if counts else found


def choose_ensemble(
    view: ClusterView, rules: PlacementRules, need: PlacementNeed, size: int, source: random.Random
) -> Choice | NoChoice:
    """An ensemble for a new ledger. No bookie appears twice.

    For the same seed the result does not depend on the order of the bookies in the view.
    """
    return choose_replacements(view, rules, need, (None,) * size, range(size), source)


def choose_replacements(
    view: ClusterView,
    rules: PlacementRules,
    need: PlacementNeed,
    ensemble: Sequence[str | None],
    indexes: Sequence[int],
    source: random.Random,
) -> Choice | NoChoice:
    """Bookies for the positions ``indexes`` of an ensemble, in the order of ``indexes``; the other members stay.

    All members are excluded, also those that are replaced. None in ``ensemble`` is a position without a member.
    """
    refused = dict(_refusals(view, rules, need, ensemble))
    ids = sorted(view.bookies.keys() - refused.keys())
    if len(ids) < len(indexes):
        return NoChoice(wanted=len(indexes), candidates=len(ids), refused=refused)
    preferred = _by_preference(view, rules, need, ids, source)
    if not (rules.has_racks or need.isolation):  # then no choice is better than another
        return Choice(tuple(preferred[: len(indexes)]))
    admitted = admitted_bookies(need.isolation, view.groups, view.writable, len(ensemble))
    candidates = [
        SearchCandidate(
            bookie_id,
            view.rack_of(bookie_id),
            region_of(view.rack_of(bookie_id)),
            is_outside=admitted is not None and bookie_id not in admitted,
            has_no_rack=rules.needs_known_rack and is_default_rack(view.rack_of(bookie_id)),
            is_last_resort=bookie_id in need.last_resort,
        )
        for bookie_id in preferred
    ]
    kept = {index: bookie_id for index, bookie_id in enumerate(ensemble) if bookie_id and index not in indexes}
    goals = _goals(view, rules, need, len(ensemble), indexes, kept)
    kept_racks = {rack for bookie_id in kept.values() if (rack := view.rack_of(bookie_id)) is not None}
    chosen = fill_positions(len(indexes), candidates, goals, kept_racks)
    broken = broken_rules(view, rules, need, ensemble, dict(zip(indexes, chosen, strict=True)))
    choice = Choice(tuple(chosen), broken)
    if broken and rules.is_strict:
        return NoChoice(wanted=len(indexes), candidates=len(ids), refused=refused, best=choice)
    return choice


def _refusals(
    view: ClusterView, rules: PlacementRules, need: PlacementNeed, ensemble: Sequence[str | None]
) -> Iterator[tuple[str, Refusal]]:
    members = frozenset(ensemble)
    for bookie_id, known in view.bookies.items():
        if bookie_id in members:
            yield bookie_id, Refusal.IN_ENSEMBLE
        elif bookie_id in need.excluded:
            yield bookie_id, Refusal.EXCLUDED
        elif not known.is_writable:
            yield bookie_id, Refusal.NOT_WRITABLE
        elif not rules.reserve_fraction:
            continue
        elif known.free_bytes is None or known.total_bytes is None:
            yield bookie_id, Refusal.UNKNOWN_ROOM
        elif known.free_bytes - need.bytes_needed < rules.reserve_fraction * known.total_bytes:
            yield bookie_id, Refusal.NO_ROOM


def refusals(
    view: ClusterView,
    rules: PlacementRules,
    need: PlacementNeed,
    ensemble: Sequence[str | None],
    index: int,
) -> dict[str, tuple[Refusal | BrokenRule, ...]]:
    """For each bookie of the view, why it cannot have the position ``index`` alone; empty if it can.

    A broken rule refuses a bookie only if the rules are strict.
    """
    refused = dict(_refusals(view, rules, need, ensemble))
    return {
        bookie_id: (refused[bookie_id],)
        if bookie_id in refused
        else broken_rules(view, rules, need, ensemble, {index: bookie_id})
        for bookie_id in sorted(view.bookies)
    }


def _by_preference(
    view: ClusterView, rules: PlacementRules, need: PlacementNeed, ids: Sequence[str], source: random.Random
) -> list[str]:
    """Candidates in a random order: weighted if the rules say so, then those with the least work for their weight."""
    shuffled = list(ids)
    source.shuffle(shuffled)
    weights = dict.fromkeys(ids, 1.0)
    if rules.is_weighted_by_free_space:
        weights = _weights(view, ids)
        # Sorting by u ** (1 / weight) draws without replacement, each time in proportion to the weights.
        drawn = {bookie_id: source.random() ** (1 / weights[bookie_id]) for bookie_id in ids}
        shuffled.sort(key=lambda each: -drawn[each])
    return sorted(shuffled, key=lambda each: (each in need.last_resort, need.assigned.get(each, 0) / weights[each]))


def _weights(view: ClusterView, ids: Sequence[str]) -> dict[str, float]:
    """Free space in units of the median; unknown counts as the median, and no bookie has no chance at all."""
    free = {each: known.free_bytes for each in ids if (known := view.bookies[each]).free_bytes is not None}
    median = statistics.median(free.values()) if free else 0
    if not median:
        return dict.fromkeys(ids, 1.0)
    return {each: min(max(free.get(each, median) / median, 0.001), WEIGHT_MAX_IN_MEDIANS) for each in ids}


def _goals(
    view: ClusterView,
    rules: PlacementRules,
    need: PlacementNeed,
    size: int,
    indexes: Sequence[int],
    kept: Mapping[int, str],
) -> list[WindowGoal]:
    """What the write quorums with a wanted position should span, as far as the members that stay allow it."""
    slot_of = {index: slot for slot, index in enumerate(indexes)}
    goals = []
    for spread in spreads(view, rules):
        for quorum in write_quorums(size, need.write_quorum_size):
            slots = tuple(slot_of[index] for index in quorum if index in slot_of)
            places = frozenset(places_of(spread, [kept[index] for index in quorum if index in kept]))
            wanted = min(spread.minimum, need.write_quorum_size, len(places) + len(slots))
            if slots:
                goals.append(WindowGoal(spread.rule is PlacementRule.REGIONS, slots, places, wanted))
    return goals


def broken_rules(
    view: ClusterView,
    rules: PlacementRules,
    need: PlacementNeed,
    ensemble: Sequence[str | None],
    chosen: Mapping[int, str],
) -> tuple[BrokenRule, ...]:
    """The rules that bookies break in positions of an ensemble, most serious first; see ``Choice``."""
    admitted = admitted_bookies(need.isolation, view.groups, view.writable, len(ensemble))
    kept = {index: bookie_id for index, bookie_id in enumerate(ensemble) if bookie_id and index not in chosen}
    return (
        *judge_members(view, rules, tuple(chosen.values()), admitted),
        *_broken_spreads(view, rules, need, len(ensemble), kept, chosen),
    )


def _broken_spreads(
    view: ClusterView,
    rules: PlacementRules,
    need: PlacementNeed,
    size: int,
    kept: Mapping[int, str],
    chosen: Mapping[int, str],
) -> Iterator[BrokenRule]:
    members = dict(kept) | dict(chosen)
    for spread in spreads(view, rules):
        for quorum in write_quorums(size, need.write_quorum_size):
            stays = [kept[index] for index in quorum if index in kept]
            new = [chosen[index] for index in quorum if index in chosen]
            wanted = min(spread.minimum, need.write_quorum_size, len(places_of(spread, stays)) + len(new))
            if new and len(places_of(spread, [*stays, *new])) < wanted:
                yield too_narrow(spread, [members[index] for index in quorum if index in members], wanted)
                break
