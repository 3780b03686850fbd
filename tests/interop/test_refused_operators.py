"""Commands at Java bookies that do not accept the operator: one sentence, nothing changed, nothing counted as bad."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bkctl.runtime.client import LedgerClient
from bkctl.runtime.config import ClientConfig
from bkctl.runtime.security_config import BookieClientConfig, ClientLoginConfig
from tests.interop.java_cluster import JavaCluster
from tests.interop.test_secured_clients import LOGIN, NEITHER, PASSWORD, SASL
from tests.recovery_daemons import RecoveryDaemon

ENTRIES = 6


@pytest.fixture
def cluster(new_metadata_uri: Callable[[], str], tmp_path: Path) -> Iterator[JavaCluster]:
    """No bookies yet; those that are started with ``SASL`` require a login."""
    (tmp_path / "jaas.conf").write_text(f'Bookie {{ {LOGIN} user_bookkeeper="{PASSWORD}"; }};\n')
    flags = (f"-Djava.security.auth.login.config={tmp_path}/jaas.conf", "-Dzookeeper.sasl.client=false")
    with JavaCluster(str(tmp_path / "cluster"), new_metadata_uri(), jvm_flags=flags) as cluster:
        yield cluster


async def write_ledger(cluster: JavaCluster, tmp_path: Path, write_quorum: int, *, is_closed: bool = True) -> int:
    """A ledger on three bookies, written by a client that logs in where it must."""
    (tmp_path / "password").write_text(PASSWORD)
    login = ClientLoginConfig(username="bookkeeper", password=f"file:{tmp_path}/password")
    config = ClientConfig(security=BookieClientConfig(sasl=login))
    async with await LedgerClient.connect(cluster.metadata_uri, config=config) as client:
        writer = await client.create(ensemble_size=3, write_quorum_size=write_quorum, ack_quorum_size=2)
        for number in range(ENTRIES):
            await writer.append(b"entry %d" % number)
        if is_closed:
            await writer.close()
        return writer.ledger_id


def shown(cluster: JavaCluster, ledger_id: int) -> dict[str, Any]:
    result = cluster.run("ledger", "show", str(ledger_id))
    assert result.exit_code == 0, result.stderr
    return dict(json.loads(result.stdout))


async def test_commands_without_a_login(cluster: JavaCluster, tmp_path: Path) -> None:
    bookies = cluster.start_bookies(3, **SASL)
    closed = str(await write_ledger(cluster, tmp_path, 3))
    still_open = await write_ledger(cluster, tmp_path, 3, is_closed=False)
    before = shown(cluster, still_open)
    first = bookies[0]
    refused: tuple[tuple[str, ...], ...] = (
        ("bookie", "sanity", first),
        ("bookie", "info"),
        ("bookie", "info", first),
        ("bookie", "list"),
        ("bookie", "drain", first, "--yes"),
        ("decommission", first, "--yes"),
        ("recover", "ledger", closed, "--yes"),
        ("ledger", "close", str(still_open), "--yes"),
        ("ledger", "read", closed),
        ("ledger", "verify", closed),
    )
    for words in refused:
        result = cluster.run(*words)
        assert (result.exit_code, result.stderr.splitlines()[-1][-len(NEITHER) :]) == (11, NEITHER), words
    assert shown(cluster, still_open) == before
    assert cluster.registered("writable") == sorted(bookies), "none was made read-only"
    shows_it: tuple[tuple[tuple[str, ...], int], ...] = (
        (("bookie", "restart-check", first), 10),
        (("ledger", "explain", closed), 10),
        (("status",), 11),
    )
    for words, exit_code in shows_it:
        result = cluster.run(*words)
        assert (result.exit_code, NEITHER in result.stdout) == (exit_code, True), words
    cluster.kill(bookies[2])
    recovered = cluster.run("recover", "failed-bookie", bookies[2], "--yes")
    assert (recovered.exit_code, NEITHER in recovered.stderr) == (11, True), recovered.stderr
    assert shown(cluster, int(closed))["ledger_id"] == closed


async def test_one_bookie_that_refuses(cluster: JavaCluster, tmp_path: Path) -> None:
    """What only it has is unknown, and left without permission to read it; the job goes on with the others."""
    dead, other = cluster.start_bookies(2)
    (secured,) = cluster.start_bookies(1, **SASL)
    ledger_id = await write_ledger(cluster, tmp_path, 2)
    listed = cluster.run("bookie", "list")
    answers = {row["id"]: row["answer"] for row in json.loads(listed.stdout)["items"]}
    assert (listed.exit_code, answers) == (0, {dead: "yes", other: "yes", secured: "refused"}), listed.stderr
    table = cluster.run("bookie", "list", "-o", "table").stdout
    assert f"{secured} writable yes refused" in " ".join(table.split())
    verified = json.loads(cluster.run("ledger", "verify", str(ledger_id)).stdout)
    counts = {name: verified[f"copies_{name}"] for name in ("good", "unreachable", "missing", "corrupt", "failed")}
    assert counts == {"good": 8, "unreachable": 4, "missing": 0, "corrupt": 0, "failed": 0}
    still_open = await write_ledger(cluster, tmp_path, 3, is_closed=False)
    ended = cluster.run("ledger", "close", str(still_open), "--yes", "--grace", "0s")
    assert (ended.exit_code, shown(cluster, still_open)["last_entry_id"]) == (0, str(ENTRIES - 1)), ended.stdout
    (spare,) = cluster.start_bookies(1)
    cluster.kill(dead)
    planned = json.loads(cluster.run("recover", "failed-bookie", dead, "-n").stdout)
    assert planned["targets"] == sorted([other, spare])
    assert [NEITHER in each["finding"] for each in planned["findings"]].count(True) == 1, planned["findings"]
    recovered = cluster.run("recover", "failed-bookie", dead, "--yes")
    assert (recovered.exit_code, NEITHER in recovered.stdout) == (11, True), recovered.stderr
    report = json.loads(recovered.stdout)
    assert (report["ledgers_failed"], report["bad_copies_found"]) == (1, 0)
    drained = cluster.run("bookie", "drain", secured, "--yes")
    assert (drained.exit_code, drained.stderr.splitlines()[-1]) == (11, f"error: bookie {secured}: {NEITHER}")
    assert {other, secured} <= set(cluster.registered("writable"))


async def test_a_check_of_copies_without_a_login(cluster: JavaCluster, tmp_path: Path) -> None:
    """Copies that were not read are unknown, and the check is not done."""
    bookies = cluster.start_bookies(3, **SASL)
    ledger_id = await write_ledger(cluster, tmp_path, 3)
    (tmp_path / "bkctl.toml").write_text("[autorecovery]\ncheck_period_s = 5\ncheck_entries_percentage = 100\n")
    with tempfile.TemporaryDirectory(prefix="bkctl-") as directory:
        config = str(tmp_path / "bkctl.toml")
        daemon = RecoveryDaemon(cluster.metadata_uri, Path(directory), BKCTL_CONFIG=config)
        daemon.start()
        try:
            cluster.wait_until(lambda: "check of copies is not complete" in daemon.log)
            metrics = daemon.metrics()
            cluster.wait_until(lambda: "daemon_refused" in cluster.run("status").stdout)
            shown = cluster.run("autorecovery", "status")
            found = {each["part"]: each for each in json.loads(cluster.run("status").stdout)["findings"]}
        finally:
            daemon.kill()
        log = daemon.log
    assert "18 copies, 0 bad, 18 unknown; 0 ledgers marked, 0 with lost entries" in log
    assert f"ledger {ledger_id} has copies that were not read" in log
    assert NEITHER in log
    for bookie in bookies:
        assert metrics[f'bkctl_autorecovery_refused{{bookie="{bookie}"}}'] >= 1
    status = json.loads(cluster.run("status").stdout)
    assert status["last_full_check"] is None
    refused = found["daemon_refused"]
    assert refused["severity"] == found["bookies_refusing"]["severity"] == "critical"
    assert "refuse this daemon, which can neither check nor repair copies there: " + NEITHER in refused["finding"]
    assert refused["finding"] in shown.stderr
