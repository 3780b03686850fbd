"""One ledger directory: caches, reads, deletes, and the checkpoint with every failure in it."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest

from bkctl.storage.adapters.index_store import open_plyvel
from bkctl.storage.config import EngineConfig, EntryLogConfig
from bkctl.storage.engine.engine import LedgerDirectoryEngine
from bkctl.storage.engine.replay import checkpoint_now
from bkctl.storage.errors import (
    EntryLogError,
    EntryTooLargeError,
    IndexDamagedError,
    IndexFailedError,
    IndexMissingError,
    MemtableFullError,
)
from bkctl.storage.filenames import LEDGERS_DATABASE, LOCATIONS_DATABASE, seal_file_name
from bkctl.storage.index.ledger_index import LedgerRow, encode_row
from bkctl.storage.step_sizes import USUAL_STEPS, StepSizes
from tests.storage.adapters.test_index_store import flip
from tests.storage.engines import (
    KEY,
    FailingOnce,
    FailingOnceDisk,
    entry,
    explicit_lac,
    open_engine,
    opening_watched,
)
from tests.storage.traced_disk import TracedDisk


@pytest.fixture
def engine(tmp_path: Path) -> LedgerDirectoryEngine:
    engine = open_engine(tmp_path / "live")
    engine.rows.set_master_key(5, KEY)
    return engine


def after_kill(root: Path, steps: StepSizes = USUAL_STEPS) -> LedgerDirectoryEngine:
    """A second engine over a copy of the files, as if the process had been killed now."""
    copy = root.with_name(f"{root.name}-after-kill")
    shutil.copytree(root, copy)
    return open_engine(copy, steps=steps)


def add(engine: LedgerDirectoryEngine, ledger_id: int, *entry_ids: int, payload: bytes = b"data") -> None:
    for entry_id in entry_ids:
        engine.add(ledger_id, entry_id, entry(ledger_id, entry_id, payload))


def fill(engine: LedgerDirectoryEngine, ledger_id: int) -> int:
    """Add entries until the memtable refuses; returns how many fitted."""
    for entry_id in range(10_000):
        try:
            engine.add(ledger_id, entry_id, entry(ledger_id, entry_id, bytes(500)))
        except MemtableFullError:
            return entry_id
    raise AssertionError("the memtable has no limit")


def is_due(engine: LedgerDirectoryEngine) -> bool:
    return engine.is_checkpoint_due


# Caches


def test_an_entry_is_found_in_every_stage(engine: LedgerDirectoryEngine) -> None:
    add(engine, 5, 1)
    assert engine.find_cached(5, 1) == entry(5, 1)
    job = engine.begin_checkpoint()
    assert engine.find_cached(5, 1) == entry(5, 1)
    assert engine.stored.read(5, 1) is None
    done = engine.write_checkpoint(job)
    assert engine.find_cached(5, 1) == entry(5, 1)
    assert engine.stored.read(5, 1) == entry(5, 1)
    engine.end_checkpoint(job, done)
    assert engine.find_cached(5, 1) == entry(5, 1), "until the next checkpoint"
    assert engine.stored.read(5, 1) == entry(5, 1)
    assert engine.memtable_bytes == 0
    job = engine.begin_checkpoint()
    assert engine.find_cached(5, 1) is None
    engine.end_checkpoint(job, engine.write_checkpoint(job))
    assert engine.find_cached(5, 1) is None
    assert engine.stored.read(5, 1) == entry(5, 1)


def test_a_newer_copy_comes_before_what_a_checkpoint_wrote(engine: LedgerDirectoryEngine) -> None:
    add(engine, 5, 1, 2)
    job = engine.begin_checkpoint()
    add(engine, 5, 2, 3, payload=b"during")
    engine.end_checkpoint(job, engine.write_checkpoint(job))
    add(engine, 5, 1, payload=b"after")
    expected = [entry(5, 1, b"after"), entry(5, 2, b"during"), entry(5, 3, b"during"), None]
    assert engine.find_many_cached(5, range(1, 5)) == expected


@pytest.mark.parametrize("is_checkpoint_running", [False, True])
def test_what_a_checkpoint_wrote_of_a_deleted_ledger_is_gone(
    engine: LedgerDirectoryEngine, is_checkpoint_running: bool
) -> None:
    engine.rows.set_master_key(6, KEY)
    add(engine, 5, 1)
    add(engine, 6, 1)
    job = engine.begin_checkpoint()
    done = engine.write_checkpoint(job)
    if is_checkpoint_running:
        engine.delete_ledger(5)
        engine.end_checkpoint(job, done)
    else:
        engine.end_checkpoint(job, done)
        engine.delete_ledger(5)
    assert engine.find_cached(5, 1) is None
    assert engine.find_cached(6, 1) == entry(6, 1)


def test_what_was_never_added_is_absent(engine: LedgerDirectoryEngine) -> None:
    add(engine, 5, 1)
    checkpoint_now(engine)
    assert engine.stored.read(5, 0) is None
    assert engine.stored.read(6, 1) is None
    assert engine.stored.find_last(6) is None
    assert engine.last_cached(6) is None


def test_the_newest_add_wins_in_every_stage(engine: LedgerDirectoryEngine) -> None:
    add(engine, 5, 1, payload=b"first")
    job = engine.begin_checkpoint()
    add(engine, 5, 1, payload=b"second")
    assert engine.find_cached(5, 1) == entry(5, 1, b"second")
    done = engine.write_checkpoint(job)
    engine.end_checkpoint(job, done)
    assert engine.find_cached(5, 1) == entry(5, 1, b"second")
    checkpoint_now(engine)
    assert engine.stored.read(5, 1) == entry(5, 1, b"second")


def test_a_full_memtable_refuses_and_asks_for_a_checkpoint(engine: LedgerDirectoryEngine) -> None:
    assert not is_due(engine)
    count = fill(engine, 5)
    assert count > 10
    assert engine.find_cached(5, count) is None
    assert (
        engine.note_last_stored(5, None, engine.read_generation) == count - 2
    )  # That of the refused entry does not count.
    assert is_due(engine)
    job = engine.begin_checkpoint()
    assert not is_due(engine)
    add(engine, 5, count)  # The other half takes it while the first is being written.
    done = engine.write_checkpoint(job)
    engine.end_checkpoint(job, done)
    assert not is_due(engine)
    assert engine.find_cached(5, count) == entry(5, count)


def test_both_halves_full(engine: LedgerDirectoryEngine) -> None:
    fill(engine, 5)
    job = engine.begin_checkpoint()
    fill(engine, 5)
    assert not is_due(engine)
    done = engine.write_checkpoint(job)
    engine.end_checkpoint(job, done)
    assert is_due(engine)


def test_an_entry_that_can_never_fit_does_no_harm(engine: LedgerDirectoryEngine) -> None:
    """H17: in Java one of these wedges the directory until a restart."""
    for _ in range(3):
        with pytest.raises(EntryTooLargeError):
            engine.add(5, 1, entry(5, 1, bytes(40 * 1024)))
    assert not is_due(engine)
    add(engine, 5, 1)
    checkpoint_now(engine)
    assert engine.stored.read(5, 1) == entry(5, 1)


def test_an_entry_that_could_not_be_read_back_is_refused(tmp_path: Path) -> None:
    """The reader takes larger size words for damage, so such an entry must never get in."""
    config = EngineConfig(memtable_bytes_max=1 << 20, entry_log=EntryLogConfig(entry_bytes_max=2048))
    engine = open_engine(tmp_path / "live", config=config)
    engine.rows.set_master_key(5, KEY)
    with pytest.raises(EntryTooLargeError):
        engine.add(5, 1, bytes(2049))
    body = entry(5, 1, bytes(2048 - 32))
    engine.add(5, 1, body)
    checkpoint_now(engine)
    assert engine.stored.read(5, 1) == body


def test_an_entry_larger_than_a_log_is_stored(tmp_path: Path) -> None:
    engine = open_engine(tmp_path / "live")
    engine.rows.set_master_key(5, KEY)
    body = entry(5, 1, bytes(20 * 1024))
    engine.add(5, 1, body)
    add(engine, 5, 2)
    checkpoint_now(engine)
    assert [engine.stored.read(5, 1), engine.stored.read(5, 2)] == [body, entry(5, 2)]


# Read cache


def test_a_read_is_remembered(engine: LedgerDirectoryEngine) -> None:
    add(engine, 5, 1)
    checkpoint_now(engine)
    engine.remember_read(5, 1, [entry(5, 1)], engine.read_generation)
    assert engine.find_cached(5, 1) == entry(5, 1)


def test_an_add_drops_the_remembered_copy(engine: LedgerDirectoryEngine) -> None:
    """H18: after the checkpoint the older copy would come up again."""
    add(engine, 5, 1, payload=b"old")
    checkpoint_now(engine)
    engine.remember_read(5, 1, [entry(5, 1, b"old")], engine.read_generation)
    add(engine, 5, 1, payload=b"new")
    checkpoint_now(engine)
    assert engine.find_cached(5, 1) in {None, entry(5, 1, b"new")}


@pytest.mark.parametrize("moment", ["active", "frozen", "flushed"])
def test_a_slow_read_does_not_bring_an_older_copy_back(engine: LedgerDirectoryEngine, moment: str) -> None:
    """H18: the read began before the entry was added again, and ends at some moment after."""
    add(engine, 5, 1, payload=b"old")
    checkpoint_now(engine)
    generation = engine.read_generation
    found = engine.stored.read(5, 1)
    assert found == entry(5, 1, b"old")
    add(engine, 5, 1, payload=b"new")
    if moment == "flushed":
        checkpoint_now(engine)
    job = engine.begin_checkpoint() if moment == "frozen" else None
    engine.remember_read(5, 1, [found], generation)
    if job is not None:
        done = engine.write_checkpoint(job)
        engine.end_checkpoint(job, done)
    checkpoint_now(engine)
    assert engine.find_cached(5, 1) is None
    assert engine.stored.read(5, 1) == entry(5, 1, b"new")


def test_reading_on_is_told_by_what_was_read_lately(engine: LedgerDirectoryEngine) -> None:
    add(engine, 5, 3, 4)
    checkpoint_now(engine)
    assert engine.is_sequential_read(5, 0)
    assert not engine.is_sequential_read(5, 4)
    engine.remember_read(5, 3, [entry(5, 3)], engine.read_generation)
    assert engine.is_sequential_read(5, 4)
    assert not engine.is_sequential_read(5, 5)


def test_reading_ahead_takes_half_the_read_cache_at_most(tmp_path: Path) -> None:
    configs = (
        EngineConfig(read_cache_bytes_max=0),
        EngineConfig(read_cache_bytes_max=1000),
        EngineConfig(read_cache_bytes_max=1000, read_ahead_bytes_max=100),
        EngineConfig(read_ahead_bytes_max=1 << 30),
    )
    engines = [open_engine(tmp_path / str(number), config=config) for number, config in enumerate(configs)]
    assert [engine.read_ahead_bytes_max for engine in engines] == [0, 500, 100, 4 << 20]


# Last entry and LAC


@pytest.mark.parametrize("flushed", [0, 1, 2])
def test_the_last_entry_is_the_highest_of_all_places(engine: LedgerDirectoryEngine, flushed: int) -> None:
    """H8: adds out of order leave a lower id in the cache than in the index."""
    stages = [9, 3, 5]
    for entry_id in stages[:flushed]:
        add(engine, 5, entry_id)
        checkpoint_now(engine)
    for entry_id in stages[flushed:-1]:
        add(engine, 5, entry_id)
    engine.begin_checkpoint()
    add(engine, 5, stages[-1])
    lasts = [last for last in (engine.last_cached(5), engine.stored.find_last(5)) if last is not None]
    assert max(lasts) == (9, entry(5, 9))


def look_at_stored_end(engine: LedgerDirectoryEngine, ledger_id: int) -> int | None:
    return engine.note_last_stored(ledger_id, engine.stored.find_last(ledger_id), engine.read_generation)


def test_last_add_confirmed_only_rises(engine: LedgerDirectoryEngine) -> None:
    look_at_stored_end(engine, 5)
    engine.add(5, 0, entry(5, 0, last_add_confirmed=-1))
    assert engine.last_add_confirmed(5) == -1
    engine.add(5, 7, entry(5, 7, last_add_confirmed=6))
    engine.add(5, 3, entry(5, 3, last_add_confirmed=2))
    assert engine.last_add_confirmed(5) == 6
    assert engine.set_explicit_lac(5, explicit_lac(5, 7))
    engine.set_explicit_lac(5, explicit_lac(5, 4))
    assert engine.last_add_confirmed(5) == 7
    assert look_at_stored_end(engine, 5) == 7


@pytest.mark.parametrize("explicit", [None, 11])
def test_last_add_confirmed_is_the_highest_of_cache_and_disk(tmp_path: Path, explicit: int | None) -> None:
    """H8: after a restart an old entry is added again, by re-replication; its LAC is not the ledger's."""
    engine = open_engine(tmp_path / "live")
    engine.rows.set_master_key(5, KEY)
    add(engine, 5, 8, 9)
    if explicit is not None:
        engine.set_explicit_lac(5, explicit_lac(5, explicit))
    checkpoint_now(engine)
    engine.close()
    engine = open_engine(tmp_path / "live")
    add(engine, 5, 3)
    assert engine.last_add_confirmed(5) is None, "the disk is to be asked"
    assert look_at_stored_end(engine, 5) == (8 if explicit is None else explicit)
    assert engine.last_add_confirmed(5) == (8 if explicit is None else explicit)
    engine.close()


def test_the_end_of_a_deleted_ledger_says_nothing_of_the_next_of_its_id(engine: LedgerDirectoryEngine) -> None:
    add(engine, 5, 9)
    checkpoint_now(engine)
    asked_at, last = engine.read_generation, engine.stored.find_last(5)
    engine.delete_ledger(5)
    engine.rows.set_master_key(5, KEY)
    add(engine, 5, 0)
    assert engine.note_last_stored(5, last, asked_at) == 8, "true of what was asked about"
    assert engine.last_add_confirmed(5) is None
    assert look_at_stored_end(engine, 5) == -1


def test_explicit_lac_of_an_unknown_ledger(engine: LedgerDirectoryEngine) -> None:
    assert not engine.set_explicit_lac(6, explicit_lac(6, 4))
    assert engine.last_add_confirmed(6) is None


def test_list_entries(engine: LedgerDirectoryEngine) -> None:
    add(engine, 5, 4, 2)
    checkpoint_now(engine)
    add(engine, 5, 7)
    engine.begin_checkpoint()
    add(engine, 5, 9)
    assert engine.stored.list_entries(5) == [2, 4]
    assert sorted(engine.list_cached_entries(5)) == [7, 9]


# Deletes


def test_delete_hides_a_ledger_at_once(engine: LedgerDirectoryEngine) -> None:
    add(engine, 5, 1)
    checkpoint_now(engine)
    engine.remember_read(5, 1, [entry(5, 1)], engine.read_generation)
    add(engine, 5, 2)
    engine.begin_checkpoint()
    add(engine, 5, 3)
    engine.delete_ledger(5)
    assert engine.rows.find(5) is None
    assert [engine.find_cached(5, entry_id) for entry_id in (1, 2, 3)] == [None, None, None]
    assert [engine.stored.read(5, entry_id) for entry_id in (1, 2, 3)] == [None, None, None]
    assert engine.last_cached(5) is None
    assert engine.stored.find_last(5) is None
    assert engine.stored.list_entries(5) == []
    assert engine.list_cached_entries(5) == []
    assert engine.last_add_confirmed(5) is None


@pytest.mark.parametrize("is_checkpoint_running", [False, True])
def test_adds_behind_a_delete_stay(tmp_path: Path, is_checkpoint_running: bool) -> None:
    """H6: in Java the delayed range delete takes the new entries along."""
    engine = open_engine(tmp_path / "live")
    engine.rows.set_master_key(5, KEY)
    add(engine, 5, 1, 2, payload=b"old")
    checkpoint_now(engine)
    add(engine, 5, 3, payload=b"old")
    job = engine.begin_checkpoint() if is_checkpoint_running else None
    engine.delete_ledger(5)
    engine.rows.set_master_key(5, b"another owner")
    add(engine, 5, 2, 4, payload=b"new")
    if job is not None:
        done = engine.write_checkpoint(job)
        engine.end_checkpoint(job, done)
    assert engine.find_cached(5, 2) == entry(5, 2, b"new")
    assert engine.stored.read(5, 1) is None  # Still hidden: the rows go with the next checkpoint.
    checkpoint_now(engine)
    for reader in (engine, after_kill(tmp_path / "live")):
        assert reader.rows.find(5) == LedgerRow(master_key=b"another owner")
        assert reader.stored.read(5, 2) == entry(5, 2, b"new")
        assert reader.stored.list_entries(5) == [2, 4]


def test_a_deleted_ledger_stays_deleted(tmp_path: Path) -> None:
    engine = open_engine(tmp_path / "live")
    for ledger_id in (5, 6):
        engine.rows.set_master_key(ledger_id, KEY)
        add(engine, ledger_id, *range(20))
    checkpoint_now(engine)
    engine.delete_ledger(5)
    checkpoint_now(engine)
    for reader in (engine, after_kill(tmp_path / "live")):
        assert reader.rows.find(5) is None
        assert reader.stored.list_entries(5) == []
        assert len(reader.stored.list_entries(6)) == 20


@pytest.mark.parametrize("is_used_again", [False, True])
def test_a_crash_in_mid_deletion_leaves_nothing_of_the_former_life(tmp_path: Path, is_used_again: bool) -> None:
    """H6: the row is gone, locations are still there, and then the id is used again."""
    failing = FailingOnce()
    engine = open_engine(tmp_path / "live", open_index=opening_watched(failing))
    engine.rows.set_master_key(5, KEY)
    add(engine, 5, *range(5))
    checkpoint_now(engine)
    engine.delete_ledger(5)
    if is_used_again:
        engine.rows.set_master_key(5, b"other")
        add(engine, 5, 1, payload=b"new")
    failing.arm(f"before {LOCATIONS_DATABASE}")
    with pytest.raises(IndexFailedError):
        checkpoint_now(engine)
    reopened = after_kill(tmp_path / "live")
    assert reopened.rows.find(5) is None
    assert reopened._files.locations.find(5, 0) is not None, "else this tests nothing"
    assert reopened.stored.read(5, 0) is None
    if is_used_again:  # by the journal
        reopened.rows.set_master_key(5, b"other")
        add(reopened, 5, 1, payload=b"new")
    for _ in range(2):
        checkpoint_now(reopened)
        assert reopened.stored.list_entries(5) == ([1] if is_used_again else [])
        assert (reopened.rows.find(5) is not None) == is_used_again
        assert reopened._files.locations.find(5, 0) is None
    reopened.close()
    again = open_engine(tmp_path / "live-after-kill")
    assert (again.rows.find(5) is not None) == is_used_again
    assert again.ledger_ids() == ([5] if is_used_again else [])


def test_a_delete_during_a_checkpoint_that_deletes(engine: LedgerDirectoryEngine) -> None:
    """The checkpoint that removes the first ledger of the id writes the second one, which is deleted meanwhile."""
    add(engine, 5, 1)
    checkpoint_now(engine)
    engine.delete_ledger(5)
    engine.rows.set_master_key(5, KEY)
    add(engine, 5, 2)
    job = engine.begin_checkpoint()
    engine.delete_ledger(5)
    done = engine.write_checkpoint(job)
    engine.end_checkpoint(job, done)
    assert [engine.stored.read(5, entry_id) for entry_id in (1, 2)] == [None, None]
    assert engine.find_cached(5, 2) is None
    checkpoint_now(engine)
    engine.rows.set_master_key(5, KEY)
    assert engine.stored.list_entries(5) == []


@pytest.mark.parametrize("is_written", [False, True])
@pytest.mark.parametrize("is_used_again", [False, True])
@pytest.mark.parametrize("is_deleted_meanwhile", [False, True])
def test_the_retry_of_a_checkpoint_needs_no_room_for_ledgers_deleted_since(
    tmp_path: Path, is_deleted_meanwhile: bool, is_used_again: bool, is_written: bool
) -> None:
    """Else a disk that is too full for them is full for good: no checkpoint, no deletion, no room."""
    engine = open_engine(tmp_path / "live")
    for ledger_id in (4, 5, 6):
        engine.rows.set_master_key(ledger_id, KEY)
        add(engine, ledger_id, 0)
    checkpoint_now(engine)
    engine.delete_ledger(4)
    engine.rows.set_master_key(4, KEY)
    for ledger_id in (4, 5, 6):
        add(engine, ledger_id, 1, 2, payload=bytes(1000))
    needed_bytes = engine.checkpoint_bytes
    job = engine.begin_checkpoint()
    generation = engine.write_cache_generation
    if is_deleted_meanwhile:
        engine.delete_ledger(5)
    if is_written:  # and then another directory fails
        engine.write_checkpoint(job)
    engine.abort_checkpoint(job)
    if not is_deleted_meanwhile:
        engine.delete_ledger(5)
    engine.delete_ledger(4)
    assert engine.checkpoint_bytes < needed_bytes - 4000
    # The collector takes a sum that has grown and shrunk for one that did not change, unless it is told.
    assert (engine.write_cache_generation != generation) == is_deleted_meanwhile
    assert [engine.find_cached(each, 1) for each in (4, 5, 6)] == [None, None, entry(6, 1, bytes(1000))]
    if is_used_again:
        engine.rows.set_master_key(5, b"another owner")
        add(engine, 5, 2, payload=b"new")
    checkpoint_now(engine)
    killed = after_kill(tmp_path / "live")
    require_deleted(killed, 4, 5)
    assert killed.stored.list_entries(6) == [0, 1, 2]
    killed.close()
    shutil.rmtree(tmp_path / "live-after-kill")
    assert engine.find_cached(5, 2) == (entry(5, 2, b"new") if is_used_again else None)
    checkpoint_now(engine)
    assert not is_due(engine)
    for reader in (engine, after_kill(tmp_path / "live")):
        assert sorted(reader.ledger_ids()) == ([5, 6] if is_used_again else [6])
        assert reader.stored.list_entries(5) == ([2] if is_used_again else [])
        assert reader.stored.list_entries(6) == [0, 1, 2]


def test_a_large_deletion_is_spread_over_checkpoints(tmp_path: Path) -> None:
    """No checkpoint deletes more rows than its share; a kill behind any of them leaves the rest to later ones."""
    steps = StepSizes(deleted_row_count_max=10, delete_batch_row_count_max=4)
    engine = open_engine(tmp_path / "live", steps=steps)
    row_counts = {4: 3, 5: 25, 6: 1, 7: 7}
    for ledger_id, count in row_counts.items():
        engine.rows.set_master_key(ledger_id, KEY)
        add(engine, ledger_id, *range(count))
    checkpoint_now(engine)
    for ledger_id in (7, 5, 6):
        engine.delete_ledger(ledger_id)
    add(engine, 4, 3)
    assert (engine.is_deletion_unflushed, engine.is_deletion_pending(7)) == (True, True)
    for row_count_left in (23, 13, 3):
        checkpoint_now(engine)
        assert is_due(engine)
        assert (engine.is_deletion_unflushed, engine.is_deletion_pending(7)) == (False, True)
        killed = after_kill(tmp_path / "live", steps)
        for reader in (engine, killed):
            assert sum(len(list(reader._files.locations.list_entries(each))) for each in (5, 6, 7)) == row_count_left
            assert reader.ledger_ids() == [4]
            assert reader.stored.list_entries(4) == [0, 1, 2, 3]
            assert [reader.stored.read(each, 0) for each in (5, 6, 7)] == [None, None, None]
        for _ in range(row_count_left // 10 + 1):
            assert is_due(killed)
            checkpoint_now(killed)
        require_deleted(killed, 5, 6, 7)
        killed.close()
        shutil.rmtree(tmp_path / "live-after-kill")
    checkpoint_now(engine)
    engine.note_marks_published(engine.delete_count)
    require_deleted(engine, 5, 6, 7)
    assert not engine.is_deletion_pending(7)
    assert not is_due(engine)


def require_deleted(engine: LedgerDirectoryEngine, *ledger_ids: int) -> None:
    """Nothing of these ledgers is left in either index."""
    assert [list(engine._files.locations.list_entries(each)) for each in ledger_ids] == [[]] * len(ledger_ids)
    rows = engine.rows._rows
    assert [rows.get(struct.pack(">q", each)) for each in ledger_ids] == [None] * len(ledger_ids)


@pytest.mark.parametrize("is_deletion_begun", [False, True])
def test_a_deletion_ends_before_the_id_is_used_again(tmp_path: Path, is_deletion_begun: bool) -> None:
    """However many rows that is: what is written behind them must not fall to a later part of the deletion (H6)."""
    steps = StepSizes(deleted_row_count_max=10)
    engine = open_engine(tmp_path / "live", steps=steps)
    engine.rows.set_master_key(5, KEY)
    add(engine, 5, *range(25))
    checkpoint_now(engine)
    engine.delete_ledger(5)
    if is_deletion_begun:
        checkpoint_now(engine)
        assert len(list(engine._files.locations.list_entries(5))) == 15
    engine.rows.set_master_key(5, b"another owner")
    add(engine, 5, 24, payload=b"new")
    for _ in range(2):
        checkpoint_now(engine)
        assert not is_due(engine)
        killed = after_kill(tmp_path / "live", steps)
        for reader in (engine, killed):
            assert reader.rows.find(5) == LedgerRow(master_key=b"another owner")
            assert reader.stored.list_entries(5) == [24]
            assert reader.stored.read(5, 24) == entry(5, 24, b"new")
        killed.close()
        shutil.rmtree(tmp_path / "live-after-kill")


# Checkpoint


def test_order_of_a_checkpoint(tmp_path: Path) -> None:
    """Storage section 5.8: log bytes durable, then locations, then rows, then the seals."""
    disk = TracedDisk()
    batches = opening_watched(lambda moment: disk.note(*moment.split()))
    engine = open_engine(tmp_path / "live", filesystem=disk, open_index=batches)
    engine.rows.set_master_key(5, KEY)
    add(engine, 5, 1)
    disk.take_calls()
    checkpoint_now(engine)
    calls = disk.take_calls()
    order = [
        ("write", "0.log"),
        ("sync", "0.log"),
        ("before", LOCATIONS_DATABASE),
        ("before", LEDGERS_DATABASE),
        ("after", LEDGERS_DATABASE),
        ("replace", seal_file_name(LOCATIONS_DATABASE)),
        ("replace", seal_file_name(LEDGERS_DATABASE)),
    ]
    assert [call for call in calls if call in order and call != ("write", "0.log")] == order[1:]
    assert max(index for index, call in enumerate(calls) if call == order[0]) < calls.index(order[1])


def test_rows_are_written_without_any_entry(tmp_path: Path) -> None:
    """H1: Java skips the rows of idle ledgers and moves the mark."""
    engine = open_engine(tmp_path / "live")
    engine.rows.set_fenced(5)
    checkpoint_now(engine)
    assert after_kill(tmp_path / "live").rows.find(5) == LedgerRow(is_fenced=True)


def test_an_idle_checkpoint_writes_nothing(tmp_path: Path) -> None:
    disk = TracedDisk()
    engine = open_engine(tmp_path / "live", filesystem=disk)
    disk.take_calls()
    checkpoint_now(engine)
    assert disk.take_calls() == []


def test_many_entries_are_written_in_slices(tmp_path: Path) -> None:
    batches: list[str] = []
    steps = StepSizes(slice_entry_count_max=7)
    engine = open_engine(tmp_path / "live", open_index=opening_watched(batches.append), steps=steps)
    for ledger_id in (6, 5):
        engine.rows.set_master_key(ledger_id, KEY)
        add(engine, ledger_id, *reversed(range(40)))
    batches.clear()
    checkpoint_now(engine)
    assert batches.count(f"before {LOCATIONS_DATABASE}") == 12
    for reader in (engine, after_kill(tmp_path / "live")):
        for ledger_id in (5, 6):
            assert reader.stored.list_entries(ledger_id) == list(range(40))
            assert [reader.stored.read(ledger_id, entry_id) for entry_id in range(40)] == [
                entry(ledger_id, entry_id) for entry_id in range(40)
            ]


@pytest.mark.parametrize(
    ("operation", "suffix"),
    [
        ("create", ".log"),
        ("write", ".log"),
        ("sync", ".log"),
        ("replace", seal_file_name(LOCATIONS_DATABASE)),
        ("replace", seal_file_name(LEDGERS_DATABASE)),
    ],
)
def test_a_failed_checkpoint_is_written_again_whole(tmp_path: Path, operation: str, suffix: str) -> None:
    """H2: the frozen half stays frozen, readable, and is what the next checkpoint writes."""
    disk = FailingOnceDisk()
    engine = open_engine(tmp_path / "live", filesystem=disk)
    engine.rows.set_master_key(5, KEY)
    add(engine, 5, 1)
    disk.arm(operation, suffix)
    with pytest.raises((EntryLogError, OSError)):
        checkpoint_now(engine)
    assert engine.find_cached(5, 1) == entry(5, 1)
    add(engine, 5, 2)
    engine.rows.set_fenced(5)
    job = engine.begin_checkpoint()
    done = engine.write_checkpoint(job)
    assert done.entry_count == 1
    engine.end_checkpoint(job, done)
    assert engine.stored.read(5, 1) == entry(5, 1)
    assert engine.find_cached(5, 2) == entry(5, 2)
    halfway = after_kill(tmp_path / "live")
    assert halfway.rows.find(5) == LedgerRow(master_key=KEY)
    halfway.close()
    shutil.rmtree(tmp_path / "live-after-kill")
    checkpoint_now(engine)
    reopened = after_kill(tmp_path / "live")
    assert reopened.rows.find(5) == LedgerRow(master_key=KEY, is_fenced=True)
    assert [reopened.stored.read(5, entry_id) for entry_id in (1, 2)] == [entry(5, 1), entry(5, 2)]


def test_a_failed_sync_is_not_trusted_when_it_succeeds_later(tmp_path: Path) -> None:
    """The kernel may have dropped the pages: what is indexed was appended again, to another log."""
    disk = FailingOnceDisk()
    engine = open_engine(tmp_path / "live", filesystem=disk)
    engine.rows.set_master_key(5, KEY)
    add(engine, 5, 1)
    disk.arm("sync", "0.log")
    with pytest.raises(EntryLogError):
        checkpoint_now(engine)
    checkpoint_now(engine)
    (tmp_path / "live" / "0.log").write_bytes(b"")
    assert engine.stored.read(5, 1) == entry(5, 1)


def test_a_failed_index_write_is_final(tmp_path: Path) -> None:
    failing = FailingOnce()
    engine = open_engine(tmp_path / "live", open_index=opening_watched(failing))
    engine.rows.set_master_key(5, KEY)
    add(engine, 5, 1)
    failing.arm(f"before {LOCATIONS_DATABASE}")
    for _ in range(2):
        with pytest.raises(IndexFailedError):
            checkpoint_now(engine)
    assert engine.find_cached(5, 1) == entry(5, 1)


# Rows that somebody else decides about


def test_limbo_comes_and_goes_with_the_checkpoints(tmp_path: Path) -> None:
    """H1 again: the flag of a ledger without entries reaches the disk."""
    engine = open_engine(tmp_path / "live")
    engine.rows.set_master_key(5, KEY)
    assert not engine.set_limbo(6)
    assert not engine.clear_limbo(6)
    assert engine.ledger_ids() == [5]
    assert engine.set_limbo(5)
    assert not engine.set_limbo(5)
    checkpoint_now(engine)
    assert after_kill(tmp_path / "live").rows.find(5) == LedgerRow(master_key=KEY, is_limbo=True)
    shutil.rmtree(tmp_path / "live-after-kill")
    assert engine.clear_limbo(5)
    assert not engine.clear_limbo(5)
    checkpoint_now(engine)
    assert after_kill(tmp_path / "live").rows.find(5) == LedgerRow(master_key=KEY)


def test_a_row_without_a_key_waits_for_its_owner(tmp_path: Path) -> None:
    engine = open_engine(tmp_path / "live")
    assert engine.rows.create_row(5, is_fenced=True, is_limbo=True)
    assert not engine.rows.create_row(5, is_fenced=False, is_limbo=False)  # takes no flag away
    assert engine.rows.create_row(6, is_fenced=False, is_limbo=False)
    assert engine.rows.create_row(6, is_fenced=True, is_limbo=False)
    checkpoint_now(engine)
    reopened = after_kill(tmp_path / "live")
    assert sorted(reopened.ledger_ids()) == [5, 6]
    assert reopened.rows.set_master_key(5, KEY)
    assert reopened.rows.find(5) == LedgerRow(master_key=KEY, is_fenced=True, is_limbo=True)
    assert reopened.rows.find(6) == LedgerRow(is_fenced=True)


def test_storage_flags_are_durable_at_once(tmp_path: Path) -> None:
    """Storage section 5.2: under the key of Java's, which is no ledger's."""
    engine = open_engine(tmp_path / "live")
    assert engine.rows.read_flags() == 0
    engine.rows.write_flags(1)
    reopened = after_kill(tmp_path / "live")
    assert reopened.rows.read_flags() == 1
    assert reopened.ledger_ids() == []
    reopened.close()
    engine.close()
    store = open_plyvel(str(tmp_path / "live" / LEDGERS_DATABASE), create=False, strict=True)
    assert store.get(bytes.fromhex("ffffffffffff1103")) == (1).to_bytes(8, "big")
    store.write([(bytes.fromhex("ffffffffffff1103"), b"\x01")])
    store.close()
    with pytest.raises(IndexDamagedError, match="flags"):
        open_engine(tmp_path / "live").rows.read_flags()


# Opening


def stored_engine(root: Path) -> None:
    engine = open_engine(root)
    engine.rows.set_master_key(5, KEY)
    add(engine, 5, 1)
    checkpoint_now(engine)
    engine.close()


def test_reopen(tmp_path: Path) -> None:
    stored_engine(tmp_path / "live")
    engine = open_engine(tmp_path / "live")
    assert engine.rows.find(5) == LedgerRow(master_key=KEY)
    assert engine.stored.read(5, 1) == entry(5, 1)


@pytest.mark.parametrize("database", [LEDGERS_DATABASE, LOCATIONS_DATABASE])
@pytest.mark.parametrize("is_seal_lost", [False, True])
def test_a_lost_index_stops_the_boot(tmp_path: Path, database: str, is_seal_lost: bool) -> None:
    """H15: an index made new beside old logs denies every entry in them."""
    stored_engine(tmp_path / "live")
    shutil.rmtree(tmp_path / "live" / database)
    if is_seal_lost:
        (tmp_path / "live" / seal_file_name(database)).unlink()
    for _ in range(2):
        with pytest.raises(IndexMissingError, match="bkctl storage index rebuild"):
            open_engine(tmp_path / "live")
        assert not (tmp_path / "live" / database).exists()


def test_a_mark_is_a_witness_too(tmp_path: Path) -> None:
    (tmp_path / "live").mkdir()
    (tmp_path / "live" / "lastMark.1").write_bytes(bytes(16))
    with pytest.raises(IndexMissingError, match=r"lastMark\.1"):
        open_engine(tmp_path / "live")


@pytest.mark.parametrize("size_bytes", [0, 1024])
def test_an_empty_log_is_no_witness(tmp_path: Path, size_bytes: int) -> None:
    (tmp_path / "live").mkdir()
    (tmp_path / "live" / "0.log").write_bytes(bytes(size_bytes))
    open_engine(tmp_path / "live").close()


def test_a_damaged_index_stops_the_boot_and_closes_the_other(tmp_path: Path) -> None:
    stored_engine(tmp_path / "live")
    record = tmp_path / "live" / seal_file_name(LOCATIONS_DATABASE)
    intact = record.read_bytes()
    record.write_bytes(intact.replace(b"number", b"numbex"))
    with pytest.raises(IndexDamagedError):
        open_engine(tmp_path / "live")
    record.write_bytes(intact)
    open_engine(tmp_path / "live").close()


def test_a_damaged_row_stops_the_boot_and_closes_both(tmp_path: Path) -> None:
    stored_engine(tmp_path / "live")
    directory = str(tmp_path / "live" / LEDGERS_DATABASE)
    store = open_plyvel(directory, create=False, strict=True)
    store.write([(bytes(7), b"")])
    store.close()
    with pytest.raises(IndexDamagedError):
        open_engine(tmp_path / "live")
    store = open_plyvel(directory, create=False, strict=True)
    store.write([], [bytes(7)])
    store.close()
    open_engine(tmp_path / "live").close()


def test_an_unreadable_entry_is_an_error(tmp_path: Path) -> None:
    """Storage section 12: never "no such entry"."""
    stored_engine(tmp_path / "live")
    flip(tmp_path / "live" / "0.log", 1028 + 3)
    engine = open_engine(tmp_path / "live")
    with pytest.raises(EntryLogError):
        engine.stored.read(5, 1)
    with pytest.raises(EntryLogError):
        engine.stored.find_last(5)
    assert engine.stored.read(5, 0) is None


def test_a_limbo_row_is_kept(tmp_path: Path) -> None:
    stored_engine(tmp_path / "live")
    store = open_plyvel(str(tmp_path / "live" / LEDGERS_DATABASE), create=False, strict=True)
    store.write([((5).to_bytes(8, "big"), encode_row(LedgerRow(master_key=KEY, is_limbo=True)))])
    store.close()
    engine = open_engine(tmp_path / "live")
    engine.rows.set_fenced(5)
    assert engine.rows.find(5) == LedgerRow(master_key=KEY, is_fenced=True, is_limbo=True)
