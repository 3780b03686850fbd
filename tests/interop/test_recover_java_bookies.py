"""bkctl recovers and removes Java bookies of three releases while Java's auditor and replication worker do the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from bkctl.runtime.metadata.replication.marks import UnderReplicationMarks
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from bkctl.runtime.net.loop import LoopClock
from tests.interop.copy_watch import WrittenLedgers
from tests.interop.java import RELEASES, JavaClient
from tests.interop.java_cluster import HTTP, JavaCluster

LEDGER_COUNT = 40
ENTRY_COUNT = 30


class Ring:
    """Bookies, a client and a replication worker of one release. The auditor marks nothing for an hour."""

    def __init__(self, cluster: JavaCluster, client: JavaClient, znodes: KazooClient) -> None:
        self.cluster = cluster
        self._client = client
        self._znodes = znodes
        self._uri = parse_metadata_uri(cluster.metadata_uri)
        self._root = self._uri.root

    def write(self) -> WrittenLedgers:
        """New ledgers on five bookies."""
        self.cluster.start_bookies(5 - len(self.cluster.running), **HTTP)
        return WrittenLedgers(self._client, self._znodes, self._root, count=LEDGER_COUNT, entries=ENTRY_COUNT)

    def kill(self, bookie_id: str) -> None:
        """kill -9, and wait until its session ends."""
        self.cluster.kill(bookie_id)
        self.cluster.wait_until(lambda: bookie_id not in self.cluster.registered("writable"))

    def let_java_repair(self, ledger_ids: Sequence[int], bookie_id: str) -> None:
        """Mark the ledgers as under-replicated: Java's worker starts with them at once."""

        async def mark_all() -> None:
            async with await ZooKeeperStore.connect(self._uri.servers) as store:
                marks = UnderReplicationMarks(store, self._root, LoopClock())
                for ledger_id in ledger_ids:
                    await marks.mark(ledger_id, [bookie_id])

        asyncio.run(mark_all())

    def has_no_marks(self) -> bool:
        """Whether Java's worker has nothing left to do."""
        pending = self.cluster.run("autorecovery", "pending", "-o", "json")
        assert pending.exit_code == 0, pending.stderr
        marked: list[object] = pending.json()["items"]
        return not marked


@pytest.fixture(scope="module", params=RELEASES)
def ring(
    request: pytest.FixtureRequest,
    new_metadata_uri: Callable[[], str],
    znodes: KazooClient,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Ring]:
    """One per release, for all cases."""
    directory: Path = tmp_path_factory.mktemp("ring")
    with JavaCluster(str(directory), new_metadata_uri(), release=request.param) as cluster:
        cluster.start_bookies(5, **HTTP)
        client = JavaClient(cluster.metadata_uri, str(directory / "client.log"), release=request.param)
        try:
            cluster.start_replication_worker(lostBookieRecoveryDelay="3600")
            yield Ring(cluster, client, znodes)
        finally:
            client.stop()


def test_recover_a_killed_bookie(ring: Ring) -> None:
    ledgers = ring.write()
    dead = ring.cluster.running[0]
    ring.kill(dead)
    affected = ledgers.referencing(dead)
    assert affected
    contested = affected[::2]
    with ledgers.watched():
        ring.let_java_repair(contested, dead)
        recovered = ring.cluster.run("recover", "failed-bookie", dead, "--yes", "-o", "json")
        assert recovered.exit_code == 0, recovered.stderr
    assert len(affected) - len(contested) <= recovered.json()["ledgers_repaired"] <= len(affected)
    assert ledgers.referencing(dead) == []
    ring.cluster.wait_until(ring.has_no_marks)
    ledgers.require_all_copies()


def test_decommission_a_live_bookie(ring: Ring) -> None:
    ledgers = ring.write()
    leaving = ring.cluster.running[0]
    assert ledgers.referencing(leaving)
    stop_command = ring.cluster.command_to_stop(leaving)
    with ledgers.watched():
        removed = ring.cluster.run("decommission", leaving, "--stop-command", stop_command, "--yes", "-o", "json")
        assert removed.exit_code == 0, removed.stderr
    assert removed.json()["is_cookie_deleted"] is True
    assert ledgers.referencing(leaving) == []
    assert leaving not in ring.cluster.run("cookie", "list", "-o", "name").stdout.split()
    ledgers.require_all_copies()
