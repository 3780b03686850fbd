"""Rebuilds lost or damaged indexes from the entry logs of a stopped bookie. Source: storage sections 11 and 12.

The order makes a kill at any point harmless (see ``index.swap`` for a single database):

1. finish swaps of an earlier rebuild; finish or delete the leftovers of an interrupted compaction
2. build every database in its own directory, and verify it
3. if entries or ledger rows may be missing: put the ledgers of kept databases in limbo, and request an integrity
   check; the next boot then starts by checking every open ledger
4. swap ledger rows before locations: ledgers must be in limbo before an incomplete location index is in place
5. delete the logs that a compaction had replaced

The log marks stay, so the next boot replays journal entries that are not in the logs.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from bkctl.storage.config import StorageConfig
from bkctl.storage.entry_log.scan_order import LogDirectory, finish_links, read_log_directory, remove_replaced
from bkctl.storage.errors import IndexDamagedError
from bkctl.storage.filenames import DATABASES, LEDGERS_DATABASE, LOCATIONS_DATABASE, VERSION, current_directory
from bkctl.storage.ids import LedgerId
from bkctl.storage.index.ledger_index import NEEDS_INTEGRITY_CHECK, LedgerIndex, LedgerRow
from bkctl.storage.index.opening import IndexCondition, IndexState, inspect_index
from bkctl.storage.index.seal import open_sealed_index
from bkctl.storage.index.swap import begin_rebuilt, commit_rebuilt, discard_rebuilt, finish_swap
from bkctl.storage.ports import Children, FileSystem, OpenIndexStore
from bkctl.storage.rebuild.directory import DamagedLog, LocationRebuild, RebuildWatch, ScannedDirectory
from bkctl.storage.rebuild.ledgers import ReadJournals, new_rows, read_journals, write_ledgers
from bkctl.storage.rebuild.limbo import DoubtedLedgers

CHILD_MODULE: Final = "bkctl.storage.rebuild.child"
_BYTES_PER_CHILD = 32 * 1024 * 1024
"""Log bytes per child process. With less work, starting another process costs more than it saves."""


class DirectoryPlan(msgspec.Struct, frozen=True):
    """Plan for one ledger directory; paths are those of ``current`` directories."""

    position: int
    ledger_directory: str
    index_directory: str
    states: dict[str, IndexState]
    """States of both databases, by name."""
    databases: tuple[str, ...]
    """Databases to rebuild."""
    logs: LogDirectory
    log_bytes: int

    is_version_lost: bool = False
    """Whether only the ledger directory has a VERSION file, because the disk of the index was replaced."""

    @property
    def loses_ledger_rows(self) -> bool:
        """Whether the old ledger rows are lost, and with them fences, limbo and rows without entries."""
        return LEDGERS_DATABASE in self.databases and self.states[LEDGERS_DATABASE].is_lost

    def path(self, database: str) -> str:
        """Directory of a database."""
        return os.path.join(self.index_directory, database)


class DirectoryReport(msgspec.Struct, frozen=True):
    """Result for one ledger directory."""

    ledger_directory: str
    databases: tuple[str, ...]
    log_count: int
    entry_count: int
    """Entry copies found in the logs."""
    row_count: int
    """Rows of the new locations index; 0 if it was kept."""
    ledger_count: int
    limbo_count: int
    damaged: tuple[DamagedLog, ...]
    torn_bytes: int


class RebuildReport(msgspec.Struct, frozen=True):
    """Result of a rebuild."""

    directories: tuple[DirectoryReport, ...]
    journal_damages: tuple[str, ...]
    needs_integrity_check: bool
    """Whether an integrity check was requested, because entries or ledger rows may be missing."""

    @property
    def is_complete(self) -> bool:
        """Whether every log could be read."""
        return not any(directory.damaged for directory in self.directories)


class _UnderWay(msgspec.Struct, frozen=True):
    """A directory whose locations are built but not swapped in."""

    plan: DirectoryPlan
    scanned: ScannedDirectory
    rows: dict[LedgerId, LedgerRow]
    """New ledger rows of the directory. If the ledgers database is kept: its rows without the new limbo flags."""
    doubted: DoubtedLedgers
    row_count: int


def plan_rebuild(
    filesystem: FileSystem, open_index: OpenIndexStore, config: StorageConfig, chosen: Sequence[str] | None
) -> list[DirectoryPlan]:
    """Plan a rebuild of every ledger directory. Changes nothing, except that LevelDB opens its files.

    ``chosen``: names of the databases to build; None: those that are lost or damaged. The caller holds the locks.
    IndexDamagedError if the locations are to be rebuilt while the ledger rows, which this requires, are damaged.
    """
    plans = []
    for position, (ledger_directory, index_directory) in enumerate(config.engine_directories):
        states = {
            name: inspect_index(filesystem, open_index, ledger_directory, index_directory, name) for name in DATABASES
        }
        databases = tuple(name for name in DATABASES if _is_due(states[name], name, chosen))
        if LOCATIONS_DATABASE in databases and LEDGERS_DATABASE not in databases:
            state = states[LEDGERS_DATABASE]
            if state.is_lost:
                advice = "the locations cannot be built without the ledger rows; rebuild both"
                raise IndexDamagedError(f"{state.detail}: {advice}")
        logs = read_log_directory(filesystem, ledger_directory)
        names = filesystem.list_directory(ledger_directory)
        sizes = (filesystem.size(os.path.join(ledger_directory, name)) for name in names if name.endswith(".log"))
        is_version_lost = VERSION in names and not filesystem.exists(os.path.join(index_directory, VERSION))
        plans.append(
            DirectoryPlan(
                position, ledger_directory, index_directory, states, databases, logs, sum(sizes), is_version_lost
            )
        )
    return plans


class IndexRebuild:
    """Carries out a plan. The directories must still be locked."""

    def __init__(
        self,
        filesystem: FileSystem,
        open_index: OpenIndexStore,
        children: Children,
        config: StorageConfig,
        watch: RebuildWatch,
        *,
        are_logs_complete: bool = False,
    ) -> None:
        """``are_logs_complete``: no log is missing, because a bookie used exactly these until it was stopped."""
        self._are_logs_complete = are_logs_complete
        self._filesystem = filesystem
        self._open_index = open_index
        self._children = children
        self._config = config
        self._watch = watch

    def run(self, plans: Sequence[DirectoryPlan]) -> RebuildReport:
        """Build, verify, swap. After StorageError or OSError each index in place is either the old or the new one.

        Safe to repeat with a new plan after a kill at any point.
        """
        due = [plan for plan in plans if plan.databases]
        try:
            journaled = self._read_journals(due)
            under_way = [self._build(plan, journaled) for plan in due]
            needs_check = any(each.doubted.limbo or each.plan.loses_ledger_rows for each in under_way)
            self._write_ledgers(under_way, needs_check=needs_check)
            self._flag_kept_indexes(plans, under_way, needs_check=needs_check)
            for plan in due:
                self._restore_version(plan)
        except BaseException:
            for plan in due:
                for database in plan.databases:
                    with contextlib.suppress(OSError):
                        discard_rebuilt(self._filesystem, plan.path(database))
            raise
        self._swap(due)
        for plan in due:
            if LOCATIONS_DATABASE in plan.databases:
                remove_replaced(self._filesystem, plan.ledger_directory, plan.logs)
        return RebuildReport(tuple(map(_report, under_way)), tuple(journaled.damages) if journaled else (), needs_check)

    def _read_journals(self, due: Sequence[DirectoryPlan]) -> ReadJournals | None:
        plan = next((plan for plan in due if LEDGERS_DATABASE in plan.databases), None)
        if plan is None:
            return None
        directories = [current_directory(directory) for directory in self._config.journal_directories]
        rebuilt = begin_rebuilt(self._filesystem, plan.path(LEDGERS_DATABASE))
        with self._children.pool(CHILD_MODULE, rebuilt, self._children.core_count) as pool:
            return read_journals(self._filesystem, directories, pool, self._watch)

    def _build(self, plan: DirectoryPlan, journaled: ReadJournals | None) -> _UnderWay:
        """Build the locations of a directory on disk, and its ledger rows in memory."""
        finish_links(self._filesystem, plan.ledger_directory, plan.logs)
        # Empties the directories of all databases to build; the last one is the working directory.
        directory = [begin_rebuilt(self._filesystem, plan.path(database)) for database in plan.databases][-1]
        is_sound = plan.states[LEDGERS_DATABASE].condition is IndexCondition.SOUND
        rows = self._read_rows(plan) if is_sound else {}
        child_count = min(self._children.core_count, 1 + plan.log_bytes // _BYTES_PER_CHILD)
        with self._children.pool(CHILD_MODULE, directory, child_count) as pool:
            rebuild = LocationRebuild(
                self._filesystem, self._config, plan.position, plan.ledger_directory, directory, pool, self._watch
            )
            scanned = rebuild.scan(plan.logs, keeps_rows=LOCATIONS_DATABASE in plan.databases)
            is_wanted = LOCATIONS_DATABASE in plan.databases
            everything = set(rows)
            if LEDGERS_DATABASE in plan.databases:
                assert journaled is not None, "journals are read before ledger rows are made"
                everything |= self._ledgers_of(plan, scanned, journaled)
            doubted = DoubtedLedgers.after_scan(
                everything,
                scanned.affected(everything),
                are_negatives_proven=not is_wanted or self._are_logs_complete,
            )
            if journaled is not None and LEDGERS_DATABASE in plan.databases:
                rows = new_rows(everything, journaled.ledgers, rows, doubted)
            row_count = rebuild.load(self._open_index, scanned.runs, rows) if is_wanted else 0
        return _UnderWay(plan, scanned, rows, doubted, row_count)

    def _ledgers_of(self, plan: DirectoryPlan, scanned: ScannedDirectory, journaled: ReadJournals) -> set[LedgerId]:
        """Ledgers of this directory that occur in a log, in the ledgers map of a damaged log, or in a journal."""
        count = len(self._config.ledger_directories)
        named = scanned.ledger_ids | scanned.named_by_damage | set(journaled.ledgers)
        return {ledger_id for ledger_id in named if ledger_id % count == plan.position}

    def _read_rows(self, plan: DirectoryPlan) -> dict[LedgerId, LedgerRow]:
        with self._opened_ledgers(plan) as ledgers:
            return {ledger_id: row for ledger_id in ledgers if (row := ledgers.find(ledger_id)) is not None}

    def _write_ledgers(self, under_way: Sequence[_UnderWay], *, needs_check: bool) -> None:
        """Write the ledger rows of rebuilt databases. Only the first directory has the storage flags."""
        for each in under_way:
            if LEDGERS_DATABASE in each.plan.databases:
                flags = NEEDS_INTEGRITY_CHECK if needs_check and each.plan.position == 0 else 0
                directory = begin_rebuilt(self._filesystem, each.plan.path(LEDGERS_DATABASE))
                write_ledgers(self._open_index, directory, each.rows, flags, self._watch)

    def _flag_kept_indexes(
        self, plans: Sequence[DirectoryPlan], under_way: Sequence[_UnderWay], *, needs_check: bool
    ) -> None:
        """In kept ledgers databases, put incomplete ledgers in limbo and set the check flag, durably."""
        built = {each.plan.position: each for each in under_way}
        for plan in plans:
            if (
                LEDGERS_DATABASE in plan.databases
                or plan.states[LEDGERS_DATABASE].condition is not IndexCondition.SOUND
            ):
                continue
            is_flagged = needs_check and plan.position == 0
            doubted = built[plan.position].doubted if plan.position in built else None
            if not is_flagged and (doubted is None or not doubted.limbo):
                continue
            with self._opened_ledgers(plan) as ledgers:
                if is_flagged:
                    # Set the flag before limbo: only the integrity check ends limbo. Clear other flags, so that the
                    # check starts over: ledgers that are in no log are known only from the metadata.
                    ledgers.write_flags(NEEDS_INTEGRITY_CHECK)
                if doubted is not None:
                    for ledger_id in doubted.limbo:
                        ledgers.create_row(ledger_id, **doubted.flags(ledger_id))
                ledgers.write(ledgers.take_changes())
                ledgers.seal()

    def _restore_version(self, plan: DirectoryPlan) -> None:
        """Copy the cookie from the ledger directory; otherwise the next boot rejects the index directory."""
        if plan.is_version_lost:
            version = self._filesystem.read_file(os.path.join(plan.ledger_directory, VERSION))
            self._filesystem.write_file_atomically(os.path.join(plan.index_directory, VERSION), version)

    def _swap(self, due: Sequence[DirectoryPlan]) -> None:
        """Swap the databases, the first directory's ledger rows first: they have the integrity check flag."""
        for database in DATABASES:
            for plan in due:
                if database in plan.databases:
                    commit_rebuilt(self._filesystem, self._open_index, plan.path(database))
                    finish_swap(self._filesystem, plan.path(database))

    @contextlib.contextmanager
    def _opened_ledgers(self, plan: DirectoryPlan) -> Iterator[LedgerIndex]:
        path = plan.path(LEDGERS_DATABASE)
        rows = open_sealed_index(self._filesystem, self._open_index, path)
        try:
            yield LedgerIndex.load(rows)
        finally:
            rows.close()


def _is_due(state: IndexState, name: str, chosen: Sequence[str] | None) -> bool:
    if chosen is None:
        return state.is_lost
    return name in chosen and state.condition is not IndexCondition.NEW


def _report(each: _UnderWay) -> DirectoryReport:
    return DirectoryReport(
        os.path.dirname(each.plan.ledger_directory),
        each.plan.databases,
        len(each.plan.logs.log_ids),
        each.scanned.entry_count,
        each.row_count,
        len(each.rows),
        len(each.doubted.limbo),
        tuple(each.scanned.damaged),
        each.scanned.torn_bytes,
    )
