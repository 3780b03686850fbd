"""``bkctl autorecovery repair-marks`` as a process, against a real ZooKeeper."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from bkctl.runtime.client import LedgerClient
from bkctl.runtime.ledger.metadata_format import encode_ledger_metadata
from bkctl.runtime.metadata.replication.marks import UnderReplicationMarks
from bkctl.runtime.metadata.store import ANY_VERSION
from bkctl.runtime.net.loop import LoopClock
from tests.commands.autorecovery.test_autorecovery import A, B, Shell
from tests.processes import Cluster
from tests.runtime.replication.samples import ledger

CLOSED = msgspec.structs.replace(
    ledger({0: [A, B]}, 2, 2, last_entry_id=9, length=90), custom_metadata=(("application", b"tests"),)
)


async def _marked(shell: Shell, ledger_id: int, *missing: str, is_there: bool = True) -> str:
    """Mark a ledger; return the path of the mark."""
    if is_there:
        path = f"{shell.paths.root}/00/0000/L{ledger_id:04d}"
        await shell.store.create(path, encode_ledger_metadata(CLOSED), make_parents=True)
    await UnderReplicationMarks(shell.store, shell.paths.root, LoopClock()).mark(ledger_id, missing)
    return shell.paths.mark(ledger_id)


async def test_marks_are_planned_cleared_and_kept_in_the_trash(shell: Shell) -> None:
    """Ledger 1 was deleted, of ledger 2 no copy is left."""
    deleted = await _marked(shell, 1, A, is_there=False)
    hopeless = await _marked(shell, 2, A, B)
    planned = await shell.run("repair-marks", "--dry-run")
    assert planned.exit_code == 0, planned
    plan = planned.json()
    assert (plan["marks"], plan["hopeless"], plan["changes"]) == (2, 1, 1)
    (item,) = plan["items"]
    assert item == {
        "action": "clear mark",
        "path": deleted,
        "expected_version": 0,
        "ledger_id": "1",
        "state": "ledger deleted",
        "missing_bookies": [A],
        "owner": None,
    }
    reason = f"all bookies that store some of its entries are down: {A}, {B}"
    assert f"ledger 2 (application tests) cannot be repaired: {reason}" in plan["summary"]
    refused = await shell.run("repair-marks")
    assert (refused.exit_code, "use --yes" in refused.stderr) == (3, True)
    assert await shell.store.exists(deleted) is not None

    file = str(Path(shell.state).with_name("plan.json"))
    assert (await shell.run("repair-marks", "--plan-out", file)).exit_code == 0
    result = await shell.run("repair-marks", "--yes", "--apply", file)
    assert result.exit_code == 10, result
    body = result.json()
    assert (body["kind"], body["cleared"], body["left"], body["hopeless"]) == ("MarkRepair", 1, 1, 1)
    (row,) = body["items"]
    assert (row["ledger_id"], row["state"], row["hopeless"]) == ("2", "no live copy", True)
    assert await shell.store.exists(deleted) is None
    assert await shell.store.exists(hopeless) is not None
    (trash,) = Path(shell.state).rglob("trash/*.jsonl")
    lines = [json.loads(line) for line in trash.read_text().splitlines()]
    assert [(line["action"], line["path"], line["version"]) for line in lines] == [("delete", deleted, 0)]

    again = await shell.run("repair-marks", "--yes")
    assert (again.exit_code, again.json()["cleared"]) == (10, 0)
    assert "nothing to clear: 1 mark examined" in again.stderr


async def test_a_plan_that_no_longer_fits_is_refused(shell: Shell) -> None:
    path = await _marked(shell, 1, A, is_there=False)
    file = str(Path(shell.state).with_name("plan.json"))
    assert (await shell.run("repair-marks", "--plan-out", file)).exit_code == 0
    await shell.store.set(path, b"ctime: 5\n", ANY_VERSION)
    result = await shell.run("repair-marks", "--yes", "--apply", file)
    assert (result.exit_code, "no longer fits" in result.stderr) == (5, True)
    assert await shell.store.exists(path) is not None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("bk_server.conf", "repairedPlacementPolicyNotAdheringBookieEnabled=false\n"),
        ("config.toml", '[client.placement]\npolicy = "random"\n'),
    ],
)
async def test_marks_that_ask_only_for_placement_follow_the_settings(shell: Shell, name: str, text: str) -> None:
    path = await _marked(shell, 2)
    for bookie_id in (A, B):
        await shell.store.create(f"{shell.paths.available}/{bookie_id}")
    kept = await shell.succeed("repair-marks", "--yes")
    assert [(row["state"], row["hopeless"]) for row in kept["items"]] == [("placement rules unknown", False)]
    file = Path(shell.state).with_name(name)
    await asyncio.to_thread(file.write_text, text)
    option = "--conf" if name.endswith("conf") else "--config"
    cleared = await shell.succeed("repair-marks", "--yes", option, str(file))
    assert (cleared["cleared"], cleared["items"]) == (1, [])
    assert await shell.store.exists(path) is None


def test_real_bookies_that_were_up_or_come_back(start_cluster: Callable[[int], Cluster]) -> None:
    """The copies decide. Nothing is copied."""
    cluster = start_cluster(2)
    returned, always_up = cluster.bookies

    async def write_and_mark() -> None:
        async with await LedgerClient.connect(cluster.metadata_uri) as client:
            for missing in (returned.id, always_up.id):
                async with await client.create(ensemble_size=2, write_quorum_size=2) as writer:
                    await writer.append(b"an entry")
                marks = UnderReplicationMarks(client.store, client.ports.ledgers.root, LoopClock())
                await marks.mark(writer.ledger_id, [missing])

    asyncio.run(write_and_mark())
    os.kill(returned.pid, signal.SIGTERM)
    cluster.start_bookie(returned.id)
    while cluster.run("bookie", "list", "--state", "down").json()["items"]:
        pass  # it registers after it listens
    result = cluster.run("autorecovery", "repair-marks", "--yes")
    assert result.exit_code == 0, result
    body = result.json()
    assert (body["marks"], body["cleared"], body["copies_not_checked"], body["hopeless"]) == (2, 0, 2, 0)
    assert {left["state"] for left in body["items"]} == {"copies not checked"}
    assert "2 marks name bookies whose copies were not checked: --deep reads them" in result.stderr
    deep = cluster.run("autorecovery", "repair-marks", "--deep", "--yes").json()
    assert (deep["marks"], deep["cleared"], deep["items"]) == (2, 2, [])
    assert cluster.run("autorecovery", "pending", "--count").json()["count"] == 0
