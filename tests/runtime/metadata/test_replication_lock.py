from __future__ import annotations

import asyncio

import pytest

from runtime.errors import ClusterNotFoundError, MetadataFormatError, RefusedError
from runtime.metadata.embedded import EmbeddedZooKeeper
from runtime.metadata.replication_lock import ReplicationLocks
from runtime.metadata.zookeeper import ZooKeeperStore
from tests.runtime.golden_metadata import java_nodes, java_vectors
from tests.runtime.metadata.conftest import expire, session_of


async def new_locks(store: ZooKeeperStore, root: str, holder: str = "myhost.example.com") -> ReplicationLocks:
    if await store.exists(root) is None:
        await store.create(root, make_parents=True)
    return ReplicationLocks(store, root, holder)


async def test_the_node_is_that_of_java(store: ZooKeeperStore, root: str) -> None:
    locks = await new_locks(store, root)
    lock = await locks.acquire(5)
    assert lock is not None
    java_path = java_nodes("/locks/")[0][0]
    assert java_path == "/ledgers/underreplication/locks/urL0000000005"
    node = await store.get(root + java_path.removeprefix("/ledgers"))
    assert node.data == java_vectors()["lock"]
    assert node.stat.ephemeral_owner == store.session_id
    tree = f"{root}/underreplication"
    assert await store.children(tree) == ["LAYOUT", "ledgers", "locks"]
    assert (await store.get(f"{tree}/LAYOUT")).data == java_vectors()["layout"]


async def test_one_holder_at_a_time(store: ZooKeeperStore, other_store: ZooKeeperStore, root: str) -> None:
    ours, theirs = await new_locks(store, root, "ours"), await new_locks(other_store, root, "theirs")
    lock = await ours.acquire(7)
    assert lock is not None
    assert await theirs.acquire(7) is None
    assert await ours.acquire(7) is None
    assert await theirs.holder_of(7) == "ours"
    other_lock = await theirs.acquire(8)
    assert other_lock is not None
    await lock.release()
    await lock.release()
    assert not lock.is_held
    assert await ours.holder_of(7) is None
    taken = await theirs.acquire(7)
    assert taken is not None
    async with taken:
        assert taken.is_held
        assert await ours.holder_of(7) == "theirs"
    assert await ours.holder_of(7) is None


async def test_many_at_once(store: ZooKeeperStore, root: str) -> None:
    locks = await new_locks(store, root)
    taken = await asyncio.gather(*(locks.acquire(1) for _ in range(10)))
    assert sum(lock is not None for lock in taken) == 1


async def test_a_lost_session_loses_the_lock(
    store: ZooKeeperStore, other_store: ZooKeeperStore, zookeeper: EmbeddedZooKeeper, root: str
) -> None:
    ours, theirs = await new_locks(store, root), await new_locks(other_store, root)
    lock = await ours.acquire(7)
    assert lock is not None
    lost = asyncio.Event()
    store.on_session_lost(lost.set)
    await asyncio.to_thread(expire, session_of(store), zookeeper)
    await lost.wait()
    assert not lock.is_held
    successor = await theirs.acquire(7)
    assert successor is not None
    await lock.release()
    assert await ours.holder_of(7) is not None, "releasing a lost lock must not remove its next holder's"
    assert successor.is_held


async def test_closing_releases_everything(store: ZooKeeperStore, root: str) -> None:
    locks = await new_locks(store, root)
    held = [await locks.acquire(number) for number in range(3)]
    await locks.close()
    assert await store.children(f"{root}/underreplication/locks") == []
    assert not any(lock is None or lock.is_held for lock in held)


async def test_a_lock_of_our_own_session_that_we_do_not_know_of_is_taken_over(store: ZooKeeperStore, root: str) -> None:
    """What a create leaves behind whose answer was lost."""
    locks = await new_locks(store, root)
    lock = await locks.acquire(1)
    assert lock is not None
    await lock.release()
    await store.create(f"{root}/underreplication/locks/urL0000000001", is_ephemeral=True)
    assert await locks.acquire(1) is not None


async def test_no_cluster_and_a_foreign_tree(store: ZooKeeperStore, root: str) -> None:
    locks = ReplicationLocks(store, root, "host")
    with pytest.raises(ClusterNotFoundError, match=root):
        await locks.acquire(1)
    await store.create(f"{root}/underreplication/LAYOUT", b'type: "OTHER"\nversion: 1\n', make_parents=True)
    with pytest.raises(MetadataFormatError, match="unknown"):
        await locks.acquire(1)
    with pytest.raises(RefusedError):
        await locks.acquire(2**63 - 1)
