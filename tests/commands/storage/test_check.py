"""bkctl storage check: exit codes, and findings with the way out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from runtime.bookie.cookies.folders import version_path, write_version
from runtime.metadata.bookies.cookies import Cookie, encode_cookie
from storage.adapters.filesystem import OsFileSystem
from tests.commands.storage.conftest import Folders
from tests.processes import run_bkctl


def test_sound_folders(folders: Folders) -> None:
    folders.fill()
    folders.stamp()
    result = folders.succeed("check", "-o", "json")
    assert result.json()["items"] == []
    assert "with 12 entries" in result.stderr
    with folders.opened():
        running = folders.run("check")
    assert (running.exit_code, "stop the bookie first" in running.stderr) == (5, True)


@pytest.mark.parametrize("spelling", ["{}/", "./{}", "{root}//{}"])
def test_the_spelling_of_directories_is_no_finding(
    folders: Folders, monkeypatch: pytest.MonkeyPatch, spelling: str
) -> None:
    """Neither in the options nor in the cookie, which keeps what a Java bookie wrote."""
    folders.fill()
    folders.stamp()
    monkeypatch.chdir(folders.root)
    spelled = {name: spelling.format(name, root=folders.root) for name in ("j0", "l0")}
    arguments = ("check", "--journal-dir", spelled["j0"], "--ledger-dir", spelled["l0"], "-o", "json")
    result = run_bkctl("storage", *arguments)
    assert (result.exit_code, result.json()["items"]) == (0, []), result.stderr

    cookie = Cookie(bookie_id="b", journal_directories=(spelled["j0"],), ledger_directories=(spelled["l0"],))
    for path in folders.config.all_directories:
        write_version(OsFileSystem(), path, encode_cookie(cookie))
    assert folders.succeed("check", "-o", "json").json()["items"] == []
    assert Path(version_path(folders.config.ledger_directories[0])).read_bytes() == encode_cookie(cookie)


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
