"""Java's auditor and workers and ours in one cluster of Java bookies, each way round and all at once.

Each case disables autorecovery, kills a bookie and marks a ledger by hand: nothing may happen. Then autorecovery is
enabled. All end alike: every ledger has all of its copies, and no mark and no lock is left. ZooKeeper's transaction log
shows what happened meanwhile, and that each repair held the lock of its ledger.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from bkctl.runtime.metadata.paths import Paths
from bkctl.runtime.metadata.replication.marks import UnderReplicationMarks
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.runtime.metadata.zookeeper.embedded import EmbeddedZooKeeper
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from bkctl.runtime.net.loop import LoopClock
from tests.commands.test_cluster_walk import succeed
from tests.commands.test_recover_ledger import forget
from tests.interop.copy_watch import WrittenLedgers
from tests.interop.java import NEWEST, JavaClient
from tests.interop.java_cluster import JavaCluster
from tests.orphans import OrphanKiller
from tests.processes import Cluster
from tests.recovery_daemons import RecoveryDaemon, daemon_notes
from tests.until import wait_until
from tests.zookeeper_log import RepairWatch, ZooKeeperLog

BOOKIES = 4
LEDGERS, ENTRIES = 30, 30
SESSION_MS = "2000"
"""Sessions of killed bookies end soon."""
OLD = "4.14"


class MixedCluster:
    """Java bookies and a Java client of one release, and the witnesses."""

    def __init__(self, cluster: JavaCluster, client: JavaClient, znodes: KazooClient, log_directory: Path) -> None:
        self.cluster = cluster
        self.znodes = znodes
        self._client = client
        self._uri = parse_metadata_uri(cluster.metadata_uri)
        self.paths = Paths(self._uri.root)
        self.log = ZooKeeperLog(log_directory)
        self.repairs = RepairWatch(log_directory, self._uri.root)

    def write(self) -> WrittenLedgers:
        """New ledgers on four bookies."""
        self.cluster.start_bookies(BOOKIES - len(self.cluster.running), zkTimeout=SESSION_MS)
        return WrittenLedgers(self._client, self.znodes, self._uri.root, count=LEDGERS, entries=ENTRIES)

    def switch(self, word: str) -> None:
        """``enable`` or ``disable``."""
        switched = self.cluster.run("autorecovery", word, *(["--yes"] if word == "disable" else []))
        assert switched.exit_code == 0, switched.stderr

    def mark(self, ledger_id: int, bookie_id: str) -> None:
        """As an operator may."""

        async def mark_one() -> None:
            async with await ZooKeeperStore.connect(self._uri.servers) as store:
                await UnderReplicationMarks(store, self._uri.root, LoopClock()).mark(ledger_id, [bookie_id])

        asyncio.run(mark_one())

    def written_while_disabled(self) -> list[str]:
        """Paths of marks and locks that were created while the node was there that disables autorecovery."""
        found, is_disabled = [], False
        for change in self.log.new_changes():
            if change.path == self.paths.replication_disabled:
                is_disabled = change.kind == "create"
            elif is_disabled and change.kind == "create" and change.path.startswith(self.paths.under_replication):
                found += [change.path] if "/urL" in change.path else []
        return found

    def has_nothing_left(self) -> bool:
        """Whether no mark and no lock is left."""
        return not any(
            self.znodes.get_children(path)
            for path in (self.paths.under_replicated_ledgers, self.paths.replication_locks)
        )


@pytest.fixture(scope="module")
def clusters(
    new_metadata_uri: Callable[[], str],
    zookeeper: EmbeddedZooKeeper,
    znodes: KazooClient,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[str], MixedCluster]]:
    """One cluster of each release that is asked for."""
    known: dict[str, MixedCluster] = {}
    ends: list[Callable[[], object]] = []
    log_directory = Path(os.readlink(f"/proc/{zookeeper.pid}/cwd")) / "data"

    def cluster_of(release: str) -> MixedCluster:
        if release not in known:
            directory = tmp_path_factory.mktemp("mixed")
            cluster = JavaCluster(str(directory), new_metadata_uri(), release=release)
            ends.append(cluster.__exit__)
            cluster.__enter__()
            cluster.start_bookies(BOOKIES, zkTimeout=SESSION_MS)
            client = JavaClient(cluster.metadata_uri, str(directory / "client.log"), release=release)
            ends.append(client.stop)
            delay = cluster.run("autorecovery", "delay", "set", "0")
            assert delay.exit_code == 0, delay.stderr
            known[release] = MixedCluster(cluster, client, znodes, log_directory)
        return known[release]

    yield cluster_of
    for end in reversed(ends):
        end()


@pytest.fixture
def start_ours(clusters: object, tmp_path: Path) -> Iterator[Callable[[MixedCluster, str], RecoveryDaemon]]:
    """Starts a daemon of ours in a role, and waits until ZooKeeper has its note."""
    daemons: list[RecoveryDaemon] = []
    with OrphanKiller() as orphans:

        def start(mixed: MixedCluster, role: str) -> RecoveryDaemon:
            daemon = RecoveryDaemon(mixed.cluster.metadata_uri, tmp_path / role, "--role", role)
            daemons.append(daemon)
            daemon.start()
            orphans.watch(daemon.pid)
            wait_until(
                lambda: daemon.pid in daemon_notes(mixed.znodes, mixed.cluster.metadata_uri),
                f"the note of the daemon:\n{daemon.log}",
            )
            return daemon

        yield start
        for daemon in daemons:
            assert daemon.stop() == 0, daemon.log
            assert "Traceback" not in daemon.log


@pytest.mark.parametrize(
    ("release", "java_part", "our_role"),
    [
        (NEWEST, "auditor", "worker"),
        (NEWEST, "worker", "auditor"),
        (NEWEST, "both", "both"),
        (OLD, "both", "both"),
    ],
)
def test_all_ends_are_alike(
    clusters: Callable[[str], MixedCluster],
    start_ours: Callable[[MixedCluster, str], RecoveryDaemon],
    release: str,
    java_part: str,
    our_role: str,
) -> None:
    mixed = clusters(release)
    ledgers = mixed.write()
    mixed.repairs.read()
    before = mixed.repairs.repairs.copy()
    try:
        mixed.cluster.start_replication_worker(java_part, zkTimeout=SESSION_MS)  # Java's auditor is elected first
        ours = start_ours(mixed, our_role)
        dead = mixed.cluster.running[0]
        affected = ledgers.referencing(dead)
        assert affected
        mixed.switch("disable")
        mixed.mark(affected[0], dead)
        mixed.cluster.kill(dead)
        mixed.cluster.wait_until(lambda: dead not in mixed.cluster.registered("writable"))
        if our_role == "auditor":
            wait_until(lambda: f"bookie {dead} is gone" in ours.log, "our auditor's report")
        assert len(ledgers.referencing(dead)) == len(affected)
        mixed.switch("enable")

        mixed.cluster.wait_until(lambda: not ledgers.referencing(dead))
        mixed.cluster.wait_until(mixed.has_nothing_left)
    finally:
        mixed.cluster.stop_replication_workers()

    ledgers.require_all_copies()
    assert [path.rpartition("urL")[2] for path in mixed.written_while_disabled()] == [f"{affected[0]:010d}"]
    mixed.repairs.read()
    assert mixed.repairs.problems == []
    repaired = {ledger_id for _, ledger_id in mixed.repairs.repairs - before}
    assert set(affected) <= repaired  # and ledgers of the cases before


@pytest.mark.parametrize(("percentage", "missing"), [("0", 1), ("100", 0)])
async def test_java_clears_the_mark_of_an_entry_that_it_does_not_read(
    start_cluster: Callable[[int], Cluster], tmp_path: Path, percentage: str, missing: int
) -> None:
    """By default its worker reads the first and the last entry of each bookie alone."""
    cluster = start_cluster(4)
    written = succeed(cluster, "ledger", "write-test", "--entries", "9", "-E", "3", "-W", "3")
    ledger_id = written.json()["items"][0]["ledger_id"]
    shown = succeed(cluster, "ledger", "show", ledger_id).json()
    victim = shown["ensembles"][0]["ensemble"][1]
    cluster.down()
    forget(cluster.bookie(victim), int(ledger_id), 4)
    cluster.up(4)
    uri = parse_metadata_uri(cluster.metadata_uri)
    with JavaCluster(str(tmp_path / "java"), cluster.metadata_uri) as java:
        java.start_replication_worker("worker", auditorLedgerVerificationPercentage=percentage)
        async with await ZooKeeperStore.connect(uri.servers) as store:
            await UnderReplicationMarks(store, uri.root, LoopClock()).mark(int(ledger_id), [victim])
        wait_until(lambda: not succeed(cluster, "autorecovery", "pending").json()["items"])
    verified = cluster.run("ledger", "verify", ledger_id).json()["items"][0]
    assert verified["copies_missing"] == missing, verified
