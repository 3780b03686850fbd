"""``bkctl log`` on a real cluster."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from bkctl.runtime.client import LedgerClient
from tests.processes import Cluster, TerminalSession


def test_a_log_from_creation_to_deletion(cluster: Cluster, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_text("one\ntwo\n")

    def run(*arguments: str, exit_code: int = 0) -> str:
        result = cluster.run("log", *arguments)
        assert result.exit_code == exit_code, result
        return result.stdout if exit_code == 0 else result.stderr

    sizes = ("--ensemble", "1", "--write-quorum", "1", "--ack-quorum", "1")
    run("create", "a", *sizes)
    assert "exists already" in run("create", "a", exit_code=5)
    assert "is not a name" in run("create", "a/b", exit_code=2)
    assert "there is no log b" in run("append", "b", "--from-file", str(lines), exit_code=4)
    for _ in range(2):
        run("append", "a", "--from-file", str(lines))
    assert run("read", "a", "--format", "raw") == "onetwoonetwo"
    assert "next entry gets position 4" in run("read", "a", "--from", "5", exit_code=4)
    run("trim", "a", "--before", "2", exit_code=3)
    trimmed = json.loads(run("trim", "a", "--before", "2", "--confirm", "a", "-o", "json"))
    assert "was trimmed" in run("read", "a", "--from", "1", exit_code=4)
    deleted = json.loads(run("delete", "a", "--confirm", "a", "-o", "json"))
    run("show", "a", exit_code=4)
    for result in (trimmed, deleted):
        [ledger_id] = result["deleted"]
        back = cluster.run("ledger", "import", result["trash"], "--create-only", "--yes")
        assert back.exit_code == 0, back
        assert cluster.run("ledger", "read", ledger_id, "--format", "raw").stdout == "onetwo"


def test_a_change_while_the_plan_is_read_stops_the_deletion(cluster: Cluster, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_text("one\n")
    sizes = ("--ensemble", "1", "--write-quorum", "1", "--ack-quorum", "1")
    assert cluster.run("log", "create", "b", *sizes).exit_code == 0
    assert cluster.run("log", "append", "b", "--from-file", str(lines)).exit_code == 0
    with TerminalSession("log", "delete", "b", BKCTL_METADATA_URI=cluster.metadata_uri) as terminal:
        terminal.wait_for("Type b to continue")
        assert cluster.run("log", "append", "b", "--from-file", str(lines)).exit_code == 0
        terminal.type("b\n")
        assert terminal.exit_code() == 5
    assert "something has changed since the plan was made" in terminal.screen
    assert cluster.run("log", "read", "b", "--format", "raw").stdout == "oneone"


def test_a_log_that_needs_more_bookies_than_there_are_is_created_with_a_warning(cluster: Cluster) -> None:
    created = cluster.run("log", "create", "c", "--ensemble", "9")
    assert created.exit_code == 0, created
    assert "9 writable bookies are needed" in created.stderr
    assert cluster.run("log", "create", "c2", "--ensemble", "1", "-W", "1", "-A", "1").exit_code == 0
    shown = cluster.run("log", "show", "c", "c2", "missing", "c")
    assert (shown.exit_code, [(each["name"], each["ensemble_size"]) for each in shown.json()["items"]]) == (
        4,
        [("c", 9), ("c2", 1)],
    )
    assert "there is no log missing" in shown.stderr


def test_a_ledger_that_a_log_needs_is_not_deleted_and_a_log_that_lost_one_says_what_to_do(
    cluster: Cluster, tmp_path: Path
) -> None:
    lines = tmp_path / "lines"
    lines.write_text("one\ntwo\n")

    def run(*arguments: str, exit_code: int = 0) -> str:
        result = cluster.run(*arguments)
        assert result.exit_code == exit_code, result
        return result.stdout if exit_code == 0 else result.stderr

    run("log", "create", "d", "--ensemble", "1", "--write-quorum", "1", "--ack-quorum", "1")
    for _ in range(2):
        run("log", "append", "d", "--from-file", str(lines))
    first, last = (each["ledger_id"] for each in json.loads(run("log", "show", "d", "-o", "json"))["ledgers"])
    refused = run("ledger", "delete", first, "--confirm", first, exit_code=3)
    assert f"log d needs ledger {first}: bkctl log trim d --before 2 deletes all up to it" in refused
    assert f"log d needs ledger {last}: bkctl log delete d" in run("ledger", "delete", last, "--dry-run", exit_code=3)

    async def lose() -> None:
        async with await LedgerClient.connect(cluster.metadata_uri) as client:
            for ledger_id in (first, last):
                await client.delete(int(ledger_id))

    asyncio.run(lose())
    assert "bkctl log read d --from 2 reads on" in run("log", "read", "d", exit_code=4)
    assert "bkctl log delete d deletes the rest" in run("log", "read", "d", "--from", "2", exit_code=4)
    gone = run("log", "append", "d", "--from-file", str(lines), exit_code=4)
    assert f"ledger {last}: log d has lost it: bkctl ledger import restores it" in gone
    assert "bkctl log delete d deletes the rest" in gone
    run("log", "delete", "d", "--confirm", "d")


def test_several_logs_are_deleted_by_one_plan(cluster: Cluster, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_text("one\n")
    for name in ("e1", "e2"):
        assert cluster.run("log", "create", name, "--ensemble", "1", "-W", "1", "-A", "1").exit_code == 0
        assert cluster.run("log", "append", name, "--from-file", str(lines)).exit_code == 0
    missing = cluster.run("log", "delete", "e1", "e9", "e2", "--confirm", "3")
    assert (missing.exit_code, "there is no log e9" in missing.stderr) == (4, True)
    refused = cluster.run("log", "delete", "e1", "e2", "--confirm", "e1")
    assert (refused.exit_code, "the confirmation is 'e1', not '2'" in refused.stderr) == (3, True)
    deleted = cluster.run("log", "delete", "e1", "e2", "e1", "--confirm", "2")
    assert deleted.exit_code == 0, deleted
    assert "will delete log e1, e2 with 2 ledgers" in deleted.stderr
    assert [(each["name"], len(each["deleted"])) for each in deleted.json()["items"]] == [("e1", 1), ("e2", 1)]
    listed = cluster.run("log", "list", "-o", "name").stdout.split()
    assert not {"e1", "e2"} & set(listed)
