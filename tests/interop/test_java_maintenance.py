"""``bkctl autorecovery maintenance`` with Java's auditor in office: a bookie may be away, and afterwards it may not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from bkctl.runtime.metadata.uri import parse_metadata_uri
from tests.interop.copy_watch import WrittenLedgers
from tests.interop.java import JavaClient
from tests.interop.java_cluster import JavaCluster
from tests.orphans import OrphanKiller
from tests.recovery_daemons import RecoveryDaemon, daemon_notes

SESSION_MS = "2000"


@pytest.fixture
def java(metadata_uri: str, tmp_path: Path) -> Iterator[JavaCluster]:
    """Four bookies, and an auditor without a worker: its marks stay."""
    with JavaCluster(str(tmp_path / "java"), metadata_uri) as cluster:
        cluster.start_bookies(4, zkTimeout=SESSION_MS)
        delay = cluster.run("autorecovery", "delay", "set", "0")
        assert delay.exit_code == 0, delay.stderr
        cluster.start_replication_worker("auditor", zkTimeout=SESSION_MS)
        yield cluster


def test_ledgers_are_not_marked_during_a_maintenance_and_are_after_it(
    java: JavaCluster, znodes: KazooClient, tmp_path: Path
) -> None:
    client = JavaClient(java.metadata_uri, str(tmp_path / "client.log"))
    try:
        root = parse_metadata_uri(java.metadata_uri).root
        ledgers = WrittenLedgers(client, znodes, root, count=10, entries=5)
    finally:
        client.stop()
    away = java.running[0]
    assert ledgers.referencing(away)
    started = java.run("autorecovery", "maintenance", "start", away, "--for", "30m")
    assert (started.exit_code, started.json()["auditor"], started.json()["delay_set_s"]) == (0, "java", 1800), started

    java.stop(away)
    log = Path(java.directory) / "autorecovery-1.log"
    java.wait_until(lambda: f"Delaying bookie audit {{bookies=[{away}], delaySecs=1800}}" in log.read_text())
    refused = java.run("autorecovery", "maintenance", "end", away)
    assert (refused.exit_code, "is not registered" in refused.stderr) == (3, True), refused
    java.restart(away)
    assert java.run("autorecovery", "maintenance", "end", away).json()["bookies"][0]["delay"] == "restored"
    assert marked(java) == set()

    java.stop(away)
    java.wait_until(lambda: marked(java) == set(ledgers.referencing(away)))


def test_an_auditor_of_java_that_takes_over_ignores_delay_and_maintenance(
    metadata_uri: str, znodes: KazooClient, tmp_path: Path
) -> None:
    """What the warning of maintenance start is for."""
    ours = RecoveryDaemon(metadata_uri, tmp_path / "ours", "--role", "auditor")
    with JavaCluster(str(tmp_path / "java"), metadata_uri) as java, OrphanKiller() as orphans:
        java.start_bookies(4, zkTimeout=SESSION_MS)
        delay = java.run("autorecovery", "delay", "set", "1800")
        assert delay.exit_code == 0, delay.stderr
        ours.start()
        orphans.watch(ours.pid)
        java.wait_until(lambda: any(each.is_auditor for each in daemon_notes(znodes, metadata_uri).values()))
        client = JavaClient(metadata_uri, str(tmp_path / "client.log"))
        try:
            ledgers = WrittenLedgers(client, znodes, parse_metadata_uri(metadata_uri).root, count=10, entries=5)
        finally:
            client.stop()
        java.start_replication_worker("auditor", is_auditor=False, zkTimeout=SESSION_MS)
        java.wait_until(lambda: len(java.run("autorecovery", "auditor").json()["candidates"]) == 1)
        away = java.running[0]
        started = java.run("autorecovery", "maintenance", "start", away, "--for", "30m")
        assert (started.exit_code, started.json()["auditor"]) == (0, "bkctl"), started
        assert "is elected meanwhile, it marks the ledgers of bookies that are away at once" in started.stderr
        java.stop(away)
        assert marked(java) == set()
        assert ours.stop() == 0, ours.log
        java.wait_until(lambda: marked(java) == set(ledgers.referencing(away)))


def marked(java: JavaCluster) -> set[int]:
    """Ledgers with a mark."""
    return {int(each) for each in java.run("autorecovery", "pending", "-o", "name").stdout.split()}
