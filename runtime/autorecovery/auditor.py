"""The auditor: finds ledgers that lack copies, and marks them for the workers, Java's included.

Each of its tasks is a lane of its own, so a pass over all ledgers never keeps it from noticing that a bookie is gone.
The pass looks up the live bookies for each ledger, so one that comes back meanwhile is spared; ledgers stream through
it, so memory does not grow with their number.
Any process may take the office over at any time: what must survive is in ZooKeeper (``RecoveryNotes``).
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Set
from contextlib import aclosing

import msgspec

from bkctl.runtime.autorecovery.config import AutorecoveryConfig
from bkctl.runtime.autorecovery.copy_check import CopyCheck
from bkctl.runtime.autorecovery.lane import Lane, Turn
from bkctl.runtime.autorecovery.liveness import Liveness
from bkctl.runtime.autorecovery.metadata_check import PlacementCheck, ReplicaCensus
from bkctl.runtime.autorecovery.publisher import DisabledError, MarkOutcomes, MarkRequest, Publisher, count_written
from bkctl.runtime.autorecovery.returned_bookies import Absence, ReturnedBookies
from bkctl.runtime.client.ports import ClientPorts
from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.metadata.paths import Paths
from bkctl.runtime.metadata.replication.directories import ForeignNames
from bkctl.runtime.metadata.replication.given_up_note import bookies_given_up
from bkctl.runtime.metadata.replication.marks import list_marked_ids
from bkctl.runtime.metadata.replication.recovery_notes import NO_COPY, LostBookieNote
from bkctl.runtime.metadata.replication.recovery_status import read_given_up
from bkctl.runtime.metadata.replication.switches import AuditRequest
from bkctl.runtime.metadata.store import MetadataStore, Node, Versioned
from bkctl.runtime.replication.judge.fragments import repeated_members
from bkctl.runtime.replication.judge.verdict import (
    LedgerVerdict,
    ReplicationState,
    judge_ledger,
    wanted_members,
    write_set_rows,
)
from bkctl.storage.words import counted

logger = logging.getLogger(__name__)

_EARLY_MISSING_MIN = 2
_READS_IN_FLIGHT_MAX = 64
"""Enough for full speed. ZooKeeper answers in order, so the first mark comes after the reads that are in flight."""
REPEAT_S = 3600.0
"""Time between two passes while ledgers name a lost bookie: a worker may clear a mark that is still needed."""
BACKLOG_INTERVAL_S = 30.0
DISABLED = "autorecovery is disabled: nothing is marked"


class ScanAim(msgspec.Struct, frozen=True, kw_only=True):
    """What a pass marks. Bookies that are gone, but neither due nor early, are only collected.

    ``is_forced``: every bookie that is gone is due, unless it is excused.
    """

    due: frozenset[str] = frozenset()
    early: frozenset[str] = frozenset()
    excused: frozenset[str] = frozenset()
    is_forced: bool = False

    def given_up(self, missing: Collection[str]) -> frozenset[str]:
        """Those of the missing bookies that are no longer waited for."""
        return frozenset(missing) - self.excused if self.is_forced else self.due.intersection(missing)

    def without(self, returned: frozenset[str]) -> ScanAim:
        """The aim after these bookies came back: if they are lost again, they have a new deadline."""
        return msgspec.structs.replace(
            self, due=self.due - returned, early=self.early - returned, excused=self.excused | returned
        )


class LedgerFinding(msgspec.Struct, frozen=True):
    """What is wrong with a ledger. ``to_mark`` may be empty: no worker can replace any of its bookies now.

    ``lost_with``: bookies that had the only copies of some entries, and are no longer waited for. ``is_postponed``:
    some entries have copies only on bookies that are waited for.
    """

    to_mark: frozenset[str] = frozenset()
    lost_with: frozenset[str] = frozenset()
    is_postponed: bool = False


def examine_ledger(
    ledger_id: int, metadata: LedgerMetadata, live: frozenset[str], aim: ScanAim, accepted: Collection[str] = ()
) -> LedgerFinding | None:
    """Judge a ledger; None if all bookies that it needs are live, each in one place of its write sets. ``accepted``:
    bookies that an operator gave up with what they had of it. Pure."""
    if metadata.bookies() <= live:
        return _repeated(metadata)
    rows = write_set_rows(ledger_id, metadata)
    verdict = judge_ledger(rows, live, accepted)
    missing = wanted_members(verdict.rows, metadata.bookies()) - live
    if not missing:
        return _repeated(metadata)
    given_up = aim.given_up(missing)
    early = {
        bookie_id
        for row in verdict.rows
        if row.live_copies == 1 and len(row.missing_bookies) >= _EARLY_MISSING_MIN
        for bookie_id in row.missing_bookies
    }
    to_mark = _replaceable(metadata, verdict, given_up | aim.early.intersection(early))
    if verdict.replication is not ReplicationState.UNAVAILABLE:
        return LedgerFinding(to_mark)
    if (
        given_up
        and judge_ledger(rows, live | (missing - given_up), accepted).replication is ReplicationState.UNAVAILABLE
    ):
        return LedgerFinding(to_mark, lost_with=given_up)
    return LedgerFinding(to_mark, is_postponed=True)


def _repeated(metadata: LedgerMetadata) -> LedgerFinding | None:
    """The second places of bookies, once no member is missing: the repair of a marked ledger replaces any that is."""
    found = repeated_members(metadata)
    return LedgerFinding(found) if found else None


def _wanted(ledger_id: int, metadata: LedgerMetadata, live: frozenset[str], accepted: Collection[str]) -> Set[str]:
    if not accepted:
        return metadata.bookies()
    rows = judge_ledger(write_set_rows(ledger_id, metadata), live, accepted).rows
    return wanted_members(rows, metadata.bookies())


def _replaceable(metadata: LedgerMetadata, verdict: LedgerVerdict, bookies: frozenset[str]) -> frozenset[str]:
    """Those of the bookies that can be replaced in some segment: each of their entries there has a live copy."""
    hopeless = {
        (row.write_set.segment_first_entry_id, bookie_id)
        for row in verdict.rows
        if row.replication in {ReplicationState.UNAVAILABLE, ReplicationState.GIVEN_UP}
        for bookie_id in row.missing_bookies
    }
    return frozenset(
        bookie_id
        for segment in metadata.segments
        for bookie_id in bookies.intersection(segment.ensemble)
        if (segment.first_entry_id, bookie_id) not in hopeless
    )


@dataclasses.dataclass(eq=False)
class LostBookieScan:
    """One pass. What it found is in its fields once ``requests`` has ended. ``referenced``: what ledgers need."""

    ports: ClientPorts
    publisher: Publisher
    aim: Callable[[], ScanAim]
    live: Callable[[], frozenset[str]]
    ledgers: int = 0
    unreadable: int = 0
    lost: int = 0
    postponed: int = 0
    referenced: set[str] = dataclasses.field(default_factory=set)

    async def requests(self, turn: Turn) -> AsyncGenerator[MarkRequest, None]:
        """The ledgers to mark. Losses are noted on the way. Notes of losses that are over are removed, and those of
        losses that were accepted once their ledgers are deleted."""
        noted = await self.publisher.losses.ledger_ids()
        given_up = await read_given_up(self.publisher.notes)
        ledgers = self.ports.ledgers.read_all(window=_READS_IN_FLIGHT_MAX)
        async with aclosing(ledgers):
            async for ledger_id, found in ledgers:
                turn.beat()
                self.ledgers += 1
                note = given_up.pop(ledger_id, None)
                if not isinstance(found, Versioned):
                    self.unreadable += 1
                    self.publisher.report(logging.WARNING, f"{found}: the ledger is passed over")
                    noted.discard(ledger_id)
                    continue
                metadata, accepted = found.value, bookies_given_up(note)
                self.referenced |= _wanted(ledger_id, metadata, self.live(), accepted)
                finding = examine_ledger(ledger_id, metadata, self.live(), self.aim(), accepted)
                if finding is not None and finding.lost_with:
                    self.lost += 1
                    await self.publisher.note_loss(ledger_id, finding.lost_with, NO_COPY)
                elif ledger_id in noted and (finding is None or not finding.is_postponed):
                    await self.publisher.withdraw_loss(ledger_id, NO_COPY)
                noted.discard(ledger_id)
                if finding is not None:
                    self.postponed += finding.is_postponed
                    if finding.to_mark:
                        yield MarkRequest(ledger_id, tuple(sorted(finding.to_mark)))
        for ledger_id in sorted(noted):
            await self.publisher.losses.remove(str(ledger_id))  # the ledger was deleted
        for ledger_id in given_up:
            await self.publisher.notes.given_up.remove(str(ledger_id))


class Auditor:
    """Lives while this process holds the office. ``lanes``: all of its tasks."""

    def __init__(self, ports: ClientPorts, store: MetadataStore, config: AutorecoveryConfig) -> None:
        self._ports = ports
        self._store = store
        self._paths = Paths(ports.ledgers.root)
        self.publisher = Publisher(ports, store, config)
        self.liveness = Liveness(ports, store, config, self._note_bookie_check)
        self._interval_s = config.bookie_check_interval_s or None
        self._audits = Lane("audit", self._audit, ports.clock, interval_s=self._interval_s)
        self._audits.due_in(self._interval_s or REPEAT_S)  # the first check of the bookies wakes it
        self._returns = ReturnedBookies(ports, store, config, self.publisher)
        self._backlog = Lane("backlog", self._count_marks, ports.clock, interval_s=BACKLOG_INTERVAL_S)
        self._foreign = ForeignNames()
        self.marked: int | None = None
        """Ledgers of the cluster that are marked, whichever process marked them; None: not counted yet."""
        self.copies = CopyCheck(ports, store, config, self.publisher)
        self.replicas = ReplicaCensus(ports, store, config)
        self.placement = PlacementCheck(ports, store, config, self.publisher)
        checks = (
            (self.copies.lane, config.check_period_s),
            (self.replicas.lane, config.replicas_check_interval_s),
            (self.placement.lane, config.placement_check_interval_s),
        )
        switched_on = (lane for lane, interval_s in checks if interval_s)
        always = (self.liveness.lane, self._audits, self._returns.lane, self._backlog)
        self.lanes: tuple[Lane, ...] = (*always, *switched_on)
        self._is_disabled = False
        self._is_asked = False
        """An operator asks for a pass that marks all that is gone."""
        self._is_owed = True
        """A pass is needed whatever the deadlines: the first one, and one that was not finished."""
        self._aim = ScanAim()
        """What the running pass marks from now on."""
        self._covered = ScanAim()
        """What it has marked from its first ledger on."""
        self._marked: frozenset[str] = frozenset()
        """Lost bookies whose ledgers a pass has marked."""
        self._marked_early: frozenset[str] = frozenset()
        self._collected: frozenset[str] = frozenset()
        """Lost bookies that were lost before the last pass began."""
        self.last_pass: LostBookieScan | None = None
        """The last complete one."""

    async def serve(self) -> None:
        """Run all lanes until cancelled."""
        watches = [
            self._store.watch_node(self._paths.replication_disabled, self._note_switch),
            AuditRequest(self._store, self._paths.root).watch(self.trigger),
        ]
        try:
            with self.liveness.watching():
                async with asyncio.TaskGroup() as group:
                    for lane in self.lanes:
                        group.create_task(lane.serve())
        finally:
            for watch in watches:
                watch.cancel()

    def trigger(self) -> None:
        """Audit now, without waiting for the deadlines of bookies that are gone."""
        self.liveness.hurry()

    def _note_switch(self, node: Node | None) -> None:
        was_disabled, self._is_disabled = self._is_disabled, node is not None
        if was_disabled and not self._is_disabled:
            self.copies.lane.wake()
            self.placement.lane.wake()
        if not self._is_disabled and self._is_owed:
            self._audits.wake()

    def _note_return(self, returned: Mapping[str, LostBookieNote]) -> None:
        now_ms = self._ports.clock.now_ms()
        early = self._marked_early | self._aim.early
        absences = {
            each: Absence(note.lost_ms, now_ms)
            for each, note in returned.items()
            if note.due_ms <= now_ms or each in early
        }
        self._returns.note(returned, absences)
        self._aim = self._aim.without(frozenset(returned))
        self._covered = self._covered.without(frozenset(returned))
        last = self.last_pass
        if last is not None and (last.postponed or (last.lost and absences)):
            self._is_owed = True  # other bookies' ledgers have a copy again

    def _note_bookie_check(self, returned: Mapping[str, LostBookieNote], is_hurried: bool) -> None:
        """Begin a pass if one is needed that neither runs nor has ended."""
        if returned:
            self._note_return(returned)
        verdict, lost = self.liveness.verdict, frozenset(self.liveness.lost)
        self._marked &= lost
        self._marked_early &= lost
        self._collected &= lost
        is_running = self._audits.status.is_running
        if verdict.is_alarm:
            self._aim = self._covered = ScanAim()
        elif is_running:
            due, early = self._aim.due | verdict.due, self._aim.early | verdict.early
            self._aim = msgspec.structs.replace(self._aim, due=due, early=early)
        self._is_asked |= is_hurried
        self._is_owed |= bool(self.liveness.removed)  # whether ledgers still need them shows only in a pass
        unmarked = verdict.due - self._marked or verdict.early - self._marked_early
        is_needed = self._is_owed or unmarked or (verdict.is_alarm and lost - self._collected)
        if is_hurried or (is_needed and not is_running):
            self._audits.wake()

    async def _audit(self, turn: Turn) -> str:
        if not self.liveness.has_checked:
            return "waits for the first look at the bookies"
        if not await self.publisher.is_enabled():
            self._is_owed = True
            return DISABLED
        verdict, lost = self.liveness.verdict, dict(self.liveness.lost)
        is_asked, self._is_asked, self._is_owed = self._is_asked, False, False
        self._aim = self._covered = ScanAim(
            due=verdict.due,
            early=verdict.early,
            excused=self.liveness.excused,
            is_forced=is_asked and not verdict.is_alarm,
        )
        scan = LostBookieScan(self._ports, self.publisher, lambda: self._aim, lambda: self.liveness.live)
        outcomes: MarkOutcomes | None = None
        try:
            async with aclosing(scan.requests(turn)) as requests:
                outcomes = await self.publisher.publish(requests, turn)
        except DisabledError:
            return DISABLED
        finally:
            covered, self._aim, self._covered = self._covered, ScanAim(), ScanAim()
            if outcomes is None:
                self._is_owed, self._is_asked = True, self._is_asked or is_asked
        self._note_pass(scan, covered, lost)
        summary = _summary(scan, outcomes)
        if count_written(outcomes) or outcomes[None]:
            logger.info("audit finished: %s", summary)
        return summary

    def _note_pass(self, scan: LostBookieScan, covered: ScanAim, lost_before: Mapping[str, LostBookieNote]) -> None:
        lost = frozenset(self.liveness.lost).intersection(lost_before)
        self._marked |= covered.given_up(lost)
        self._marked_early |= lost & covered.early
        self._collected = lost
        self.last_pass = scan
        if scan.postponed + scan.lost and not self.liveness.live.isdisjoint(lost_before):
            self._is_owed = True  # a bookie that came back during the pass may have copies
        if self._marked & scan.referenced:
            self._audits.due_in(min(REPEAT_S, self._interval_s or REPEAT_S))
        self.liveness.note_referenced(scan.referenced, lost)

    async def _count_marks(self, turn: Turn) -> str:
        """Count the marked ledgers. It reads the directories of the marks, not the marks."""
        count = 0
        async with aclosing(list_marked_ids(self._store, self._paths.root, self._foreign)) as ids:
            async for _ in ids:
                count += 1
                turn.beat()
        self.marked = count
        return counted(count, "ledger is marked", "ledgers are marked")


def _summary(scan: LostBookieScan, outcomes: MarkOutcomes) -> str:
    parts = [f"{counted(scan.ledgers, 'ledger')}, {counted(count_written(outcomes), 'mark')} written"]
    parts += [
        f"{count} {what}"
        for count, what in (
            (outcomes[None], "not marked because of an error"),
            (scan.unreadable, "unreadable"),
            (scan.lost, "without a copy of some entries"),
            (scan.postponed, "without a copy until a bookie returns"),
        )
        if count
    ]
    return ", ".join(parts)
