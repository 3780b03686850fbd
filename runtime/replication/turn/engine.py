"""The engine of a run: what all its ledgers share, and the turn of each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from runtime.client.ports import ClientPorts
from runtime.ledger.metadata import LedgerMetadata
from runtime.metadata.bookies.registration import RegistrationClient
from runtime.metadata.outage import MetadataOutage, OutageWait
from runtime.metadata.replication.lock import ReplicationLock, ReplicationLocks
from runtime.metadata.store import Versioned
from runtime.replication.copy.activity import LedgerActivity
from runtime.replication.copy.byte_window import ByteWindow
from runtime.replication.copy.flow_window import FlowWindows
from runtime.replication.copy.rate import SharedPacer
from runtime.replication.copy.reader import CopyReader
from runtime.replication.copy.sources import StripeJob
from runtime.replication.copy.stripe import Replicator
from runtime.replication.judge.ledger_result import LedgerRepaired
from runtime.replication.plan.job_file import JobRange
from runtime.replication.turn.live_bookies import LiveBookies
from runtime.replication.turn.messages import CopyMoment, CopyPace, CurrentLedger, LedgerWork, RepairSetup
from runtime.replication.turn.moves import RepairTools
from runtime.replication.turn.order import RepairOrder
from runtime.replication.turn.target_chooser import TargetChooser
from runtime.replication.turn.turn import LedgerRepair

RANGE_INTERVAL_NS = 5 * 10**9
"""How often the progress of a long copy is reported: a kill loses no more."""


class RepairWorker:
    """Repairs many ledgers concurrently. All of them share the windows and the byte rates."""

    def __init__(
        self,
        ports: ClientPorts,
        registration: RegistrationClient,
        locks: ReplicationLocks,
        setup: RepairSetup,
        *,
        on_range: Callable[[JobRange], None],
        on_outage: Callable[[MetadataOutage], None],
    ) -> None:
        config = setup.config
        self._ports = ports
        self._order = RepairOrder(setup.leaving, setup.unreachable, setup.open_ledgers)
        self._on_range = on_range
        self._on_outage = on_outage
        self._outage = OutageWait(registration.snapshot, ports.clock, config.metadata_outage_max_s, self._note_outage)
        self._live_bookies = LiveBookies(registration, ports.clock, config.registration_wait_s, setup.known)
        single_reads = ByteWindow(config.bytes_in_flight_max, config.entries_in_flight_max)
        self.copies = CopyReader(ports.bookies, ports.clock, single_reads, config, self._live_bookies.is_live)
        self.pacer = SharedPacer(ports.clock)
        targets = TargetChooser(
            self._live_bookies,
            ports.suspects,
            ports.clock,
            ports.placement,
            config.placement,
            setup.only_targets,
            setup.avoided,
        )
        replicator = Replicator(
            ports,
            self.copies,
            FlowWindows(config.bytes_in_flight_max),
            single_reads,
            config,
            self._count_copied,
            self._note_verified,
            self.pacer,
        )
        self.tools = RepairTools(
            ports=ports,
            locks=locks,
            replicator=replicator,
            live_bookies=self._live_bookies,
            targets=targets,
            outage=self._outage,
            config=config,
        )
        self._repair = LedgerRepair(self.tools)
        self._starting = asyncio.Lock()
        self._is_started = False
        self._current: dict[int, LedgerActivity] = {}
        self._entries_copied = 0
        self._bytes_copied = 0
        self._range_due_ns: dict[tuple[int, int, int], int] = {}

    def set_pace(self, pace: CopyPace) -> None:
        """Set the byte rates."""
        self.pacer.change(pace.bytes_per_s, pace.bytes_per_s_per_bookie)

    async def repair(self, work: LedgerWork) -> LedgerRepaired:
        """The result for a ledger; MetadataOutageError after a long outage of the metadata store."""
        if not self._is_started:
            await self._start()
        activity = LedgerActivity(work.ledger_id, self._ports.clock.monotonic_ns())
        self._current[work.ledger_id] = activity
        order = self._order._replace(seen=work.seen, ranges=work.ranges, stored=work.stored)
        try:
            return await self._outage.outlast(lambda: self._repair.repair(work.ledger_id, order, activity))
        finally:
            del self._current[work.ledger_id]

    async def repair_locked(
        self,
        lock: ReplicationLock,
        order: RepairOrder,
        activity: LedgerActivity,
        stored: Versioned[LedgerMetadata] | None = None,
    ) -> LedgerRepaired:
        """Repair one ledger by an order of its own; see ``LedgerRepair.repair_locked``. MetadataUnavailableError."""
        return await self._repair.repair_locked(lock, order, activity, stored)

    async def _start(self) -> None:
        async with self._starting:
            if self._is_started:
                return
            for bookie_id in self._order.unreachable:
                self._ports.suspects.add(bookie_id)  # closing a ledger must not choose them again
            await self._outage.outlast(self._live_bookies.refresh)
            self._is_started = True

    def moments(self) -> Sequence[CopyMoment]:
        """What was copied so far, and what is in progress; only this process."""
        return (self.moment(),)

    def moment(self) -> CopyMoment:
        """What was copied so far, and what is in progress."""
        current = (
            CurrentLedger(activity.ledger_id, activity.since_ns, activity.waits_for)
            for activity in self._current.values()
        )
        return CopyMoment(entries_copied=self._entries_copied, bytes_copied=self._bytes_copied, current=tuple(current))

    def _note_outage(self, outage: MetadataOutage) -> None:
        self._live_bookies.note_outage(is_over=outage.is_over)
        self.copies.note_outage()
        self._on_outage(outage)

    def _count_copied(self, entries: int, bytes_copied: int) -> None:
        self._entries_copied += entries
        self._bytes_copied += bytes_copied

    def _note_verified(self, job: StripeJob, entry_id: int) -> None:
        first_entry_id = job.fragment.entries.first_entry_id
        ledger_id = job.credentials.ledger_id
        stripe = (ledger_id, first_entry_id, job.index)
        now_ns = self._ports.clock.monotonic_ns()
        if entry_id >= job.last_entry_id:
            self._range_due_ns.pop(stripe, None)
        elif now_ns >= self._range_due_ns.setdefault(stripe, now_ns + RANGE_INTERVAL_NS):
            self._range_due_ns[stripe] = now_ns + RANGE_INTERVAL_NS
            self._on_range(
                JobRange(
                    ledger_id=ledger_id,
                    first_entry_id=first_entry_id,
                    ensemble_index=job.index,
                    target=job.target,
                    last_entry_id=entry_id,
                )
            )
