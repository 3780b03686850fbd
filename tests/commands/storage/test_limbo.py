"""bkctl storage limbo on the folders of a stopped bookie; with real bookies: test_rebuilt_bookies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bkctl.storage.filenames import LOCATIONS_DATABASE
from bkctl.storage.index.ledger_index import LEDGERS_NOTED, NEEDS_INTEGRITY_CHECK
from tests.commands.storage.conftest import Folders
from tests.storage.engines import checkpoint
from tests.storage.rebuilds import lose

NOTED = NEEDS_INTEGRITY_CHECK | LEDGERS_NOTED


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    """Of a bookie in repair: ledgers 1 to 3 in limbo, of which 3 is fenced, and 8, of which nothing is here."""
    folders = Folders(tmp_path, ledgers=2)
    folders.fill()
    with folders.opened() as storage:
        for ledger_id in (1, 2, 3):
            storage.engine_of(ledger_id).set_limbo(ledger_id)
        storage.engine_of(8).create_row(8, is_fenced=True, is_limbo=True)
        storage.engines[0].write_flags(NOTED)
        checkpoint(storage)
    return folders


def limbo(folders: Folders) -> list[int]:
    return sorted(int(each["ledger_id"]) for each in folders.succeed("limbo", "list", "-o", "json").json()["items"])


def flags(folders: Folders) -> int:
    with folders.opened() as storage:
        return storage.engines[0].read_flags()


def test_list(folders: Folders) -> None:
    items = folders.succeed("limbo", "list", "-o", "json").json()["items"]
    assert items[0] == {
        "ledger_id": "2",
        "is_fenced": False,
        "first_entry": "0",
        "last_entry": "2",
        "ledger_directory": str(folders.root / "l0"),
    }
    assert [(each["ledger_id"], each["first_entry"]) for each in items[1:]] == [("8", None), ("1", "0"), ("3", "0")]
    assert folders.succeed("limbo", "list", "-o", "name").stdout.split() == ["2", "8", "1", "3"]


def test_plan_end_and_a_second_run(folders: Folders) -> None:
    saved = folders.root / "plan.json"
    plan = folders.succeed("limbo", "end", "--plan-out", str(saved), "-o", "json").json()
    assert [(each["action"], each["ledger_id"]) for each in plan["items"]] == [
        ("end limbo", each) for each in ("2", "8", "1", "3")
    ]
    assert "1 of them have no entries on this bookie" in " ".join(plan["summary"])
    assert "will be permanent and silent" in plan["summary"][0]
    assert limbo(folders) == [1, 2, 3, 8]
    refused = folders.run("limbo", "end")
    assert (refused.exit_code, "nothing was changed" in refused.stderr) == (3, True), "nobody is there to ask"
    result = folders.succeed("limbo", "end", "--apply", str(saved), "--yes", "-o", "json")
    assert (result.json()["kind"], result.json()["ledgers"], result.json()["ledgers_left"]) == (
        "StorageLimboEnded",
        4,
        0,
    )
    assert limbo(folders) == []
    assert flags(folders) == NOTED, "the repair is due, and ends that itself"
    with folders.opened() as storage:
        row = storage.engine_of(3).ledger(3)
        assert row is not None
        assert row.is_fenced
    again = folders.succeed("limbo", "end", "--yes", "-o", "json")
    assert (again.json()["ledgers"], "nothing to do" in again.stderr) == (0, True)
    trail = [json.loads(line) for line in (folders.root / "state" / "audit.jsonl").read_text().splitlines()]
    assert trail[0]["command"] == "storage limbo end"
    assert trail[-1]["details"] == {"ledgers": 4}


def test_one_ledger_alone(folders: Folders) -> None:
    result = folders.succeed("limbo", "end", "--ledger", "2", "--ledger", "4", "--yes", "-o", "json").json()
    assert (result["ledgers"], result["ledgers_left"]) == (1, 3)
    assert limbo(folders) == [1, 3, 8]
    done = folders.succeed("limbo", "end", "--ledger", "2", "--yes", "-o", "json")
    assert "none of these ledgers is in limbo" in done.stderr
    unknown = folders.run("limbo", "end", "--ledger", "77", "--yes")
    assert (unknown.exit_code, "knows no ledger 77" in unknown.stderr) == (4, True)


def test_a_run_that_was_cut_off_between_two_folders_is_ended_by_a_second_one(folders: Folders) -> None:
    """As after a kill: what has ended has ended, the rest has not, and the flag of the repair is there."""
    folders.succeed("limbo", "end", "--ledger", "2", "--ledger", "8", "--yes")
    assert flags(folders) == NOTED
    folders.succeed("limbo", "end", "--yes")
    assert limbo(folders) == []


def test_of_what_was_in_a_log_that_is_gone_the_limbo_stays(folders: Folders) -> None:
    log = folders.root / "l1" / "current" / "0.log"
    log.unlink()
    named = folders.run("limbo", "end", "--ledger", "3", "--ledger", "2", "--yes")
    assert (named.exit_code, f"nothing was changed: {log}: there is no such log" in named.stderr) == (3, True)
    assert limbo(folders) == [1, 2, 3, 8]
    plan = folders.succeed("limbo", "end", "--dry-run", "-o", "json").json()
    assert [each["ledger_id"] for each in plan["items"]] == ["2", "8"]
    assert plan["summary"][-1].startswith(f"will stay in limbo: {log}: ")
    result = folders.run("limbo", "end", "--yes", "-o", "json")
    assert result.exit_code == 9
    assert result.json()["kept"][0]["ledgers"] == "1, 3"
    assert limbo(folders) == [1, 3]
    rest = folders.run("limbo", "end", "--yes")
    assert (rest.exit_code, "nothing was changed" in rest.stderr) == (3, True)


def test_refused_while_more_may_be_lost_than_the_rows_say(folders: Folders) -> None:
    with folders.opened() as storage:
        running = folders.run("limbo", "end", "--yes")
        assert (running.exit_code, "stop the bookie first" in running.stderr) == (5, True)
        storage.engines[0].write_flags(NEEDS_INTEGRITY_CHECK)
    unnoted = folders.run("limbo", "end", "--yes")
    assert (unnoted.exit_code, "start it, wait for its repair" in unnoted.stderr) == (3, True)
    assert "the next start reads the metadata of all ledgers" in folders.succeed("limbo", "list").stderr
    dirty = folders.root / "l1" / "current" / "DIRTY"
    dirty.touch()
    unclean = folders.run("limbo", "end", "--yes")
    assert (unclean.exit_code, f"{dirty} exists, so the bookie did not shut down cleanly" in unclean.stderr) == (
        3,
        True,
    )
    dirty.unlink()
    lose(folders.config, LOCATIONS_DATABASE)
    for verb in ("list", "end"):
        lost = folders.run("limbo", verb)
        assert (lost.exit_code, "bkctl storage index rebuild" in lost.stderr) == (12, True)


def test_a_rebuild_says_what_it_leaves(folders: Folders) -> None:
    lose(folders.config, LOCATIONS_DATABASE)
    plan = folders.succeed("index", "rebuild", "--dry-run", "-o", "json").json()
    assert "Rebuild one bookie at a time" in plan["summary"][-1]
    rebuilt = folders.succeed("index", "rebuild", "--yes", "-o", "json")
    assert f"{rebuilt.json()['limbo']} ledgers in limbo until the bookie has run. Rebuild one" in rebuilt.stderr
    only_rows = folders.succeed("index", "rebuild", "--ledgers", "--dry-run", "-o", "json").json()
    assert "one bookie at a time" not in " ".join(only_rows["summary"])
