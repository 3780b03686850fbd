"""Groups written before the sync of the one before them: what a crash can leave of two, and what shows damage."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterable
from pathlib import Path

import pytest

from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.config import JournalConfig
from bkctl.storage.errors import CorruptFileError
from bkctl.storage.ids import LogMark
from bkctl.storage.journal.catalog import read_catalog
from bkctl.storage.journal.reader import JournalEnd, JournalScan
from bkctl.storage.journal.writer import JournalWriter

FS = OsFileSystem()
SECTOR_BYTES = 512


def entry(entry_id: int, size_bytes: int) -> bytes:
    return struct.pack(">qqqq", 5, entry_id, entry_id - 1, 0) + b"x" * size_bytes


class Written:
    """A file of several groups, each of them synced at once, or while the next one was written."""

    def __init__(self, directory: Path, groups: list[list[bytes]], are_synced: Iterable[bool]) -> None:
        writer = JournalWriter.open(FS, str(directory), JournalConfig(preallocation_bytes=64 * 1024), now_ms=0)
        self.path = directory / "1.txn"
        self.groups = groups
        self.bounds = [512]
        durable_end = 512
        self.are_followed_early: list[bool] = []
        for group, is_synced in zip(groups, are_synced, strict=True):
            if len(self.bounds) > 1:  # a sync that began before the last group was written has ended
                writer._durable = max(writer.durable_position, LogMark(1, self.bounds[-2]))
            self.are_followed_early.append(writer.has_unsynced)
            self.bounds.append(writer.write_group(group, is_synced=is_synced).offset)
            durable_end = writer.durable_position.offset
        self.are_followed_early = [*self.are_followed_early[1:], False]
        self.durable_count = self.bounds.index(durable_end)
        writer.close()
        self.data = self.path.read_bytes()

    def sectors(self, groups: Iterable[int]) -> list[int]:
        """Offsets of all sectors of some groups."""
        return [at for each in groups for at in range(self.bounds[each], self.bounds[each + 1], SECTOR_BYTES)]

    def without(self, sectors: Iterable[int]) -> tuple[list[bytes], JournalEnd]:
        """What is read if some sectors are zeros."""
        data = bytearray(self.data)
        for at in sectors:
            data[at : at + SECTOR_BYTES] = bytes(SECTOR_BYTES)
        self.path.write_bytes(data)
        catalog = read_catalog(FS, str(self.path.parent))
        scan = JournalScan(FS, str(self.path), is_newest=True, cataloged=catalog.find(1))
        return [record.payload for record in scan], scan.end


@pytest.mark.parametrize("shift", range(24))
def test_every_way_to_tear_two_groups_boots_with_all_before_them(tmp_path: Path, shift: int) -> None:
    groups = [[entry(0, 700)], [entry(1, 430 + shift), entry(2, 940)], [entry(3, 3), entry(4, 900 + shift)]]
    written = Written(tmp_path, groups, [True, False, False])
    assert written.durable_count == 1
    sectors = written.sectors([1, 2])
    assert len(sectors) >= 5
    for missing in itertools.product([False, True], repeat=len(sectors)):
        torn = list(itertools.compress(sectors, missing))
        records, end = written.without(torn)
        assert records[:1] == groups[0], torn
        if not torn:
            assert (records, end.dropped_bytes) == ([record for group in groups for record in group], 0)


@pytest.mark.parametrize("are_synced", list(itertools.product([False, True], repeat=5)))
def test_a_synced_group_that_lost_a_sector_stops_the_boot_if_a_later_one_proves_its_sync(
    tmp_path: Path, are_synced: tuple[bool, ...]
) -> None:
    groups = [[entry(number, 300 + 160 * number)] for number in range(5)]
    written = Written(tmp_path, groups, are_synced)
    for damaged in range(written.durable_count):
        is_proven = damaged < len(groups) - (2 if written.are_followed_early[damaged] else 1)
        for sector in written.sectors([damaged]):
            if is_proven:
                with pytest.raises(CorruptFileError):
                    written.without([sector])
            else:
                assert written.without([sector])[0][:damaged] == [record for [record] in groups[:damaged]]


@pytest.mark.parametrize("is_first_synced", [False, True])
def test_what_is_left_of_a_last_group_proves_that_the_one_before_it_was_synced_unless_that_one_says_otherwise(
    tmp_path: Path, *, is_first_synced: bool
) -> None:
    """The last one is torn and has no checksum any more: the one before it, which is damaged, speaks for both."""
    written = Written(tmp_path, [[entry(0, 700)], [entry(1, 700)], [entry(2, 1500)]], [True, is_first_synced, False])
    sectors = written.sectors([1])[:1] + written.sectors([2])[-1:]
    if is_first_synced:
        with pytest.raises(CorruptFileError, match="followed by a later group"):
            written.without(sectors)
    else:
        assert written.without(sectors)[0] == [entry(0, 700)]


def test_what_is_left_of_a_third_group_proves_that_the_first_was_synced(tmp_path: Path) -> None:
    groups = [[entry(0, 700)], [entry(1, 700)], [entry(2, 700)], [entry(3, 1500)]]
    written = Written(tmp_path, groups, [True, False, False, False])
    assert written.durable_count == 2
    for torn in (written.sectors([3])[-1:], written.sectors([3])[1:], written.sectors([2, 3])[-1:]):
        for sector in written.sectors([1]):
            with pytest.raises(CorruptFileError, match="followed by a later group"):
                written.without([sector, *torn])
