"""The small parts of compaction on disk: names, the finished log, reading the source, sweeping the index."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bkctl.storage.config import EntryLogConfig
from bkctl.storage.engine.relocation import CompactionSource, SourceEntry
from bkctl.storage.engine.replay import checkpoint_now
from bkctl.storage.entry_log.compaction_log import (
    CompactedLog,
    CompactedLogWriter,
    list_compacted_logs,
    remove_unfinished_logs,
)
from bkctl.storage.entry_log.reader import EntryLogReader
from bkctl.storage.errors import CorruptFileError
from bkctl.storage.filenames import (
    ENTRY_LOG_ID_MAX,
    compacted_file_name,
    compacting_file_name,
    parse_compacted_file_name,
    parse_compacting_file_name,
)
from bkctl.storage.ids import EntryLocation
from tests.storage.engines import KEY, SMALL, entry, open_engine
from tests.storage.traced_disk import TracedDisk

LOG_IDS = st.integers(0, ENTRY_LOG_ID_MAX)


@given(LOG_IDS, LOG_IDS)
def test_names_of_a_compaction_come_back(log_id: int, source_log_id: int) -> None:
    assert parse_compacted_file_name(compacted_file_name(log_id, source_log_id)) == (log_id, source_log_id)
    assert parse_compacting_file_name(compacting_file_name(log_id)) == log_id


@pytest.mark.parametrize(
    "name",
    ["1.log", "1.log.compacting", "1.log.2", "1.log.x.compacted", "01.log.2.compacted", "1.log.2.3.compacted",
     "1.txn.2.compacted", "1.log.80000000.compacted", "compacted", "1.log.2.compacted.tmp"],
)  # fmt: skip
def test_other_names_are_no_finished_log(name: str) -> None:
    assert parse_compacted_file_name(name) is None


@pytest.mark.parametrize("name", ["1.log", "x.log.compacting", "01.log.compacting", "1.log.compacting.tmp"])
def test_other_names_are_no_unfinished_log(name: str) -> None:
    assert parse_compacting_file_name(name) is None


def test_the_finished_log_is_one_that_java_reads_whole(tmp_path: Path) -> None:
    """H7: the id in the name is hexadecimal; header and map are there before anybody sees it."""
    disk = TracedDisk()
    writer = CompactedLogWriter(disk, str(tmp_path), 0x1F, 0xA)
    bodies = [(number % 2, entry(number % 2, number)) for number in range(5)]
    writer.append(bodies[:3])
    writer.append(bodies[3:])
    compacted = writer.finish()
    assert compacted == CompactedLog(str(tmp_path), 0x1F, 0xA)
    assert disk.list_directory(str(tmp_path)) == ["1f.log.a.compacted"]
    compacted.publish(disk)
    compacted.publish(disk)
    reader = EntryLogReader(disk, str(tmp_path), EntryLogConfig())
    found = [(each.ledger_id, each.entry_id, each.location) for each in reader.scan(0x1F)]
    assert [ids[:2] for ids in found] == [(number % 2, number) for number in range(5)]
    assert [reader.read(place, *ids) for *ids, place in found] == [body for _, body in bodies]
    assert reader.stored_ledgers_map(0x1F) == {0: 3 * 40, 1: 2 * 40}
    compacted.forget(disk)
    compacted.forget(disk)
    assert disk.list_directory(str(tmp_path)) == ["1f.log"]


def test_everything_is_durable_before_the_name_that_says_so(tmp_path: Path) -> None:
    disk = TracedDisk()
    writer = CompactedLogWriter(disk, str(tmp_path), 2, 1)
    writer.append([(5, entry(5, 0))])
    writer.finish().publish(disk)
    kinds = [call for call in disk.take_calls() if call[0] != "write"]
    assert kinds == [
        ("create", "2.log.compacting"),
        ("sync", "2.log.compacting"),
        ("link", "2.log.1.compacted"),
        ("sync directory", tmp_path.name),
        ("remove", "2.log.compacting"),
        ("link", "2.log"),
        ("sync directory", tmp_path.name),
    ]


def test_a_log_given_up_leaves_nothing(tmp_path: Path) -> None:
    disk = TracedDisk()
    writer = CompactedLogWriter(disk, str(tmp_path), 2, 1)
    writer.abandon()
    writer.append([(5, entry(5, 0))])
    writer.abandon()
    writer.abandon()
    assert disk.list_directory(str(tmp_path)) == []


def test_only_what_a_compaction_left_is_found(tmp_path: Path) -> None:
    for name in ("1.log", "2.log.compacting", "x.log.compacting", "1f.log.a.compacted", "1f.log.x.compacted", "3.txn"):
        (tmp_path / name).touch()
    disk = TracedDisk()
    assert remove_unfinished_logs(disk, str(tmp_path)) == 1
    assert list_compacted_logs(disk, str(tmp_path)) == [CompactedLog(str(tmp_path), 0x1F, 0xA)]
    assert disk.list_directory(str(tmp_path)) == [
        "1.log", "1f.log.a.compacted", "1f.log.x.compacted", "3.txn", "x.log.compacting",
    ]  # fmt: skip


def test_the_source_gives_what_the_index_names_here(tmp_path: Path) -> None:
    engine = open_engine(tmp_path, config=SMALL)
    engine.rows.set_master_key(5, KEY)
    for entry_id in range(6):
        engine.add(5, entry_id, entry(5, entry_id, bytes([entry_id]) * (entry_id * 1500)))
    checkpoint_now(engine)
    places = engine.relocation.current_locations([(5, entry_id) for entry_id in range(6)])
    found = [
        SourceEntry(5, entry_id, place.offset, 32 + entry_id * 1500)
        for entry_id, place in enumerate(places)
        if place is not None and place.log_id == 0
    ]
    assert len(found) >= 3
    engine.add(5, 1, entry(5, 1, b"again"))
    checkpoint_now(engine)
    source = CompactionSource(TracedDisk(), engine.relocation, 0)
    shifted = [found[0]._replace(offset=found[0].offset + 1)]
    live, unplaced = source.select_live([*found, *shifted])
    assert (live, unplaced) == ([each for each in found if each.entry_id != 1], frozenset())
    live, unplaced = source.select_live([*found, SourceEntry(5, 99, 1028, 32)])
    assert (len(live), unplaced) == (len(found) - 1, frozenset({5}))
    assert source.read_bodies(found) == [
        entry(5, each.entry_id, bytes([each.entry_id]) * (each.entry_id * 1500)) for each in found
    ]
    assert source.read_bodies([]) == []
    for wrong in (found[1]._replace(size_bytes=31), found[1]._replace(entry_id=4), found[-1]._replace(offset=10**6)):
        with pytest.raises(CorruptFileError, match=r"0\.log"):
            source.read_bodies([wrong])
    source.close()
    source.close()
    engine.close()


@pytest.mark.parametrize("ledger_ids", [None, [], [0], [3], [0, 1, 2**62], [2**62, 2**62 + 1], [0, 3, 2**62]])
def test_a_sweep_finds_every_row_that_names_a_log(tmp_path: Path, ledger_ids: list[int] | None) -> None:
    engine = open_engine(tmp_path, config=SMALL)
    for ledger_id in (0, 3, 2**62):
        engine.rows.set_master_key(ledger_id, KEY)
        for entry_id in range(14):
            engine.add(ledger_id, entry_id, entry(ledger_id, entry_id, bytes(1000)))
        checkpoint_now(engine)
    keys = [(ledger_id, entry_id) for ledger_id in (0, 3, 2**62) for entry_id in range(14)]
    expected = [
        (*key, place)
        for key, place in zip(keys, engine.relocation.current_locations(keys), strict=True)
        if place is not None and place.log_id in {0, 2} and (ledger_ids is None or key[0] in ledger_ids)
    ]
    found: list[tuple[int, int, EntryLocation]] = []
    start: bytes | None = b""
    while start is not None:
        rows = engine.relocation.rows_naming({0, 2, 77}, ledger_ids, start, 7)
        found += rows.found
        start = rows.next_start
    assert found == expected
    assert ledger_ids or {place.log_id for _, _, place in found} == (set() if ledger_ids == [] else {0, 2})
    engine.close()
