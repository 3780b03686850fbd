"""The contract of the IndexStore port, and what is LevelDB's own: damage, locks, settings."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bkctl.storage.adapters.index_store import PlyvelIndexStore, open_plyvel
from bkctl.storage.disk_room import file_limit_advice, is_out_of_room, lacks_room
from bkctl.storage.errors import (
    DirectoryLockedError,
    IndexDamagedError,
    IndexFullError,
    IndexMissingError,
    StorageError,
)

ROOT = Path(__file__).parents[3]
ROW_COUNT = 20_000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[PlyvelIndexStore]:
    opened = open_plyvel(str(tmp_path / "db"), create=True, strict=True)
    yield opened
    opened.close()


def key(number: int) -> bytes:
    return number.to_bytes(8, "big")


def damaged_table(directory: Path) -> None:
    """Turn a database of many rows into one whose table has a flipped byte, about the middle."""
    store = open_plyvel(str(directory), create=True, strict=True)
    store.write((key(number), b"x" * 8) for number in range(ROW_COUNT))
    store.close()
    open_plyvel(str(directory), create=False, strict=True).close()  # Moves the rows from the log into a table.
    table = max(directory.glob("*.ldb"), key=lambda path: path.stat().st_size)
    flip(table, table.stat().st_size // 2)


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x55
    path.write_bytes(data)


def log_of(directory: Path) -> Path:
    return max(directory.glob("*.log"))


def test_put_get_delete(store: PlyvelIndexStore) -> None:
    store.write([(b"a", b"1"), (b"b", b"2")])
    store.write([(b"c", b"3")], [b"a"])
    assert [store.get(name) for name in (b"a", b"b", b"c", b"d")] == [None, b"2", b"3", None]


def test_put_wins_over_delete_of_the_same_key(store: PlyvelIndexStore) -> None:
    store.write([(b"a", b"1")], [b"a"])
    assert store.get(b"a") == b"1"


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    present=st.sets(st.integers(0, 30), max_size=12),
    upper=st.integers(0, 31),
    lower=st.integers(0, 31),
)
def test_floor_and_scan_agree_with_a_model(store: PlyvelIndexStore, present: set[int], upper: int, lower: int) -> None:
    store.write([(key(number), b"v") for number in present], [key(number) for number in range(31)])
    below = [number for number in present if lower <= number <= upper]
    floor = store.floor(key(upper), key(lower))
    assert floor == ((key(max(below)), b"v") if below else None)
    scanned = [int.from_bytes(found, "big") for found, _ in store.scan(key(lower), key(upper))]
    assert scanned == sorted(number for number in present if lower <= number < upper)


def test_scan_shows_one_point_in_time(store: PlyvelIndexStore) -> None:
    store.write([(key(1), b""), (key(2), b"")])
    rows = store.scan(key(0), key(9))
    assert next(rows)[0] == key(1)
    store.write([(key(3), b"")], [key(2)])
    assert [found for found, _ in rows] == [key(2)]


def test_a_batch_is_there_without_a_close(tmp_path: Path) -> None:
    store = open_plyvel(str(tmp_path / "db"), create=True, strict=True)
    store.write([(b"a", b"1")])
    shutil.copytree(tmp_path / "db", tmp_path / "after-kill")
    store.close()
    survivor = open_plyvel(str(tmp_path / "after-kill"), create=False, strict=True)
    assert survivor.get(b"a") == b"1"
    survivor.close()


def test_absent_database_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(IndexMissingError):
        open_plyvel(str(tmp_path / "db"), create=False, strict=True)
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_cannot_be_opened_is_nobody_else_s(tmp_path: Path) -> None:
    open_plyvel(str(tmp_path / "db"), create=True, strict=True).close()
    (tmp_path / "db" / "LOCK").unlink()
    (tmp_path / "db" / "LOCK").mkdir()
    with pytest.raises(StorageError, match="LOCK: Is a directory") as caught:
        open_plyvel(str(tmp_path / "db"), create=False, strict=True)
    assert not isinstance(caught.value, DirectoryLockedError)


def test_open_elsewhere(tmp_path: Path, store: PlyvelIndexStore) -> None:
    with pytest.raises(DirectoryLockedError):
        open_plyvel(str(tmp_path / "db"), create=False, strict=True)


@pytest.mark.parametrize("lost", ["*.ldb", "MANIFEST-*"])
def test_missing_file_is_damage(tmp_path: Path, lost: str) -> None:
    damaged_table(tmp_path / "db")
    for path in (tmp_path / "db").glob(lost):
        path.unlink()
    with pytest.raises(IndexDamagedError):
        open_plyvel(str(tmp_path / "db"), create=False, strict=True)


def test_a_damaged_block_is_never_absence(tmp_path: Path) -> None:
    """Every way to read: what a damaged block held is an error, at the edges of a range too."""
    damaged_table(tmp_path / "db")
    store = open_plyvel(str(tmp_path / "db"), create=False, strict=True)
    outcomes = {"get": 0, "floor": 0, "scan": 0}
    for number in range(ROW_COUNT):
        try:
            assert store.get(key(number)) == b"x" * 8
        except IndexDamagedError:
            outcomes["get"] += 1
        try:
            assert store.floor(key(number), key(number)) == (key(number), b"x" * 8)
        except IndexDamagedError:
            outcomes["floor"] += 1
        try:
            assert [found for found, _ in store.scan(key(number), key(number + 1))] == [key(number)]
        except IndexDamagedError:
            outcomes["scan"] += 1
    assert min(outcomes.values()) > 10
    with pytest.raises(IndexDamagedError):
        list(store.scan(key(0), key(ROW_COUNT)))
    store.close()


def test_strict_refuses_a_damaged_log_and_the_other_open_drops_it(tmp_path: Path) -> None:
    directory = tmp_path / "db"
    store = open_plyvel(str(directory), create=True, strict=True)
    store.write([(b"a", b"1" * 100)])
    store.write([(b"b", b"2" * 100)])
    store.close()
    flip(log_of(directory), log_of(directory).stat().st_size - 10)
    with pytest.raises(IndexDamagedError):
        open_plyvel(str(directory), create=False, strict=True)
    open_plyvel(str(directory), create=False, strict=False).close()
    after = open_plyvel(str(directory), create=False, strict=True)
    assert (after.get(b"a"), after.get(b"b")) == (b"1" * 100, None)
    after.close()


def test_load_neither_switches_the_log_nor_compresses(tmp_path: Path) -> None:
    """LevelDB's default write buffer of 4 MiB makes writers wait for tables; a fresh log would show the switch."""
    directory = tmp_path / "db"
    store = open_plyvel(str(directory), create=True, strict=True)
    log = log_of(directory)
    for first in range(0, 8 * 1024, 1024):
        store.write((key(number), bytes(1024)) for number in range(first, first + 1024))
    assert log_of(directory) == log
    store.close()
    open_plyvel(str(directory), create=False, strict=True).close()
    assert sum(path.stat().st_size for path in directory.glob("*.ldb")) > 8 * 1024 * 1024


WRITES_ONE_BATCH = """
import sys
from bkctl.storage.adapters.index_store import open_plyvel
store = open_plyvel(sys.argv[1], create=True, strict=True)
store.write([(b"a", b"1")])
"""


@pytest.mark.strace
@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_a_batch_is_synced_when_write_returns(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    tracer = ["strace", "-f", "-y", "-e", "trace=write,fdatasync,fsync", "-o", str(trace)]
    child = [sys.executable, "-P", "-c", WRITES_ONE_BATCH, str(tmp_path / "db")]
    subprocess.run([*tracer, *child], check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    log = str(log_of(tmp_path / "db"))
    calls = [line.split("(")[0].split()[-1] for line in trace.read_text().splitlines() if log in line]
    assert calls == ["write", "fdatasync"]


def test_a_file_that_may_not_grow_is_no_damage(tmp_path: Path) -> None:
    """LevelDB tells of a full disk, and of such a limit, in text alone."""
    store = open_plyvel(str(tmp_path / "db"), create=True, strict=True)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024, hard))
    try:
        with pytest.raises(IndexFullError, match="File too large") as told:
            store.write([(b"key", bytes(128 * 1024))])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        store.close()
    assert lacks_room(told.value)
    assert "ulimit -f" in file_limit_advice(told.value)
    assert not is_out_of_room(told.value), "the database cannot just be written to again"
