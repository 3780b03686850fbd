from __future__ import annotations

import os
from pathlib import Path

import pytest

from storage.dirty_marks import DirtyMarks, leave_dirty_marks, read_dirty_marks, remove_dirty_marks
from storage.filesystem import OsFileSystem

DISK = OsFileSystem()


@pytest.fixture
def folders(tmp_path: Path) -> list[str]:
    paths = [tmp_path / "a", tmp_path / "b"]
    for path in paths:
        path.mkdir()
    return list(map(str, paths))


def test_without_marks_the_end_was_clean(folders: list[str]) -> None:
    assert read_dirty_marks(DISK, folders) == DirtyMarks(False, False)
    remove_dirty_marks(DISK, folders)


@pytest.mark.parametrize("at_risk", [True, False])
def test_one_mark_is_enough(folders: list[str], at_risk: bool) -> None:
    leave_dirty_marks(DISK, folders, are_entries_at_risk=at_risk)
    assert os.listdir(folders[0]) == ["DIRTY"]
    os.remove(os.path.join(folders[0], "DIRTY"))
    assert read_dirty_marks(DISK, folders) == DirtyMarks(True, at_risk)
    remove_dirty_marks(DISK, folders)
    assert read_dirty_marks(DISK, folders) == DirtyMarks(False, False)


def test_the_mark_of_java_is_empty_and_says_nothing_of_entries(folders: list[str]) -> None:
    leave_dirty_marks(DISK, folders, are_entries_at_risk=False)
    mark = Path(folders[1]) / "DIRTY"
    assert mark.read_bytes() == b""
    leave_dirty_marks(DISK, folders, are_entries_at_risk=True)
    assert mark.read_bytes() != b""


def test_a_mark_that_cannot_be_read_counts_as_the_worst(folders: list[str]) -> None:
    os.mkdir(os.path.join(folders[0], "DIRTY"))
    assert read_dirty_marks(DISK, folders) == DirtyMarks(True, True)
