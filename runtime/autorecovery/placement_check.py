"""The check of placement: closed ledgers whose ensembles break placement rules, by the metadata alone.

While all registered bookies are in one rack, or in one region, that rule cannot be kept and does not count. Java's
check then reports, and marks, every ledger (replication section 7.4).

With ``is_misplaced_marked`` a ledger is marked without missing bookies, but only if a copy on another writable bookie
would break fewer rules, and all its bookies are registered: lost copies come first.
"""

from __future__ import annotations

import logging
import random
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from runtime.autorecovery.check_times import DISABLED, LOOK_AGAIN_S, CheckTimes, StoredResult, unread_text
from runtime.autorecovery.config import AutorecoveryConfig
from runtime.autorecovery.lane import Lane, Turn
from runtime.autorecovery.publisher import MarkRequest, Publisher
from runtime.client.ports import ClientPorts
from runtime.errors import MetadataFormatError
from runtime.ledger.metadata import LedgerMetadata
from runtime.metadata.bookies.registration import Registrations
from runtime.metadata.replication.recovery_notes import PlacementCheckNote, RecoveryNotes
from runtime.metadata.replication.switches import PeriodicCheck, ReplicationSwitches
from runtime.metadata.store import MetadataStore
from runtime.placement.choice import Choice, PlacementNeed, choose_replacements
from runtime.placement.isolation import IsolationDemand, isolation_demand
from runtime.placement.rules import faults_of
from runtime.placement.survey import BookieSurvey, rules_that_apply
from runtime.replication.judge.fragments import segment_entries

logger = logging.getLogger(__name__)

LOOK_EVERY = 500
"""Closed ledgers between two looks at the registrations, and whether autorecovery is disabled."""
VERDICTS_MAX = 10_000
WARNINGS_MAX = 20


class _DisabledError(Exception):
    """Autorecovery is disabled, perhaps since a moment ago."""


class PlacementCheck:
    """Finds ledgers that break placement rules, once in ``placement_check_interval_s``."""

    def __init__(
        self, ports: ClientPorts, store: MetadataStore, config: AutorecoveryConfig, publisher: Publisher
    ) -> None:
        root = ports.ledgers.root
        self._ports = ports
        self._publisher = publisher
        self._is_marked = config.is_misplaced_marked
        self._interval_s = config.placement_check_interval_s
        times = CheckTimes(ReplicationSwitches(store, root), PeriodicCheck.PLACEMENT, ports.clock, self._interval_s)
        self._stored = StoredResult(times, RecoveryNotes(store, root).placement_check)
        self._counts = PlacementCheckNote(ended_ms=0, seconds=0.0)
        self.lane = Lane("placement", self._run, ports.clock, interval_s=self._interval_s)

    @property
    def result(self) -> PlacementCheckNote | None:
        """The last check, by this auditor or one before; None: not known yet."""
        return self._stored.last

    async def _run(self, turn: Turn) -> str:
        due_in_s = await self._stored.due_in_s()
        if not due_in_s:
            try:
                found = await self._check(turn)
            except _DisabledError:
                self.lane.due_in(LOOK_AGAIN_S)
                return DISABLED
            logger.info("placement checked: %s", summary_of(found))
            due_in_s = await self._stored.keep(found)
        self.lane.due_in(min(due_in_s, LOOK_AGAIN_S))
        return summary_of(self.result)

    async def _check(self, turn: Turn) -> PlacementCheckNote:
        clock, began_ns = self._ports.clock, self._ports.clock.monotonic_ns()
        self._counts = PlacementCheckNote(ended_ms=0, seconds=0.0)
        marked = 0
        async with aclosing(self._improvable(turn)) as requests:
            if self._is_marked:
                tally = await self._publisher.publish(requests, turn)
                if tally.is_cut:
                    raise _DisabledError
                marked = tally.written
            else:
                async for _ in requests:
                    pass
        seconds = (clock.monotonic_ns() - began_ns) / 1e9
        return msgspec.structs.replace(self._counts, ended_ms=clock.now_ms(), seconds=seconds, marked=marked)

    async def _improvable(self, turn: Turn) -> AsyncGenerator[MarkRequest, None]:
        """Check all ledgers; yields those that a worker can improve."""
        judge = await self._judge()
        async with aclosing(self._ports.ledgers.read_all()) as ledgers:
            async for ledger_id, found in ledgers:
                turn.beat()
                counts = self._counts
                if isinstance(found, MetadataFormatError):
                    if counts.unreadable.ledgers < WARNINGS_MAX:
                        logger.warning("its placement is not checked: %s", found)
                    self._counts = msgspec.structs.replace(counts, unreadable=counts.unreadable.plus(ledger_id))
                    continue
                if not found.value.is_closed:
                    continue
                if counts.ledgers % LOOK_EVERY == LOOK_EVERY - 1:
                    judge = await self._judge(judge)
                verdict = judge.verdict_on(found.value)
                counts = msgspec.structs.replace(counts, ledgers=counts.ledgers + 1)
                if verdict.is_broken:
                    counts = msgspec.structs.replace(counts, broken=counts.broken.plus(ledger_id))
                if verdict.is_improvable:
                    counts = msgspec.structs.replace(counts, improvable=counts.improvable.plus(ledger_id))
                self._counts = counts
                if verdict.is_improvable:
                    yield MarkRequest(ledger_id, ())

    async def _judge(self, former: PlacementJudge | None = None) -> PlacementJudge:
        """A judge that knows the bookies as they are now."""
        if not await self._publisher.is_enabled():
            raise _DisabledError
        registrations = await self._ports.registrations.snapshot()
        survey = await self._ports.placement.survey(registrations.writable)
        if former is not None and former.knows(survey, registrations):
            return former
        return PlacementJudge(survey, registrations, self._ports.clock.random)


class PlacementVerdict(msgspec.Struct, frozen=True):
    """Whether an ensemble breaks rules, and whether another bookie in one of its positions would break fewer."""

    is_broken: bool
    is_improvable: bool


class PlacementJudge:
    """Judges ensembles, and remembers the verdicts, because many ledgers have the same ensembles."""

    def __init__(self, survey: BookieSurvey, registrations: Registrations, source: random.Random) -> None:
        self._survey = survey
        self._registrations = registrations
        self._live = registrations.live
        self._rules = rules_that_apply(survey, registrations.live)
        self._source = source
        self._verdicts: dict[tuple[tuple[str, ...], int, IsolationDemand | None], PlacementVerdict] = {}

    def knows(self, survey: BookieSurvey, registrations: Registrations) -> bool:
        """Whether nothing has changed."""
        return self._survey == survey and self._registrations == registrations

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

    def _verdict(
        self, ensemble: tuple[str, ...], write_quorum_size: int, isolation: IsolationDemand | None
    ) -> PlacementVerdict:
        key = (ensemble, write_quorum_size, isolation)
        if key not in self._verdicts:
            if len(self._verdicts) >= VERDICTS_MAX:
                self._verdicts.clear()
            self._verdicts[key] = self._judge(*key)
        return self._verdicts[key]

    def _judge(
        self, ensemble: tuple[str, ...], write_quorum_size: int, isolation: IsolationDemand | None
    ) -> PlacementVerdict:
        view = self._survey.view(ensemble)
        faults = faults_of(view, self._rules, ensemble, write_quorum_size, isolation)
        if not any(faults):
            return PlacementVerdict(is_broken=False, is_improvable=False)
        lenient = msgspec.structs.replace(self._rules, is_strict=False)
        need = PlacementNeed(write_quorum_size=write_quorum_size, isolation=isolation)
        for index in range(len(ensemble)):
            found = choose_replacements(view, lenient, need, ensemble, (index,), self._source)
            if isinstance(found, Choice):
                changed = (*ensemble[:index], *found.bookies, *ensemble[index + 1 :])
                if faults_of(view, self._rules, changed, write_quorum_size, isolation) < faults:
                    return PlacementVerdict(is_broken=True, is_improvable=True)
        return PlacementVerdict(is_broken=True, is_improvable=False)


def summary_of(result: PlacementCheckNote | None) -> str:
    """The result in a few words. Pure."""
    if result is None:
        return "placement was not checked yet"
    return (
        f"{result.ledgers} closed ledgers{unread_text(result)}: {result.broken.ledgers} break placement rules, "
        f"{result.improvable.ledgers} of them can be improved, {result.marked} were marked"
    )
