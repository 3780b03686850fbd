"""``bkctl decommission`` against real processes: bookies that still run, and bookies that only were silent."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from tests.processes import COMMAND_TIMEOUT_S, BkctlResult, Cluster
from tests.runtime.bookie.bookie_process import BookieUnderTest, RunningBookie

REGISTRATION_FAILED_EXIT_CODE = 4
SERVER_EXCEPTION_EXIT_CODE = 2
BOOKIE_ID = f"frozen-{os.getpid()}"
"""Commands look for a bookie of this id on the whole machine: no other test may have it."""


@contextlib.asynccontextmanager
async def one_more_bookie(cluster: Cluster, directory: Path) -> AsyncIterator[tuple[BookieUnderTest, RunningBookie]]:
    """A bookie that is a child of this process, in a cluster whose other bookies are not."""
    directory.mkdir()
    async with await ZooKeeperStore.connect(parse_metadata_uri(cluster.metadata_uri).servers) as store:
        bookie = BookieUnderTest(directory, cluster.metadata_uri, store, bookie_id=BOOKIE_ID)
        async with bookie.running() as (process, _):
            yield bookie, process


async def succeed(cluster: Cluster, *arguments: str) -> BkctlResult:
    result = await asyncio.to_thread(cluster.run, *arguments, "-o", "json")
    assert result.exit_code == 0, f"{arguments}: {result}"
    return result


async def registered(cluster: Cluster) -> dict[str, str]:
    found = (await succeed(cluster, "bookie", "list")).json()
    return {row["id"]: row["state"] for row in found["items"]}


async def test_a_bookie_that_was_frozen_during_its_decommission_stops_by_itself(
    cluster: Cluster, tmp_path: Path
) -> None:
    async with one_more_bookie(cluster, tmp_path / "frozen") as (bookie, process):
        sizes = ("-E", "3", "-W", "2", "-A", "2")
        await succeed(cluster, "ledger", "write-test", "--ledgers", "12", "--entries", "5", *sizes)
        os.kill(process.pid, signal.SIGSTOP)
        report = (await succeed(cluster, "decommission", BOOKIE_ID, "--yes")).json()
        assert report["is_cookie_deleted"]
        assert report["ledgers_repaired"] > 0, "the choice must have fallen on it"
        assert BOOKIE_ID not in await registered(cluster)

        os.kill(process.pid, signal.SIGCONT)
        assert await asyncio.to_thread(process.wait, COMMAND_TIMEOUT_S) == REGISTRATION_FAILED_EXIT_CODE
        assert f"bookie {BOOKIE_ID} no longer has a cookie" in bookie.said()
        assert "Traceback" not in bookie.said()
        assert BOOKIE_ID not in await registered(cluster)
        assert (await bookie.registrations.snapshot()).live == {other.id for other in cluster.bookies}

        await succeed(cluster, "ledger", "write-test", "--ledgers", "4", "--entries", "5", *sizes)
        verified = (await succeed(cluster, "ledger", "verify", "--all")).json()
        assert (verified["ledgers"], verified["ledgers_clean"]) == (16, 16)
        assert await bookie.refused(()) == SERVER_EXCEPTION_EXIT_CODE


def test_a_running_bookie_that_the_cluster_needs_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    written = cluster.run("ledger", "write-test", "--ledgers", "2", "--entries", "3", "-E", "3", "-W", "3")
    assert written.exit_code == 0, written
    bookie_id = cluster.bookies[0].id
    before = cluster.run("ledger", "show", "0").stdout

    planned = cluster.run("decommission", bookie_id, "--dry-run", "-o", "json")

    assert planned.exit_code == 3, planned
    plan = planned.json()
    assert plan["refusal"] in planned.stderr
    risk = "new ledgers: E=3, Qw=3 (used by 2 of 2 ledgers) needs 3 writable bookies, 2 would be left"
    assert plan["findings"][0] == {"severity": "critical", "finding": risk}
    shown = cluster.run("bookie", "drain", bookie_id, "--dry-run", "--accept-risk", "-o", "table")
    lines = shown.stdout[: shown.stdout.index("\n\n")].splitlines()
    assert (lines[0].partition(" read-only")[0], shown.stderr) == (f"will make bookie {bookie_id}", "")
    assert lines.count(f"critical: {risk}") == 1
    severities = [line.partition(": ")[0] for line in lines]
    risks = next(number for number, each in enumerate(severities) if each == "critical")
    assert {*severities[risks:]} == {"critical", "warning"}
    assert (plan["registered"], plan["ledgers"], plan["ledgers_without_target"]) == ([bookie_id], 2, 2)
    assert sorted(plan["targets"]) == sorted(other.id for other in cluster.bookies[1:])
    saved = cluster.run("decommission", bookie_id, "--plan-out", str(tmp_path / "plan.json"))
    assert (saved.exit_code, (tmp_path / "plan.json").exists()) == (3, False), saved
    refused = cluster.run("decommission", bookie_id, "--yes")
    assert refused.exit_code == 3
    assert f"bookie {bookie_id} should not leave now: new ledgers: E=3, Qw=3" in refused.stderr
    assert "--accept-risk" in refused.stderr
    assert cluster.run("ledger", "show", "0").stdout == before
    assert cluster.run("cookie", "show", bookie_id).exit_code == 0

    unknown = cluster.run("decommission", "unknown:1", "--dry-run")
    assert unknown.exit_code == 4


def test_a_bookie_that_left_is_in_maintenance_no_longer(cluster: Cluster) -> None:
    """The end of its maintenance would be refused: it is not registered, and cannot be started."""
    bookie_id = cluster.bookies[0].id
    for words in (
        ("delay", "set", "0"),
        ("maintenance", "start", bookie_id, "--for", "20m", "--accept-risk"),
    ):
        assert cluster.run("autorecovery", *words).exit_code == 0
    assert cluster.run("autorecovery", "delay", "get", "-o", "json").json()["seconds"] == 1200
    cluster.stop_bookie(bookie_id)
    left = cluster.run("decommission", bookie_id, "--yes")
    assert left.exit_code == 0, left
    assert cluster.run("autorecovery", "maintenance", "list", "-o", "json").json()["items"] == []
    assert cluster.run("autorecovery", "delay", "get", "-o", "json").json()["seconds"] == 0
    assert cluster.run("status", "-o", "json").json()["bookies_in_maintenance"] == 0
