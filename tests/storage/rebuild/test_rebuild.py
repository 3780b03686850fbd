"""Indexes built anew from entry logs and journals: the same rows, and the worst assumed of what cannot be known."""

from __future__ import annotations

import os
import shutil
import struct
from pathlib import Path

import msgspec
import pytest

from bkctl.storage.adapters.child_pool import ChildProcesses
from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.adapters.index_store import open_plyvel
from bkctl.storage.config import JournalConfig, StorageConfig
from bkctl.storage.entry_log.format import HEADER_BYTES, encode_header
from bkctl.storage.errors import IndexDamagedError, MisplacedLedgerError
from bkctl.storage.filenames import (
    ENTRY_LOG_ID_MAX,
    LEDGERS_DATABASE,
    LOCATIONS_DATABASE,
    compacted_file_name,
    compacting_file_name,
    entry_log_file_name,
)
from bkctl.storage.index.ledger_index import LedgerRow
from bkctl.storage.index.opening import IndexCondition
from bkctl.storage.journal.format import encode_explicit_lac_record, encode_fence_record, encode_ledger_key_record
from bkctl.storage.rebuild import directory as rebuild_directory
from bkctl.storage.rebuild.rebuild import plan_rebuild
from bkctl.storage.step_sizes import StepSizes
from tests.storage.engines import KEY, checkpoint, config_below, entry, explicit_lac, open_storage
from tests.storage.rebuilds import (
    BOTH,
    Watch,
    database,
    lose,
    rebuild,
    require_entries,
    rows_of,
    store_entries,
)

LEDGERS = range(6)
FS = OsFileSystem()


@pytest.fixture
def config(tmp_path: Path) -> StorageConfig:
    """A bookie with six ledgers in many logs."""
    made = config_below(tmp_path / "bookie")
    store_entries(made, LEDGERS)
    return made


def logs(config: StorageConfig) -> list[Path]:
    """The entry logs that hold something, by number."""
    directory = Path(config.ledger_directories[0]) / "current"
    # Without the next one, which is made beforehand.
    filled = (path for path in directory.glob("*.log") if path.stat().st_size > HEADER_BYTES)
    return sorted(filled, key=lambda path: int(path.stem, 16))


def ledger_row(config: StorageConfig, ledger_id: int) -> LedgerRow | None:
    storage = open_storage(config)
    row = storage.engine_of(ledger_id).rows.find(ledger_id)
    storage.close()
    return row


def flags(config: StorageConfig) -> int:
    storage = open_storage(config)
    value = storage.engines[0].rows.read_flags()
    storage.close()
    return value


def test_lost_locations_come_back_row_by_row(config: StorageConfig) -> None:
    assert len(logs(config)) > 1
    before, ledger_rows = rows_of(config, LOCATIONS_DATABASE), rows_of(config, LEDGERS_DATABASE)
    lose(config, LOCATIONS_DATABASE)
    report = rebuild(config)
    assert report.is_complete
    assert [each.databases for each in report.directories] == [(LOCATIONS_DATABASE,)]
    assert report.directories[0].row_count == len(before)
    assert report.directories[0].entry_count > len(before)
    assert rows_of(config, LOCATIONS_DATABASE) == before
    assert [key for key, _ in rows_of(config, LEDGERS_DATABASE)] == [key for key, _ in ledger_rows]
    require_entries(config, LEDGERS)


@pytest.mark.parametrize("databases", [(LOCATIONS_DATABASE,), BOTH])
def test_of_locations_made_from_logs_alone_nothing_is_denied_until_they_are_compared(
    config: StorageConfig, databases: tuple[str, ...]
) -> None:
    """A log that is gone, or cut between two entries, leaves no trace in the others."""
    fences = {each: row.is_fenced for each in LEDGERS if (row := ledger_row(config, each)) is not None}
    logs(config)[0].unlink()
    lose(config, LOCATIONS_DATABASE)
    report = rebuild(config, databases)
    assert report.is_complete
    assert report.needs_integrity_check
    assert flags(config) == 1
    assert report.directories[0].limbo_count == len(LEDGERS)
    for ledger_id in LEDGERS:
        row = ledger_row(config, ledger_id)
        assert row is not None
        assert (row.is_limbo, row.is_fenced) == (True, fences[ledger_id])


def test_lost_ledger_rows_come_back_fenced_and_an_integrity_check_is_asked_for(config: StorageConfig) -> None:
    locations = rows_of(config, LOCATIONS_DATABASE)
    lose(config, LEDGERS_DATABASE)
    report = rebuild(config)
    assert report.is_complete
    assert report.needs_integrity_check
    assert rows_of(config, LOCATIONS_DATABASE) == locations
    # H12: keys of eight bytes, as every update writes them.
    assert [key for key, _ in rows_of(config, LEDGERS_DATABASE)] == [struct.pack(">q", each) for each in LEDGERS]
    assert ledger_row(config, 3) == LedgerRow(is_fenced=True)
    assert flags(config) == 1
    require_entries(config, LEDGERS)


def test_nothing_is_due_while_all_is_sound(config: StorageConfig) -> None:
    before = rows_of(config, LOCATIONS_DATABASE)
    assert rebuild(config).directories == ()
    assert rows_of(config, LOCATIONS_DATABASE) == before


def test_a_sound_index_is_built_again_when_asked_for_and_loses_nothing(config: StorageConfig) -> None:
    before = rows_of(config, LOCATIONS_DATABASE)
    rows = {each: ledger_row(config, each) for each in LEDGERS}
    rebuild(config, BOTH)
    assert rows_of(config, LOCATIONS_DATABASE) == before
    for ledger_id, row in rows.items():
        assert row is not None
        assert ledger_row(config, ledger_id) == msgspec.structs.replace(row, is_limbo=True)


def test_both_lost_in_several_directories(tmp_path: Path) -> None:
    config = config_below(tmp_path, journals=2, ledgers=3)
    store_entries(config, LEDGERS)
    before = [rows_of(config, LOCATIONS_DATABASE, position) for position in range(3)]
    for name, position in (
        (LEDGERS_DATABASE, 0),
        (LOCATIONS_DATABASE, 0),
        (LOCATIONS_DATABASE, 1),
        (LEDGERS_DATABASE, 2),
    ):
        lose(config, name, position)
    report = rebuild(config)
    assert [each.databases for each in report.directories] == [BOTH, (LOCATIONS_DATABASE,), (LEDGERS_DATABASE,)]
    assert [rows_of(config, LOCATIONS_DATABASE, position) for position in range(3)] == before
    assert flags(config) == 1
    require_entries(config, LEDGERS)


def test_keys_fences_and_explicit_lacs_come_from_the_journals_whatever_the_mark(tmp_path: Path) -> None:
    config = config_below(tmp_path)
    storage = open_storage(config)
    storage.replay()
    engine, journal = storage.engines[0], storage.journals[0]
    engine.rows.set_master_key(5, KEY)
    engine.add(5, 0, entry(5, 0))
    engine.set_explicit_lac(5, explicit_lac(5, 0))
    journal.write_group(
        [
            encode_ledger_key_record(5, KEY),
            entry(5, 0),
            encode_explicit_lac_record(5, explicit_lac(5, 0)),
            encode_fence_record(9),
        ]
    )
    checkpoint(storage)
    storage.close()
    for name in BOTH:
        lose(config, name)
    rebuild(config)
    lac = explicit_lac(5, 0)
    assert ledger_row(config, 5) == LedgerRow(master_key=KEY, is_fenced=True, is_limbo=True, explicit_lac=lac)
    assert ledger_row(config, 9) == LedgerRow(is_fenced=True, is_limbo=True)


def test_records_of_a_former_ledger_of_the_same_id(tmp_path: Path) -> None:
    """What is lost is built by the rule of ``bkctl.storage.index.journaled_rows``, over bounds of journal files too."""
    config = config_below(tmp_path)
    config = msgspec.structs.replace(config, journal=JournalConfig(preallocation_bytes=4096))
    former = [encode_ledger_key_record(each, b"former") for each in (5, 6, 7)]
    lacs = [encode_explicit_lac_record(each, explicit_lac(each, 9)) for each in (5, 6, 7)]
    journal_groups(config, [*former, *lacs, encode_fence_record(5)])
    journal_groups(config, [encode_ledger_key_record(5, KEY), encode_ledger_key_record(6, b"former")])
    journal_groups(config, [encode_explicit_lac_record(each, explicit_lac(each, 2)) for each in (6, 7)])
    for name in BOTH:
        lose(config, name)
    rebuild(config)
    row = LedgerRow(is_fenced=True, is_limbo=True)
    assert ledger_row(config, 5) == msgspec.structs.replace(row, master_key=KEY)
    for each in (6, 7):
        lac = explicit_lac(each, 2)
        assert ledger_row(config, each) == msgspec.structs.replace(row, master_key=b"former", explicit_lac=lac)


def journal_groups(config: StorageConfig, records: list[bytes]) -> None:
    """One more journal file with these records, behind all of which the mark stands."""
    storage = open_storage(config)
    storage.replay()
    storage.journals[0].write_group(records)
    checkpoint(storage)
    storage.close()


def test_entries_that_are_in_the_journal_alone_come_with_the_next_boot(config: StorageConfig) -> None:
    storage = open_storage(config)
    storage.replay()
    storage.journals[0].write_group([encode_ledger_key_record(2, KEY), entry(2, 500, b"not flushed")])
    storage.close()
    for name in BOTH:
        lose(config, name)
    rebuild(config)
    storage = open_storage(config)
    storage.replay()
    assert storage.engines[0].stored.read(2, 500) == entry(2, 500, b"not flushed")
    storage.close()


def test_entries_of_ledgers_that_were_deleted_stay_away(config: StorageConfig) -> None:
    storage = open_storage(config)
    storage.replay()
    storage.engines[0].delete_ledger(4)
    checkpoint(storage)
    storage.close()
    before = rows_of(config, LOCATIONS_DATABASE)
    lose(config, LOCATIONS_DATABASE)
    rebuild(config)
    assert rows_of(config, LOCATIONS_DATABASE) == before


def test_a_kept_index_goes_on_with_its_deletions(tmp_path: Path) -> None:
    """Its flags are written; what says that a ledger is being deleted stays."""
    config = config_below(tmp_path, ledgers=2)
    store_entries(config, LEDGERS)
    storage = open_storage(config, steps=StepSizes(deleted_row_count_max=1))
    storage.replay()
    storage.engine_of(2).delete_ledger(2)
    checkpoint(storage)
    storage.close()
    lose(config, LEDGERS_DATABASE, 1)
    rebuild(config)
    storage = open_storage(config)
    engine = storage.engine_of(2)
    assert engine.rows.read_flags() != 0, "else nothing was written there"
    assert (engine.rows.find(2), engine.stored.list_entries(2), engine.is_deletion_pending(2)) == (None, [], True)
    storage.close()


def test_log_ids_that_have_wrapped_keep_their_order(config: StorageConfig) -> None:
    # The oldest logs get the largest ids, the newest begin again at 0.
    paths = logs(config)
    half = len(paths) // 2
    for number, path in enumerate(paths):
        path.rename(path.with_name(f"moved-{number}"))
    for number, path in enumerate(paths):
        log_id = ENTRY_LOG_ID_MAX - half + 1 + number if number < half else number - half
        path.with_name(f"moved-{number}").rename(path.with_name(entry_log_file_name(log_id)))
    lose(config, LOCATIONS_DATABASE)
    assert rebuild(config).is_complete
    require_entries(config, LEDGERS)


def test_many_small_runs_ranges_and_tables(config: StorageConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    before = rows_of(config, LOCATIONS_DATABASE)
    lose(config, LOCATIONS_DATABASE)
    scan, load = rebuild_directory.LocationRebuild.scan, rebuild_directory.LocationRebuild.load
    monkeypatch.setattr(
        rebuild_directory.LocationRebuild,
        "scan",
        lambda self, directory, keeps_rows: scan(self, directory, keeps_rows=keeps_rows, run_row_count=50),
    )
    monkeypatch.setattr(
        rebuild_directory.LocationRebuild,
        "load",
        lambda self, open_index, runs, known: load(self, open_index, runs, known, range_row_count=1),
    )
    rebuild(config)
    assert rows_of(config, LOCATIONS_DATABASE) == before


# Compactions that were interrupted (storage section 4.9)


def test_what_a_compaction_left_is_finished_or_deleted(config: StorageConfig) -> None:
    before = rows_of(config, LOCATIONS_DATABASE)
    source, directory = logs(config)[0], logs(config)[0].parent
    replacement = directory / entry_log_file_name(0x99)
    replacement.write_bytes(source.read_bytes())
    replacement.rename(directory / compacted_file_name(0x99, 0))
    (directory / compacting_file_name(0x9A)).write_bytes(encode_header() + b"half")
    lose(config, LOCATIONS_DATABASE)
    rebuild(config)
    assert not source.exists()
    assert not list(directory.glob("*.compact*"))
    assert replacement.exists()
    after = rows_of(config, LOCATIONS_DATABASE)
    # Only what was in the source has moved; copies of entry 7 in later logs stay the newest.
    moved = [key for (key, old), (_, new) in zip(before, after, strict=True) if old != new]
    assert moved
    assert {new[:4] for key, new in after if key in moved} == {b"\0\0\0\x99"}
    storage = open_storage(config)
    assert storage.engines[0].stored.read(0, 0) == entry(0, 0, b"")
    storage.close()


# Damage


def zero(path: Path, start: int, size: int) -> None:
    with path.open("r+b") as stream:
        stream.seek(start)
        stream.write(bytes(size))


def test_a_damaged_log_makes_the_result_incomplete_and_its_ledgers_unknown(config: StorageConfig) -> None:
    # The last log was never finished, so it has no map: any ledger may have been there.
    last = logs(config)[-1]
    zero(last, HEADER_BYTES + 200, 300)
    lose(config, LOCATIONS_DATABASE)
    report = rebuild(config)
    assert not report.is_complete
    assert report.needs_integrity_check
    (damaged,) = report.directories[0].damaged
    assert damaged.path == str(last)
    assert damaged.damage.ledger_ids is None
    assert report.directories[0].limbo_count == len(LEDGERS)
    assert flags(config) == 1
    for ledger_id in LEDGERS:
        row = ledger_row(config, ledger_id)
        assert row is not None
        assert row.is_limbo
        assert row.is_fenced
        assert row.master_key == KEY


def test_the_map_of_a_finished_log_tells_which_ledgers_lack_something(config: StorageConfig) -> None:
    first = logs(config)[0]
    storage = open_storage(config)
    location = storage.engines[0].relocation.current_locations([(0, 3)])[0]
    storage.close()
    assert location is not None
    assert location.log_id == 0
    # The ids of one entry of ledger 0 become those of a ledger map: the entry is passed over.
    with first.open("r+b") as stream:
        stream.seek(location.offset)
        stream.write(struct.pack(">qq", -1, 0))
    lose(config, LOCATIONS_DATABASE)
    report = rebuild(config)
    assert [log.damage.ledger_ids for log in report.directories[0].damaged] == [(0,)]
    row, other = ledger_row(config, 0), ledger_row(config, 1)
    assert row is not None
    assert (row.is_limbo, row.is_fenced) == (True, True)
    assert other is not None
    assert (other.is_limbo, other.is_fenced) == (True, False)


def test_a_log_that_cannot_be_read_is_reported(config: StorageConfig) -> None:
    # A directory in the place of a log fails at every read, as a bad disk does.
    (logs(config)[0].parent / entry_log_file_name(0x77)).mkdir()
    for name in BOTH:
        lose(config, name)
    report = rebuild(config)
    assert not report.is_complete
    assert "77.log" in report.directories[0].damaged[0].damage.reason
    row = ledger_row(config, 2)
    assert row is not None
    assert row.is_limbo


def test_a_tail_that_a_crash_tore_is_no_damage(config: StorageConfig) -> None:
    last = logs(config)[-1]
    with last.open("ab") as stream:
        stream.write(struct.pack(">iqq", 400, 3, 9999) + b"the rest was never written")
    before = rows_of(config, LOCATIONS_DATABASE)
    lose(config, LOCATIONS_DATABASE)
    report = rebuild(config)
    assert report.is_complete
    assert report.directories[0].torn_bytes > 0
    assert rows_of(config, LOCATIONS_DATABASE) == before


def test_a_damaged_journal_is_reported_and_does_not_stop_the_rebuild(config: StorageConfig) -> None:
    journal = next((Path(config.journal_directories[0]) / "current").glob("*.txn"))
    with journal.open("r+b") as stream:
        stream.seek(4)
        stream.write(struct.pack(">i", 99))
    lose(config, LEDGERS_DATABASE)
    report = rebuild(config)
    assert len(report.journal_damages) == 1
    assert journal.name in report.journal_damages[0]


def test_a_ledger_in_the_wrong_directory_is_refused(tmp_path: Path) -> None:
    config = config_below(tmp_path, ledgers=2)
    store_entries(config, LEDGERS)
    swapped = config_below(tmp_path, ledgers=2)
    swapped = StorageConfig(
        journal_directories=config.journal_directories,
        ledger_directories=tuple(reversed(config.ledger_directories)),
        engine=config.engine,
    )
    for position in range(2):
        for name in BOTH:
            lose(config, name, position)
    with pytest.raises(MisplacedLedgerError, match="restore the old list"):
        rebuild(swapped)
    assert not database(config, LOCATIONS_DATABASE).exists()
    assert not database(config, LOCATIONS_DATABASE + ".rebuilt").exists()


def test_damaged_ledger_rows_are_needed_for_the_locations(config: StorageConfig) -> None:
    lose(config, LOCATIONS_DATABASE)
    shutil.rmtree(database(config, LEDGERS_DATABASE))
    with pytest.raises(IndexDamagedError, match="build both"):
        plan_rebuild(FS, open_plyvel, config, (LOCATIONS_DATABASE,))
    (plan,) = plan_rebuild(FS, open_plyvel, config, None)
    assert plan.databases == BOTH
    assert plan.states[LEDGERS_DATABASE].condition is IndexCondition.MISSING


def test_an_index_without_its_seal_is_damaged(config: StorageConfig) -> None:
    Path(str(database(config, LOCATIONS_DATABASE)) + ".seal").unlink()
    (plan,) = plan_rebuild(FS, open_plyvel, config, None)
    assert plan.databases == (LOCATIONS_DATABASE,)
    assert plan.states[LOCATIONS_DATABASE].condition is IndexCondition.DAMAGED


def test_new_directories_need_no_rebuild(tmp_path: Path) -> None:
    config = config_below(tmp_path)
    for directory in (*config.journal_directories, *config.ledger_directories):
        os.makedirs(os.path.join(directory, "current"))
    (plan,) = plan_rebuild(FS, open_plyvel, config, None)
    assert plan.databases == ()
    (plan,) = plan_rebuild(FS, open_plyvel, config, BOTH)
    assert plan.databases == ()


def test_the_stages_are_told(config: StorageConfig) -> None:
    lose(config, LOCATIONS_DATABASE)
    watch = Watch()
    from bkctl.storage.rebuild.rebuild import IndexRebuild

    IndexRebuild(FS, open_plyvel, ChildProcesses(), config, watch).run(plan_rebuild(FS, open_plyvel, config, None))
    assert watch.stages == ["reading entry logs", "writing the index", "verifying the index"]
