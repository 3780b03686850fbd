"""All directories of one bookie: where each ledger is stored, replay at boot, and the checkpoint over all of them.

Boot: ``open``, then ``replay``, which creates the journals to write to. A mark covers *every* ledger directory, so it
moves only after all of them were flushed (storage section 5.8 step 8): a flush of one directory never publishes it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from bkctl.storage.advice import REORDERED_ADVICE
from bkctl.storage.config import StorageConfig
from bkctl.storage.disk_room import DiskRoom, is_out_of_room
from bkctl.storage.engine.checkpoint import CheckpointDone, DirectoryCheckpoint, go_on
from bkctl.storage.engine.engine import LedgerDirectoryEngine
from bkctl.storage.engine.replay import JournalReplay, ReplayFlush, ReplayReport
from bkctl.storage.errors import AdoptionRefusedError, MisplacedLedgerError, StorageError
from bkctl.storage.filenames import current_directory, journal_file_name
from bkctl.storage.ids import LedgerId, LogMark
from bkctl.storage.index.adoption_note import find_change_under_way
from bkctl.storage.journal.catalog import read_catalog
from bkctl.storage.journal.log_mark import NO_MARK, find_replay_start, write_last_mark
from bkctl.storage.journal.reader import list_journals
from bkctl.storage.journal.writer import JournalWriter
from bkctl.storage.measures import NowNs, no_clock
from bkctl.storage.ports import DirectoryLock, FileSystem, OpenIndexStore
from bkctl.storage.step_sizes import USUAL_STEPS, StepSizes

NO_EARLIER_STARTS: Final[Mapping[int, LogMark]] = {}


class StorageCheckpoint(msgspec.Struct):
    """A checkpoint in progress; the loop does not touch it until the lane has finished."""

    marks: tuple[LogMark, ...]
    """One for each journal: everything before it is in the jobs or already durable."""
    jobs: tuple[DirectoryCheckpoint, ...]
    """One for each ledger directory."""
    done: list[CheckpointDone] = []
    """Results of the directories written so far, in order."""
    is_published: bool = False


class LedgerStorage:
    """The journals and ledger directories of a bookie, locked for this process until ``close``."""

    def __init__(
        self,
        filesystem: FileSystem,
        config: StorageConfig,
        engines: Sequence[LedgerDirectoryEngine],
        locks: Sequence[DirectoryLock],
        now_ms: int,
        steps: StepSizes,
        now_ns: NowNs,
    ) -> None:
        self._filesystem = filesystem
        self._config = config
        self._journal_directories = [current_directory(directory) for directory in config.journal_directories]
        self._ledger_directories = [current_directory(directory) for directory in config.ledger_directories]
        self._engines = tuple(engines)
        self._locks = locks
        self._now_ms = now_ms
        self._steps = steps
        self._now_ns = now_ns
        self._journals: list[JournalWriter] = []
        self._published = [NO_MARK] * len(self._journal_directories)
        self.mark_failures: tuple[OSError, ...] = ()
        """Errors of the last publication of marks, one for each directory that could not be written."""
        self._marks_due: tuple[LogMark, ...] | None = None
        """Marks of a failed checkpoint: the next one must not publish newer ones (H2)."""
        self._deletes_due = tuple(engine.delete_count for engine in self._engines)
        """Ledgers that each directory had deleted when these marks were noted."""
        self.flush_failure: StorageError | OSError | None = None
        """Why ``replay`` left the applied records to the next checkpoint; None if it flushed them."""

    @classmethod
    def open(
        cls,
        filesystem: FileSystem,
        open_index: OpenIndexStore,
        config: StorageConfig,
        now_ms: int,
        locks: Sequence[DirectoryLock] | None = None,
        steps: StepSizes = USUAL_STEPS,
        now_ns: NowNs = no_clock,
    ) -> LedgerStorage:
        """Open all directories and create those that are new. ``now_ms``: wall clock, names the first journal.

        ``now_ns``: a monotonic clock for the measures.

        ``locks``: from ``lock_directories``, if the caller took them earlier; ``close`` releases them. Raises
        DirectoryLockedError, IndexMissingError, IndexDamagedError, MisplacedLedgerError, AdoptionRefusedError while a
        change of the index is unfinished, or another StorageError, and OSError; then nothing stays open, and the caller
        keeps its locks.
        """
        held = lock_directories(filesystem, config) if locks is None else locks
        with contextlib.ExitStack() as undo:
            if locks is None:
                undo.callback(_release, held)
            change = find_change_under_way(filesystem, config)
            if change is not None:  # adoption or hand-back would miss what the bookie writes
                raise AdoptionRefusedError(change.advice)
            engines: list[LedgerDirectoryEngine] = []
            for ledger_directory, index_directory in config.engine_directories:
                engine = LedgerDirectoryEngine.open(
                    filesystem,
                    open_index,
                    ledger_directory,
                    index_directory,
                    config.engine,
                    steps,
                    now_ns,
                )
                undo.callback(engine.close)
                engines.append(engine)
            _require_routing(config, engines)
            undo.pop_all()
        return cls(filesystem, config, engines, held, now_ms, steps, now_ns)

    @property
    def engines(self) -> tuple[LedgerDirectoryEngine, ...]:
        """One for each ledger directory, in the order of the settings."""
        return self._engines

    @property
    def journals(self) -> Sequence[JournalWriter]:
        """One for each journal directory, in the order of the settings; none before ``replay``."""
        return self._journals

    def engine_of(self, ledger_id: LedgerId) -> LedgerDirectoryEngine:
        """Directory of all entries of a ledger (storage section 1)."""
        return self._engines[ledger_id % len(self._engines)]

    def journal_of(self, ledger_id: LedgerId) -> JournalWriter:
        """Journal of all records of a ledger, which are therefore in order (storage section 1)."""
        return self._journals[ledger_id % len(self._journals)]

    def replay(
        self,
        earlier_starts: Mapping[int, LogMark] = NO_EARLIER_STARTS,
        room: DiskRoom | None = None,
        *,
        require_going: Callable[[], None] = go_on,
    ) -> ReplayReport:
        """Apply the journals, make everything durable, move the marks, and begin new journals. Once, after ``open``.

        ``room``: if it is short, the applied records stay in the write caches and the marks where they are until the
        next checkpoint (``flush_failure``); a journal without room for a new file creates it with its first group.
        None: flushes are always attempted, and errors are raised.

        ``require_going``: called between batches; an exception from it ends the replay and leaves the files as a kill
        would.

        ``earlier_starts``: journals, by index, to replay from before their mark. Every file up to the newest is
        applied, so stored data does not change; marks never move back. Raises JournalError, CorruptFileError and other
        StorageErrors, OSError: the boot must then stop.
        """
        assert not self._journals, "replay comes once, before anything is written"
        journal_count = len(self._journal_directories)
        record_bytes_max = self._config.engine.entry_log.entry_bytes_max
        flush = ReplayFlush(self._engines, self._config.engine, room)
        replay = JournalReplay(
            self._filesystem,
            self.engine_of,
            journal_count,
            record_bytes_max,
            flush.make_room,
            flush.make_row_room,
            require_going,
            self._steps.replay_batch_bytes,
        )
        starts: list[LogMark] = []
        ends: list[LogMark] = []
        for index, directory in enumerate(self._journal_directories):
            catalog = read_catalog(self._filesystem, directory)
            start = find_replay_start(
                self._filesystem, self._ledger_directories, index, journal_count, is_cataloged=bool(catalog.journals)
            )
            start = min(start, earlier_starts.get(index, start))
            starts.append(start)
            ends.append(replay.replay(directory, index, start, catalog))
        if flush.finish():
            self._begin_journals(ends, ends, held=frozenset())
            for engine in self._engines:
                engine.note_marks_published(engine.delete_count)
        else:
            self.flush_failure = flush.failure
            replay.report.unflushed_bytes = sum(engine.memtable_bytes for engine in self._engines)
            self._postpone_flush(starts)
            torn = (tail.path for tail in replay.report.dropped_tails if not tail.is_read_alike)
            self._begin_journals(starts, ends, held=frozenset(map(os.path.dirname, torn)))
        return replay.report

    def _begin_journals(self, marks: Sequence[LogMark], ends: Sequence[LogMark], held: frozenset[str]) -> None:
        """Write the marks, then begin new journals; those in the directories ``held`` wait for a mark at their end."""
        # Even if they did not move: as soon as there is a catalog, there must be mark records.
        is_recorded = [self._record_mark(index, mark) for index, mark in enumerate(marks)]
        # Only now: in a file that is no longer the newest, a hole does not count as an unsynced tail.
        for index, directory in enumerate(self._journal_directories):
            journal = JournalWriter.open(
                self._filesystem,
                directory,
                self._config.journal,
                self._now_ms,
                ends[index],
                is_held=directory in held or not is_recorded[index],
                steps=self._steps,
                now_ns=self._now_ns,
            )
            self._journals.append(journal)

    def _record_mark(self, journal_index: int, mark: LogMark) -> bool:
        """Write a mark; False if there is no room for it, which is only allowed while nothing was flushed."""
        try:
            self._write_mark(journal_index, mark)
        except StorageError as error:
            if self.flush_failure is None or not is_out_of_room(error):
                raise
            return False
        return True

    def _postpone_flush(self, starts: Sequence[LogMark]) -> None:
        """Leave the applied records to the next checkpoints, and keep the journals until then."""
        self._sync_journals(starts)
        if any(engine.is_checkpoint_pending for engine in self._engines):
            # The pending job holds only a part of the records, so the first checkpoint must not move any mark.
            self._marks_due = tuple(starts)
            self._deletes_due = (-1,) * len(self._engines)

    def _sync_journals(self, starts: Sequence[LogMark]) -> None:
        """Sync the replayed journal files: a killed process may not have synced them, and from now on the bookie
        answers for their records."""
        for directory, start in zip(self._journal_directories, starts, strict=True):
            for journal_id in list_journals(self._filesystem, directory):
                if journal_id < start.journal_id:
                    continue
                file = self._filesystem.open(os.path.join(directory, journal_file_name(journal_id)))
                try:
                    file.sync()
                finally:
                    file.close()

    @property
    def is_retry_due(self) -> bool:
        """Whether a checkpoint failed or was postponed: the next one then writes nothing newer."""
        return self._marks_due is not None

    def begin_checkpoint(self) -> StorageCheckpoint:
        """Loop side: note how far the journals are durable, then freeze all directories.

        In this order (storage section 5.8 step 1): every record before that position was in a write cache or among the
        changed rows before it was queued for the journal. After a failed checkpoint the old marks apply, because the
        directories that failed write their old jobs first.
        """
        if self._marks_due is None:
            self._marks_due = tuple(journal.durable_position for journal in self._journals)
            self._deletes_due = tuple(engine.delete_count for engine in self._engines)
        return StorageCheckpoint(self._marks_due, tuple(engine.begin_checkpoint() for engine in self._engines))

    def write_checkpoint(self, checkpoint: StorageCheckpoint, pause: Callable[[], None] = go_on) -> None:
        """Lane side: flush every directory, then publish the marks, then delete journals that are no longer needed.

        Raises StorageError or OSError. Call ``end_checkpoint`` next in any case.
        """
        for engine, job in zip(self._engines, checkpoint.jobs, strict=True):
            checkpoint.done.append(engine.write_checkpoint(job, pause))
        # Each journal's mark is compared by itself, not all marks as one token (H4).
        self._publish(checkpoint.marks)
        checkpoint.is_published = True
        for journal, mark in zip(self._journals, checkpoint.marks, strict=True):
            journal.release(mark)
            journal.remove_older_than(mark)

    def end_checkpoint(self, checkpoint: StorageCheckpoint) -> None:
        """Loop side: drop what was written and keep the rest for the next checkpoint."""
        done_count = len(checkpoint.done)
        for index, (engine, job) in enumerate(zip(self._engines, checkpoint.jobs, strict=True)):
            if index < done_count:
                engine.end_checkpoint(job, checkpoint.done[index])
            else:
                engine.abort_checkpoint(job)
        if checkpoint.is_published:
            self._marks_due = None
            for engine, delete_count in zip(self._engines, self._deletes_due, strict=True):
                engine.note_marks_published(delete_count)

    def close(self) -> None:
        """Close all files and release the locks; safe to repeat. Flushes nothing."""
        for journal in self._journals:
            journal.close()
        for engine in self._engines:
            engine.close()
        _release(self._locks)

    def _publish(self, marks: Sequence[LogMark]) -> None:
        """Publish the marks that moved forward; marks never go back."""
        self.mark_failures = ()
        for index, mark in enumerate(marks):
            if mark > self._published[index]:
                self._write_mark(index, mark)

    def _write_mark(self, journal_index: int, mark: LogMark) -> None:
        journal_count = len(self._journal_directories)
        failures = write_last_mark(self._filesystem, self._ledger_directories, mark, journal_index, journal_count)
        self.mark_failures += tuple(failures)
        self._published[journal_index] = mark


def lock_directories(filesystem: FileSystem, config: StorageConfig) -> list[DirectoryLock]:
    """Lock every directory for this process and create those that are new; all or none.

    DirectoryLockedError names the owner of a locked directory.
    """
    locks: list[DirectoryLock] = []
    try:
        for directory in config.all_directories:
            current = current_directory(directory)
            filesystem.make_directories(current)
            locks.append(filesystem.lock_directory(current))
    except BaseException:
        _release(locks)
        raise
    return locks


def _require_routing(config: StorageConfig, engines: Sequence[LedgerDirectoryEngine]) -> None:
    """Check that every ledger is where ``engine_of`` looks for it; otherwise it would wrongly be denied."""
    for position, engine in enumerate(engines):
        ledger_id = engine.find_misplaced_ledger(position, len(engines))
        if ledger_id is not None:
            right = config.ledger_directories[ledger_id % len(engines)]
            raise MisplacedLedgerError(
                f"{config.ledger_directories[position]} has ledger {ledger_id}, which belongs in {right}: "
                f"{REORDERED_ADVICE}"
            )


def _release(locks: Sequence[DirectoryLock]) -> None:
    for lock in locks:
        lock.release()
