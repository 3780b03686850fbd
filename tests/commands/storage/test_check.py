"""bkctl storage check: exit codes, and findings with the way out."""

from __future__ import annotations

import csv
import os
import struct
from pathlib import Path
from typing import Any

import plyvel
import pytest

from bkctl.runtime.bookie.cookies.directories import version_path, write_version
from bkctl.runtime.metadata.bookies.cookies import Cookie, encode_cookie
from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.entry_log.format import HEADER_BYTES
from bkctl.storage.filenames import LOCATIONS_DATABASE
from tests.commands.storage.conftest import Directories
from tests.processes import run_bkctl
from tests.storage.rebuilds import database, lose, store_entries


def test_sound_directories(directories: Directories) -> None:
    directories.fill()
    directories.stamp()
    result = directories.succeed("check", "-o", "json")
    assert result.json()["items"] == []
    assert "with 12 entries" in result.stderr
    with directories.opened():
        running = [directories.run("check"), directories.run("check", "--deep")]
    assert [(each.exit_code, "stop the bookie first" in each.stderr) for each in running] == [(5, True)] * 2


@pytest.mark.parametrize("spelling", ["{}/", "./{}", "{root}//{}"])
def test_the_spelling_of_directories_is_no_finding(
    directories: Directories, monkeypatch: pytest.MonkeyPatch, spelling: str
) -> None:
    """Neither in the options nor in the cookie, which keeps what a Java bookie wrote."""
    directories.fill()
    directories.stamp()
    monkeypatch.chdir(directories.root)
    spelled = {name: spelling.format(name, root=directories.root) for name in ("j0", "l0")}
    arguments = ("check", "--journal-dir", spelled["j0"], "--ledger-dir", spelled["l0"], "-o", "json")
    result = run_bkctl("storage", *arguments)
    assert (result.exit_code, result.json()["items"]) == (0, []), result.stderr

    cookie = Cookie(bookie_id="b", journal_directories=(spelled["j0"],), ledger_directories=(spelled["l0"],))
    for path in directories.config.all_directories:
        write_version(OsFileSystem(), path, encode_cookie(cookie))
    assert directories.succeed("check", "-o", "json").json()["items"] == []
    assert Path(version_path(directories.config.ledger_directories[0])).read_bytes() == encode_cookie(cookie)


def test_a_field_that_is_not_there_is_told_before_the_work(directories: Directories) -> None:
    directories.fill()
    index = Path(directories.config.ledger_directories[0]) / "current" / "ldb-ledgers"
    before = os.listdir(index)
    result = directories.run("check", "--sort", "nope", "-o", "json")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "this listing has the fields severity" in result.stderr
    assert os.listdir(index) == before, "it was not opened yet"


def test_findings_with_the_fix(tmp_path: Path) -> None:
    directories = Directories(tmp_path, ledgers=2)
    directories.fill()
    directories.stamp()
    (tmp_path / "l1" / "current" / "VERSION").unlink()
    (tmp_path / "l0" / "current" / "foo.log").touch()
    (tmp_path / "l0" / "current" / "ldb-ledgers.seal").write_bytes(b"junk")
    result = directories.run("check", "-o", "json")
    assert result.exit_code == 10
    items = {item["check"]: item for item in result.json()["items"]}
    assert "cookie verify" in items["VERSION"]["fix"]
    assert (items["names"]["severity"], items["names"]["fix"]) == ("information", None)
    assert "index rebuild" in items["index"]["fix"]
    table = directories.run("check", "-o", "table")
    assert table.exit_code == 10
    assert "FIX" in table.stdout
    Directories(tmp_path).stamp("bookie-2")
    items = {item["path"]: item for item in directories.run("check", "-o", "json").json()["items"]}
    assert "it lists the directories" in items[str(tmp_path / "l0" / "current" / "VERSION")]["finding"]


def test_a_lost_log_is_told_with_what_was_in_it(directories: Directories) -> None:
    """Rows of the index name it, and nothing else does: every other file is whole."""
    directories.fill()
    directories.stamp()
    log = Path(directories.config.ledger_directories[0]) / "current" / "0.log"
    log.unlink()
    result = directories.run("check", "-o", "json")
    assert result.exit_code == 10
    (found,) = result.json()["items"]
    assert (found["severity"], found["check"], found["path"]) == ("critical", "entry logs", str(log))
    assert "12 entries of 4 ledgers (1, 2, 3, 4) were in it" in found["finding"]
    assert "bkctl help lost-entries" in found["fix"]


def deep_findings(directories: Directories) -> list[dict[str, Any]]:
    """Problems that the deep check adds to those of the files, in order."""
    result = directories.run("check", "--deep", "-o", "json")
    assert result.exit_code == 10, result.stderr
    shallow = directories.run("check", "-o", "json").json()["items"]
    return [each for each in result.json()["items"] if each not in shallow]


def log_of(directories: Directories) -> Path:
    return Path(directories.config.ledger_directories[0]) / "current" / "0.log"


def put(directories: Directories, key: bytes, value: bytes) -> None:
    """A row that no bookie writes."""
    opened = plyvel.DB(str(database(directories.config, LOCATIONS_DATABASE)))
    opened.put(key, value)
    opened.close()


@pytest.fixture
def filled(directories: Directories) -> Directories:
    """Twelve entries in one log, and VERSION files: nothing is wrong."""
    directories.fill()
    directories.stamp()
    return directories


def test_a_deep_check_of_sound_directories(tmp_path: Path) -> None:
    directories = Directories(tmp_path, ledgers=2)
    store_entries(directories.config, range(6))
    directories.stamp()
    result = directories.succeed("check", "--deep", "-o", "json")
    assert result.json()["items"] == []
    assert f"{6 * 60} locations of 6 ledgers" in result.stderr


def test_csv_has_a_line_for_each_finding(filled: Directories) -> None:
    header = "severity,check,path,ledger_id,entry_id,offset,finding,fix"
    assert filled.succeed("check", "--deep", "-o", "csv").stdout.splitlines() == [header]
    with log_of(filled).open("r+b") as stream:
        stream.truncate(log_of(filled).stat().st_size - 45)
    result = filled.run("check", "--deep", "-o", "csv")
    assert result.exit_code == 10
    lines = [each for each in csv.DictReader(result.stdout.splitlines()) if each["check"] == "locations"]
    assert [(each["path"], each["ledger_id"] != "") for each in lines] == [(str(log_of(filled)), True)] * 2
    assert "bkctl help lost-entries" in lines[0]["fix"]


def test_rows_of_deleted_ledgers_are_no_problem(filled: Directories) -> None:
    put(filled, struct.pack(">qq", 77, 0), struct.pack(">q", 1 << 32 | 5000))
    assert filled.succeed("check", "-o", "json").json()["items"] == []
    (found,) = filled.succeed("check", "--deep", "-o", "json").json()["items"]
    assert (found["severity"], found["finding"]) == ("information", "1 location of deleted ledgers, which a crash left")


def test_a_deep_check_of_a_lost_index(filled: Directories) -> None:
    lose(filled.config, LOCATIONS_DATABASE)
    result = filled.run("check", "--deep", "-o", "json")
    (found,) = result.json()["items"]
    assert result.exit_code == 10
    assert found["path"].endswith(LOCATIONS_DATABASE)
    assert "is missing, but" in found["finding"]
    assert "bkctl storage index rebuild" in found["fix"]


def test_a_deep_check_of_a_lost_log(filled: Directories) -> None:
    log_of(filled).unlink()
    result = filled.run("check", "--deep", "-o", "json")
    (found,) = result.json()["items"]
    assert result.exit_code == 10
    assert found == {
        "severity": "critical",
        "check": "entry logs",
        "path": str(log_of(filled)),
        "ledger_id": None,
        "entry_id": None,
        "offset": None,
        "finding": "there is no such log: 12 entries of 4 ledgers (1, 2, 3, 4) were in it",
        "fix": "see bkctl help lost-entries",
    }


def test_a_lost_log_beside_damage_that_is_seen_entry_by_entry(filled: Directories) -> None:
    put(filled, struct.pack(">qq", 2, 50), struct.pack(">q", 5 << 32 | 1028))
    with log_of(filled).open("r+b") as stream:
        stream.seek(HEADER_BYTES)
        stream.write(struct.pack(">i", 3))
    items = filled.run("check", "--deep", "-o", "json").json()["items"]
    (lost,) = [each for each in items if each["path"].endswith("5.log")]
    (damaged,) = [each for each in items if each["check"] == "locations"]
    assert lost["finding"] == "there is no such log: 1 entry of 1 ledger (2) was in it"
    assert damaged["entry_id"] == "0"
    assert "bkctl help lost-entries" in lost["fix"]
    assert "bkctl help lost-entries" in damaged["fix"]


def test_a_deep_check_of_a_cut_log(filled: Directories) -> None:
    with log_of(filled).open("r+b") as stream:
        stream.truncate(log_of(filled).stat().st_size - 45)
    assert [each["finding"] for each in deep_findings(filled)] == [
        "the log has only a part of it",
        "no entry can be there",
    ]


def test_another_entry_at_the_place(filled: Directories) -> None:
    """A new index would deny it, so none is advised."""
    with log_of(filled).open("r+b") as stream:
        stream.seek(HEADER_BYTES + 4)
        stream.write(struct.pack(">qq", 99, 5))
    (found,) = deep_findings(filled)
    assert (found["ledger_id"], found["entry_id"], found["offset"]) == ("1", "0", HEADER_BYTES + 4)
    assert found["finding"] == "found 99:5 instead"
    assert "leave the index as it is" in found["fix"]
    assert "index rebuild" not in found["fix"]


def test_a_size_word_that_cannot_be(filled: Directories) -> None:
    with log_of(filled).open("r+b") as stream:
        stream.seek(HEADER_BYTES)
        stream.write(struct.pack(">i", 3))
    (found,) = deep_findings(filled)
    assert found["finding"] == "its size word is 3"


@pytest.mark.parametrize(
    ("location", "reason"),
    [
        (0, "no entry can be there"),
        (HEADER_BYTES, "no entry can be there"),
        (2**31 - 1, "no entry can be there"),
        (-1, "cannot open the log"),
        (HEADER_BYTES + 4, "found 1:0 instead"),
    ],
)
def test_locations_that_are_wrong(filled: Directories, location: int, reason: str) -> None:
    put(filled, struct.pack(">qq", 2, 50), struct.pack(">q", location))
    (found,) = deep_findings(filled)
    assert (found["check"], found["ledger_id"], found["entry_id"]) == ("locations", "2", "50")
    assert reason in found["finding"]


def test_rows_that_are_no_locations(filled: Directories) -> None:
    put(filled, b"\0short", b"x")
    (found,) = deep_findings(filled)
    assert "is not a location" in found["finding"]
