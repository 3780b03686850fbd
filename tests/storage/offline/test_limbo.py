"""Ledgers in limbo of stopped bookies: what is told of them, what speaks against the end of it, and the end."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.adapters.index_store import open_plyvel
from bkctl.storage.config import StorageConfig
from bkctl.storage.entry_log.format import HEADER_BYTES
from bkctl.storage.entry_log.log_lists import write_quarantine
from bkctl.storage.errors import IndexDamagedError, IndexMissingError
from bkctl.storage.filenames import DIRTY, LEDGERS_DATABASE, LOCATIONS_DATABASE, entry_log_file_name, seal_file_name
from bkctl.storage.index.ledger_index import NEEDS_INTEGRITY_CHECK, LedgerRow
from bkctl.storage.offline.limbo import (
    DoubtfulLog,
    LimboDirectory,
    LimboLedger,
    LimboSurvey,
    end_limbo,
    find_doubtful_logs,
    survey_limbo,
)
from tests.storage.engines import KEY, PhotographedDisk, checkpoint, config_below, open_storage, opening_watched
from tests.storage.rebuilds import database, lose, rebuild, store_entries

LEDGERS = range(6)


def survey(config: StorageConfig) -> LimboSurvey:
    return survey_limbo(OsFileSystem(), open_plyvel, config)


def limbo_ids(config: StorageConfig) -> list[int]:
    return [each.ledger_id for directory in survey(config).directories for each in directory.limbo]


def doubtful(
    config: StorageConfig, directory: LimboDirectory, ledger_ids: tuple[int, ...] = tuple(LEDGERS)
) -> list[DoubtfulLog]:
    calls: list[tuple[int, int]] = []
    entry_bytes_max = config.engine.entry_log.entry_bytes_max
    found = find_doubtful_logs(
        OsFileSystem(),
        open_plyvel,
        directory,
        ledger_ids,
        entry_bytes_max,
        lambda done, total: calls.append((done, total)),
    )
    assert calls[-1][0] == calls[-1][1] == max(done for done, _ in calls)
    return found


@pytest.fixture
def config(tmp_path: Path) -> StorageConfig:
    """Of one directory whose locations were rebuilt from whole logs."""
    config = config_below(tmp_path)
    store_entries(config, LEDGERS)
    lose(config, LOCATIONS_DATABASE)
    rebuild(config)
    return config


def test_what_is_told_of_a_bookie(tmp_path: Path) -> None:
    config = config_below(tmp_path, ledgers=2)
    for directory in config.all_directories:
        (Path(directory) / "current").mkdir(parents=True)
    assert survey(config) == LimboSurvey((), is_unnoted=False, dirty_path=None), "nothing was ever stored"
    store_entries(config, LEDGERS)
    storage = open_storage(config)
    storage.replay()
    storage.engine_of(3).set_limbo(3)
    storage.engine_of(9).rows.create_row(9, is_fenced=True, is_limbo=True)
    storage.engines[0].rows.write_flags(NEEDS_INTEGRITY_CHECK)
    checkpoint(storage)
    storage.close()
    found = survey(config)
    assert [each.limbo for each in found.directories] == [
        (),
        (LimboLedger(3, False, 0, 59), LimboLedger(9, True, None, None)),
    ]
    assert [each.certain for each in found.directories] == [{0, 2, 4}, {1, 5}]
    assert (found.is_unnoted, found.dirty_path) == (True, None)
    dirty = Path(config.ledger_directories[1]) / "current" / DIRTY
    dirty.touch()
    assert survey(config).dirty_path == str(dirty)


@pytest.mark.parametrize("name", [LEDGERS_DATABASE, LOCATIONS_DATABASE])
def test_a_lost_index_is_told_with_the_way_out(config: StorageConfig, name: str) -> None:
    Path(seal_file_name(str(database(config, name)))).unlink()
    with pytest.raises(IndexDamagedError, match="run `bkctl storage index rebuild`"):
        survey(config)
    shutil.rmtree(database(config, name))
    with pytest.raises(IndexMissingError, match="run `bkctl storage index rebuild`"):
        survey(config)


def test_the_limbo_ends_and_nothing_else_of_a_row(config: StorageConfig) -> None:
    (directory,) = survey(config).directories
    assert limbo_ids(config) == list(LEDGERS)
    assert doubtful(config, directory) == []
    before = rows(config)
    assert end_limbo(OsFileSystem(), open_plyvel, directory, [0, 1, 4]) == 3
    assert limbo_ids(config) == [2, 3, 5]
    after = rows(config)
    assert after == [(each, msgspec.structs.replace(row, is_limbo=each in {2, 3, 5})) for each, row in before]
    assert end_limbo(OsFileSystem(), open_plyvel, directory, LEDGERS) == 3, "of the others it has ended"
    assert limbo_ids(config) == []


def test_a_kill_leaves_what_a_second_run_or_the_repair_ends(tmp_path: Path) -> None:
    config = config_below(tmp_path / "bookie", ledgers=2)
    store_entries(config, LEDGERS, rounds=1)
    for position in range(2):
        lose(config, LOCATIONS_DATABASE, position)
    rebuild(config)
    disk = PhotographedDisk(tmp_path / "bookie")
    directories = survey(config).directories
    disk.photograph_into = tmp_path / "photographs"
    for directory in directories:
        end_limbo(disk, opening_watched(disk.photograph), directory, LEDGERS)
    left = []
    seen = {content(state): state for _, state in disk.photographs}
    for state in seen.values():
        killed = config_below(state, ledgers=2)
        found = survey(killed).directories
        left.append(tuple(each.ledger_id for directory in found for each in directory.limbo))
        for directory in found:
            end_limbo(OsFileSystem(), open_plyvel, directory, LEDGERS)
        assert not any(row.is_limbo for _, row in rows(killed))
    assert sorted(set(left), key=left.index) == [(0, 2, 4, 1, 3, 5), (1, 3, 5), ()]


def content(root: Path) -> tuple[tuple[str, bytes], ...]:
    """Without what LevelDB writes for people alone."""
    files = sorted(path for path in root.rglob("*") if path.is_file() and not path.name.startswith("LOG"))
    return tuple((str(path.relative_to(root)), path.read_bytes()) for path in files)


def rows(config: StorageConfig) -> list[tuple[int, LedgerRow]]:
    storage = open_storage(config)
    found = [(each, row) for each in LEDGERS if (row := storage.engine_of(each).rows.find(each)) is not None]
    assert storage.engines[0].rows.read_flags() == NEEDS_INTEGRITY_CHECK, "the repair is due, and ends that itself"
    storage.close()
    assert found[3][1].master_key == KEY
    return found


def test_a_log_that_is_gone_concerns_the_ledgers_whose_rows_name_it(config: StorageConfig) -> None:
    (directory,) = survey(config).directories
    log = Path(directory.ledger_directory) / entry_log_file_name(0)
    log.unlink()
    (found,) = doubtful(config, directory, (1, 2))
    assert (found.path, found.ledger_ids) == (str(log), (1, 2))
    assert found.reason.startswith("there is no such log: ")
    assert doubtful(config, directory, ()) == []


def test_a_log_with_damage_before_the_rebuild_concerns_all_that_may_have_been_there(tmp_path: Path) -> None:
    """The new index does not name what was damaged."""
    config = config_below(tmp_path)
    store_entries(config, LEDGERS)
    log = max(Path(config.ledger_directories[0]).glob("current/*.log"), key=lambda path: int(path.stem, 16))
    with log.open("r+b") as stream:
        stream.seek(HEADER_BYTES + 200)
        stream.write(bytes(300))
    lose(config, LOCATIONS_DATABASE)
    assert not rebuild(config).is_complete
    (directory,) = survey(config).directories
    (found,) = doubtful(config, directory, (0, 3))
    assert (found.path, found.ledger_ids) == (str(log), (0, 3))


def test_a_log_in_quarantine_concerns_the_ledgers_whose_rows_name_it(config: StorageConfig) -> None:
    (directory,) = survey(config).directories
    write_quarantine(OsFileSystem(), directory.ledger_directory, {0: "entry 1:5 is damaged"})
    (found,) = doubtful(config, directory, (1,))
    assert found == DoubtfulLog(
        str(Path(directory.ledger_directory) / entry_log_file_name(0)), "entry 1:5 is damaged", (1,)
    )
