"""One ledger directory with real files, lanes and scans, and its part of the collector; also a child to be killed."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path

from bkctl.runtime.bookie.collection.compaction import CompactionThrottle, DirectoryTools, LogScanner
from bkctl.runtime.bookie.collection.logs import CompactionRoom, DirectoryCollector
from bkctl.runtime.bookie.collection.metrics import GarbageCollectionMetrics, LogMetrics
from bkctl.runtime.config import CompactionConfig, GarbageCollectionConfig
from bkctl.runtime.net.loop import LaneWorkers, LoopClock
from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.adapters.index_store import open_plyvel
from bkctl.storage.config import EngineConfig, EntryLogConfig
from bkctl.storage.disk_room import DiskRoom
from bkctl.storage.engine.engine import LedgerDirectoryEngine
from bkctl.storage.engine.replay import checkpoint_now
from bkctl.storage.entry_log.compaction_scan import ROWS_MAX
from bkctl.storage.ports import Children
from tests.sim.children import InProcessChildren
from tests.storage.engines import KEY, entry, open_engine
from tests.storage.traced_disk import TracedDisk

PAYLOAD_BYTES = 500
LOG_BYTES_MAX = 8 * 1024
SMALL_LOGS = EngineConfig(
    memtable_bytes_max=256 * 1024,
    entry_log=EntryLogConfig(size_bytes_max=LOG_BYTES_MAX, is_next_log_prepared=False),
)
ALL_BELOW_FULL = CompactionConfig(threshold=1.0)
FAST = GarbageCollectionConfig(copied_entries_per_s_max=1e6)
TRANSACTIONAL = GarbageCollectionConfig(copied_entries_per_s_max=1e6, is_transactional=True)
ENTRIES = range(5)
KEPT = range(1, 4)
GONE = range(4, 13)

_FORKS = multiprocessing.get_context("forkserver")
"""Children that are killed start from a process without threads that has imported this module."""
_FORKS.set_forkserver_preload([__name__])


def stored(ledger_id: int, entry_id: int, generation: int = 0) -> bytes:
    """Body of an entry; another generation is a re-add with other bytes."""
    return entry(ledger_id, entry_id, f"{ledger_id}:{entry_id}:{generation};".encode().ljust(PAYLOAD_BYTES, b"."))


def add(engine: LedgerDirectoryEngine, ledger_id: int, entry_ids: Iterable[int], generation: int = 0) -> None:
    engine.rows.set_master_key(ledger_id, KEY)
    for entry_id in entry_ids:
        engine.add(ledger_id, entry_id, stored(ledger_id, entry_id, generation))


def fill(engine: LedgerDirectoryEngine, ledger_ids: Sequence[int], entry_ids: Sequence[int]) -> None:
    """Entries of all ledgers mixed in each log."""
    for entry_id in entry_ids:
        for ledger_id in ledger_ids:
            add(engine, ledger_id, [entry_id])
        checkpoint_now(engine)


def delete(engine: LedgerDirectoryEngine, ledger_ids: Iterable[int]) -> None:
    for ledger_id in ledger_ids:
        engine.delete_ledger(ledger_id)
    checkpoint_now(engine)


def make_mixed(directory: Path) -> Path:
    """Logs in ``directory`` that the ledgers KEPT, which are in use, share with deleted ones, GONE; each had
    ENTRIES."""
    engine = open_engine(directory, config=SMALL_LOGS)
    fill(engine, [*KEPT, *GONE], ENTRIES)
    delete(engine, GONE)
    engine.close()
    return directory


def require_stored(
    engine: LedgerDirectoryEngine, ledger_ids: Iterable[int], entry_ids: Sequence[int], generation: int = 0
) -> None:
    for ledger_id in ledger_ids:
        for entry_id in entry_ids:
            assert engine.stored.read(ledger_id, entry_id) == stored(ledger_id, entry_id, generation)


def leftovers(root: Path) -> list[str]:
    return [name for name in os.listdir(root) if name.endswith((".compacting", ".compacted", ".tmp"))]


def log_names(root: Path) -> list[str]:
    return sorted(name for name in os.listdir(root) if name.endswith(".log") and "." not in name[:-4])


class OpenLogs:
    """An open directory."""

    def __init__(
        self,
        root: Path,
        disk: TracedDisk,
        config: GarbageCollectionConfig,
        room: DiskRoom | None,
        children: Children,
        scan_rows_max: int,
    ) -> None:
        self.root = root
        self.disk = disk
        self.workers = LaneWorkers()
        self.metrics = GarbageCollectionMetrics()
        self.engine = open_engine(root, filesystem=disk, config=SMALL_LOGS)
        clock = LoopClock()
        tools = DirectoryTools(
            file_system=disk,
            engine=self.engine,
            workers=self.workers,
            clock=clock,
            scanner=LogScanner(children, self.workers, rows_max=scan_rows_max),
            throttle=CompactionThrottle(clock, config),
            config=config,
            metrics=self.metrics,
            log_metrics=LogMetrics(),
        )
        compaction_room = CompactionRoom(room or DiskRoom(disk, [str(root)], 0), self.workers)
        self.collector = DirectoryCollector(tools, compaction_room, asyncio.Lock(), target_bytes=0)
        self.compactor = self.collector._compactor

    async def round(self, compaction: CompactionConfig | None = ALL_BELOW_FULL, *, is_repair_due: bool = False) -> int:
        """What a round does to the logs of a directory; returns how many could not be dealt with."""
        await self.collector.resume()
        await self.collector.refresh()
        await self.collector.remove_empty()
        if compaction is not None:
            await self.collector.compact(compaction)
        if not is_repair_due:
            await self.collector.settle_unproven()
        return self.collector.take_failures_count()

    async def close(self) -> None:
        await self.workers.close()
        self.engine.close()


@contextlib.asynccontextmanager
async def open_logs(
    root: Path,
    *,
    disk: TracedDisk | None = None,
    config: GarbageCollectionConfig = FAST,
    room: DiskRoom | None = None,
    children: Children | None = None,
    scan_rows_max: int = ROWS_MAX,
) -> AsyncIterator[OpenLogs]:
    # Without processes: there are tests of very many rounds.
    children = children or InProcessChildren(OsFileSystem(), open_plyvel)
    logs = OpenLogs(root, disk or TracedDisk(), config, room, children, scan_rows_max)
    try:
        yield logs
    finally:
        await logs.close()


class KillingDisk(TracedDisk):
    """Ends the process as kill -9 does, just before the first operation on a name that matches."""

    def __init__(self, operation: str, suffix: str, skipped_count: int) -> None:
        super().__init__()
        self._operation = operation
        self._suffix = suffix
        self._skipped_count = skipped_count
        self.is_armed = False

    def note(self, operation: str, path: str) -> None:
        super().note(operation, path)
        if self.is_armed and operation == self._operation and path.endswith(self._suffix):
            self._skipped_count -= 1
            if self._skipped_count < 0:
                os.kill(os.getpid(), signal.SIGKILL)


async def kill_compaction(root: Path, operation: str, suffix: str, skipped_count: int) -> None:
    """Run one round over ``root`` in a child process that kills itself before a change of a file (``KillingDisk``)."""
    child = _FORKS.Process(target=_die_in_compaction, args=(root, operation, suffix, skipped_count))
    await asyncio.to_thread(child.start)
    await asyncio.to_thread(child.join)
    assert child.exitcode == -signal.SIGKILL


def _die_in_compaction(root: Path, operation: str, suffix: str, skipped_count: int) -> None:
    async def die() -> None:
        disk = KillingDisk(operation, suffix, skipped_count)
        async with open_logs(root, disk=disk, config=TRANSACTIONAL) as logs:
            disk.is_armed = True
            await logs.round()

    asyncio.run(die())
