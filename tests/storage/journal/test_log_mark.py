from __future__ import annotations

import errno
import os
import struct
from pathlib import Path

import pytest

from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.checked_text import encode_checked_text
from bkctl.storage.errors import StorageError
from bkctl.storage.ids import LogMark
from bkctl.storage.journal.log_mark import (
    NO_MARK,
    decode_mark_record,
    encode_mark_record,
    find_replay_start,
    read_last_mark,
    write_last_mark,
)
from tests.storage.golden import FILES, content, paths
from tests.storage.traced_disk import TracedDisk

FS = OsFileSystem()


@pytest.fixture
def directories(tmp_path: Path) -> list[str]:
    names = [str(tmp_path / name) for name in ("a", "b", "c")]
    for name in names:
        FS.make_directories(name)
    return names


@pytest.mark.parametrize("name", paths("mark"))
def test_marks_of_java(tmp_path: Path, name: str) -> None:
    (tmp_path / "lastMark").write_bytes(content(name))
    mark = LogMark(int(FILES[name]["journal"], 16), FILES[name]["offset"])
    assert read_last_mark(FS, [str(tmp_path)], 0, 1) == mark
    (tmp_path / "lastMark").unlink()
    write_last_mark(FS, [str(tmp_path)], mark, 0, 1)
    assert (tmp_path / "lastMark").read_bytes() == content(name)


def test_the_worked_example(tmp_path: Path) -> None:
    write_last_mark(FS, [str(tmp_path)], LogMark(0x19A2B3C4D5E, 1024), 0, 1)
    assert (tmp_path / "lastMark").read_bytes().hex() == "0000019a2b3c4d5e0000000000000400"


def test_the_largest_mark_counts(directories: list[str]) -> None:
    for directory, mark in zip(directories, [LogMark(5, 100), LogMark(6, 7), LogMark(6, 6)], strict=True):
        write_last_mark(FS, [directory], mark, 0, 1)
    assert read_last_mark(FS, directories, 0, 1) == LogMark(6, 7)


@pytest.mark.parametrize(("data", "mark"), [(b"", NO_MARK), (bytes(8), NO_MARK), (b"\1" * 17, None)])
def test_short_files_are_skipped_and_long_ones_read(directories: list[str], data: bytes, mark: LogMark | None) -> None:
    (Path(directories[1]) / "lastMark").write_bytes(data)
    expected = mark if mark is not None else LogMark(0x0101010101010101, 0x0101010101010101)
    assert read_last_mark(FS, directories, 0, 1) == expected
    if mark is not None:
        write_last_mark(FS, directories, LogMark(1, 2), 0, 1)
        assert [read_last_mark(FS, [directory], 0, 1) for directory in directories] == [LogMark(1, 2)] * 3


def test_each_journal_has_a_mark_of_its_own(directories: list[str]) -> None:
    write_last_mark(FS, directories, LogMark(5, 1), 0, 2)
    write_last_mark(FS, directories, LogMark(6, 2), 1, 2)
    assert [read_last_mark(FS, directories, index, 2) for index in range(2)] == [LogMark(5, 1), LogMark(6, 2)]
    assert read_last_mark(FS, directories, 0, 1) == NO_MARK


def test_a_mark_never_goes_back(directories: list[str]) -> None:
    write_last_mark(FS, directories[:1], LogMark(6, 600), 0, 1)
    write_last_mark(FS, directories, LogMark(6, 512), 0, 1)
    assert [read_last_mark(FS, [directory], 0, 1) for directory in directories[:2]] == [
        LogMark(6, 600),
        LogMark(6, 512),
    ]


class FullDirectory(TracedDisk):
    """Every write into one directory fails for want of room."""

    def __init__(self, directory: str) -> None:
        super().__init__()
        self._directory = directory

    def note(self, operation: str, path: str) -> None:
        super().note(operation, path)
        if operation == "replace" and path.startswith(self._directory + os.sep):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


@pytest.mark.parametrize("position", [0, 1, 2])
def test_a_full_directory_keeps_an_older_mark_and_is_named(directories: list[str], position: int) -> None:
    write_last_mark(FS, directories, LogMark(5, 512), 0, 1)
    full = FullDirectory(directories[position])
    [failure] = write_last_mark(full, directories, LogMark(6, 600), 0, 1)
    assert failure.filename == os.path.join(directories[position], "lastMark")
    assert failure.errno == errno.ENOSPC
    assert read_last_mark(FS, [directories[position]], 0, 1) == LogMark(5, 512)
    assert read_last_mark(FS, directories, 0, 1) == replay_start(directories) == LogMark(6, 600)


def test_a_mark_that_no_directory_takes_fails_the_checkpoint(directories: list[str]) -> None:
    disk = TracedDisk()
    disk.fail_on = "replace"
    with pytest.raises(StorageError, match="lastMark: cannot write the log mark"):
        write_last_mark(disk, directories, LogMark(1, 1), 0, 1)


# Mark records


def replay_start(directories: list[str], *, is_cataloged: bool = True) -> LogMark:
    return find_replay_start(FS, directories, 0, 1, is_cataloged=is_cataloged)


def put_mark(directory: str, mark: LogMark) -> None:
    (Path(directory) / "lastMark").write_bytes(struct.pack(">qq", *mark))


def test_the_text_of_a_record() -> None:
    data = encode_mark_record(LogMark(0x19A2B3C4D5E, 1024))
    assert data.decode().splitlines()[:-1] == ["bkctl mark 1", "journal 1761661963614", "offset 1024"]
    assert decode_mark_record(data) == LogMark(0x19A2B3C4D5E, 1024)
    assert decode_mark_record(encode_checked_text("bkctl mark 1", ["journal 1"])) is None
    assert decode_mark_record(encode_checked_text("bkctl mark 1", ["journal 01", "offset 2"])) is None


@pytest.mark.parametrize("other", [LogMark(5, 99), LogMark(6, 599), LogMark(6, 601), LogMark(2**60, 0)])
def test_the_record_is_believed(directories: list[str], other: LogMark) -> None:
    write_last_mark(FS, directories, LogMark(6, 600), 0, 1)
    put_mark(directories[0], other)
    assert replay_start(directories) == LogMark(6, 600)
    write_last_mark(FS, directories, LogMark(6, 600), 0, 1)
    assert read_last_mark(FS, directories[:1], 0, 1) == LogMark(6, 600), "lastMark was not put right"


def test_the_largest_intact_record_counts(directories: list[str]) -> None:
    for directory, mark in zip(directories, [LogMark(6, 600), LogMark(6, 700), LogMark(6, 800)], strict=True):
        write_last_mark(FS, [directory], mark, 0, 1)
    (Path(directories[2]) / "bkctl.mark").write_bytes(b"damaged")
    assert replay_start(directories) == LogMark(6, 700)


@pytest.mark.parametrize("is_damaged", [False, True])
def test_without_an_intact_record_all_is_replayed(directories: list[str], *, is_damaged: bool) -> None:
    """The last mark alone proves nothing where there ought to be a record."""
    put_mark(directories[0], LogMark(6, 600))
    if is_damaged:
        (Path(directories[1]) / "bkctl.mark").write_bytes(b"damaged")
    assert replay_start(directories, is_cataloged=not is_damaged) == NO_MARK


def test_a_directory_of_java_has_no_record(directories: list[str]) -> None:
    put_mark(directories[0], LogMark(6, 600))
    assert replay_start(directories, is_cataloged=False) == LogMark(6, 600)


def test_no_mark_is_recorded_without_a_last_mark(directories: list[str]) -> None:
    write_last_mark(FS, directories, NO_MARK, 0, 1)
    assert not (Path(directories[0]) / "lastMark").exists()
    assert replay_start(directories) == NO_MARK
    put_mark(directories[0], LogMark(6, 600))
    assert replay_start(directories, is_cataloged=False) == NO_MARK
