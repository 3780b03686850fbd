from __future__ import annotations

import asyncio
import socket

import pytest

from bkctl.runtime.errors import (
    ClusterNotFoundError,
    MetadataFormatError,
    MetadataUnavailableError,
    RefusedError,
    SessionExpiredError,
)
from bkctl.runtime.metadata.replication.directories import ForeignNames
from bkctl.runtime.metadata.replication.lock import ReplicationLocks, list_held_locks, list_locked_ids
from bkctl.runtime.metadata.zookeeper.embedded import EmbeddedZooKeeper
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from bkctl.runtime.net.host import canonical_host_name
from tests.counting_store import CountingStore
from tests.runtime.golden_metadata import java_nodes, java_vectors
from tests.runtime.metadata.conftest import LosesSession, expire, session_of
from tests.runtime.metadata.replication_peer import ReplicationPeer, holder_of
from tests.until import until


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


async def test_a_lock_that_somebody_else_deletes_is_lost_and_not_taken_from_the_next_holder(
    store: ZooKeeperStore, other_store: ZooKeeperStore, root: str
) -> None:
    ours, theirs = await new_locks(store, root, "ours"), await new_locks(other_store, root, "theirs")
    lock, kept = await ours.acquire(7), await ours.acquire(8)
    assert lock is not None
    assert kept is not None
    await other_store.delete(f"{root}/underreplication/locks/urL0000000007")
    next_lock = await theirs.acquire(7)
    assert next_lock is not None
    await until(lambda: not lock.is_held)
    assert not ours.holds(7)
    await lock.release()
    assert await holder_of(ours, 7) == "theirs"
    assert next_lock.is_held
    assert kept.is_held
    assert ours.holds(8)


async def test_the_format_is_read_once_for_the_first_locks_of_many_ledgers(store: ZooKeeperStore, root: str) -> None:
    await new_locks(store, root)
    counting = CountingStore(store)
    locks = ReplicationLocks(counting, root, "ours")
    with counting.counted() as counts:
        taken = await asyncio.gather(*(locks.acquire(ledger_id) for ledger_id in range(20)))
    assert all(lock is not None for lock in taken)
    assert counts["get"] == 1
    await locks.close()


async def test_one_holder_at_a_time(store: ZooKeeperStore, other_store: ZooKeeperStore, root: str) -> None:
    ours, theirs = await new_locks(store, root, "ours"), await new_locks(other_store, root, "theirs")
    lock = await ours.acquire(7)
    assert lock is not None
    assert await theirs.acquire(7) is None
    assert await ours.acquire(7) is None
    assert await holder_of(theirs, 7) == "ours"
    other_lock = await theirs.acquire(8)
    assert other_lock is not None
    await lock.release()
    await lock.release()
    assert not lock.is_held
    assert await holder_of(ours, 7) is None
    taken = await theirs.acquire(7)
    assert taken is not None
    async with taken:
        assert taken.is_held
        assert await holder_of(ours, 7) == "theirs"
    assert await holder_of(ours, 7) is None


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
    assert await holder_of(ours, 7) is not None, "releasing a lost lock must not remove its next holder's"
    assert successor.is_held


async def test_closing_releases_everything(store: ZooKeeperStore, root: str) -> None:
    locks = await new_locks(store, root)
    held = [await locks.acquire(number) for number in range(3)]
    await locks.close()
    assert await store.children(f"{root}/underreplication/locks") == []
    assert not any(lock is None or lock.is_held for lock in held)


async def test_a_lock_that_is_left_costs_nothing_now_and_is_given_back_before_the_next_one(
    store: ZooKeeperStore, root: str
) -> None:
    counting = CountingStore(store)
    await store.create(root, make_parents=True)
    locks = ReplicationLocks(counting, root, "ours")
    lock = await locks.acquire(5)
    assert lock is not None
    await counting.quiet()
    with counting.counted() as counts:
        locks.release_later(lock)
        locks.release_later(lock)
        await lock.release()
    assert not counts
    assert (lock.is_held, locks.holds(5)) == (False, False)
    assert await holder_of(ReplicationLocks(store, root, "reader"), 5) == "ours"
    assert await locks.acquire(6) is not None
    assert await holder_of(ReplicationLocks(store, root, "reader"), 5) is None
    assert await locks.acquire(5) is not None


async def test_a_session_lost_during_the_create_gives_no_lock(
    store: ZooKeeperStore, other_store: ZooKeeperStore, zookeeper: EmbeddedZooKeeper, root: str
) -> None:
    theirs = await new_locks(other_store, root, "theirs")
    assert await theirs.acquire(1), "the tree is there now"
    locks = ReplicationLocks(LosesSession(store, zookeeper), root, "ours")
    with pytest.raises(SessionExpiredError, match="session expired"):
        await locks.acquire(7)
    assert not locks.holds(7)
    assert await holder_of(theirs, 7) is None
    taken = await theirs.acquire(7)
    assert taken is not None
    await locks.release_in_doubt()
    await locks.close()
    assert taken.is_held
    assert await holder_of(theirs, 7) == "theirs"


class _LosesAnswers(CountingStore):
    """Does what it is asked for, and says that nobody answered."""

    losing = ""

    async def create(self, path: str, data: bytes = b"", **options: bool) -> str:
        created = await super().create(path, data, **options)
        self._lose("create", path)
        return created

    async def delete(self, path: str, expected_version: int = -1) -> None:
        if self.losing != "delete":  # this one did not even arrive
            await super().delete(path, expected_version)
        self._lose("delete", path)

    def _lose(self, kind: str, path: str) -> None:
        if self.losing == kind:
            self.losing = ""
            raise MetadataUnavailableError("the connection was lost before the answer", path)


async def test_a_lock_that_we_may_hold_without_knowing_is_given_back(store: ZooKeeperStore, root: str) -> None:
    losing = _LosesAnswers(store)
    await new_locks(store, root)
    locks = ReplicationLocks(losing, root, "ours")
    lock = await locks.acquire(1)
    assert lock is not None
    losing.losing = "create"
    with pytest.raises(MetadataUnavailableError):
        await locks.acquire(2)
    assert await holder_of(locks, 2) == "ours"
    assert not locks.holds(2)
    with losing.counted() as counts:
        assert await locks.acquire(3)
    assert counts == {"exists": 1, "delete": 1, "create": 1}
    assert await holder_of(locks, 2) is None
    losing.losing = "delete"
    await lock.release()
    assert not lock.is_held
    assert await holder_of(locks, 1) == "ours"
    with losing.counted() as counts:
        again = await locks.acquire(1)
        assert again is not None
    assert counts == {"exists": 1, "delete": 1, "create": 1}
    with losing.counted() as counts:
        await locks.release_in_doubt()
    assert counts == {}


async def test_doubt_never_takes_a_lock_from_somebody_else(
    store: ZooKeeperStore, other_store: ZooKeeperStore, root: str
) -> None:
    losing = _LosesAnswers(store)
    theirs = await new_locks(other_store, root, "theirs")
    locks = ReplicationLocks(losing, root, "ours")
    lock = await locks.acquire(1)
    assert lock is not None
    losing.losing = "delete"
    await lock.release()
    await store.delete(f"{root}/underreplication/locks/urL0000000001")
    assert await theirs.acquire(1)
    await locks.release_in_doubt()
    assert await holder_of(locks, 1) == "theirs"


async def test_no_cluster_and_a_foreign_tree(store: ZooKeeperStore, root: str) -> None:
    locks = ReplicationLocks(store, root, "host")
    with pytest.raises(ClusterNotFoundError, match=root):
        await locks.acquire(1)
    await store.create(f"{root}/underreplication/LAYOUT", b'type: "OTHER"\nversion: 1\n', make_parents=True)
    with pytest.raises(MetadataFormatError, match="unknown"):
        await locks.acquire(1)
    with pytest.raises(RefusedError):
        await locks.acquire(2**63 - 1)


async def test_all_holders(store: ZooKeeperStore, other_store: ZooKeeperStore, root: str) -> None:
    peer = await ReplicationPeer.open(store, root)
    theirs = await new_locks(other_store, root, "theirs")
    for ledger_id in (2**40, 3):
        assert await peer.locks.acquire(ledger_id)
    assert await theirs.acquire(4)
    await store.create(peer.paths.replication_lock(5), b"junk")
    for name in ("junk", "urL5", "urL00000000005"):
        await store.create(f"{peer.paths.replication_locks}/{name}")
    with peer.store.counted() as counts:
        held = [lock async for lock in list_held_locks(peer.store, root, peer.foreign)]
    assert counts == {"children": 1, "get": 4}
    assert [(lock.ledger_id, lock.holder) for lock in held] == [
        (3, "myhost.example.com"),
        (4, "theirs"),
        (5, None),
        (2**40, "myhost.example.com"),
    ]
    assert [lock.session_id for lock in held] == [store.session_id, other_store.session_id, 0, store.session_id]
    assert held[2].problem is not None
    with peer.store.counted() as counts:
        assert await list_locked_ids(peer.store, root, peer.foreign) == [3, 4, 5, 2**40]
    assert counts == {"children": 1}
    assert len(peer.foreign_told) == 3
    with pytest.raises(MetadataFormatError, match="urL0000000005"):
        await holder_of(theirs, 5)


async def test_nobody_holds_a_lock_where_no_tree_is(store: ZooKeeperStore, root: str) -> None:
    await store.create(root, make_parents=True)
    assert [lock async for lock in list_held_locks(store, root, ForeignNames())] == []
    assert await holder_of(ReplicationLocks(store, root, "reader"), 1) is None
    assert await store.children(root) == []


async def test_what_a_lock_costs(store: ZooKeeperStore, other_store: ZooKeeperStore, root: str) -> None:
    peer = await ReplicationPeer.open(store, root)
    with peer.store.counted() as counts:
        lock = await peer.locks.acquire(1)
        assert lock is not None
    assert counts == {"create": 1}, "the mark is not looked at: a collector locks ledgers that are not marked"
    with peer.store.counted() as counts:
        assert await peer.locks.acquire(1) is None
        assert peer.locks.holds(1)
    assert counts == {}
    with peer.store.counted() as counts:
        await lock.release()
    assert counts == {"delete": 1}
    theirs = await new_locks(other_store, root)
    assert await theirs.acquire(2)
    with peer.store.counted() as counts:
        assert await peer.locks.acquire(2) is None
    assert counts == {"create": 1}
    fresh = ReplicationLocks(peer.store, root, "host")
    with peer.store.counted() as counts:
        assert await fresh.acquire(3)
    assert counts == {"get": 1, "create": 1}, "a new process looks at the layout once"


async def test_every_lock_is_given_up_with_its_session(
    store: ZooKeeperStore, zookeeper: EmbeddedZooKeeper, root: str, caplog: pytest.LogCaptureFixture
) -> None:
    locks = await new_locks(store, root)
    held = [await locks.acquire(ledger_id) for ledger_id in range(5)]
    lost = asyncio.Event()
    store.on_session_lost(lost.set)
    await asyncio.to_thread(expire, session_of(store), zookeeper)
    await lost.wait()
    assert [lock is not None and lock.is_held for lock in held] == [False] * 5
    assert "lost 5 replication locks" in caplog.text
    again = [await locks.acquire(ledger_id) for ledger_id in range(5)]
    assert all(lock is not None and lock.is_held for lock in again)


def test_the_name_of_this_machine_leads_back_to_it() -> None:
    """As Java promises of a canonical name: it is that of the address that the machine's own name has."""
    own = {each[4][0] for each in socket.getaddrinfo(socket.gethostname(), None)}
    found = {each[4][0] for each in socket.getaddrinfo(canonical_host_name(), None)}
    assert own & found
