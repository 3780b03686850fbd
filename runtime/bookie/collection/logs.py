"""The entry logs of one ledger directory in the collector: their contents, which are deleted, which are skipped.

Source: storage sections 4.7, 7.1 and 7.3. Only finished logs are handled, never the log that is being written.

``compact`` may take very long, and everything else except ``resume`` may run at the same time: a log that one of them
is working on is left alone by the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from collections.abc import Set as AbstractSet
from contextlib import aclosing
from typing import Any, Final, TypeAlias

from bkctl.runtime.bookie.collection.compaction import Compactor, DirectoryTools
from bkctl.runtime.bookie.collection.compaction_survivors import COMPACTION_LANE, LogInUseError
from bkctl.runtime.bookie.collection.metrics import DirectoryTimings
from bkctl.runtime.config import CompactionConfig
from bkctl.runtime.ports import Workers
from bkctl.storage.advice import with_path
from bkctl.storage.disk_room import DiskRoom
from bkctl.storage.engine.engine import LedgerDirectoryEngine
from bkctl.storage.entry_log.compaction_scan import MeasuredLog, UnreadableLog
from bkctl.storage.entry_log.log_lists import read_quarantine, read_quarantine_list, write_quarantine
from bkctl.storage.entry_log.usage import LogUsage, logs_to_compact, usage_buckets
from bkctl.storage.errors import CorruptFileError, IndexFailedError, StorageError
from bkctl.storage.filenames import entry_log_file_name
from bkctl.storage.ids import EntryId, EntryLocation, EntryLogId, LedgerId

logger = logging.getLogger(__name__)

IndexRow: TypeAlias = tuple[LedgerId, EntryId, EntryLocation]

_MEASURED_AT_ONCE_MAX: Final = 256
_WITNESSES_MAX: Final = 256
"""Rows to keep per log during a search of the index."""


class CompactionRoom:
    """Disk space shared by the compactions of all directories on one disk.

    Space claimed by one of them is not available to the next.
    """

    def __init__(self, room: DiskRoom, workers: Workers) -> None:
        self._room = room
        self._workers = workers
        self._claimed_bytes = 0
        self._turn = asyncio.Lock()
        self._freed = asyncio.Event()

    @contextlib.asynccontextmanager
    async def claimed(self, needed_bytes: int) -> AsyncIterator[None]:
        """Reserve this much space for the block. Waits for others to end if they have reserved it.

        OSError: there would not be enough without them either. 0 bytes need no check: a log without survivors only
        frees space.
        """
        if needed_bytes:
            await self._claim(needed_bytes)
        try:
            yield
        finally:
            self._claimed_bytes -= needed_bytes
            self._freed.set()

    async def _claim(self, needed_bytes: int) -> None:
        async with self._turn:
            while True:
                self._freed.clear()
                others_bytes = self._claimed_bytes
                try:
                    await self._workers.run(COMPACTION_LANE, self._room.require, others_bytes + needed_bytes)
                except OSError:
                    if not others_bytes:
                        raise
                    if others_bytes == self._claimed_bytes:
                        await self._freed.wait()
                else:
                    self._claimed_bytes += needed_bytes
                    return


class DirectoryCollector:
    """Logs of one ledger directory. ``target_bytes``: log size for measuring usage; 0: each log's own size.

    ``scan_turn`` is shared with the other directories: of the scans outside of compactions, one runs at a time.
    """

    def __init__(
        self, tools: DirectoryTools, room: CompactionRoom, scan_turn: asyncio.Lock, *, target_bytes: int
    ) -> None:
        self._fs, self._engine, self._workers = tools.file_system, tools.engine, tools.workers
        self._clock, self._scanner = tools.clock, tools.scanner
        self._compactor = Compactor(tools)
        self.metrics = tools.log_metrics
        self.timings = DirectoryTimings()
        self._room = room
        self._scan_turn = scan_turn
        self._target_bytes = target_bytes
        self._originals_bytes_max = tools.config.originals_bytes_max
        self._usages: dict[EntryLogId, LogUsage] = {}
        self._quarantined: dict[EntryLogId, str] | None = None
        self._unproven: set[EntryLogId] = set()
        self._copied: dict[EntryLogId, frozenset[LedgerId]] = {}
        """Logs whose entries should all be unused now, and the ledgers whose rows must be searched to verify that."""
        self._copied_bytes = 0
        self._misjudged: set[EntryLogId] = set()
        """Logs that looked unused but are in use: only a compaction can empty them."""
        self._read_damages: dict[EntryLogId, str] = {}
        self._failures_count = 0

    @property
    def path(self) -> str:
        """The directory of the logs."""
        return self._engine.ledger_directory

    @property
    def usages(self) -> list[LogUsage]:
        """Usage of the logs that have been measured."""
        return list(self._usages.values())

    @property
    def quarantined_count(self) -> int:
        """Number of damaged logs, which are skipped."""
        return len(self._quarantined or ())

    def measure(self) -> None:
        """Bring the current values of ``metrics`` up to date."""
        usages, metrics = self.usages, self.metrics
        metrics.logs_count = len(usages)
        metrics.logs_bytes = sum(usage.total_bytes for usage in usages)
        metrics.remaining_bytes = sum(usage.remaining_bytes for usage in usages)
        metrics.usage_buckets = usage_buckets(usages)
        metrics.logs_quarantined = self.quarantined_count

    @property
    def is_deletion_unflushed(self) -> bool:
        """Whether a crash now would bring a deleted ledger back."""
        return self._engine.is_deletion_unflushed

    def take_failures_count(self) -> int:
        """Number of failed logs since the last call; the next round retries them."""
        count, self._failures_count = self._failures_count, 0
        return count

    async def resume(self) -> None:
        """Finish interrupted compactions. StorageError, OSError when the directory cannot be read.

        Must not run during a compaction, whose files look the same.
        """
        await self._load_quarantine()
        for compacted in await self._compactor.list_interrupted():
            if compacted.log_id in self._quarantine or any(
                map(self._compactor.is_in_hand, (compacted.log_id, compacted.source_log_id))
            ):
                continue
            try:
                await self._compactor.resume(compacted)
            except CorruptFileError as error:
                await self._put_in_quarantine(compacted.source_log_id, str(error))
                await self._put_in_quarantine(compacted.log_id, str(error))
                continue
            finished = await self._workers.run(COMPACTION_LANE, self._engine.relocation.finished_log_ids)
            if compacted.source_log_id in finished and compacted.source_log_id not in self._quarantine:
                await self._deal_with(compacted.source_log_id, self._compactor.compact)

    async def refresh(self) -> None:
        """Measure newly finished logs, and update usage for deleted ledgers. StorageError, OSError."""
        with self.timings.measurings.timed(self._clock.monotonic_ns):
            await self._refresh()

    async def _refresh(self) -> None:
        finished = await self._workers.run(COMPACTION_LANE, self._engine.relocation.finished_log_ids)
        there = set(finished)
        self._unproven &= there
        self._copied = {log_id: ledger_ids for log_id, ledger_ids in self._copied.items() if log_id in there}
        self._misjudged &= there
        for gone in self._usages.keys() - there:
            del self._usages[gone]
        if released := self._quarantine.keys() - there:
            await self._release(released)
        await self._quarantine_by_reads(there)
        known = self._usages.keys() | self._quarantine.keys()
        new = [log_id for log_id in finished if log_id not in known and not self._compactor.is_in_hand(log_id)]
        for first in range(0, len(new), _MEASURED_AT_ONCE_MAX):
            async with self._scan_turn:
                await self._measure(new[first : first + _MEASURED_AT_ONCE_MAX])
        for usage in self.usages:
            if usage.log_id in self._usages:  # a compaction may have deleted it in the meantime
                self._usages[usage.log_id] = usage.of_existing(self._engine.rows.find)
            await self._clock.sleep(0)  # a log may hold 100,000 ledgers, and there may be 10,000 logs

    async def remove_empty(self) -> None:
        """Delete logs in which no ledger is left; never only because of what a log says of itself. IndexFailedError."""
        for log_id in [usage.log_id for usage in self.usages if usage.is_empty]:
            if self._compactor.is_in_hand(log_id):
                self._compactor.hurry()  # the task that is working on it will delete it
            elif log_id not in self._misjudged:
                async with self._scan_turn:
                    if self._is_free(log_id):
                        await self._deal_with(log_id, self._compactor.require_unused)
        # These need no search of the index, for which no round may wait.
        await self._settle_free({log_id for log_id, ledger_ids in self._copied.items() if not ledger_ids}, frozenset())

    async def compact(self, config: CompactionConfig) -> None:
        """Compact the logs with usage below the threshold, the emptiest first. IndexFailedError."""
        began_ns = self._clock.monotonic_ns()
        candidates = [usage for usage in self.usages if usage.log_id not in self._unproven]
        log_ids = [usage.log_id for usage in logs_to_compact(candidates, config.threshold, self._target_bytes)]
        for position, log_id in enumerate(log_ids):
            self.metrics.compaction_progress = position / len(log_ids)
            elapsed_s = (self._clock.monotonic_ns() - began_ns) / 1e9
            if config.duration_s_max is not None and elapsed_s >= config.duration_s_max:
                logger.info("%s: compaction ends after %.0f s", self._engine.ledger_directory, elapsed_s)
                break
            if self._is_free(log_id) and not await self._copy_with_room(log_id, is_last_try=not self._copied):
                await self._settle_copied()  # deleting originals that were copied earlier may free the space
                if self._is_free(log_id):
                    await self._copy_with_room(log_id, is_last_try=True)
            if self._copied_bytes >= self._originals_bytes_max:
                await self._settle_copied()
        await self._settle_copied()

    async def _copy_with_room(self, log_id: EntryLogId, *, is_last_try: bool) -> bool:
        """False: there is not enough space now. The last try logs a failure instead."""
        needed_bytes = self._usages[log_id].remaining_bytes
        try:
            # Copies need space before the original is deleted.
            async with self._room.claimed(needed_bytes):
                if self._is_free(log_id):
                    await self._deal_with(log_id, self._compactor.compact)
                    self._copied_bytes += needed_bytes
        except OSError as error:
            if is_last_try:
                self._note_failure(log_id, error)
            return is_last_try
        return True

    async def settle_unproven(self) -> None:
        """Delete the logs that no row of the index references; quarantine those that a row does. StorageError."""
        await self._settle_copied()  # of an interrupted compaction
        await self._settle_free(self._unproven, None)

    async def _settle_copied(self) -> None:
        """Like ``settle_unproven``, for logs whose possible ledgers are known."""
        self._copied_bytes = 0
        await self._settle_free(self._copied.keys(), frozenset().union(*self._copied.values()))

    async def _settle_free(self, log_ids: AbstractSet[EntryLogId], ledger_ids: AbstractSet[LedgerId] | None) -> None:
        free = frozenset(log_id for log_id in log_ids if not self._compactor.is_in_hand(log_id))
        if free:
            async with self._compactor.holding(*free):
                await self._settle(free, ledger_ids)

    async def _settle(self, log_ids: AbstractSet[EntryLogId], ledger_ids: AbstractSet[LedgerId] | None) -> None:
        rows_by_log: dict[EntryLogId, list[IndexRow]] = {}
        if ledger_ids is None or ledger_ids:
            rows_by_log = await find_rows_naming(self._engine, self._workers, log_ids, ledger_ids)
        for log_id in sorted(log_ids):
            rows = rows_by_log.get(log_id)
            if rows:
                ledger_id, entry_id, location = rows[0]
                await self._put_in_quarantine(
                    log_id,
                    f"the index has entries in it that a scan does not find, first ledger {ledger_id} entry "
                    f"{entry_id} at offset {location.offset}",
                )
                continue
            try:
                await self._compactor.remove(log_id)
            except OSError as error:
                self.metrics.removals_failed_count += 1
                self._note_failure(log_id, error)
            else:
                self._usages.pop(log_id, None)
            self._unproven.discard(log_id)
            self._copied.pop(log_id, None)

    def _is_free(self, log_id: EntryLogId) -> bool:
        """Whether a log still exists, is to be handled, and no task is working on it."""
        is_left_alone = log_id in self._unproven or log_id in self._copied or self._compactor.is_in_hand(log_id)
        return log_id in self._usages and not is_left_alone

    async def _measure(self, log_ids: list[EntryLogId]) -> None:
        async with aclosing(self._scanner.measure(self._engine.ledger_directory, log_ids)) as messages:
            async for message in messages:
                match message:
                    case MeasuredLog():
                        self._usages[message.log_id] = LogUsage.of_new(message.log_id, message.ledger_bytes)
                    case UnreadableLog():
                        self._failures_count += 1
                        logger.warning("%s; the next round tries again", message.reason)

    async def _deal_with(
        self, log_id: EntryLogId, empty: Callable[[EntryLogId], Coroutine[Any, Any, frozenset[LedgerId] | None]]
    ) -> None:
        """Process a log and record the result. IndexFailedError."""
        try:
            ledger_ids = await empty(log_id)
        except CorruptFileError as error:
            await self._put_in_quarantine(log_id, str(error))
        except IndexFailedError:
            raise
        except (StorageError, OSError) as error:
            if isinstance(error, LogInUseError):
                self._misjudged.add(log_id)
            self._note_failure(log_id, error)
        else:
            if ledger_ids is None:
                self._unproven.add(log_id)
            else:
                self._copied[log_id] = ledger_ids

    def _note_failure(self, log_id: EntryLogId, error: StorageError | OSError) -> None:
        self._failures_count += 1
        logger.warning(
            "%s: keeping entry log %s for now: %s",
            self._engine.ledger_directory,
            entry_log_file_name(log_id),
            with_path(error),
        )

    # -- quarantine ---------------------------------------------------------------------------------------------

    @property
    def _quarantine(self) -> dict[EntryLogId, str]:
        assert self._quarantined is not None, "resume comes first"
        return self._quarantined

    async def _load_quarantine(self) -> None:
        if self._quarantined is not None:
            return
        listed: dict[EntryLogId, str] = {}
        try:
            directory = self._engine.ledger_directory
            listed = await self._workers.run(COMPACTION_LANE, read_quarantine_list, self._fs, directory)
            self._quarantined = await self._workers.run(COMPACTION_LANE, read_quarantine, self._fs, directory)
        except CorruptFileError as error:
            logger.error("%s", error)
            self._quarantined = {}
        if listed.keys() - self._quarantined.keys():
            # Removed while the bookie was stopped: a good copy restored later must not be listed.
            await self._record_quarantine()
        for log_id, reason in self._quarantined.items():
            name = entry_log_file_name(log_id)
            logger.error("%s: skipping entry log %s: %s", self._engine.ledger_directory, name, reason)

    async def _put_in_quarantine(self, log_id: EntryLogId, reason: str) -> None:
        self._quarantine[log_id] = reason
        self._usages.pop(log_id, None)
        self._unproven.discard(log_id)
        self._copied.pop(log_id, None)
        directory = self._engine.ledger_directory
        name = entry_log_file_name(log_id)
        logger.error("%s: entry log %s is damaged and will be skipped from now on: %s", directory, name, reason)
        await self._record_quarantine()

    async def _quarantine_by_reads(self, finished: AbstractSet[EntryLogId]) -> None:
        """Quarantine logs that readers found damaged: a log that is fully in use is neither compacted nor scanned."""
        self._read_damages |= self._engine.stored.take_damages()
        for log_id in sorted(self._read_damages.keys() & finished):
            if self._compactor.is_in_hand(log_id):
                continue
            path = os.path.join(self._engine.ledger_directory, entry_log_file_name(log_id))
            reason = self._read_damages.pop(log_id).removeprefix(f"{path}: ")
            if log_id not in self._quarantine:
                await self._put_in_quarantine(log_id, reason)

    async def _release(self, log_ids: Iterable[EntryLogId]) -> None:
        """Release logs whose files the operator removed."""
        for log_id in log_ids:
            del self._quarantine[log_id]
        await self._record_quarantine()

    async def _record_quarantine(self) -> None:
        directory = self._engine.ledger_directory
        try:
            await self._workers.run(COMPACTION_LANE, write_quarantine, self._fs, directory, dict(self._quarantine))
        except OSError as error:
            logger.error("%s: cannot record the quarantine: %s", directory, with_path(error))


async def find_rows_naming(
    engine: LedgerDirectoryEngine,
    workers: Workers,
    log_ids: AbstractSet[EntryLogId],
    ledger_ids: AbstractSet[LedgerId] | None,
) -> dict[EntryLogId, list[IndexRow]]:
    """For each log that any row references, some of these rows (of existing ledgers). Other logs are unreferenced.

    No log is deleted without this search: a scan relies on what a log says of itself, and an entry whose id was changed
    in place looks unused. A log that agrees with its own map has known ledgers, and a search of their rows is enough;
    other logs (active when a bookie ended, or damaged) need a search of the whole index. One search covers many logs.
    It costs about a microsecond per row, in bounded jobs.

    ``ledger_ids``: the only ledgers with entries in these logs; None: unknown. Rows never start to reference a finished
    log, so one search without a match is proof. IndexDamagedError.
    """
    found: defaultdict[EntryLogId, list[IndexRow]] = defaultdict(list)
    ordered = None if ledger_ids is None else sorted(ledger_ids)
    start: bytes | None = b""
    while start is not None:
        rows = await workers.run(COMPACTION_LANE, engine.relocation.rows_naming, log_ids, ordered, start)
        for row in rows.found:
            witnesses = found[row[2].log_id]
            if len(witnesses) < _WITNESSES_MAX and row[0] in engine.rows:
                witnesses.append(row)
        start = rows.next_start
    return {log_id: left for log_id, rows in found.items() if (left := await _still_there(engine, workers, rows))}


async def _still_there(engine: LedgerDirectoryEngine, workers: Workers, rows: list[IndexRow]) -> list[IndexRow]:
    """Rows that have not changed since they were found: a ledger may have been deleted, or an entry added again."""
    keys = [(ledger_id, entry_id) for ledger_id, entry_id, _ in rows]
    places = await workers.run(COMPACTION_LANE, engine.relocation.current_locations, keys)
    return [row for row, place in zip(rows, places, strict=True) if place == row[2]]
