"""Re-replicates all data of leaving bookies, dead or alive: plans over all ledgers, repairs each, and reports.

Source: replication sections 6 and 15.1. Unlike Java's `recover` it takes the replication lock of every ledger, limits
requests in flight, verifies copies before the metadata references them, and continues after failed ledgers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection

import msgspec

from runtime.client.ports import ClientPorts
from runtime.errors import BookieError, LedgerNotFoundError, MetadataError, RefusedError
from runtime.ledger.owner import owner_of
from runtime.metadata.bookies.cookies import CookieStore
from runtime.metadata.bookies.registration import RegistrationClient
from runtime.metadata.replication.lock import ReplicationLocks
from runtime.replication.byte_window import ByteWindow, for_each_bounded
from runtime.replication.config import OpenLedgers, ReplicationConfig
from runtime.replication.copies import CopyReader
from runtime.replication.copy_targets import TargetChooser
from runtime.replication.flow_window import FlowWindows
from runtime.replication.ledger_activity import LedgerActivity
from runtime.replication.ledger_queue import LedgerQueue
from runtime.replication.ledger_repair import LedgerRepair, RepairOrder, RepairTools
from runtime.replication.live_bookies import LiveBookies
from runtime.replication.loss_proof import LossProof
from runtime.replication.metadata_outage import MetadataOutage, OutageWait
from runtime.replication.recovery_plan import LedgerPlan, RecoveryPlan
from runtime.replication.recovery_report import RecoveryReport, RecoveryTally
from runtime.replication.recovery_scan import PlanDemand, RecoveryScan
from runtime.replication.replicator import Replicator

PROGRESS_INTERVAL_NS = 100_000_000
TICK_S = 1.0


class RecoveryProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of a running recovery."""

    ledgers_done: int
    ledgers_total: int
    ledgers_failed: int
    entries_copied: int
    entries_planned: int
    bytes_copied: int
    bytes_planned: int
    """Estimated; ledgers of unknown size do not count."""
    waiting_for_writers: int = 0
    """Open ledgers that are left alone for some time, so that their writers can replace the bookies."""
    current_ledgers: tuple[int, ...]
    """Ledgers in progress, oldest first; the first one may be delaying the run."""
    oldest_s: float = 0.0
    """Seconds since the work on the oldest ledger began."""
    oldest_waits_for: str = ""
    """What the oldest ledger waits for; empty if nothing."""


class BookieRecovery:
    """Plans and runs recoveries of bookies."""

    def __init__(
        self,
        ports: ClientPorts,
        registration: RegistrationClient,
        cookies: CookieStore,
        locks: ReplicationLocks,
        config: ReplicationConfig,
        on_outage: Callable[[MetadataOutage], None] = lambda _: None,
    ) -> None:
        """``on_outage`` is called when the metadata store stops answering and the run waits, and when it continues."""
        self._ports = ports
        self._registration = registration
        self._locks = locks
        self._config = config
        self._on_outage = on_outage
        self.outage = OutageWait(registration.snapshot, ports.clock, config.metadata_outage_max_s, on_outage)
        """Waits for the metadata store in all methods but ``run``. Callers that build on this class may use it too."""
        self.loss_proof = LossProof(ports, registration, config)
        self._scan = RecoveryScan(ports, registration, cookies, config)

    async def require_down(self, bookie_ids: Collection[str], on_wait: Callable[[str], None] | None = None) -> None:
        """Return once none of the bookies is registered; RefusedError if one is running or stays registered.

        The session of a killed bookie lasts some seconds longer. So this waits up to ``registration_wait_s`` if a
        registered bookie does not answer, and calls ``on_wait`` once with its id. If it answers, raises immediately.
        """
        deadline_ns = self._ports.clock.monotonic_ns() + int(self._config.registration_wait_s * 1e9)
        told: set[str] = set()
        while True:
            registered = await self.outage.outlast(lambda: self.registered(bookie_ids))
            if not registered:
                return
            for bookie_id in registered:
                if await self.answers(bookie_id):
                    raise RefusedError(f"bookie {bookie_id} is up and serving; stop it first")
                if on_wait is not None and bookie_id not in told:
                    told.add(bookie_id)
                    on_wait(bookie_id)
            if self._ports.clock.monotonic_ns() >= deadline_ns:
                waited = f"after {self._config.registration_wait_s:g} s"
                raise RefusedError(f"bookie {registered[0]} does not respond but is still registered {waited}")
            await self._ports.clock.sleep(0.5)

    async def registered(self, bookie_ids: Collection[str]) -> list[str]:
        """The given bookies that are currently registered, sorted."""
        return sorted((await self._registration.snapshot()).live.intersection(bookie_ids))

    async def answers(self, bookie_id: str) -> bool:
        """Whether the bookie answers a request."""
        try:
            await self._ports.bookies.info(bookie_id)
        except BookieError:
            return False
        return True

    async def plan(
        self,
        bookie_ids: Collection[str],
        ledger_ids: Collection[int] | None = None,
        *,
        unreachable: Collection[str] | None = None,
        only_targets: Collection[str] = (),
    ) -> RecoveryPlan:
        """Like ``scan``, but refuses ids that are probably misspelt, and targets that cannot be used.

        BookieNotFoundError for a bookie without cookie, registration and ledgers. ``only_targets``: copy only to these;
        RefusedError if one is not writable, or if strict placement rules forbid it.
        """
        demand = _demand(bookie_ids, ledger_ids, unreachable, only_targets)
        return await self.outage.outlast(lambda: self._scan.plan(demand))

    async def scan(
        self,
        bookie_ids: Collection[str],
        ledger_ids: Collection[int] | None = None,
        *,
        unreachable: Collection[str] | None = None,
    ) -> RecoveryPlan:
        """Find all ledgers that reference any of the bookies, with one scan of all ledger metadata.

        ``ledger_ids``: read only these; LedgerNotFoundError if one is absent. ``unreachable``: bookies that are never
        asked; None means ``bookie_ids``, which is right for dead bookies. MetadataOutageError.
        """
        demand = _demand(bookie_ids, ledger_ids, unreachable)
        return await self.outage.outlast(lambda: self._scan.scan(demand))

    async def run(
        self,
        plan: RecoveryPlan,
        on_progress: Callable[[RecoveryProgress], None] | None = None,
        *,
        open_ledgers: OpenLedgers = OpenLedgers.FENCE,
    ) -> RecoveryReport:
        """Carry out a plan, after reading the metadata of each ledger again. Safe to interrupt and repeat.

        With ``WAIT``, ledgers with a leaving bookie in the open last segment are worked on last, ``open_ledger_wait_s``
        after the plan was made. They are fenced only if the segment is still the same.

        ``on_progress`` is called at most ten times per second, and once at the end, even after an error. Unreachable
        bookies must be down: call ``require_down`` first. Waits during an outage of the metadata store;
        MetadataOutageError if it is too long.
        """
        ports = (self._ports, self._registration, self._locks)
        order = RepairOrder(frozenset(plan.bookie_ids), frozenset(plan.unreachable), open_ledgers)
        return await _RecoveryRun(*ports, self._config, plan, order, on_progress, self._on_outage).run()


def _demand(
    bookie_ids: Collection[str],
    ledger_ids: Collection[int] | None,
    unreachable: Collection[str] | None,
    only_targets: Collection[str] = (),
) -> PlanDemand:
    return PlanDemand(
        leaving=frozenset(bookie_ids),
        unreachable=frozenset(bookie_ids if unreachable is None else unreachable),
        ledger_ids=None if ledger_ids is None else tuple(ledger_ids),
        only_targets=frozenset(only_targets),
    )


class _RecoveryRun:
    """State of one run of a plan."""

    def __init__(
        self,
        ports: ClientPorts,
        registration: RegistrationClient,
        locks: ReplicationLocks,
        config: ReplicationConfig,
        plan: RecoveryPlan,
        order: RepairOrder,
        on_progress: Callable[[RecoveryProgress], None] | None,
        on_outage: Callable[[MetadataOutage], None],
    ) -> None:
        self._ports = ports
        self._config = config
        self._plan = plan
        self._order = order
        self._on_progress = on_progress
        self._progress_at_ns = 0
        self._on_outage = on_outage
        self._outage = OutageWait(registration.snapshot, ports.clock, config.metadata_outage_max_s, self._report_outage)
        self._live_bookies = LiveBookies(registration, ports.clock, config.registration_wait_s, plan.targets)
        single_reads = ByteWindow(config.bytes_in_flight_max, config.entries_in_flight_max)
        self._copies = CopyReader(ports.bookies, ports.clock, single_reads, config, self._live_bookies.is_live)
        windows = FlowWindows(config.bytes_in_flight_max)
        self._repair = LedgerRepair(
            RepairTools(
                ports=ports,
                locks=locks,
                replicator=Replicator(ports, self._copies, windows, single_reads, config, self._count_copied),
                live_bookies=self._live_bookies,
                targets=TargetChooser(
                    self._live_bookies,
                    ports.suspects,
                    ports.clock,
                    ports.placement,
                    config.placement,
                    plan.targets if plan.is_restricted else (),
                ),
                outage=self._outage,
                config=config,
            )
        )
        self._queue = LedgerQueue(self._ledgers(), ports.clock, config)
        self._tally = RecoveryTally(config.verify)
        self._totals = plan.totals
        self._waiting_for_writers = 0
        self._current: dict[int, LedgerActivity] = {}
        self._entries_copied = 0
        self._bytes_copied = 0

    async def run(self) -> RecoveryReport:
        started_ns = self._ports.clock.monotonic_ns()
        for bookie_id in self._order.unreachable:
            self._ports.suspects.add(bookie_id)  # closing a ledger must not choose them again
        ticking = asyncio.create_task(self._tick())
        try:
            await self._outage.outlast(self._live_bookies.refresh)
            await for_each_bounded(self._queue, self._repair_one, self._config.ledgers_in_parallel)
        finally:
            ticking.cancel()
            self._report_progress(is_forced=True)
        seconds = (self._ports.clock.monotonic_ns() - started_ns) / 1e9
        return self._tally.report(self._plan.bookie_ids, seconds, self._plan.unreadable)

    async def _tick(self) -> None:
        """Report progress also while all ledgers wait."""
        while self._on_progress is not None:
            await self._ports.clock.sleep(TICK_S)
            self._report_progress()

    async def _ledgers(self) -> AsyncIterator[LedgerPlan]:
        """The ledgers in the order of work; those that wait for their writers come last, after the wait."""
        waits = self._order.open_ledgers is OpenLedgers.WAIT
        for ledger in self._plan.ledgers:
            if not (waits and ledger.may_have_writer):
                yield ledger
        if not waits:
            return
        due_ns = self._plan.seen_at_ns + int(self._config.open_ledger_wait_s * 1e9)
        written = [ledger for ledger in self._plan.ledgers if ledger.may_have_writer]
        wait_ns = due_ns - self._ports.clock.monotonic_ns()
        if written and wait_ns > 0:
            self._waiting_for_writers = len(written)
            self._report_progress(is_forced=True)
            await self._ports.clock.sleep(wait_ns / 1e9)
            self._waiting_for_writers = 0
        for ledger in written:
            yield ledger

    async def _repair_one(self, ledger: LedgerPlan) -> None:
        activity = LedgerActivity(ledger.ledger_id, self._ports.clock.monotonic_ns())
        self._current[ledger.ledger_id] = activity
        seen = None if ledger.open_look is None else ledger.open_look.segment
        order = self._order._replace(seen=seen)
        try:
            result = await self._outage.outlast(lambda: self._repair.repair(ledger.ledger_id, order, activity))
            if not self._queue.finish(ledger, result):
                return
            if result.failures or result.was_closed:
                result = result.with_owner(await self._owner(ledger.ledger_id))
            self._tally.add(result)
        finally:
            del self._current[ledger.ledger_id]
        self._report_progress()

    async def _owner(self, ledger_id: int) -> str | None:
        """The owner, for the report; None if it cannot be read."""
        try:
            return owner_of(dict((await self._ports.ledgers.read(ledger_id)).value.custom_metadata))
        except (LedgerNotFoundError, MetadataError):
            return None

    def _report_outage(self, outage: MetadataOutage) -> None:
        self._live_bookies.note_outage(is_over=outage.is_over)
        self._copies.note_outage()
        self._on_outage(outage)

    def _count_copied(self, entries: int, bytes_copied: int) -> None:
        self._entries_copied += entries
        self._bytes_copied += bytes_copied
        self._report_progress()

    def _report_progress(self, *, is_forced: bool = False) -> None:
        if self._on_progress is None:
            return
        now_ns = self._ports.clock.monotonic_ns()
        if not is_forced and now_ns - self._progress_at_ns < PROGRESS_INTERVAL_NS:
            return
        self._progress_at_ns = now_ns
        oldest = next(iter(self._current.values()), None) or self._queue.oldest_locked()
        self._on_progress(
            RecoveryProgress(
                ledgers_done=self._tally.ledgers,
                ledgers_total=self._totals.ledgers,
                ledgers_failed=self._tally.ledgers_failed,
                entries_copied=self._entries_copied,
                entries_planned=self._totals.entries,
                bytes_copied=self._bytes_copied,
                bytes_planned=self._totals.bytes_to_copy,
                waiting_for_writers=self._waiting_for_writers,
                current_ledgers=tuple(self._current),
                oldest_s=0.0 if oldest is None else (now_ns - oldest.since_ns) / 1e9,
                oldest_waits_for="" if oldest is None else oldest.waits_for,
            )
        )
