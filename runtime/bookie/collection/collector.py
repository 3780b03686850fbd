"""The collector of a bookie: deletes ledgers that no longer exist, and frees their space. Source: storage section 7.1.

A round, every ``gcWaitTime``:

1. delete ledgers that are gone from the metadata; at times also copies that the metadata no longer references;
2. in all ledger directories concurrently: finish interrupted compactions; measure entry logs finished since the last
   round, and update the usage of all logs for deleted ledgers; delete logs in which nothing is left;
3. also per directory: start to check logs that disagree with their own map, or whose rows may be missing, against the
   whole index; start a major compaction if due, else a minor one. Both continue while later rounds run.

Failures are logged, and the next round tries again. Rounds and compactions can be interrupted anywhere.

While a repair is due here (``integrity``), everything that relies on the index or on other bookies is paused: in 1 the
deletion of unreferenced copies, in 3 the check against the index. Ledgers without metadata are deleted all the same,
whatever is missing here.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final

from bkctl.runtime.bookie.collection.compaction import (
    CompactionThrottle,
    DirectoryTools,
    LogScanner,
    await_cancelled_work,
)
from bkctl.runtime.bookie.collection.compaction_survivors import COMPACTION_LANE
from bkctl.runtime.bookie.collection.forward_proof import ForwardProof
from bkctl.runtime.bookie.collection.ledgers import ClusterGuard, LedgerCollector, LocalLedgers, OverreplicatedCollector
from bkctl.runtime.bookie.collection.logs import CompactionRoom, DirectoryCollector
from bkctl.runtime.bookie.collection.long_work import (
    CompactionKind,
    CompactionStatus,
    DirectoryCompaction,
    DiskReaction,
)
from bkctl.runtime.bookie.collection.metrics import CollectionTimings, GarbageCollectionMetrics, LogMetrics
from bkctl.runtime.bookie.disks.rules import DiskState
from bkctl.runtime.bookie.identity import BookieNames
from bkctl.runtime.bookie.integrity.preboot_check import read_integrity_flag
from bkctl.runtime.bookie.live_settings import LiveSettings
from bkctl.runtime.bookie.ports import BookieMetadata, BookiePorts
from bkctl.runtime.bookie.serving.request_path import RequestPath
from bkctl.runtime.config import BookieConfig, GarbageCollectionConfig
from bkctl.runtime.metadata.bookies.registration import RegistrationClient
from bkctl.runtime.metadata.budgeted_store import BudgetedStore
from bkctl.runtime.metadata.ledgers.ledgers import LedgerStore, open_ledger_store
from bkctl.runtime.metadata.replication.lock import ReplicationLocks
from bkctl.runtime.metadata.request_budget import RequestBudget
from bkctl.runtime.ports import Clock, Workers
from bkctl.storage.disk_room import DiskRoom
from bkctl.storage.engine.engine import LedgerDirectoryEngine
from bkctl.storage.errors import BkctlError

logger = logging.getLogger(__name__)

FLUSH_WAIT_S_MAX: Final = 60.0
FLUSH_WAIT_FULL_S_MAX: Final = 5.0
"""Deletions become durable with a checkpoint, and logs should be deleted after that: otherwise a crash brings back a
ledger whose entries cannot be read. If disk space prevents checkpoints, the logs are deleted anyway to free space."""

_BATCH_COUNT_MAX: Final = 256
"""Ledgers confirmed together; this must end before the next checkpoint, which makes a ledger look used."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LedgerPasses:
    """The part of a round that deletes ledgers. ``flush``: runs a checkpoint, which makes the deletions durable."""

    proof: ForwardProof

    open_ledgers: Callable[[], Awaitable[LedgerStore]]
    deleted: LedgerCollector
    overreplicated: OverreplicatedCollector
    flush: Callable[[], Awaitable[None]]


class GarbageCollector:
    """Runs the rounds of one bookie, one at a time, until ``stop``; and a compaction in each directory concurrently."""

    def __init__(
        self,
        config: GarbageCollectionConfig,
        clock: Clock,
        workers: Workers,
        directories: Sequence[DirectoryCollector],
        passes: LedgerPasses,
        read_repair_due: Callable[[], Awaitable[bool]],
        metrics: GarbageCollectionMetrics,
    ) -> None:
        self._config = config
        self._clock = clock
        self._workers = workers
        self._directories = directories
        self._passes = passes
        self._read_repair_due = read_repair_due
        self._last_overreplicated_s = self._now_s()
        self._compactions = [
            DirectoryCompaction(config, clock, directory, read_repair_due, metrics, self._measure)
            for directory in directories
        ]
        self._disks = DiskReaction()
        self._round: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._hold_count = 0
        self._cut_offs_count = 0
        self._is_requested = False
        self._forced: frozenset[CompactionKind] | None = None
        self._forces_count = 0
        self._is_stopping = False
        self._waiting: list[asyncio.Future[None]] = []
        self.proof = passes.proof
        self.metrics = metrics
        self.log_metrics = tuple(directory.metrics for directory in directories)
        """Of each ledger directory."""
        self.timings = CollectionTimings()
        self.directory_timings = [directory.timings for directory in directories]

    # -- for operators and other parts of the bookie ------------------------------------------------------------

    async def force(self, kinds: frozenset[CompactionKind] = frozenset(CompactionKind)) -> None:
        """Run a round now, with a compaction of these kinds if any is allowed; returns when both have ended.

        A running compaction continues, but a minor one is replaced by a major one. CancelledError if the collector
        stops first.
        """
        self._forces_count += 1
        try:
            is_done = False
            while not is_done:
                if self._is_stopping:
                    raise asyncio.CancelledError
                cut_offs_count = self._cut_offs_count
                collected: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._waiting.append(collected)
                self._add_forced(kinds)
                self._changed.set()
                await collected
                await asyncio.gather(*(compaction.ended() for compaction in self._compactions))
                is_done = self._cut_offs_count == cut_offs_count
        finally:
            self._forces_count -= 1

    def _add_forced(self, kinds: frozenset[CompactionKind]) -> None:
        self._forced = kinds if self._forced is None else self._forced | kinds

    @property
    def is_forced(self) -> bool:
        """Whether a forced round or its compactions have not ended."""
        return self._forces_count > 0

    @property
    def compactions(self) -> tuple[CompactionStatus, ...]:
        """Of each ledger directory."""
        return tuple(compaction.status for compaction in self._compactions)

    def request(self) -> None:
        """Run a round soon, for example because space has become scarce; forces no compaction."""
        self._is_requested = True
        self._changed.set()

    def suspend(self, kind: CompactionKind, *, is_suspended: bool = True) -> None:
        """Stop compactions of this kind until no longer suspended. Ledgers and empty logs are still deleted."""
        for compaction in self._compactions:
            compaction.suspend(kind, is_suspended=is_suspended)

    def note_disk_level(self, level: DiskState) -> None:
        """Apply the state of the fullest ledger disk (storage section 7.5)."""
        before, self._disks = self._disks, DiskReaction.to(level, self._config)
        if self._disks == before:
            return
        for compaction in self._compactions:
            compaction.note_disks(self._disks)
        if level is not DiskState.WRITABLE:
            self.request()  # even if compaction is suspended: deletable data frees space

    @contextlib.asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Pause collection within the block. Interrupted work resumes afterwards."""
        self._hold_count += 1
        try:
            await self._cut_off()
            yield
        finally:
            self._hold_count -= 1
            self._changed.set()

    async def run(self) -> None:
        """Run rounds until ``stop``. Errors of a round are not raised."""
        while await self._wait_due():
            forced, self._forced, self._is_requested = self._forced, None, False
            waiting, self._waiting = self._waiting, []
            self._round = asyncio.get_running_loop().create_task(self._run_round(forced))
            await asyncio.wait([self._round])
            if self._round.cancelled():
                self._is_requested = True
                if forced is not None:
                    self._add_forced(forced)
                self._waiting += waiting
                continue
            for ended in waiting:
                if not ended.done():
                    ended.set_result(None)

    async def stop(self) -> None:
        """Interrupt a running round and end ``run``; callers waiting for a forced round are cancelled."""
        self._is_stopping = True
        self._changed.set()
        await self._cut_off()
        for ended in self._waiting:
            ended.cancel()
        await self.proof.end()

    # -- rounds -------------------------------------------------------------------------------------------------

    async def _wait_due(self) -> bool:
        """True when a round is due, False when the collector stops."""
        due_s = self._now_s() + self._config.wait_s
        while not self._is_stopping:
            self._changed.clear()
            left_s = 0.0 if self._forced is not None or self._is_requested else due_s - self._now_s()
            if self._hold_count:
                await self._changed.wait()
            elif left_s <= 0:
                return True
            else:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(left_s):
                        await self._changed.wait()
        return False

    async def _cut_off(self) -> None:
        if self._round is not None and not self._round.done():
            self._round.cancel()
            await asyncio.wait([self._round])
        self._cut_offs_count += 1  # before ``force`` sees that a compaction has ended
        if any(await asyncio.gather(*(compaction.cut_off() for compaction in self._compactions))):
            self._is_requested = True
        await await_cancelled_work(self._workers)

    async def _run_round(self, forced: frozenset[CompactionKind] | None) -> None:
        failed_count = 0
        began_ns = self._clock.monotonic_ns()
        try:
            is_repair_due = await self._read_repair_due()
            failed_count += await self._trying(self._collect_ledgers(is_repair_due=is_repair_due))
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._collect_logs(position, forced, is_repair_due=is_repair_due))
                    for position in range(len(self._directories))
                ]
            failed_count += sum(task.result() for task in tasks)
        except Exception:
            # Catch everything: the bookie keeps serving without its collector, and the next round tries again.
            logger.exception("a garbage collection round failed")
            failed_count += 1
        self.metrics.rounds_count += 1
        self.metrics.rounds_failed_count += failed_count > 0
        self.timings.rounds.add(self._clock.monotonic_ns() - began_ns, is_success=not failed_count)
        self._measure()

    async def _collect_logs(
        self, position: int, forced: frozenset[CompactionKind] | None, *, is_repair_due: bool
    ) -> int:
        """A round's work in one directory; returns the number of failures."""
        directory, compaction = self._directories[position], self._compactions[position]
        failed_count = 0
        try:
            if await compaction.is_at_rest():
                failed_count += await self._trying(directory.resume())
            failed_count += await self._trying(directory.refresh())
            failed_count += await self._trying(directory.remove_empty())
            if not is_repair_due:
                compaction.begin_settling()
            await compaction.begin_due(forced)
        except Exception:
            logger.exception("garbage collection of %s failed", directory.path)  # the other directories continue
            failed_count += 1
        return failed_count + directory.take_failures_count()

    async def _trying(self, step: Awaitable[None]) -> int:
        """1 if a step failed, else 0."""
        try:
            await step
        except (BkctlError, OSError) as error:
            logger.warning("garbage collection: %s", error)
            return 1
        return 0

    async def _collect_ledgers(self, *, is_repair_due: bool) -> None:
        with self.timings.ledgers.timed(self._clock.monotonic_ns):
            ledgers = await self._passes.open_ledgers()
            deleted_count = await self._passes.deleted.collect(ledgers)
            wait_s = self._config.overreplicated_wait_s
            is_due = wait_s > 0 and self._now_s() - self._last_overreplicated_s >= wait_s
            if is_due and not is_repair_due:
                self._last_overreplicated_s = self._now_s()
                deleted_count += await self._passes.overreplicated.collect(ledgers)
        if deleted_count:
            logger.info("deleted %d ledgers", deleted_count)
            await self._flush_deletions()
        await self.proof.advance()

    async def _flush_deletions(self) -> None:
        wait_s = FLUSH_WAIT_FULL_S_MAX if self._disks.is_room_scarce else FLUSH_WAIT_S_MAX
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                # One checkpoint may not be enough: the retry of a failed one includes nothing newer (H2).
                while any(directory.is_deletion_unflushed for directory in self._directories):
                    await self._passes.flush()

    def _measure(self) -> None:
        for directory in self._directories:
            directory.measure()

    def _now_s(self) -> float:
        return self._clock.monotonic_ns() / 1e9


def _target_bytes(config: BookieConfig) -> int:
    """Log size that usage is measured against; 0: the log's own size."""
    settings = config.garbage_collection
    # Logs replaced one by one never grow: measured against a full log, they would be compacted forever.
    is_used = settings.is_target_size_used and not settings.is_transactional
    return config.storage.engine.entry_log.size_bytes_max if is_used else 0


async def assemble_garbage_collector(
    config: BookieConfig,
    ports: BookiePorts,
    metadata: BookieMetadata,
    names: BookieNames,
    path: RequestPath,
    room: DiskRoom,
    live: LiveSettings,
) -> GarbageCollector:
    """Create the collector of a serving bookie."""
    settings, workers, store, uri = config.garbage_collection, ports.workers, metadata.store, metadata.uri
    rate = settings.metadata_operations_per_s_max or None
    budget = RequestBudget(ports.clock, rate, config.zookeeper.in_flight_max)
    live.on_change(lambda changed: budget.set_rate(changed.garbage_collection.metadata_operations_per_s_max or None))
    budgeted = BudgetedStore(store, budget)
    metrics = GarbageCollectionMetrics()
    local = LocalLedgers(path.storage, workers, path.handles.forget)
    own_id = names.known_as[0]
    local_ids = local.snapshot_with_collected
    proof = ForwardProof(
        store,
        uri.root,
        own_id,
        ports.file_system,
        config.storage.store_directories,
        workers,
        ports.clock,
        metrics,
        local_ids,
    )
    await proof.begin()
    guard = ClusterGuard(store, uri.root, own_id, names.instance_id, proof)
    batch_count_max = _BATCH_COUNT_MAX if rate is None else max(1, min(_BATCH_COUNT_MAX, int(rate)))
    locks = ReplicationLocks(budgeted, uri.root, await workers.run(COMPACTION_LANE, ports.host.canonical_name))
    live_bookies = RegistrationClient(budgeted, uri.root)
    in_flight_max = settings.overreplicated_in_flight_max

    async def open_ledgers() -> LedgerStore:
        return await open_ledger_store(budgeted, uri.root, uri.tree, layout_config=config.zookeeper.layout)

    async def read_repair_due() -> bool:
        return await workers.run(COMPACTION_LANE, read_integrity_flag, path.storage.engines[0])

    passes = LedgerPasses(
        proof=proof,
        open_ledgers=open_ledgers,
        deleted=LedgerCollector(
            local, guard, store, ports.clock, metrics, batch_count_max, settings.confirmation_pause_s
        ),
        overreplicated=OverreplicatedCollector(
            local, guard, budgeted, locks, live_bookies, names.known_as, metrics, in_flight_max
        ),
        flush=path.checkpoints.flushed,
    )
    collectors = await _directory_collectors(config, ports, path.storage.engines, room, metrics, live)
    return GarbageCollector(settings, ports.clock, workers, collectors, passes, read_repair_due, metrics)


async def _directory_collectors(
    config: BookieConfig,
    ports: BookiePorts,
    engines: Sequence[LedgerDirectoryEngine],
    room: DiskRoom,
    metrics: GarbageCollectionMetrics,
    live: LiveSettings,
) -> list[DirectoryCollector]:
    file_system, workers = ports.file_system, ports.workers
    scanner = LogScanner(ports.children, workers)
    scan_turn = asyncio.Lock()
    rooms: dict[int, CompactionRoom] = {}  # by disk: only compactions on the same disk share its space
    directories = []
    for engine in engines:
        tools = DirectoryTools(
            file_system=file_system,
            engine=engine,
            workers=workers,
            clock=ports.clock,
            scanner=scanner,
            throttle=_new_throttle(ports.clock, config.garbage_collection, live),
            config=config.garbage_collection,
            metrics=metrics,
            log_metrics=LogMetrics(),
        )
        space = await workers.run(COMPACTION_LANE, file_system.space, engine.ledger_directory)
        on_disk = rooms.setdefault(space.filesystem_id, CompactionRoom(room, workers))
        directories.append(DirectoryCollector(tools, on_disk, scan_turn, target_bytes=_target_bytes(config)))
    return directories


def _new_throttle(clock: Clock, config: GarbageCollectionConfig, live: LiveSettings) -> CompactionThrottle:
    throttle = CompactionThrottle(clock, config)
    live.on_change(lambda changed: throttle.set_rate(changed.garbage_collection))
    return throttle
