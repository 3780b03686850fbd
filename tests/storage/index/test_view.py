"""A database read without LevelDB: what LevelDB reads, or a refusal; and never a byte written."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.adapters.index_store import PlyvelIndexStore, open_plyvel
from bkctl.storage.errors import IndexMissingError, NoRoomToStartError, StorageError
from bkctl.storage.filenames import LOCATIONS_DATABASE, LOCK, current_directory
from bkctl.storage.index.seal import SealedIndex, create_sealed_index, open_sealed_index, view_sealed_index
from bkctl.storage.index.view import IndexView, open_view
from bkctl.storage.ports import DiskSpace
from tests.storage.engines import KEY, checkpoint, config_below, entry, open_storage
from tests.storage.index.test_table import row, write_database
from tests.storage.traced_disk import TracedDisk

Step = tuple[str, dict[bytes, bytes], set[bytes]]
KEYS = [b"%02d" % number for number in range(24)]
PUTS = st.dictionaries(st.sampled_from(KEYS), st.binary(max_size=3), max_size=8)
DELETES = st.sets(st.sampled_from(KEYS), max_size=8)
STEPS = st.lists(st.tuples(st.sampled_from(["write", "write", "open", "compact"]), PUTS, DELETES), max_size=20)


def key(number: int) -> bytes:
    return number.to_bytes(8, "big")


def seen_twice(store: PlyvelIndexStore, directory: Path) -> tuple[IndexView, PlyvelIndexStore]:
    """The view of a database, and LevelDB again on a copy of it.

    LevelDB is closed before: what was written last is in the log, as after a kill, and no compaction takes files away
    while they are copied.
    """
    store.close()
    copy = directory.with_name("copy")
    shutil.copytree(directory, copy)
    disk = TracedDisk()
    view = open_view(disk, str(directory))
    assert disk.calls == []
    return view, open_plyvel(str(copy), create=False, strict=True)


def reopened(store: PlyvelIndexStore, directory: Path) -> PlyvelIndexStore:
    """The log becomes a table of level 0."""
    store.close()
    return open_plyvel(str(directory), create=False, strict=True)


@settings(max_examples=60)
@given(steps=STEPS)
def test_it_reads_what_leveldb_reads(tmp_path_factory: pytest.TempPathFactory, steps: list[Step]) -> None:
    """Rows in the log, in overlapping tables and in levels, written again and deleted."""
    directory = tmp_path_factory.mktemp("index") / "db"
    store = open_plyvel(str(directory), create=True, strict=True)
    for step, puts, deletes in steps:
        if step == "write":
            store.write(puts.items(), deletes)
        elif step == "open":
            store = reopened(store, directory)
        else:
            store._database.compact_range()
    view, store = seen_twice(store, directory)
    assert list(view.scan(b"", b"\xff")) == list(store.scan(b"", b"\xff"))
    assert [view.get(each) for each in KEYS] == [store.get(each) for each in KEYS]
    for each in (*KEYS, b"", b"051", b"\xff"):
        for lower in (b"", b"05", b"11"):
            assert view.floor(each, lower) == store.floor(each, lower)
        assert list(view.scan(each, b"2")) == list(store.scan(each, b"2"))
    store.close()


def test_many_rows(tmp_path: Path) -> None:
    """Tables of many blocks in several levels, with rows deleted and written again, and a log of several blocks."""
    directory = tmp_path / "db"
    store = open_plyvel(str(directory), create=True, strict=True)
    chosen = random.Random(1)
    count = 40_000
    for part in range(6):
        numbers = chosen.sample(range(count), 9000)
        store.write(((key(number), b"%d of %d" % (number, part)) for number in numbers), map(key, numbers[:2000]))
        gone = chosen.sample(range(count), 3000)
        store.write((), map(key, gone))
        if part < 5:
            store = reopened(store, directory)
        if part in {2, 3}:
            store._database.compact_range()
    store.write((), map(key, range(10_000, 15_000)))
    view, store = seen_twice(store, directory)
    assert list(view.scan(b"", b"\xff")) == list(store.scan(b"", b"\xff"))
    for number in (*chosen.sample(range(count), 500), 14_999, 15_000):
        assert view.get(key(number)) == store.get(key(number))
        assert view.floor(key(number), key(0)) == store.floor(key(number), key(0))
        assert view.floor(key(number), key(number - 3 if number > 3 else 0)) == store.floor(
            key(number), key(number - 3 if number > 3 else 0)
        )
    store.close()


def test_tables_of_a_rebuild(tmp_path: Path) -> None:
    rows = [row(number // 100, number % 100) for number in range(5000)]
    write_database(tmp_path / "db", rows, 2000).close()
    view = open_view(OsFileSystem(), str(tmp_path / "db"))
    assert list(view.scan(b"", b"\xff")) == rows
    assert [view.get(each) for each, _ in rows[::50]] == [value for _, value in rows[::50]]


def test_it_takes_no_row(tmp_path: Path) -> None:
    open_plyvel(str(tmp_path / "db"), create=True, strict=True).close()
    with pytest.raises(StorageError, match="opened read-only"):
        open_view(OsFileSystem(), str(tmp_path / "db")).write([(b"a", b"1")])


def test_there_must_be_a_database(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("absent", "empty"):
        with pytest.raises(IndexMissingError):
            open_view(OsFileSystem(), str(tmp_path / name))


@pytest.mark.parametrize("lost", ["*.ldb", "MANIFEST-*"])
def test_a_missing_file_is_refused(tmp_path: Path, lost: str) -> None:
    store = open_plyvel(str(tmp_path / "db"), create=True, strict=True)
    store.write([(b"a", b"1")])
    reopened(store, tmp_path / "db").close()
    for path in (tmp_path / "db").glob(lost):
        path.unlink()
    with pytest.raises(ValueError, match=r"missing|no manifest"):
        open_view(OsFileSystem(), str(tmp_path / "db"))


# With its seal


class Sealed:
    """A sealed database with rows in tables and in its log, as a killed process leaves it."""

    def __init__(self, root: Path) -> None:
        self.path = str(root / "db")
        self.record_path = str(root / "db.seal")
        index = create_sealed_index(OsFileSystem(), open_plyvel, self.path)
        for part in range(3):
            index.write((key(number), b"%d" % part) for number in range(part, 40, 3))
            index.record()
            if part < 2:
                index.close()
                index = open_sealed_index(OsFileSystem(), open_plyvel, self.path)
        self.rows = list(index.scan(key(0), key(40)))
        copy = root / "copy"
        shutil.copytree(self.path, copy)
        index.close()
        shutil.rmtree(self.path)
        copy.rename(self.path)

    def view(self) -> SealedIndex:
        return view_sealed_index(OsFileSystem(), open_plyvel, self.path)

    def files(self) -> list[Path]:
        return sorted(path for path in Path(self.path).iterdir() if path.name not in {"LOCK", "LOG", "LOG.old"})


@pytest.fixture
def sealed(tmp_path: Path) -> Sealed:
    return Sealed(tmp_path)


def damages(data: bytes) -> Iterator[bytes]:
    for offset in range(len(data)):
        yield data[:offset] + bytes([data[offset] ^ 0x55]) + data[offset + 1 :]
        yield data[:offset] + b"\0" + data[offset + 1 :]
        yield data[:offset]


def test_no_damage_makes_a_row_absent(sealed: Sealed) -> None:
    """Every byte of every file flipped, zeroed and cut off: refused, or an error for what was in a damaged block."""
    assert list(sealed.view().scan(key(0), key(40))) == sealed.rows
    refused_count = 0
    for path in sealed.files():
        data = path.read_bytes()
        for damaged in damages(data):
            path.write_bytes(damaged)
            try:
                view = sealed.view()
                assert list(view.scan(key(0), key(40))) == sealed.rows
                assert [view.get(each) for each, _ in sealed.rows] == [value for _, value in sealed.rows]
                assert [view.floor(each, key(0)) for each, _ in sealed.rows] == sealed.rows
            except (ValueError, StorageError):
                refused_count += 1
        path.write_bytes(data)
    assert refused_count > 500


def test_the_first_write_opens_it(sealed: Sealed) -> None:
    before = {path.name: path.read_bytes() for path in sealed.files()}
    index = sealed.view()
    assert {path.name: path.read_bytes() for path in sealed.files()} == before
    assert index.opening_bytes > 0
    reading = index.scan(key(0), key(40))
    first = next(reading)
    index.write([(key(40), b"new")])
    index.record()
    assert index.opening_bytes == 0
    assert [first, *reading] == sealed.rows
    assert list(index.scan(key(0), key(41))) == [*sealed.rows, (key(40), b"new")]
    assert index.get(key(40)) == b"new"
    index.close()
    index = open_sealed_index(OsFileSystem(), open_plyvel, sealed.path)
    assert index.get(key(40)) == b"new"
    index.close()


def test_a_write_that_cannot_open_it_may_come_again(sealed: Sealed) -> None:
    tries = []

    def open_index(path: str, *, create: bool, strict: bool) -> PlyvelIndexStore:
        tries.append(path)
        if len(tries) == 1:
            raise StorageError(f"{path}: No space left on device")
        return open_plyvel(path, create=create, strict=strict)

    index = view_sealed_index(OsFileSystem(), open_index, sealed.path)
    with pytest.raises(StorageError, match="No space left"):
        index.write([(key(40), b"new")])
    assert list(index.scan(key(0), key(40))) == sealed.rows
    index.write([(key(40), b"new")])
    assert list(index.scan(key(0), key(41))) == [*sealed.rows, (key(40), b"new")]
    index.close()


def test_an_opening_that_was_cut_off_is_looked_behind(sealed: Sealed) -> None:
    """What was kept is the database: the directory itself may be half changed."""
    os.rename(sealed.path, sealed.path + ".kept")
    os.mkdir(sealed.path)
    index = sealed.view()
    assert list(index.scan(key(0), key(40))) == sealed.rows
    index.write([(key(40), b"new")])
    assert index.get(key(40)) == b"new"
    assert list(index.scan(key(0), key(40))) == sealed.rows
    index.close()


class SmallDisk(OsFileSystem):
    """The real disk, with no more room than it is given."""

    def __init__(self, usable_bytes: int) -> None:
        self._space = DiskSpace(2**30, usable_bytes, 0)

    def space(self, path: str) -> DiskSpace:
        return self._space


def stored(root: Path) -> dict[str, bytes]:
    """Entries in the index and in its log; contents of all files."""
    storage = open_storage(config_below(root))
    storage.replay()
    for entry_id in range(3):
        storage.engine_of(5).rows.set_master_key(5, KEY)
        storage.engine_of(5).add(5, entry_id, entry(5, entry_id))
        checkpoint(storage)
    storage.close()
    return contents(root)


def contents(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in root.rglob("*") if path.is_file() and path.name != LOCK}


def test_an_engine_views_what_it_has_no_room_to_open(tmp_path: Path) -> None:
    before = stored(tmp_path)
    storage = open_storage(config_below(tmp_path), filesystem=SmallDisk(0))
    engine = storage.engine_of(5)
    assert [engine.stored.read(5, entry_id) for entry_id in range(4)] == [*(entry(5, each) for each in range(3)), None]
    assert engine.stored.list_entries(5) == [0, 1, 2]
    assert engine.stored.find_last(5) == (2, entry(5, 2))
    row = engine.rows.find(5)
    assert row is not None
    assert row.master_key == KEY
    assert engine.checkpoint_bytes > engine.memtable_bytes
    storage.close()
    assert contents(tmp_path) == before


def test_what_must_be_mended_needs_the_room(tmp_path: Path) -> None:
    """A batch that a power failure has torn: LevelDB drops it, and says so in a new log."""
    stored(tmp_path)
    current = Path(current_directory(str(tmp_path / "ledgers-0")))
    log = max((current / LOCATIONS_DATABASE).glob("*.log"))
    log.write_bytes(log.read_bytes() + bytes(100))
    before = contents(tmp_path)
    with pytest.raises(
        NoRoomToStartError, match=f"^{current / LOCATIONS_DATABASE}: 0 B are free, [0-9.]+ KiB more are needed"
    ):
        open_storage(config_below(tmp_path), filesystem=SmallDisk(0))
    assert contents(tmp_path) == before
    storage = open_storage(config_below(tmp_path))
    assert storage.engine_of(5).stored.read(5, 2) == entry(5, 2)
    storage.close()
