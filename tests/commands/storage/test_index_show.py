"""bkctl storage index show: all indexes of a bookie, or one ledger."""

from __future__ import annotations

import csv
from pathlib import Path

from bkctl.storage.filenames import LEDGERS_DATABASE, LOCATIONS_DATABASE
from tests.commands.storage.conftest import Directories
from tests.storage.engines import checkpoint
from tests.storage.rebuilds import lose


def test_csv_has_a_line_for_each_index(directories: Directories) -> None:
    directories.fill()
    rows = list(csv.DictReader(directories.succeed("index", "show", "-o", "csv").stdout.splitlines()))
    assert [(Path(row["path"]).name, row["condition"], row["ledgers"]) for row in rows] == [
        (LEDGERS_DATABASE, "sound", "4"),
        (LOCATIONS_DATABASE, "sound", ""),
    ]


def test_refused_while_the_bookie_runs(directories: Directories) -> None:
    directories.fill()
    with directories.opened():
        assert directories.run("index", "show").exit_code == 5


def test_show_tells_what_the_indexes_hold(directories: Directories) -> None:
    directories.fill()
    with directories.opened() as storage:
        storage.engines[0].set_limbo(2)
        checkpoint(storage)
        storage.engines[0].rows.write_flags(1)
    answer = directories.succeed("index", "show", "-o", "json").json()
    assert answer["needs_integrity_check"] is True
    rows = {Path(each["path"]).name: each for each in answer["indexes"]}
    assert (rows[LEDGERS_DATABASE]["ledgers"], rows[LEDGERS_DATABASE]["limbo"]) == (4, 1)
    assert rows[LOCATIONS_DATABASE]["condition"] == "sound"
    lose(directories.config, LOCATIONS_DATABASE)
    lost = directories.run("index", "show", "-o", "json")
    assert [each["condition"] for each in lost.json()["indexes"]] == ["sound", "missing"]
    assert (lost.exit_code, "bkctl storage index rebuild" in lost.stderr) == (12, True), lost.stderr


def test_show_one_ledger(directories: Directories) -> None:
    directories.fill()
    answer = directories.succeed("index", "show", "--ledger", "3", "-o", "json").json()
    assert (answer["is_fenced"], answer["is_limbo"], answer["has_key"]) == (True, False, True)
    assert (answer["entries"], answer["first_entry"], answer["last_entry"]) == (3, "0", "2")
    assert answer["logs"] == [{"log": "0.log", "entries": 3}]
    assert directories.run("index", "show", "--ledger", "99").exit_code == 4
    two = directories.run("index", "show", "--ledger", "3", "--ledger", "99", "-o", "json")
    assert (two.exit_code, [row["ledger_id"] for row in two.json()["items"]]) == (4, ["3"])
    lose(directories.config, LOCATIONS_DATABASE)
    lost = directories.run("index", "show", "--ledger", "3")
    assert lost.exit_code == 12
    assert "bkctl storage index rebuild" in lost.stderr
