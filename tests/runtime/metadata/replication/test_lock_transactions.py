"""Locks that are taken with a check, and released with a change, of another node."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from bkctl.runtime.errors import BadVersionError, MetadataUnavailableError, NoNodeError
from bkctl.runtime.metadata.replication.lock import ReplicationLock, ReplicationLocks
from bkctl.runtime.metadata.store import CheckNode, NodeStat, NodeWrite, SetNode
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from tests.counting_store import CountingStore
from tests.until import until


class LosesAnswers(CountingStore):
    """Does not answer transactions; ``is_sent``: whether they are carried out."""

    def __init__(self, store: ZooKeeperStore, *, is_sent: bool) -> None:
        super().__init__(store)
        self._is_sent = is_sent

    async def write_all(self, writes: Sequence[NodeWrite]) -> list[NodeStat | None]:
        if self._is_sent:
            await super().write_all(writes)
        raise MetadataUnavailableError(f"{writes[0].path}: no answer", writes[0].path)


async def locks_of(store: ZooKeeperStore, root: str) -> ReplicationLocks:
    if await store.exists(root) is None:
        await store.create(root, make_parents=True)
        await store.create(f"{root}/ledger", b"first")
    return ReplicationLocks(store, root, "host")


async def acquired(locks: ReplicationLocks, unchanged: CheckNode | None = None) -> ReplicationLock:
    lock = await locks.acquire(1, unchanged)
    assert lock is not None
    return lock


async def changed_and_released(lock: ReplicationLock, store: CountingStore | ZooKeeperStore, root: str) -> None:
    await lock.release_in(lambda release: store.write_all([SetNode(f"{root}/ledger", b"second", 0), release]))


async def test_the_check_and_the_lock_are_one_transaction(
    store: ZooKeeperStore, other_store: ZooKeeperStore, root: str
) -> None:
    await locks_of(store, root)
    counting = CountingStore(store)
    locks = ReplicationLocks(counting, root, "host")
    await (await acquired(locks)).release()
    with counting.counted() as counts:
        lock = await acquired(locks, CheckNode(f"{root}/ledger", 0))
    assert (lock.is_unchanged, counts) == (True, {"transaction": 1})
    theirs = await locks_of(other_store, root)
    assert await theirs.acquire(1, CheckNode(f"{root}/ledger", 0)) is None
    await lock.release()
    assert not (await acquired(theirs)).is_unchanged, "nothing was checked"


async def test_a_lock_is_taken_even_if_the_node_was_changed_or_deleted(store: ZooKeeperStore, root: str) -> None:
    locks = await locks_of(store, root)
    for expected in (CheckNode(f"{root}/ledger", 7), CheckNode(f"{root}/other", 0)):
        lock = await acquired(locks, expected)
        assert (lock.is_held, lock.is_unchanged) == (True, False)
        await lock.release()


async def test_a_change_and_the_release_are_one_transaction(
    store: ZooKeeperStore, other_store: ZooKeeperStore, root: str, caplog: pytest.LogCaptureFixture
) -> None:
    counting = CountingStore(store)
    locks = ReplicationLocks(counting, root, "host", unwatched_s=0.0)
    theirs = await locks_of(other_store, root)
    lock = await acquired(locks)
    with counting.counted() as counts:
        await changed_and_released(lock, counting, root)
        assert not lock.is_held
        await lock.release()
    assert counts["transaction"] == 1
    assert counts["delete"] == 0
    assert (await store.get(f"{root}/ledger")).data == b"second"
    assert await theirs.acquire(1) is not None
    assert "deleted the replication lock" not in caplog.text, "the watch does not report our own release"


async def test_a_lock_is_kept_and_watched_if_the_change_is_refused(
    store: ZooKeeperStore, other_store: ZooKeeperStore, root: str
) -> None:
    theirs = await locks_of(other_store, root)
    locks = ReplicationLocks(store, root, "host", unwatched_s=0.0)
    lock = await acquired(locks)
    await store.set(f"{root}/ledger", b"other", 0)
    with pytest.raises(BadVersionError):
        await changed_and_released(lock, store, root)
    assert lock.is_held
    assert await theirs.acquire(1) is None
    await other_store.delete(f"{root}/underreplication/locks/urL0000000001")
    await until(lambda: not lock.is_held)


async def test_a_lock_that_is_gone_forbids_the_change(store: ZooKeeperStore, root: str) -> None:
    lock = await acquired(await locks_of(store, root))
    await store.delete(f"{root}/underreplication/locks/urL0000000001")
    with pytest.raises(NoNodeError, match="urL0000000001"):
        await changed_and_released(lock, store, root)
    assert not lock.is_held
    assert (await store.get(f"{root}/ledger")).data == b"first"


@pytest.mark.parametrize("is_sent", [True, False])
async def test_an_unanswered_release_is_found_out_later(store: ZooKeeperStore, root: str, *, is_sent: bool) -> None:
    locks = await locks_of(store, root)
    lock = await acquired(locks)
    with pytest.raises(MetadataUnavailableError):
        await changed_and_released(lock, LosesAnswers(store, is_sent=is_sent), root)
    await lock.confirm()
    assert lock.is_held is not is_sent
    assert locks.holds(1) is not is_sent
    await lock.release()
    assert (await acquired(locks)).is_held


async def test_a_cancelled_release_leaves_no_lock(store: ZooKeeperStore, root: str) -> None:
    locks = await locks_of(store, root)
    lock = await acquired(locks)

    async def never(_: NodeWrite) -> None:
        await asyncio.Event().wait()

    releasing = asyncio.create_task(lock.release_in(never))
    await asyncio.sleep(0)
    releasing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await releasing
    assert not lock.is_held
    assert (await acquired(locks)).is_held, "the next one settles what is in doubt"
