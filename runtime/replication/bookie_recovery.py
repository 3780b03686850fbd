"""Re-replicates all data of leaving bookies, dead or alive: plans over all ledgers, repairs each, and reports.

Source: replication sections 6 and 15.1. Unlike Java's `recover` it takes the replication lock of every ledger, limits
requests in flight, verifies copies before the metadata references them, and continues after failed ledgers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection

import msgspec

from runtime.client.ports import ClientPorts
from runtime.errors import BookieError, BookieNotFoundError, RefusedError
from runtime.metadata.bookies.cookies import CookieStore
from runtime.metadata.bookies.registration import RegistrationClient
from runtime.metadata.replication.lock import ReplicationLocks
from runtime.metadata.store import Versioned
from runtime.replication.byte_window import ByteWindow, for_each_bounded
from runtime.replication.config import OpenLedgers, ReplicationConfig
from runtime.replication.copies import CopyReader
from runtime.replication.copy_targets import PlacementForecast, TargetChooser
from runtime.replication.flow_window import FlowWindows
from runtime.replication.ledger_activity import LedgerActivity
from runtime.replication.ledger_repair import LedgerRepair, RepairOrder, RepairTools
from runtime.replication.live_bookies import LiveBookies
from runtime.replication.loss_proof import LossProof
from runtime.replication.metadata_outage import MetadataOutage, OutageWait
from runtime.replication.recovery_report import (
    FailureReason,
    LedgerFailure,
    LedgerPlan,
    LedgerRepaired,
    RecoveryPlan,
    RecoveryReport,
    plan_ledger,
    recovery_report,
)
from runtime.replication.replicator import Replicator

PROGRESS_INTERVAL_NS = 100_000_000


class RecoveryProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of a running recovery."""

    ledgers_done: int
    ledgers_total: int
    ledgers_failed: int
    entries_copied: int
    entries_planned: int
    bytes_copied: int
    current_ledgers: tuple[int, ...]
    """Ledgers in progress, oldest first; the first one may be delaying the run."""


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
        self._cookies = cookies
        self._locks = locks
        self._config = config
        self._on_outage = on_outage
        self.outage = OutageWait(registration.snapshot, ports.clock, config.metadata_outage_max_s, on_outage)
        """Waits for the metadata store in all methods but ``run``. Callers that build on this class may use it too."""
        self.loss_proof = LossProof(ports, registration, config)

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
                if await self._answers(bookie_id):
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

    async def _answers(self, bookie_id: str) -> bool:
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
    ) -> RecoveryPlan:
        """Like ``scan``, but BookieNotFoundError for a bookie without cookie, registration and ledgers.

        Such an id is probably misspelt.
        """
        plan = await self.scan(bookie_ids, ledger_ids, unreachable=unreachable)
        named = {bookie for ledger in plan.ledgers for fragment in ledger.fragments for bookie in fragment.ensemble}
        await self._require_known(frozenset(bookie_ids) - named)
        return plan

    async def scan(
        self,
        bookie_ids: Collection[str],
        ledger_ids: Collection[int] | None = None,
        *,
        unreachable: Collection[str] | None = None,
    ) -> RecoveryPlan:
        """Find all ledgers that reference any of the bookies, with one scan of all ledger metadata.

        ``ledger_ids`` limits the plan to these ledgers. ``unreachable``: bookies that are never asked; None means
        ``bookie_ids``, which is right for dead bookies. MetadataOutageError.
        """
        never_asked = frozenset(bookie_ids if unreachable is None else unreachable)
        return await self.outage.outlast(lambda: self._scan(frozenset(bookie_ids), never_asked, ledger_ids))

    async def _scan(
        self, leaving: frozenset[str], unreachable: frozenset[str], ledger_ids: Collection[int] | None
    ) -> RecoveryPlan:
        barred = leaving | unreachable
        plans: list[LedgerPlan] = []
        unreadable: list[LedgerFailure] = []
        registrations = await self._registration.snapshot()
        live = registrations.live - unreachable
        placement = self._ports.placement
        survey = await placement.survey(registrations.writable)
        forecast = PlacementForecast(survey, placement.rules, barred, self._ports.clock.random)
        scanned = 0
        async for ledger_id, found in self._ports.ledgers.read_all(window=self._config.metadata_reads_in_flight_max):
            scanned += 1
            if ledger_ids is not None and ledger_id not in ledger_ids:
                continue
            if not isinstance(found, Versioned):
                unreadable.append(LedgerFailure(ledger_id, FailureReason.METADATA_UNREADABLE, (), str(found)))
                continue
            if not leaving.isdisjoint(found.value.bookies()):
                plans.append(plan_ledger(ledger_id, found.value, found.version, leaving, live, forecast.broken_rules))
        return RecoveryPlan(
            bookie_ids=tuple(sorted(leaving)),
            ledgers_scanned=scanned,
            ledgers=tuple(sorted(plans, key=lambda plan: (plan.surviving_copies, -plan.ledger_id))),
            unreadable=tuple(sorted(unreadable, key=lambda failure: failure.ledger_id)),
            targets=tuple(sorted(set(registrations.writable) - barred)),
            registered=tuple(sorted(registrations.live & leaving)),
            unreachable=tuple(sorted(unreachable)),
        )

    async def _require_known(self, bookie_ids: Collection[str]) -> None:
        for bookie_id in sorted(bookie_ids):
            is_registered = bookie_id in (await self._registration.snapshot()).live
            if not is_registered and await self._cookies.find(bookie_id) is None:
                raise BookieNotFoundError(f"bookie {bookie_id} is unknown: no cookie, and no ledger references it")

    async def run(
        self,
        plan: RecoveryPlan,
        on_progress: Callable[[RecoveryProgress], None] | None = None,
        *,
        open_ledgers: OpenLedgers = OpenLedgers.FENCE,
    ) -> RecoveryReport:
        """Carry out a plan, after reading the metadata of each ledger again. Safe to interrupt and repeat.

        ``on_progress`` is called at most ten times per second, and once at the end, even after an error. Unreachable
        bookies must be down: call ``require_down`` first. Waits during an outage of the metadata store;
        MetadataOutageError if it is too long.
        """
        ports = (self._ports, self._registration, self._locks)
        order = RepairOrder(frozenset(plan.bookie_ids), frozenset(plan.unreachable), open_ledgers)
        return await _RecoveryRun(*ports, self._config, plan, order, on_progress, self._on_outage).run()


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
                    self._live_bookies, ports.suspects, ports.clock, ports.placement, config.placement
                ),
                outage=self._outage,
                config=config,
            )
        )
        self._results: list[LedgerRepaired] = []
        self._ledgers_failed = 0
        self._entries_planned = plan.entries
        self._current: dict[int, LedgerActivity] = {}
        self._entries_copied = 0
        self._bytes_copied = 0

    async def run(self) -> RecoveryReport:
        started_ns = self._ports.clock.monotonic_ns()
        for bookie_id in self._order.unreachable:
            self._ports.suspects.add(bookie_id)  # closing a ledger must not choose them again
        try:
            await self._outage.outlast(self._live_bookies.refresh)
            await for_each_bounded(self._ledger_ids(), self._repair_one, self._config.ledgers_in_parallel)
        finally:
            self._report_progress(is_last=True)
        seconds = (self._ports.clock.monotonic_ns() - started_ns) / 1e9
        return recovery_report(self._plan, self._results, seconds, self._config.verify)

    async def _ledger_ids(self) -> AsyncIterator[int]:
        for ledger in self._plan.ledgers:
            yield ledger.ledger_id

    async def _repair_one(self, ledger_id: int) -> None:
        activity = self._current[ledger_id] = LedgerActivity(ledger_id, self._ports.clock.monotonic_ns())
        try:
            result = await self._outage.outlast(lambda: self._repair.repair(ledger_id, self._order, activity))
            self._results.append(result)
            self._ledgers_failed += bool(result.failures)
        finally:
            del self._current[ledger_id]
        self._report_progress()

    def _report_outage(self, outage: MetadataOutage) -> None:
        self._live_bookies.note_outage(is_over=outage.is_over)
        self._copies.note_outage()
        self._on_outage(outage)

    def _count_copied(self, entries: int, bytes_copied: int) -> None:
        self._entries_copied += entries
        self._bytes_copied += bytes_copied
        self._report_progress()

    def _report_progress(self, *, is_last: bool = False) -> None:
        if self._on_progress is None:
            return
        now_ns = self._ports.clock.monotonic_ns()
        if not is_last and now_ns - self._progress_at_ns < PROGRESS_INTERVAL_NS:
            return
        self._progress_at_ns = now_ns
        self._on_progress(
            RecoveryProgress(
                ledgers_done=len(self._results),
                ledgers_total=len(self._plan.ledgers),
                ledgers_failed=self._ledgers_failed,
                entries_copied=self._entries_copied,
                entries_planned=self._entries_planned,
                bytes_copied=self._bytes_copied,
                current_ledgers=tuple(self._current),
            )
        )
