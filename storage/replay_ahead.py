"""A long replay by several processes: children bring the journal into entry logs, the parent writes the index.

One interpreter takes longer over a journal than the disk does. So a long file is cut into segments, and of each a child
makes a sorted, finished and synced log, in a folder that is there for this replay alone (``replay_child``). The parent
takes the segments in the order of the file: it gives each log its place, then writes the rows that name its entries.
The marks move at the end of the replay, as ever.

Whatever is not plain is left to the replay that goes record by record, and that begins where this ends: a group that
is not whole, a record that is out of place, a disk without room for all of it, a child that died, or says
nothing any more. In a segment, what is no entry is applied first; so one in which the first sign of a ledger comes
behind an entry of it, which is then that of a former ledger, is left to that replay, too.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from storage.child_pool import ChildPool, core_count
from storage.config import MEBIBYTE, StorageConfig
from storage.disk_room import DiskRoom, is_out_of_room
from storage.engine import LedgerDirectoryEngine
from storage.errors import ChildFailedError, IndexFailedError, StorageError
from storage.filenames import REPLAY_FOLDER_PREFIX, current_directory, entry_log_file_name
from storage.ids import JournalId, LedgerId
from storage.journal_catalog import CatalogedJournal
from storage.journal_format import HEADER_BYTES, JournalRecord
from storage.kept_files import remove_files
from storage.location_index import KEY_BYTES, LOCATION_BYTES
from storage.memtable import ENTRY_OVERHEAD_BYTES
from storage.ports import FileSystem
from storage.replay_tasks import LedgerSummary, ReadSegment, SegmentLog, SegmentRead

CHILD_MODULE: Final = "storage.replay_child"
CHILD_COUNT_MAX: Final = 4
PATIENCE_S: Final = 60.0
"""A child tells of each mebibyte."""
SEGMENT_BYTES_MIN: Final = 4 * MEBIBYTE
SEGMENT_BYTES_MAX: Final = 64 * MEBIBYTE
"""More would keep the parent waiting for its first one."""
_ROOM_FACTOR: Final = 3
"""Room that logs and index rows take, in terms of the journal: the rows of tiny entries are larger than these."""
FILE_BYTES_MIN: Final = 128 * MEBIBYTE
"""Of what is left of a file: children that have to be started are no help with less."""


_Answer: TypeAlias = tuple[ReadSegment, SegmentRead]


class _FilePlan(NamedTuple):
    """What is to be read of a file."""

    path: str
    journal_index: int
    journal_id: JournalId
    offset: int
    size_bytes: int
    group_bytes_max: int


class ReplayAhead:
    """The children's part of one replay."""

    def __init__(
        self,
        filesystem: FileSystem,
        config: StorageConfig,
        engines: Sequence[LedgerDirectoryEngine],
        room: DiskRoom | None,
        checkpoint: Callable[[LedgerDirectoryEngine], None],
    ) -> None:
        """``room`` None: it is not asked for. ``checkpoint``: empties the write cache of a directory, here and now."""
        self._filesystem = filesystem
        self._config = config
        self._engines = engines
        self._room = room
        self._checkpoint = checkpoint
        self._directories = [os.path.abspath(current_directory(each)) for each in config.ledger_directories]
        self._child_count = min(core_count(), CHILD_COUNT_MAX)
        self._segment_bytes = SEGMENT_BYTES_MIN
        """Of the next one: little at first, to learn how large entries are."""
        self.failure = ""
        """Why children were given up, if they were: a sentence."""
        self.entry_count = 0
        """Entries that were brought in."""
        self.skipped_count = 0
        """Entries of ledgers with neither a key nor a row."""

    def clear(self) -> None:
        """Remove what a replay that was killed has left. A child that has outlived it can make no log any more."""
        for directory in self._directories:
            for name in self._filesystem.list_directory(directory):
                if name.startswith(REPLAY_FOLDER_PREFIX):
                    self._remove_folder(os.path.join(directory, name))

    def run(
        self,
        path: str,
        journal_index: int,
        journal: CatalogedJournal,
        offset: int,
        group_bytes_max: int,
        apply: Callable[[JournalRecord], None],
    ) -> int:
        """Bring a file's groups from ``offset`` on into the ledger storage; returns where there is more to do.

        ``group_bytes_max``: of the largest that may have been written. ``apply``: for the records that are no entries.
        What it raises, and IndexFailedError, ends the boot.
        """
        if not journal.has_checksums or journal.is_loose:  # where a group ends is not certain
            return offset
        with contextlib.closing(self._filesystem.open(path)) as file:
            size_bytes = file.size()
        while size_bytes - offset >= FILE_BYTES_MIN and not self.failure and self._is_ready(size_bytes - offset):
            begin = max(offset, HEADER_BYTES)
            plan = _FilePlan(path, journal_index, journal.journal_id, begin, size_bytes, group_bytes_max)
            offset = self._run_children(plan, apply)
            if offset - begin < FILE_BYTES_MIN:  # what has ended it so soon would do so again
                break
        return offset

    def _run_children(self, plan: _FilePlan, apply: Callable[[JournalRecord], None]) -> int:
        """Take segments up to the first that cannot be taken whole; returns where the last group taken ends."""
        offset = plan.offset
        try:
            folders = self._make_folders()
        except OSError as error:
            if not is_out_of_room(error):
                raise
            return offset
        try:
            with ChildPool(CHILD_MODULE, folders[0], self._child_count) as pool:
                segments = _in_order(pool.run(self._tasks(plan, folders), patience_s=PATIENCE_S))
                while (next_one := self._next(segments)) is not None:
                    task, segment = next_one
                    # Else the one before has ended early, or bytes of an entry have passed for the end of a group.
                    if segment.start_offset != offset:
                        break
                    # An entry in front of the first sign of its ledger is that of a former one, and not applied.
                    if any(self._engine_of(each).ledger(each) is None for each in segment.late_ledger_ids):
                        break
                    for record in segment.records:
                        apply(record)
                    if not self._take(task, segment):
                        break
                    self._choose_segment_bytes(segment)
                    offset = segment.end_offset
        finally:
            for folder in folders:
                self._remove_folder(folder)
        return offset

    def _engine_of(self, ledger_id: LedgerId) -> LedgerDirectoryEngine:
        return self._engines[ledger_id % len(self._engines)]

    def _next(self, segments: Iterator[_Answer]) -> _Answer | None:
        try:
            return next(segments, None)
        except ChildFailedError as error:
            self.failure = error.cause
        except (StorageError, OSError) as error:
            # Of a child, or of the next log's id: if it is more than that, the replay without children meets it too.
            self.failure = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)
        return None

    def _is_ready(self, left_bytes: int) -> bool:
        """Whether there is room for all of it, and nothing in a write cache that would be written behind it."""
        try:
            self._require_room(left_bytes)
            for engine in self._engines:
                if engine.is_checkpoint_pending:
                    return False
                if engine.memtable_bytes or engine.are_deletions_left:
                    self._checkpoint(engine)
                if engine.are_deletions_left:
                    return False
        except (StorageError, OSError) as error:
            if not is_out_of_room(error):
                raise
            return False
        return True

    def _choose_segment_bytes(self, segment: SegmentRead) -> None:
        """So much of the journal that the children together hold what is otherwise in one half of a write cache.

        They may hold twice as much, for what comes next can be made of smaller entries.
        """
        journal_bytes = segment.end_offset - segment.start_offset
        if journal_bytes == 0:
            return
        record_count = sum(ledger.record_count for log in segment.logs for ledger in log.ledgers)
        cost = 1 + ENTRY_OVERHEAD_BYTES * record_count / journal_bytes
        table_bytes = self._config.engine.memtable_bytes_max // 2 // self._child_count
        log_bytes = self._config.engine.entry_log.size_bytes_max
        chosen_bytes = min(int(table_bytes / cost), log_bytes, SEGMENT_BYTES_MAX)
        self._segment_bytes = max(chosen_bytes, SEGMENT_BYTES_MIN)

    def _require_room(self, journal_bytes: int) -> None:
        if self._room is not None:
            waiting_bytes = sum(engine.checkpoint_bytes for engine in self._engines)
            self._room.require_for_boot(_ROOM_FACTOR * journal_bytes + waiting_bytes)

    def _make_folders(self) -> list[str]:
        name = f"{REPLAY_FOLDER_PREFIX}{os.getpid()}-{time.time_ns():x}"
        folders = [os.path.join(directory, name) for directory in self._directories]
        for folder in folders:
            self._filesystem.make_directories(folder)
        return folders

    def _remove_folder(self, folder: str) -> None:
        while True:
            remove_files(self._filesystem, folder)
            try:
                self._filesystem.remove_directory(folder)
            except OSError as error:
                # A child whose parent was killed has just made its log; it makes one alone.
                if error.errno != errno.ENOTEMPTY:
                    raise
            else:
                return

    def _tasks(self, plan: _FilePlan, folders: Sequence[str]) -> Iterator[ReadSegment]:
        start = plan.offset
        while start < plan.size_bytes:
            stop = min(start + self._segment_bytes, plan.size_bytes)
            log_ids = [engine.claim_log_id() for engine in self._engines]
            yield ReadSegment(
                path=os.path.abspath(plan.path),
                journal_id=plan.journal_id,
                journal_index=plan.journal_index,
                journal_count=len(self._config.journal_directories),
                start_offset=start,
                is_start_known=start == plan.offset,
                stop_offset=stop,
                group_bytes_max=plan.group_bytes_max,
                body_bytes_max=min(engine.body_bytes_max for engine in self._engines),
                held_bytes_max=self._config.engine.memtable_bytes_max // self._child_count,
                log_ids=log_ids,
                log_paths=[
                    os.path.join(folder, entry_log_file_name(log_id))
                    for folder, log_id in zip(folders, log_ids, strict=True)
                ],
            )
            start = stop

    def _take(self, task: ReadSegment, segment: SegmentRead) -> bool:
        """Give the logs of a segment their places, then write the rows that name their entries; False without room."""
        try:
            self._require_room(segment.end_offset - segment.start_offset)
            for place in zip(self._engines, self._directories, segment.logs, task.log_paths, strict=True):
                self._take_log(*place)
        except IndexFailedError:
            raise
        except (StorageError, OSError) as error:
            if not is_out_of_room(error):
                raise
            return False
        return True

    def _take_log(self, engine: LedgerDirectoryEngine, directory: str, log: SegmentLog, path: str) -> None:
        if not log.keys:
            return
        self._filesystem.rename(path, os.path.join(directory, os.path.basename(path)))
        self._filesystem.sync_directory(directory)
        gone = {each.ledger_id for each in log.ledgers if engine.ledger(each.ledger_id) is None}
        batches = zip(log.keys, log.locations, strict=True)
        for keys, locations in _without(gone, log.ledgers, batches) if gone else batches:
            engine.write_locations(keys, locations)
        for ledger in log.ledgers:
            if ledger.ledger_id in gone:
                self.skipped_count += ledger.record_count
            else:
                self.entry_count += ledger.record_count
                engine.raise_last_add_confirmed(ledger.ledger_id, ledger.last_add_confirmed)


def _in_order(answers: Iterable[tuple[ReadSegment, Any]]) -> Iterator[_Answer]:
    """The segments in the order of the file, whichever child was first."""
    waiting: dict[int, tuple[ReadSegment, Any]] = {}
    next_offset: int | None = None
    for task, answer in answers:
        waiting[task.start_offset] = task, answer
        if task.is_start_known:
            next_offset = task.start_offset
        while next_offset is not None and next_offset in waiting:
            found, told = waiting.pop(next_offset)
            next_offset = found.stop_offset
            yield found, msgspec.convert(told, SegmentRead)


def _without(
    gone: AbstractSet[LedgerId], ledgers: Sequence[LedgerSummary], batches: Iterable[tuple[bytes, bytes]]
) -> Iterator[tuple[bytes, bytes]]:
    """The rows in one batch, but for those of some ledgers."""
    keys, locations = map(b"".join, zip(*batches, strict=True))
    ends = itertools.accumulate((each.row_count for each in ledgers), initial=0)
    kept = [
        bounds for each, bounds in zip(ledgers, itertools.pairwise(ends), strict=True) if each.ledger_id not in gone
    ]
    for first, end in kept:
        yield keys[first * KEY_BYTES : end * KEY_BYTES], locations[first * LOCATION_BYTES : end * LOCATION_BYTES]
