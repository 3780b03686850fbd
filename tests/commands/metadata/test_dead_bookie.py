"""A killed bookie, real processes, no auditor: what ``cluster info`` and ``metadata doctor`` say of it."""

from __future__ import annotations

import asyncio
import shlex
from typing import Any

import pytest

from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from tests.processes import Cluster, run_bkctl, run_bkctl_on_terminal

pytestmark = pytest.mark.cluster


def test_a_dead_bookie_that_ledgers_name_is_a_finding(cluster: Cluster) -> None:
    written = cluster.run("ledger", "write-test", "--ledgers", "3", "--entries", "6", "-E", "3", "-W", "2")
    assert written.exit_code == 0, written
    sound = cluster.run("metadata", "doctor")
    assert (sound.exit_code, [each["rule"] for each in sound.json()["findings"]]) == (10, ["no-auditor"])

    dead = cluster.bookies[1].id
    cluster.stop_bookie(dead)
    info = cluster.run("cluster", "info").json()
    assert info["unavailable_bookies_count"] == 1
    assert (info["cluster_under_replicated"], info["ledger_replication_enabled"]) == (None, None)
    _, screen = run_bkctl_on_terminal("cluster", "info", BKCTL_METADATA_URI=cluster.metadata_uri)
    shown = dict(line.split(maxsplit=1) for line in screen.splitlines())
    assert shown["cluster_under_replicated"].startswith("unknown")
    assert shown["ledger_replication_enabled"].startswith("unknown")

    found = cluster.run("metadata", "doctor", "--severity", "warning")
    assert found.exit_code == 10
    finding, stop, no_auditor = found.json()["findings"]
    status = {each["part"]: each["severity"] for each in cluster.run("status").json()["findings"]}
    assert (no_auditor["rule"], no_auditor["severity"]) == ("no-auditor", status["no_auditor"])
    assert (finding["severity"], finding["rule"]) == (status["bookies_down"], "bookie-down-with-ledgers")
    assert (stop["severity"], stop["rule"]) == (status["writers_stop"], "writers-stop"), "two take no ensemble of three"
    assert finding["severity"] == "critical", "nothing repairs"
    assert finding["problem"] == f"Bookie {dead} is not registered, and 3 ledgers reference it."
    assert finding["cure"] == "Start the bookie, or add another: too few others are writable to take the copies."
    asyncio.run(_plant_foreign_vote(cluster))
    worst_first = [each["rule"] for each in cluster.run("metadata", "doctor").json()["findings"]]
    assert worst_first[:3] == ["foreign-vote", "bookie-down-with-ledgers", "writers-stop"]

    cluster.add_bookie()
    (finding,) = _dead_bookies(cluster)
    assert f"bkctl recover failed-bookie {dead}" in finding["cure"]
    assert f"bkctl decommission {dead}" in finding["cure"]
    options = ("-u", cluster.metadata_uri)
    text = run_bkctl("metadata", "doctor", *options, "-o", "table").stdout
    for words in ("recover failed-bookie", "decommission"):
        assert f"{shlex.join(['bkctl', *options])} {words} {dead}" in text, "as it is pasted, on one line"
    away = cluster.run("autorecovery", "maintenance", "start", dead, "--for", "30m", "--yes")
    assert away.exit_code == 0, away
    (finding,) = _dead_bookies(cluster)
    assert f"bookie {dead} is in maintenance until" in finding["cure"]
    assert "failed-bookie" not in finding["cure"]

    assert cluster.run("recover", "failed-bookie", dead, "--yes").exit_code == 0
    cluster.stop_bookie(next(each.id for each in cluster.bookies if each.id != dead))
    cures = {each["rule"]: each["cure"] for each in cluster.run("metadata", "doctor").json()["findings"]}
    assert "writers-stop" in cures
    assert cures["bookie-down"] == "Start the bookie.", "not: remove what writers need"


async def _plant_foreign_vote(cluster: Cluster) -> None:
    uri = parse_metadata_uri(cluster.metadata_uri)
    async with await ZooKeeperStore.connect(uri.servers) as store:
        await store.create(f"{uri.root}/underreplication/auditorelection/stray", make_parents=True)


def _dead_bookies(cluster: Cluster) -> list[dict[str, Any]]:
    findings = cluster.run("metadata", "doctor").json()["findings"]
    return [each for each in findings if each["rule"] == "bookie-down-with-ledgers"]
