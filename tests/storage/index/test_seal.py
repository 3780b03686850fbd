"""Promise 2: a database that lost a batch is noticed at the next open, and one that lost nothing opens."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bkctl.storage.adapters.index_store import open_plyvel
from bkctl.storage.advice import REBUILD_ADVICE
from bkctl.storage.errors import IndexDamagedError, IndexFailedError, IndexMissingError
from bkctl.storage.index.seal import (
    SealedIndex,
    SealRecord,
    create_sealed_index,
    decode_seal_record,
    encode_seal_record,
    is_sealed_index_present,
    open_sealed_index,
)
from bkctl.storage.ports import OpenIndexStore
from tests.storage.adapters.test_index_store import flip, log_of
from tests.storage.engines import FailingOnce, PhotographedDisk, opening_watched
from tests.storage.traced_disk import TracedDisk


class Database:
    """A sealed database below a directory of its own, and its files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.directory = root / "db"
        self.record_path = root / "db.seal"
        self.disk = TracedDisk()

    def create(self, open_index: OpenIndexStore = open_plyvel) -> SealedIndex:
        self.root.mkdir(exist_ok=True)
        return create_sealed_index(self.disk, open_index, str(self.directory))

    def open(self) -> SealedIndex:
        return open_sealed_index(self.disk, open_plyvel, str(self.directory))

    def is_present(self) -> bool:
        return is_sealed_index_present(self.disk, str(self.directory))

    def record(self) -> SealRecord | None:
        return decode_seal_record(self.record_path.read_bytes())

    def seal_rows(self) -> list[int]:
        store = open_plyvel(str(self.directory), create=False, strict=True)
        rows = [int.from_bytes(key[-8:], "big") for key, _ in store.scan(b"\xffseal", b"\xffseam")]
        store.close()
        return rows


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(tmp_path / "index")


def filled(database: Database, *, recorded: int, unrecorded: int = 0) -> None:
    """A database as a killed process leaves it: batches on disk, some of them recorded."""
    index = database.create()
    for number in range(recorded):
        index.write([(b"row %d" % number, b"v" * 200)])
    index.record()
    for number in range(unrecorded):
        index.write([(b"row %d" % (recorded + number), b"v" * 200)])
    shutil.copytree(database.root, database.root.with_name("copy"))
    index.close()
    shutil.rmtree(database.root)
    database.root.with_name("copy").rename(database.root)


def rows(index: SealedIndex) -> int:
    return len(list(index.scan(b"row", b"rox")))


def test_every_batch_is_numbered(database: Database) -> None:
    filled(database, recorded=3)
    assert database.seal_rows() == [1, 2, 3, 4]
    assert database.record() == SealRecord(1, 4)


def test_an_unbroken_run_opens_and_is_cut_to_its_end(database: Database) -> None:
    filled(database, recorded=3, unrecorded=2)
    index = database.open()
    assert rows(index) == 5
    index.write([(b"row 5", b"")])
    index.record()
    index.close()
    record = database.record()
    assert record is not None
    assert record.floor == 6
    assert min(database.seal_rows()) == 6
    database.open().close()


def test_a_lost_batch_that_was_recorded_is_refused(database: Database) -> None:
    filled(database, recorded=3)
    flip(log_of(database.directory), log_of(database.directory).stat().st_size - 10)
    with pytest.raises(IndexDamagedError, match=f"batch 4 .*{REBUILD_ADVICE}"):
        database.open()
    # Refusing must not wear off: the second boot has no better reason to believe the index.
    with pytest.raises(IndexDamagedError, match="batch 4"):
        database.open()


def test_a_lost_batch_in_the_middle_is_refused(database: Database) -> None:
    filled(database, recorded=1)
    store = open_plyvel(str(database.directory), create=False, strict=True)
    store.write([], [next(store.scan(b"\xffseal", b"\xffseam"))[0]])
    store.close()
    with pytest.raises(IndexDamagedError, match="batch 1 "):
        database.open()


def test_a_lost_log_file_is_refused(database: Database) -> None:
    """LevelDB itself opens without its log and says nothing."""
    filled(database, recorded=3)
    log_of(database.directory).unlink()
    with pytest.raises(IndexDamagedError):
        database.open()


def test_a_lost_batch_is_refused_after_the_floor_moved(database: Database) -> None:
    filled(database, recorded=3)
    index = database.open()
    index.write([(b"row 9", b"v" * 200)])
    index.record()
    shutil.copytree(database.root, database.root.with_name("copy"))
    index.close()
    copy = Database(database.root.with_name("copy"))
    log_of(copy.directory).unlink()
    with pytest.raises(IndexDamagedError):
        copy.open()


def test_a_batch_that_was_not_recorded_may_be_lost(database: Database) -> None:
    """A crash leaves such an end; the strict open refuses it, the one without strictness drops it."""
    filled(database, recorded=3, unrecorded=1)
    flip(log_of(database.directory), log_of(database.directory).stat().st_size - 10)
    index = database.open()
    assert rows(index) == 3
    index.write([(b"row 3", b"")])
    index.record()
    index.close()
    database.open().close()


def test_batches_behind_a_gap_that_was_not_recorded_do_not_stop_later_opens(database: Database) -> None:
    filled(database, recorded=1, unrecorded=3)
    store = open_plyvel(str(database.directory), create=False, strict=True)
    store.write([], [key for key, _ in store.scan(b"\xffseal", b"\xffseam") if key.endswith(b"\x04")])
    store.close()
    index = database.open()
    index.write([(b"row 9", b"")])
    index.record()
    index.close()
    database.open().close()


def test_missing_database_is_refused(database: Database) -> None:
    filled(database, recorded=1)
    shutil.rmtree(database.directory)
    assert database.is_present()
    with pytest.raises(IndexMissingError, match=REBUILD_ADVICE):
        database.open()


def test_missing_record_is_refused(database: Database) -> None:
    filled(database, recorded=1)
    database.record_path.unlink()
    with pytest.raises(IndexDamagedError, match=REBUILD_ADVICE):
        database.is_present()


@pytest.mark.parametrize("offset", range(len(encode_seal_record(SealRecord(1, 4)))))
def test_a_damaged_record_is_refused(database: Database, offset: int) -> None:
    database.root.mkdir()
    database.record_path.write_bytes(encode_seal_record(SealRecord(1, 4)))
    flip(database.record_path, offset)
    with pytest.raises(IndexDamagedError):
        database.is_present()


def test_nothing_is_absent(database: Database) -> None:
    assert not database.is_present()


def test_a_crash_in_the_creation_is_mended_by_the_next(tmp_path: Path) -> None:
    root = tmp_path / "live"
    disk = PhotographedDisk(root)
    database = Database(root)
    database.disk = disk
    root.mkdir()
    disk.photograph_into = tmp_path / "photographs"
    database.create(opening_watched(disk.photograph)).close()
    unfinished = 0
    for moment, image in disk.photographs:
        left = Database(image)
        if not left.is_present():
            unfinished += 1
            left.create().close()
        assert left.is_present(), moment
        left.open().close()
    assert unfinished >= 5


def test_directory_is_synced_before_the_record_moves(database: Database) -> None:
    index = database.create()
    index.write([])
    database.disk.take_calls()
    index.record()
    assert database.disk.take_calls()[:2] == [("sync directory", "db"), ("replace", "db.seal")]
    index.record()
    assert database.disk.take_calls() == []
    index.close()


def test_a_failed_write_is_final(database: Database) -> None:
    failing = FailingOnce()
    index = database.create(opening_watched(failing))
    failing.arm("before db")
    with pytest.raises(IndexFailedError):
        index.write([(b"row 0", b"")])
    with pytest.raises(IndexFailedError):
        index.write([(b"row 0", b"")])
    index.close()
