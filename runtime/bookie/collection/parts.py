"""The collector of a bookie, put together from its parts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from runtime.bookie.collection.collector import GarbageCollector
from runtime.bookie.collection.compaction import CompactionThrottle, Compactor, LogScanner
from runtime.bookie.collection.compaction_survivors import COMPACTION_LANE
from runtime.bookie.collection.ledgers import ClusterGuard, LedgerCollector, LocalLedgers
from runtime.bookie.collection.logs import CompactionRoom, DirectoryCollector
from runtime.bookie.collection.metrics import GarbageCollectionMetrics
from runtime.bookie.collection.overreplicated import OverreplicatedCollector
from runtime.bookie.integrity.preboot_check import read_integrity_flag
from runtime.bookie.live_settings import LiveSettings
from runtime.bookie.ports import BookiePorts
from runtime.config import BookieConfig
from runtime.metadata.ledgers.ledgers import LedgerStore, open_ledger_store
from runtime.metadata.replication.lock import ReplicationLocks
from runtime.metadata.request_budget import BudgetedStore, RequestBudget
from runtime.metadata.store import MetadataStore
from runtime.metadata.uri import MetadataUri
from storage.disk_room import DiskRoom
from storage.engine.ledger_storage import LedgerStorage
from storage.ids import LedgerId

_BATCH_COUNT_MAX: Final = 256
"""What is confirmed together must be done before the next checkpoint makes it look used."""


def _target_bytes(config: BookieConfig) -> int:
    """What the use of a log is measured against; 0: against its own size."""
    settings = config.garbage_collection
    # Logs that are replaced one by one never become larger: measured against a full one, they would be for ever.
    is_used = settings.is_target_size_used and not settings.is_transactional
    return config.storage.engine.entry_log.size_bytes_max if is_used else 0


async def assemble_garbage_collector(
    config: BookieConfig,
    uri: MetadataUri,
    ports: BookiePorts,
    store: MetadataStore,
    storage: LedgerStorage,
    room: DiskRoom,
    *,
    known_as: Sequence[str],
    instance_id: str | None,
    forget_handle: Callable[[LedgerId], None],
    flush: Callable[[], Awaitable[None]],
    live: LiveSettings,
) -> GarbageCollector:
    """``known_as``: the bookie's id, then others that ensembles may name it by; ``flush``: a checkpoint."""
    settings = config.garbage_collection
    workers, clock = ports.workers, ports.clock
    rate = settings.metadata_operations_per_s_max or None
    budget = RequestBudget(rate, config.zookeeper.in_flight_max)
    live.on_change(lambda changed: budget.set_rate(changed.garbage_collection.metadata_operations_per_s_max or None))
    budgeted = BudgetedStore(store, budget)
    metrics = GarbageCollectionMetrics()
    local = LocalLedgers(storage, workers, forget_handle)
    guard = ClusterGuard(store, uri.root, known_as[0], instance_id)
    batch_count_max = _BATCH_COUNT_MAX if rate is None else max(1, min(_BATCH_COUNT_MAX, int(rate)))
    locks = ReplicationLocks(budgeted, uri.root, await workers.run(COMPACTION_LANE, ports.host.canonical_name))
    throttles = [CompactionThrottle(clock, settings) for _ in storage.engines]
    for throttle in throttles:
        live.on_change(partial(_set_rate, throttle))
    directories = await _directory_collectors(config, ports, storage, room, metrics, throttles)

    async def open_ledgers() -> LedgerStore:
        return await open_ledger_store(budgeted, uri.root, uri.tree, layout_config=config.zookeeper.layout)

    async def read_repair_due() -> bool:
        return await workers.run(COMPACTION_LANE, read_integrity_flag, storage.engines[0])

    return GarbageCollector(
        settings,
        clock,
        workers,
        directories,
        LedgerCollector(local, guard, store, clock, metrics, batch_count_max, settings.confirmation_pause_s),
        OverreplicatedCollector(
            local, guard, budgeted, locks, known_as, metrics, settings.overreplicated_in_flight_max
        ),
        open_ledgers,
        flush,
        read_repair_due,
        metrics,
    )


def _set_rate(throttle: CompactionThrottle, config: BookieConfig) -> None:
    throttle.set_rate(config.garbage_collection)


async def _directory_collectors(
    config: BookieConfig,
    ports: BookiePorts,
    storage: LedgerStorage,
    room: DiskRoom,
    metrics: GarbageCollectionMetrics,
    throttles: Sequence[CompactionThrottle],
) -> list[DirectoryCollector]:
    settings = config.garbage_collection
    file_system, workers = ports.file_system, ports.workers
    scanner = LogScanner(ports.children, workers)
    scan_turn = asyncio.Lock()
    rooms: dict[int, CompactionRoom] = {}  # by disk: only who copies to the same one takes room from each other
    directories = []
    for engine, throttle in zip(storage.engines, throttles, strict=True):
        space = await workers.run(COMPACTION_LANE, file_system.space, engine.ledger_directory)
        directories.append(
            DirectoryCollector(
                file_system,
                engine,
                workers,
                ports.clock,
                scanner,
                Compactor(file_system, engine, workers, scanner, throttle, settings, metrics),
                rooms.setdefault(space.filesystem_id, CompactionRoom(room, workers)),
                scan_turn,
                _target_bytes(config),
                settings.originals_bytes_max,
            )
        )
    return directories
