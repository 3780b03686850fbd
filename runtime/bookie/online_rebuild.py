"""Rebuild of the location indexes of a bookie while it serves reads. Source: storage sections 11.1 and 12.

1. Reject all adds, including those of recovery and with high priority; register as read-only, so that no writer
   chooses this bookie; answer the adds that are queued. This mode ends with the rebuild and is not stored.
2. Until the new index is in place a negative answer is "unknown", because the old index may be the broken part.
3. Pause the collector and flush the caches: the entry logs are now complete and no longer written.
4. A child process scans them and builds the new databases next to the old ones.
5. Put every ledger that had a row before step 4 into limbo, durably (``bkctl.storage.rebuild.limbo`` says why), and
   request a repair. Otherwise ledger rows do not change: fences that arrive in the meantime are journaled and flushed
   as usual, so the exchange of the locations does not affect them.
6. A new database is valid once its seal record exists: after an earlier kill the old one is used, after a later kill
   the new one. It replaces the old one while all lanes that read or write it are stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, NamedTuple

from bkctl.runtime.admin.api import OnlineRebuildReport, RebuiltDirectory, StepProgress
from bkctl.runtime.bookie.collection.collector import GarbageCollector
from bkctl.runtime.bookie.collection.compaction_survivors import COMPACTION_LANE
from bkctl.runtime.bookie.disks.modes import BookieModes
from bkctl.runtime.bookie.integrity.preboot_check import set_integrity_flag
from bkctl.runtime.bookie.integrity.refill import INTEGRITY_LANE
from bkctl.runtime.bookie.integrity.repair import ROWS_PER_TURN, IntegrityService, in_batches
from bkctl.runtime.bookie.ports import BookiePorts
from bkctl.runtime.bookie.serving.checkpoints import CHECKPOINT_LANE
from bkctl.runtime.bookie.serving.reads import LISTS_LANE, READS_LANE, URGENT_READS_LANE
from bkctl.runtime.bookie.serving.request_path import RequestPath
from bkctl.runtime.errors import ConflictError, RefusedError
from bkctl.storage.config import StorageConfig
from bkctl.storage.engine.engine import LedgerDirectoryEngine
from bkctl.storage.engine.ledger_storage import LedgerStorage
from bkctl.storage.entry_log.reader import list_entry_logs
from bkctl.storage.errors import IndexFailedError, StorageError
from bkctl.storage.filenames import LOCATIONS_DATABASE, current_directory, entry_log_file_name, seal_file_name
from bkctl.storage.index.seal import SealedIndex, open_sealed_index
from bkctl.storage.index.swap import begin_rebuilt, commit_rebuilt, discard_rebuilt, finish_swap, rebuilt_path
from bkctl.storage.ports import ChildPool, FileSystem
from bkctl.storage.rebuild.directory import READING_LOGS
from bkctl.storage.rebuild.limbo import DoubtedLedgers
from bkctl.storage.rebuild.online_tasks import BuildLocations, BuiltLocations

logger = logging.getLogger(__name__)

REBUILD_LANE = "rebuild"
CHILD_MODULE = "bkctl.storage.rebuild.online_child"
_LANES_AT_REST = (READS_LANE, URGENT_READS_LANE, LISTS_LANE, CHECKPOINT_LANE, COMPACTION_LANE, INTEGRITY_LANE)
"""All lanes that read or change a location index."""


class BookieParts(NamedTuple):
    """The parts of the running bookie that a rebuild concerns."""

    storage: LedgerStorage
    path: RequestPath
    modes: BookieModes
    collector: GarbageCollector
    repair: IntegrityService


class OnlineRebuild:
    """Rebuilds the locations of one bookie, one rebuild at a time."""

    def __init__(
        self,
        parts: BookieParts,
        ports: BookiePorts,
        config: StorageConfig,
        on_failed: Callable[[BaseException], None],
    ) -> None:
        """``on_failed``: called when the bookie cannot continue, because its old index is closed and the new one is not
        open; the next start finishes the exchange."""
        self._on_failed = on_failed
        self._parts = parts
        self._ports = ports
        self._filesystem = ports.file_system
        self._config = config
        self._workers = ports.workers
        self._is_running = False
        self._is_stopped = False
        self._pool: ChildPool | None = None
        self._progress: StepProgress | None = None
        self._done: list[RebuiltDirectory] = []
        self._room_changed = asyncio.Event()
        parts.modes.on_no_room(self._room_changed.set)

    @property
    def is_running(self) -> bool:
        """Whether a rebuild is running."""
        return self._is_running

    @property
    def step_share(self) -> float:
        """Share of the present step that is done; 0 if that is not known or nothing is running."""
        progress = self._progress
        return progress.done / progress.total if self._is_running and progress is not None and progress.total else 0.0

    @property
    def report(self) -> OnlineRebuildReport:
        """The directories to which the rebuild, running or ended, has given their new index."""
        return OnlineRebuildReport(tuple(self._done))

    def require_room(self) -> None:
        """RefusedError while the caches cannot be flushed: the rebuild would wait, and keep the collector waiting."""
        missing = self._parts.modes.missing_room
        if missing is not None:
            raise RefusedError(
                f"nothing was changed: the bookie cannot flush its caches ({missing}); free disk space, then try again"
            )

    async def run(self, progress: StepProgress) -> OnlineRebuildReport:
        """Rebuild all location indexes and use the new ones. The bookie is read-only meanwhile, and then no longer
        than other reasons require. Can be cancelled at any time: each index in place is then the old or the new one.

        RefusedError if the settings forbid read-only mode, or if the caches cannot be flushed for lack of disk space;
        ConflictError while another rebuild runs; StorageError or OSError: directories that ``report`` does not list
        have the old index. IndexFailedError: an exchange was not finished, and the bookie must stop; its next start
        finishes it.
        """
        if self._is_running:
            raise ConflictError("nothing was changed: an index rebuild is already running in this bookie")
        self._done = []
        self.require_room()
        self._is_running, self._is_stopped, self._progress = True, False, progress
        engines = self._parts.storage.engines
        for engine in engines:
            engine.negatives_are_unknown = True
        try:
            progress.begin("waiting for the registration as read-only")
            await self._parts.modes.begin_rebuild()
            await self._rebuild_all(engines, progress)
            return self.report
        finally:
            self._is_running = False
            for engine in engines:
                engine.negatives_are_unknown = engine.is_index_lost
            self._parts.modes.end_rebuild()

    async def _rebuild_all(self, engines: Sequence[LedgerDirectoryEngine], progress: StepProgress) -> None:
        parts = self._parts
        progress.begin("flushing the caches")
        parts.path.adds.refuse_waiting()
        await self._with_room(self._journaled)
        # The repair would use the old index to end the limbo of ledgers.
        async with parts.collector.held(), parts.repair.held():
            await self._with_room(parts.path.checkpoints.settle)
            for position, engine in enumerate(engines):
                await self._rebuild(position, engine, progress)

    async def _journaled(self) -> None:
        await asyncio.gather(*(journal.barrier() for journal in self._parts.path.journals))

    async def _with_room(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do work that waits for a checkpoint or a journal. RefusedError as soon as these have no disk space."""
        self.require_room()
        working = asyncio.ensure_future(work())
        working.add_done_callback(lambda _: self._room_changed.set())
        try:
            while not working.done():
                self.require_room()
                self._room_changed.clear()
                await self._room_changed.wait()
            await working
        finally:
            working.cancel()
            await asyncio.wait([working])

    async def _rebuild(self, position: int, engine: LedgerDirectoryEngine, progress: StepProgress) -> None:
        ledger_directory = self._config.ledger_directories[position]
        path = self._path(position)
        try:
            sizes = await self._workers.run(REBUILD_LANE, self._log_sizes, position)
            known = engine.ledger_ids()
            built = await self._build(position, known, path, progress)
            progress.begin("exchanging the index")
            doubted = DoubtedLedgers.after_scan(known, built.damaged_ledgers)
            await self._note_doubted(engine, doubted)
            rebuilt = RebuiltDirectory(
                ledger_directory,
                built.log_count,
                built.entry_count,
                built.row_count,
                len(doubted.limbo),
                built.damages,
            )
            exchange = functools.partial(self._exchange, engine, path, position, sizes)
            await _finished(self._exchange_at_rest(exchange, rebuilt))
        except IndexFailedError as error:
            self._on_failed(error)
            raise
        except BaseException:
            await self._workers.run(REBUILD_LANE, self._discard, path)
            raise
        logger.warning(
            "%s: rebuilt the location index: %d entries; missing entries of %d ledgers are reported as unknown "
            "until they are compared with other bookies",
            ledger_directory,
            built.row_count,
            len(doubted.limbo),
        )

    async def _exchange_at_rest(self, exchange: Callable[[], None], rebuilt: RebuiltDirectory) -> None:
        await self._workers.run_at_rest(_LANES_AT_REST, REBUILD_LANE, exchange)
        self._done.append(rebuilt)

    def _path(self, position: int) -> str:
        directory = current_directory(self._config.effective_index_directories[position])
        return os.path.abspath(os.path.join(directory, LOCATIONS_DATABASE))

    async def _build(
        self, position: int, known_ledgers: list[int], path: str, progress: StepProgress
    ) -> BuiltLocations:
        """Wait for the child; if cancelled, kill it and wait for its end."""
        running = self._workers.run(REBUILD_LANE, self._run_child, position, known_ledgers, path, progress)
        job = asyncio.ensure_future(running)
        try:
            return await asyncio.shield(job)
        except asyncio.CancelledError:
            self._is_stopped = True
            if self._pool is not None:
                self._pool.stop()
            await asyncio.gather(job, return_exceptions=True)
            raise

    def _run_child(self, position: int, known_ledgers: list[int], path: str, progress: StepProgress) -> BuiltLocations:
        """Lane side: this thread only waits."""
        directory = begin_rebuilt(self._filesystem, path)
        directories = self._config.ledger_directories
        place = "" if len(directories) == 1 else f" ({directories[position]})"

        def on_stage(name: str, total: int) -> None:
            progress.begin(name + place, total, "bytes" if name == READING_LOGS else "rows")

        task = BuildLocations(
            config=self._config,
            position=position,
            ledger_directory=os.path.abspath(current_directory(self._config.ledger_directories[position])),
            known_ledgers=known_ledgers,
        )
        with self._ports.children.pool(CHILD_MODULE, directory, 1) as pool:
            self._pool = pool
            if self._is_stopped:
                pool.stop()
            ((_, built),) = pool.run([task], BuiltLocations, progress.advance, on_stage)
        return built

    async def _note_doubted(self, engine: LedgerDirectoryEngine, doubted: DoubtedLedgers) -> None:
        """Set limbo before the new index is used, so that it never denies an entry that it may not have.

        The flag comes first, because without it no later start would end the limbo. The rows record all ledgers.
        """
        if not doubted.limbo:
            return
        try:
            await self._with_room(functools.partial(self._write_doubted, engine, doubted))
        except RefusedError as error:
            missing = self._parts.modes.missing_room
            raise StorageError(
                f"kept the old index: limbo cannot be stored ({missing}); free disk space, then try again"
            ) from error

    async def _write_doubted(self, engine: LedgerDirectoryEngine, doubted: DoubtedLedgers) -> None:
        first = self._parts.storage.engines[0]
        await self._workers.run(CHECKPOINT_LANE, set_integrity_flag, first, is_needed=True)
        self._parts.repair.request()
        for ledger_ids in in_batches(doubted.damaged, ROWS_PER_TURN):
            # Through the journal, like every fence: a fencing read that finds one treats it as durable.
            fences = [self._parts.path.handles.fence(ledger_id, is_forced=True) for ledger_id in ledger_ids]
            for fence in (await asyncio.wait(fences))[0]:
                fence.result()
        for ledger_ids in in_batches(doubted.limbo, ROWS_PER_TURN):
            for ledger_id in ledger_ids:
                engine.rows.create_row(ledger_id, **doubted.flags(ledger_id))
            await self._ports.clock.sleep(0)
            if not engine.rows.has_room:
                await self._parts.path.checkpoints.settle()
        await self._parts.path.checkpoints.settle()

    def _exchange(self, engine: LedgerDirectoryEngine, path: str, position: int, sizes: dict[str, int]) -> None:
        """Lane side, while all other lanes are stopped."""
        if self._log_sizes(position) != sizes:
            # No code path should store entries now. If one does, keep the old index rather than lose them.
            raise StorageError("kept the old index: entries were stored while the index was rebuilt; try again")
        commit_rebuilt(self._filesystem, self._ports.open_index, path)

        def open_new() -> SealedIndex:
            finish_swap(self._filesystem, path)
            return open_sealed_index(self._filesystem, self._ports.open_index, path)

        engine.exchange_locations(open_new)

    def _log_sizes(self, position: int) -> dict[str, int]:
        return log_files(self._filesystem, current_directory(self._config.ledger_directories[position]))

    def _discard(self, path: str) -> None:
        """Delete the new database, unless it is already valid: then the next start uses it."""
        if not self._filesystem.exists(seal_file_name(rebuilt_path(path))):
            with contextlib.suppress(OSError):  # the reason for giving up matters more; the next rebuild deletes it
                discard_rebuilt(self._filesystem, path)


def log_files(file_system: FileSystem, directory: str) -> dict[str, int]:
    """Sizes of the entry logs in ``current`` of a ledger directory, by name. OSError."""
    sizes = {}
    for name in map(entry_log_file_name, list_entry_logs(file_system, directory)):
        with contextlib.suppress(FileNotFoundError):  # just deleted by the collector
            sizes[name] = file_system.size(os.path.join(directory, name))
    return sizes


async def _finished(work: Awaitable[None]) -> None:
    """Wait for work that must not be abandoned. If cancelled meanwhile, report its failure, else the cancellation."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        task.result()
        raise
