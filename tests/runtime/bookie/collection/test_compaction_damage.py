"""Damaged logs: left alone and listed, while everything else goes on; and what cannot be proven unused stays."""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path

import plyvel
import pytest

from bkctl.runtime.config import GarbageCollectionConfig
from bkctl.storage.disk_room import DiskRoom
from bkctl.storage.entry_log.format import HEADER_MAP_FIELDS_OFFSET
from bkctl.storage.entry_log.log_lists import read_quarantine, write_quarantine
from bkctl.storage.errors import CorruptFileError, EntryDamagedError, EntryLogError
from bkctl.storage.filenames import LOCATIONS_DATABASE, QUARANTINE
from bkctl.storage.ports import DiskSpace, File
from tests.runtime.bookie.conftest import MODES
from tests.runtime.bookie.open_logs import (
    ENTRIES,
    KEPT,
    SMALL_LOGS,
    TRANSACTIONAL,
    delete,
    fill,
    leftovers,
    log_names,
    open_logs,
    require_stored,
    stored,
)
from tests.storage.engines import open_engine
from tests.storage.traced_disk import TracedDisk


def patch(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def frame_offset(log: Path, ledger_id: int, entry_id: int) -> int:
    return log.read_bytes().index(stored(ledger_id, entry_id)) - 4


def swallow_what_follows(log: Path, ledger_id: int, entry_id: int) -> None:
    """Make an entry's size word cover the entry behind it as well."""
    offset = frame_offset(log, ledger_id, entry_id)
    (size,) = struct.unpack(">i", log.read_bytes()[offset : offset + 4])
    patch(log, offset, struct.pack(">i", 2 * size + 4))


@MODES
async def test_a_log_with_hidden_entries_is_quarantined_and_the_rest_goes_on(
    mixed: Path, config: GarbageCollectionConfig
) -> None:
    """The size word of a deleted entry grew over an entry in use: no scan sees that one any more."""
    damaged = mixed / "0.log"
    swallow_what_follows(damaged, 12, 0)  # ledger 1 entry 1 stands behind it
    before = damaged.read_bytes()
    async with open_logs(mixed, config=config) as logs:
        await logs.round()
        assert logs.collector.quarantined_count == 1
        assert damaged.read_bytes() == before
        assert log_names(mixed)[0] == "0.log"
        assert logs.metrics.logs_removed_count >= 2  # all the others
        require_stored(logs.engine, KEPT, ENTRIES)
    assert "ledger 1 entry 1" in read_quarantine(TracedDisk(), str(mixed))[0]

    async with open_logs(mixed, config=config) as logs:
        await logs.round()
        assert logs.collector.quarantined_count == 1
        assert damaged.read_bytes() == before
        require_stored(logs.engine, KEPT, ENTRIES)


async def test_a_quarantine_ends_when_the_file_is_deleted_and_the_log_is_whole_again(mixed: Path) -> None:
    damaged = mixed / "0.log"
    whole = damaged.read_bytes()
    swallow_what_follows(damaged, 12, 0)
    async with open_logs(mixed) as logs:
        await logs.round()
    damaged.write_bytes(whole)
    async with open_logs(mixed) as logs:
        await logs.round()
        assert damaged.exists()  # nobody has said so yet
    (mixed / QUARANTINE).unlink()
    async with open_logs(mixed) as logs:
        await logs.round()
        assert not damaged.exists()
        require_stored(logs.engine, KEPT, ENTRIES)


async def test_a_log_that_was_taken_away_leaves_the_quarantine(mixed: Path) -> None:
    write_quarantine(TracedDisk(), str(mixed), {0: "damaged", 99: "gone long ago"})
    async with open_logs(mixed) as logs:
        await logs.round()
        assert logs.collector.quarantined_count == 1
        os.rename(mixed / "0.log", mixed / "taken-away")
        await logs.round()
        assert logs.collector.quarantined_count == 0
    assert not (mixed / QUARANTINE).exists()


async def test_a_log_that_was_taken_away_while_the_bookie_was_stopped_leaves_the_file(mixed: Path) -> None:
    """A good copy of it that is put back one day is not the log that was damaged."""
    write_quarantine(TracedDisk(), str(mixed), {0: "damaged", 1: "damaged, too"})
    os.rename(mixed / "0.log", mixed / "taken-away")
    async with open_logs(mixed) as logs:
        await logs.round()
    os.rename(mixed / "taken-away", mixed / "0.log")
    assert read_quarantine(TracedDisk(), str(mixed)) == {1: "damaged, too"}


async def test_the_quarantine_of_the_only_log_ends_while_the_bookie_is_stopped(mixed: Path) -> None:
    write_quarantine(TracedDisk(), str(mixed), {99: "gone long ago"})
    async with open_logs(mixed) as logs:
        await logs.round()
    assert not (mixed / QUARANTINE).exists()


async def test_a_list_that_cannot_be_understood_is_reported_and_ignored(mixed: Path) -> None:
    (mixed / QUARANTINE).write_bytes(b"bkctl quarantine 1\n0.log anything\ncrc32 00000000\n")
    with pytest.raises(CorruptFileError, match="delete it"):
        read_quarantine(TracedDisk(), str(mixed))
    async with open_logs(mixed) as logs:
        assert await logs.round() == 0
        require_stored(logs.engine, KEPT, ENTRIES)


def test_reasons_are_kept_in_one_plain_line(tmp_path: Path) -> None:
    disk = TracedDisk()
    (tmp_path / "1f.log").touch()
    write_quarantine(disk, str(tmp_path), {0x1F: "näh\nspace   " + "x" * 1000})
    reason = read_quarantine(disk, str(tmp_path))[0x1F]
    assert reason.startswith("n\\xe4h space xxx")
    assert len(reason) == 300
    write_quarantine(disk, str(tmp_path), {})
    assert os.listdir(tmp_path) == ["1f.log"]


@pytest.mark.parametrize("fields", [b"\0" * 12, struct.pack(">qi", 2**40, 12), struct.pack(">qi", 1024, 5)])
async def test_a_log_without_a_usable_map_goes_when_no_row_names_it(mixed: Path, fields: bytes) -> None:
    patch(mixed / "0.log", HEADER_MAP_FIELDS_OFFSET, fields)
    async with open_logs(mixed) as logs:
        assert await logs.round() == 0
        assert not (mixed / "0.log").exists()
        assert logs.collector.quarantined_count == 0
        require_stored(logs.engine, KEPT, ENTRIES)


async def test_a_map_that_hides_a_ledger_in_use_deletes_nothing_of_it(mixed: Path) -> None:
    """The map says that only deleted ledgers are in the log."""
    log = mixed / "0.log"
    data = log.read_bytes()
    (map_offset,) = struct.unpack(">q", data[8:16])
    rows = map_offset + 24
    for row in range(12):
        (ledger_id,) = struct.unpack(">q", data[rows + 16 * row : rows + 16 * row + 8])
        if ledger_id in KEPT:
            patch(log, rows + 16 * row, struct.pack(">q", 1000 + ledger_id))
    async with open_logs(mixed) as logs:
        await logs.collector.resume()
        await logs.collector.refresh()
        assert any(usage.is_empty for usage in logs.collector.usages)
        assert await logs.round(None) == 1  # only a compaction copies, and a round may run beside one
        assert await logs.round(None) == 0
        assert log.exists()
        require_stored(logs.engine, KEPT, ENTRIES)
        await logs.round()
        assert not log.exists()
        require_stored(logs.engine, KEPT, ENTRIES)


@MODES
async def test_an_entry_without_a_row_proves_nothing_while_its_ledger_is_in_limbo(
    mixed: Path, config: GarbageCollectionConfig
) -> None:
    """The index was built while a log was away, and the log is back: it may hold the last copies there are."""
    open_engine(mixed, config=SMALL_LOGS).close()
    forget_row(mixed, 1, 0)
    async with open_logs(mixed, config=config) as logs:
        logs.engine.set_limbo(1)
        await logs.round(is_repair_due=True)
        assert stored(1, 0) in b"".join((mixed / name).read_bytes() for name in log_names(mixed))
        assert logs.metrics.logs_removed_count >= 2
        require_stored(logs.engine, [2, 3], ENTRIES)
        assert logs.engine.clear_limbo(1)
        await logs.round()
        assert stored(1, 0) not in b"".join((mixed / name).read_bytes() for name in log_names(mixed))
        assert logs.collector.quarantined_count == 0
        require_stored(logs.engine, [2, 3], ENTRIES)


async def test_a_log_in_which_a_read_found_damage_is_quarantined_though_all_of_it_is_in_use(tmp_path: Path) -> None:
    """Compaction would never come to it, and nobody but the reader would know."""
    directory = tmp_path / "current"
    engine = open_engine(directory, config=SMALL_LOGS)
    fill(engine, KEPT, ENTRIES)
    engine.close()
    log = directory / "0.log"
    offset = frame_offset(log, 2, 1)
    patch(log, offset + 12, struct.pack(">q", 99))
    async with open_logs(directory) as logs:
        await logs.round()
        assert logs.collector.quarantined_count == 0
        for _ in range(2):
            with pytest.raises(EntryDamagedError, match="found 2:99 instead"):
                logs.engine.stored.read(2, 1)
        await logs.round()
        assert logs.collector.quarantined_count == 1
    assert read_quarantine(TracedDisk(), str(directory))[0] == f"entry 2:1 at offset {offset + 4}: found 2:99 instead"
    patch(log, offset + 12, struct.pack(">q", 1))
    async with open_logs(directory) as logs:
        require_stored(logs.engine, KEPT, ENTRIES)


async def test_damage_in_the_active_log_is_told_when_the_log_is_finished(tmp_path: Path) -> None:
    directory = tmp_path / "current"
    open_engine(directory, config=SMALL_LOGS).close()
    async with open_logs(directory) as logs:
        fill(logs.engine, [1], [0])
        patch(directory / "0.log", 1024 + 4, struct.pack(">q", 77))
        with pytest.raises(EntryDamagedError):
            logs.engine.stored.find_last(1)
        await logs.round()
        assert logs.collector.quarantined_count == 0
        fill(logs.engine, [2], range(40))
        await logs.round()
        assert logs.collector.quarantined_count == 1


async def test_what_a_disk_refuses_to_read_is_no_damage_of_the_log(mixed: Path) -> None:
    class FailingDisk(TracedDisk):
        def open(self, path: str, *, writable: bool = False) -> File:
            if path.endswith("0.log"):
                raise OSError(errno.EIO, "as if the disk failed")
            return super().open(path, writable=writable)

    async with open_logs(mixed, disk=FailingDisk()) as logs:
        with pytest.raises(EntryLogError, match="as if the disk failed"):
            logs.engine.stored.read(1, 0)
        await logs.collector.resume()
        await logs.collector.refresh()
        assert logs.collector.quarantined_count == 0


def forget_row(directory: Path, ledger_id: int, entry_id: int) -> None:
    database = plyvel.DB(str(directory / LOCATIONS_DATABASE))
    database.delete(struct.pack(">qq", ledger_id, entry_id))
    database.close()


@pytest.mark.parametrize("left_bytes", [0, 700, 1024, 1030, 3000])
async def test_a_cut_log_is_no_reason_to_lose_what_is_left_of_it(mixed: Path, left_bytes: int) -> None:
    log = mixed / "0.log"
    elsewhere = b"".join((mixed / name).read_bytes() for name in log_names(mixed) if name != "0.log")
    left = elsewhere + log.read_bytes()[:left_bytes]
    readable = [
        (ledger_id, entry_id) for ledger_id in KEPT for entry_id in ENTRIES if stored(ledger_id, entry_id) in left
    ]
    os.truncate(log, left_bytes)
    async with open_logs(mixed) as logs:
        await logs.round()
        # Of the longest piece all entries are in use: it looks like a log that need not be compacted.
        assert logs.collector.quarantined_count == (left_bytes < 3000)
        assert log.exists()
        for ledger_id, entry_id in readable:
            require_stored(logs.engine, [ledger_id], [entry_id])
        # What was cut off is an error, before and after: never "not there".
        for ledger_id in KEPT:
            for entry_id in ENTRIES:
                if (ledger_id, entry_id) not in readable:
                    with pytest.raises(Exception, match="log"):
                        logs.engine.stored.read(ledger_id, entry_id)


async def test_a_log_that_cannot_be_read_now_is_tried_again(mixed: Path) -> None:
    whole = (mixed / "0.log").read_bytes()
    (mixed / "0.log").unlink()
    (mixed / "0.log").mkdir()
    async with open_logs(mixed) as logs:
        assert await logs.round() >= 1
        assert logs.collector.quarantined_count == 0
        (mixed / "0.log").rmdir()
        (mixed / "0.log").write_bytes(whole)
        logs.engine._files.log_reader.forget(0)
        assert await logs.round() == 0
        assert not (mixed / "0.log").exists()
        require_stored(logs.engine, KEPT, ENTRIES)


async def test_a_damaged_finished_log_of_a_compaction_is_left_alone_with_its_source(mixed: Path) -> None:
    class FailingDisk(TracedDisk):
        def link(self, source: str, target: str) -> None:
            super().link(source, target)
            if target.endswith(".compacted"):
                raise OSError(5, "as if killed here")

    async with open_logs(mixed, disk=FailingDisk(), config=TRANSACTIONAL) as logs:
        await logs.round()
    (compacted,) = [name for name in leftovers(mixed) if name.endswith(".compacted")][:1]
    finished = mixed / compacted
    patch(finished, 1024, b"\x7f")
    source = f"{compacted.split('.')[2]}.log"
    async with open_logs(mixed) as logs:
        await logs.round()
        assert logs.collector.quarantined_count >= 2
        assert (mixed / source).exists()
        assert finished.exists()
        require_stored(logs.engine, KEPT, ENTRIES)


class FullDisk(TracedDisk):
    """Says that hardly anything is free."""

    def space(self, path: str) -> DiskSpace:
        return DiskSpace(10**9, 1000, 1)


@MODES
async def test_nothing_is_copied_without_room_but_empty_logs_go(mixed: Path, config: GarbageCollectionConfig) -> None:
    disk = FullDisk()
    async with open_logs(mixed, disk=disk, config=config, room=DiskRoom(disk, [str(mixed)], 0)) as logs:
        before = log_names(mixed)
        assert await logs.round() >= 1
        assert len(log_names(mixed)) >= len(before) - 1  # one of them holds nothing but deleted ledgers
        assert logs.metrics.copied_entries_count == 0
        delete(logs.engine, KEPT)
        await logs.round()
        assert log_names(mixed) == []
        assert logs.metrics.copied_entries_count == 0
