from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from bkctl.runtime.errors import ConflictError, SessionExpiredError
from bkctl.runtime.metadata.replication.lock import ReplicationLocks
from bkctl.runtime.metadata.replication.switches import ReplicationSwitches
from bkctl.runtime.metadata.replication.work import NotPicked, PickedLedger
from bkctl.runtime.metadata.zookeeper.embedded import EmbeddedZooKeeper
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from tests.runtime.metadata.conftest import expire, session_of
from tests.runtime.metadata.replication_peer import ReplicationPeer, holder_of

A, B = "10.0.0.1:3181", "10.0.0.2:3181"


async def settled(store: ZooKeeperStore) -> None:
    """Everything that others finished, watch events included, has been seen."""
    await store.sync("/")
    await store.exists("/")


async def picked_by(peer: ReplicationPeer, ledger_id: int) -> PickedLedger:
    picked = await peer.work.pick(ledger_id)
    assert isinstance(picked, PickedLedger)
    return picked


async def ids_of(peer: ReplicationPeer) -> list[int]:
    return [ledger_id async for ledger_id in peer.work.ids()]


async def test_listing_picking_and_finishing_and_what_they_cost(store: ZooKeeperStore, root: str) -> None:
    peer = await ReplicationPeer.open(store, root)
    for ledger_id in range(20):
        await peer.marks.mark(ledger_id, [A])
    with peer.store.counted() as counts:
        assert await ids_of(peer) == list(range(20))
    assert counts == {"children": 4}, "one for each level"
    with peer.store.counted() as counts:
        picked = await picked_by(peer, 7)
    assert counts == {"get": 1, "create": 1}
    assert (picked.ledger_id, picked.mark.version) == (7, 0)
    assert await holder_of(ReplicationLocks(store, root, "reader"), 7) == "myhost.example.com"
    with peer.store.counted() as counts:
        assert await peer.work.finish(picked)
    assert counts == {"delete": 3, "exists": 2}, "mark, directory, lock; the directory and the one above are looked at"
    assert 7 not in await peer.ids()
    assert await holder_of(ReplicationLocks(store, root, "reader"), 7) is None
    while picked_now := await peer.pick_any():
        await peer.work.finish(picked_now)
    assert await store.children(peer.paths.under_replicated_ledgers) == []


async def is_reported(peer: ReplicationPeer, event: Awaitable[object]) -> None:
    """The event is reported as a change of what was listed before."""
    peer.changed.clear()
    await peer.work.is_switched_off()
    for ledger_id in await ids_of(peer):
        await peer.work.read(ledger_id)
    with peer.store.counted() as counts:
        await event
        async with asyncio.timeout(60):
            await peer.changed.wait()
    assert counts == {}, "to wait costs nothing"


async def test_every_event_that_makes_work_is_reported(
    store: ZooKeeperStore, other_store: ZooKeeperStore, root: str
) -> None:
    await store.create(root, make_parents=True)
    ours, theirs = ReplicationPeer(store, root), ReplicationPeer(other_store, root)
    await is_reported(ours, theirs.marks.mark(1, [A]))
    await theirs.marks.clear(1, 0)
    await settled(store)
    await store.create(ours.paths.mark_directory(7), make_parents=True)
    await settled(store)
    await is_reported(ours, theirs.marks.mark(7, [A]))
    await is_reported(ours, theirs.marks.mark(8, [A]))
    await is_reported(ours, theirs.marks.mark(2**40, [A]))
    switches = ReplicationSwitches(other_store, root)
    await is_reported(ours, switches.disable())
    assert await ours.work.is_switched_off()
    await is_reported(ours, switches.enable())
    assert not await ours.work.is_switched_off()


async def test_listing_again_adds_no_watches(store: ZooKeeperStore, root: str) -> None:
    peer = await ReplicationPeer.open(store, root)
    await peer.marks.mark(1, [A])
    for _ in range(3):
        await ids_of(peer)
        assert len(peer.work._watched) == 4
    await peer.marks.mark(2, [A])
    await settled(store)
    assert len(peer.work._watched) == 3, "the directory that changed is no longer watched"


async def test_the_switch_is_read_once_until_it_changes(store: ZooKeeperStore, root: str) -> None:
    peer = await ReplicationPeer.open(store, root)
    switches = ReplicationSwitches(store, root)
    await switches.disable()
    with peer.store.counted() as counts:
        assert await peer.work.is_switched_off()
        assert await peer.work.is_switched_off()
    assert counts == {"exists": 1}
    await switches.enable()
    await settled(store)
    assert not await peer.work.is_switched_off()


async def test_the_version_is_read_before_the_lock_and_not_after(store: ZooKeeperStore, root: str) -> None:
    """A mark renewed between the two must survive the repair of what was seen before."""
    peer = await ReplicationPeer.open(store, root)
    await peer.marks.mark(1, [A])
    create = peer.store.create

    async def renew_then_create(path: str, data: bytes = b"", **options: bool) -> str:
        await peer.marks.mark(1, [B])
        return await create(path, data, **options)

    peer.store.create = renew_then_create  # type: ignore[method-assign]
    picked = await picked_by(peer, 1)
    peer.store.create = create  # type: ignore[method-assign]
    assert picked.mark.version == 0
    assert not await peer.work.finish(picked)
    assert not picked.lock.is_held
    assert await peer.ids(missing=B) == [1]
    again = await picked_by(peer, 1)
    assert again.mark.version == 1
    assert await peer.work.finish(again)


async def test_many_workers_repair_each_ledger_one_at_a_time(
    store: ZooKeeperStore, other_store: ZooKeeperStore, root: str
) -> None:
    stages = [await ReplicationPeer.open(each, root, seed=seed) for seed, each in enumerate((store, other_store))]
    count = 120
    for ledger_id in range(count):
        await stages[0].marks.mark(ledger_id * 7919, [A])
    done: set[int] = set()
    held: set[int] = set()

    async def work(peer: ReplicationPeer) -> None:
        for ledger_id in await ids_of(peer):
            picked = await peer.work.pick(ledger_id)
            if isinstance(picked, PickedLedger):
                assert ledger_id not in held
                held.add(ledger_id)
                await asyncio.sleep(0.001)
                held.remove(ledger_id)
                assert await peer.work.finish(picked)
                done.add(ledger_id)

    await asyncio.gather(*(work(stages[index % 2]) for index in range(6)))
    assert len(done) == count
    assert await store.children(stages[0].paths.under_replicated_ledgers) == []
    assert await store.children(stages[0].paths.replication_locks) == []


async def test_a_ledger_that_is_locked_or_not_marked_is_not_picked(
    store: ZooKeeperStore, other_store: ZooKeeperStore, root: str
) -> None:
    peer = await ReplicationPeer.open(store, root)
    for ledger_id in (1, 2):
        await peer.marks.mark(ledger_id, [A])
    assert await ReplicationLocks(other_store, root, "theirs").acquire(1)
    assert await peer.work.pick(1) is NotPicked.LOCKED
    assert await peer.work.pick(3) is NotPicked.NOT_MARKED
    picked = await picked_by(peer, 2)
    with peer.store.counted() as counts:
        assert await peer.work.pick(2) is NotPicked.LOCKED
    assert counts == {"get": 1}, "our own lock is known without asking"
    await picked.release()
    await (await picked_by(peer, 2)).release()


async def test_junk_is_passed_over(store: ZooKeeperStore, root: str) -> None:
    peer = await ReplicationPeer.open(store, root)
    ledgers = peer.paths.under_replicated_ledgers
    for name in (
        "junk",
        "0000/x",
        "0000/0000/0000/000g",
        "7fff/ffff/ffff/ffff/urL9223372036854775807",
        "8000/0000/0000/0000",
    ):
        await store.create(f"{ledgers}/{name}", make_parents=True)
    assert await ids_of(peer) == []
    await peer.marks.mark(1, [A])
    await store.set(peer.paths.mark(1), b"junk", -1)
    picked = await picked_by(peer, 1)
    assert picked.mark.problem is not None, "a worker clears it, as Java's does"


async def test_a_lost_session_ends_the_work(store: ZooKeeperStore, root: str, zookeeper: EmbeddedZooKeeper) -> None:
    peer = await ReplicationPeer.open(store, root)
    await peer.marks.mark(1, [A])
    picked = await picked_by(peer, 1)
    await ids_of(peer)
    lost = asyncio.Event()
    store.on_session_lost(lost.set)
    await asyncio.to_thread(expire, session_of(store), zookeeper)
    await lost.wait()
    async with asyncio.timeout(60):
        await peer.changed.wait()
    assert not picked.lock.is_held
    with pytest.raises(ConflictError, match="lock was lost"):
        await peer.work.finish(picked)
    assert await peer.ids() == [1], "somebody else may be at work"
    again = await picked_by(peer, 1)
    assert again.lock.is_held
    assert (await store.get(peer.paths.replication_lock(1))).stat.ephemeral_owner == store.session_id


async def test_an_answer_of_a_session_that_is_gone_is_no_lock(store: ZooKeeperStore, root: str) -> None:
    """The node was created, then the session ended, and only then the caller runs on."""
    peer = await ReplicationPeer.open(store, root)
    create = peer.store.create

    async def create_then_lose(path: str, data: bytes = b"", **options: bool) -> str:
        created = await create(path, data, **options)
        peer.locks._note_session_lost()
        return created

    peer.store.create = create_then_lose  # type: ignore[method-assign]
    with pytest.raises(SessionExpiredError):
        await peer.locks.acquire(1)
    assert not peer.locks.holds(1)
