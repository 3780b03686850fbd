"""Reading ahead: only the very copies that the index names, within limits, and never an error for what nobody asked."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bkctl.storage.adapters.index_store import open_plyvel
from bkctl.storage.config import EngineConfig, EntryLogConfig
from bkctl.storage.engine.engine import LedgerDirectoryEngine
from bkctl.storage.engine.replay import checkpoint_now
from bkctl.storage.errors import EntryLogError, IndexDamagedError
from bkctl.storage.filenames import LOCATIONS_DATABASE
from bkctl.storage.ids import LocationRun
from bkctl.storage.index.location_index import encode_keys
from tests.storage.engines import KEY, entry, open_engine

LARGE = EngineConfig(entry_log=EntryLogConfig(is_next_log_prepared=False))
FOUR_MEBIBYTES = 4 << 20


@pytest.fixture
def engine(tmp_path: Path) -> LedgerDirectoryEngine:
    engine = open_engine(tmp_path / "live", config=LARGE)
    for ledger_id in (5, 6):
        engine.rows.set_master_key(ledger_id, KEY)
    return engine


def store(engine: LedgerDirectoryEngine, ledger_id: int, *entry_ids: int, payload: bytes = b"data") -> None:
    for entry_id in entry_ids:
        engine.add(ledger_id, entry_id, entry(ledger_id, entry_id, payload))
    checkpoint_now(engine)


def bodies(ledger_id: int, *entry_ids: int, payload: bytes = b"data") -> list[bytes]:
    return [entry(ledger_id, entry_id, payload) for entry_id in entry_ids]


def test_a_run_is_read_at_once(engine: LedgerDirectoryEngine) -> None:
    store(engine, 5, *range(10))
    assert engine.stored.read_run(5, 2, 5, FOUR_MEBIBYTES) == bodies(5, 2, 3, 4, 5, 6)
    assert engine.stored.read_run(5, 8, 5, FOUR_MEBIBYTES) == bodies(5, 8, 9)
    assert engine.stored.read_run(5, 8, 1, FOUR_MEBIBYTES) == bodies(5, 8)
    assert engine.stored.read_run(5, 10, 5, FOUR_MEBIBYTES) == []
    assert engine.stored.read_run(7, 0, 5, FOUR_MEBIBYTES) == []


def test_a_run_ends_at_a_hole_at_the_next_log_and_at_its_bytes(engine: LedgerDirectoryEngine) -> None:
    store(engine, 5, 0, 1, 3)
    assert engine.stored.read_run(5, 0, 9, FOUR_MEBIBYTES) == bodies(5, 0, 1)
    store(engine, 6, *range(20), payload=bytes(1000))
    assert engine.stored.read_run(6, 0, 99, 5000) == bodies(6, 0, 1, 2, 3, payload=bytes(1000))
    engine._files.log_writer.roll()
    store(engine, 6, 20, 21)
    assert engine.stored.read_run(6, 19, 99, FOUR_MEBIBYTES) == bodies(6, 19, payload=bytes(1000))


@pytest.mark.parametrize("size", [0, 5000, 1_000_000])
def test_an_entry_larger_than_the_limit_is_read_whole(engine: LedgerDirectoryEngine, size: int) -> None:
    store(engine, 5, 0, 1, payload=bytes(size))
    assert engine.stored.read_run(5, 0, 2, 1)[0] == entry(5, 0, bytes(size))


def test_the_older_copy_that_follows_in_the_log_is_not_taken(engine: LedgerDirectoryEngine) -> None:
    """H18: Java reads on in the log and serves entry 1 as it was before it was added again."""
    store(engine, 5, 0, 1, 2)
    store(engine, 5, 1, payload=b"newer")
    assert engine.stored.read_run(5, 0, 9, FOUR_MEBIBYTES)[1] == entry(5, 1, b"newer")
    store(engine, 6, *range(3))
    store(engine, 6, 0, payload=b"newer")
    # The newest copy of 0 stands behind 1 and 2: a run does not go back in the log.
    assert engine.stored.read_run(6, 0, 9, FOUR_MEBIBYTES) == [entry(6, 0, b"newer")]


def test_a_damaged_entry_behind_the_one_asked_for_ends_the_run(tmp_path: Path, engine: LedgerDirectoryEngine) -> None:
    store(engine, 5, *range(4))
    location = engine.relocation.current_locations([(5, 2)])[0]
    assert location is not None
    with (tmp_path / "live" / "0.log").open("r+b") as log:
        log.seek(location.offset - 4)
        log.write((2**31 - 16).to_bytes(4, "big"))
    assert engine.stored.read_run(5, 0, 9, FOUR_MEBIBYTES) == bodies(5, 0, 1)
    with pytest.raises(EntryLogError):
        engine.stored.read_run(5, 2, 9, FOUR_MEBIBYTES)
    os.truncate(tmp_path / "live" / "0.log", location.offset - 10)
    assert engine.stored.read_run(5, 0, 9, FOUR_MEBIBYTES) == bodies(5, 0)


@pytest.mark.parametrize("row", [b"short", bytes(8)])
def test_a_damaged_row_behind_the_one_asked_for_ends_the_run(
    tmp_path: Path, engine: LedgerDirectoryEngine, row: bytes
) -> None:
    store(engine, 5, *range(4))
    engine.close()
    database = open_plyvel(str(tmp_path / "live" / LOCATIONS_DATABASE), create=False, strict=True)
    database.write([(encode_keys([5], [2]), row)])
    database.close()
    engine = open_engine(tmp_path / "live", config=LARGE)
    assert engine.stored.read_run(5, 0, 9, FOUR_MEBIBYTES) == bodies(5, 0, 1)
    with pytest.raises(IndexDamagedError):
        engine.stored.read_run(5, 2, 9, FOUR_MEBIBYTES)


def test_a_run_of_a_log_that_was_removed_looks_once_more(engine: LedgerDirectoryEngine, tmp_path: Path) -> None:
    store(engine, 5, 0, 1)
    [gone] = engine.relocation.current_locations([(5, 0)])
    assert gone is not None
    engine._files.log_writer.roll()
    store(engine, 5, 0)
    engine._files.locations.find_run = lambda *_: LocationRun(gone.log_id, [gone.offset])  # type: ignore[method-assign]
    (tmp_path / "live" / "0.log").unlink()
    engine._files.log_reader.forget(0)
    assert engine.stored.read_run(5, 0, 9, FOUR_MEBIBYTES) == bodies(5, 0)


def test_a_deleted_ledger_has_no_runs(engine: LedgerDirectoryEngine) -> None:
    store(engine, 5, 0, 1)
    engine.delete_ledger(5)
    assert engine.stored.read_run(5, 0, 9, FOUR_MEBIBYTES) == []
