"""Which members of a ledger's ensembles to replace so that they keep the placement rules, or break fewer. Pure.

One member after another, always the one that improves most. Only complete segments count: the writer of an open one
chooses its bookies.
"""

from __future__ import annotations

import random
from typing import NamedTuple

import msgspec

from runtime.ledger.metadata import LedgerMetadata
from runtime.metadata.bookies.registration import Registrations
from runtime.placement.choice import Choice, PlacementNeed, choose_replacements
from runtime.placement.isolation import isolation_demand
from runtime.placement.rules import BrokenRule, faults_of, judge_ensemble
from runtime.placement.survey import BookieSurvey, rules_that_apply
from runtime.replication.judge.fragments import segment_entries


class PlacementMoves(NamedTuple):
    """``leaving``: members to replace, by first entry of their segment. ``stuck``: rules that stay broken."""

    leaving: dict[int, frozenset[str]]
    stuck: dict[int, tuple[BrokenRule, ...]]


def placement_moves(
    metadata: LedgerMetadata, survey: BookieSurvey, registrations: Registrations, source: random.Random
) -> PlacementMoves:
    """The moves for all segments with entries that break a rule."""
    moves = PlacementMoves({}, {})
    quorum, isolation = metadata.write_quorum_size, isolation_demand(metadata.custom_metadata)
    rules = rules_that_apply(survey, registrations.live)
    lenient = msgspec.structs.replace(rules, is_strict=False)
    for position, segment in enumerate(metadata.segments if metadata.is_closed else metadata.segments[:-1]):
        if not segment_entries(metadata, position).count:
            continue
        view = survey.view(segment.ensemble)
        ensemble, leaving = segment.ensemble, set[str]()
        faults = faults_of(view, rules, ensemble, quorum, isolation)
        while any(faults):
            best = None
            need = PlacementNeed(write_quorum_size=quorum, isolation=isolation, excluded=frozenset(leaving))
            for index, bookie_id in enumerate(ensemble):
                found = choose_replacements(view, lenient, need, ensemble, (index,), source)
                if bookie_id in segment.ensemble and isinstance(found, Choice):
                    changed = (*ensemble[:index], *found.bookies, *ensemble[index + 1 :])
                    count = faults_of(view, rules, changed, quorum, isolation)
                    if count < faults:
                        faults, best = count, (bookie_id, changed)
            if best is None:
                moves.stuck[segment.first_entry_id] = judge_ensemble(view, rules, ensemble, quorum, isolation)
                break
            leaving.add(best[0])
            ensemble = best[1]
        if leaving:
            moves.leaving[segment.first_entry_id] = frozenset(leaving)
    return moves
