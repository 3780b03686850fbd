from __future__ import annotations

import errno
import resource
from pathlib import Path

import pytest

from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.config import EntryLogConfig, JournalConfig
from bkctl.storage.disk_room import RESERVE_BYTES_MAX, DiskRoom, file_limit_advice, is_out_of_room
from bkctl.storage.entry_log.writer import EntryLogWriter
from bkctl.storage.errors import EntryLogError, JournalFullError
from bkctl.storage.journal.writer import JournalWriter
from bkctl.storage.ports import DiskSpace
from tests.storage.engines import entry


class SizedDisk(OsFileSystem):
    """The real disk, but for its size: there is no other way to have one of 2^60 bytes."""

    def __init__(self, total_bytes: int, usable_bytes: int) -> None:
        self._space = DiskSpace(total_bytes, usable_bytes, 0)

    def space(self, path: str) -> DiskSpace:
        return self._space


@pytest.mark.parametrize(
    ("total_bytes", "usable_bytes", "needed_bytes", "has_room"),
    [
        (1000, 50, 0, True),
        (1000, 49, 0, False),
        (1000, 60, 10, True),
        (1000, 60, 11, False),
        (2**60, RESERVE_BYTES_MAX, 0, True),
        (2**60, RESERVE_BYTES_MAX, 1, False),
        (0, 0, 10, True),  # it cannot tell
    ],
)
def test_the_last_of_a_disk_is_kept(total_bytes: int, usable_bytes: int, needed_bytes: int, has_room: bool) -> None:
    room = DiskRoom(SizedDisk(total_bytes, usable_bytes), ["/ledgers"])
    if has_room:
        room.require(needed_bytes)
    else:
        with pytest.raises(OSError, match=r"B are free, .* B more are needed: '/ledgers'") as raised:
            room.require(needed_bytes)
        assert raised.value.errno == errno.ENOSPC
        assert is_out_of_room(raised.value)


def test_a_limit_on_file_sizes_is_waited_for_but_is_no_full_disk(tmp_path: Path) -> None:
    """The next file may have the room that this one has not, and the limit can be raised meanwhile."""
    journal = JournalWriter.open(OsFileSystem(), str(tmp_path), JournalConfig(preallocation_bytes=4096), now_ms=0)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, limits[1]))
    try:
        with pytest.raises(JournalFullError, match=r"File too large.*; the disk is not full, .*ulimit -f") as raised:
            journal.write_group([entry(1, 0, bytes(16_000))])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert is_out_of_room(raised.value)
    journal.write_group([entry(1, 0, bytes(16_000))])
    journal.close()
    assert file_limit_advice(OSError(errno.ENOSPC, "No space left on device")) == ""


def test_a_real_disk(tmp_path: Path) -> None:
    room = DiskRoom(OsFileSystem(), [str(tmp_path)])
    with pytest.raises(OSError, match=str(tmp_path)):
        room.require(2**62)


def test_the_reason_behind_an_error_counts(tmp_path: Path) -> None:
    writer = EntryLogWriter.open(OsFileSystem(), str(tmp_path), EntryLogConfig())
    (tmp_path / "lastId.tmp").symlink_to("/dev/full")
    with pytest.raises(EntryLogError) as raised:
        writer.append([(1, bytes(100))])
    assert is_out_of_room(raised.value)
    assert not is_out_of_room(OSError(errno.EIO, "I/O error"))
    assert not is_out_of_room(EntryLogError("no cause"))
