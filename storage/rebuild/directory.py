"""Rebuilds the locations index of one ledger directory from its entry logs, in child processes.

Scan: children write each log's entries to sorted runs in the working directory. Load: the runs are split into key
ranges, and each range becomes table files of the new LevelDB database, with only the newest copy of each entry.
Verify: LevelDB opens the database and looks up one row of every block. The working directory is the directory of the
new database. Temporary files are deleted from it before the database is used.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Protocol

import msgspec
import numpy as np

from bkctl.storage.advice import REORDERED_ADVICE
from bkctl.storage.config import StorageConfig
from bkctl.storage.disk_room import DiskRoom
from bkctl.storage.entry_log.damage import LogDamage
from bkctl.storage.entry_log.log_lists import read_mixed_logs
from bkctl.storage.entry_log.scan_order import LogDirectory
from bkctl.storage.errors import IndexDamagedError, MisplacedLedgerError
from bkctl.storage.filenames import entry_log_file_name, parse_entry_log_file_name
from bkctl.storage.ids import LedgerId
from bkctl.storage.index.manifest import (
    CURRENT_CONTENT,
    CURRENT_NAME,
    MANIFEST_NAME,
    TABLE_NUMBER_FIRST,
    TableFile,
    encode_manifest,
)
from bkctl.storage.index.rows import Run, cut_into_ranges
from bkctl.storage.index.table import BLOCK_ROW_COUNT, TABLE_ROW_COUNT_MAX
from bkctl.storage.ports import ChildPool, FileSystem, IndexStore, OpenIndexStore
from bkctl.storage.rebuild.tasks import (
    RANGE_ROW_COUNT,
    RUN_ROW_COUNT,
    LoadedRange,
    LoadRange,
    MadeTable,
    ScanLog,
    ScannedLog,
    read_checks,
    read_ids,
    write_ids,
)

READING_LOGS: Final = "reading entry logs"
"""The stage whose progress is in bytes; that of the others is in rows."""

_KNOWN_NAME = "known-ledgers"
_ROW_BYTES_MAX = 40
"""Maximum size of a row in a table, including its share of filter and index."""
_CHECKED_WHOLE_EVERY = 64
"""Every 64th block is verified completely, the others by one row."""
_LEVELDB_NAMES = (".ldb", ".log", "MANIFEST-", CURRENT_NAME, "LOCK", "LOG")


class RebuildWatch(Protocol):
    """Receives the progress of a rebuild."""

    def begin(self, stage: str, total: int) -> None:
        """A stage begins; ``total`` has the unit of ``advance``."""

    def advance(self, amount: int) -> None:
        """The stage has progressed by ``amount``."""


class DamagedLog(msgspec.Struct, frozen=True):
    """A log from which entries may be missing."""

    path: str
    damage: LogDamage


class ScannedDirectory(msgspec.Struct, frozen=True):
    """Result of scanning all logs of a directory."""

    runs: list[Run]
    """From the oldest to the newest."""
    ledger_ids: frozenset[LedgerId]
    entry_count: int
    damaged: list[DamagedLog]
    torn_bytes: int
    """Incomplete entries at the ends of logs, as a crash leaves them."""

    def affected(self, ledger_ids: Iterable[LedgerId]) -> set[LedgerId]:
        """The given ledgers of which entries may be missing."""
        ledger_ids = set(ledger_ids)
        if any(log.damage.ledger_ids is None for log in self.damaged):
            return ledger_ids
        return ledger_ids & self.named_by_damage

    @property
    def named_by_damage(self) -> set[LedgerId]:
        """Ledgers, known or not, whose data in a damaged log differs from its ledgers map."""
        return {ledger_id for log in self.damaged for ledger_id in log.damage.affected_ids}


class LocationRebuild:
    """Rebuilds one directory: call ``scan``, then ``load``. ``work_directory``: an empty directory that becomes the new
    database, and the working directory of the children in ``pool``."""

    def __init__(
        self,
        filesystem: FileSystem,
        config: StorageConfig,
        position: int,
        ledger_directory: str,
        work_directory: str,
        pool: ChildPool,
        watch: RebuildWatch,
    ) -> None:
        self._filesystem = filesystem
        self._config = config
        self._position = position
        self._directory = os.path.abspath(ledger_directory)
        self._work = work_directory
        self._pool = pool
        self._watch = watch

    def scan(
        self, directory: LogDirectory, *, keeps_rows: bool, run_row_count: int = RUN_ROW_COUNT
    ) -> ScannedDirectory:
        """Read all logs. If ``keeps_rows`` is False, collect only ledgers and damage, without writing runs.

        MisplacedLedgerError if an undamaged log has a ledger of another directory; StorageError, OSError.
        """
        names = [entry_log_file_name(log_id) for log_id in directory.log_ids]
        sizes = [self._filesystem.size(os.path.join(self._directory, name)) for name in names]
        self._watch.begin(READING_LOGS, sum(sizes))
        tasks = [
            ScanLog(
                directory=self._directory,
                log_id=log_id,
                rank=rank,
                position=self._position,
                directory_count=len(self._config.ledger_directories),
                entry_bytes_max=self._config.engine.entry_log.entry_bytes_max,
                keeps_rows=keeps_rows,
                run_row_count=run_row_count,
            )
            for rank, log_id in enumerate(directory.log_ids)
        ]
        # The largest logs first, so that all children finish at about the same time.
        tasks.sort(key=lambda task: sizes[task.rank], reverse=True)
        answers = self._pool.run(tasks, ScannedLog, self._watch.advance)
        found = sorted(((task.rank, log) for task, log in answers), key=_rank)
        for rank, log in found:
            self._require_routing(names[rank], log)
        ids = [read_ids(self._filesystem, os.path.join(self._work, log.ids_name)) for _, log in found]
        damaged = [
            DamagedLog(os.path.join(self._directory, names[rank]), log.damage)
            for rank, log in found
            if log.damage is not None
        ]
        return ScannedDirectory(
            [run for _, log in found for run in log.runs],
            frozenset(np.unique(np.concatenate(ids)).tolist()) if ids else frozenset(),
            sum(log.entry_count for _, log in found),
            damaged,
            sum(log.dropped_bytes for _, log in found if log.damage is None),
        )

    def load(
        self,
        open_index: OpenIndexStore,
        runs: Sequence[Run],
        known_ledgers: Iterable[LedgerId] | None,
        range_row_count: int = RANGE_ROW_COUNT,
    ) -> int:
        """Build and verify the database with the rows of ``known_ledgers`` (None: all ledgers); returns the row count.

        IndexDamagedError if LevelDB does not read back the written rows; StorageError, OSError.
        """
        row_count = sum(run.row_count for run in runs)
        DiskRoom(self._filesystem, [self._work]).require(row_count * _ROW_BYTES_MAX)
        if known_ledgers is not None:
            write_ids(self._filesystem, os.path.join(self._work, _KNOWN_NAME), known_ledgers)
        self._watch.begin("writing the index", row_count)
        tasks = list(self._ranges(runs, range_row_count, None if known_ledgers is None else _KNOWN_NAME))
        answers = list(self._pool.run(tasks, LoadedRange, self._watch.advance))
        answers.sort(key=lambda answer: answer[0].table_number_first)
        tables = [table for _, loaded in answers for table in loaded.tables]
        self._write_manifest(tables)
        self._verify(open_index, tables)
        self._remove_scaffolding()
        return sum(table.row_count for table in tables)

    def _ranges(self, runs: Sequence[Run], range_row_count: int, known_name: str | None) -> Iterator[LoadRange]:
        number = TABLE_NUMBER_FIRST
        for lower, upper in cut_into_ranges(runs, range_row_count):
            inside = [
                run
                for run in runs
                if (lower is None or run.last >= lower) and (upper is None or run.samples[0] < upper)
            ]
            if inside:
                yield LoadRange(runs=inside, lower=lower, upper=upper, known_name=known_name, table_number_first=number)
                number += sum(run.row_count for run in inside) // TABLE_ROW_COUNT_MAX + 1

    def _write_manifest(self, tables: Sequence[MadeTable]) -> None:
        files = [TableFile(table.number, table.size_bytes, table.first_key, table.last_key) for table in tables]
        self._filesystem.write_file_atomically(os.path.join(self._work, MANIFEST_NAME), encode_manifest(files))
        self._filesystem.write_file_atomically(os.path.join(self._work, CURRENT_NAME), CURRENT_CONTENT)

    def _verify(self, open_index: OpenIndexStore, tables: Sequence[MadeTable]) -> None:
        self._watch.begin("verifying the index", sum(table.row_count for table in tables))
        store = open_index(self._work, create=False, strict=True)
        try:
            for table in tables:
                checks = list(read_checks(self._filesystem, self._work, table.number))
                blocks = -(-table.row_count // BLOCK_ROW_COUNT)
                if len(checks) != blocks or not _holds(store, checks):
                    raise IndexDamagedError(f"{self._work}: the new index differs from what was written; try again")
                self._watch.advance(table.row_count)
        finally:
            store.close()

    def _remove_scaffolding(self) -> None:
        for name in self._filesystem.list_directory(self._work):
            if not any(part in name for part in _LEVELDB_NAMES):
                self._filesystem.remove(os.path.join(self._work, name))

    def _require_routing(self, name: str, log: ScannedLog) -> None:
        """Apply the engine's boot check of ledger directories, except to damaged logs: their ids are unreliable."""
        if log.misplaced_ledger_id is None or log.damage is not None:
            return
        if (parse_entry_log_file_name(name) or 0) <= read_mixed_logs(self._filesystem, self._directory):
            return  # adopted from Interleaved storage; entries of other directories were copied there
        directories = self._config.ledger_directories
        right = directories[log.misplaced_ledger_id % len(directories)]
        raise MisplacedLedgerError(
            f"{os.path.join(self._directory, name)} has ledger {log.misplaced_ledger_id}, which belongs in "
            f"{right}: {REORDERED_ADVICE}"
        )


def _rank(ranked: tuple[int, ScannedLog]) -> int:
    return ranked[0]


def _holds(store: IndexStore, checks: Sequence[tuple[bytes, bytes]]) -> bool:
    """Whether LevelDB returns these rows by key, and every 64th block completely."""
    for position, (key, value) in enumerate(checks):
        if store.get(key) != value:
            return False
        if position % _CHECKED_WHOLE_EVERY == 0 and position + 1 < len(checks):
            rows = itertools.islice(store.scan(key, checks[position + 1][0]), BLOCK_ROW_COUNT + 1)
            keys = [found for found, _ in rows]
            if len(keys) != BLOCK_ROW_COUNT or keys != sorted(set(keys)):
                return False
    return True
