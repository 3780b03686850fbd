from __future__ import annotations

from collections.abc import Callable

import pytest

from bkctl.runtime.errors import MetadataUnavailableError, RefusedError, SessionExpiredError
from bkctl.runtime.metadata.cluster.operation_lock import (
    DIRECTORY,
    OperationHolder,
    OperationLockedError,
    acquire_operation_lock,
    lock_bookies,
    lock_modes,
    operation_lock_path,
    operations_on_bookies,
)
from bkctl.runtime.metadata.store import ANY_VERSION, Node, NodeStat
from bkctl.runtime.metadata.zookeeper.embedded import EmbeddedZooKeeper
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from tests.counting_store import CountingStore
from tests.runtime.metadata.conftest import LosesSession, expire, session_of

ME = OperationHolder("cluster format", "root", "host-1", 17, "2026-01-01T00:00:00+00:00")


def test_the_lock_lies_outside_the_cluster() -> None:
    assert operation_lock_path("/ledgers") == "/bkctl/operations/ledgers"
    assert operation_lock_path("/a/b") == "/bkctl/operations/a%2Fb"
    assert operation_lock_path("/bkctl/ledgers") == "/bkctl/operations/bkctl%2Fledgers"
    for root in ("/bkctl", "/bkctl/operations"):
        with pytest.raises(RefusedError, match="locks are stored there"):
            operation_lock_path(root)


async def test_one_at_a_time(store: ZooKeeperStore, other_store: ZooKeeperStore, root: str) -> None:
    async with await acquire_operation_lock(store, root, ME) as lock:
        lock.require_held()
        with pytest.raises(OperationLockedError, match="'cluster format' by root on host-1, process 17") as raised:
            await acquire_operation_lock(other_store, root, ME)
        assert raised.value.holder == ME
        async with await acquire_operation_lock(other_store, f"{root}-2", ME):
            pass
    async with await acquire_operation_lock(other_store, root, ME):
        pass
    assert operation_lock_path(root).rpartition("/")[2] not in await store.children(DIRECTORY)
    assert await store.exists(root) is None


async def test_bookies_are_made_read_only_by_one_operation_at_a_time(
    store: ZooKeeperStore, other_store: ZooKeeperStore, root: str
) -> None:
    async with await lock_bookies(store, root, ME, ["b1:3181"]), await lock_modes(store, root, ME):
        async with await lock_bookies(other_store, root, ME, ["modes"]):
            with pytest.raises(OperationLockedError, match="is making a bookie read-only: 'cluster format' by root"):
                await lock_modes(other_store, root, ME)
        assert await operations_on_bookies(other_store, root) == [ME]
    async with await lock_modes(other_store, root, ME):
        pass


class _IsSilent(CountingStore):
    """A store that does not answer deletes."""

    async def delete(self, path: str, expected_version: int = ANY_VERSION) -> None:
        self.counts["delete"] += 1
        raise MetadataUnavailableError(f"{path}: no answer from ZooKeeper in 15 s", path)


async def test_a_release_without_an_answer_waits_for_one_time_out_at_most(store: ZooKeeperStore, root: str) -> None:
    async with await acquire_operation_lock(store, root, ME):
        pass  # the directory of the locks is there now
    silent = _IsSilent(store)
    lock = await lock_bookies(silent, root, ME, ["b1:3181", "b2:3181", "b3:3181"])
    with silent.counted() as counts:
        await lock.release()
        await lock.release()
    assert counts["delete"] == 1
    assert not lock.is_held


@pytest.mark.parametrize("data", [b"\xff", b'{"operation":"\x80"}'])
async def test_a_lock_that_tells_nothing_is_one_all_the_same(store: ZooKeeperStore, root: str, data: bytes) -> None:
    await store.create(operation_lock_path(root), data, make_parents=True)
    with pytest.raises(OperationLockedError, match="without a description"):
        await acquire_operation_lock(store, root, ME)
    await store.delete(operation_lock_path(root))


class _EndsMeanwhile(CountingStore):
    """The holder gives the lock back between our attempt to take it and our look at who has it."""

    async def get(self, path: str) -> Node:
        await self.delete(path)
        return await super().get(path)


async def test_one_that_ends_as_we_ask_who_holds_it_is_free(
    store: ZooKeeperStore, other_store: ZooKeeperStore, root: str
) -> None:
    await acquire_operation_lock(other_store, root, ME)
    async with await acquire_operation_lock(_EndsMeanwhile(store), root, ME) as lock:
        lock.require_held()
    assert await store.exists(operation_lock_path(root)) is None


async def test_it_goes_with_the_session(
    store: ZooKeeperStore, other_store: ZooKeeperStore, zookeeper: EmbeddedZooKeeper, root: str
) -> None:
    lock = await acquire_operation_lock(store, root, ME)
    expire(session_of(store), zookeeper)
    with pytest.raises(MetadataUnavailableError):
        await store.sync("/")
    with pytest.raises(SessionExpiredError, match="lock was lost with the ZooKeeper session"):
        lock.require_held()
    async with await acquire_operation_lock(other_store, root, ME) as other:
        await lock.release()  # must not take the other's
        other.require_held()
        with pytest.raises(OperationLockedError):
            await acquire_operation_lock(store, root, ME)


async def test_a_session_lost_during_the_create_gives_no_lock(
    store: ZooKeeperStore, other_store: ZooKeeperStore, zookeeper: EmbeddedZooKeeper, root: str
) -> None:
    if await store.exists(DIRECTORY) is None:
        await store.create(DIRECTORY, make_parents=True)
    with pytest.raises(SessionExpiredError, match="lock was lost with the ZooKeeper session"):
        await acquire_operation_lock(LosesSession(store, zookeeper), root, ME)
    with pytest.raises(SessionExpiredError, match="lock was lost with the ZooKeeper session"):
        await lock_bookies(LosesSession(store, zookeeper), root, ME, ["b1"])
    async with await acquire_operation_lock(other_store, root, ME) as lock:
        lock.require_held()


@pytest.mark.parametrize("is_carried_out", [True, False])
async def test_a_lost_answer(store: ZooKeeperStore, root: str, is_carried_out: bool) -> None:
    class Lossy:
        def __getattr__(self, name: str) -> object:
            return getattr(store, name)

        async def create(self, path: str, data: bytes = b"", **options: bool) -> str:
            if is_carried_out or not options.get("is_ephemeral"):
                await store.create(path, data, **options)
            raise MetadataUnavailableError("the answer was lost")

    await store.exists("/")
    if await store.exists(DIRECTORY) is None:
        await store.create(DIRECTORY, make_parents=True)
    if is_carried_out:
        async with await acquire_operation_lock(Lossy(), root, ME) as lock:  # type: ignore[arg-type]
            lock.require_held()
    else:
        with pytest.raises(MetadataUnavailableError):
            await acquire_operation_lock(Lossy(), root, ME)  # type: ignore[arg-type]
    assert await store.exists(operation_lock_path(root)) is None


RECOVERY = OperationHolder("recover failed-bookie", "root", "host-2", 18, "2026-01-01T00:00:00+00:00")


async def test_bookies_are_locked_one_by_one(store: ZooKeeperStore, other_store: ZooKeeperStore, root: str) -> None:
    smaller = OperationHolder("ledger delete", "root", "host-1", 17)
    async with await acquire_operation_lock(store, root, smaller):
        first = await lock_bookies(store, root, RECOVERY, ["b1"])
        async with await lock_bookies(other_store, root, RECOVERY, ["b2"]):
            await store.sync(root)
            assert await operations_on_bookies(store, root) == [RECOVERY, RECOVERY]
            assert await operations_on_bookies(store, f"{root}-2") == []
            assert await operations_on_bookies(store, root[:-1]) == []
        with pytest.raises(OperationLockedError, match="is working on bookie b1: 'recover failed-bookie' by root on h"):
            await lock_bookies(other_store, root, RECOVERY, ["b0", "b1", "b2"])
        assert await operations_on_bookies(store, root) == [RECOVERY], "all or none"
    await first.release()
    assert await operations_on_bookies(store, root) == []


class _LosesAnswers(CountingStore):
    """The create of an ephemeral node is carried out; its answer and that of the next look at it are lost."""

    def __init__(self, store: ZooKeeperStore) -> None:
        super().__init__(store)
        self.answers_to_lose = 2

    async def create(self, path: str, data: bytes = b"", **options: bool) -> str:
        created = await super().create(path, data, **options)
        if options.get("is_ephemeral"):
            self._lose_answer()
        return created

    async def exists(self, path: str, on_change: Callable[[], None] | None = None) -> NodeStat | None:
        stat = await super().exists(path, on_change)
        if self.answers_to_lose == 1:
            self._lose_answer()
        return stat

    def _lose_answer(self) -> None:
        if self.answers_to_lose > 0:
            self.answers_to_lose -= 1
            raise MetadataUnavailableError("the answer was lost")


async def test_an_operation_finds_its_own_share_after_lost_answers(
    store: ZooKeeperStore, other_store: ZooKeeperStore, root: str
) -> None:
    if await store.exists(DIRECTORY) is None:
        await store.create(DIRECTORY, make_parents=True)
    lossy = _LosesAnswers(store)
    with pytest.raises(MetadataUnavailableError, match="the answer was lost"):
        await lock_bookies(lossy, root, RECOVERY, ["b1"])
    assert lossy.answers_to_lose == 0
    with pytest.raises(OperationLockedError, match="recover failed-bookie"):
        await lock_bookies(other_store, root, RECOVERY, ["b1"])
    async with await lock_bookies(lossy, root, RECOVERY, ["b1"]) as share:
        share.require_held()
        assert await operations_on_bookies(store, root) == [RECOVERY]
    assert await operations_on_bookies(store, root) == []


@pytest.mark.parametrize(
    "data", [b'{"operation": "cluster %s", "pid": 17}' % verb for verb in (b"format", b"nuke")] + [b"?"]
)
async def test_nothing_shares_a_cluster_that_is_replaced_as_a_whole(
    store: ZooKeeperStore, root: str, data: bytes
) -> None:
    await store.create(operation_lock_path(root), data, make_parents=True)
    with pytest.raises(OperationLockedError, match="another operation is changing this cluster"):
        await lock_bookies(store, root, RECOVERY, ["b1"])
    assert await operations_on_bookies(store, root) == []
    await store.delete(operation_lock_path(root))


class _LosesRace(CountingStore):
    """Another process takes the lock first, and the answer that says so is lost."""

    def __init__(self, store: ZooKeeperStore, rival: ZooKeeperStore) -> None:
        super().__init__(store)
        self._rival = rival

    async def create(self, path: str, data: bytes = b"", **options: bool) -> str:
        if options.get("is_ephemeral"):
            await self._rival.create(path, data, is_ephemeral=True)
            raise MetadataUnavailableError("the answer was lost")
        return await super().create(path, data, **options)


async def test_the_lock_of_another_session_is_not_ours_after_a_lost_answer(
    store: ZooKeeperStore, other_store: ZooKeeperStore, root: str
) -> None:
    if await store.exists(DIRECTORY) is None:
        await store.create(DIRECTORY, make_parents=True)
    with pytest.raises(MetadataUnavailableError, match="the answer was lost"):
        await acquire_operation_lock(_LosesRace(store, other_store), root, ME)
    stat = await store.exists(operation_lock_path(root))
    assert stat is not None
    assert stat.ephemeral_owner == other_store.session_id
    await other_store.delete(operation_lock_path(root))
