"""Adoption of a Java bookie's directories: builds our index and replaces Java's with it.

Both implementations share the formats of entry logs, journals, marks and VERSION files; only the index differs. An
interrupted step can be repeated (storage section 11.6):

1. If there are ``.idx`` files, build our indexes from them under temporary names. The Java bookie could still start;
2. write the note (``adoption_note``);
3. if there are RocksDB directories (DbLedgerStorage), which we cannot read, rebuild from entry logs and journals;
4. keep Java from starting (``block_java``), move its index aside, and rename ours to their final names;
5. remove the note.

The next start of our bookie replays the journals from Java's ``lastMark``, as usual. Adoption deletes nothing.
"""

from __future__ import annotations

import contextlib
import enum
import heapq
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from bkctl.storage.config import StorageConfig
from bkctl.storage.entry_log.format import HEADER_BYTES
from bkctl.storage.entry_log.log_lists import write_mixed_logs
from bkctl.storage.entry_log.reader import list_entry_logs
from bkctl.storage.errors import AdoptionRefusedError
from bkctl.storage.filenames import (
    ADOPTION,
    DATABASES,
    DIRTY,
    JAVA_INDEX_ASIDE,
    current_directory,
    entry_log_file_name,
    idx_path,
    last_mark_file_name,
    seal_file_name,
)
from bkctl.storage.ids import EntryLogId, LedgerId
from bkctl.storage.index.adoption_note import (
    ChangeNote,
    begin_note,
    move_aside,
    note_path,
    read_note,
    remove_note,
    require_nothing_written_since,
    write_note,
)
from bkctl.storage.index.java_index import JavaIndex, block_java, find_java_index, list_idx_ledgers
from bkctl.storage.index.journaled_rows import read_journaled_ledgers
from bkctl.storage.index.ledger_index import NEEDS_INTEGRITY_CHECK
from bkctl.storage.index.seal import open_sealed_index
from bkctl.storage.journal.log_mark import NO_MARK, read_last_mark, survey_marks
from bkctl.storage.offline.adoption_build import BuildReport, IndexBuild, LocatedLogs, building_path, discard_build
from bkctl.storage.ports import Children, FileSystem, OpenIndexStore
from bkctl.storage.rebuild.rebuild import IndexRebuild, plan_rebuild


class JavaStorage(enum.StrEnum):
    """The Java storage implementation that wrote the index."""

    INDEX_FILES = "InterleavedLedgerStorage or SortedLedgerStorage"
    DATABASES = "DbLedgerStorage"


class AdoptionSurvey(msgspec.Struct, frozen=True):
    """Input of an adoption, as found on the disks."""

    storage: JavaStorage
    aside: tuple[str, ...]
    """Paths that will be moved aside."""
    ledger_count: int | None
    """None for DbLedgerStorage, whose index we cannot read."""
    log_count: int
    log_bytes: int
    is_dirty: bool
    """Whether the bookie did not shut down cleanly: replay must then restore entries from its journals."""
    is_begun: bool
    """Whether an earlier adoption was interrupted after its build."""


def survey_adoption(fs: FileSystem, config: StorageConfig) -> AdoptionSurvey | None:
    """Inspect the directories without changing anything; None if there is nothing to adopt.

    Raises AdoptionRefusedError (with the reason), UnpairedIndexError, OSError, CorruptFileError.
    """
    config.require_paired_indexes()
    indexes = _java_indexes(fs, config)
    has_idx = any(index.idx_directories for index in indexes.values())
    has_databases = any(index.databases for index in indexes.values())
    is_begun = read_note(fs, note_path(config, ADOPTION)) is not None
    if not is_begun:
        _require_one_kind(fs, config, has_idx=has_idx, has_databases=has_databases)
        if not has_idx and not has_databases and not _is_without_index(fs, config):
            return None
    storage = JavaStorage.DATABASES if has_databases else JavaStorage.INDEX_FILES
    logs = locate_logs(fs, config, is_unique=storage is JavaStorage.INDEX_FILES and not is_begun)
    ledger_count = None if has_databases else sum(1 for _ in idx_ledgers(fs, config))
    return AdoptionSurvey(
        storage=storage,
        aside=tuple(os.path.join(directory, name) for directory, index in indexes.items() for name in index.names),
        ledger_count=ledger_count,
        log_count=len(logs.sizes_bytes),
        log_bytes=sum(logs.sizes_bytes.values()),
        is_dirty=any(fs.exists(os.path.join(directory, DIRTY)) for directory in logs.directories),
        is_begun=is_begun,
    )


def adopt(
    fs: FileSystem,
    open_index: OpenIndexStore,
    children: Children,
    config: StorageConfig,
    *,
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> BuildReport:
    """Adopt directories, which the caller has locked. Resumes an interrupted adoption; does nothing if none is needed.

    ``on_progress``: finished and total units of the current stage. After AdoptionRefusedError, another StorageError or
    OSError either Java's index is still in place, or the note exists and the next call finishes the adoption.
    """
    report = BuildReport()
    survey = survey_adoption(fs, config)
    if survey is None:
        return report
    path = note_path(config, ADOPTION)
    note = read_note(fs, path)
    if note is None:
        if survey.storage is JavaStorage.INDEX_FILES:
            report = _built(fs, open_index, config, on_progress)
        note = begin_note(fs, config, JAVA_INDEX_ASIDE)
        write_note(fs, path, note)
    else:
        require_nothing_written_since(fs, config, path, note)
    if survey.storage is JavaStorage.DATABASES:
        report = _rebuild(fs, open_index, children, config, on_progress)
    _put_in_place(fs, config, note)
    remove_note(fs, path)
    return report


def index_directories(config: StorageConfig) -> list[str]:
    """The ``current`` directories of all index directories."""
    return [current_directory(each) for each in config.effective_index_directories]


def locate_logs(fs: FileSystem, config: StorageConfig, *, is_unique: bool) -> LocatedLogs:
    """All entry logs with their sizes. AdoptionRefusedError if ``is_unique`` and two directories share a log id."""
    directories = [current_directory(each) for each in config.ledger_directories]
    positions: dict[EntryLogId, int] = {}
    sizes_bytes: dict[EntryLogId, int] = {}
    for position, directory in enumerate(directories):
        for log_id in list_entry_logs(fs, directory):
            path = os.path.join(directory, entry_log_file_name(log_id))
            if is_unique and log_id in positions and min(fs.size(path), sizes_bytes[log_id]) > HEADER_BYTES:
                raise AdoptionRefusedError(
                    f"nothing was changed: {path} has the id of an entry log in "
                    f"{directories[positions[log_id]]}, and an index file does not say which of them it refers "
                    "to: these are not the directories of one bookie"
                )
            if fs.size(path) >= sizes_bytes.get(log_id, 0):
                positions[log_id], sizes_bytes[log_id] = position, fs.size(path)
    return LocatedLogs(directories, positions, sizes_bytes)


def _java_indexes(fs: FileSystem, config: StorageConfig) -> dict[str, JavaIndex]:
    return {directory: find_java_index(fs, directory) for directory in index_directories(config)}


def _require_one_kind(fs: FileSystem, config: StorageConfig, *, has_idx: bool, has_databases: bool) -> None:
    if has_idx and has_databases:
        raise AdoptionRefusedError(
            "nothing was changed: there are .idx files and RocksDB directories: a conversion from one to the "
            "other was interrupted, and neither is complete; finish it with Java's own shell first"
        )
    own = [path for directory in index_directories(config) for path in own_index_paths(directory) if fs.exists(path)]
    if own and (has_idx or has_databases):
        raise AdoptionRefusedError(
            f"nothing was changed: {own[0]} exists in addition to the Java index, so this bookie has already run "
            "with bkctl; move the Java index elsewhere if bkctl wrote last"
        )


def _is_without_index(fs: FileSystem, config: StorageConfig) -> bool:
    """Whether a Java bookie ran here that has no index and needs none.

    Interleaved storage creates a ledger's index file at its first flush. Until a mark shows a flush, all entries are
    in the journals. AdoptionRefusedError if an index must have existed.
    """
    directories = [current_directory(each) for each in config.ledger_directories]
    own = [path for directory in index_directories(config) for path in own_index_paths(directory) if fs.exists(path)]
    names = [name for directory in directories for name in fs.list_directory(directory)]
    if own or not any(name.startswith(last_mark_file_name(0, 1)) for name in names):
        return False
    count = len(config.journal_directories)
    logs = locate_logs(fs, config, is_unique=False)
    if all(size_bytes <= HEADER_BYTES for size_bytes in logs.sizes_bytes.values()) or all(
        read_last_mark(fs, directories, index, count) == NO_MARK for index in range(count)
    ):
        return True
    raise AdoptionRefusedError(
        "nothing was changed: the entry logs have entries, but there is no index, neither .idx files nor the "
        "RocksDB directories of a Java bookie; configure its index directories, or see `bkctl storage index "
        "rebuild --help`"
    )


def own_index_paths(directory: str) -> list[str]:
    """Files of bkctl's index in a ``current`` directory."""
    return [os.path.join(directory, name) for database in DATABASES for name in (database, seal_file_name(database))]


def _built(
    fs: FileSystem, open_index: OpenIndexStore, config: StorageConfig, on_progress: Callable[[int, int], None]
) -> BuildReport:
    """Like ``_build``, but frees its disk space if it fails: a Java bookie that starts again may need it."""
    try:
        return _build(fs, open_index, config, on_progress)
    except BaseException:
        for directory in index_directories(config):
            with contextlib.suppress(OSError):
                discard_build(fs, directory)
        raise


def _build(
    fs: FileSystem, open_index: OpenIndexStore, config: StorageConfig, on_progress: Callable[[int, int], None]
) -> BuildReport:
    """Build our indexes of all directories from ``.idx`` files, and reopen each one to verify it."""
    report = BuildReport()
    journaled = read_journaled_ledgers(fs, config)
    for journal in journaled.unreadable:
        report.note(journal.path, journal.reason)
    for path in _older_marks(fs, config):
        report.note(path, "older than in other ledger directories: the disk was full, or this is an older copy of it")
    ledger_count = sum(1 for _ in idx_ledgers(fs, config))
    count = len(config.ledger_directories)
    if count > 1:
        first = locate_logs(fs, config, is_unique=True)
        for directory in first.directories if first.positions else ():
            write_mixed_logs(fs, directory, first.last_log_id)
    # The first directory comes last: its flags record whether anything in any directory was unreadable.
    for position in reversed(range(count)):
        index_directory = index_directories(config)[position]
        # List the logs again: the previous build wrote logs with copies, and their ids are now in use.
        logs = locate_logs(fs, config, is_unique=True)
        build = IndexBuild(fs, open_index, logs, position, index_directory, config.engine.entry_log, journaled, report)
        try:
            for ledger_id, paths in idx_ledgers(fs, config):
                if ledger_id % count == position:
                    build.add(ledger_id, paths)
                    on_progress(report.ledger_count, ledger_count)
            build.finish(flags=NEEDS_INTEGRITY_CHECK if report.unreadable_count and position == 0 else 0)
        finally:
            build.close()
        for database in DATABASES:
            open_sealed_index(fs, open_index, building_path(index_directory, database)).close()
    return report


def _older_marks(fs: FileSystem, config: StorageConfig) -> Iterator[str]:
    """Last marks that are older than another one of their journal, or missing. Java publishes a mark in all directories
    that have room, so what was stored since in these directories may be gone."""
    for journal in survey_marks(fs, config):
        marks = {each.path: each.mark or NO_MARK for each in journal.files if not each.is_record}
        yield from (path for path, mark in marks.items() if mark < max(marks.values()))


def _rebuild(
    fs: FileSystem,
    open_index: OpenIndexStore,
    children: Children,
    config: StorageConfig,
    on_progress: Callable[[int, int], None],
) -> BuildReport:
    """Rebuild our missing indexes from logs and journals. All rows are fenced, and an integrity check is requested."""
    plans = plan_rebuild(fs, open_index, config, None)
    if not any(plan.databases for plan in plans):
        return BuildReport()
    rebuilt = IndexRebuild(fs, open_index, children, config, _StageProgress(on_progress), are_logs_complete=True).run(
        plans
    )
    report = BuildReport(
        ledger_count=sum(directory.ledger_count for directory in rebuilt.directories),
        entry_count=sum(directory.row_count for directory in rebuilt.directories),
    )
    for directory in rebuilt.directories:
        for log in directory.damaged:
            report.note(log.path, log.damage.reason)
    for damage in rebuilt.journal_damages:
        path, _, reason = damage.partition(": ")
        report.note(path, reason)
    return report


class _StageProgress:
    """Reports the progress of each rebuild stage to ``on_progress``."""

    def __init__(self, on_progress: Callable[[int, int], None]) -> None:
        self._on_progress = on_progress
        self._done = self._total = 0

    def begin(self, _stage: str, total: int) -> None:
        """Start a stage of ``total`` units."""
        self._done, self._total = 0, total
        self._on_progress(0, total)

    def advance(self, amount: int) -> None:
        """Add ``amount`` finished units."""
        self._done += amount
        self._on_progress(self._done, self._total)


def idx_ledgers(fs: FileSystem, config: StorageConfig) -> Iterator[tuple[LedgerId, Sequence[str]]]:
    """Every ledger that has index files, ascending, with the paths of these files."""
    lists: list[Iterable[tuple[LedgerId, str]]] = [
        [(ledger_id, directory) for ledger_id in list_idx_ledgers(fs, directory)]
        for directory in index_directories(config)
    ]
    for ledger_id, found in itertools.groupby(heapq.merge(*lists), key=lambda each: each[0]):
        yield ledger_id, [os.path.join(directory, idx_path(ledger_id)) for _, directory in found]


def _put_in_place(fs: FileSystem, config: StorageConfig, note: ChangeNote) -> None:
    block_java(fs, map(current_directory, config.journal_directories))
    # Java's index first: until ours is in place, neither implementation finds an index that it would use.
    for directory, index in _java_indexes(fs, config).items():
        move_aside(fs, directory, index.names, note.aside)
    for directory in index_directories(config):
        for database in DATABASES:
            ready = building_path(directory, database)
            for source, name in ((ready, database), (seal_file_name(ready), seal_file_name(database))):
                if fs.exists(source):
                    fs.rename(source, os.path.join(directory, name))
        fs.sync_directory(directory)
