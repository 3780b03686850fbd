"""The auditor: finds ledgers that lack copies, and marks them for the workers, Java's included.

Each of its tasks is a lane of its own, so a pass over all ledgers never keeps it from noticing that a bookie is gone.
Any process may take the office over at any time: what must survive is in ZooKeeper (``RecoveryNotes``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import aclosing

from bkctl.runtime.autorecovery.config import AutorecoveryConfig
from bkctl.runtime.autorecovery.copy_check import CopyCheck
from bkctl.runtime.autorecovery.lane import Lane, Turn
from bkctl.runtime.autorecovery.liveness import Liveness
from bkctl.runtime.autorecovery.lost_bookie_scan import LostBookieScan, ScanAim
from bkctl.runtime.autorecovery.metadata_check import ReplicaCensus
from bkctl.runtime.autorecovery.placement_check import PlacementCheck
from bkctl.runtime.autorecovery.publisher import DisabledError, MarkOutcomes, Publisher, count_written
from bkctl.runtime.autorecovery.returned_bookies import Absence, ReturnedBookies
from bkctl.runtime.client.ports import ClientPorts
from bkctl.runtime.metadata.paths import Paths
from bkctl.runtime.metadata.replication.directories import ForeignNames
from bkctl.runtime.metadata.replication.marks import list_marked_ids
from bkctl.runtime.metadata.replication.recovery_notes import LostBookieNote
from bkctl.runtime.metadata.replication.switches import AuditRequest
from bkctl.runtime.metadata.store import MetadataStore, Node
from bkctl.storage.words import counted

logger = logging.getLogger(__name__)

REPEAT_S = 3600.0
"""Time between two passes while ledgers name a lost bookie: a worker may clear a mark that is still needed."""

BACKLOG_INTERVAL_S = 30.0

DISABLED = "autorecovery is disabled: nothing is marked"


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
            self._aim = self._aim.and_also(verdict.due, verdict.early)
        self._is_asked |= is_hurried
        self._is_owed |= bool(self.liveness.removed)  # whether ledgers still need them shows only in a pass
        unmarked = verdict.due - self._marked or verdict.early - self._marked_early
        is_needed = self._is_owed or unmarked or (verdict.is_alarm and lost - self._collected)
        if is_hurried or (is_needed and not is_running):
            self._audits.wake()

    async def _audit(self, turn: Turn) -> str:
        """One pass over all metadata."""
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
        """A pass has ended."""
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
