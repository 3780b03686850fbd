"""The check of placement: closed ledgers whose ensembles break placement rules, by the metadata alone.

While all registered bookies are in one rack, or in one region, that rule cannot be kept and does not count. Java's
check then reports, and marks, every ledger (replication section 7.4).

With ``is_misplaced_marked`` a ledger is marked without missing bookies, but only if a copy on another writable bookie
would break fewer rules, and all its bookies are registered: lost copies come first. ``placement_moves`` says which
members a worker then replaces: one after another, always the one that improves most, in complete segments only, because
the writer of an open one chooses its bookies.
"""

from __future__ import annotations

import functools
import random
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing
from typing import NamedTuple

import msgspec

from bkctl.runtime.autorecovery.config import AutorecoveryConfig
from bkctl.runtime.autorecovery.lane import Turn
from bkctl.runtime.autorecovery.metadata_check import MetadataCheck
from bkctl.runtime.autorecovery.publisher import MarkRequest, Publisher, count_written
from bkctl.runtime.client.ports import ClientPorts
from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.metadata.bookies.registration import Registrations
from bkctl.runtime.metadata.replication.recovery_notes import PlacementCheckNote, RecoveryNotes
from bkctl.runtime.metadata.replication.switches import PeriodicCheck
from bkctl.runtime.metadata.store import MetadataStore
from bkctl.runtime.placement.choice import Choice, PlacementNeed, choose_replacements
from bkctl.runtime.placement.isolation import IsolationDemand, isolation_demand
from bkctl.runtime.placement.rules import BrokenRule, PlacementRules, faults_of, judge_ensemble
from bkctl.runtime.placement.survey import BookieSurvey, rules_that_apply
from bkctl.runtime.placement.view import ClusterView
from bkctl.runtime.replication.judge.fragments import segment_entries
from bkctl.storage.words import counted

LEDGERS_PER_REFRESH = 500
"""Closed ledgers after which the registrations are read again, and whether autorecovery is disabled."""
VERDICTS_MAX = 10_000


class PlacementCheck(MetadataCheck[PlacementCheckNote]):
    """Finds ledgers that break placement rules, once in ``placement_check_interval_s``."""

    name = "placement"
    kind = PeriodicCheck.PLACEMENT

    def __init__(
        self, ports: ClientPorts, store: MetadataStore, config: AutorecoveryConfig, publisher: Publisher
    ) -> None:
        note = RecoveryNotes(store, ports.ledgers.root).placement_check
        nothing = PlacementCheckNote(ended_ms=0, seconds=0.0)
        super().__init__(ports, store, config.placement_check_interval_s, note, nothing)
        self._publisher = publisher
        self._is_marked = config.is_misplaced_marked

    async def _check(self, turn: Turn) -> None:
        async with aclosing(self._improvable(turn)) as requests:
            if not self._is_marked:
                async for _ in requests:
                    pass
                return
            outcomes = await self._publisher.publish(requests, turn)
        self._found = msgspec.structs.replace(self._found, marked=count_written(outcomes))

    async def _improvable(self, turn: Turn) -> AsyncGenerator[MarkRequest, None]:
        """Check all ledgers; yields those that a worker can improve."""
        judge = await self._judge()
        async with aclosing(self._ledgers(turn)) as ledgers:
            async for ledger_id, metadata in ledgers:
                if not metadata.is_closed:
                    continue
                counts = self._found
                if counts.ledgers % LEDGERS_PER_REFRESH == LEDGERS_PER_REFRESH - 1:
                    judge = await self._judge(judge)
                verdict = judge.verdict_on(metadata)
                self._found = msgspec.structs.replace(
                    counts,
                    ledgers=counts.ledgers + 1,
                    broken=counts.broken.plus(ledger_id) if verdict.is_broken else counts.broken,
                    improvable=counts.improvable.plus(ledger_id) if verdict.is_improvable else counts.improvable,
                )
                if verdict.is_improvable:
                    yield MarkRequest(ledger_id, ())

    async def _judge(self, former: PlacementJudge | None = None) -> PlacementJudge:
        """A judge that knows the bookies as they are now."""
        await self._publisher.require_enabled()
        registrations = await self._ports.registrations.snapshot()
        survey = await self._ports.placement.survey(registrations.writable)
        if former is not None and former.known == (survey, registrations):
            return former
        return PlacementJudge(survey, registrations, self._ports.clock.random)

    def _summary(self, result: PlacementCheckNote, unread: str) -> str:
        return (
            f"{counted(result.ledgers, 'closed ledger')}{unread}: {result.broken.ledgers} break placement rules, "
            f"{result.improvable.ledgers} of them can be improved, {result.marked} were marked"
        )


class PlacementVerdict(msgspec.Struct, frozen=True):
    """Whether an ensemble breaks rules, and whether another bookie in one of its positions would break fewer."""

    is_broken: bool
    is_improvable: bool


class PlacementJudge:
    """Judges ensembles, and remembers the verdicts, because many ledgers have the same ensembles."""

    def __init__(self, survey: BookieSurvey, registrations: Registrations, source: random.Random) -> None:
        self._survey = survey
        self.known = survey, registrations
        self._live = registrations.live
        self._rules = rules_that_apply(survey, registrations.live)
        self._source = source
        self._verdict = functools.lru_cache(VERDICTS_MAX)(self._judge)

    def verdict_on(self, metadata: LedgerMetadata) -> PlacementVerdict:
        """The verdict on a closed ledger; segments without entries do not count."""
        isolation = isolation_demand(metadata.custom_metadata)
        verdicts = [
            self._verdict(segment.ensemble, metadata.write_quorum_size, isolation)
            for index, segment in enumerate(metadata.segments)
            if segment_entries(metadata, index).count
        ]
        is_complete = all(self._live.issuperset(segment.ensemble) for segment in metadata.segments)
        return PlacementVerdict(
            any(each.is_broken for each in verdicts), is_complete and any(each.is_improvable for each in verdicts)
        )

    def _judge(
        self, ensemble: tuple[str, ...], write_quorum_size: int, isolation: IsolationDemand | None
    ) -> PlacementVerdict:
        view = self._survey.view(ensemble)
        faults = faults_of(view, self._rules, ensemble, write_quorum_size, isolation)
        if not any(faults):
            return PlacementVerdict(is_broken=False, is_improvable=False)
        need = PlacementNeed(write_quorum_size=write_quorum_size, isolation=isolation)
        better = better_ensembles(view, self._rules, need, ensemble, range(len(ensemble)), self._source)
        return PlacementVerdict(is_broken=True, is_improvable=next(better, None) is not None)


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
