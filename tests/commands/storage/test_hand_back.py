"""bkctl storage hand-back on the directories of a stopped bookie."""

from __future__ import annotations

import os
from pathlib import Path

from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.filenames import HANDING_BACK, JAVA_DATABASES, JOURNAL_CATALOG, LOCATIONS_DATABASE, OWN_INDEX_ASIDE
from bkctl.storage.index.adoption_note import begin_note, write_note
from tests.commands.storage.conftest import Directories
from tests.storage.rebuilds import lose


def test_plan_hand_back_and_a_second_run(tmp_path: Path) -> None:
    directories = Directories(tmp_path, journals=2, ledgers=2)
    directories.fill(is_flushed=False)
    plan = directories.run("hand-back", "--dry-run", "-o", "json").json()
    moved = {item["path"].removeprefix(str(tmp_path)) for item in plan["items"] if item["action"].startswith("move")}
    assert {"/l0/current/ldb-ledgers", "/l1/current/ldb-locations.seal", "/j0/current/bkctl.journals"} <= moved
    assert directories.run("hand-back").exit_code == 3, "nobody is there to ask"
    assert (tmp_path / "l0" / "current" / "ldb-ledgers").exists()
    result = directories.succeed("hand-back", "--yes", "-o", "json")
    body = result.json()
    assert (body["ledgers"], body["entries_flushed"]) == (4, 12)
    assert "rebuild-db-ledgers-index" in body["next_steps"][0]
    assert body["next_steps"][1] in result.stderr
    for path in moved:
        assert not os.path.exists(f"{tmp_path}{path}")
    assert (tmp_path / "l1" / "current" / "ledgers").is_file()
    again = directories.succeed("hand-back", "--yes", "-o", "json")
    assert "nothing to do" in again.stderr
    assert again.json() == body | {"ledgers": 0, "entries_flushed": 0}, (
        "a kill after the last change must not hide them"
    )
    assert body["next_steps"][1] in again.stderr
    for number in range(2):  # as Java's shell does
        for database in JAVA_DATABASES:
            (tmp_path / f"l{number}" / "current" / database).unlink()
            (tmp_path / f"l{number}" / "current" / database).mkdir()
    assert directories.succeed("hand-back", "--yes", "-o", "json").json()["next_steps"] == []
    plan = directories.succeed("hand-back", "--dry-run", "-o", "json").json()
    assert (plan["kind"], plan["changes"], plan["items"]) == ("Plan", 0, [])
    trail = (tmp_path / "state" / "audit.jsonl").read_text()
    assert trail.count('"storage hand-back"') == 2


def test_refusals(directories: Directories) -> None:
    directories.fill()
    with directories.opened():
        running = directories.run("hand-back", "--yes")
    assert (running.exit_code, "stop the bookie first" in running.stderr) == (5, True)
    dirty = Path(directories.config.ledger_directories[0]) / "current" / "DIRTY"
    dirty.touch()
    unclean = directories.run("hand-back", "--yes")
    assert (unclean.exit_code, "did not shut down cleanly" in unclean.stderr) == (3, True)


def test_a_plan_tells_what_the_run_would_fail_on(directories: Directories) -> None:
    directories.fill()
    catalog = Path(directories.config.journal_directories[0]) / "current" / JOURNAL_CATALOG
    sound = catalog.read_bytes()
    catalog.write_bytes(b"junk")
    for words in (("--dry-run",), ("--yes",)):
        damaged = directories.run("hand-back", *words)
        assert (damaged.exit_code, str(catalog) in damaged.stderr) == (12, True), damaged.stderr
    catalog.write_bytes(sound)
    lose(directories.config, LOCATIONS_DATABASE)
    for words in (("--dry-run",), ("--yes",)):
        lost = directories.run("hand-back", *words)
        assert (lost.exit_code, "bkctl storage index rebuild" in lost.stderr) == (12, True), lost.stderr


def test_afterwards_the_index_is_javas_affair(directories: Directories) -> None:
    directories.fill()
    directories.succeed("hand-back", "--yes")
    for words in (("check",), ("check", "--deep")):
        looked = directories.run(*words, "-o", "table")
        said = " ".join((looked.stdout + looked.stderr).split())
        assert looked.exit_code == 10
        assert "index rebuild" not in said
        assert "Java's shell" in said
        assert "bkctl storage adopt" in said
    shown = directories.run("index", "show", "--ledger", "3")
    assert (shown.exit_code, "Java's shell" in shown.stderr) == (12, True), shown.stderr
    assert directories.run("index", "rebuild", "--yes").exit_code == 3


def test_one_that_was_cut_off_is_to_be_ended(directories: Directories) -> None:
    """Before the files that make the index a Java bookie's are there."""
    directories.fill()
    file_system = OsFileSystem()
    note = begin_note(file_system, directories.config, OWN_INDEX_ASIDE)
    current = Path(directories.config.ledger_directories[0]) / "current"
    directories.succeed("hand-back", "--yes")
    write_note(file_system, str(current / HANDING_BACK), note)
    for database in JAVA_DATABASES:
        (current / database).unlink()
    checked = directories.run("check", "-o", "json")
    assert checked.exit_code == 10
    advice = {each["fix"] for each in checked.json()["items"] if each["check"] == "index"}
    assert ["run `bkctl storage hand-back` to finish it" in each for each in advice] == [True]
    assert "index rebuild" not in checked.stdout
    rebuilt = directories.run("index", "rebuild", "--yes")
    assert (rebuilt.exit_code, "bkctl storage hand-back" in rebuilt.stderr) == (3, True), rebuilt.stderr
    assert not (current / LOCATIONS_DATABASE).exists()
    directories.succeed("hand-back", "--yes")
    assert (current / JAVA_DATABASES[0]).is_file()
