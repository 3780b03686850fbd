"""The replication worker: takes marked ledgers one after another, and repairs many of them at the same time.

It uses the locks of Java's workers, so both can share the work. Nothing ends it but its cancellation: during an outage
of ZooKeeper it waits, and after the loss of its session it begins again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from typing import Final, NamedTuple

import msgspec

from bkctl.runtime.autorecovery.config import AutorecoveryConfig, ReplicationTarget
from bkctl.runtime.autorecovery.lane import end_tasks, is_set_within
from bkctl.runtime.autorecovery.mark_listing import MarkListing, WorkQueue, combined, note_of
from bkctl.runtime.autorecovery.marked_ledger import MarkedLedgerRepair, MarkedOutcome, RepairTools
from bkctl.runtime.client.ports import ClientPorts
from bkctl.runtime.errors import MetadataUnavailableError
from bkctl.runtime.ledger.metadata import Segment
from bkctl.runtime.metadata.outage import MetadataOutage
from bkctl.runtime.metadata.replication.lock import ReplicationLocks
from bkctl.runtime.metadata.replication.marks import UnderReplicationMarks
from bkctl.runtime.metadata.replication.recovery_notes import FailedLedgerNote, HeldLedger, RecoveryNotes, WorkerStatus
from bkctl.runtime.metadata.replication.work import NotPicked, PickedLedger, ReplicationWork
from bkctl.runtime.metadata.store import MetadataStore
from bkctl.runtime.net.limited_log import LimitedLog
from bkctl.runtime.replication.config import CopyPace, Policy, ReplicationConfig
from bkctl.runtime.replication.copy.activity import LedgerActivity
from bkctl.runtime.replication.survey.checker import LedgerChecker
from bkctl.runtime.replication.turn.state import TurnTools
from bkctl.storage.errors import BkctlError

logger = logging.getLogger(__name__)

STOP_REPAIRS_S = 2.0
STOP_LOCKS_S = 2.5
"""How long a cancelled worker waits until its repairs have ended and until its locks are given back."""
LOCKED_PAUSE_S = 5.0
LOCKED_PAUSE_S_MAX = 60.0
"""About how long a ledger is left alone that another process has locked; this doubles while it is."""
OTHERS_PAUSE_S = 30.0
"""About how long a ledger is left alone that only another worker can repair."""
ERROR_PAUSE_S = 1.0
"""About how long the worker waits after an error, or after an interrupted repair."""
_OUTAGE_S_MAX = 365 * 86_400.0
"""The worker waits for ZooKeeper as long as it takes."""


class _WaitingWriter(NamedTuple):
    """The writer of an open ledger may replace a missing bookie in its last segment until ``due_ms``."""

    segment: Segment
    due_ms: int


_LOG_INTERVAL_S: Final = 300.0
"""A bookie that refuses this daemon fails many ledgers: one line for each bookie and cause in this time."""
_ENTRY_NUMBERS: Final = re.compile(r"\b(?:ledger|entry|entries) [\d, -]+")


class Worker:
    """Repairs marked ledgers until it is cancelled."""

    def __init__(
        self,
        ports: ClientPorts,
        store: MetadataStore,
        config: AutorecoveryConfig,
        replication: ReplicationConfig,
        *,
        holder: str,
    ) -> None:
        """``holder``: see ``ReplicationLocks``. ConfigurationError."""
        config.require_own_bookie()
        root, own_bookie = ports.ledgers.root, config.own_bookie
        is_local = config.replication_target is ReplicationTarget.LOCAL
        replication = msgspec.structs.replace(replication, metadata_outage_max_s=_OUTAGE_S_MAX)
        self._ports = ports
        self._clock = ports.clock
        self._config = config
        self._holder = holder
        self._own_bookie = own_bookie
        self._is_own_bookie_missed = False
        self._replication = replication
        self._notes = RecoveryNotes(store, root)
        self._wake = asyncio.Event()
        self._locks = ReplicationLocks(store, root, holder)
        self._marks = UnderReplicationMarks(store, root, ports.clock, is_ctime_stored=config.is_mark_time_stored)
        self._work = ReplicationWork(store, root, self._marks, self._locks, self._note_change)
        policy = Policy(config=replication, pace=CopyPace(bytes_per_s=config.copy_bytes_per_s))
        self._shared = TurnTools(
            ports,
            self._locks,
            policy,
            only_targets=(own_bookie,) if is_local and own_bookie is not None else (),
            on_outage=_report_outage,
        )
        self._live_bookies = self._shared.live_bookies
        checker = LedgerChecker(ports, self._live_bookies, replication, self._shared.pacer)
        self._tools = RepairTools(self._shared, checker, is_local, self._notes)
        self._queue = WorkQueue()
        self._listing = MarkListing(ports, store, config, self._work, self._notes, self._live_bookies, self._queue)
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._held: dict[int, tuple[LedgerActivity, int]] = {}
        self._writers: dict[int, _WaitingWriter] = {}
        self._locked_s: dict[int, float] = {}
        self._problem = ""
        self._not_repaired = LimitedLog(logger, _LOG_INTERVAL_S, "ledgers that are not repaired")
        self._finished_ms: int | None = None
        self._ledgers_repaired = self._ledgers_failed = self._copies_breaking_placement = 0

    def status(self) -> WorkerStatus:
        """What the worker did so far, and which locks it holds."""
        held = (
            HeldLedger(ledger_id=ledger_id, since_ms=since_ms, waits_for=activity.waits_for)
            for ledger_id, (activity, since_ms) in self._held.items()
        )
        return WorkerStatus(
            held=tuple(held),
            finished_ms=self._finished_ms,
            ledgers_repaired=self._ledgers_repaired,
            ledgers_failed=self._ledgers_failed,
            bytes_copied=self._shared.bytes_copied,
            waiting=self._queue.known_count,
            copies_breaking_placement=self._copies_breaking_placement,
        )

    async def serve(self) -> None:
        """Work until cancelled. Then all locks are given back within 5 seconds."""
        try:
            while True:
                try:
                    await self._serve()
                except MetadataUnavailableError as error:
                    await self._shared.outage.wait(error)
                except BkctlError as error:
                    if str(error) != self._problem:
                        logger.warning("the replication worker cannot take ledgers, and tries again: %s", error)
                    self._problem = str(error)
                    await self._clock.sleep(self._about(5 * ERROR_PAUSE_S))
        finally:
            self._not_repaired.close()
            await self._stop()

    async def _serve(self) -> None:
        listing: asyncio.Task[None] | None = None
        try:
            while True:
                self._wake.clear()
                if listing is not None and listing.done():
                    listing.result()
                    listing = None
                if await self._work.is_switched_off():
                    await self._wait(None)
                    continue
                await self._ports.ledgers.migration.require_none()
                if listing is None and self._listing.is_due(self._clock.now_ms()):
                    listing = asyncio.create_task(self._listing.run(self._tasks, self._wake.set))
                if not self._take(is_listing=listing is not None):
                    await self._wait(self._next_ms(is_listing=listing is not None))
        finally:
            if listing is not None:
                listing.cancel()
                await asyncio.gather(listing, return_exceptions=True)

    def _take(self, *, is_listing: bool) -> bool:
        """Begin with the next ledger; False if there is none, or no room for it."""
        if len(self._tasks) >= self._replication.ledgers_in_parallel:
            return False
        if is_listing and self._listing.is_young:
            return False
        ledger_id = self._queue.take(self._clock.now_ms())
        if ledger_id is None or ledger_id in self._tasks:
            return ledger_id is not None
        self._tasks[ledger_id] = asyncio.create_task(self._work_on(ledger_id))
        return True

    def _next_ms(self, *, is_listing: bool) -> int | None:
        """When there may be something to do without a wake-up; None: never, or only after one."""
        if len(self._tasks) >= self._replication.ledgers_in_parallel or (is_listing and self._listing.is_young):
            return None
        times = [self._queue.next_due_ms(), None if is_listing else self._listing.due_ms]
        return min((each for each in times if each is not None), default=None)

    async def _wait(self, until_ms: int | None) -> None:
        """Until something changes, but no longer than this."""
        pause_s = None if until_ms is None else max(0.0, (until_ms - self._clock.now_ms()) / 1000)
        await is_set_within(self._wake, pause_s)

    def _note_change(self) -> None:
        self._listing.note_change()
        self._wake.set()

    # -- one ledger ---------------------------------------------------------------------------------------------

    async def _work_on(self, ledger_id: int) -> None:
        try:
            await self._take_and_repair(ledger_id)
        except MetadataUnavailableError as error:
            self._postpone(ledger_id, ERROR_PAUSE_S)
            await self._shared.outage.wait(error)
        except BkctlError as error:
            logger.warning("ledger %d: the repair failed, and will be repeated: %s", ledger_id, error)
            self._postpone(ledger_id, self._config.failed_ledger_pause_first_s)
        except Exception:  # the worker must survive everything
            logger.exception("ledger %d: the repair failed, and will be repeated", ledger_id)
            self._postpone(ledger_id, self._config.failed_ledger_pause_first_s)
        finally:
            del self._tasks[ledger_id]
            self._wake.set()

    async def _take_and_repair(self, ledger_id: int) -> None:
        picked_ns = self._clock.monotonic_ns()
        picked = await self._work.pick(ledger_id)
        if isinstance(picked, NotPicked):
            pause_s = self._locked_s.pop(ledger_id, LOCKED_PAUSE_S)
            if picked is NotPicked.LOCKED:
                self._locked_s[ledger_id] = min(2 * pause_s, LOCKED_PAUSE_S_MAX)
                self._postpone(ledger_id, pause_s)
            return
        self._locked_s.pop(ledger_id, None)
        activity = LedgerActivity(ledger_id, picked_ns)
        self._held[ledger_id] = activity, self._clock.now_ms()
        try:
            former = await self._listing.failure_of(ledger_id)
            if not self._listing.may_take(ledger_id, former):
                return
            writer = self._writers.pop(ledger_id, None)
            is_due = writer is not None and writer.due_ms <= self._clock.now_ms()
            earlier_segment = writer.segment if writer is not None and is_due else None
            repair = MarkedLedgerRepair(self._tools, picked, activity)
            outcome = await picked.lock.while_held(lambda: repair.run(picked_ns, earlier_segment))
            outcome = outcome or MarkedOutcome(is_interrupted=True)
            await self._finish_or_postpone(picked, outcome, former, writer)
        finally:
            del self._held[ledger_id]
            if self._shared.outage.is_lasting:
                self._locks.release_later(picked.lock)
            else:
                await picked.release()

    async def _finish_or_postpone(
        self,
        picked: PickedLedger,
        outcome: MarkedOutcome,
        former: FailedLedgerNote | None,
        writer: _WaitingWriter | None,
    ) -> None:
        """Clear the mark, or note when the ledger is to be taken again."""
        ledger_id = picked.ledger_id
        if outcome.broken_rules:
            self._copies_breaking_placement += len(outcome.broken_rules)
            broken = "; ".join(dict.fromkeys(map(str, outcome.broken_rules)))
            logger.warning("ledger %d: no bookie kept the placement rules for its lost copies: %s", ledger_id, broken)
        if outcome.is_interrupted or not picked.lock.is_held:
            self._postpone(ledger_id, ERROR_PAUSE_S)
            return
        now_ms = self._clock.now_ms()
        if outcome.open_segment is not None:
            if writer is None or writer.segment != outcome.open_segment:
                wait_ms = int(self._replication.open_ledger_wait_s * 1000)
                writer = _WaitingWriter(outcome.open_segment, now_ms + wait_ms)
            self._writers[ledger_id] = writer
            self._queue.postpone(ledger_id, writer.due_ms)
        if outcome.failures:
            self._ledgers_failed += 1
            failure = combined(outcome.failures)
            note = note_of(failure, former, now_ms, self._config, self._holder)
            await self._notes.failures.put(str(ledger_id), note)
            if former is None or former.reason != note.reason:  # the detail names one of many targets
                cause = f"{failure.reason}: {_ENTRY_NUMBERS.sub('#', failure.detail)}"
                self._not_repaired.report(f"ledger {ledger_id} is not repaired", failure.detail, cause)
            self._listing.postpone(ledger_id, note)
        elif outcome.is_for_others:
            await self._check_own_bookie()
            self._postpone(ledger_id, OTHERS_PAUSE_S)
        elif outcome.is_done:
            await self._finish(picked, outcome, former)

    async def _finish(self, picked: PickedLedger, outcome: MarkedOutcome, former: FailedLedgerNote | None) -> None:
        ledger_id, checked_ns = picked.ledger_id, self._clock.monotonic_ns()
        if former is not None:
            await self._notes.failures.remove(str(ledger_id))
        if not await self._work.finish(picked):
            self._queue.postpone(ledger_id, self._clock.now_ms())  # marked again meanwhile
        elif outcome.checked_bookies:
            age_s = (self._clock.monotonic_ns() - checked_ns) / 1e9
            lost = outcome.checked_bookies - (await self._live_bookies.refresh(age_s)).live
            if lost:
                await self._marks.mark(ledger_id, sorted(lost))
        self._ledgers_repaired += 1
        self._finished_ms = self._clock.now_ms()

    async def _check_own_bookie(self) -> None:
        """Report that it cannot take copies, once."""
        is_missed = self._own_bookie not in (await self._live_bookies.refresh()).writable
        if is_missed and not self._is_own_bookie_missed:
            logger.warning("bookie %s, the only one that this worker copies to, is not writable", self._own_bookie)
        self._is_own_bookie_missed = is_missed

    def _postpone(self, ledger_id: int, pause_s: float) -> None:
        self._queue.postpone(ledger_id, self._clock.now_ms() + int(1000 * self._about(pause_s)))

    def _about(self, seconds: float) -> float:
        """With jitter, so that workers do not act at the same moment."""
        return seconds * self._clock.random.uniform(0.5, 1.5)

    async def _stop(self) -> None:
        await end_tasks(self._tasks.values(), STOP_REPAIRS_S)
        with contextlib.suppress(TimeoutError, BkctlError):
            async with asyncio.timeout(STOP_LOCKS_S):
                await self._locks.close()


def _report_outage(outage: MetadataOutage) -> None:
    if outage.is_over:
        logger.info("ZooKeeper responds again: the replication worker goes on")
    else:
        logger.warning("the replication worker waits for ZooKeeper: %s", outage.reason)
