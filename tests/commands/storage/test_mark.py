"""bkctl storage mark: every file that says where replay starts, and which one is believed."""

from __future__ import annotations

import struct
from pathlib import Path

from bkctl.storage.filenames import journal_file_name
from tests.commands.storage.conftest import Directories
from tests.processes import run_bkctl


def rows(directories: Directories) -> dict[tuple[int, str], dict[str, object]]:
    items = directories.succeed("mark", "-o", "json").json()["items"]
    return {(item["journal"], f"{item['source']} {Path(item['path']).name}"): item for item in items}


def test_the_marks_after_a_checkpoint(directories: Directories) -> None:
    directories.fill()
    found = rows(directories)
    java, record = found[0, "lastMark lastMark"], found[0, "bkctl.mark bkctl.mark"]
    assert java["state"] == record["state"] == "intact"
    assert (java["is_used"], record["is_used"]) == (False, True)
    assert java["offset"] == record["offset"] == found[0, "replay j0"]["offset"]
    current = Path(directories.config.journal_directories[0]) / "current"
    assert java["file"] in {path.name for path in current.iterdir()}
    assert journal_file_name(int(str(java["journal_id"]))) == java["file"]


def test_a_mark_that_java_left_counts_until_there_is_a_record(directories: Directories) -> None:
    current = Path(directories.config.ledger_directories[0]) / "current"
    current.mkdir(parents=True)
    (Path(directories.config.journal_directories[0]) / "current").mkdir(parents=True)
    (current / "lastMark").write_bytes(struct.pack(">qq", 0x19A2B3C4D5E, 1024))
    found = rows(directories)
    assert found[0, "lastMark lastMark"]["is_used"] is True
    assert found[0, "bkctl.mark bkctl.mark"]["state"] == "missing"
    assert (found[0, "replay j0"]["file"], found[0, "replay j0"]["offset"]) == ("19a2b3c4d5e.txn", 1024)


def test_files_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    directories = Directories(tmp_path, journals=2, ledgers=2)
    directories.fill()
    one, other = (Path(path) / "current" for path in directories.config.ledger_directories)
    (one / "lastMark.1").write_bytes(b"")
    (one / "bkctl.mark.1").write_bytes(b"junk")
    before = (one / "bkctl.mark.0").read_bytes()
    (other / "bkctl.mark.0").unlink()
    result = directories.succeed("mark", "-o", "json").json()["items"]
    states = {(item["path"].removeprefix(str(tmp_path)), item["state"]) for item in result}
    assert ("/l0/current/lastMark.1", "short") in states
    assert ("/l0/current/bkctl.mark.1", "damaged") in states
    assert ("/l1/current/bkctl.mark.0", "missing") in states
    used = [item["path"].removeprefix(str(tmp_path)) for item in result if item["is_used"]]
    assert used == ["/l0/current/bkctl.mark.0", "/l1/current/bkctl.mark.1"]
    assert (one / "bkctl.mark.0").read_bytes() == before


def test_a_replay_from_a_journal_that_is_missing(directories: Directories) -> None:
    directories.fill()
    replay = rows(directories)[0, "replay j0"]
    assert replay["state"] == "intact"
    journal = Path(directories.config.journal_directories[0]) / "current" / str(replay["file"])
    journal.unlink()
    result = directories.succeed("mark", "-o", "json")
    assert result.json()["items"][-1] == {**replay, "state": "missing"}
    assert f"{journal} is missing, but the log mark references it" in result.stderr


def test_a_directory_that_is_not_there(directories: Directories) -> None:
    directories.fill()
    result = run_bkctl("storage", "mark", *directories.arguments, "--ledger-dir", str(directories.root / "l9"))
    assert result.exit_code == 4
    assert f"{directories.root / 'l9'} is missing" in result.stderr
    assert not (directories.root / "l9").exists()


def test_a_directory_without_a_bookies_files(directories: Directories) -> None:
    directories.fill()
    (directories.root / "empty").mkdir()
    result = run_bkctl("storage", "mark", *directories.arguments, "--ledger-dir", str(directories.root / "empty"))
    assert result.exit_code == 4
    assert "contains no bookie's files" in result.stderr


def test_help_pages() -> None:
    result = run_bkctl("storage", "--help")
    assert result.exit_code == 0
    assert "mark" in result.stdout
    page = run_bkctl("storage", "mark", "--help").stdout
    headings = ("Storage options:", "Listing options:", "Cluster options:", "General options:")
    assert [line for line in page.splitlines() if line.endswith(" options:")] == list(headings)
    assert "--metadata-uri" not in page
