from __future__ import annotations

from pathlib import Path

import pytest

from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.bookie_status import (
    BookieStatus,
    decode_bookie_status,
    encode_bookie_status,
    read_bookie_status,
    write_bookie_status,
)


@pytest.mark.parametrize("is_read_only", [True, False])
@pytest.mark.parametrize("is_manual", [True, False])
def test_what_is_written_is_read(is_read_only: bool, is_manual: bool) -> None:
    status = BookieStatus(is_read_only, 1754042400000, is_manual)
    assert decode_bookie_status(encode_bookie_status(status)) == status


def test_the_line_is_that_of_the_sheet() -> None:
    assert encode_bookie_status(BookieStatus(True, 1754042400000, False)) == b"1,READ_ONLY,1754042400000,false\n"


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (b"1,READ_ONLY,5\n", BookieStatus(True, 5, True)),
        (b"1,READ_WRITE,5", BookieStatus(False, 5, True)),
        (b"1,READ_ONLY,5,false\r\nrest", BookieStatus(True, 5, False)),
        (b"", None),
        (b"1", None),
        (b"1,READ_ONLY", None),
        (b"2,READ_ONLY,5,false\n", None),
        (b"1,READ_ONLY,-5,false\n", None),
        (b"1,READ_ONLY,\xd9\xa3,false\n", None),
        (b"1,READONLY,5,false\n", None),
        (b"1,READ_ONLY,5,no\n", None),
        (b"1,READ_ONLY,5,false,more\n", None),
        (b"\xff\xfe\n", None),
    ],
)
def test_other_lines(line: bytes, status: BookieStatus | None) -> None:
    assert decode_bookie_status(line) == status


def test_the_newest_of_all_directories_counts(tmp_path: Path) -> None:
    directories = [str(tmp_path / name) for name in ("a", "b", "c")]
    for directory in directories:
        Path(directory).mkdir()
    disk = OsFileSystem()
    assert read_bookie_status(disk, directories) is None
    assert write_bookie_status(disk, directories, BookieStatus(True, 5, True)) is None
    assert write_bookie_status(disk, directories[1:2], BookieStatus(False, 6, True)) is None
    (tmp_path / "c" / "BOOKIE_STATUS").write_bytes(b"1,READ_ON")
    assert read_bookie_status(disk, directories) == BookieStatus(False, 6, True)


def test_a_status_is_never_half_written_and_one_full_directory_keeps_no_other_from_it(tmp_path: Path) -> None:
    """H14: a status rewritten in place is gone when the disk is full, just when it matters."""
    directories = [str(tmp_path / name) for name in ("a", "b")]
    for directory in directories:
        Path(directory).mkdir()
    disk = OsFileSystem()
    assert write_bookie_status(disk, directories, BookieStatus(False, 5, False)) is None
    (tmp_path / "a" / "BOOKIE_STATUS.tmp").symlink_to("/dev/full")
    error = write_bookie_status(disk, directories, BookieStatus(True, 6, False))
    assert error is not None
    assert (tmp_path / "a" / "BOOKIE_STATUS").read_bytes() == b"1,READ_WRITE,5,false\n"
    assert read_bookie_status(disk, directories) == BookieStatus(True, 6, False)
