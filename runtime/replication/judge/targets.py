"""Choice of the bookies that get copies, by the placement rules. Pure. Source: replication 5 and 13 (bk#3707)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import msgspec

from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.placement.choice import Choice, NoChoice, PlacementNeed, broken_rules, choose_replacements
from bkctl.runtime.placement.isolation import IsolationDemand, isolation_demand
from bkctl.runtime.placement.rules import BrokenRule, PlacementRule, PlacementRules, faults_of
from bkctl.runtime.placement.survey import BookieSurvey
from bkctl.runtime.placement.view import ClusterView
from bkctl.runtime.replication.config import PlacementMode
from bkctl.runtime.replication.judge.fragments import Fragment, stripe_count

_SPREADS = frozenset({PlacementRule.REGIONS, PlacementRule.RACKS})
"""Rules about the ensemble as a whole; the others refuse a bookie whatever the other members are."""


class CopyNeed(msgspec.Struct, frozen=True, kw_only=True):
    """One copy that needs a target: position ``index`` of an ensemble.

    ``pending``: other positions that will be replaced too. ``excluded``: bookies that must not be chosen, in addition
    to the members of the ensemble. ``is_data_first``: rather in a wrong rack or region than not at all.
    ``must_improve``: only a bookie with which the ensemble breaks fewer rules than now.
    """

    write_quorum_size: int
    ensemble: tuple[str, ...]
    index: int
    pending: tuple[int, ...] = ()
    excluded: frozenset[str] = frozenset()
    isolation: IsolationDemand | None = None
    entry_count: int = 0
    bytes_needed: int = 0
    is_data_first: bool = False
    must_improve: bool = False


def stripe_bytes(metadata: LedgerMetadata, fragment: Fragment, index: int) -> int:
    """Estimated bytes of a stripe: the same share of the ledger's length as of its entries; 0 if it is unknown."""
    entries = metadata.entry_count
    count = stripe_count(fragment.entries, index, *metadata.sizes)
    return -(-metadata.length * count // entries) if entries else 0


def choose_target(
    survey: BookieSurvey,
    rules: PlacementRules,
    need: CopyNeed,
    source: random.Random,
    *,
    last_resort: frozenset[str] = frozenset(),
    assigned: Mapping[str, int] | None = None,
    bytes_assigned: Mapping[str, int] | None = None,
) -> Choice | NoChoice:
    """A bookie for one copy that leaves good ones for the pending positions, as far as there are any. Pure.

    A bookie with which the ensemble breaks the rules no more than now is always allowed, because nothing gets worse.
    """
    view = survey.view(need.ensemble, bytes_assigned)
    placement_need = PlacementNeed(
        write_quorum_size=need.write_quorum_size,
        isolation=need.isolation,
        excluded=need.excluded | set(need.ensemble),
        last_resort=last_resort,
        bytes_needed=need.bytes_needed,
        assigned=assigned or {},
    )
    if need.must_improve:
        return _choose_better(view, rules, placement_need, need, source)
    found = _choose_together(view, rules, placement_need, need, source)
    if isinstance(found, Choice):
        return found if not found.broken or not _is_no_worse(view, rules, need, found) else Choice(found.bookies)
    if found.best is None or not _are_spreads(found.best):
        return found
    alone = choose_replacements(view, _lenient(rules), placement_need, need.ensemble, (need.index,), source)
    if isinstance(alone, Choice) and _is_no_worse(view, rules, need, alone):
        return Choice(alone.bookies)
    return found.best if need.is_data_first and not survey.rules.is_strict else found


def _choose_better(
    view: ClusterView, rules: PlacementRules, placement_need: PlacementNeed, need: CopyNeed, source: random.Random
) -> Choice | NoChoice:
    found = choose_replacements(view, _lenient(rules), placement_need, need.ensemble, (need.index,), source)
    if isinstance(found, NoChoice):
        return found
    before, after = _faults(view, rules, need, {need.index: found.bookies[0]})
    return found if after < before else NoChoice(wanted=1, candidates=1, refused={}, best=found)


def _is_no_worse(view: ClusterView, rules: PlacementRules, need: CopyNeed, choice: Choice) -> bool:
    """Whether a choice is allowed because the ensemble breaks the rules no more than it does already."""
    before, after = _faults(view, rules, need, {need.index: choice.bookies[0]})
    return _are_spreads(choice) and after <= before


def _faults(
    view: ClusterView, rules: PlacementRules, need: CopyNeed, chosen: Mapping[int, str]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The faults of the ensemble as it is, and with the chosen bookies at their indexes."""
    changed = [chosen.get(index, bookie_id) for index, bookie_id in enumerate(need.ensemble)]
    before = faults_of(view, rules, need.ensemble, need.write_quorum_size, need.isolation)
    return before, faults_of(view, rules, changed, need.write_quorum_size, need.isolation)


def _are_spreads(choice: Choice) -> bool:
    return all(each.rule in _SPREADS for each in choice.broken)


def _lenient(rules: PlacementRules) -> PlacementRules:
    return msgspec.structs.replace(rules, is_strict=False)


def _choose_together(
    view: ClusterView, rules: PlacementRules, placement_need: PlacementNeed, need: CopyNeed, source: random.Random
) -> Choice | NoChoice:
    open_positions = {need.index, *need.pending}
    members = [None if index in open_positions else bookie_id for index, bookie_id in enumerate(need.ensemble)]
    if need.pending:
        all_positions = (need.index, *need.pending)
        joint = choose_replacements(view, _lenient(rules), placement_need, members, all_positions, source)
        if isinstance(joint, Choice):
            target = joint.bookies[0]
            broken = joint.broken and broken_rules(view, rules, placement_need, members, {need.index: target})
            if not broken or not rules.is_strict:
                return Choice((target,), broken)
    return choose_replacements(view, rules, placement_need, members, (need.index,), source)


class TargetForecast(NamedTuple):
    """What is known about the targets for one fragment before a recovery begins."""

    broken: tuple[BrokenRule, ...] = ()
    """Rules that even the best targets break."""
    why_none: str | None = None
    """Why there are not enough targets, whatever the rules."""


class PlacementForecast:
    """Finds out for the plan of a recovery which fragments have no target, or none that keeps the rules. Pure.

    Remembers verdicts, because many ledgers have the same ensembles.
    """

    def __init__(
        self,
        survey: BookieSurvey,
        barred: Collection[str],
        source: random.Random,
        only: Collection[str] = (),
    ) -> None:
        """``barred``: bookies that are no targets. ``only``: the only targets; empty: all other writable bookies."""
        self._survey = survey
        self._rules = msgspec.structs.replace(survey.rules, is_strict=False)
        self._excluded = frozenset(barred) | outside(frozenset(only), survey.writable)
        self._targets = survey.writable - self._excluded
        self._verdicts: dict[CopyNeed, TargetForecast] = {}
        self._source = source
        self._has_rules = survey.has_rules or survey.rules.reserve_fraction > 0

    def of(self, metadata: LedgerMetadata, fragment: Fragment) -> TargetForecast:
        """The forecast for all leaving bookies of a fragment."""
        if not self._has_rules and len(self._targets) >= len(fragment.ensemble) + len(fragment.bookie_indexes):
            return TargetForecast()
        first, *others = fragment.bookie_indexes
        need = CopyNeed(
            write_quorum_size=metadata.write_quorum_size,
            ensemble=fragment.ensemble,
            index=first,
            pending=tuple(others),
            excluded=self._excluded,
            isolation=isolation_demand(metadata.custom_metadata),
        )
        if need not in self._verdicts:
            self._verdicts[need] = self._best(need)
        return self._verdicts[need]

    def _best(self, need: CopyNeed) -> TargetForecast:
        view = self._survey.view(need.ensemble)
        placement_need = PlacementNeed(
            write_quorum_size=need.write_quorum_size, isolation=need.isolation, excluded=need.excluded
        )
        indexes = (need.index, *need.pending)
        found = choose_replacements(view, self._rules, placement_need, need.ensemble, indexes, self._source)
        if isinstance(found, Choice) and found.broken and _are_spreads(found):
            before, after = _faults(view, self._rules, need, dict(zip(indexes, found.bookies, strict=True)))
            if after <= before:  # allowed whatever the mode
                return TargetForecast()
        return TargetForecast(found.broken) if isinstance(found, Choice) else TargetForecast(why_none=found.sentence)


def outside(only: frozenset[str], writable: Collection[str]) -> frozenset[str]:
    """Writable bookies that are not among the only targets; empty if all bookies are targets."""
    return frozenset(writable) - only if only else frozenset()


def rules_of_run(survey: BookieSurvey, mode: PlacementMode) -> PlacementRules:
    """The rules of the cluster, with the strictness of a recovery."""
    return msgspec.structs.replace(survey.rules, is_strict=mode is PlacementMode.STRICT)


class CandidateVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a bookie could take the copies of a lost member. ``refused_by`` None: it could.

    The verdict is for all segments with this ensemble; ``first_entry_id`` is that of the first.
    """

    first_entry_id: int
    replaces: str
    bookie_id: str
    rack: str | None
    free_bytes: int | None
    refused_by: str | None
    is_refused_by_rule: bool


def why_refused(refused: Sequence[CandidateVerdict]) -> str:
    """The reasons with the number of bookies, and how to accept broken rules."""
    reasons = {each.bookie_id: (each.refused_by or "").partition(":")[0] for each in refused}
    counts = ", ".join(f"{count} {reason}" for reason, count in Counter(reasons.values()).items())
    consent = "; --placement best-effort accepts broken rules"
    return f" ({counts or 'no bookie is writable'})" + (consent if any(e.is_refused_by_rule for e in refused) else "")
