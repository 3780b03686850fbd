"""When a periodic check is due, and the checks of all ledgers that read only metadata, as lanes of the auditor.

Java's auditor and ours share the node that says when a check last reached its end. A check is due when that time is
``interval_s`` ago, at once if it is unknown, and not before if it is in the future.

Its last result is a note, which a successor knows too. A check repeats no work if only storing the result failed. One
that could not read all ledgers stores no time, which other auditors would believe, and is repeated.
"""

from __future__ import annotations

import abc
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import ClassVar, Generic, TypeVar

import msgspec

from bkctl.runtime.autorecovery.config import AutorecoveryConfig
from bkctl.runtime.autorecovery.lane import Lane, Turn
from bkctl.runtime.autorecovery.publisher import DisabledError
from bkctl.runtime.client.ports import ClientPorts
from bkctl.runtime.errors import MetadataFormatError
from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.metadata.replication.recovery_notes import (
    CheckNote,
    MetadataCheckNote,
    RecoveryNotes,
    ReplicaCountNote,
)
from bkctl.runtime.metadata.replication.recovery_status import read_given_up
from bkctl.runtime.metadata.replication.switches import PeriodicCheck, ReplicationSwitches
from bkctl.runtime.metadata.store import MetadataStore
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
                if not isinstance(found, MetadataFormatError):
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
