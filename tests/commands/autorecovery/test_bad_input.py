"""Real daemons on a cluster with nodes that no process should have written, and with a ZooKeeper that is read-only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bkctl.runtime.client import LedgerClient
from bkctl.runtime.metadata.paths import Paths
from bkctl.runtime.metadata.replication.marks import UnderReplicationMarks
from bkctl.runtime.metadata.replication.switches import ReplicationSwitches
from bkctl.runtime.metadata.store import children_of
from bkctl.runtime.metadata.uri import parse_metadata_uri
from tests.orphans import OrphanKiller
from tests.processes import Cluster
from tests.recovery_daemons import RecoveryDaemon
from tests.until import until
from tests.zookeeper_servers import Ensemble

LEDGERS, ENTRIES = 5, 10
NO_LEDGER = 7777
UNKNOWN = "10.9.9.9:3181"


@pytest.fixture
def start_daemon(tmp_path: Path) -> Iterator[Callable[[str], RecoveryDaemon]]:
    """Starts daemons; at the end they must stop in order, without a traceback in the log."""
    daemons: list[RecoveryDaemon] = []
    with OrphanKiller() as orphans:

        def start(metadata_uri: str) -> RecoveryDaemon:
            daemon = RecoveryDaemon(
                metadata_uri, tmp_path / f"daemon-{len(daemons)}", BKCTL_ZOOKEEPER_SESSION_TIMEOUT_MS="3000"
            )
            daemons.append(daemon)
            daemon.start()
            orphans.watch(daemon.pid)
            return daemon

        yield start
        for daemon in daemons:
            assert daemon.stop() == 0, daemon.log
            assert "Traceback" not in daemon.log


async def write_ledgers(metadata_uri: str) -> list[int]:
    """Closed ledgers on two bookies each."""
    ids = []
    async with await LedgerClient.connect(metadata_uri) as client:
        for _ in range(LEDGERS):
            async with await client.create(ensemble_size=2, write_quorum_size=2, ack_quorum_size=2) as writer:
                await asyncio.gather(*(writer.append(b"entry %d" % number) for number in range(ENTRIES)))
            ids.append(writer.ledger_id)
    return ids


async def wait_for_repair(client: LedgerClient, ledger_ids: list[int], gone: str, daemon: RecoveryDaemon) -> None:
    """Until no ledger references the bookie, and no mark of them and no lock is left."""
    paths = Paths(client.ports.ledgers.root)

    async def is_repaired() -> bool:
        assert daemon.is_running, daemon.log
        found = [(await client.ports.ledgers.read(each)).value for each in ledger_ids]
        if any(gone in each.bookies() for each in found):
            return False
        marks = [await client.store.exists(paths.mark(each)) for each in (*ledger_ids, NO_LEDGER)]
        return not any(marks) and not await children_of(client.store, paths.replication_locks)

    await until(is_repaired, tell=lambda: daemon.log)


async def wait_for_log(daemon: RecoveryDaemon, *words: str) -> None:
    """Until the log has all of them."""
    await until(lambda: all(each in daemon.log for each in words), f"{words} in the log", tell=lambda: daemon.log)


async def test_bad_nodes_are_named_and_everything_else_is_repaired(
    start_cluster: Callable[[int], Cluster], start_daemon: Callable[[str], RecoveryDaemon]
) -> None:
    cluster = await asyncio.to_thread(start_cluster, 4)
    uri = cluster.metadata_uri
    ledger_ids = await write_ledgers(uri)
    paths = Paths(parse_metadata_uri(uri).root)
    garbage = [
        f"{paths.root}/00/0000/L9999",
        f"{paths.available}/not a bookie",
        f"{paths.under_replicated_ledgers}/not-a-group",
    ]
    async with await LedgerClient.connect(uri) as client:
        marks = UnderReplicationMarks(client.store, paths.root, client.ports.clock)
        await marks.mark(NO_LEDGER, [UNKNOWN])  # there is no such ledger
        await marks.mark(ledger_ids[0], [UNKNOWN])  # the ledger does not reference this bookie
        for path in garbage:
            await client.store.create(path, b"\xffgarbage", make_parents=True)
        await ReplicationSwitches(client.store, paths.root).set_recovery_delay(0)
        await client.store.delete(paths.layout)
        gone = (await client.ports.ledgers.read(ledger_ids[-1])).value.segments[0].ensemble[0]

        daemon = start_daemon(uri)
        cluster.stop_bookie(gone)
        await wait_for_repair(client, ledger_ids, gone, daemon)
        await wait_for_log(daemon, "ledger 9999: ", f"{paths.layout} is missing", *garbage[1:])
        assert all([await client.store.exists(path) for path in garbage])


async def test_a_tree_of_marks_without_layout_gets_one(
    cluster: Cluster, start_daemon: Callable[[str], RecoveryDaemon]
) -> None:
    ledger_ids = await write_ledgers(cluster.metadata_uri)
    async with await LedgerClient.connect(cluster.metadata_uri) as client:
        paths = Paths(client.ports.ledgers.root)
        await ReplicationSwitches(client.store, paths.root).set_recovery_delay(0)
        await client.store.delete(paths.under_replication_layout)
        daemon = start_daemon(cluster.metadata_uri)
        gone = (await client.ports.ledgers.read(ledger_ids[-1])).value.segments[0].ensemble[0]
        cluster.stop_bookie(gone)
        await wait_for_repair(client, ledger_ids, gone, daemon)
        assert await client.store.exists(paths.under_replication_layout) is not None


@pytest.mark.battery
async def test_a_read_only_zookeeper_is_waited_out(
    tmp_path: Path, start_daemon: Callable[[str], RecoveryDaemon]
) -> None:
    with Ensemble(tmp_path / "zookeeper") as ensemble:
        cluster = Cluster(str(tmp_path / "bookies"), ensemble.metadata_uri("/ledgers"), session_ms=20_000)
        try:
            await asyncio.to_thread(cluster.up, 4)
            ledger_ids = await write_ledgers(cluster.metadata_uri)
            daemon = start_daemon(cluster.metadata_uri)
            await wait_for_log(daemon, "this process is the auditor now")
            async with await LedgerClient.connect(cluster.metadata_uri) as client:
                await ReplicationSwitches(client.store, client.ports.ledgers.root).set_recovery_delay(0)
                gone = (await client.ports.ledgers.read(ledger_ids[-1])).value.segments[0].ensemble[0]
            for server in ensemble.servers[1:]:
                server.kill()
            ensemble.servers[0].wait_for_mode("read-only")
            cluster.kill_bookie(gone)
            await wait_for_log(daemon, "lost the connection to ZooKeeper")
            await asyncio.to_thread(ensemble.start)
            async with await LedgerClient.connect(cluster.metadata_uri) as client:
                await wait_for_repair(client, ledger_ids, gone, daemon)
        finally:
            cluster.stop()
