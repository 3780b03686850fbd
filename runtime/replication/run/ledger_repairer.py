"""What all ledgers of a run share: windows, byte rates, targets, the list of bookies, the wait for ZooKeeper."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence

from bkctl.runtime.client.ports import ClientPorts
from bkctl.runtime.metadata.outage import MetadataOutage, OutageWait
from bkctl.runtime.metadata.replication.lock import ReplicationLock, ReplicationLocks
from bkctl.runtime.replication.config import CopyPace, Policy
from bkctl.runtime.replication.copy.activity import LedgerActivity
from bkctl.runtime.replication.copy.limits import SharedPacer
from bkctl.runtime.replication.copy.reader import CopyReader
from bkctl.runtime.replication.copy.stripe_task import CopyTools, StripeTask
from bkctl.runtime.replication.judge.ledger_result import LedgerResult
from bkctl.runtime.replication.plan.store import JobRange, RecoveryJob
from bkctl.runtime.replication.turn.live_bookies import LiveBookies
from bkctl.runtime.replication.turn.state import LedgerTask, TurnTools
from bkctl.runtime.replication.turn.target_chooser import TargetChooser
from bkctl.runtime.replication.turn.turn import LedgerTurn

RANGE_INTERVAL_NS = 5 * 10**9
"""How often the progress of a long copy is reported: a kill loses no more."""


class LedgerRepairer:
    """Works on many ledgers concurrently."""

    def __init__(
        self,
        ports: ClientPorts,
        locks: ReplicationLocks,
        policy: Policy,
        *,
        known: Collection[str] = (),
        only_targets: Collection[str] = (),
        avoided: Collection[str] = (),
        on_outage: Callable[[MetadataOutage], None] = lambda _: None,
        job: RecoveryJob | None = None,
    ) -> None:
        """``known``: bookies that were registered when the run was planned. ``only_targets``: copy only to these;
        empty: to all. ``avoided``: a last resort as targets, because they leave. ``on_outage``: the wait for the
        metadata store begins or ends. ``job``: where long copies are recorded.
        """
        config = policy.config
        self._ports = ports
        self._job = job
        self._on_outage = on_outage
        self.outage = OutageWait(
            ports.registrations.snapshot, ports.clock, config.metadata_outage_max_s, self._note_outage
        )
        self.live_bookies = LiveBookies(ports.registrations, ports.clock, config.registration_wait_s, known)
        self._copies = CopyReader(ports, config, self.live_bookies.__contains__)
        self.pacer = SharedPacer(ports.clock)
        self.set_pace(policy.pace)
        self._tools = TurnTools(
            ports=ports,
            locks=locks,
            copying=CopyTools(ports, self._copies, config, self.pacer, self._count_copied, self._note_verified),
            live_bookies=self.live_bookies,
            targets=TargetChooser(
                self.live_bookies,
                ports.suspects,
                ports.clock,
                ports.placement,
                config.placement,
                frozenset(only_targets),
                frozenset(avoided),
            ),
            outage=self.outage,
            policy=policy,
            silent_members={},
            job=job,
        )
        self._current: dict[int, LedgerActivity] = {}
        self.entries_copied = 0
        self.bytes_copied = 0
        self._range_due_ns: dict[tuple[int, int, int], int] = {}

    def set_pace(self, pace: CopyPace) -> None:
        """Change the byte rates."""
        self.pacer.change(pace.bytes_per_s, pace.bytes_per_s_per_bookie)

    @property
    def current(self) -> Sequence[LedgerActivity]:
        """The ledgers in progress, oldest first."""
        return tuple(self._current.values())

    def least_s(self, bytes_to_copy: int) -> float:
        """How long copies of so many bytes take at least, by the rates."""
        return self.pacer.least_s(bytes_to_copy, self._tools.targets.count)

    async def repair(self, task: LedgerTask) -> LedgerResult:
        """The result for a ledger; MetadataOutageError after a long outage of the metadata store."""
        activity = LedgerActivity(task.ledger_id, self._ports.clock.monotonic_ns())
        self._current[task.ledger_id] = activity
        try:
            return await self.outage.outlast(LedgerTurn(self._tools, task, activity).run)
        finally:
            del self._current[task.ledger_id]

    async def repair_locked(self, lock: ReplicationLock, task: LedgerTask, activity: LedgerActivity) -> LedgerResult:
        """The result for a ledger whose lock the caller holds, see ``LedgerTurn``; MetadataUnavailableError."""
        tools = dataclasses.replace(self._tools, silent_members={})  # its caller tries again, and may run for months
        return await LedgerTurn(tools, task, activity).run_locked(lock)

    def _note_outage(self, outage: MetadataOutage) -> None:
        self.live_bookies.note_outage(is_over=outage.is_over)
        self._copies.note_outage()
        self._tools.silent_members.clear()
        self._on_outage(outage)

    def _count_copied(self, entries: int, bytes_copied: int) -> None:
        self.entries_copied += entries
        self.bytes_copied += bytes_copied

    def _note_verified(self, stripe_task: StripeTask, entry_id: int) -> None:
        first_entry_id = stripe_task.fragment.entries.first_entry_id
        ledger_id = stripe_task.credentials.ledger_id
        stripe = (ledger_id, first_entry_id, stripe_task.index)
        now_ns = self._ports.clock.monotonic_ns()
        if entry_id >= stripe_task.last_entry_id:
            self._range_due_ns.pop(stripe, None)
        elif self._job is not None and now_ns >= self._range_due_ns.setdefault(stripe, now_ns + RANGE_INTERVAL_NS):
            self._range_due_ns[stripe] = now_ns + RANGE_INTERVAL_NS
            self._job.append(
                JobRange(
                    ledger_id=ledger_id,
                    first_entry_id=first_entry_id,
                    ensemble_index=stripe_task.index,
                    target=stripe_task.target,
                    last_entry_id=entry_id,
                )
            )
