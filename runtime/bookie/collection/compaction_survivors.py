"""Where the entries of a compacted log go: to the active log among new entries, or to a new log.

Source: storage sections 4.9 (transactional compaction, to a new log) and 7.3.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from bkctl.runtime.bookie.serving.checkpoints import CHECKPOINT_LANE
from bkctl.runtime.ports import Workers
from bkctl.storage.engine.engine import LedgerDirectoryEngine
from bkctl.storage.engine.relocation import CompactionSource, EntryMove, SourceEntry
from bkctl.storage.entry_log.compaction_log import CompactedLog, CompactedLogWriter
from bkctl.storage.errors import EntryLogError, StorageError
from bkctl.storage.ids import EntryLocation
from bkctl.storage.ports import FileSystem

COMPACTION_LANE: Final = "compaction"
"""For reading logs, comparing with the index and writing new logs: work that checkpoints must not wait for. Appending
to the active log and writing to the index is done in the checkpoint lane."""

RELOCATE_COUNT_MAX: Final = 2048
"""Moves per job of the checkpoint lane; small, because checkpoints have to wait for the job."""

_SYNC_BYTES_MAX: Final = 32 * 1024 * 1024
_SYNC_ENTRIES_MAX: Final = 16_384
"""Upper limit before a sync, whatever the settings allow: a checkpoint in between must sync the copies too, and
hundreds of thousands of objects make Python's garbage collector pause the interpreter."""


class LogInUseError(EntryLogError):
    """A log that was to be deleted has entries that are in use."""


class Survivors:
    """Copies the entries of one log that are in use. This class is for a log that should have none."""

    async def take(self, entries: Sequence[SourceEntry]) -> None:
        """Copy entries, given in file order. CorruptFileError, EntryLogError, OSError; here LogInUseError."""
        raise LogInUseError(f"ledger {entries[0].ledger_id} entry {entries[0].entry_id} in it is in use")

    async def finish(self) -> None:
        """Make all copies durable and point the index at them. Raises like ``take``, and IndexFailedError."""

    async def abandon(self) -> None:
        """Clean up after a failure; the source log is not changed. Can be called again."""


class ActiveLogSurvivors(Survivors):
    """Copies to the active log."""

    def __init__(
        self, engine: LedgerDirectoryEngine, workers: Workers, source: CompactionSource, outstanding_entries_max: int
    ) -> None:
        self._engine = engine
        self._workers = workers
        self._source = source
        self._outstanding_entries_max = min(outstanding_entries_max, _SYNC_ENTRIES_MAX)
        self._moves: list[EntryMove] = []
        self._unsynced_bytes = 0

    async def take(self, entries: Sequence[SourceEntry]) -> None:
        """See ``Survivors``."""
        bodies = await self._workers.run(COMPACTION_LANE, self._source.read_bodies, entries)
        owned = [(entry.ledger_id, body) for entry, body in zip(entries, bodies, strict=True)]
        self._unsynced_bytes += sum(map(len, bodies))  # before the job, which continues if this call is cancelled
        locations = await self._workers.run(CHECKPOINT_LANE, self._engine.relocation.append_survivors, owned)
        self._moves += _moves(self._source, entries, locations)
        if len(self._moves) >= self._outstanding_entries_max or self._unsynced_bytes >= _SYNC_BYTES_MAX:
            await self.finish()

    async def finish(self) -> None:
        """See ``Survivors``."""
        if not self._moves:
            return
        moves, self._moves = self._moves, []
        await self._workers.run(CHECKPOINT_LANE, self._engine.relocation.sync_logs)
        self._unsynced_bytes = 0
        await relocate(self._workers, self._engine, moves)

    async def abandon(self) -> None:
        """See ``Survivors``."""
        if self._unsynced_bytes:
            # The sync clears the engine's record of outstanding copies, which are no longer needed.
            with contextlib.suppress(StorageError, OSError):
                await self._workers.run(CHECKPOINT_LANE, self._engine.relocation.sync_logs)


class NewLogSurvivors(Survivors):
    """Copies to a new log that replaces the source, in steps that can be finished after a crash.

    ``replace`` performs the steps after the new log is finished. It scans that log again, because keeping the moves of
    a whole log in memory would take three times the size of the log if entries are small.
    """

    def __init__(
        self,
        fs: FileSystem,
        engine: LedgerDirectoryEngine,
        workers: Workers,
        source: CompactionSource,
        replace: Callable[[CompactedLog], Awaitable[None]],
    ) -> None:
        self._fs = fs
        self._engine = engine
        self._workers = workers
        self._source = source
        self._replace = replace
        self._writer: CompactedLogWriter | None = None

    async def take(self, entries: Sequence[SourceEntry]) -> None:
        """See ``Survivors``."""
        if self._writer is None:
            log_id = await self._workers.run(CHECKPOINT_LANE, self._engine.relocation.claim_log_id)
            directory = self._engine.ledger_directory
            self._writer = CompactedLogWriter(self._fs, directory, log_id, self._source.log_id)
        await self._workers.run(COMPACTION_LANE, _copy, self._source, self._writer, entries)

    async def finish(self) -> None:
        """See ``Survivors``."""
        if self._writer is not None:
            compacted = await self._workers.run(COMPACTION_LANE, self._writer.finish)
            self._writer = None
            await self._replace(compacted)

    async def abandon(self) -> None:
        """See ``Survivors``. A finished log is kept; a later round completes the compaction."""
        if self._writer is not None:
            writer, self._writer = self._writer, None
            await self._workers.run(COMPACTION_LANE, writer.abandon)


async def relocate(workers: Workers, engine: LedgerDirectoryEngine, moves: Sequence[EntryMove]) -> None:
    """Point the index at the copies, in small jobs so that checkpoints can run in between."""
    for first in range(0, len(moves), RELOCATE_COUNT_MAX):
        await workers.run(CHECKPOINT_LANE, engine.relocation.relocate, moves[first : first + RELOCATE_COUNT_MAX])


def _copy(source: CompactionSource, writer: CompactedLogWriter, entries: Sequence[SourceEntry]) -> None:
    bodies = source.read_bodies(entries)
    writer.append([(entry.ledger_id, body) for entry, body in zip(entries, bodies, strict=True)])


def _moves(
    source: CompactionSource, entries: Sequence[SourceEntry], locations: Sequence[EntryLocation]
) -> list[EntryMove]:
    return [
        EntryMove(entry.ledger_id, entry.entry_id, EntryLocation(source.log_id, entry.offset), location)
        for entry, location in zip(entries, locations, strict=True)
    ]
