"""Converts our directories back for a Java bookie: flushes, writes ledger state to the journals, moves our index aside.

Java cannot read our index. Its tools rebuild an index from entry logs and journals, whose formats we share. For every
ledger that a log or journal mentions, the rebuild creates a fenced row without a key. So the hand-back writes journal
records with each ledger's key, fence and explicit LAC after the marks. This includes ledgers without entries, and
ledgers whose copy was collected and of which only the fence remains (``collected_ledgers``). The first start of the
Java bookie replays these records, which restores keys and LACs (storage sections 3.11 and 11.2).

An interrupted step can be repeated:

1. replay, flush and move the marks, like a start and a clean stop of the bookie; write those records;
2. write the note (``adoption_note``);
3. move our databases and records aside; put a file in the place of each of Java's databases, so that no Java bookie
   starts before its tools have replaced them; let Java start (``block_java``);
4. remove the note.

Nothing is deleted. Java has no limbo and no storage flags, and its rebuild skips what it cannot read. It would report
lost entries as "no such entry". So the hand-back is refused while a ledger is in limbo, an integrity check is due, or
a log is known to be damaged.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Sequence

import msgspec

from bkctl.storage.advice import UNCLEAN_ADVICE
from bkctl.storage.config import JOURNAL_VERSION_MAX, StorageConfig
from bkctl.storage.engine.ledger_storage import LedgerStorage
from bkctl.storage.entry_log.examination import examine_log
from bkctl.storage.entry_log.log_lists import read_quarantine
from bkctl.storage.entry_log.reader import list_entry_logs
from bkctl.storage.errors import AdoptionRefusedError
from bkctl.storage.filenames import (
    ADOPTION,
    DATABASES,
    DIRTY,
    HANDING_BACK,
    JAVA_DATABASES,
    JAVA_INDEX_ASIDE,
    LOCK,
    MIXED_LOGS,
    OWN_INDEX_ASIDE,
    current_directory,
    entry_log_file_name,
)
from bkctl.storage.index.adoption_note import (
    advise_on_lost_index,
    begin_note,
    move_aside,
    note_path,
    read_note,
    remove_note,
    require_nothing_written_since,
    write_note,
)
from bkctl.storage.index.java_index import find_java_index, unblock_java
from bkctl.storage.index.ledger_index import LedgerRow
from bkctl.storage.index.opening import inspect_index
from bkctl.storage.journal.catalog import read_catalog
from bkctl.storage.journal.format import encode_explicit_lac_record, encode_fence_record, encode_ledger_key_record
from bkctl.storage.offline.adoption import index_directories
from bkctl.storage.ports import FileSystem, OpenIndexStore
from bkctl.storage.words import counted, listed

_IN_PLACE_OF_DATABASE = b"Java's shell replaces this: rebuild-db-ledgers-index -v, rebuild-db-ledger-locations-index\n"
_OWN_PREFIXES = ("ldb-", "bkctl.")
_RECORD_COUNT_MAX = 3 * 4096


class HandBackReport(msgspec.Struct):
    """Counts of a finished hand-back."""

    ledger_count: int = 0
    replayed_entry_count: int = 0


def needs_hand_back(fs: FileSystem, config: StorageConfig) -> bool:
    """Whether there are files of ours to hand back, or a hand-back was interrupted.

    AdoptionRefusedError if an adoption is unfinished, a log is known to be damaged, or the bookie did not shut down
    cleanly. CorruptFileError, OSError.
    """
    directories = [current_directory(each) for each in config.ledger_directories]
    if fs.exists(note_path(config, ADOPTION)):
        raise AdoptionRefusedError("nothing was changed: an adoption is unfinished: finish it with bkctl storage adopt")
    if fs.exists(note_path(config, HANDING_BACK)):
        return True
    dirty = next((path for directory in directories if fs.exists(path := os.path.join(directory, DIRTY))), None)
    if dirty is not None:
        raise AdoptionRefusedError(f"nothing was changed: {dirty} exists, {UNCLEAN_ADVICE}")
    for directory in directories:
        damaged = [entry_log_file_name(log_id) for log_id in read_quarantine(fs, directory)]
        if damaged:
            raise _damaged(directory, damaged)
    return any(_own_names(fs, directory) for directory in index_directories(config))


def awaits_java(fs: FileSystem, config: StorageConfig) -> bool:
    """Whether directories were handed back, and Java's shell has not made its databases there yet."""
    for directory in index_directories(config):
        for database in JAVA_DATABASES:
            with contextlib.suppress(FileNotFoundError, IsADirectoryError):
                if fs.read_file(os.path.join(directory, database)) == _IN_PLACE_OF_DATABASE:
                    return True
    return False


def require_readable(fs: FileSystem, open_index: OpenIndexStore, config: StorageConfig) -> None:
    """Verify that indexes and journal catalogs can be read, so that a plan fails early; changes nothing.

    IndexMissingError, IndexDamagedError, JournalError, another StorageError or OSError. Checks nothing once the note
    exists: the rest of the hand-back does not read these files.
    """
    if read_note(fs, note_path(config, HANDING_BACK)) is not None:
        return
    for directories in config.engine_directories:
        for database in DATABASES:
            state = inspect_index(fs, open_index, *directories, database)
            if state.is_lost:
                raise state.as_error(advise_on_lost_index(fs, config))
    for directory in config.journal_directories:
        read_catalog(fs, current_directory(directory))


def hand_back(
    fs: FileSystem,
    open_index: OpenIndexStore,
    config: StorageConfig,
    now_ms: int,
    *,
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> HandBackReport:
    """Hand back directories, which the caller has locked. Resumes after an interruption. ``now_ms``: see LedgerStorage.

    ``on_progress``: finished and total logs, later ledgers. After AdoptionRefusedError, another StorageError or OSError
    either our index is still in place, or the note exists and the next call finishes the hand-back.
    """
    report = HandBackReport()
    if not needs_hand_back(fs, config):
        return report
    path = note_path(config, HANDING_BACK)
    note = read_note(fs, path)
    if note is None:
        _flush_and_report(fs, open_index, config, now_ms, report, on_progress)
        note = begin_note(fs, config, OWN_INDEX_ASIDE)
        write_note(fs, path, note)
    elif any(_own_names(fs, directory) for directory in index_directories(config)):
        require_nothing_written_since(fs, config, path, note)
    # The databases first: without them our bookie refuses to start on the remaining files.
    for directory in dict.fromkeys((*index_directories(config), *_all_directories(config))):
        move_aside(fs, directory, (*_own_names(fs, directory), *_java_databases(fs, directory)), note.aside)
    for directory in index_directories(config):
        for database in JAVA_DATABASES:
            if not fs.exists(place := os.path.join(directory, database)):
                fs.write_file_atomically(place, _IN_PLACE_OF_DATABASE)
    unblock_java(fs, map(current_directory, config.journal_directories))
    remove_note(fs, path)
    return report


def _flush_and_report(
    fs: FileSystem,
    open_index: OpenIndexStore,
    config: StorageConfig,
    now_ms: int,
    report: HandBackReport,
    on_progress: Callable[[int, int], None],
) -> None:
    # Older journal versions have no explicit LAC record; every Java bookie reads this version.
    journal_config = msgspec.structs.replace(config.journal, format_version=JOURNAL_VERSION_MAX)
    config = msgspec.structs.replace(config, journal=journal_config)
    storage = LedgerStorage.open(fs, open_index, config, now_ms, locks=())
    try:
        # Check before replay, which writes: a refusal must change nothing.
        _require_nothing_unknown(storage)
        _require_whole_logs(fs, config, on_progress)
        report.replayed_entry_count = storage.replay().entry_count
        total = sum(1 for _ in _rows_and_fences(storage))
        for journal_index, journal in enumerate(storage.journals):
            batch: list[bytes] = []
            for ledger_id, row in _rows_and_fences(storage):
                if ledger_id % len(storage.journals) != journal_index:
                    continue
                batch += _records(ledger_id, row)
                report.ledger_count += 1
                on_progress(report.ledger_count, total)
                if len(batch) >= _RECORD_COUNT_MAX:
                    journal.write_group(batch)
                    batch.clear()
            if batch:
                journal.write_group(batch)
    finally:
        storage.close()


def _rows(storage: LedgerStorage) -> Iterator[tuple[int, LedgerRow]]:
    for engine in storage.engines:
        for ledger_id in sorted(engine.ledger_ids()):
            row = engine.rows.find(ledger_id)
            if row is not None:
                yield ledger_id, row


def _rows_and_fences(storage: LedgerStorage) -> Iterator[tuple[int, LedgerRow]]:
    """All rows, and a fenced row for each ledger whose copy was collected: Java stores a fence nowhere else."""
    yield from _rows(storage)
    for engine in storage.engines:
        for ledger_id in sorted(engine.collected.ids()):
            if engine.rows.find(ledger_id) is None:
                yield ledger_id, LedgerRow(is_fenced=True)


def _records(ledger_id: int, row: LedgerRow) -> list[bytes]:
    """Records of a ledger. The key comes first: replay applies fences and LACs to known ledgers only."""
    records = [encode_ledger_key_record(ledger_id, row.master_key)]
    if row.is_fenced:
        records.append(encode_fence_record(ledger_id))
    if row.explicit_lac is not None:
        records.append(encode_explicit_lac_record(ledger_id, row.explicit_lac))
    return records


def _require_nothing_unknown(storage: LedgerStorage) -> None:
    limbo = [str(ledger_id) for ledger_id, row in _rows(storage) if row.is_limbo]
    if limbo or storage.engines[0].rows.read_flags():
        what = f"{counted(len(limbo), 'ledger')} may miss entries here ({listed(limbo)})" if limbo else ""
        raise AdoptionRefusedError(
            f"nothing was changed: {what or 'an integrity check is due'}; Java would report missing entries as "
            "nonexistent: start the bookie and wait until its integrity check is complete, or remove it with "
            "bkctl decommission"
        )


def _require_whole_logs(fs: FileSystem, config: StorageConfig, on_progress: Callable[[int, int], None]) -> None:
    """Read all logs that Java's rebuild will read, because it skips damage without reporting it."""
    logs = [
        (directory, log_id)
        for directory in map(current_directory, config.ledger_directories)
        for log_id in list_entry_logs(fs, directory)
    ]
    for done_count, (directory, log_id) in enumerate(logs):
        on_progress(done_count, len(logs))
        entry_bytes_max = config.engine.entry_log.entry_bytes_max
        found = examine_log(
            fs, directory, log_id, entry_bytes_max, functools.partial(on_progress, done_count, len(logs))
        )
        if found.damage is not None:
            raise _damaged(directory, [f"{entry_log_file_name(log_id)}: {found.damage.reason}"])


def _damaged(directory: str, logs: Sequence[str]) -> AdoptionRefusedError:
    return AdoptionRefusedError(
        f"nothing was changed: entry logs in {directory} are damaged ({', '.join(logs)}), and after Java's index "
        "rebuild their unreadable entries would be reported as nonexistent; remove the bookie with bkctl "
        "decommission"
    )


def own_paths(fs: FileSystem, config: StorageConfig) -> list[str]:
    """Paths that a hand-back moves aside; OSError."""
    directories = dict.fromkeys((*index_directories(config), *_all_directories(config)))
    return [os.path.join(directory, name) for directory in directories for name in _own_names(fs, directory)]


def _own_names(fs: FileSystem, directory: str) -> list[str]:
    """Names of our files in a ``current`` directory, except the lock, notes and files already moved aside."""
    kept = (LOCK, HANDING_BACK, ADOPTION, MIXED_LOGS)
    names = fs.list_directory(directory) if fs.exists(directory) else []  # an index directory may be new
    return [
        name
        for name in names
        if name.startswith(_OWN_PREFIXES)
        and name not in kept
        and not name.startswith((OWN_INDEX_ASIDE, JAVA_INDEX_ASIDE))
    ]


def _java_databases(fs: FileSystem, directory: str) -> Iterator[str]:
    """Empty databases that a Java bookie has made before it found that it must not start."""
    for name in find_java_index(fs, directory).databases:
        with contextlib.suppress(NotADirectoryError):
            fs.list_directory(os.path.join(directory, name))
            yield name


def _all_directories(config: StorageConfig) -> list[str]:
    return [current_directory(each) for each in (*config.journal_directories, *config.ledger_directories)]
