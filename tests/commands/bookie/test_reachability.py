"""``bkctl bookie list`` and ``info`` agree about a bookie that is registered and frozen; ``ledger verify`` goes on."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.processes import LOOPBACK, BkctlResult, Cluster, free_port, kill_and_wait, run_bkctl, start_bkctl
from tests.until import wait_until

pytestmark = pytest.mark.cluster

READ_TIMEOUT_S = "2"
"""Each request to the frozen bookie takes so long."""


@pytest.fixture
def frozen_bookie(cluster: Cluster, tmp_path: Path) -> Iterator[str]:
    """Id of a fourth bookie that holds copies of ledger 0 and is stopped by SIGSTOP.

    Its session lasts a minute, so that it stays registered for the whole test.
    """
    port = free_port()
    bookie_id, log = f"{LOOPBACK}:{port}", tmp_path / "frozen.log"
    command = (
        *("bookie", "start", "--metadata-uri", cluster.metadata_uri, "--port", str(port), "--bookie-id", bookie_id),
        *("--advertised-address", LOOPBACK, "--journal-dir", str(tmp_path / "j"), "--ledger-dir", str(tmp_path / "l")),
        *("--set", "allowLoopback=true", "--set", "diskUsageThreshold=0.99", "--set", "zkTimeout=60000"),
    )
    with log.open("wb") as output:
        process = start_bkctl(*command, stderr=output)
    try:
        wait_until(lambda: "listening on port" in log.read_text(), process=process, tell=log.read_text)
        written = cluster.run("ledger", "write-test", "--entries", "40", "-E", "4", "-W", "4", "-A", "3")
        assert written.exit_code == 0, written.stderr
        os.kill(process.pid, signal.SIGSTOP)
        yield bookie_id
    finally:
        kill_and_wait(process.pid)
        process.wait()


def run_impatiently(cluster: Cluster, *arguments: str) -> BkctlResult:
    uri, timeout_s = cluster.metadata_uri, READ_TIMEOUT_S
    return run_bkctl(*arguments, "-o", "json", BKCTL_METADATA_URI=uri, BKCTL_CLIENT_READ_TIMEOUT_S=timeout_s)


def rows(cluster: Cluster, *arguments: str, exit_code: int = 0) -> dict[str, dict[str, Any]]:
    result = run_impatiently(cluster, "bookie", *arguments)
    assert result.exit_code == exit_code, result.stderr
    return {row["id"]: row for row in result.json()["items"]}


def test_a_frozen_bookie_is_registered_and_not_reachable(cluster: Cluster, frozen_bookie: str) -> None:
    for found in (rows(cluster, "list"), rows(cluster, "info", exit_code=9)):
        frozen = found.pop(frozen_bookie)
        assert (frozen["state"], frozen["registered"], frozen["reachable"]) == ("writable", True, False)
        assert frozen["problem"]
        assert frozen["free_bytes"] is None
        assert sorted(found) == sorted(bookie.id for bookie in cluster.bookies)
        for row in found.values():
            assert (row["state"], row["registered"], row["reachable"]) == ("writable", True, True)
            assert row["free_bytes"] > 0
            assert row["problem"] is None

    # How often a silent bookie is asked is in the tests of CopyReader.
    check = run_impatiently(cluster, "ledger", "verify", "0")
    assert check.exit_code == 10, check.stderr
    report = check.json()
    assert (report["copies_unreachable"], report["copies_good"], report["copies_missing"]) == (40, 120, 0)


def test_what_was_not_asked_is_unknown(cluster: Cluster) -> None:
    dead = cluster.bookies[0].id
    os.kill(cluster.bookie(dead).pid, signal.SIGTERM)
    wait_until(lambda: rows(cluster, "list")[dead]["state"] == "down")
    row = rows(cluster, "list")[dead]
    assert (row["registered"], row["reachable"], row["address"], row["endpoints"]) == (False, None, None, None)
    assert rows(cluster, "info", dead, exit_code=7)[dead] == row
    table = cluster.run("bookie", "list", "-o", "table").stdout
    head, _, *lines = table.splitlines()
    assert head.split() == ["ID", "STATE", "REGISTERED", "REACHABLE", "ADDRESS", "PROBLEM"]
    assert sorted(line.split()[1:4] for line in lines) == [["down", "no", "unknown"], *[["writable", "yes", "yes"]] * 2]
    assert next(line for line in lines if dead in line).endswith(" not registered")


def test_wide_shows_free_space_version_and_endpoints(cluster: Cluster) -> None:
    version = run_bkctl("--version").stdout.strip()
    bookie = cluster.bookies[0]
    row = rows(cluster, "list")[bookie.id]
    assert row["version"] == version
    assert row["endpoints"] == [f"bookie-rpc://{LOOPBACK}:{bookie.port}"]
    table = cluster.run("bookie", "list", "-o", "wide").stdout
    head, _, *lines = table.splitlines()
    assert head.split()[5:] == ["PROBLEM", "FREE", "VERSION", "ENDPOINTS"]
    assert all(f"bookie-rpc://{LOOPBACK}:" in line and version in line and "iB" in line for line in lines)
