"""bkctl storage index check and show: sound indexes, and every kind of untruth in them."""

from __future__ import annotations

import csv
import struct
from pathlib import Path
from typing import Any

import plyvel
import pytest

from storage.entry_log.format import HEADER_BYTES
from storage.filenames import LEDGERS_DATABASE, LOCATIONS_DATABASE
from tests.commands.storage.conftest import Folders
from tests.storage.engines import checkpoint
from tests.storage.rebuilds import database, lose, store_entries


def findings(folders: Folders) -> list[dict[str, Any]]:
    result = folders.run("index", "check", "-o", "json")
    assert result.exit_code == 10, result.stderr
    answer = result.json()
    assert answer["is_sound"] is False
    assert answer["problems"] == len(answer["findings"])
    return list(answer["findings"])


def log_of(folders: Folders) -> Path:
    return Path(folders.config.ledger_directories[0]) / "current" / "0.log"


def put(folders: Folders, key: bytes, value: bytes) -> None:
    """A row that no bookie writes."""
    opened = plyvel.DB(str(database(folders.config, LOCATIONS_DATABASE)))
    opened.put(key, value)
    opened.close()


def test_all_is_sound(tmp_path: Path) -> None:
    folders = Folders(tmp_path, ledgers=2)
    store_entries(folders.config, range(6))
    answer = folders.succeed("index", "check", "-o", "json").json()
    assert (answer["is_sound"], answer["ledgers"], answer["locations"]) == (True, 6, 6 * 60)
    assert [each["location_index"] for each in answer["directories"]] == ["sound", "sound"]
    assert folders.succeed("index", "check", "-o", "table").stdout.count("sound") >= 4


def test_csv_has_a_line_for_each_finding_and_each_index(folders: Folders) -> None:
    folders.fill()
    header = "path,ledger_id,entry_id,offset,reason"
    assert folders.succeed("index", "check", "-o", "csv").stdout.splitlines() == [header]
    with log_of(folders).open("r+b") as stream:
        stream.truncate(log_of(folders).stat().st_size - 45)
    result = folders.run("index", "check", "-o", "csv")
    assert result.exit_code == 10
    first, *lines = csv.reader(result.stdout.splitlines())
    assert first == header.split(",")
    assert [line[0] for line in lines] == [str(log_of(folders))] * 2
    assert "docs/runbooks/corrupt-log.md" in result.stderr
    rows = list(csv.DictReader(folders.succeed("index", "show", "-o", "csv").stdout.splitlines()))
    assert [(Path(row["path"]).name, row["condition"], row["ledgers"]) for row in rows] == [
        (LEDGERS_DATABASE, "sound", "4"),
        (LOCATIONS_DATABASE, "sound", ""),
    ]


def test_rows_of_deleted_ledgers_are_no_problem(folders: Folders) -> None:
    folders.fill()
    put(folders, struct.pack(">qq", 77, 0), struct.pack(">q", 1 << 32 | 5000))
    answer = folders.succeed("index", "check", "-o", "json").json()
    assert answer["directories"][0]["unowned"] == 1


def test_a_lost_index(folders: Folders) -> None:
    folders.fill()
    lose(folders.config, LOCATIONS_DATABASE)
    (found,) = findings(folders)
    assert found["path"].endswith(LOCATIONS_DATABASE)
    assert "is missing although" in found["reason"]


def test_a_lost_log(folders: Folders) -> None:
    folders.fill()
    log_of(folders).unlink()
    (found,) = findings(folders)
    assert found == {
        "path": str(log_of(folders)),
        "ledger_id": None,
        "entry_id": None,
        "offset": None,
        "reason": "there is no such log: 12 entries of 4 ledgers (1, 2, 3, 4) were in it",
    }
    assert "docs/runbooks/missing-log.md" in folders.run("index", "check").stderr


def test_a_lost_log_beside_damage_that_is_seen_entry_by_entry(folders: Folders) -> None:
    folders.fill()
    put(folders, struct.pack(">qq", 2, 50), struct.pack(">q", 5 << 32 | 1028))
    with log_of(folders).open("r+b") as stream:
        stream.seek(HEADER_BYTES)
        stream.write(struct.pack(">i", 3))
    lost, damaged = sorted(findings(folders), key=lambda each: str(each["entry_id"]), reverse=True)
    assert (Path(lost["path"]).name, lost["reason"]) == (
        "5.log",
        "there is no such log: 1 entry of 1 ledger (2) was in it",
    )
    assert damaged["entry_id"] == "0"
    advice = folders.run("index", "check").stderr
    assert "missing-log.md" in advice
    assert "corrupt-log.md" in advice


def test_a_cut_log(folders: Folders) -> None:
    folders.fill()
    with log_of(folders).open("r+b") as stream:
        stream.truncate(log_of(folders).stat().st_size - 45)
    assert [each["reason"] for each in findings(folders)] == ["the log does not hold it whole", "no entry can be there"]


def test_another_entry_at_the_place(folders: Folders) -> None:
    folders.fill()
    with log_of(folders).open("r+b") as stream:
        stream.seek(HEADER_BYTES + 4)
        stream.write(struct.pack(">qq", 99, 5))
    (found,) = findings(folders)
    assert (found["ledger_id"], found["entry_id"], found["offset"]) == ("1", "0", HEADER_BYTES + 4)
    assert found["reason"] == "found 99:5 instead"


def test_a_size_word_that_cannot_be(folders: Folders) -> None:
    folders.fill()
    with log_of(folders).open("r+b") as stream:
        stream.seek(HEADER_BYTES)
        stream.write(struct.pack(">i", 3))
    (found,) = findings(folders)
    assert found["reason"] == "its size word is 3"


@pytest.mark.parametrize(
    ("location", "reason"),
    [
        (0, "no entry can be there"),
        (HEADER_BYTES, "no entry can be there"),
        (2**31 - 1, "no entry can be there"),
        (-1, "cannot be opened"),
        (HEADER_BYTES + 4, "found 1:0 instead"),
    ],
)
def test_locations_that_are_wrong(folders: Folders, location: int, reason: str) -> None:
    folders.fill()
    put(folders, struct.pack(">qq", 2, 50), struct.pack(">q", location))
    (found,) = findings(folders)
    assert (found["ledger_id"], found["entry_id"]) == ("2", "50")
    assert reason in found["reason"]


def test_rows_that_are_no_locations(folders: Folders) -> None:
    folders.fill()
    put(folders, b"\0short", b"x")
    (found,) = findings(folders)
    assert "is no location" in found["reason"]


def test_refused_while_the_bookie_runs(folders: Folders) -> None:
    folders.fill()
    with folders.opened():
        assert folders.run("index", "check").exit_code == 5
        assert folders.run("index", "show").exit_code == 5


def test_show_tells_what_the_indexes_hold(folders: Folders) -> None:
    folders.fill()
    with folders.opened() as storage:
        storage.engines[0].set_limbo(2)
        checkpoint(storage)
        storage.engines[0].write_flags(1)
    answer = folders.succeed("index", "show", "-o", "json").json()
    assert answer["needs_integrity_check"] is True
    rows = {Path(each["path"]).name: each for each in answer["indexes"]}
    assert (rows[LEDGERS_DATABASE]["ledgers"], rows[LEDGERS_DATABASE]["limbo"]) == (4, 1)
    assert rows[LOCATIONS_DATABASE]["condition"] == "sound"
    lose(folders.config, LOCATIONS_DATABASE)
    lost = folders.run("index", "show", "-o", "json")
    assert [each["condition"] for each in lost.json()["indexes"]] == ["sound", "missing"]
    assert (lost.exit_code, "bkctl storage index rebuild" in lost.stderr) == (12, True), lost.stderr


def test_show_one_ledger(folders: Folders) -> None:
    folders.fill()
    answer = folders.succeed("index", "show", "--ledger", "3", "-o", "json").json()
    assert (answer["is_fenced"], answer["is_limbo"], answer["has_key"]) == (True, False, True)
    assert (answer["entries"], answer["first_entry"], answer["last_entry"]) == (3, "0", "2")
    assert answer["logs"] == [{"log": "0.log", "entries": 3}]
    assert folders.run("index", "show", "--ledger", "99").exit_code == 4
    lose(folders.config, LOCATIONS_DATABASE)
    lost = folders.run("index", "show", "--ledger", "3")
    assert lost.exit_code == 12
    assert "bkctl storage index rebuild" in lost.stderr


def test_an_entry_that_is_another_one_is_no_reason_to_build_the_index_anew(folders: Folders) -> None:
    folders.fill()
    with log_of(folders).open("r+b") as stream:
        stream.seek(HEADER_BYTES + 4 + 8 + 7)
        stream.write(b"\x7f")
    result = folders.run("index", "check", "-o", "json")
    assert result.exit_code == 10
    assert "leave the index as it is" in result.stderr
    assert "index rebuild" not in result.stderr
    lose(folders.config, LOCATIONS_DATABASE)
    assert "bkctl storage index rebuild" in folders.run("index", "check", "-o", "json").stderr
