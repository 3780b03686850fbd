"""bkctl storage check: exit codes, and findings with the way out."""

from __future__ import annotations

import os
from pathlib import Path

from tests.commands.storage.conftest import Folders


def test_sound_folders(folders: Folders) -> None:
    folders.fill()
    folders.stamp()
    result = folders.succeed("check", "-o", "json")
    assert result.json()["items"] == []
    assert "with 12 entries" in result.stderr
    with folders.opened():
        running = folders.run("check")
    assert (running.exit_code, "stop the bookie first" in running.stderr) == (5, True)


def test_a_field_that_is_not_there_is_told_before_the_work(folders: Folders) -> None:
    folders.fill()
    index = Path(folders.config.ledger_directories[0]) / "current" / "ldb-ledgers"
    before = os.listdir(index)
    result = folders.run("check", "--sort", "nope", "-o", "json")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "the fields of this listing are severity" in result.stderr
    assert os.listdir(index) == before, "it was not opened yet"


def test_findings_with_the_way_out(tmp_path: Path) -> None:
    folders = Folders(tmp_path, ledgers=2)
    folders.fill()
    folders.stamp()
    (tmp_path / "l1" / "current" / "VERSION").unlink()
    (tmp_path / "l0" / "current" / "foo.log").touch()
    (tmp_path / "l0" / "current" / "ldb-ledgers.seal").write_bytes(b"junk")
    result = folders.run("check", "-o", "json")
    assert result.exit_code == 10
    items = {item["check"]: item for item in result.json()["items"]}
    assert "cookie verify" in items["VERSION"]["way_out"]
    assert (items["names"]["severity"], items["names"]["way_out"]) == ("note", None)
    assert "index rebuild" in items["index"]["way_out"]
    table = folders.run("check", "-o", "table")
    assert table.exit_code == 10
    assert "WAY OUT" in table.stdout
    Folders(tmp_path).stamp("bookie-2")
    items = {item["path"]: item for item in folders.run("check", "-o", "json").json()["items"]}
    assert "it names the folders" in items[str(tmp_path / "l0" / "current" / "VERSION")]["finding"]


def test_a_lost_log_is_told_with_what_was_in_it(folders: Folders) -> None:
    """Rows of the index name it, and nothing else does: every other file is whole."""
    folders.fill()
    folders.stamp()
    log = Path(folders.config.ledger_directories[0]) / "current" / "0.log"
    log.unlink()
    result = folders.run("check", "-o", "json")
    assert result.exit_code == 10
    (found,) = result.json()["items"]
    assert (found["severity"], found["check"], found["path"]) == ("problem", "entry logs", str(log))
    assert "12 entries of 4 ledgers (1, 2, 3, 4) were in it" in found["finding"]
    assert "docs/runbooks/missing-log.md" in found["way_out"]
