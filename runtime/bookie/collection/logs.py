"""The entry logs of one ledger directory under the collector: what each holds, which go, which are left alone.

Source: storage sections 4.7, 7.1 and 7.3. A log is taken up once it is finished, never while it is written to.

``compact`` takes as long as it takes, and everything else but ``resume`` may run beside it: a log that one of them has
in hand is left alone by the others.
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

from runtime.bookie.collection.compaction import Compactor, DirectoryTools
from runtime.bookie.collection.compaction_survivors import COMPACTION_LANE, LogInUseError
from runtime.bookie.disks.modes import sentence
from runtime.config import CompactionConfig
from runtime.ports import Workers
from storage.disk_room import DiskRoom
from storage.engine.engine import LedgerDirectoryEngine
from storage.entry_log.compaction_scan import MeasuredLog, UnreadableLog
from storage.entry_log.log_lists import read_quarantine, read_quarantine_list, write_quarantine
from storage.entry_log.usage import LogUsage, logs_to_compact
from storage.errors import CorruptFileError, IndexFailedError, StorageError
from storage.filenames import entry_log_file_name
from storage.ids import EntryId, EntryLocation, EntryLogId, LedgerId

logger = logging.getLogger(__name__)

IndexRow: TypeAlias = tuple[LedgerId, EntryId, EntryLocation]

_MEASURED_AT_ONCE_MAX: Final = 256
_WITNESSES_MAX: Final = 256
"""Rows that the sweep of the index keeps of each log."""


class CompactionRoom:
    """What the compactions of all directories on one disk may fill it with, together.

    Room that was seen by one of them is not there for the next one.
    """

    def __init__(self, room: DiskRoom, workers: Workers) -> None:
        self._room = room
        self._workers = workers
        self._claimed_bytes = 0
        self._turn = asyncio.Lock()
        self._freed = asyncio.Event()

    @contextlib.asynccontextmanager
    async def claimed(self, needed_bytes: int) -> AsyncIterator[None]:
        """There is room for that much within the block. Waits for others to end where they have taken it.

        OSError: there would not be enough without them either. Nothing is asked for 0 bytes: a log without survivors
        gives room and needs none.
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
    """Logs of one ledger directory. ``target_bytes``: size that usage is measured against, 0 for a log's own.

    ``scan_turn`` is shared with the other directories: of the scans that no compaction asks for, one runs at a time.
    """

    def __init__(
        self, tools: DirectoryTools, room: CompactionRoom, scan_turn: asyncio.Lock, *, target_bytes: int
    ) -> None:
        self._fs, self._engine, self._workers = tools.file_system, tools.engine, tools.workers
        self._clock, self._scanner = tools.clock, tools.scanner
        self._compactor = Compactor(tools)
        self._room = room
        self._scan_turn = scan_turn
        self._target_bytes = target_bytes
        self._originals_bytes_max = tools.config.originals_bytes_max
        self._usages: dict[EntryLogId, LogUsage] = {}
        self._quarantined: dict[EntryLogId, str] | None = None
        self._unproven: set[EntryLogId] = set()
        self._copied: dict[EntryLogId, frozenset[LedgerId]] = {}
        """Logs of which nothing should be in use any more, and the ledgers whose rows are to bear that out."""
        self._copied_bytes = 0
        self._misjudged: set[EntryLogId] = set()
        """Logs that seemed to be unused and are not: a compaction can copy what is in use."""
        self._read_damages: dict[EntryLogId, str] = {}
        self._failures_count = 0

    @property
    def path(self) -> str:
        """The folder of the logs."""
        return self._engine.ledger_directory

    @property
    def usages(self) -> list[LogUsage]:
        """Of the logs whose contents are known."""
        return list(self._usages.values())

    @property
    def quarantined_count(self) -> int:
        """Damaged logs that are left alone."""
        return len(self._quarantined or ())

    @property
    def is_deletion_unflushed(self) -> bool:
        """Whether a deleted ledger would be there again after a crash now."""
        return self._engine.is_deletion_unflushed

    def take_failures_count(self) -> int:
        """Logs that could not be dealt with since the last call; the next round tries again."""
        count, self._failures_count = self._failures_count, 0
        return count

    async def resume(self) -> None:
        """Finish what an earlier compaction was cut off in. StorageError, OSError when the folder cannot be read.

        Not beside a compaction, whose files look the same.
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
        """Take up logs that were finished since, forget deleted ledgers. StorageError, OSError."""
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
            if usage.log_id in self._usages:  # a compaction may have deleted it meanwhile
                self._usages[usage.log_id] = usage.of_existing(self._engine.ledger)
            await self._clock.sleep(0)  # a log may hold 100,000 ledgers, and there may be 10,000 logs

    async def remove_empty(self) -> None:
        """Delete logs in which no ledger is left. Never by what a log says of itself alone. IndexFailedError."""
        for log_id in [usage.log_id for usage in self.usages if usage.is_empty]:
            if self._compactor.is_in_hand(log_id):
                self._compactor.hurry()  # who has it in hand sees to it
            elif log_id not in self._misjudged:
                async with self._scan_turn:
                    if self._is_free(log_id):
                        await self._deal_with(log_id, self._compactor.require_unused)
        # No round waits for a search: this needs none.
        await self._settle_free({log_id for log_id, ledger_ids in self._copied.items() if not ledger_ids}, frozenset())

    async def compact(self, config: CompactionConfig) -> None:
        """Compact the logs that are used less than the threshold, the emptiest first. IndexFailedError."""
        began_ns = self._clock.monotonic_ns()
        candidates = [usage for usage in self.usages if usage.log_id not in self._unproven]
        for log_id in [usage.log_id for usage in logs_to_compact(candidates, config.threshold, self._target_bytes)]:
            elapsed_s = (self._clock.monotonic_ns() - began_ns) / 1e9
            if config.duration_s_max is not None and elapsed_s >= config.duration_s_max:
                logger.info("%s: compaction ends after %.0f s", self._engine.ledger_directory, elapsed_s)
                break
            if self._is_free(log_id) and not await self._copy_with_room(log_id, is_last_try=not self._copied):
                await self._settle_copied()  # the room may be in the originals of what was copied before
                if self._is_free(log_id):
                    await self._copy_with_room(log_id, is_last_try=True)
            if self._copied_bytes >= self._originals_bytes_max:
                await self._settle_copied()
        await self._settle_copied()

    async def _copy_with_room(self, log_id: EntryLogId, *, is_last_try: bool) -> bool:
        """False: there is no room, which may change before the last try."""
        needed_bytes = self._usages[log_id].remaining_bytes
        try:
            # Copies come before the log they were made of goes.
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
        """Delete the logs that no row of the index names, quarantine those that some row still does. StorageError."""
        await self._settle_copied()  # of a compaction that was cut off
        await self._settle_free(self._unproven, None)

    async def _settle_copied(self) -> None:
        """Like ``settle_unproven``, of the logs of which it is known whose rows can name them."""
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
                self._note_failure(log_id, error)
            else:
                self._usages.pop(log_id, None)
            self._unproven.discard(log_id)
            self._copied.pop(log_id, None)

    def _is_free(self, log_id: EntryLogId) -> bool:
        """Whether a log is still there, to be dealt with, and in nobody's hand."""
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
        """Note what becomes of a log. IndexFailedError."""
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
            sentence(error),
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
            # Taken away while the bookie was stopped: a good copy that is put back one day must not be named.
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
        """Logs in which readers came upon damage: one that is in use throughout is never compacted, nor looked at."""
        self._read_damages |= self._engine.stored.take_damages()
        for log_id in sorted(self._read_damages.keys() & finished):
            if self._compactor.is_in_hand(log_id):
                continue
            path = os.path.join(self._engine.ledger_directory, entry_log_file_name(log_id))
            reason = self._read_damages.pop(log_id).removeprefix(f"{path}: ")
            if log_id not in self._quarantine:
                await self._put_in_quarantine(log_id, reason)

    async def _release(self, log_ids: Iterable[EntryLogId]) -> None:
        """Logs whose files somebody has taken away."""
        for log_id in log_ids:
            del self._quarantine[log_id]
        await self._record_quarantine()

    async def _record_quarantine(self) -> None:
        directory = self._engine.ledger_directory
        try:
            await self._workers.run(COMPACTION_LANE, write_quarantine, self._fs, directory, dict(self._quarantine))
        except OSError as error:
            logger.error("%s: cannot record the quarantine: %s", directory, sentence(error))


async def find_rows_naming(
    engine: LedgerDirectoryEngine,
    workers: Workers,
    log_ids: AbstractSet[EntryLogId],
    ledger_ids: AbstractSet[LedgerId] | None,
) -> dict[EntryLogId, list[IndexRow]]:
    """Some rows of existing ledgers for each log that any names; a log that is not in the answer is named by none.

    No log is deleted without this sweep: a scan finds what a log says of itself, and an entry whose id was changed in
    place looks to it like one that is not in use. Of a log that agrees with its own map it is known which ledgers it
    holds, and their rows are enough; for others (those that were active when a bookie ended, and damaged ones) it takes
    the whole index. One sweep answers for many logs. It costs about a microsecond for each row, in bounded jobs.

    ``ledger_ids``: the only ledgers of which the logs hold anything; None: that is not known.
    No row can come to name a finished log again, so what is not found once is not there. IndexDamagedError.
    """
    found: defaultdict[EntryLogId, list[IndexRow]] = defaultdict(list)
    ordered = None if ledger_ids is None else sorted(ledger_ids)
    start: bytes | None = b""
    while start is not None:
        rows = await workers.run(COMPACTION_LANE, engine.relocation.rows_naming, log_ids, ordered, start)
        for row in rows.found:
            witnesses = found[row[2].log_id]
            if len(witnesses) < _WITNESSES_MAX and engine.ledger(row[0]) is not None:
                witnesses.append(row)
        start = rows.next_start
    return {log_id: left for log_id, rows in found.items() if (left := await _still_there(engine, workers, rows))}


async def _still_there(engine: LedgerDirectoryEngine, workers: Workers, rows: list[IndexRow]) -> list[IndexRow]:
    """Rows that nobody has changed since they were found: a ledger may have been deleted, an entry added again."""
    keys = [(ledger_id, entry_id) for ledger_id, entry_id, _ in rows]
    places = await workers.run(COMPACTION_LANE, engine.relocation.current_locations, keys)
    return [row for row, place in zip(rows, places, strict=True) if place == row[2]]
