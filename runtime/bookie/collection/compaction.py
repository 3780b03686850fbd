"""Compaction of one entry log: copy the entries in use, so that it can be deleted. Source: storage section 7.3.

An entry is in use if the index has it at exactly this place in this log; other copies may be older than what is stored,
and are dropped. The order makes it safe: copies durable, index durable, log deleted. A log is deleted only if a search
of the index (``logs.find_rows_naming``) finds no row that references it. The caller runs it, because one search covers
many logs. It covers only the rows of the ledgers in the log if the log's own map agrees with the scan, otherwise all
rows. Rows of a ledger in limbo may be missing, so an entry of it without a row keeps the log, too.

Can be cancelled anywhere: unfinished work is garbage in a log, or ``resume`` finishes it.

A round of the collector deletes logs while a compaction of the same directory runs. Only one of them holds a log at a
time; the other leaves it alone. Only the compaction copies, because unsynced data in the active log has one owner.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, aclosing, asynccontextmanager

from bkctl.runtime.bookie.collection.compaction_survivors import (
    COMPACTION_LANE,
    ActiveLogSurvivors,
    NewLogSurvivors,
    Survivors,
    relocate,
)
from bkctl.runtime.bookie.collection.metrics import GarbageCollectionMetrics, LogMetrics
from bkctl.runtime.bookie.serving.checkpoints import CHECKPOINT_LANE
from bkctl.runtime.config import GarbageCollectionConfig
from bkctl.runtime.ports import Clock, Workers
from bkctl.runtime.rate_limit import RateLimit
from bkctl.storage.engine.engine import LedgerDirectoryEngine
from bkctl.storage.engine.relocation import CompactionSource, EntryMove, SourceEntry
from bkctl.storage.entry_log.compaction_log import CompactedLog, list_compacted_logs, remove_unfinished_logs
from bkctl.storage.entry_log.compaction_scan import (
    CHILD_MODULE,
    ROWS_MAX,
    MeasureLogs,
    ScanEnd,
    ScanEntries,
    ScanMessage,
    ScannedRows,
    UnreadableLog,
    unpack_rows,
)
from bkctl.storage.errors import ChildFailedError, CorruptFileError, EntryLogError
from bkctl.storage.filenames import entry_log_file_name
from bkctl.storage.ids import EntryLocation, EntryLogId, LedgerId
from bkctl.storage.ports import Children, FileSystem

logger = logging.getLogger(__name__)


class LogScanner:
    """Scans whole entry logs in child processes (``bkctl.storage.entry_log.compaction_scan_child``), one for each scan.

    Each directory has a lane that only waits for the child's messages. EntryLogError if a scan is not possible at all.
    """

    def __init__(self, children: Children, workers: Workers, *, rows_max: int = ROWS_MAX) -> None:
        self._children = children
        self._workers = workers
        self._rows_max = rows_max

    def measure(self, directory: str, log_ids: Sequence[EntryLogId]) -> AsyncGenerator[ScanMessage, None]:
        """Yields one MeasuredLog or UnreadableLog for each log."""
        return self._messages(MeasureLogs(directory=directory, log_ids=list(log_ids)))

    def entries(self, directory: str, log_id: EntryLogId) -> AsyncGenerator[ScanMessage, None]:
        """Yields ScannedRows, then a ScanEnd; or an UnreadableLog. Close the generator to stop early."""
        return self._messages(ScanEntries(directory=directory, log_id=log_id, rows_max=self._rows_max))

    async def _messages(self, task: MeasureLogs | ScanEntries) -> AsyncGenerator[ScanMessage, None]:
        lane = f"scans of {task.directory}"
        undo = ExitStack()
        pool = undo.enter_context(self._children.pool(CHILD_MODULE, task.directory, 1))
        messages: Iterator[ScanMessage] = pool.stream(task, ScanMessage)
        try:
            while (message := await self._workers.run(lane, next, messages, None)) is not None:
                yield message
        except (ChildFailedError, OSError) as error:
            cause = error.cause if isinstance(error, ChildFailedError) else error
            raise EntryLogError(f"{task.directory}: cannot scan its entry logs: {cause}") from error
        finally:
            pool.stop()  # the lane may still be waiting for the child
            await self._workers.run(lane, undo.close)


class CompactionThrottle:
    """Limits the copy rate in one ledger directory, in entries or bytes per second by the settings."""

    def __init__(self, clock: Clock, config: GarbageCollectionConfig) -> None:
        self.set_rate(config)
        self._limit = RateLimit(clock, 1.0)
        """Of seconds, because the unit can change: copies keep the time that they have by the rate when they began."""
        self._waiting: asyncio.Task[None] | None = None

    def set_rate(self, config: GarbageCollectionConfig) -> None:
        """Set the rate for copies noted from now on."""
        self._is_by_bytes = config.is_throttled_by_bytes
        self._per_s_max = config.copied_bytes_per_s_max if self._is_by_bytes else config.copied_entries_per_s_max

    async def wait(self) -> bool:
        """True when the time for earlier copies has passed; False after ``interrupt``. For one caller at a time."""
        waiting = self._waiting = asyncio.ensure_future(self._limit.take())
        try:
            await asyncio.wait((waiting,))
        finally:
            waiting.cancel()
        return not waiting.cancelled()

    def interrupt(self) -> None:
        """Wake the waiting caller, which then checks whether its copies are still needed."""
        if self._waiting is not None:
            self._waiting.cancel()

    def note(self, entry_count: int, size_bytes: int) -> None:
        """Count copies; the next ``wait`` includes the time for them."""
        self._limit.spend((size_bytes if self._is_by_bytes else entry_count) / self._per_s_max)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DirectoryTools:
    """What garbage collection in one ledger directory needs; engine and throttle belong to that directory."""

    file_system: FileSystem
    engine: LedgerDirectoryEngine
    workers: Workers
    clock: Clock
    scanner: LogScanner
    throttle: CompactionThrottle
    config: GarbageCollectionConfig
    metrics: GarbageCollectionMetrics
    log_metrics: LogMetrics


class Compactor:
    """Compacts the logs of one ledger directory, one at a time; can delete other logs at the same time."""

    def __init__(self, tools: DirectoryTools) -> None:
        self._fs, self._engine, self._workers = tools.file_system, tools.engine, tools.workers
        self._scanner, self._throttle = tools.scanner, tools.throttle
        self._config, self._metrics, self._log_metrics = tools.config, tools.metrics, tools.log_metrics
        self._copied_bytes_of: dict[EntryLogId, int] = {}
        """Logs from which entries were copied and which are not deleted yet."""
        self._in_hand: set[EntryLogId] = set()

    def is_in_hand(self, log_id: EntryLogId) -> bool:
        """Whether a log is being read, replaced, deleted or created here."""
        return log_id in self._in_hand

    @asynccontextmanager
    async def holding(self, *log_ids: EntryLogId) -> AsyncIterator[None]:
        """Hold logs within the block; no other task may hold them."""
        assert self._in_hand.isdisjoint(log_ids), "a log has one owner"
        self._in_hand.update(log_ids)
        try:
            yield
        except asyncio.CancelledError:
            await await_cancelled_work(self._workers)
            raise
        finally:
            self._in_hand.difference_update(log_ids)

    def hurry(self) -> None:
        """Ledgers were deleted: waiting copies may no longer be needed."""
        self._throttle.interrupt()

    async def compact(self, log_id: EntryLogId) -> frozenset[LedgerId] | None:
        """Copy entries in use. Call ``remove`` once no row of the returned ledgers references the log.

        None: rows of any ledger may reference it, or rows may be missing. CorruptFileError: the log is damaged. Any
        other StorageError, OSError: not possible now; unfinished work has no effect. Must not run twice at the same
        time.
        """
        source = CompactionSource(self._fs, self._engine.relocation, log_id)
        async with self.holding(log_id):
            return await self._compact(source, self._survivors_of(source))

    async def require_unused(self, log_id: EntryLogId) -> frozenset[LedgerId] | None:
        """Read a log that should have no entry in use. Like ``compact``, and may run at the same time.

        LogInUseError: an entry is in use.
        """
        async with self.holding(log_id):
            return await self._compact(CompactionSource(self._fs, self._engine.relocation, log_id), Survivors())

    async def _compact(self, source: CompactionSource, survivors: Survivors) -> frozenset[LedgerId] | None:
        try:
            ledger_ids, copied_bytes = await self._copy_live(source, survivors)
            await survivors.finish()
        except BaseException:
            await survivors.abandon()
            raise
        finally:
            await self._workers.run(COMPACTION_LANE, source.close)
        if copied_bytes:
            self._metrics.logs_compacted_count += 1
            self._copied_bytes_of[source.log_id] = copied_bytes
        return ledger_ids

    async def remove(self, log_id: EntryLogId) -> None:
        """Delete a log that no row of the index references."""
        size_bytes = await self._workers.run(CHECKPOINT_LANE, _remove, self._fs, self._engine, log_id)
        self._metrics.logs_removed_count += 1
        self._metrics.reclaimed_bytes += size_bytes
        if copied_bytes := self._copied_bytes_of.pop(log_id, 0):
            self._log_metrics.compaction_reclaimed_bytes += size_bytes - copied_bytes
        else:
            self._log_metrics.deletion_reclaimed_bytes += size_bytes
        logger.info(
            "%s: deleted entry log %s, %d bytes",
            self._engine.ledger_directory,
            entry_log_file_name(log_id),
            size_bytes,
        )

    async def list_interrupted(self) -> list[CompactedLog]:
        """Interrupted transactional compactions; those that cannot be finished are deleted. OSError.

        Independent of the current settings, because the files exist.
        """
        directory = self._engine.ledger_directory
        removed_count = await self._workers.run(COMPACTION_LANE, remove_unfinished_logs, self._fs, directory)
        if removed_count:
            logger.info("%s: deleted %d unfinished compaction logs", directory, removed_count)
        return await self._workers.run(COMPACTION_LANE, list_compacted_logs, self._fs, directory)

    async def resume(self, compacted: CompactedLog) -> None:
        """Finish one from step 4 on, except for its source, which then needs ``compact``.

        CorruptFileError for a log that is damaged; other StorageErrors, OSError.
        """
        async with self.holding(compacted.source_log_id):
            await self._require_whole(compacted)
            await self._replace(compacted)
        self._metrics.compactions_resumed_count += 1
        logger.info("%s: finished the compaction into it", compacted.path)

    async def _require_whole(self, compacted: CompactedLog) -> None:
        """Check the whole log, which may be old: the index must reference nothing damaged. Raises like ``resume``."""
        async with self.holding(compacted.log_id):
            await self._workers.run(COMPACTION_LANE, compacted.publish, self._fs)
            async with aclosing(self._moves_into(compacted)) as batches:
                async for _ in batches:
                    pass

    async def _replace(self, compacted: CompactedLog) -> None:
        """Steps 4 to 6, except for the source. Raises like ``resume``."""
        async with self.holding(compacted.log_id):  # from here on it looks like any other log
            await self._workers.run(COMPACTION_LANE, compacted.publish, self._fs)
            async with aclosing(self._moves_into(compacted)) as batches:
                async for moves in batches:
                    await relocate(self._workers, self._engine, moves)
            await self._workers.run(COMPACTION_LANE, compacted.forget, self._fs)

    async def _moves_into(self, compacted: CompactedLog) -> AsyncGenerator[list[EntryMove], None]:
        """Moves of entries that the index still has in the source; at the end CorruptFileError for a damaged log."""
        is_complete = False
        source_offset = 0
        async with aclosing(self._scanner.entries(compacted.directory, compacted.log_id)) as messages:
            async for message in messages:
                entries, is_complete = _taken(message)
                moves = await self._workers.run(COMPACTION_LANE, _moves_from, self._engine, compacted, entries)
                for move in moves:
                    if move.from_location.offset <= source_offset:
                        # An id changed in place belongs to another entry now, which the ledgers map cannot show.
                        reason = (
                            f"entry {move.ledger_id}:{move.entry_id} is not at its place in the log that is replaced"
                        )
                        raise CorruptFileError(compacted.path, move.to_location.offset, reason)
                    source_offset = move.from_location.offset
                yield moves
        if not is_complete:
            raise CorruptFileError(compacted.path, 0, "the log does not match its own ledgers map")

    def _survivors_of(self, source: CompactionSource) -> Survivors:
        if self._config.is_transactional:
            return NewLogSurvivors(self._fs, self._engine, self._workers, source, self._replace)
        return ActiveLogSurvivors(self._engine, self._workers, source, self._config.outstanding_entries_max)

    async def _copy_live(
        self, source: CompactionSource, survivors: Survivors
    ) -> tuple[frozenset[LedgerId] | None, int]:
        """Ledgers whose rows may still reference the log (None: any ledger), and the bytes of copied entries."""
        is_complete, may_lack_rows, copied_bytes = False, False, 0
        ledger_ids: set[LedgerId] = set()
        async with aclosing(self._scanner.entries(self._engine.ledger_directory, source.log_id)) as messages:
            async for message in messages:
                entries, is_complete = _taken(message)
                existing = [entry for entry in entries if entry.ledger_id in self._engine.rows]
                if not existing:
                    continue
                ledger_ids.update(entry.ledger_id for entry in existing)
                live, unplaced_ledger_ids = await self._workers.run(COMPACTION_LANE, source.select_live, existing)
                may_lack_rows |= any(map(self._is_in_limbo, unplaced_ledger_ids))
                for batch in _batches(live, self._config.compaction_batch_bytes_max):
                    copied_bytes += await self._copy(batch, survivors)
        return frozenset(ledger_ids) if is_complete and not may_lack_rows else None, copied_bytes

    async def _copy(self, batch: Sequence[SourceEntry], survivors: Survivors) -> int:
        """Copy entries as soon as the rate allows; returns the bytes of those that were still in use then."""
        is_due, size_bytes = False, 0
        while batch and not is_due:
            is_due = await self._throttle.wait()
            batch = [entry for entry in batch if entry.ledger_id in self._engine.rows]
        if batch:
            size_bytes = sum(entry.size_bytes for entry in batch)
            self._throttle.note(len(batch), size_bytes)
            await survivors.take(batch)
            self._metrics.copied_entries_count += len(batch)
            self._metrics.copied_bytes += size_bytes
        return size_bytes

    def _is_in_limbo(self, ledger_id: LedgerId) -> bool:
        return ledger_id in self._engine.rows.limbo_ids


async def await_cancelled_work(workers: Workers) -> None:
    """Return when the jobs have ended whose callers were cancelled."""
    for lane in (COMPACTION_LANE, CHECKPOINT_LANE):
        await workers.run(lane, _nothing)


def _nothing() -> None:
    """Jobs run in order: when this one is done, all jobs before it are done."""


def _taken(message: ScanMessage) -> tuple[list[SourceEntry], bool]:
    """Entries of a message, and whether it marks a complete scan; EntryLogError if the log cannot be read."""
    match message:
        case ScannedRows():
            return [SourceEntry(*row) for row in unpack_rows(message)], False
        case ScanEnd():
            return [], message.is_complete
        case UnreadableLog():
            raise EntryLogError(message.reason)
    raise AssertionError("the answer to another question")


def _batches(entries: Sequence[SourceEntry], bytes_max: int) -> list[list[SourceEntry]]:
    batches: list[list[SourceEntry]] = []
    room_bytes = 0
    for entry in entries:
        if not batches or entry.size_bytes > room_bytes:
            batches.append([])
            room_bytes = bytes_max
        batches[-1].append(entry)
        room_bytes -= entry.size_bytes
    return batches


def _moves_from(
    engine: LedgerDirectoryEngine, compacted: CompactedLog, entries: Sequence[SourceEntry]
) -> list[EntryMove]:
    """Entries of a finished log whose rows still reference the log that it replaces.

    Their offset does not matter: the source has not changed since the entry was copied from it.
    """
    places = engine.relocation.current_locations([(entry.ledger_id, entry.entry_id) for entry in entries])
    return [
        EntryMove(entry.ledger_id, entry.entry_id, place, EntryLocation(compacted.log_id, entry.offset))
        for entry, place in zip(entries, places, strict=True)
        if place is not None and place.log_id == compacted.source_log_id
    ]


def _remove(fs: FileSystem, engine: LedgerDirectoryEngine, log_id: EntryLogId) -> int:
    size_bytes = fs.size(os.path.join(engine.ledger_directory, entry_log_file_name(log_id)))
    engine.relocation.remove_log(log_id)
    return size_bytes
