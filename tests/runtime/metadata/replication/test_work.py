from __future__ import annotations

import asyncio
import collections
import random
from collections.abc import Awaitable

import pytest

from runtime.errors import ConflictError, SessionExpiredError
from runtime.metadata.replication.lock import ReplicationLocks
from runtime.metadata.replication.switches import ReplicationSwitches
from runtime.metadata.replication.work import PickedLedger, _shuffled
from runtime.metadata.store import NodeStat
from runtime.metadata.zookeeper.embedded import EmbeddedZooKeeper
from runtime.metadata.zookeeper.store import ZooKeeperStore
from tests.runtime.metadata.conftest import expire, session_of
from tests.runtime.metadata.replication_stage import ReplicationStage, holder_of

A, B = "10.0.0.1:3181", "10.0.0.2:3181"


async def settled(store: ZooKeeperStore) -> None:
    """Everything that others finished, watch events included, has been seen."""
    await store.sync("/")
    await store.exists("/")


async def picked_by(work: Awaitable[PickedLedger | None]) -> PickedLedger:
    picked = await work
    assert picked is not None
    return picked


async def test_pick_and_finish_and_what_they_cost(store: ZooKeeperStore, root: str) -> None:
    stage = await ReplicationStage.open(store, root)
    ids = set(range(20))
    for ledger_id in ids:
        await stage.marks.mark(ledger_id, [A])
    with stage.store.counted() as counts:
        picked = await picked_by(stage.work.pick())
    once = {"exists": 2, "children": 5, "create": 1}
    assert counts == once, "the switch, four levels and the locks are read once"
    assert await holder_of(ReplicationLocks(store, root, "reader"), picked.ledger_id) == "myhost.example.com"
    with stage.store.counted() as counts:
        assert await stage.work.finish(picked)
    assert counts == {"delete": 3, "exists": 2}, "mark, directory, lock; the directory and the one above are looked at"
    assert picked.ledger_id not in await stage.ids()
    assert await holder_of(ReplicationLocks(store, root, "reader"), picked.ledger_id) is None
    seen = {picked.ledger_id}
    with stage.store.counted() as counts:
        for _ in range(9):
            picked = await picked_by(stage.work.pick())
            seen.add(picked.ledger_id)
            await stage.work.finish(picked)
    each_time = {"exists": 9 * 3, "create": 9, "delete": 9 * 3}
    assert counts == each_time, "seven for each ledger from then on"
    while picked_now := await stage.work.pick():
        seen.add(picked_now.ledger_id)
        await stage.work.finish(picked_now)
    assert seen == ids
    assert await store.children(stage.paths.under_replicated_ledgers) == []


async def test_the_order_is_random_and_repeatable(store: ZooKeeperStore, root: str) -> None:
    stage = await ReplicationStage.open(store, root)
    for ledger_id in range(12):
        await stage.marks.mark(ledger_id, [A])

    async def order(seed: int) -> list[int]:
        worker = await ReplicationStage.open(store, root, seed=seed)
        picked = [await picked_by(worker.work.pick()) for _ in range(12)]
        for each in picked:
            await each.release()
        return [each.ledger_id for each in picked]

    first = await order(1)
    assert sorted(first) == list(range(12))
    assert first not in (sorted(first), await order(2))
    assert await order(1) == first


async def test_an_idle_worker_costs_nothing_and_wakes_at_a_mark(
    store: ZooKeeperStore, other_store: ZooKeeperStore, root: str
) -> None:
    ours, theirs = await ReplicationStage.open(store, root), await ReplicationStage.open(other_store, root)
    for ledger_id in (1, 2, 3):
        await theirs.marks.mark(ledger_id, [A])
        assert await theirs.locks.acquire(ledger_id)
    await store.create(f"{theirs.paths.mark_directory(4)}")
    await settled(store)
    waiting = asyncio.ensure_future(ours.work.next())
    await ours.store.quiet()
    with ours.store.counted() as counts:
        await asyncio.sleep(0.5)
    assert counts == {}, "three locked ledgers and a directory without a mark are no reason to ask again"
    assert not waiting.done()
    await theirs.marks.mark(5, [A])
    assert (await waiting).ledger_id == 5


async def wake_by(stage: ReplicationStage, event: Awaitable[object]) -> int:
    """Which ledger a worker that waits gets after the event."""
    waiting = asyncio.ensure_future(stage.work.next())
    await stage.store.quiet()
    assert not waiting.done()
    await event
    async with asyncio.timeout(10):
        picked = await waiting
    await picked.release()
    return picked.ledger_id


async def test_every_event_that_makes_work_wakes(store: ZooKeeperStore, other_store: ZooKeeperStore, root: str) -> None:
    await store.create(root, make_parents=True)
    ours, theirs = ReplicationStage(store, root), ReplicationStage(other_store, root)
    assert await wake_by(ours, theirs.marks.mark(1, [A])) == 1, "the tree did not even exist"
    lock = await theirs.locks.acquire(1)
    assert lock is not None
    assert await wake_by(ours, lock.release()) == 1, "another worker gave up"
    await theirs.marks.clear(1, 0)
    await store.create(ours.paths.mark_directory(7), make_parents=True)
    assert await wake_by(ours, theirs.marks.mark(7, [A])) == 7, "a mark into a directory that was there"
    await theirs.marks.clear(7, 0)
    assert await wake_by(ours, theirs.marks.mark(2**40, [A])) == 2**40
    switches = ReplicationSwitches(other_store, root)
    await switches.disable()
    await settled(store)
    assert await wake_by(ours, switches.enable()) == 2**40


async def test_nothing_is_picked_while_switched_off(store: ZooKeeperStore, root: str) -> None:
    stage = await ReplicationStage.open(store, root)
    switches = ReplicationSwitches(store, root)
    await stage.marks.mark(1, [A])
    await switches.disable()
    with stage.store.counted() as counts:
        assert await stage.work.pick() is None
        assert await stage.work.pick() is None
    assert counts == {"exists": 1}
    await switches.enable()
    await settled(store)
    assert await stage.work.pick() is not None


async def test_the_version_is_read_before_the_lock_and_not_after(store: ZooKeeperStore, root: str) -> None:
    """A mark renewed between the two must survive the repair of what was seen before."""
    stage = await ReplicationStage.open(store, root)
    await stage.marks.mark(1, [A])
    create = stage.store.create

    async def renew_then_create(path: str, data: bytes = b"", **options: bool) -> str:
        await stage.marks.mark(1, [B])
        return await create(path, data, **options)

    stage.store.create = renew_then_create  # type: ignore[method-assign]
    picked = await picked_by(stage.work.pick())
    stage.store.create = create  # type: ignore[method-assign]
    assert picked.mark_version == 0
    assert not await stage.work.finish(picked)
    assert not picked.lock.is_held
    assert await stage.ids(missing=B) == [1]
    again = await picked_by(stage.work.pick())
    assert again.mark_version == 1
    assert await stage.work.finish(again)


async def test_a_finished_ledger_that_is_marked_again_is_picked_again(store: ZooKeeperStore, root: str) -> None:
    stage = await ReplicationStage.open(store, root)
    for round_number in range(5):
        for ledger_id in (1, 2):
            await stage.marks.mark(ledger_id, [A])
        seen = set()
        for _ in range(2):
            picked = await picked_by(stage.work.next())
            seen.add(picked.ledger_id)
            await stage.work.finish(picked)
        assert seen == {1, 2}, round_number


async def test_a_mark_renewed_before_its_directory_is_pruned_is_picked_again(
    store: ZooKeeperStore, other_store: ZooKeeperStore, root: str
) -> None:
    """No list changes then, so nothing but the list itself tells of the ledger."""
    stage = await ReplicationStage.open(store, root)
    for ledger_id in (1, 2, 3):
        await stage.marks.mark(ledger_id, [A])
    delete = stage.store.delete

    async def delete_then_renew(path: str, expected_version: int = -1) -> None:
        await delete(path, expected_version)
        if path == stage.paths.mark(1):
            await store.create(path, b"")

    others = ReplicationLocks(other_store, root, "theirs")
    assert all([await others.acquire(ledger_id) for ledger_id in (2, 3)])
    picked = await picked_by(stage.work.next())
    stage.store.delete = delete_then_renew  # type: ignore[method-assign]
    assert await stage.work.finish(picked)
    stage.store.delete = delete  # type: ignore[method-assign]
    async with asyncio.timeout(10):
        assert (await stage.work.next()).ledger_id == 1


async def test_many_workers_repair_each_ledger_once(
    store: ZooKeeperStore, other_store: ZooKeeperStore, root: str
) -> None:
    stages = [await ReplicationStage.open(each, root, seed=seed) for seed, each in enumerate((store, other_store))]
    count = 120
    for ledger_id in range(count):
        await stages[0].marks.mark(ledger_id * 7919, [A])
    done: collections.Counter[int] = collections.Counter()

    async def work(stage: ReplicationStage) -> None:
        while picked := await stage.work.pick():
            done[picked.ledger_id] += 1
            await asyncio.sleep(0.001)
            await stage.work.finish(picked)

    with stages[0].store.counted() as counts:
        await asyncio.gather(*(work(stages[index % 2]) for index in range(6)))
    assert len(done) == count
    assert set(done.values()) == {1}
    assert await store.children(stages[0].paths.under_replicated_ledgers) == []
    assert await store.children(stages[0].paths.replication_locks) == []
    assert counts["children"] < count, "lists are not read again for every ledger"


async def test_released_work_is_found_again(store: ZooKeeperStore, root: str) -> None:
    stage = await ReplicationStage.open(store, root)
    await stage.marks.mark(1, [A])
    picked = await picked_by(stage.work.next())
    with stage.store.counted() as counts:
        assert await stage.work.pick() is None
    assert counts == {"children": 1}, "our own lock is known without asking; the list of locks has changed"
    assert await wake_by(stage, picked.release()) == 1, "a worker beside us gave up"


async def test_junk_is_passed_over(store: ZooKeeperStore, root: str) -> None:
    stage = await ReplicationStage.open(store, root)
    ledgers = stage.paths.under_replicated_ledgers
    for name in (
        "junk",
        "0000/x",
        "0000/0000/0000/000g",
        "7fff/ffff/ffff/ffff/urL9223372036854775807",
        "8000/0000/0000/0000",
    ):
        await store.create(f"{ledgers}/{name}", make_parents=True)
    await store.create(f"{stage.paths.replication_locks}/junk")
    assert await stage.work.pick() is None
    await stage.marks.mark(1, [A])
    await store.set(stage.paths.mark(1), b"junk", -1)
    picked = await picked_by(stage.work.next())
    assert picked.ledger_id == 1, "what a mark says is no matter to who picks it"


async def test_a_lost_session_ends_the_work(store: ZooKeeperStore, root: str, zookeeper: EmbeddedZooKeeper) -> None:
    stage = await ReplicationStage.open(store, root)
    await stage.marks.mark(1, [A])
    picked = await picked_by(stage.work.next())
    waiting = asyncio.ensure_future(stage.work.next())
    await stage.store.quiet()
    lost = asyncio.Event()
    store.on_session_lost(lost.set)
    await asyncio.to_thread(expire, session_of(store), zookeeper)
    await lost.wait()
    assert not picked.lock.is_held
    with pytest.raises(ConflictError, match="lock was lost"):
        await stage.work.finish(picked)
    assert await stage.ids() == [1], "somebody else may be at work"
    try:
        again = await waiting
    except SessionExpiredError:  # when it was asking at that moment
        again = await stage.work.next()
    assert again.ledger_id == 1
    assert again.lock.is_held
    assert (await store.get(stage.paths.replication_lock(1))).stat.ephemeral_owner == store.session_id


async def test_an_answer_of_a_session_that_is_gone_is_no_lock(store: ZooKeeperStore, root: str) -> None:
    """The node was created, then the session ended, and only then the caller runs on."""
    stage = await ReplicationStage.open(store, root)
    create = stage.store.create

    async def create_then_lose(path: str, data: bytes = b"", **options: bool) -> str:
        created = await create(path, data, **options)
        stage.locks._note_session_lost()
        return created

    stage.store.create = create_then_lose  # type: ignore[method-assign]
    with pytest.raises(SessionExpiredError):
        await stage.locks.acquire(1)
    assert not stage.locks.holds(1)


async def test_a_change_seen_before_its_answer_is_not_missed(store: ZooKeeperStore, root: str) -> None:
    """A watch may fire before the coroutine that set it runs on."""
    stage = await ReplicationStage.open(store, root)
    await stage.marks.mark(1, [A])
    await store.delete(stage.paths.mark(1))
    exists = stage.store.exists
    is_marked = False

    async def exists_then_mark(path: str, on_change: object = None) -> NodeStat | None:
        nonlocal is_marked
        assert on_change is None or callable(on_change)
        stat = await exists(path, on_change)
        if path == stage.paths.mark(1) and on_change is not None and not is_marked:
            is_marked = True
            await store.create(path, b"")
            await settled(store)
        return stat

    stage.store.exists = exists_then_mark  # type: ignore[method-assign]
    async with asyncio.timeout(10):
        assert (await stage.work.next()).ledger_id == 1
    assert is_marked


def test_a_lazy_shuffle_is_a_shuffle() -> None:
    names = [str(number) for number in range(6)]
    source = random.Random(5)
    orders = collections.Counter(tuple(_shuffled(names, source)) for _ in range(7200))
    assert len(orders) == 720
    assert all(sorted(order) == names for order in orders)
    assert max(orders.values()) < 40
    firsts = collections.Counter(next(_shuffled(names, source)) for _ in range(6000))
    assert all(800 < count < 1200 for count in firsts.values())
    assert list(_shuffled([], source)) == []
