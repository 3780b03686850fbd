"""Deleting a bookie's data, interrupted before each of its changes to the disk."""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from bkctl.runtime.bookie.cookies.directories import read_directory
from bkctl.runtime.metadata.bookies.cookies import Cookie, encode_cookie
from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.offline.format_directories import begin_format, delete_data, end_format

FILES = ("0.log", "lastMark", "ldb-locations/CURRENT", "locations/000001.sst", "0/1/1.idx", "bkctl.lock")


class CutError(Exception):
    """The process ends here."""


class CutDisk(OsFileSystem):
    """Ends before the change with this number."""

    def __init__(self, changes_left: int) -> None:
        self._changes_left = changes_left

    def _change(self) -> None:
        if not self._changes_left:
            raise CutError
        self._changes_left -= 1

    def rename(self, source: str, target: str) -> None:
        self._change()
        super().rename(source, target)

    def remove(self, path: str) -> None:
        if not os.path.isdir(path):
            self._change()
        super().remove(path)

    def remove_directory(self, path: str) -> None:
        self._change()
        super().remove_directory(path)


def fill(root: Path) -> list[str]:
    directories = [str(root / name) for name in ("j", "l1", "l2", "none")]
    cookie = Cookie(bookie_id="b1", journal_directories=(directories[0],), ledger_directories=tuple(directories[1:3]))
    for directory in directories[:3]:
        for name in FILES:
            path = Path(directory, "current", name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"data")
        Path(directory, "current", "VERSION").write_bytes(encode_cookie(cookie))
    os.mkdir(directories[3])
    return directories


def files_in(directories: list[str]) -> Iterator[str]:
    for directory in directories:
        for parent, _, names in os.walk(directory):
            yield from (os.path.join(parent, name) for name in names)


def format_all(disk: OsFileSystem, directories: list[str]) -> int:
    deleted = itertools.count()
    begin_format(disk, directories)
    delete_data(disk, directories, lambda: (next(deleted), None)[1])
    end_format(disk, directories)
    return next(deleted)


def test_nothing_stays_but_the_directories(tmp_path: Path) -> None:
    directories = fill(tmp_path)
    with socket.socket(socket.AF_UNIX) as admin:
        admin.bind(f"{directories[1]}/bkctl.admin.sock")
    assert format_all(OsFileSystem(), directories) >= 3 * (len(FILES) - 1)
    assert sorted(os.listdir(tmp_path)) == ["j", "l1", "l2", "none"]
    assert all(os.listdir(directory) == [] for directory in directories)
    assert format_all(OsFileSystem(), directories) == 0


def test_every_cut_leaves_all_data_or_a_directory_that_refuses_a_start(tmp_path: Path) -> None:
    for number in itertools.count():
        root = tmp_path / str(number)
        directories = fill(root)
        whole = sorted(files_in(directories))
        try:
            format_all(CutDisk(number), directories)
        except CutError:
            pass
        else:
            assert number > 3 * len(FILES)
            return
        states = [read_directory(OsFileSystem(), directory) for directory in directories]
        left = sorted(files_in(directories))
        refusing = [state for state in states if state.is_formatting and state.trouble is not None]
        if number == 0:
            assert (left, refusing) == (whole, [])
        elif not refusing:
            assert [path for path in left if not path.endswith("bkctl.lock")] == [], f"cut {number}"
        for state in refusing:
            assert state.formatted is not None
            assert state.formatted.bookie_id == "b1"
        format_all(OsFileSystem(), directories)
        assert list(files_in(directories)) == [], f"cut {number}"


def test_links_are_deleted_and_not_followed(tmp_path: Path) -> None:
    [*_, last] = fill(tmp_path)
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_bytes(b"")
    os.mkdir(f"{last}/current")
    os.symlink(kept, f"{last}/current/directory")
    os.symlink(kept / "file", f"{last}/current/file")
    os.symlink("nowhere", f"{last}/current/dead")
    format_all(OsFileSystem(), [last])
    assert os.listdir(last) == []
    assert os.listdir(kept) == ["file"]


def test_current_may_be_a_link(tmp_path: Path) -> None:
    directories = fill(tmp_path)
    os.rename(f"{directories[1]}/current", tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", f"{directories[1]}/current")
    format_all(OsFileSystem(), directories)
    assert os.listdir(tmp_path / "elsewhere") == []
    assert os.path.islink(f"{directories[1]}/current")


def test_an_error_of_the_disk_is_not_hidden(tmp_path: Path) -> None:
    directories = fill(tmp_path)
    begin_format(OsFileSystem(), directories)
    with pytest.raises(OSError, match="not empty"):
        end_format(OsFileSystem(), directories)
