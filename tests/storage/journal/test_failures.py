"""Every system call of a journal fails in turn, for good or for want of room: what was acknowledged is there."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest

from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.config import JournalConfig
from bkctl.storage.errors import JournalError, JournalFailedError, JournalFullError
from bkctl.storage.ids import LogMark
from bkctl.storage.journal.catalog import read_catalog
from bkctl.storage.journal.reader import JournalScan, journals_to_replay
from bkctl.storage.journal.writer import JournalWriter
from bkctl.storage.ports import Buffer, File
from tests.storage.traced_disk import TracedDisk, TracedFile

ADVICE = {"drop", "write back"}
"""What cannot fail."""
CONFIG = JournalConfig(size_bytes_max=4096, preallocation_bytes=2048)
SIZES = [40, 900, 3000, 100, 5000, 40, 40, 2500, 700]
"""Groups that make the file grow by no, one and several steps, and roll it twice."""


class FailingDisk(TracedDisk):
    """One call fails, counted from the start: a write may have got some of the way."""

    def __init__(self, number: int, error_number: int) -> None:
        super().__init__()
        self.left = number
        self._error_number = error_number
        self.failed: tuple[str, str] | None = None

    def note(self, operation: str, path: str) -> None:
        super().note(operation, path)
        if operation in ADVICE:
            return
        self.left -= 1
        if self.left == -1:
            self.failed = self.calls[-1]
            raise OSError(self._error_number, os.strerror(self._error_number), path)


def entry(entry_id: int, size: int) -> bytes:
    return struct.pack(">qqqq", 1, entry_id, entry_id - 1, 0).ljust(size, b"x")


def write(disk: FailingDisk, directory: Path, *, is_retried: bool) -> list[bytes]:
    """Write all groups, or up to the failure; what was acknowledged."""
    acknowledged: list[bytes] = []
    try:
        writer = JournalWriter.open(disk, str(directory), CONFIG, now_ms=0)
    except JournalError:
        return acknowledged
    for entry_id, size in enumerate(SIZES):
        group = [entry(entry_id, size)]
        try:
            writer.write_group(group)
        except JournalFullError:
            assert is_retried, "what is not want of room must be final"
            writer.write_group(group)
        except JournalFailedError:
            disk.left = 1 << 30
            calls = len(disk.calls)
            with pytest.raises(JournalFailedError, match="an earlier write failed"):
                writer.write_group(group)
            assert len(disk.calls) == calls, "the disk was touched after a failure"
            break
        acknowledged += group
    writer.close()
    return acknowledged


def read(directory: Path) -> list[bytes]:
    """What replay finds, by the catalog; a file whose creation failed holds nothing."""
    disk = TracedDisk()
    catalog = read_catalog(disk, str(directory))
    found: list[bytes] = []
    journal_ids = journals_to_replay(disk, str(directory), LogMark(0, 0), catalog)
    for journal_id in journal_ids:
        scan = JournalScan(
            disk,
            str(directory / f"{journal_id:x}.txn"),
            is_newest=journal_id == journal_ids[-1],
            cataloged=catalog.find(journal_id),
        )
        found += [record.payload for record in scan]
    return found


def call_count(tmp_path: Path) -> int:
    directory = tmp_path / "whole"
    directory.mkdir()
    disk = FailingDisk(1 << 30, errno.EIO)
    assert len(write(disk, directory, is_retried=False)) == len(SIZES)
    assert len(read_catalog(disk, str(directory)).journals) == 3
    return len([call for call in disk.calls if call[0] not in ADVICE])


def test_a_call_that_fails_loses_nothing_acknowledged(tmp_path: Path) -> None:
    records = [entry(entry_id, size) for entry_id, size in enumerate(SIZES)]
    for number in range(call_count(tmp_path)):
        directory = tmp_path / str(number)
        directory.mkdir()
        disk = FailingDisk(number, errno.EIO)
        acknowledged = write(disk, directory, is_retried=False)
        found = read(directory)
        assert acknowledged == records[: len(acknowledged)]
        assert found[: len(acknowledged)] == acknowledged, disk.failed
        assert found == records[: len(found)], disk.failed
        assert len(found) <= len(acknowledged) + 1, "only the group that failed may be there"


@pytest.mark.parametrize("error_number", [errno.ENOSPC, errno.EDQUOT])
def test_no_room_for_a_write_is_waited_for_a_failed_sync_is_final(tmp_path: Path, error_number: int) -> None:
    """At a group, at preallocation and at a roll; a sync that had no room is as final as any."""
    records = [entry(entry_id, size) for entry_id, size in enumerate(SIZES)]
    ends: set[tuple[str, bool]] = set()
    for number in range(call_count(tmp_path)):
        directory = tmp_path / str(number)
        directory.mkdir()
        disk = FailingDisk(number, error_number)
        acknowledged = write(disk, directory, is_retried=True)
        assert read(directory)[: len(acknowledged)] == acknowledged, disk.failed
        assert disk.failed is not None
        if disk.failed != ("sync", "1.txn") and acknowledged:
            ends.add((disk.failed[0], acknowledged == records))
    assert {("write", True), ("create", True), ("replace", True)} <= ends
    assert ("sync", False) in ends
    assert ("write", False) not in ends


def test_leftovers_of_a_group_that_found_no_room_do_not_stand_behind_a_shorter_one(tmp_path: Path) -> None:
    disk = PartialDisk()
    writer = JournalWriter.open(disk, str(tmp_path), JournalConfig(preallocation_bytes=65536), now_ms=0)
    writer.write_group([entry(0, 700)])
    disk.is_full = True
    with pytest.raises(JournalFullError, match="no space for the journal"):
        writer.write_group([entry(1, 9000)])
    disk.is_full = False
    disk.take_calls()
    start = writer.durable_position.offset
    writer.write_group([entry(2, 100)])
    writer.close()
    assert read(tmp_path) == [entry(0, 700), entry(2, 100)]
    # Else power that goes before the group's own sync could leave a sector of the other one among its own.
    assert not any(disk.found[start:])
    assert [name for name, _ in disk.take_calls()][-4:] == ["write", "sync", "write", "sync"]


class PartialDisk(TracedDisk):
    """While it is full, a write gets all the way to the page cache but for its last bytes."""

    is_full = False
    found = b""
    """What was in the file before the last write."""

    def create(self, path: str) -> File:
        return PartialFile(self, OsFileSystem.create(self, path))


class PartialFile(TracedFile):
    def __init__(self, disk: PartialDisk, file: File) -> None:
        super().__init__(disk, file)
        self._partial_disk = disk

    def pwritev(self, parts: Sequence[Buffer], offset: int) -> int:
        if self._partial_disk.is_full:
            super().pwrite(b"".join(parts)[:-300], offset)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._partial_disk.found = self.pread(self.size(), 0)
        return super().pwritev(parts, offset)


class EndedError(BaseException):
    """The process ends here."""


class EndingDisk(TracedDisk):
    """The process ends behind so many writes of parts."""

    left = 1 << 30

    def create(self, path: str) -> File:
        return EndingFile(self, OsFileSystem.create(self, path))


class EndingFile(TracedFile):
    def __init__(self, disk: EndingDisk, file: File) -> None:
        super().__init__(disk, file)
        self._ending_disk = disk

    def pwritev(self, parts: Sequence[Buffer], offset: int) -> int:
        self._ending_disk.left -= 1
        if self._ending_disk.left < 0:
            raise EndedError
        return super().pwritev(parts, offset)


@pytest.mark.parametrize("sizes", [[1003] * 1000, [33, 5000, 40_000, 777] * 25, [150_001] * 7])
def test_a_process_that_ends_within_a_long_group_leaves_a_torn_tail(tmp_path: Path, sizes: list[int]) -> None:
    """Never what looks like damage: that would refuse the next start."""
    first = entry(0, 700)
    group = [entry(number, size) for number, size in enumerate(sizes, 1)]
    write_counts = []
    for count in range(8):
        directory = tmp_path / str(count)
        directory.mkdir()
        disk = EndingDisk()
        writer = JournalWriter.open(disk, str(directory), JournalConfig(), now_ms=0)
        writer.write_group([first])
        disk.left = count
        try:
            writer.write_group(group)
        except EndedError:
            write_counts.append(count)
            assert read(directory)[:1] == [first]
        else:
            assert read(directory) == [first, *group]
        writer.close()
    assert len(write_counts) >= 3
