"""Which members of a ledger's ensembles to replace so that they keep the placement rules, or break fewer. Pure.

One member after another, always the one that improves most. Only complete segments count: the writer of an open one
chooses its bookies.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.metadata.bookies.registration import Registrations
from bkctl.runtime.placement.choice import Choice, PlacementNeed, choose_replacements
from bkctl.runtime.placement.isolation import isolation_demand
from bkctl.runtime.placement.rules import BrokenRule, PlacementRules, faults_of, judge_ensemble
from bkctl.runtime.placement.survey import BookieSurvey, rules_that_apply
from bkctl.runtime.placement.view import ClusterView
from bkctl.runtime.replication.judge.fragments import segment_entries


class PlacementMoves(NamedTuple):
    """``leaving``: members to replace, by first entry of their segment. ``stuck``: rules that stay broken."""

    leaving: dict[int, frozenset[str]]
    stuck: dict[int, tuple[BrokenRule, ...]]


class BetterEnsemble(NamedTuple):
    """An ensemble with another bookie at ``position``, and what it still breaks, see ``faults_of``."""

    faults: tuple[int, ...]
    position: int
    ensemble: tuple[str, ...]


def better_ensembles(
    view: ClusterView,
    rules: PlacementRules,
    need: PlacementNeed,
    ensemble: tuple[str, ...],
    indexes: Iterable[int],
    source: random.Random,
) -> Iterator[BetterEnsemble]:
    """For each of these positions the best other bookie, if it makes the ensemble break fewer rules."""
    lenient = msgspec.structs.replace(rules, is_strict=False)
    before = faults_of(view, rules, ensemble, need.write_quorum_size, need.isolation)
    for index in indexes:
        found = choose_replacements(view, lenient, need, ensemble, (index,), source)
        if isinstance(found, Choice):
            changed = (*ensemble[:index], *found.bookies, *ensemble[index + 1 :])
            faults = faults_of(view, rules, changed, need.write_quorum_size, need.isolation)
            if faults < before:
                yield BetterEnsemble(faults, index, changed)


def placement_moves(
    metadata: LedgerMetadata, survey: BookieSurvey, registrations: Registrations, source: random.Random
) -> PlacementMoves:
    """The moves for all segments with entries that break a rule."""
    moves = PlacementMoves({}, {})
    quorum, isolation = metadata.write_quorum_size, isolation_demand(metadata.custom_metadata)
    rules = rules_that_apply(survey, registrations.live)
    for number, segment in enumerate(metadata.segments if metadata.is_closed else metadata.segments[:-1]):
        if not segment_entries(metadata, number).count:
            continue
        view = survey.view(segment.ensemble)
        ensemble, leaving = segment.ensemble, set[str]()
        while any(faults_of(view, rules, ensemble, quorum, isolation)):
            need = PlacementNeed(write_quorum_size=quorum, isolation=isolation, excluded=frozenset(leaving))
            old = [index for index, bookie_id in enumerate(ensemble) if bookie_id in segment.ensemble]
            better = better_ensembles(view, rules, need, ensemble, old, source)
            best = min(better, key=lambda each: each.faults, default=None)
            if best is None:
                moves.stuck[segment.first_entry_id] = judge_ensemble(view, rules, ensemble, quorum, isolation)
                break
            leaving.add(ensemble[best.position])
            ensemble = best.ensemble
        if leaving:
            moves.leaving[segment.first_entry_id] = frozenset(leaving)
    return moves
