from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.config import EntryLogConfig
from bkctl.storage.entry_log.reader import EntryLogReader, list_entry_logs
from bkctl.storage.entry_log.writer import EntryLogWriter
from bkctl.storage.errors import EntryLogError
from bkctl.storage.ids import EntryLocation
from tests.storage.golden import FILES, content
from tests.storage.traced_disk import TracedDisk

FS = OsFileSystem()
SMALL = EntryLogConfig(size_bytes_max=4096)


def body(ledger_id: int, entry_id: int, size: int = 40) -> bytes:
    return struct.pack(">qqqq", ledger_id, entry_id, entry_id - 1, 0).ljust(size, b"x")


def entries(*sizes: int) -> list[tuple[int, bytes]]:
    return [(5, body(5, entry_id, size)) for entry_id, size in enumerate(sizes)]


def append_and_sync(writer: EntryLogWriter) -> list[EntryLocation]:
    locations = writer.append(entries(100, 2000))
    writer.sync()
    return locations


def names(directory: Path) -> list[str]:
    return FS.list_directory(str(directory))


def touch(directory: Path, *files: str, last_id: str | None = None) -> None:
    for name in files:
        (directory / name).touch()
    if last_id is not None:
        (directory / "lastId").write_text(last_id)


def test_logs_are_those_of_java_byte_by_byte(tmp_path: Path) -> None:
    golden = [f"db-4.18.0/crash/ledgers/{number}.log.gz" for number in range(5)]
    writer = EntryLogWriter.open(FS, str(tmp_path), EntryLogConfig(size_bytes_max=300_000))
    written: list[tuple[int, bytes]] = []
    expected: list[EntryLocation] = []
    for log_id, name in enumerate(golden):
        for entry in FILES[name]["entries"]:
            if entry["ledger"] >= 0:
                start = entry["offset"] + 4
                written.append((entry["ledger"], content(name)[start : start + entry["size"]]))
                expected.append(EntryLocation(log_id, start))
    assert writer.append(written) == expected
    writer.sync()
    writer.close()
    for name in golden:
        assert (tmp_path / Path(name).stem).read_bytes() == content(name), name
    assert (tmp_path / "lastId").read_bytes() == b"4\n"


def test_the_worked_example(tmp_path: Path) -> None:
    writer = EntryLogWriter.open(FS, str(tmp_path), EntryLogConfig())
    bodies = [
        struct.pack(">qqqq", 5, 0, -1, 5) + b"hello",
        struct.pack(">qqqq", 5, 1, 0, 10) + b"world",
        struct.pack(">qqqq", 7, 0, -1, 3) + b"abc",
    ]
    assert writer.append([(5, bodies[0]), (5, memoryview(bodies[1])), (7, bytearray(bodies[2]))]) == [
        (0, 0x404),
        (0, 0x42D),
        (0, 0x456),
    ]
    writer.roll()
    writer.sync()
    data = (tmp_path / "0.log").read_bytes()
    assert data[:20].hex() == "424b4c4f00000001" + "0000000000000479" + "00000002"
    assert len(data) == 0x4B1
    assert data[0x479:].hex().startswith("00000034ffffffffffffffff")
    writer.close()


def test_a_log_is_rolled_before_an_entry_would_pass_the_limit(tmp_path: Path) -> None:
    writer = EntryLogWriter.open(FS, str(tmp_path), SMALL)
    full = 4096 - 1024 - 4
    locations = writer.append(entries(full, full - 44, 40, 32, 9000, 32))
    assert locations == [(0, 1028), (1, 1028), (1, 4056), (2, 1028), (3, 1028), (4, 1028)]
    assert 4 in writer.unfinished_log_ids
    writer.sync()
    reader = EntryLogReader(FS, str(tmp_path), SMALL)
    assert [reader.ledgers_map(log_id) for log_id in range(5)] == [
        {5: 3072}, {5: 3072}, {5: 36}, {5: 9004}, {5: 36},
    ]  # fmt: skip
    writer.close()
    reader.close()


def test_the_active_log_gets_no_map_when_it_is_closed(tmp_path: Path) -> None:
    writer = EntryLogWriter.open(FS, str(tmp_path), SMALL)
    writer.append(entries(40))
    writer.sync()
    writer.close()
    assert (tmp_path / "0.log").read_bytes()[8:20] == bytes(12)
    assert (tmp_path / "0.log").stat().st_size == 1024 + 44


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(32, 3000)), max_size=40), st.integers(1, 40))
def test_what_was_appended_is_read_and_scanned(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[tuple[int, int]], step: int
) -> None:
    directory = str(tmp_path_factory.mktemp("logs"))
    writer = EntryLogWriter.open(FS, directory, SMALL)
    bodies = [(ledger_id, body(ledger_id, entry_id, size)) for entry_id, (ledger_id, size) in enumerate(sizes)]
    locations = [
        location for first in range(0, len(bodies), step) for location in writer.append(bodies[first : first + step])
    ]
    writer.close()
    reader = EntryLogReader(FS, directory, SMALL)
    for entry_id, (location, (ledger_id, data)) in enumerate(zip(locations, bodies, strict=True)):
        assert reader.read(location, ledger_id, entry_id) == data
    scanned = [entry for log_id in list_entry_logs(FS, directory) for entry in reader.scan(log_id)]
    assert [entry.location for entry in scanned] == locations
    assert [(entry.ledger_id, entry.size_bytes) for entry in scanned] == [(i, len(data)) for i, data in bodies]
    for log_id in list_entry_logs(FS, directory):
        counted: dict[int, int] = {}
        for entry in reader.scan(log_id):
            counted[entry.ledger_id] = counted.get(entry.ledger_id, 0) + entry.size_bytes + 4
        assert reader.ledgers_map(log_id) == counted
    reader.close()


def test_a_large_append_is_written_in_bounded_pieces(tmp_path: Path) -> None:
    disk = TracedDisk()
    writer = EntryLogWriter.open(disk, str(tmp_path), EntryLogConfig())
    bodies = entries(*[700_000] * 3, *[40] * 3000)
    locations = writer.append(bodies)
    # The header; the large ones, one of them with the rest of the first 1024; then 1024 at once.
    calls = disk.take_calls()
    assert calls.count(("write", "0.log")) == 1 + 3 + 2
    assert calls.count(("reserve", "0.log")) == 3, "only where it saves more than it costs"
    ends = [location.offset + len(data) for location, (_, data) in zip(locations, bodies, strict=True)]
    assert [location.offset - 4 for location in locations] == [1024, *ends[:-1]]
    writer.close()


def test_sync_covers_rolled_logs_the_active_one_and_their_names(tmp_path: Path) -> None:
    disk = TracedDisk()
    writer = EntryLogWriter.open(disk, str(tmp_path), SMALL)
    writer.append(entries(3000, 3000, 3000))
    assert ("sync", "2.log") not in disk.take_calls()
    writer.sync()
    syncs = [("sync", "0.log"), ("sync", "1.log"), ("sync", "2.log")]
    assert disk.take_calls() == [*syncs, ("sync directory", tmp_path.name)]
    writer.append([(5, body(5, 9))])
    writer.sync()
    assert disk.take_calls() == [("write", "2.log"), ("sync", "2.log")]
    writer.roll()
    writer.sync()
    assert disk.take_calls() == [("write", "2.log"), ("write", "2.log"), ("sync", "2.log")]
    writer.close()


def test_the_hint_is_durable_before_the_log_exists(tmp_path: Path) -> None:
    disk = TracedDisk()
    writer = EntryLogWriter.open(disk, str(tmp_path), SMALL)
    assert disk.take_calls() == []
    writer.append(entries(40))
    calls = [call for call in disk.take_calls() if call[0] != "sync directory"]
    assert calls == [("replace", "lastId"), ("create", "0.log"), ("write", "0.log"), ("write", "0.log")]
    writer.close()


@pytest.mark.parametrize("operation", ["write", "sync", "create", "replace", "sync directory"])
def test_after_a_failure_everything_unsynced_must_be_appended_again(tmp_path: Path, operation: str) -> None:
    disk = TracedDisk()
    writer = EntryLogWriter.open(disk, str(tmp_path), SMALL)
    synced = writer.append(entries(2000))
    writer.sync()
    disk.fail_on = operation
    with pytest.raises(EntryLogError, match="Input/output error"):
        append_and_sync(writer)
    disk.fail_on = None
    for call in (writer.sync, writer.roll, lambda: writer.append(entries(40))):
        with pytest.raises(EntryLogError, match="an earlier write failed"):
            call()
    writer.discard_unsynced()
    files = set(names(tmp_path))
    again = append_and_sync(writer)
    assert all(f"{location.log_id:x}.log" not in files for location in again), "went on in a file that had failed"
    reader = EntryLogReader(FS, str(tmp_path), SMALL)
    for entry_id, location in enumerate(again):
        assert reader.read(location, 5, entry_id) == body(5, entry_id, (100, 2000)[entry_id])
    assert reader.read(synced[0], 5, 0) == body(5, 0, 2000)
    writer.close()
    reader.close()


def test_an_entry_that_replay_would_refuse_is_not_written(tmp_path: Path) -> None:
    writer = EntryLogWriter.open(FS, str(tmp_path), SMALL)
    with pytest.raises(ValueError, match="24 bytes"):
        writer.append([(5, body(5, 0)), (5, bytes(23))])
    assert names(tmp_path) == []
    assert writer.append([]) == []


def test_rolling_nothing_does_nothing(tmp_path: Path) -> None:
    writer = EntryLogWriter.open(FS, str(tmp_path), SMALL)
    writer.roll()
    writer.sync()
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("files", "last_id", "next_id"),
    [
        ([], None, 0),
        ([], "1f4\n", 0x1F5),
        (["0.log", "1.log"], None, 2),
        (["0.log", "1.log"], "0\n", 2),
        (["0.log", "1.log"], "7\n", 8),
        (["0.log", "1.log"], "0a\n", 11),
        (["0.log", "1.log", "7.log"], "1\n", 8),
        (["0.log", "1.log"], "", 2),
        (["0.log", "1.log"], "hello", 2),
        (["0.log", "1.log"], "-5", 2),
        (["0.log", "1.log"], "fffffffff\n", 2),
        (["3.log"], "2\n", 4),
        (["7ffffff0.log"], None, 0x7FFFFFF1),
        (["7fffffff.log"], "7fffffff\n", 0),
        (["7ffffffe.log", "7fffffff.log", "0.log"], "7fffffff\n", 1),
        (["7ffffffe.log", "7fffffff.log", "0.log", "1.log"], "1\n", 2),
        (["0.log", "2.log.0.compacted", "3.log.compacting"], "0\n", 4),
        (["0.log", "foo.log", "1.log.bak"], None, 1),
    ],
)
def test_the_next_id(tmp_path: Path, files: list[str], last_id: str | None, next_id: int) -> None:
    touch(tmp_path, *files, last_id=last_id)
    writer = EntryLogWriter.open(FS, str(tmp_path), SMALL)
    assert writer.append(entries(40))[0].log_id == next_id
    assert (tmp_path / "lastId").read_text() == f"{next_id:x}\n"
    writer.close()


def test_the_log_that_java_kept_in_reserve_is_left_alone(tmp_path: Path) -> None:
    touch(tmp_path, "0.log", "1.log", last_id="1\n")
    writer = EntryLogWriter.open(FS, str(tmp_path), SMALL)
    assert writer.append(entries(40)) == [(2, 1028)]
    assert (tmp_path / "1.log").stat().st_size == 0
    writer.close()


def test_the_next_log_is_made_beforehand(tmp_path: Path) -> None:
    """Storage section 4.1: with its header alone it is what Java leaves too, and its id is not used again."""
    writer = EntryLogWriter.open(FS, str(tmp_path), SMALL)
    writer.prepare_next()
    assert names(tmp_path) == [], "nothing follows what was never begun"
    writer.append(entries(2000))
    for _ in range(2):
        writer.prepare_next()
    assert names(tmp_path) == ["0.log", "1.log", "lastId"]
    assert (tmp_path / "1.log").stat().st_size == 1024
    assert writer.unfinished_log_ids == {0, 1}
    assert writer.claim_log_id() == 2
    locations = writer.append(entries(2000, 2000))
    assert [location.log_id for location in locations] == [3, 4]
    writer.sync()
    assert writer.unfinished_log_ids == {4}
    writer.prepare_next()
    writer.close()
    assert EntryLogWriter.open(FS, str(tmp_path), SMALL).claim_log_id() == 6


def test_what_follows_a_claimed_log_has_a_later_id(tmp_path: Path) -> None:
    """A copy that compaction puts there must not look newer than what is appended meanwhile."""
    writer = EntryLogWriter.open(FS, str(tmp_path), SMALL)
    append_and_sync(writer)
    writer.prepare_next()
    claimed = writer.claim_log_id()
    [location] = writer.append(entries(100))
    assert location.log_id > claimed
    assert writer.append(entries(100))[0].log_id == location.log_id, "once is enough"
    writer.sync()
    assert names(tmp_path) == ["0.log", "3.log", "lastId"], "the next log with its early id is gone"
    writer.close()


def test_a_next_log_that_cannot_be_made_is_no_error(tmp_path: Path) -> None:
    disk = TracedDisk()
    writer = EntryLogWriter.open(disk, str(tmp_path), SMALL)
    append_and_sync(writer)
    for operation in ("replace", "create", "write"):
        disk.fail_on = operation
        writer.prepare_next()
    disk.fail_on = None
    assert names(tmp_path) == ["0.log", "lastId"]
    assert writer.append(entries(3000))[0] == (3, 1028)
    writer.sync()


def test_a_next_log_that_was_taken_into_use_is_given_up_like_any_other(tmp_path: Path) -> None:
    disk = TracedDisk()
    writer = EntryLogWriter.open(disk, str(tmp_path), SMALL)
    append_and_sync(writer)
    writer.prepare_next()
    writer.append(entries(3000))
    disk.fail_on = "sync"
    with pytest.raises(EntryLogError):
        writer.sync()
    disk.fail_on = None
    writer.discard_unsynced()
    assert names(tmp_path) == ["0.log", "lastId"]


def test_the_name_of_a_prepared_log_is_durable_with_its_first_entries(tmp_path: Path) -> None:
    disk = TracedDisk()
    writer = EntryLogWriter.open(disk, str(tmp_path), SMALL)
    append_and_sync(writer)
    writer.prepare_next()
    disk.take_calls()
    writer.append(entries(3000))
    writer.sync()
    assert disk.take_calls()[-1] == ("sync directory", tmp_path.name)


def test_large_appends_are_synced_on_the_way(tmp_path: Path) -> None:
    """flushEntrylogBytes."""
    disk = TracedDisk()
    writer = EntryLogWriter.open(disk, str(tmp_path), EntryLogConfig(unsynced_bytes_max=3000))
    disk.take_calls()
    for _ in range(5):
        writer.append(entries(1000))
    assert [operation for operation, name in disk.take_calls() if name == "0.log"] == [
        *("create", "write", "write", "write", "sync", "write", "write", "write", "sync")
    ]
    disk.fail_on = "sync"
    with pytest.raises(EntryLogError):
        writer.append(entries(3000))


def test_a_directory_that_cannot_be_listed_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(EntryLogError, match="next entry log id"):
        EntryLogWriter.open(FS, str(tmp_path / "absent"), SMALL)


def test_giving_up_removes_what_holds_nothing_synced(tmp_path: Path) -> None:
    disk = TracedDisk()
    writer = EntryLogWriter.open(disk, str(tmp_path), SMALL)
    append_and_sync(writer)
    writer.append(entries(1500, 1500, 1500, 1500, 1500))
    disk.fail_on = "sync"
    with pytest.raises(EntryLogError):
        writer.sync()
    disk.fail_on = None
    assert names(tmp_path) == ["0.log", "1.log", "2.log", "3.log", "lastId"]
    writer.discard_unsynced()
    assert names(tmp_path) == ["0.log", "lastId"]
    append_and_sync(writer)
    writer.discard_unsynced()
    assert names(tmp_path) == ["0.log", "4.log", "lastId"], "what was synced stays"
