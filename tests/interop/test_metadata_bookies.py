"""A Java bookie with its auditor and replication worker, in a cluster that bkctl made, looks after and brings back."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from bkctl.runtime.metadata.bookies.cookies import CookieStore
from bkctl.runtime.metadata.cluster.root import RESTORE_MARK
from bkctl.runtime.metadata.paths import Paths
from bkctl.runtime.metadata.replication.directories import UnderReplicationTree
from bkctl.runtime.metadata.replication.lock import ReplicationLocks
from bkctl.runtime.metadata.replication.marks import UnderReplicationMarks, read_mark
from bkctl.runtime.metadata.replication.switches import PeriodicCheck, ReplicationSwitches
from bkctl.runtime.metadata.store import ANY_VERSION
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from bkctl.runtime.net.host import canonical_host_name
from bkctl.runtime.net.loop import LoopClock
from tests.interop.java import JavaBookie, JavaClient, write_server_conf
from tests.interop.java_metadata import JavaMetadata
from tests.interop.metadata_exchange import bkctl
from tests.interop.znodes import dump
from tests.processes import free_port
from tests.until import until

ABSENT_LEDGER = 777


class Bookie:
    """A Java bookie on one root; it can be stopped and started again."""

    def __init__(self, directory: Path, metadata_uri: str) -> None:
        self.port = free_port()
        self.id = f"127.0.0.1:{self.port}"
        self._log_path = str(directory / "log")
        self._conf_path = str(directory / "conf")
        os.mkdir(directory / "data")
        write_server_conf(
            self._conf_path,
            metadata_uri,
            str(directory / "data"),
            self.port,
            autoRecoveryDaemonEnabled="true",
            lostBookieRecoveryDelay="900",
        )
        self._process: JavaBookie | None = None

    async def start(self, store: ZooKeeperStore, root: str) -> None:
        """Start, and wait for the registration."""
        self._process = JavaBookie(self._conf_path, self._log_path)
        process, path = self._process, Paths(root).writable_bookie(self.id)

        async def is_registered() -> bool:
            assert process.is_running, f"the bookie ended: see {self._log_path}"
            return await store.exists(path) is not None

        await until(is_registered)

    async def start_in_vain(self) -> None:
        """Start, and wait for the end that the bookie comes to."""
        process = self._process = JavaBookie(self._conf_path, self._log_path)

        async def has_ended() -> bool:
            return not process.is_running

        await until(has_ended)

    async def stop(self) -> None:
        """Stop in order."""
        if self._process is not None:
            await asyncio.to_thread(self._process.stop)


@pytest.fixture
async def bookie(java: JavaMetadata, tmp_path: Path) -> AsyncIterator[Bookie]:
    """In a cluster that ``bkctl cluster init`` has made, not yet started."""
    await bkctl(java, "cluster", "init")
    bookie = Bookie(tmp_path, java.metadata_uri)
    yield bookie
    await bookie.stop()


async def test_a_java_bookie_lives_in_our_cluster_and_in_what_we_restore(
    java: JavaMetadata, bookie: Bookie, store: ZooKeeperStore, root: str, znodes: KazooClient, tmp_path: Path
) -> None:
    made = dump(znodes, root)
    await bookie.start(store, root)
    booted = dump(znodes, root)
    assert {path: booted[path] for path in made} == made, "Java changed nothing of what we made"

    instance_id = (await bkctl(java, "cluster", "instance-id", "-o", "name")).stdout.strip()
    rows = (await bkctl(java, "bookie", "list", "-o", "json")).json()["items"]
    assert [(row["id"], row["state"], row["reachable"], row["address"]) for row in rows] == [
        (bookie.id, "writable", True, bookie.id)
    ]
    cookie = (await CookieStore(store, root).read(bookie.id)).value
    assert (cookie.bookie_id, cookie.instance_id) == (bookie.id, instance_id)
    assert cookie.ledger_directories == (str(tmp_path / "data" / "ledgers"),)
    version_file = (tmp_path / "data" / "ledgers" / "current" / "VERSION").read_bytes()
    assert (await CookieStore(store, root).read_node(bookie.id)).data == version_file

    client = JavaClient(java.metadata_uri, str(tmp_path / "client.log"))
    try:
        ledger_id = await client.create(ensemble=(1, 1, 1))
        await client.append(ledger_id, [b"one", b"two"])
        await client.close_ledger(ledger_id)
    finally:
        client.stop()
    await _look_at_its_auditor_and_worker(java, bookie, store, root)
    healthy = await bkctl(java, "metadata", "doctor", "-o", "json")
    assert healthy.json()["findings"] == [], "a running Java cluster is sound"
    await bookie.stop()
    await until(lambda: _is_gone(store, Paths(root).writable_bookie(bookie.id)))

    backup = str(tmp_path / "backup")
    await bkctl(java, "cluster", "backup", backup)
    await bkctl(java, "cluster", "nuke", "--confirm", instance_id)
    await bkctl(java, "cluster", "restore", backup, "--confirm", instance_id)
    await _refuses_a_cluster_whose_restore_has_not_ended(bookie, store, root, znodes, instance_id)
    await bookie.start(store, root)
    verified = await bkctl(java, "ledger", "verify", str(ledger_id), "-o", "json")
    assert verified.exit_code == 0
    client = JavaClient(java.metadata_uri, str(tmp_path / "client.log"))
    try:
        assert await client.read(ledger_id) == [b"one", b"two"]
        assert await client.create(ensemble=(1, 1, 1)) > ledger_id
    finally:
        client.stop()


async def _refuses_a_cluster_whose_restore_has_not_ended(
    bookie: Bookie, store: ZooKeeperStore, root: str, znodes: KazooClient, instance_id: str
) -> None:
    """A bookie that came up would miss ledgers in the tree and delete its copies: what is created last keeps it out."""
    paths = Paths(root)
    for path in (paths.read_only, paths.available, paths.instance_id):
        await store.delete(path)
    await store.set(root, RESTORE_MARK + b"of an archive", ANY_VERSION)
    before = dump(znodes, root)
    await bookie.start_in_vain()
    assert dump(znodes, root) == before
    for path, data in ((paths.available, b""), (paths.read_only, b""), (paths.instance_id, instance_id.encode())):
        await store.create(path, data)
    await store.set(root, b"", ANY_VERSION)


async def _look_at_its_auditor_and_worker(java: JavaMetadata, bookie: Bookie, store: ZooKeeperStore, root: str) -> None:
    async def has_audited() -> bool:
        times = ReplicationSwitches(store, root)
        return await times.check_time_ms(PeriodicCheck.ALL_LEDGERS) is not None

    await until(has_audited)
    assert (await bkctl(java, "autorecovery", "auditor", "-o", "name")).stdout.strip() == bookie.id
    status = (await bkctl(java, "autorecovery", "status", "-o", "json")).json()
    assert (status["enabled"], status["auditor"], status["lost_bookie_recovery_delay_s"]) == (True, bookie.id, 900)
    await UnderReplicationTree(store, root).require()

    # A mark of ours is taken up by Java's worker, who drops it, for no such ledger; but not while we hold it.
    lock = await ReplicationLocks(store, root, canonical_host_name()).acquire(ABSENT_LEDGER)
    assert lock is not None
    marks = UnderReplicationMarks(store, root, LoopClock(1))
    await marks.mark(ABSENT_LEDGER, ["10.0.0.9:3181"])
    await marks.mark(ABSENT_LEDGER + 1, ["10.0.0.9:3181"])
    await until(lambda: _is_unmarked(store, root, ABSENT_LEDGER + 1))
    assert await read_mark(store, root, ABSENT_LEDGER) is not None
    await lock.release()
    await until(lambda: _is_unmarked(store, root, ABSENT_LEDGER))


async def _is_unmarked(store: ZooKeeperStore, root: str, ledger_id: int) -> bool:
    return await read_mark(store, root, ledger_id) is None


async def _is_gone(store: ZooKeeperStore, path: str) -> bool:
    return await store.exists(path) is None
