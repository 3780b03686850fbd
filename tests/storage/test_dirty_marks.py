from __future__ import annotations

import os
from pathlib import Path

import pytest

from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.dirty_marks import CrashRisk, DirtyMarks, leave_dirty_marks, read_dirty_marks, remove_dirty_marks

DISK = OsFileSystem()


@pytest.fixture
def directories(tmp_path: Path) -> list[str]:
    paths = [tmp_path / "a", tmp_path / "b"]
    for path in paths:
        path.mkdir()
    return list(map(str, paths))


def test_without_marks_the_end_was_clean(directories: list[str]) -> None:
    assert read_dirty_marks(DISK, directories, "boot") == DirtyMarks(False, False)
    remove_dirty_marks(DISK, directories)


@pytest.mark.parametrize(
    ("risk", "boot_now", "at_risk"),
    [
        (CrashRisk.NONE, "boot", False),
        (CrashRisk.NONE, "another", False),
        (CrashRisk.POWER_CUT, "boot", False),
        (CrashRisk.POWER_CUT, "another", True),
        (CrashRisk.POWER_CUT, "", True),
        (CrashRisk.CRASH, "boot", True),
    ],
)
def test_one_mark_is_enough(directories: list[str], risk: CrashRisk, boot_now: str, at_risk: bool) -> None:
    leave_dirty_marks(DISK, directories, risk, "boot")
    assert os.listdir(directories[0]) == ["DIRTY"]
    os.remove(os.path.join(directories[0], "DIRTY"))
    assert read_dirty_marks(DISK, directories, boot_now) == DirtyMarks(True, at_risk)
    remove_dirty_marks(DISK, directories)
    assert read_dirty_marks(DISK, directories, boot_now) == DirtyMarks(False, False)


def test_where_the_run_of_the_machine_is_not_known_unsynced_entries_are_at_risk(directories: list[str]) -> None:
    leave_dirty_marks(DISK, directories, CrashRisk.POWER_CUT, "")
    assert read_dirty_marks(DISK, directories, "") == DirtyMarks(True, True)


def test_the_mark_of_java_is_empty_and_says_nothing_of_entries(directories: list[str]) -> None:
    leave_dirty_marks(DISK, directories, CrashRisk.NONE, "boot")
    assert (Path(directories[1]) / "DIRTY").read_bytes() == b""


@pytest.mark.parametrize("content", [b"entr", b"entries are lost if the machine stops\nbo", b"\xff"])
def test_a_mark_that_cannot_be_understood_counts_as_the_worst(directories: list[str], content: bytes) -> None:
    (Path(directories[0]) / "DIRTY").write_bytes(content)
    assert read_dirty_marks(DISK, directories, "boot") == DirtyMarks(True, True)


def test_a_mark_that_cannot_be_read_counts_as_the_worst(directories: list[str]) -> None:
    os.mkdir(os.path.join(directories[0], "DIRTY"))
    assert read_dirty_marks(DISK, directories, "boot") == DirtyMarks(True, True)
