"""Where the entries of a compacted log go: to the active log among new entries, or to a log of their own.

Source: storage sections 4.9 (a log of their own: the transactional way) and 7.3.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from runtime.bookie.serving.checkpoints import CHECKPOINT_LANE
from runtime.ports import Workers
from storage.engine.engine import LedgerDirectoryEngine
from storage.engine.relocation import CompactionSource, EntryMove, SourceEntry
from storage.entry_log.compaction_log import CompactedLog, CompactedLogWriter
from storage.errors import EntryLogError, StorageError
from storage.ids import EntryLocation
from storage.ports import FileSystem

COMPACTION_LANE: Final = "compaction"
"""Reading the log, comparing with the index, writing a log of its own: nothing that a checkpoint would have to wait
for. What appends to the active log or writes to the index is the checkpoint lane's."""

RELOCATE_COUNT_MAX: Final = 2048
"""Moves of one job of the checkpoint lane, which checkpoints must not wait for."""

_SYNC_BYTES_MAX: Final = 32 * 1024 * 1024
_SYNC_ENTRIES_MAX: Final = 16_384
"""Copied at most before a sync, whatever the settings allow: a checkpoint that comes between must sync as much
along with its own, and objects by the hundred thousand make the interpreter stop to look for garbage among them."""


class LogInUseError(EntryLogError):
    """Entries of a log that was to be deleted are in use."""


class Survivors:
    """Takes the entries of one log that are in use. This one is for a log from which no entry should be copied."""

    async def take(self, entries: Sequence[SourceEntry]) -> None:
        """Copy some, given in file order. CorruptFileError, EntryLogError, OSError; here LogInUseError."""
        raise LogInUseError(f"ledger {entries[0].ledger_id} entry {entries[0].entry_id} in it is in use")

    async def finish(self) -> None:
        """Make all copies durable and the index point at them. Raises as ``take``, and IndexFailedError."""

    async def abandon(self) -> None:
        """Let go after a failure; the log that is compacted stays as it is. Safe to repeat."""


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
        self._unsynced_bytes += sum(map(len, bodies))  # before the job: it runs on when this call is cancelled
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
            # The engine is to forget that copies are outstanding: nobody will ask for them any more.
            with contextlib.suppress(StorageError, OSError):
                await self._workers.run(CHECKPOINT_LANE, self._engine.relocation.sync_logs)


class NewLogSurvivors(Survivors):
    """Copies to a log that takes the place of the source, in steps that can be finished after a crash.

    ``replace`` takes the steps that come when the new log is finished. It scans it: the moves of a whole log, kept from
    the copying, would take three times the memory of the log where entries are small.
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
        """See ``Survivors``. A log that is finished stays, to be finished by a later round."""
        if self._writer is not None:
            writer, self._writer = self._writer, None
            await self._workers.run(COMPACTION_LANE, writer.abandon)


async def relocate(workers: Workers, engine: LedgerDirectoryEngine, moves: Sequence[EntryMove]) -> None:
    """Let copies take the place of their originals, in jobs that leave room for checkpoints."""
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
