"""bkctl storage limbo on the directories of a stopped bookie; with real bookies: test_rebuilt_bookies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bkctl.storage.filenames import LOCATIONS_DATABASE
from bkctl.storage.index.ledger_index import LEDGERS_NOTED, NEEDS_INTEGRITY_CHECK
from tests.commands.storage.conftest import Directories
from tests.storage.engines import checkpoint
from tests.storage.rebuilds import lose

NOTED = NEEDS_INTEGRITY_CHECK | LEDGERS_NOTED


@pytest.fixture
def directories(tmp_path: Path) -> Directories:
    """Of a bookie in repair: ledgers 1 to 3 in limbo, of which 3 is fenced, and 8, of which nothing is here."""
    directories = Directories(tmp_path, ledgers=2)
    directories.fill()
    with directories.opened() as storage:
        for ledger_id in (1, 2, 3):
            storage.engine_of(ledger_id).set_limbo(ledger_id)
        storage.engine_of(8).rows.create_row(8, is_fenced=True, is_limbo=True)
        storage.engines[0].rows.write_flags(NOTED)
        checkpoint(storage)
    return directories


def limbo(directories: Directories) -> list[int]:
    return sorted(int(each["ledger_id"]) for each in directories.succeed("limbo", "list", "-o", "json").json()["items"])


def flags(directories: Directories) -> int:
    with directories.opened() as storage:
        return storage.engines[0].rows.read_flags()


def test_list(directories: Directories) -> None:
    items = directories.succeed("limbo", "list", "-o", "json").json()["items"]
    assert items[0] == {
        "ledger_id": "2",
        "is_fenced": False,
        "first_entry": "0",
        "last_entry": "2",
        "ledger_directory": str(directories.root / "l0"),
    }
    assert [(each["ledger_id"], each["first_entry"]) for each in items[1:]] == [("8", None), ("1", "0"), ("3", "0")]
    assert directories.succeed("limbo", "list", "-o", "name").stdout.split() == ["2", "8", "1", "3"]


def test_plan_end_and_a_second_run(directories: Directories) -> None:
    saved = directories.root / "plan.json"
    plan = directories.succeed("limbo", "end", "--plan-out", str(saved), "-o", "json").json()
    assert [(each["action"], each["ledger_id"]) for each in plan["items"]] == [
        ("end limbo", each) for each in ("2", "8", "1", "3")
    ]
    assert "1 of them have no entries on this bookie" in " ".join(plan["summary"])
    assert "will be permanent and silent" in plan["summary"][0]
    assert limbo(directories) == [1, 2, 3, 8]
    refused = directories.run("limbo", "end")
    assert (refused.exit_code, "nothing was changed" in refused.stderr) == (3, True), "nobody is there to ask"
    result = directories.succeed("limbo", "end", "--apply", str(saved), "--yes", "-o", "json")
    assert (result.json()["kind"], result.json()["ledgers"], result.json()["ledgers_left"]) == (
        "StorageLimboEnded",
        4,
        0,
    )
    assert limbo(directories) == []
    assert flags(directories) == NOTED, "the repair is due, and ends that itself"
    with directories.opened() as storage:
        row = storage.engine_of(3).rows.find(3)
        assert row is not None
        assert row.is_fenced
    again = directories.succeed("limbo", "end", "--yes", "-o", "json")
    assert (again.json()["ledgers"], "nothing to do" in again.stderr) == (0, True)
    trail = [json.loads(line) for line in (directories.root / "state" / "audit.jsonl").read_text().splitlines()]
    assert trail[0]["command"] == "storage limbo end"
    assert trail[-1]["details"] == {"ledgers": 4}


def test_one_ledger_alone(directories: Directories) -> None:
    result = directories.succeed("limbo", "end", "--ledger", "2", "--ledger", "4", "--yes", "-o", "json").json()
    assert (result["ledgers"], result["ledgers_left"]) == (1, 3)
    assert limbo(directories) == [1, 3, 8]
    done = directories.succeed("limbo", "end", "--ledger", "2", "--yes", "-o", "json")
    assert "none of these ledgers is in limbo" in done.stderr
    unknown = directories.run("limbo", "end", "--ledger", "77", "--yes")
    assert (unknown.exit_code, "knows no ledger 77" in unknown.stderr) == (4, True)


def test_a_run_that_was_cut_off_between_two_directories_is_ended_by_a_second_one(directories: Directories) -> None:
    """As after a kill: what has ended has ended, the rest has not, and the flag of the repair is there."""
    directories.succeed("limbo", "end", "--ledger", "2", "--ledger", "8", "--yes")
    assert flags(directories) == NOTED
    directories.succeed("limbo", "end", "--yes")
    assert limbo(directories) == []


def test_of_what_was_in_a_log_that_is_gone_the_limbo_stays(directories: Directories) -> None:
    log = directories.root / "l1" / "current" / "0.log"
    log.unlink()
    named = directories.run("limbo", "end", "--ledger", "3", "--ledger", "2", "--yes")
    assert (named.exit_code, f"nothing was changed: {log}: there is no such log" in named.stderr) == (3, True)
    assert limbo(directories) == [1, 2, 3, 8]
    plan = directories.succeed("limbo", "end", "--dry-run", "-o", "json").json()
    assert [each["ledger_id"] for each in plan["items"]] == ["2", "8"]
    assert plan["summary"][-1].startswith(f"will stay in limbo: {log}: ")
    result = directories.run("limbo", "end", "--yes", "-o", "json")
    assert result.exit_code == 9
    assert result.json()["kept"][0]["ledgers"] == "1, 3"
    assert limbo(directories) == [1, 3]
    rest = directories.run("limbo", "end", "--yes")
    assert (rest.exit_code, "nothing was changed" in rest.stderr) == (3, True)


def test_refused_while_more_may_be_lost_than_the_rows_say(directories: Directories) -> None:
    with directories.opened() as storage:
        running = directories.run("limbo", "end", "--yes")
        assert (running.exit_code, "stop the bookie first" in running.stderr) == (5, True)
        storage.engines[0].rows.write_flags(NEEDS_INTEGRITY_CHECK)
    unnoted = directories.run("limbo", "end", "--yes")
    assert (unnoted.exit_code, "start it, wait for its repair" in unnoted.stderr) == (3, True)
    assert "the next start reads the metadata of all ledgers" in directories.succeed("limbo", "list").stderr
    dirty = directories.root / "l1" / "current" / "DIRTY"
    dirty.touch()
    unclean = directories.run("limbo", "end", "--yes")
    assert (unclean.exit_code, f"{dirty} exists, so the bookie did not shut down cleanly" in unclean.stderr) == (
        3,
        True,
    )
    dirty.unlink()
    lose(directories.config, LOCATIONS_DATABASE)
    for verb in ("list", "end"):
        lost = directories.run("limbo", verb)
        assert (lost.exit_code, "bkctl storage index rebuild" in lost.stderr) == (12, True)


def test_a_rebuild_says_what_it_leaves(directories: Directories) -> None:
    lose(directories.config, LOCATIONS_DATABASE)
    plan = directories.succeed("index", "rebuild", "--dry-run", "-o", "json").json()
    assert "Rebuild one bookie at a time" in plan["summary"][-1]
    rebuilt = directories.succeed("index", "rebuild", "--yes", "-o", "json")
    assert f"{rebuilt.json()['limbo']} ledgers in limbo until the bookie has run. Rebuild one" in rebuilt.stderr
    only_rows = directories.succeed("index", "rebuild", "--ledger-rows", "--dry-run", "-o", "json").json()
    assert "one bookie at a time" not in " ".join(only_rows["summary"])
