"""When a periodic check is due, and the checks of all ledgers that read only metadata, as lanes of the auditor.

Java's auditor and ours share the node that says when a check last reached its end. A check is due when that time is
``interval_s`` ago, at once if it is unknown, and not before if it is in the future.

Its last result is a note, which a successor knows too. A check repeats no work if only storing the result failed. One
that could not read all ledgers stores no time, which other auditors would believe, and is repeated.
"""

from __future__ import annotations

import abc
import functools
import logging
import random
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing
from typing import ClassVar, Generic, NamedTuple, TypeVar

import msgspec

from bkctl.runtime.autorecovery.config import AutorecoveryConfig
from bkctl.runtime.autorecovery.lane import Lane, Turn
from bkctl.runtime.autorecovery.publisher import DisabledError, MarkRequest, Publisher, count_written
from bkctl.runtime.client.ports import ClientPorts
from bkctl.runtime.errors import MetadataFormatError
from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.metadata.bookies.registration import Registrations
from bkctl.runtime.metadata.replication.recovery_notes import (
    CheckNote,
    MetadataCheckNote,
    PlacementCheckNote,
    RecoveryNotes,
    ReplicaCountNote,
)
from bkctl.runtime.metadata.replication.recovery_status import read_given_up
from bkctl.runtime.metadata.replication.switches import PeriodicCheck, ReplicationSwitches
from bkctl.runtime.metadata.store import MetadataStore, Versioned
from bkctl.runtime.placement.choice import Choice, PlacementNeed, choose_replacements
from bkctl.runtime.placement.isolation import IsolationDemand, isolation_demand
from bkctl.runtime.placement.rules import BrokenRule, PlacementRules, faults_of, judge_ensemble
from bkctl.runtime.placement.survey import BookieSurvey, rules_that_apply
from bkctl.runtime.placement.view import ClusterView
from bkctl.runtime.replication.judge.fragments import segment_entries
from bkctl.runtime.replication.judge.verdict import LedgerVerdict, ReplicationState, judge_metadata
from bkctl.runtime.replication.turn.bookies import LiveBookies
from bkctl.storage.words import counted

logger = logging.getLogger(__name__)

DUE_CHECK_INTERVAL_S = 600.0
"""Whether an operator has made a check due is read at least this often."""
REPEAT_FIRST_S = 300.0
"""Pause before the first repeat of a check that could not read everything; it doubles after each further one."""
REPEATS_PER_INTERVAL = 10
"""The pause before a repeat is at most this part of the interval."""
DISABLED = "autorecovery is disabled: nothing is checked"
NOT_YET = "nothing was checked yet"
NoteT = TypeVar("NoteT", bound=MetadataCheckNote)
WARNINGS_MAX = 20
"""Ledgers whose metadata cannot be read are reported one by one up to this number."""
LEDGERS_PER_REFRESH = 500
"""Closed ledgers after which the registrations are read again, and whether autorecovery is disabled."""
VERDICTS_MAX = 10_000


async def last_check_ms(switches: ReplicationSwitches, check: PeriodicCheck) -> int | None:
    """When a check last reached its end; None if that is unknown. One operation."""
    try:
        return await switches.check_time_ms(check)
    except MetadataFormatError as error:
        logger.warning("ignored, and replaced by the next check: %s", error)
        return None


def wait_s(last_ms: int | None, now_ms: int, interval_s: float) -> float:
    """Time until a check is due that last ended at ``last_ms``; None: that is unknown. Pure."""
    return 0.0 if last_ms is None else max(0.0, interval_s - max(0, now_ms - last_ms) / 1000)


def repeat_in_s(repeats: int, interval_s: float) -> float:
    """Pause before a check that could not read everything is repeated; ``repeats`` so far. Pure."""
    return min(REPEAT_FIRST_S * 2.0 ** min(repeats, 20), interval_s / REPEATS_PER_INTERVAL)


class MetadataCheck(abc.ABC, Generic[NoteT]):
    """One of these checks. ``result``: the last one, of this auditor or of one before; None: not known yet."""

    name: ClassVar[str]
    """What is checked, and the name of the lane."""
    kind: ClassVar[PeriodicCheck]

    def __init__(
        self, ports: ClientPorts, store: MetadataStore, interval_s: float, note: CheckNote[NoteT], nothing: NoteT
    ) -> None:
        """``note``: where results are stored. ``nothing``: what each check begins with."""
        self.result: NoteT | None = None
        self._ports = ports
        self._switches = ReplicationSwitches(store, ports.ledgers.root)
        self._interval_s = interval_s
        self._note = note
        self._nothing = nothing
        self._found = nothing
        """What the running check has found so far."""
        self._is_stored = True
        self._repeats = 0
        self._repeat_ms = 0
        self.lane = Lane(self.name, self._run, ports.clock, interval_s=interval_s)

    @abc.abstractmethod
    async def _check(self, turn: Turn) -> None:
        """Check all ledgers, and count in ``_found``; DisabledError."""

    @abc.abstractmethod
    def _summary(self, result: NoteT, unread: str) -> str:
        """A result in a few words. ``unread``: words about the ledgers that it lacks, to follow their number."""

    async def _run(self, turn: Turn) -> str:
        if not await self._due_in_s():
            clock, began_ns = self._ports.clock, self._ports.clock.monotonic_ns()
            self._found = self._nothing
            try:
                await self._check(turn)
            except DisabledError:
                self.lane.due_in(DUE_CHECK_INTERVAL_S)
                return DISABLED
            seconds = (clock.monotonic_ns() - began_ns) / 1e9
            await self._keep(msgspec.structs.replace(self._found, ended_ms=clock.now_ms(), seconds=seconds))
        self.lane.due_in(min(await self._due_in_s(), DUE_CHECK_INTERVAL_S))
        turn.result_ms = None if self.result is None else self.result.ended_ms
        return self._words()

    def _words(self) -> str:
        if self.result is None:
            return NOT_YET
        count = self.result.unreadable.ledgers
        return self._summary(self.result, f", {count} could not be read" if count else "")

    async def _ledgers(self, turn: Turn) -> AsyncGenerator[tuple[int, LedgerMetadata], None]:
        """All ledgers that can be read. The others are counted, and the first ones reported. Close the iterator."""
        async with aclosing(self._ports.ledgers.read_all()) as ledgers:
            async for ledger_id, found in ledgers:
                turn.beat()
                if isinstance(found, Versioned):
                    yield ledger_id, found.value
                    continue
                if self._found.unreadable.ledgers < WARNINGS_MAX:
                    logger.warning("not in the check of %s: %s", self.name, found)
                unreadable = self._found.unreadable.plus(ledger_id)
                self._found = msgspec.structs.replace(self._found, unreadable=unreadable)

    async def _due_in_s(self) -> float:
        """Time until the check is due. One operation, two the first time, more after an error."""
        if self.result is None:
            self.result = await self._note.find()
        if not self._is_stored:
            await self._store()
        last_ms, now_ms = await last_check_ms(self._switches, self.kind), self._ports.clock.now_ms()
        return max(wait_s(last_ms, now_ms, self._interval_s), (self._repeat_ms - now_ms) / 1000)

    async def _keep(self, result: NoteT) -> None:
        """The check has reached its end."""
        self.result, self._is_stored = result, False
        logger.log(self._level(result), "check of %s finished: %s", self.name, self._words())
        if result.unreadable.ledgers:
            pause_s = repeat_in_s(self._repeats, self._interval_s)
            self._repeats, self._repeat_ms = self._repeats + 1, result.ended_ms + round(pause_s * 1000)
        else:
            self._repeats = self._repeat_ms = 0
        await self._store()

    def _level(self, _: NoteT) -> int:
        """How serious a result is, for the log."""
        return logging.INFO

    async def _store(self) -> None:
        assert self.result is not None
        await self._note.put(self.result)
        if not self.result.unreadable.ledgers:
            await self._switches.set_check_time_ms(self.kind, self.result.ended_ms)
        self._is_stored = True


class ReplicaCensus(MetadataCheck[ReplicaCountNote]):
    """Counts the copies of all ledgers on registered bookies, once in ``replicas_check_interval_s``.

    ``judge_ledger`` is the rule. It reads no entry, so a bookie that lacks entries counts as if it had them; the check
    of copies finds those. Unlike Java's count it never asks a bookie for its entries, because many do not answer that
    (replication section 7.4). It marks nothing.
    """

    name = "replicas"
    kind = PeriodicCheck.REPLICAS

    def __init__(self, ports: ClientPorts, store: MetadataStore, config: AutorecoveryConfig) -> None:
        self._notes = RecoveryNotes(store, ports.ledgers.root)
        nothing = ReplicaCountNote(ended_ms=0, seconds=0.0)
        super().__init__(ports, store, config.replicas_check_interval_s, self._notes.replica_count, nothing)
        self._live_bookies = LiveBookies(ports.registrations, ports.clock)

    async def _check(self, turn: Turn) -> None:
        given_up = await read_given_up(self._notes)
        async with aclosing(self._ledgers(turn)) as ledgers:
            async for ledger_id, metadata in ledgers:
                live = (await self._live_bookies.refresh()).live
                verdict = judge_metadata(ledger_id, metadata, live, given_up.get(ledger_id))
                self._found = with_ledger(self._found, ledger_id, verdict)

    def _level(self, result: ReplicaCountNote) -> int:
        return logging.WARNING if result.no_copy.ledgers or result.unreadable.ledgers else logging.INFO

    def _summary(self, result: ReplicaCountNote, unread: str) -> str:
        return (
            f"{counted(result.ledgers, 'ledger')}{unread}: "
            f"{result.no_copy.ledgers} with entries that have no live copy, "
            f"{result.one_copy.ledgers} with one, {result.below_ack_quorum.ledgers} below the ack quorum, "
            f"{result.below_write_quorum.ledgers} below the write quorum"
        )


def with_ledger(counts: ReplicaCountNote, ledger_id: int, verdict: LedgerVerdict) -> ReplicaCountNote:
    """The counts with one more ledger, without entries whose loss was accepted. Pure."""
    needed = (row for row in verdict.rows if row.replication is not ReplicationState.GIVEN_UP)
    fewest = min((row for row in needed if row.write_set.write_set), key=lambda row: row.live_copies, default=None)
    found = {}
    if fewest is not None:
        live, ack_quorum_size = fewest.live_copies, fewest.write_set.ack_quorum_size
        assert ack_quorum_size is not None
        found = {
            "no_copy": live == 0,
            "one_copy": live == 1 < fewest.expected_copies,
            "below_ack_quorum": live < ack_quorum_size,
            "below_write_quorum": live < fewest.expected_copies,
        }
    changed = {name: getattr(counts, name).plus(ledger_id) for name, applies in found.items() if applies}
    return msgspec.structs.replace(counts, ledgers=counts.ledgers + 1, **changed)


class PlacementCheck(MetadataCheck[PlacementCheckNote]):
    """Finds closed ledgers whose ensembles break placement rules, once in ``placement_check_interval_s``.

    While all registered bookies are in one rack, or in one region, that rule cannot be kept and does not count. Java's
    check then reports, and marks, every ledger (replication section 7.4).

    With ``is_misplaced_marked`` a ledger is marked without missing bookies, but only if a copy on another writable
    bookie would break fewer rules, and all its bookies are registered: lost copies come first.
    """

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
    """The members that a worker replaces in all segments with entries that break a rule.

    It is one after another, always the one that improves most, in complete segments only, because the writer of an open
    one chooses its bookies.
    """
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
