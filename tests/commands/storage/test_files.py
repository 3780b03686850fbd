"""bkctl storage files on a bookie's directories."""

from __future__ import annotations

import os
from pathlib import Path

from tests.commands.storage.conftest import PREALLOCATION_BYTES, Directories


def test_odd_names_and_links(directories: Directories) -> None:
    directories.fill()
    current = Path(directories.config.ledger_directories[0]) / "current"
    with open(os.fsencode(current) + b"/odd\xff", "wb"):
        pass
    (current / "loop").symlink_to("loop")
    items = directories.succeed("files", "-o", "json").json()["items"]
    names = [Path(item["path"]).name for item in items]
    assert "loop" in names
    assert "odd\\udcff" in names
    assert directories.succeed("files", "-o", "name").stdout.count("odd\\udcff") == 1


def test_every_file_and_its_size(tmp_path: Path) -> None:
    directories = Directories(tmp_path, ledgers=2)
    directories.fill()
    ledger, journal = tmp_path / "l0" / "current", tmp_path / "j0" / "current"
    (ledger / "foo.log").write_bytes(b"123")
    (journal / "foo.txn").touch()
    (ledger / "0" / "1").mkdir(parents=True)
    (ledger / "0" / "1" / "1.idx").write_bytes(bytes(1024))
    (ledger / "own" / "notes").mkdir(parents=True)
    (ledger / "own" / "notes" / "7.log").touch()
    items = {item["path"]: item for item in directories.succeed("files", "-o", "json").json()["items"]}
    files = {str(path) for path in tmp_path.rglob("*") if path.is_file() and path.parent.parent.name[0] in "jl"}
    assert {path for path in files if "/ldb-" not in path} <= set(items)
    assert items[str(ledger / "foo.log")]["size_bytes"] == 3
    assert "collector" in items[str(ledger / "foo.log")]["trouble"]
    assert "does not start" in items[str(journal / "foo.txn")]["trouble"]
    assert items[str(ledger / "0" / "1" / "1.idx")]["kind"] == "java index"
    assert items[str(ledger / "own" / "notes" / "7.log")]["kind"] == "unknown"
    database = ledger / "ldb-locations"
    assert items[str(database)]["size_bytes"] == sum(path.stat().st_size for path in database.rglob("*"))
    newest = next(journal.glob("1*.txn"))
    assert items[str(newest)]["size_bytes"] == PREALLOCATION_BYTES > items[str(newest)]["disk_bytes"]
    table = directories.succeed("files", "-o", "table").stdout
    assert "entries of many ledgers" in table
    assert len(directories.succeed("files", "--limit", "2", "-o", "json").json()["items"]) == 2


def test_an_empty_directory_has_no_time_of_change(tmp_path: Path) -> None:
    directories = Directories(tmp_path)
    directories.fill()
    rebuilt = tmp_path / "l0" / "current" / "ldb-locations.rebuilt"
    rebuilt.mkdir()
    items = {item["path"]: item for item in directories.succeed("files", "-o", "json").json()["items"]}
    assert (items[str(rebuilt)]["kind"], items[str(rebuilt)]["modified"]) == ("leftover", None)
