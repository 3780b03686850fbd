from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.config import JournalConfig
from bkctl.storage.errors import JournalError, JournalFailedError
from bkctl.storage.ids import LogMark
from bkctl.storage.journal.catalog import CatalogedJournal, JournalCatalog, read_catalog
from bkctl.storage.journal.format import GROUP_BYTES_MAX, encode_fence_record, encode_file_header
from bkctl.storage.journal.reader import JournalEndReason, JournalScan, list_journals
from bkctl.storage.journal.writer import JournalWriter
from tests.storage.golden import FILES, content, paths
from tests.storage.groups import group_bytes
from tests.storage.traced_disk import TracedDisk

MEBIBYTE = 1 << 20
SMALL = JournalConfig(size_bytes_max=4096, preallocation_bytes=8192, backup_count_max=1)


def entry(entry_id: int, size: int = 40) -> bytes:
    return struct.pack(">qqqq", 1, entry_id, entry_id - 1, 0).ljust(size, b"x")


def payloads(path: Path, start: int = 0) -> list[bytes]:
    return [record.payload for record in JournalScan(OsFileSystem(), str(path), start, is_newest=True)]


def groups_of(path: str) -> Iterator[list[bytes]]:
    """Records of a golden journal, grouped as Java grouped them: padding ends a group."""
    data = content(path)
    group: list[bytes] = []
    for record in FILES[path]["records"]:
        if record["type"] == "padding":
            yield group
            group = []
        else:
            group.append(data[record["offset"] + 4 : record["offset"] + 4 + record["len"]])
    assert not group


@pytest.mark.parametrize("number", [57, 58])
def test_groups_without_a_checksum_are_those_of_java_byte_by_byte(number: int) -> None:
    name = f"db-4.18.0/crash/journal/1a1fb79cb{number}.txn.gz"
    data = encode_file_header()
    for group in groups_of(name):
        data += group_bytes(group, len(data))
    assert content(name) == data.ljust(len(content(name)), b"\0")


def test_a_file_of_version_4_is_javas_byte_by_byte(tmp_path: Path) -> None:
    [name] = [path for path in paths("journal") if path.startswith("journal-v4-4.18.0/crash/")][-1:]
    config = JournalConfig(format_version=4, preallocation_bytes=MEBIBYTE)
    journal_id = int(Path(name).name.split(".")[0], 16)
    writer = JournalWriter.open(OsFileSystem(), str(tmp_path), config, now_ms=journal_id - 1)
    data = content(name)
    for record in FILES[name]["records"]:
        writer.write_group([data[record["offset"] + 4 : record["offset"] + 4 + record["len"]]])
    writer.close()
    assert (tmp_path / f"{journal_id:x}.txn").read_bytes() == data


@pytest.mark.parametrize("version", [4, 5, 6])
@pytest.mark.parametrize("is_data_synced", [True, False])
def test_every_version_is_read_back(tmp_path: Path, version: int, *, is_data_synced: bool) -> None:
    config = JournalConfig(
        format_version=version, is_data_synced=is_data_synced, size_bytes_max=4096, preallocation_bytes=4096
    )
    writer = JournalWriter.open(OsFileSystem(), str(tmp_path), config, now_ms=0)
    records = [entry(number, 300 + number) for number in range(40)]
    for record in records:
        writer.write_group([record], is_synced=is_data_synced)
    writer.close()
    catalog = read_catalog(OsFileSystem(), str(tmp_path))
    assert len(catalog.journals) >= 3
    found = []
    for journal_id in list_journals(OsFileSystem(), str(tmp_path)):
        path = tmp_path / f"{journal_id:x}.txn"
        assert path.read_bytes()[4:8] == struct.pack(">i", version)
        cataloged = catalog.find(journal_id)
        assert cataloged is not None
        assert cataloged.is_loose == (version == 4 or not is_data_synced)
        assert cataloged.has_checksums == (version > 4)
        scan = JournalScan(
            OsFileSystem(), str(path), is_newest=journal_id == catalog.journals[-1].journal_id, cataloged=cataloged
        )
        found += [record.payload for record in scan]
        assert scan.end.dropped_bytes == 0
    assert found == records


def test_one_write_and_one_sync_make_a_group_durable(tmp_path: Path) -> None:
    disk = TracedDisk()
    writer = JournalWriter.open(disk, str(tmp_path), JournalConfig(), now_ms=9)
    disk.take_calls()
    for count in (1, 500):
        mark = writer.write_group([entry(number) for number in range(count)])
        assert disk.take_calls() == [("write", "a.txn"), ("sync", "a.txn")]
        assert mark == writer.durable_position
        assert payloads(tmp_path / "a.txn")[-count:] == [entry(number) for number in range(count)]
    writer.close()


def test_no_records_cost_nothing(tmp_path: Path) -> None:
    disk = TracedDisk()
    writer = JournalWriter.open(disk, str(tmp_path), JournalConfig(), now_ms=9)
    disk.take_calls()
    assert writer.write_group([]) == LogMark(10, 512)
    assert disk.take_calls() == []
    writer.close()


def test_a_file_has_header_and_durable_name_before_it_is_used(tmp_path: Path) -> None:
    disk = TracedDisk()
    writer = JournalWriter.open(disk, str(tmp_path), JournalConfig(), now_ms=9)
    assert disk.take_calls() == [
        ("create", "a.txn"),
        ("write", "a.txn"),
        ("write", "a.txn"),
        ("sync", "a.txn"),
        ("sync directory", tmp_path.name),
        ("replace", "bkctl.journals"),
        ("sync directory", tmp_path.name),
    ]
    assert writer.durable_position == LogMark(10, 512)
    assert (tmp_path / "a.txn").stat().st_size == 16 * MEBIBYTE
    assert (tmp_path / "a.txn").stat().st_blocks * 512 < MEBIBYTE, "not sparse"
    writer.close()


def test_ids_go_on_behind_the_largest_number(tmp_path: Path) -> None:
    for name in ("ff.txn", "100.txn", "9.txn", "foo.txn", "123.x.txn", "zz"):
        (tmp_path / name).touch()
    JournalWriter.open(OsFileSystem(), str(tmp_path), SMALL, now_ms=5).close()
    assert list_journals(OsFileSystem(), str(tmp_path)) == [0x9, 0xFF, 0x100, 0x101]


def test_a_group_larger_than_a_step_is_preallocated_for(tmp_path: Path) -> None:
    config = JournalConfig(preallocation_bytes=8192 + 100)
    writer = JournalWriter.open(OsFileSystem(), str(tmp_path), config, now_ms=0)
    mark = writer.write_group([entry(0, 20_000)])
    assert mark == LogMark(1, 20_480 + 512)
    assert (tmp_path / "1.txn").stat().st_size == 3 * 8192
    mark = writer.write_group([entry(1, 3500)])
    assert mark.offset == 3 * 8192
    assert (tmp_path / "1.txn").stat().st_size == 4 * 8192, "a file that ends with its data was cut"
    writer.close()


def test_the_length_that_a_group_needs_is_durable_before_it_is_written(tmp_path: Path) -> None:
    disk = TracedDisk()
    writer = JournalWriter.open(disk, str(tmp_path), JournalConfig(preallocation_bytes=8192), now_ms=0)
    disk.take_calls()
    writer.write_group([entry(0, 20_000)])
    name = "1.txn"
    assert disk.take_calls() == [*[("write", name)] * 2, ("sync", name), ("write", name), ("sync", name)]
    writer.close()


def test_the_disk_begins_with_a_long_group_while_the_rest_of_it_is_made(tmp_path: Path) -> None:
    disk = TracedDisk()
    writer = JournalWriter.open(disk, str(tmp_path), JournalConfig(), now_ms=0)
    disk.take_calls()
    records = [entry(number, 1000) for number in range(1000)]
    writer.write_group(records)
    names = [name for name, _ in disk.take_calls()]
    assert names == ["reserve", *["write", "write back"] * 2, "write", "sync"]
    assert payloads(tmp_path / "1.txn") == records
    writer.close()


@pytest.mark.parametrize("change", [{"format_version": 4}, {"is_data_synced": False}])
def test_where_a_torn_group_could_not_be_told_it_is_one_write(tmp_path: Path, change: dict[str, Any]) -> None:
    """A process that is killed between two writes would leave a record that is cut."""
    disk = TracedDisk()
    writer = JournalWriter.open(disk, str(tmp_path), JournalConfig(**change), now_ms=0)
    disk.take_calls()
    records = [entry(number, 1000) for number in range(1000)]
    writer.write_group(records)
    assert [name for name, _ in disk.take_calls()] == ["reserve", "write", "sync"]
    assert payloads(tmp_path / "1.txn") == records
    writer.close()


def test_a_group_too_long_to_be_one_is_written_as_several(tmp_path: Path) -> None:
    disk = TracedDisk()
    writer = JournalWriter.open(disk, str(tmp_path), JournalConfig(preallocation_bytes=32 * MEBIBYTE), now_ms=0)
    records = [entry(number, GROUP_BYTES_MAX // 2) for number in range(5)]
    with pytest.raises(ValueError, match="16 bytes"):
        writer.write_group([*records, bytes(16)])
    assert writer.durable_position == LogMark(1, 512), "a part was written"
    disk.take_calls()
    assert writer.write_group(records) == writer.durable_position
    calls = [name for name, _ in disk.take_calls() if name not in {"drop", "reserve", "write back"}]
    assert calls == ["write", "write", "sync"] * 5
    assert payloads(tmp_path / "1.txn") == records
    writer.close()


@pytest.mark.parametrize("step_bytes", [512, 1024])
def test_the_shortest_steps_leave_the_header_alone(tmp_path: Path, step_bytes: int) -> None:
    config = JournalConfig(preallocation_bytes=step_bytes)
    writer = JournalWriter.open(OsFileSystem(), str(tmp_path), config, now_ms=0)
    assert (tmp_path / "1.txn").stat().st_size == step_bytes
    writer.write_group([entry(0)])
    assert payloads(tmp_path / "1.txn") == [entry(0)]
    writer.close()


def test_a_damaged_catalog_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "bkctl.journals").write_bytes(b"damaged")
    with pytest.raises(JournalError, match="not a catalog"):
        JournalWriter.open(OsFileSystem(), str(tmp_path), SMALL, now_ms=0)
    assert list_journals(OsFileSystem(), str(tmp_path)) == []


def test_nothing_in_the_old_file_is_unsynced_when_the_next_begins(tmp_path: Path) -> None:
    """H5: Java acknowledges records of the old file when only the new one was synced."""
    disk = TracedDisk()
    writer = JournalWriter.open(disk, str(tmp_path), SMALL, now_ms=0)
    assert writer.write_group([entry(0, 5000)]) == LogMark(1, 5632)
    disk.take_calls()
    assert writer.write_group([entry(1)]) == LogMark(2, 1024)
    assert [call for call in disk.take_calls() if call[1] != "1.txn"] == [
        ("create", "2.txn"),
        ("write", "2.txn"),
        ("write", "2.txn"),
        ("sync", "2.txn"),
        ("sync directory", tmp_path.name),
        ("replace", "bkctl.journals"),
        ("sync directory", tmp_path.name),
        ("write", "2.txn"),
        ("sync", "2.txn"),
    ]
    catalog = read_catalog(disk, str(tmp_path))
    assert catalog == JournalCatalog(
        (CatalogedJournal(1, 8192, 5632, has_checksums=True), CatalogedJournal(2, 8192, has_checksums=True))
    )
    writer.close()
    assert payloads(tmp_path / "1.txn") == [entry(0, 5000)]
    assert payloads(tmp_path / "2.txn") == [entry(1)]


@pytest.mark.parametrize("operation", ["write", "sync", "create", "replace", "sync directory"])
def test_a_failure_is_final(tmp_path: Path, operation: str) -> None:
    disk = TracedDisk()
    writer = JournalWriter.open(disk, str(tmp_path), SMALL, now_ms=0)
    mark = writer.write_group([entry(0, 5000)])
    disk.fail_on = operation
    with pytest.raises(JournalFailedError, match="Input/output error"):
        writer.write_group([entry(1)])
    disk.fail_on = None
    disk.take_calls()
    for records in ([entry(2)], []):
        with pytest.raises(JournalFailedError, match="an earlier write failed"):
            writer.write_group(records)
    assert disk.take_calls() == [], "the disk was touched after a failure"
    assert writer.durable_position <= LogMark(mark.journal_id + 1, 512)
    writer.close()


def test_h5_what_waits_for_no_sync_is_synced_before_the_next_file_begins(tmp_path: Path) -> None:
    disk = TracedDisk()
    config = JournalConfig(size_bytes_max=4096, preallocation_bytes=8192, is_data_synced=False)
    writer = JournalWriter.open(disk, str(tmp_path), config, now_ms=0)
    writer.write_group([entry(0, 5000)], is_synced=False)
    assert writer.durable_position == LogMark(1, 512)
    disk.take_calls()
    writer.write_group([entry(1)], is_synced=False)
    calls = disk.take_calls()
    assert calls[0] == ("sync", "1.txn")
    assert calls[-1] == ("write", "2.txn")
    assert writer.durable_position == LogMark(2, 512)
    assert writer.sync() == LogMark(2, 1024)
    writer.close()


def test_a_group_is_written_behind_the_sync_of_the_one_before_it(tmp_path: Path) -> None:
    """Otherwise a crash could tear both, and a start would take the hole before the second one for damage."""
    disk = TracedDisk()
    writer = JournalWriter.open(disk, str(tmp_path), JournalConfig(preallocation_bytes=1 << 16), now_ms=0)
    disk.take_calls()
    first_end = writer.write_group([entry(0)], is_synced=False)
    assert disk.take_calls() == [("write", "1.txn")]
    assert writer.durable_position < first_end
    writer.write_group([entry(1)], is_synced=False)
    assert disk.take_calls() == [("sync", "1.txn"), ("write", "1.txn")]
    assert writer.durable_position == first_end
    disk.fail_on = "sync"
    with pytest.raises(JournalFailedError):
        writer.write_group([entry(2)])
    assert disk.take_calls() == [("sync", "1.txn")], "nothing is written after a failed sync"
    disk.fail_on = None
    for again in (writer.sync, lambda: writer.write_group([entry(2)], is_synced=False)):
        with pytest.raises(JournalFailedError):
            again()
    assert disk.take_calls() == []
    assert writer.durable_position == first_end
    writer.close()
    assert payloads(tmp_path / "1.txn") == [entry(0), entry(1)]


def test_what_was_synced_leaves_the_page_cache_but_for_its_last_part(tmp_path: Path) -> None:
    for is_dropped, expected in ((True, 2), (False, 0)):
        disk = TracedDisk()
        directory = tmp_path / str(is_dropped)
        directory.mkdir()
        config = JournalConfig(is_dropped_from_page_cache=is_dropped)
        writer = JournalWriter.open(disk, str(directory), config, now_ms=0)
        for number in range(9):
            writer.write_group([entry(number, MEBIBYTE)])
        assert disk.take_calls().count(("drop", "1.txn")) == expected
        assert payloads(directory / "1.txn") == [entry(number, MEBIBYTE) for number in range(9)]
        writer.close()


def test_a_file_that_cannot_be_created_is_a_journal_failure(tmp_path: Path) -> None:
    with pytest.raises(JournalFailedError, match="cannot create"):
        JournalWriter.open(OsFileSystem(), str(tmp_path / "absent"), SMALL, now_ms=0)


def test_a_bad_record_stops_its_group_alone(tmp_path: Path) -> None:
    writer = JournalWriter.open(OsFileSystem(), str(tmp_path), SMALL, now_ms=0)
    before = writer.durable_position
    with pytest.raises(ValueError, match="23 bytes"):
        writer.write_group([entry(0), entry(1)[:23]])
    assert writer.durable_position == before
    writer.write_group([entry(2)])
    assert payloads(tmp_path / "1.txn") == [entry(2)]
    writer.close()


@pytest.mark.parametrize(
    ("backups", "mark_id", "left"),
    [(1, 5, [4, 5, 6]), (0, 5, [5, 6]), (5, 5, [1, 2, 3, 4, 5, 6]), (1, 1, [1, 2, 3, 4, 5, 6]), (2, 99, [5, 6])],
)
def test_only_files_wholly_before_the_mark_go(tmp_path: Path, backups: int, mark_id: int, left: list[int]) -> None:
    for number in range(1, 6):
        (tmp_path / f"{number}.txn").touch()
    (tmp_path / "0.txn.bak").touch()
    config = JournalConfig(backup_count_max=backups)
    writer = JournalWriter.open(OsFileSystem(), str(tmp_path), config, now_ms=0)
    assert writer.remove_older_than(LogMark(mark_id, 512)) == 6 - len(left)
    assert list_journals(OsFileSystem(), str(tmp_path)) == left
    assert (tmp_path / "0.txn.bak").exists()
    writer.close()


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(st.lists(st.integers(24, 2000), min_size=1, max_size=6), max_size=8))
def test_what_was_written_is_read(tmp_path_factory: pytest.TempPathFactory, groups: Sequence[Sequence[int]]) -> None:
    directory = tmp_path_factory.mktemp("journal")
    writer = JournalWriter.open(OsFileSystem(), str(directory), SMALL, now_ms=0)
    written: list[tuple[int, bytes]] = []
    for sizes in groups:
        records = [entry(len(written) + index, size) for index, size in enumerate(sizes)]
        mark = writer.write_group(records)
        written += [(mark.journal_id, bytes(record)) for record in records]
        assert mark.offset % 512 == 0
    writer.close()
    found: list[tuple[int, bytes]] = []
    for journal_id in list_journals(OsFileSystem(), str(directory)):
        scan = JournalScan(OsFileSystem(), str(directory / f"{journal_id:x}.txn"), is_newest=False)
        found += [(journal_id, record.payload) for record in scan]
        assert scan.end.dropped_bytes == 0
    assert found == written


def test_a_file_cut_anywhere_gives_the_whole_records_before_the_cut(tmp_path: Path) -> None:
    writer = JournalWriter.open(OsFileSystem(), str(tmp_path), SMALL, now_ms=0)
    records = [entry(0), encode_fence_record(1), entry(1, 470)]
    writer.write_group(records[:2])
    writer.write_group(records[2:])
    writer.close()
    path = tmp_path / "1.txn"
    whole = path.read_bytes()
    ends = [512 + 44, 512 + 44 + 20, 1024 + 474]
    for size in range(1536, 507, -1):
        with path.open("r+b") as stream:
            stream.truncate(size)
        scan = JournalScan(OsFileSystem(), str(path), is_newest=True)
        expected = [entry(0), b"", entry(1, 470)][: sum(end <= size for end in ends)]
        assert [record.payload for record in scan] == expected, size
        is_torn = any(start < size < end for start, end in ((512, 556), (556, 576), (1024, 1498)))
        # Cut behind the zeros that begin a length word, the file looks like one that ends there.
        is_torn = is_torn and any(whole[scan.end.data_end_offset : size])
        assert (scan.end.reason is JournalEndReason.TORN_RECORD) == is_torn, size
        assert (scan.end.dropped_bytes > 0) == is_torn, size
        assert scan.end.resume_offset >= size or scan.end.reason is JournalEndReason.ZEROS
