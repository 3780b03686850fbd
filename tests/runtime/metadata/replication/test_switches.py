from __future__ import annotations

import asyncio

import pytest
from kazoo.client import KazooClient

from bkctl.runtime.config import ZooKeeperConfig
from bkctl.runtime.errors import ClusterNotFoundError, MetadataFormatError
from bkctl.runtime.metadata.replication.switches import PeriodicCheck, RecoveryDelay, ReplicationSwitches
from bkctl.runtime.metadata.zookeeper.embedded import EmbeddedZooKeeper
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from tests.counting_store import CountingStore
from tests.runtime.metadata.replication.test_format import golden_nodes
from tests.runtime.metadata.replication_peer import ReplicationPeer


async def opened(store: ZooKeeperStore, root: str) -> tuple[ReplicationSwitches, CountingStore, str]:
    peer = await ReplicationPeer.open(store, root)
    return ReplicationSwitches(peer.store, root), peer.store, f"{root}/underreplication"


async def test_off_and_on_and_what_it_costs(store: ZooKeeperStore, root: str) -> None:
    switches, counting, tree = await opened(store, root)
    with counting.counted() as counts:
        assert await switches.is_enabled()
        assert await switches.disable()
        assert not await switches.disable()
        assert not await switches.is_enabled()
    assert counts == {"exists": 2, "create": 2}
    node = await store.get(f"{tree}/disable")
    assert (node.data, node.stat.ephemeral_owner) == (b"", 0)
    assert await switches.switched_off() is not None
    with counting.counted() as counts:
        assert await switches.enable()
        assert not await switches.enable()
        assert await switches.switched_off() is None
    assert counts == {"delete": 2, "get": 1}
    assert await store.exists(f"{tree}/disable") is None


async def test_a_note_lies_in_the_switch(store: ZooKeeperStore, root: str) -> None:
    switches, _, _ = await opened(store, root)
    await switches.disable(b"maintenance")
    off = await switches.switched_off()
    assert off is not None
    assert off.note == b"maintenance"
    assert off.since_ms > 0


async def test_the_delay(store: ZooKeeperStore, root: str) -> None:
    switches, counting, tree = await opened(store, root)
    assert await switches.recovery_delay() is None
    assert await switches.rewrite_recovery_delay() is None
    with counting.counted() as counts:
        await switches.set_recovery_delay(60)
    assert counts == {"set": 1, "create": 1}
    assert (await store.get(f"{tree}/lostBookieRecoveryDelay")).data == b"60"
    with counting.counted() as counts:
        await switches.set_recovery_delay(0)
    assert counts == {"set": 1}
    assert await switches.recovery_delay() == RecoveryDelay(0, 1)
    with counting.counted() as counts:
        assert await switches.rewrite_recovery_delay() == RecoveryDelay(0, 2)
    assert counts == {"get": 1, "set": 1}
    for seconds in (-1, 2**31):
        with pytest.raises(ValueError, match="not between"):
            await switches.set_recovery_delay(seconds)


@pytest.mark.parametrize("data", [b"", b"1.5", b"ten", b"5\n", b"-1", b"2147483648", b"\xff"])
async def test_a_delay_that_is_no_number(store: ZooKeeperStore, root: str, data: bytes) -> None:
    switches, _, tree = await opened(store, root)
    await store.create(f"{tree}/lostBookieRecoveryDelay", data)
    with pytest.raises(MetadataFormatError, match="lostBookieRecoveryDelay"):
        await switches.recovery_delay()
    await switches.set_recovery_delay(5)
    assert await switches.recovery_delay() == RecoveryDelay(5, 1)


async def test_watching_the_delay(store: ZooKeeperStore, other_store: ZooKeeperStore, root: str) -> None:
    """Unlike Java's, our auditor is not deaf after the node was deleted."""
    switches, counting, tree = await opened(store, root)
    theirs = ReplicationSwitches(other_store, root)
    told: asyncio.Queue[RecoveryDelay | MetadataFormatError | None] = asyncio.Queue()
    await theirs.set_recovery_delay(5)
    with counting.counted() as counts:
        watch = switches.watch_recovery_delay(told.put_nowait)
        assert await told.get() == RecoveryDelay(5, 0)
        await theirs.rewrite_recovery_delay()
        assert await told.get() == RecoveryDelay(5, 1), "an unchanged value is a wish for an audit"
        await theirs.set_recovery_delay(9)
        assert await told.get() == RecoveryDelay(9, 2)
        await counting.quiet()
    assert counts == {"watched": 3}
    await other_store.set(f"{tree}/lostBookieRecoveryDelay", b"junk", -1)
    assert isinstance(await told.get(), MetadataFormatError)
    await other_store.delete(f"{tree}/lostBookieRecoveryDelay")
    assert await told.get() is None
    await theirs.set_recovery_delay(5)
    assert await told.get() == RecoveryDelay(5, 0)
    watch.cancel()


async def test_check_times(store: ZooKeeperStore, root: str) -> None:
    switches, counting, tree = await opened(store, root)
    golden = {
        path.rpartition("/")[2]: data
        for peer, path, data in golden_nodes()
        if peer == "after forceauditchecks -calc -ppc -rc"
    }
    for check in PeriodicCheck:
        assert await switches.check_time_ms(check) is None
        with counting.counted() as counts:
            await switches.set_check_time_ms(check, 5)
        assert counts == {"set": 1, "create": 1}
        assert await switches.check_time_ms(check) == 5
        await store.set(f"{tree}/{check.value}", golden[check.value], -1)
        time_ms = await switches.check_time_ms(check)
        assert time_ms is not None
        with counting.counted() as counts:
            await switches.set_check_time_ms(check, time_ms)
        assert counts == {"set": 1}
        assert (await store.get(f"{tree}/{check.value}")).data == golden[check.value]
        await store.set(f"{tree}/{check.value}", b"\x08", -1)
        with pytest.raises(MetadataFormatError, match=check.value):
            await switches.check_time_ms(check)


async def test_without_a_cluster_nothing_is_created(store: ZooKeeperStore, root: str) -> None:
    switches = ReplicationSwitches(store, root)
    for refused in (switches.disable(), switches.set_recovery_delay(1)):
        with pytest.raises(ClusterNotFoundError):
            await refused
    with pytest.raises(ClusterNotFoundError):
        await switches.set_check_time_ms(PeriodicCheck.PLACEMENT, 1)
    await store.create(root, make_parents=True)
    await switches.is_enabled()
    await switches.recovery_delay()
    await switches.check_time_ms(PeriodicCheck.REPLICAS)
    assert await store.children(root) == []
    await switches.disable()
    assert await store.children(f"{root}/underreplication") == ["LAYOUT", "disable", "ledgers", "locks"]


async def test_the_delay_alone_is_open_to_all(zookeeper: EmbeddedZooKeeper, root: str) -> None:
    """In a secured cluster Java's tools write the delay without logging in."""
    kazoo = KazooClient(zookeeper.connect_string, auth_data=[("digest", "bk:secret")])
    kazoo.start()
    try:
        kazoo.ensure_path(root)
        async with await ZooKeeperStore.connect(zookeeper.connect_string, ZooKeeperConfig()) as store:
            await ReplicationSwitches(store, root).set_recovery_delay(9)
        acls, _ = kazoo.get_acls(f"{root}/underreplication/lostBookieRecoveryDelay")
        assert [(acl.id.scheme, acl.id.id, acl.perms) for acl in acls] == [("world", "anyone", 31)]
    finally:
        kazoo.stop()
        kazoo.close()
