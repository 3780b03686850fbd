"""bkctl storage hand-back on the folders of a stopped bookie."""

from __future__ import annotations

import os
from pathlib import Path

from tests.commands.storage.conftest import Folders


def test_plan_hand_back_and_a_second_run(tmp_path: Path) -> None:
    folders = Folders(tmp_path, journals=2, ledgers=2)
    folders.fill(is_flushed=False)
    plan = folders.run("hand-back", "--dry-run", "-o", "json").json()
    moved = {item["path"].removeprefix(str(tmp_path)) for item in plan["items"] if item["action"].startswith("move")}
    assert {"/l0/current/ldb-ledgers", "/l1/current/ldb-locations.seal", "/j0/current/bkctl.journals"} <= moved
    assert folders.run("hand-back").exit_code == 3, "nobody is there to ask"
    assert (tmp_path / "l0" / "current" / "ldb-ledgers").exists()
    result = folders.succeed("hand-back", "--yes", "-o", "json")
    body = result.json()
    assert (body["ledgers"], body["entries_flushed"]) == (4, 12)
    assert "rebuild-db-ledgers-index" in body["next_steps"][0]
    assert body["next_steps"][1] in result.stderr
    for path in moved:
        assert not os.path.exists(f"{tmp_path}{path}")
    assert (tmp_path / "l1" / "current" / "ledgers").is_dir()
    again = folders.succeed("hand-back", "--yes", "-o", "json")
    assert "nothing to do" in again.stderr
    assert again.json() == body | {"ledgers": 0, "entries_flushed": 0, "next_steps": []}
    plan = folders.succeed("hand-back", "--dry-run", "-o", "json").json()
    assert (plan["kind"], plan["changes"], plan["items"]) == ("Plan", 0, [])
    trail = (tmp_path / "state" / "audit.jsonl").read_text()
    assert trail.count('"storage hand-back"') == 2


def test_refusals(folders: Folders) -> None:
    folders.fill()
    with folders.opened():
        running = folders.run("hand-back", "--yes")
    assert (running.exit_code, "stop the bookie first" in running.stderr) == (5, True)
    dirty = Path(folders.config.ledger_directories[0]) / "current" / "DIRTY"
    dirty.touch()
    unclean = folders.run("hand-back", "--yes")
    assert (unclean.exit_code, "did not stop in order" in unclean.stderr) == (3, True)
