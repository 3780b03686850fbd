"""A long replay by several processes: children bring the journal into entry logs, the parent writes the index.

One interpreter takes longer over a journal than the disk does. So a long file is cut into stretches, and of each a
child makes a sorted, finished and synced log, in a folder that is there for this replay alone (``replay_child``). The
parent takes the stretches in the order of the file: it gives each log its place, then writes the rows that name its
entries. The marks move at the end of the replay, as ever.

Whatever is not plain is left to the replay that goes record by record, and that begins where this ends: a group that
is not whole, a record that is out of place, a disk without room for all of it, a child that died, or says nothing any
more. So is a stretch with entries of a ledger that has neither a row nor a sign, a key or fence, in front of them: they
are those of a ledger that was deleted, and must come into no log.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

from storage.checkpoint import go_on
from storage.config import StorageConfig
from storage.disk_room import DiskRoom, is_out_of_room
from storage.engine import LedgerDirectoryEngine
from storage.errors import ChildFailedError, IndexFailedError, StorageError
from storage.filenames import REPLAY_FOLDER_PREFIX, current_directory, entry_log_file_name
from storage.ids import EntryLogId, JournalId
from storage.journal_catalog import CatalogedJournal
from storage.journal_format import HEADER_BYTES, JournalRecord, JournalRecordKind
from storage.kept_files import remove_files
from storage.memtable import ENTRY_OVERHEAD_BYTES
from storage.ports import Children, FileSystem
from storage.replay_tasks import ReadStretch, StretchFound
from storage.setting import MEBIBYTE
from storage.step_sizes import StepSizes

CHILD_MODULE: Final = "storage.replay_child"
CHILD_COUNT_MAX: Final = 4
STRETCH_BYTES_MAX: Final = 64 * MEBIBYTE
"""More would keep the parent waiting for its first one."""
_HELD_FACTOR_MAX: Final = 5
"""What a stretch takes in memory, in terms of the journal: 160 bytes for the 36 of an entry without payload."""
_AHEAD_FACTOR: Final = 2
"""Stretches, for each child, of which logs and rows may be waiting for one in front of them."""
_ROOM_FACTOR: Final = 3
"""Room that logs and index rows take, in terms of the journal: the rows of tiny entries are larger than these."""

_SIGNS: Final = frozenset({JournalRecordKind.LEDGER_KEY, JournalRecordKind.FENCE})
"""Records that make a row."""
_Answer: TypeAlias = tuple[ReadStretch, StretchFound]


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
        children: Children | None,
        config: StorageConfig,
        engines: Sequence[LedgerDirectoryEngine],
        room: DiskRoom | None,
        checkpoint: Callable[[LedgerDirectoryEngine], None],
        steps: StepSizes,
    ) -> None:
        """``children`` None: nothing is read ahead. ``room`` None: it is not asked for.

        ``checkpoint``: empties the write cache of a directory, here and now.
        """
        self._filesystem = filesystem
        self._children = children
        self._config = config
        self._engines = engines
        self._room = room
        self._checkpoint = checkpoint
        self._steps = steps
        self._directories = [os.path.abspath(current_directory(each)) for each in config.ledger_directories]
        # What the write caches, all of them empty meanwhile, would hold.
        self._held_bytes = config.engine.memtable_bytes_max * len(engines)
        self._child_count = min(
            children.core_count if children is not None else 0,
            CHILD_COUNT_MAX,
            self._held_bytes // (_HELD_FACTOR_MAX * steps.ahead_stretch_bytes_min),
        )
        """Fewer for small caches: a child must be able to hold the shortest stretch; 0: there are none."""
        self._stretch_bytes = steps.ahead_stretch_bytes_min
        """Of the next one: little at first, to learn how large entries are."""
        self.failure = ""
        """Why children were given up, if they were: a sentence."""
        self.entry_count = 0
        """Entries that were brought in."""

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
        require_going: Callable[[], None] = go_on,
    ) -> int:
        """Bring a file's groups from ``offset`` on into the ledger storage; returns where there is more to do.

        ``group_bytes_max``: of the largest that may have been written. ``apply``: for the records that are no entries.
        ``require_going``: called between stretches. What either raises, and IndexFailedError, ends the boot.
        """
        # Else where a group ends is not certain.
        is_plain = journal.has_checksums and not journal.is_loose
        if not is_plain or not self._child_count or self._children is None:
            return offset
        size_bytes = self._filesystem.size(path)
        file_bytes_min = self._steps.ahead_file_bytes_min
        while size_bytes - offset >= file_bytes_min and not self.failure and self._is_ready(size_bytes - offset):
            begin = max(offset, HEADER_BYTES)
            plan = _FilePlan(path, journal_index, journal.journal_id, begin, size_bytes, group_bytes_max)
            offset = self._run_children(self._children, plan, apply, require_going)
            if offset - begin < file_bytes_min:  # what has ended it so soon would do so again
                break
        return offset

    def _run_children(
        self,
        children: Children,
        plan: _FilePlan,
        apply: Callable[[JournalRecord], None],
        require_going: Callable[[], None],
    ) -> int:
        """Take stretches up to the first that cannot be taken whole; returns where the last group taken ends."""
        offset = plan.offset
        folders: list[str] = []
        try:
            if (log_ids := self._prepare(folders)) is None:
                return offset
            with children.pool(CHILD_MODULE, folders[0], self._child_count) as pool:
                tasks = self._tasks(plan, folders, log_ids)
                ahead_count_max = _AHEAD_FACTOR * self._child_count
                patience_s = self._steps.ahead_patience_s
                answers = pool.run(tasks, StretchFound, patience_s=patience_s, ahead_count_max=ahead_count_max)
                stretches = _in_order(answers, plan.offset)
                while (next_one := self._next(stretches)) is not None:
                    require_going()
                    task, stretch = next_one
                    # Else the one before has ended early, or bytes of an entry have passed for the end of a group.
                    if stretch.start_offset != offset:
                        break
                    if not self._are_ledgers_known(stretch) or not self._take(task, stretch, apply):
                        break
                    self._choose_stretch_bytes(stretch)
                    offset = stretch.end_offset
        finally:
            for folder in folders:
                self._remove_folder(folder)
        return offset

    def _are_ledgers_known(self, stretch: StretchFound) -> bool:
        """Whether all entries are of ledgers with a row, or with a sign in front of them."""
        signed = {record.ledger_id for record in stretch.records if record.kind in _SIGNS}
        ledger_ids = {ledger.ledger_id for log in stretch.logs for ledger in log.ledgers}
        doubted = (ledger_ids - signed).union(stretch.late_ledger_ids)
        return all(self._engines[each % len(self._engines)].ledger(each) is not None for each in doubted)

    def _next(self, stretches: Iterator[_Answer]) -> _Answer | None:
        try:
            return next(stretches, None)
        except ChildFailedError as error:
            self.failure = error.cause
        except (StorageError, OSError) as error:
            # Of a child, or of the next log's id: if it is more than that, the replay without children meets it too.
            self.failure = _sentence(error)
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
        except IndexFailedError:
            raise
        except (StorageError, OSError) as error:
            if not is_out_of_room(error):
                raise
            return False
        return True

    def _choose_stretch_bytes(self, stretch: StretchFound) -> None:
        """So much of the journal that the children together hold what is otherwise in one half of the write caches.

        They may hold twice as much, for what comes next can be made of smaller entries.
        """
        journal_bytes = stretch.end_offset - stretch.start_offset
        if journal_bytes == 0:
            return
        record_count = sum(ledger.record_count for log in stretch.logs for ledger in log.ledgers)
        cost = 1 + ENTRY_OVERHEAD_BYTES * record_count / journal_bytes
        table_bytes = self._held_bytes // 2 // self._child_count
        log_bytes = self._config.engine.entry_log.size_bytes_max
        chosen_bytes = min(int(table_bytes / cost), log_bytes, STRETCH_BYTES_MAX)
        self._stretch_bytes = max(chosen_bytes, self._steps.ahead_stretch_bytes_min)

    def _require_room(self, journal_bytes: int) -> None:
        if self._room is not None:
            waiting_bytes = sum(engine.checkpoint_bytes for engine in self._engines)
            self._room.require_for_boot(_ROOM_FACTOR * journal_bytes + waiting_bytes)

    def _prepare(self, folders: list[str]) -> list[EntryLogId] | None:
        """Claim the log ids of the first stretch and make the folders of this run; None when that cannot be done now.

        A log id is never given twice, so no folder has the name of an earlier one, in which a child may still write.
        """
        try:
            log_ids = self._claim_log_ids()
        except (StorageError, OSError) as error:
            self.failure = _sentence(error)
            return None
        try:
            name = f"{REPLAY_FOLDER_PREFIX}{log_ids[0]:x}"
            folders += [os.path.join(directory, name) for directory in self._directories]
            for folder in folders:
                self._filesystem.make_directories(folder)
        except OSError as error:
            if not is_out_of_room(error):
                raise
            return None
        return log_ids

    def _claim_log_ids(self) -> list[EntryLogId]:
        return [engine.claim_log_id() for engine in self._engines]

    def _remove_folder(self, folder: str) -> None:
        while True:
            try:
                remove_files(self._filesystem, folder)
                self._filesystem.remove_directory(folder)
            except FileNotFoundError:  # it was not made
                return
            except OSError as error:
                # A child whose parent was killed has just made its log; it makes one alone.
                if error.errno != errno.ENOTEMPTY:
                    raise
            else:
                return

    def _tasks(self, plan: _FilePlan, folders: Sequence[str], log_ids: list[EntryLogId]) -> Iterator[ReadStretch]:
        """``log_ids``: of the first stretch."""
        start = plan.offset
        while start < plan.size_bytes:
            stop = min(start + self._stretch_bytes, plan.size_bytes)
            log_ids = log_ids or self._claim_log_ids()
            yield ReadStretch(
                path=os.path.abspath(plan.path),
                journal_id=plan.journal_id,
                journal_index=plan.journal_index,
                journal_count=len(self._config.journal_directories),
                start_offset=start,
                is_start_known=start == plan.offset,
                stop_offset=stop,
                group_bytes_max=plan.group_bytes_max,
                body_bytes_max=min(engine.body_bytes_max for engine in self._engines),
                held_bytes_max=self._held_bytes // self._child_count,
                log_ids=log_ids,
                log_paths=[
                    os.path.join(folder, entry_log_file_name(log_id))
                    for folder, log_id in zip(folders, log_ids, strict=True)
                ],
            )
            start, log_ids = stop, []

    def _take(self, task: ReadStretch, stretch: StretchFound, apply: Callable[[JournalRecord], None]) -> bool:
        """Give the logs of a stretch their places, apply the records that are no entries, then write the rows that
        name the entries. False without room: nothing was applied then."""
        try:
            self._require_room(stretch.end_offset - stretch.start_offset)
            for directory, log, path in zip(self._directories, stretch.logs, task.log_paths, strict=True):
                if log.keys:
                    self._filesystem.rename(path, os.path.join(directory, os.path.basename(path)))
                    self._filesystem.sync_directory(directory)
        except (StorageError, OSError) as error:
            if not is_out_of_room(error):
                raise
            return False
        for record in stretch.records:
            apply(record)
        for engine, log in zip(self._engines, stretch.logs, strict=True):
            for keys, locations in zip(log.keys, log.locations, strict=True):
                engine.write_locations(keys, locations)
            for ledger in log.ledgers:
                self.entry_count += ledger.record_count
                engine.raise_last_add_confirmed(ledger.ledger_id, ledger.last_add_confirmed)
        return True


def _sentence(error: StorageError | OSError) -> str:
    return f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)


def _in_order(answers: Iterable[_Answer], next_offset: int) -> Iterator[_Answer]:
    """The stretches in the order of the file, from an offset on, whichever child was first."""
    waiting: dict[int, _Answer] = {}
    for task, answer in answers:
        waiting[task.start_offset] = task, answer
        while next_offset in waiting:
            first = waiting.pop(next_offset)
            next_offset = first[0].stop_offset
            yield first
