"""Commands that look, plan or are refused leave directories as they were; what changes something has all of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import pytest

from bkctl.commands.storage.own_storage import DirectoryLocks
from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.engine.ledger_storage import lock_directories
from bkctl.storage.errors import DirectoryLockedError
from tests.commands.storage.conftest import Directories
from tests.processes import run_bkctl
from tests.storage.java_directories import java_directories
from tests.storage.rebuilds import lose

LOOKS = (
    ("check",),
    ("check", "--deep"),
    ("index", "show"),
    ("index", "show", "--ledger", "1"),
    ("index", "rebuild", "--dry-run"),
    ("index", "rebuild"),
    ("adopt", "--dry-run"),
    ("hand-back", "--yes"),
    ("limbo", "list"),
    ("limbo", "end", "--yes"),
    ("journal", "replay", "--from", "1", "--yes"),
)
"""Nobody is there to say yes, or there is nothing to do."""


class Seen(NamedTuple):
    """What a command can change of a file or directory."""

    mode: int
    modified_ns: int
    data: bytes


def tree(root: Path) -> dict[str, Seen]:
    found = {}
    for path in (root, *root.rglob("*")):
        status = path.lstat()
        found[str(path)] = Seen(status.st_mode, status.st_mtime_ns, path.read_bytes() if path.is_file() else b"")
    return found


@pytest.mark.parametrize("is_somebody_s", [False, True], ids=["empty", "somebody's"])
def test_a_wrong_index_directory_stays_as_it_was(directories: Directories, is_somebody_s: bool) -> None:
    directories.fill()
    wrong = directories.root / "wrong"
    wrong.mkdir()
    if is_somebody_s:
        (wrong / "current").mkdir()
        (wrong / "current" / "letter.txt").write_text("not a bookie's")
    before, names = tree(wrong), set(tree(directories.root))
    for words in LOOKS:
        result = directories.run(*words, "--index-dir", str(wrong), "-o", "json")
        assert "internal error" not in result.stderr
        assert tree(wrong) == before, words
    assert set(tree(directories.root)) == names


def test_the_directories_of_a_java_bookie_stay_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    java = java_directories("interleaved-4.18.0/crash", Path("data"))
    before = tree(tmp_path)
    options = ("--journal-dir", java.config.journal_directories[0], "--ledger-dir", java.config.ledger_directories[0])
    for words in (*LOOKS, ("adopt",)):
        run_bkctl("storage", *words, *options, BKCTL_STATE_DIR=str(tmp_path / "state"))
        assert tree(tmp_path) == before, words


def test_a_lost_index_is_built_in_a_new_directory(directories: Directories) -> None:
    directories.fill()
    new = directories.root / "new"
    new.mkdir()
    lose(directories.config, "ldb-ledgers")
    lose(directories.config, "ldb-locations")
    directories.succeed("index", "rebuild", "--yes", "--index-dir", str(new))
    assert {"ldb-ledgers", "ldb-locations", "bkctl.lock"} <= set(os.listdir(new / "current"))


def test_what_changes_something_holds_all_directories(directories: Directories) -> None:
    directories.fill()
    disk = OsFileSystem()
    lock = Path(directories.config.journal_directories[0]) / "current" / "bkctl.lock"
    lock.unlink()
    locks = DirectoryLocks(disk, directories.config)
    locks.hold()
    assert not lock.exists()
    locks.claim()
    assert lock.exists()
    with pytest.raises(DirectoryLockedError):
        lock_directories(disk, directories.config)
    locks.release()
    for each in lock_directories(disk, directories.config):
        each.release()


def test_a_directory_that_somebody_had_meanwhile(directories: Directories) -> None:
    directories.fill()
    disk = OsFileSystem()
    lock = Path(directories.config.journal_directories[0]) / "current" / "bkctl.lock"
    lock.unlink()
    locks = DirectoryLocks(disk, directories.config)
    locks.hold()
    disk.lock_directory(str(lock.parent)).release()
    with pytest.raises(DirectoryLockedError, match="in use by another process"):
        locks.claim()
    locks.release()
