"""Moving entries between logs: only where the row names the original, only when the copy is durable."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from bkctl.storage.config import EngineConfig, EntryLogConfig
from bkctl.storage.engine.engine import LedgerDirectoryEngine
from bkctl.storage.engine.relocation import EntryMove
from bkctl.storage.engine.replay import checkpoint_now
from bkctl.storage.errors import EntryLogError
from bkctl.storage.filenames import LAST_ID, LOCATIONS_DATABASE, seal_file_name
from bkctl.storage.ids import EntryLocation
from bkctl.storage.ports import File
from tests.storage.engines import KEY, FailingOnceDisk, entry, open_engine

LOG_OF_ONE_ENTRY = EngineConfig(
    memtable_bytes_max=64 * 1024, entry_log=EntryLogConfig(size_bytes_max=4096, is_next_log_prepared=False)
)


def filled(root: Path, disk: FailingOnceDisk | None = None) -> LedgerDirectoryEngine:
    """Ledger 5 with entries 0 to 3, one in each of the logs 0 to 3."""
    engine = open_engine(root, filesystem=disk, config=LOG_OF_ONE_ENTRY)
    engine.rows.set_master_key(5, KEY)
    for entry_id in range(4):
        engine.add(5, entry_id, entry(5, entry_id, bytes(2500)))
    checkpoint_now(engine)
    return engine


def open_files() -> set[Path]:
    """Paths of the files that this process has open; the system adds "(deleted)" to a removed one."""
    descriptors = Path("/proc/self/fd")
    return {each.readlink() for each in descriptors.iterdir() if each.is_symlink()}


def moves_of(engine: LedgerDirectoryEngine, *entry_ids: int) -> list[EntryMove]:
    """Copies of some entries, appended and not synced yet."""
    keys = [(5, entry_id) for entry_id in entry_ids]
    found = [location for location in engine.relocation.current_locations(keys) if location is not None]
    copies = engine.relocation.append_survivors([(5, entry(5, entry_id, bytes(2500))) for entry_id in entry_ids])
    return [EntryMove(5, *move) for move in zip(entry_ids, found, copies, strict=True)]


def test_entries_move_and_their_logs_go(tmp_path: Path) -> None:
    engine = filled(tmp_path / "live")
    assert engine.relocation.log_ids() == [0, 1, 2, 3]
    moves = moves_of(engine, 0, 2)
    engine.relocation.sync_logs()
    assert engine.relocation.relocate(moves) == 2
    for log_id in (0, 2):
        engine.relocation.remove_log(log_id)
        engine.relocation.remove_log(log_id)
    assert engine.relocation.log_ids() == [1, 3, 4, 5]
    assert engine.relocation.finished_log_ids() == [1, 3, 4]
    engine.close()
    reopened = open_engine(tmp_path / "live", config=LOG_OF_ONE_ENTRY)
    assert [reopened.stored.read(5, entry_id) for entry_id in range(4)] == [entry(5, i, bytes(2500)) for i in range(4)]


class WatchedDisk(FailingOnceDisk):
    """Lets another lane look once: when a log was just created, or when the directory is about to be listed."""

    def __init__(self) -> None:
        super().__init__()
        self.after_create: list[Callable[[], None]] = []
        self.before_list: list[Callable[[], None]] = []

    def create(self, path: str) -> File:
        file = super().create(path)
        while self.after_create:
            self.after_create.pop()()
        return file

    def list_directory(self, path: str) -> list[str]:
        while self.before_list:
            self.before_list.pop()()
        return super().list_directory(path)


def test_a_log_is_unfinished_from_the_moment_it_exists(tmp_path: Path) -> None:
    """A collector that looks while a checkpoint begins a log must not treat that log as finished."""
    disk = WatchedDisk()
    engine = filled(tmp_path / "live", disk)
    seen: list[list[int]] = []
    disk.after_create.append(lambda: seen.append(engine.relocation.finished_log_ids()))
    engine.relocation.append_survivors([(5, entry(5, 0, bytes(2500)))])
    assert seen == [[0, 1, 2]], "log 3 is active, log 4 has just been created"

    def begin_a_log() -> None:
        engine.relocation.append_survivors([(5, entry(5, 1, bytes(2500)))])

    disk.before_list.append(begin_a_log)
    assert engine.relocation.finished_log_ids() == [0, 1, 2], "logs 3 and 4 are not synced, log 5 was begun in between"
    engine.relocation.sync_logs()
    assert engine.relocation.finished_log_ids() == [0, 1, 2, 3, 4]
    engine.close()


def test_what_was_stored_or_deleted_meanwhile_stays_so(tmp_path: Path) -> None:
    engine = filled(tmp_path / "live")
    moves = moves_of(engine, 0, 1)
    engine.relocation.sync_logs()
    engine.add(5, 0, entry(5, 0, b"newer"))
    checkpoint_now(engine)
    assert engine.relocation.relocate(moves) == 1
    assert engine.relocation.relocate(moves) == 0
    assert engine.stored.read(5, 0) == entry(5, 0, b"newer")
    engine.delete_ledger(5)
    assert engine.relocation.current_locations([(5, 1)]) == [None]
    assert engine.relocation.relocate([EntryMove(5, 1, moves[1].to_location, EntryLocation(9, 1028))]) == 0
    checkpoint_now(engine)
    assert engine.stored.read(5, 1) is None


def test_a_relocation_is_sealed(tmp_path: Path) -> None:
    """What no row names any more may be deleted: so no later boot may find the rows as they were."""
    engine = filled(tmp_path / "live")
    record = tmp_path / "live" / seal_file_name(LOCATIONS_DATABASE)
    before = record.read_bytes()
    moves = moves_of(engine, 0)
    engine.relocation.sync_logs()
    engine.relocation.relocate(moves)
    assert record.read_bytes() != before


def test_a_read_whose_log_was_removed_looks_once_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = filled(tmp_path / "live")
    engine.close()
    engine = open_engine(tmp_path / "live", config=LOG_OF_ONE_ENTRY)
    moves = moves_of(engine, 3)
    engine.relocation.sync_logs()
    find = engine._files.locations.find

    def find_just_before_the_move(ledger_id: int, entry_id: int) -> EntryLocation | None:
        location = find(ledger_id, entry_id)
        monkeypatch.setattr(engine._files.locations, "find", find)
        engine.relocation.relocate(moves)
        engine.relocation.remove_log(3)
        return location

    monkeypatch.setattr(engine._files.locations, "find", find_just_before_the_move)
    assert engine.stored.read(5, 3) == entry(5, 3, bytes(2500))
    last_before = engine._files.locations.find_last(5)
    assert last_before is not None
    monkeypatch.setattr(engine._files.locations, "find_last", lambda _: (3, moves[0].from_location))
    assert engine.stored.find_last(5) == (3, entry(5, 3, bytes(2500)))


def test_a_log_that_is_lost_is_an_error_and_not_no_entry(tmp_path: Path) -> None:
    engine = filled(tmp_path / "live")
    engine.close()
    (tmp_path / "live" / "1.log").unlink()
    engine = open_engine(tmp_path / "live", config=LOG_OF_ONE_ENTRY)
    with pytest.raises(EntryLogError, match=r"1\.log"):
        engine.stored.read(5, 1)


def test_a_removed_log_is_closed(tmp_path: Path) -> None:
    engine = filled(tmp_path / "live")
    assert engine.stored.read(5, 0) is not None
    log = tmp_path / "live" / "0.log"
    assert log in open_files()
    engine.delete_ledger(5)
    checkpoint_now(engine)
    engine.relocation.remove_log(0)
    assert not {path for path in open_files() if path.parent == log.parent and path.name.startswith(log.name)}


def test_copies_that_a_failed_checkpoint_took_along_are_not_relied_on(tmp_path: Path) -> None:
    """The checkpoint gives up all unsynced bytes of the logs, and the copies were among them."""
    disk = FailingOnceDisk()
    engine = filled(tmp_path / "live", disk)
    moves_of(engine, 0)
    engine.add(5, 9, entry(5, 9))
    disk.arm("sync", ".log")
    with pytest.raises(EntryLogError):
        checkpoint_now(engine)
    with pytest.raises(EntryLogError, match="lost"):
        engine.relocation.sync_logs()
    checkpoint_now(engine)
    moves = moves_of(engine, 0)
    engine.relocation.sync_logs()
    assert engine.relocation.relocate(moves) == 1
    assert [engine.stored.read(5, entry_id) for entry_id in (0, 9)] == [entry(5, 0, bytes(2500)), entry(5, 9)]


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_a_failed_copy_does_not_stop_checkpoints(tmp_path: Path, operation: str) -> None:
    disk = FailingOnceDisk()
    engine = filled(tmp_path / "live", disk)
    disk.arm(operation, ".log")

    def copy() -> None:
        moves_of(engine, 0)
        engine.relocation.sync_logs()

    with pytest.raises(EntryLogError):
        copy()
    engine.add(5, 9, entry(5, 9))
    checkpoint_now(engine)
    assert engine.stored.read(5, 9) == entry(5, 9)


def test_no_row_may_name_a_copy_that_is_not_synced(tmp_path: Path) -> None:
    engine = filled(tmp_path / "live")
    moves = moves_of(engine, 0)
    with pytest.raises(AssertionError, match="sync_logs"):
        engine.relocation.relocate(moves)


def test_a_log_that_is_written_to_is_not_removed(tmp_path: Path) -> None:
    engine = filled(tmp_path / "live")
    with pytest.raises(AssertionError, match="being written"):
        engine.relocation.remove_log(3)


def test_a_claimed_id_is_given_once(tmp_path: Path) -> None:
    engine = filled(tmp_path / "live")
    assert engine.relocation.claim_log_id() == 4
    assert (tmp_path / "live" / LAST_ID).read_bytes() == b"4\n"
    assert engine.relocation.claim_log_id() == 5
    shutil.copytree(tmp_path / "live", tmp_path / "copy")
    assert open_engine(tmp_path / "copy", config=LOG_OF_ONE_ENTRY).relocation.claim_log_id() == 6
    moves_of(engine, 0, 1)
    assert engine.relocation.log_ids() == [0, 1, 2, 3, 6, 7]
