"""Checks all files of a stopped bookie: marks, journals, entry logs, indexes.

A critical finding prevents the next start, or means that acknowledged entries may be lost. Information is a harmless
leftover of a crash, or something without effect. The check only verifies which log each location
references. A deep check also reads the first 20 bytes of the entry in that log. Digests are never verified.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Iterator
from typing import Final

import msgspec

from bkctl.storage.advice import LOST_DATA_ADVICE, REBUILD_ADVICE, without_advice, without_path
from bkctl.storage.config import StorageConfig
from bkctl.storage.disk_room import lacks_room
from bkctl.storage.engine.collected_ledgers import COLLECTED_ADVICE, CollectedLedgers
from bkctl.storage.entry_log.damage import LogDamage
from bkctl.storage.entry_log.examination import examine_log
from bkctl.storage.entry_log.log_lists import read_mixed_logs, read_quarantine
from bkctl.storage.entry_log.reader import list_entry_logs
from bkctl.storage.errors import (
    CorruptFileError,
    DirectoryLockedError,
    IndexDamagedError,
    StorageError,
    UnpairedIndexError,
)
from bkctl.storage.filenames import (
    DATABASES,
    JAVA_DATABASES,
    LEDGERS_DATABASE,
    LOCATIONS_DATABASE,
    current_directory,
    entry_log_file_name,
    journal_file_name,
)
from bkctl.storage.ids import EntryId, EntryLogId, JournalId, LedgerId, LogMark
from bkctl.storage.index.adoption_note import advise_on_lost_index
from bkctl.storage.index.ledger_index import LedgerIndex
from bkctl.storage.index.opening import IndexCondition, inspect_index, viewing_index
from bkctl.storage.journal.catalog import NO_CATALOG, JournalCatalog, read_catalog
from bkctl.storage.journal.format import JournalRecordKind
from bkctl.storage.journal.log_mark import NO_MARK, JournalMarks, MarkState, survey_marks
from bkctl.storage.journal.reader import JournalScan, journals_to_replay, list_journals
from bkctl.storage.offline.java_index_check import find_idx_problems, java_index_paths
from bkctl.storage.offline.log_shortfalls import UNMEASURED, LocationRows, LogShortfalls, log_sizes_bytes
from bkctl.storage.offline.probe_child import PROBLEM_COUNT_MAX, Probed, ProbeRows
from bkctl.storage.ports import Children, FileSystem, OpenIndexStore
from bkctl.storage.severity import Severity
from bkctl.storage.words import counted, listed

PROBE_MODULE: Final = "bkctl.storage.offline.probe_child"
_PROGRESS_RECORD_COUNT: Final = 4096


class StorageFinding(msgspec.Struct, frozen=True):
    """Something that is wrong, or worth knowing."""

    check: str
    """The check that found it: marks, journals, entry logs, fences, index, locations."""
    path: str
    reason: str
    offset: int | None = None
    fix: str | None = None
    """None: no action is needed."""
    severity: Severity = Severity.CRITICAL
    ledger_id: LedgerId | None = None
    entry_id: EntryId | None = None
    """Set only if an entry is not at its indexed location, or for a record with a negative id."""


class CheckedCounts(msgspec.Struct):
    """Number of items read."""

    journal_count: int = 0
    record_count: int = 0
    log_count: int = 0
    entry_count: int = 0
    ledger_count: int = 0
    """Rows of ledgers in the indexes."""
    location_count: int = 0
    """Rows of entries in the indexes."""


class StorageCheck:
    """Checks locked directories. ``on_progress`` is called often and may raise to abort the check.

    With ``children`` the check is deep: child processes look up every location in its log.
    """

    def __init__(
        self,
        fs: FileSystem,
        open_index: OpenIndexStore,
        config: StorageConfig,
        on_progress: Callable[[str], None],
        children: Children | None = None,
    ) -> None:
        self._fs = fs
        self._open_index = open_index
        self._config = config
        self._on_progress = on_progress
        self._children = children
        self.counts = CheckedCounts()

    def findings(self) -> Iterator[StorageFinding]:
        """All findings, in the order of the check. A file that cannot be read is a finding too.

        DirectoryLockedError if another process has an index open; an error for which ``lacks_room`` is true if there
        is too little disk space to open an index; ChildFailedError.
        """
        for marks in survey_marks(self._fs, self._config):
            yield from _of_marks(marks)
            yield from _guarded("journals", current_directory(marks.directory), self._of_journals(marks))
        java: dict[str, tuple[str, ...]] = {}
        with contextlib.suppress(OSError):  # then the check of bkctl's indexes reports the directory
            java = java_index_paths(self._fs, self._config)
        # With .idx files, Java writes a ledger to the logs of any directory.
        is_mixed = any(name not in JAVA_DATABASES for names in java.values() for name in names)
        for position, directory in enumerate(self._config.ledger_directories):
            current = current_directory(directory)
            yield from _guarded("entry logs", current, self._of_logs(position, current, is_mixed=is_mixed))
            yield from _guarded("fences", current, self._of_collected(current))
        if java:
            yield from _guarded("index", current_directory(self._config.ledger_directories[0]), self._of_java(java))
            return
        try:
            engines = self._config.engine_directories
        except UnpairedIndexError:
            reason = "index directories are not as many as ledger directories, and none has the index of a Java bookie"
            fix = "list as many index directories as ledger directories, or none"
            yield StorageFinding("index", self._config.index_directories[0], reason, fix=fix)
            return
        for directories in engines:
            yield from self._of_indexes(*directories)

    def _of_java(self, indexes: dict[str, tuple[str, ...]]) -> Iterator[StorageFinding]:
        is_paired = len(self._config.effective_index_directories) == len(self._config.ledger_directories)
        more = "; bkctl storage adopt would take it over" if is_paired else ""
        for directory, names in indexes.items():
            reason = f"the index of a Java bookie ({', '.join(names)}){more}"
            yield StorageFinding("index", directory, reason, severity=Severity.INFORMATION)
        for found in find_idx_problems(self._fs, self._config, self._on_progress):
            yield StorageFinding(
                *("index", found.path, found.reason, None, _IDX_ADVICE),
                ledger_id=found.ledger_id,
                entry_id=found.entry_id,
            )

    def _of_journals(self, marks: JournalMarks) -> Iterator[StorageFinding]:
        directory = current_directory(marks.directory)
        start = marks.replay_start or NO_MARK
        catalog = NO_CATALOG
        try:
            catalog = read_catalog(self._fs, directory)
            journals_to_replay(self._fs, directory, start, catalog)
        except StorageError as error:
            yield StorageFinding("journals", directory, without_advice(error), fix=LOST_DATA_ADVICE)
        except OSError as error:
            yield _unreadable("journals", directory, error)
        journal_ids = list_journals(self._fs, directory)
        for journal_id in journal_ids:
            is_newest = journal_id == journal_ids[-1]
            yield from self._of_journal(marks, directory, journal_id, start, catalog, is_newest=is_newest)

    def _of_journal(
        self,
        marks: JournalMarks,
        directory: str,
        journal_id: JournalId,
        start: LogMark,
        catalog: JournalCatalog,
        *,
        is_newest: bool,
    ) -> Iterator[StorageFinding]:
        """Findings of a file. The file of the mark is read twice, up to the mark and from it on, as replay reads it:
        damage before the mark hides nothing after it."""
        path = os.path.join(directory, journal_file_name(journal_id))
        self._on_progress(path)
        self.counts.journal_count += 1
        is_split = journal_id == start.journal_id and start.offset > 0
        found: list[StorageFinding] = []
        for first_offset in (0, start.offset) if is_split else (0,):
            is_needed = (journal_id, first_offset) >= start
            scan = JournalScan(self._fs, path, first_offset, is_newest=is_newest, cataloged=catalog.find(journal_id))
            stop_offset = start.offset if is_split and not is_needed else None
            found += self._of_part(marks, scan, stop_offset, is_needed=is_needed)
        seen = {(each.offset, each.reason): each for each in found}  # that of the needed part wins
        yield from seen.values()

    def _of_part(
        self, marks: JournalMarks, scan: JournalScan, stop_offset: int | None, *, is_needed: bool
    ) -> Iterator[StorageFinding]:
        """Findings up to ``stop_offset``, or to the end. ``is_needed``: whether replay reads this part; records before
        the mark are already in the ledger storage."""
        fix = LOST_DATA_ADVICE if is_needed else None
        try:
            is_read = yield from self._of_records(marks, scan, stop_offset)
        except CorruptFileError as error:
            yield StorageFinding(
                "journals",
                scan.path,
                error.reason,
                error.offset,
                fix,
                severity=Severity.CRITICAL if is_needed else Severity.INFORMATION,
            )
            return
        except (StorageError, OSError) as error:
            yield StorageFinding("journals", scan.path, without_path(error), fix=LOST_DATA_ADVICE)
            return
        if is_read and scan.end.dropped_bytes:
            what = "were never synced" if stop_offset is None else "before the mark are not records"
            reason = f"{scan.end.dropped_bytes} bytes that {what} ({scan.end.reason.value})"
            yield StorageFinding("journals", scan.path, reason, scan.end.data_end_offset, severity=Severity.INFORMATION)

    def _of_records(
        self, marks: JournalMarks, scan: JournalScan, stop_offset: int | None
    ) -> Generator[StorageFinding, None, bool]:
        """Findings in the records. Returns False unless it read to the end: records of another journal, or the stop."""
        journal_count = len(self._config.journal_directories)
        for record in scan:
            if stop_offset is not None and record.offset >= stop_offset:
                return False
            self.counts.record_count += 1
            if self.counts.record_count % _PROGRESS_RECORD_COUNT == 0:
                self._on_progress(scan.path)
            if record.ledger_id % journal_count != marks.journal_index:
                reason = f"a record of ledger {record.ledger_id}, which belongs to another journal"
                yield StorageFinding("journals", scan.path, reason, record.offset, _FOREIGN_RECORD_ADVICE)
                return False
            if record.kind is JournalRecordKind.UNKNOWN:
                reason = f"a record of an unknown type ({record.entry_id})"
                yield StorageFinding("journals", scan.path, reason, record.offset, severity=Severity.INFORMATION)
        return True

    def _of_logs(self, position: int, directory: str, *, is_mixed: bool) -> Iterator[StorageFinding]:
        quarantined: dict[EntryLogId, str] = {}
        try:
            quarantined = read_quarantine(self._fs, directory)
        except CorruptFileError as error:
            yield StorageFinding(
                "entry logs", error.path, error.reason, fix="delete it: the logs are then checked again"
            )
        except OSError as error:
            yield _unreadable("entry logs", directory, error)
        count = len(self._config.ledger_directories)
        mixed = None
        try:
            mixed = read_mixed_logs(self._fs, directory)
        except CorruptFileError as error:
            yield StorageFinding("entry logs", error.path, error.reason, fix="see bkctl help adopt-a-java-bookie")
        except OSError as error:
            yield _unreadable("entry logs", directory, error)
        for log_id in list_entry_logs(self._fs, directory):
            path = os.path.join(directory, entry_log_file_name(log_id))
            self._on_progress(path)
            found = examine_log(
                self._fs,
                directory,
                log_id,
                self._config.engine.entry_log.entry_bytes_max,
                lambda path=path: self._on_progress(path),  # type: ignore[misc]
            )
            self.counts.log_count += 1
            self.counts.entry_count += found.entry_count
            if found.damage is not None:
                yield _of_damage(path, found.damage)
            elif found.dropped_bytes:
                reason = f"{found.dropped_bytes} bytes at its end are not a complete entry: never synced"
                yield StorageFinding("entry logs", path, reason, severity=Severity.INFORMATION)
            elif log_id in quarantined:
                reason = f"the collector skips it: {quarantined[log_id]}"
                yield StorageFinding("entry logs", path, reason, fix=f"see {_RUNBOOK}")
            misread = found.damage.misread_ids if found.damage is not None else ()
            elsewhere = sorted(each for each in found.ledger_ids.difference(misread) if each % count != position)
            if elsewhere and not is_mixed and mixed is not None and log_id > mixed:
                reason = f"it has entries of ledgers that belong elsewhere ({listed(elsewhere)})"
                yield StorageFinding("entry logs", path, reason, fix=_ELSEWHERE_ADVICE)

    def _of_collected(self, directory: str) -> Iterator[StorageFinding]:
        try:
            CollectedLedgers.open(self._fs, directory)
        except CorruptFileError as error:
            yield StorageFinding("fences", error.path, error.reason, error.offset, COLLECTED_ADVICE)

    def _of_indexes(self, ledger_directory: str, index_directory: str) -> Iterator[StorageFinding]:
        sound: set[str] = set()
        for database in DATABASES:
            path = os.path.join(index_directory, database)
            self._on_progress(path)
            yield from _guarded("index", path, self._of_index(ledger_directory, index_directory, database, sound))
        if LOCATIONS_DATABASE in sound:
            owners = None
            if LEDGERS_DATABASE in sound:
                with viewing_index(self._fs, self._open_index, index_directory, LEDGERS_DATABASE) as rows:
                    owners = set(LedgerIndex.load(rows))
                self.counts.ledger_count += len(owners)
            with viewing_index(self._fs, self._open_index, index_directory, LOCATIONS_DATABASE) as rows:
                yield from self._of_locations(ledger_directory, rows.path, LocationRows(rows, owners))

    def _of_index(
        self, ledger_directory: str, index_directory: str, database: str, sound: set[str]
    ) -> Iterator[StorageFinding]:
        """Findings in a database. Adds the database to ``sound`` if there are none."""
        state = inspect_index(self._fs, self._open_index, ledger_directory, index_directory, database)
        if state.condition is IndexCondition.SOUND:
            sound.add(database)
        elif state.condition is not IndexCondition.NEW:
            path = os.path.join(index_directory, database)
            yield StorageFinding("index", path, state.detail, fix=advise_on_lost_index(self._fs, self._config))

    def _of_locations(self, ledger_directory: str, path: str, rows: LocationRows) -> Iterator[StorageFinding]:
        """Locations whose log is missing or too short or, in a deep check, does not contain the entry."""
        damages: list[IndexDamagedError] = []

        def pieces() -> Iterator[bytes]:
            try:
                for piece in rows.pieces():
                    self._on_progress(path)
                    yield piece
            except IndexDamagedError as error:
                damages.append(error)

        # The only trace of a missing log are the rows that reference it.
        if self._children is None:
            shortfalls = LogShortfalls(log_sizes_bytes(self._fs, ledger_directory))
            for piece in pieces():
                shortfalls.take(piece)
        else:
            shortfalls = LogShortfalls(dict.fromkeys(list_entry_logs(self._fs, ledger_directory), UNMEASURED))
            yield from self._of_entries(self._children, ledger_directory, path, map(shortfalls.take, pieces()))
            yield from _of_rows(path, rows)
        self.counts.location_count += rows.count
        for log in shortfalls.found():
            log_path = os.path.join(ledger_directory, entry_log_file_name(log.log_id))
            yield StorageFinding("entry logs", log_path, log.reason, fix=f"see {_RUNBOOK}")
        for error in damages:
            yield StorageFinding("index", path, without_advice(error), fix=REBUILD_ADVICE)

    def _of_entries(
        self, children: Children, ledger_directory: str, path: str, pieces: Iterator[bytes]
    ) -> Iterator[StorageFinding]:
        """Entries that are not at their indexed locations: at most PROBLEM_COUNT_MAX, then the number of others."""
        directory = os.path.abspath(ledger_directory)
        bytes_max = self._config.engine.entry_log.entry_bytes_max
        tasks = (ProbeRows(directory=directory, rows=piece, entry_bytes_max=bytes_max) for piece in pieces)
        reported_count = count = 0
        with children.pool(PROBE_MODULE, os.path.dirname(path), children.core_count) as pool:
            for _, probed in pool.run(tasks, Probed, lambda _: self._on_progress(path)):
                count += probed.problem_count
                for problem in probed.problems[: PROBLEM_COUNT_MAX - reported_count]:
                    reported_count += 1
                    yield StorageFinding(
                        "locations",
                        os.path.join(ledger_directory, problem.log),
                        problem.reason,
                        problem.offset,
                        _KEEP_INDEX_ADVICE,
                        ledger_id=problem.ledger_id,
                        entry_id=problem.entry_id,
                    )
        if count > reported_count:
            reason = f"{counted(count - reported_count, 'more entry is', 'more entries are')} not where the index says"
            yield StorageFinding("locations", path, reason, fix=_KEEP_INDEX_ADVICE)


# A rebuilt index would not contain entries whose ids in the log are damaged, and the bookie would deny them.
_KEEP_INDEX_ADVICE: Final = (
    "leave the index as it is: while it names these entries, readers get an error and ask other bookies; see "
    "bkctl help lost-entries"
)
_ELSEWHERE_ADVICE: Final = (
    "restore the ledger directories, in number and order; if they did not change, these ids are damaged: see "
    "bkctl help lost-entries"
)
_FOREIGN_RECORD_ADVICE: Final = (
    f"restore the journal directories, in number and order; if they did not change: {LOST_DATA_ADVICE}"
)
_RUNBOOK: Final = "bkctl help lost-entries"
_IDX_ADVICE: Final = (
    "the Java bookie cannot serve these entries: check the other copies with bkctl ledger verify; after bkctl storage "
    "adopt, the integrity check restores them from there"
)
_DISK_RUNBOOK: Final = "bkctl help lost-disk"


def _guarded(check: str, path: str, found: Iterator[StorageFinding]) -> Iterator[StorageFinding]:
    """Turns an error of one check into a finding, so that the other checks still run."""
    try:
        yield from found
    except DirectoryLockedError:
        raise
    except (StorageError, OSError) as error:
        if lacks_room(error):  # opening an index needs space; a full disk does not mean damage
            raise
        if isinstance(error, OSError):
            yield _unreadable(check, path, error)
        else:
            yield StorageFinding(check, path, without_advice(error), fix=f"see {_DISK_RUNBOOK}")


def _unreadable(check: str, path: str, error: OSError) -> StorageFinding:
    return StorageFinding(check, error.filename or path, without_path(error), fix=f"see {_DISK_RUNBOOK}")


def _of_marks(marks: JournalMarks) -> Iterator[StorageFinding]:
    if marks.trouble is not None:
        yield StorageFinding("marks", marks.directory, marks.trouble, fix=LOST_DATA_ADVICE)
    for file in marks.files:
        if file.state is MarkState.DAMAGED:
            # Nothing is lost: another directory's record is used, or replay reads everything.
            yield StorageFinding(
                "marks", file.path, "its checksum does not match: it is ignored", severity=Severity.INFORMATION
            )
        elif file.state is MarkState.SHORT:
            yield StorageFinding(
                "marks",
                file.path,
                "shorter than a mark: left by a Java bookie that was killed",
                severity=Severity.INFORMATION,
            )


def _of_rows(path: str, rows: LocationRows) -> Iterator[StorageFinding]:
    """Malformed rows, and rows of ledgers that are not in the ledgers database."""
    for row in rows.invalid:
        yield StorageFinding("locations", path, f"{row} is not a location", fix=_KEEP_INDEX_ADVICE)
    if rows.invalid_count > len(rows.invalid):
        more = counted(rows.invalid_count - len(rows.invalid), "more row is", "more rows are")
        reason = f"{more} not a location"
        yield StorageFinding("locations", path, reason, fix=_KEEP_INDEX_ADVICE)
    if rows.leftover_count:
        reason = f"{counted(rows.leftover_count, 'location')} of deleted ledgers, which a crash left"
        yield StorageFinding("locations", path, reason, severity=Severity.INFORMATION)


def _of_damage(path: str, damage: LogDamage) -> StorageFinding:
    reason = f"{damage.reason}; ledgers {listed(damage.ledger_ids)}" if damage.ledger_ids else damage.reason
    offset, ledger_id, entry_id = damage.stray or (None, None, None)
    return StorageFinding("entry logs", path, reason, offset, f"see {_RUNBOOK}", ledger_id=ledger_id, entry_id=entry_id)
