from __future__ import annotations

from pathlib import Path

import pytest

from storage.errors import StorageError
from storage.filesystem import OsFileSystem
from storage.ids import LogMark
from storage.log_mark import NO_MARK, read_last_mark, write_last_mark
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


def test_a_mark_that_cannot_be_written_fails_the_checkpoint(directories: list[str]) -> None:
    disk = TracedDisk()
    disk.fail_on = "replace"
    with pytest.raises(StorageError, match="lastMark: the log mark cannot be written"):
        write_last_mark(disk, directories, LogMark(1, 1), 0, 1)
