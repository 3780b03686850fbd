"""Which local ledgers are deleted: real ZooKeeper, real storage, every layout; whatever is not proven stays."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl

from bkctl.runtime.bookie.collection.compaction_survivors import COMPACTION_LANE
from bkctl.runtime.bookie.collection.forward_proof import ForwardProof
from bkctl.runtime.bookie.collection.ledgers import ClusterGuard, LedgerCollector, LocalLedgers, OverreplicatedCollector
from bkctl.runtime.bookie.collection.metrics import GarbageCollectionMetrics
from bkctl.runtime.errors import MetadataError
from bkctl.runtime.ledger.changes import new_ledger, to_closed
from bkctl.runtime.ledger.metadata import DigestType, LedgerMetadata
from bkctl.runtime.metadata.bookies.cookies import Cookie, CookieStore
from bkctl.runtime.metadata.bookies.registration import RegistrationClient
from bkctl.runtime.metadata.cluster.root import RESTORE_MARK, init_cluster
from bkctl.runtime.metadata.ledgers.layout import LedgerTree
from bkctl.runtime.metadata.ledgers.ledgers import LedgerStore, open_ledger_store
from bkctl.runtime.metadata.paths import Paths
from bkctl.runtime.metadata.replication.given_up_note import GivenUpNote
from bkctl.runtime.metadata.replication.lock import ReplicationLocks
from bkctl.runtime.metadata.replication.recovery_notes import RecoveryNotes
from bkctl.runtime.metadata.store import ANY_VERSION, MetadataStore
from bkctl.runtime.metadata.zookeeper.embedded import EmbeddedZooKeeper
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from bkctl.runtime.net.loop import LaneWorkers, LoopClock
from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.engine.collected_ledgers import CollectedLedgers
from bkctl.storage.engine.ledger_storage import LedgerStorage
from bkctl.storage.filenames import COLLECTED
from bkctl.storage.ids import LEDGER_ID_MAX
from tests.runtime.metadata.conftest import expire, other_store, root, session_of, store
from tests.storage.engines import KEY, checkpoint, config_below, entry, open_storage

__all__ = ["other_store", "root", "store"]

OWN_ID = "own:3181"
OPEN = new_ledger((OWN_ID, "other:3181"), 2, 2, DigestType.CRC32C, b"secret")
FOREIGN = new_ledger(("other:3181", "third:3181"), 2, 2, DigestType.CRC32C, b"secret")
EDGES = [0, 7, 9999, 10000, 2**31 - 1, 2**31, 9_999_999_999]
LONG_EDGES = [*EDGES, 10**10, 2**62, LEDGER_ID_MAX]


class HookedStore:
    """A store that does something before it reads certain nodes."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self.before_get: dict[str, Callable[[], Awaitable[object]]] = {}

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    async def get(self, path: str) -> object:
        if (hook := self.before_get.pop(path, None)) is not None:
            await hook()
        return await self._store.get(path)


class Bookie:
    """A bookie's storage, its cluster, and the two collectors between them."""

    def __init__(self, storage: LedgerStorage, store: ZooKeeperStore, root: str, ledgers: LedgerStore) -> None:
        self.storage = storage
        self.root = root
        self.ledgers = ledgers
        self.hooked = HookedStore(store)
        self.forgotten: list[int] = []
        self.metrics = GarbageCollectionMetrics()
        self.store = self._store = store
        self._instance_id: str | None = None

    async def prepare(self) -> None:
        self._instance_id = (await self._store.get(Paths(self.root).instance_id)).data.decode()
        cookie = Cookie(
            bookie_id=OWN_ID, journal_directories=("j",), ledger_directories=("l",), instance_id=self._instance_id
        )
        await CookieStore(self._store, self.root).create(cookie)
        self.workers = LaneWorkers()
        local = LocalLedgers(self.storage, self.workers, self.forgotten.append)
        directories = [engine.ledger_directory for engine in self.storage.engines]
        self.proof = ForwardProof(
            self._store,
            self.root,
            OWN_ID,
            OsFileSystem(),
            directories,
            self.workers,
            LoopClock(),
            self.metrics,
            local.snapshot_with_collected,
        )
        await self.proof.begin()
        guard = ClusterGuard(self.hooked, self.root, OWN_ID, self._instance_id, self.proof)  # type: ignore[arg-type]
        self.collector = LedgerCollector(local, guard, self.hooked, LoopClock(), self.metrics, 3, 0.01)  # type: ignore[arg-type]
        locks, live = ReplicationLocks(self._store, self.root, "here"), RegistrationClient(self._store, self.root)
        self.overreplicated = OverreplicatedCollector(local, guard, self._store, locks, live, [OWN_ID], self.metrics, 8)
        for member in FOREIGN.bookies():
            await self._store.create(Paths(self.root).writable_bookie(member), make_parents=True)
        # One that stays, so that the cluster does not look empty.
        await self.ledgers.create(OPEN, ledger_id=3)

    def store_locally(self, *ledger_ids: int) -> None:
        for ledger_id in ledger_ids:
            engine = self.storage.engine_of(ledger_id)
            engine.rows.set_master_key(ledger_id, KEY)
            engine.add(ledger_id, 0, entry(ledger_id, 0))
        checkpoint(self.storage)

    async def create(self, *ledger_ids: int, metadata: LedgerMetadata = OPEN) -> None:
        for ledger_id in ledger_ids:
            await self.ledgers.create(metadata, ledger_id=ledger_id)

    async def collect(self) -> int:
        hooked = hooked_ledgers(self.ledgers, self.hooked)
        return await self.collector.collect(hooked)

    def local_ids(self) -> set[int]:
        return {ledger_id for engine in self.storage.engines for ledger_id in engine.ledger_ids()}


def hooked_ledgers(ledgers: LedgerStore, store: HookedStore) -> LedgerStore:
    """The same ledgers, read through the hooks."""
    return LedgerStore(
        store,  # type: ignore[arg-type]
        ledgers.root,
        ledgers.tree,
        layout_config=ledgers._layout_config,
        is_layout_recorded=True,
    )


@pytest.fixture
def tree() -> LedgerTree:
    return LedgerTree.HIERARCHICAL


@pytest.fixture
async def bookie(tmp_path: Path, store: ZooKeeperStore, root: str, tree: LedgerTree) -> AsyncIterator[Bookie]:
    await store.create(root.rpartition("/")[0])
    await init_cluster(store, root, tree, random.Random(1))
    storage = open_storage(config_below(tmp_path, ledgers=2))
    storage.replay()
    bookie = Bookie(storage, store, root, await open_ledger_store(store, root))
    await bookie.prepare()
    yield bookie
    await bookie.workers.close()
    storage.close()


@pytest.mark.parametrize("tree", list(LedgerTree))
async def test_what_is_gone_goes_and_what_exists_stays(bookie: Bookie, tree: LedgerTree) -> None:
    edges = LONG_EDGES if tree in {LedgerTree.HIERARCHICAL, LedgerTree.LONG_HIERARCHICAL} else EDGES
    neighbours = [ledger_id + 1 for ledger_id in edges if ledger_id + 1 not in edges and ledger_id < LEDGER_ID_MAX]
    if tree is LedgerTree.LEGACY_HIERARCHICAL:
        neighbours.remove(10**10)
    bookie.store_locally(*edges, *neighbours)
    await bookie.create(*edges)
    assert await bookie.collect() == len(neighbours)
    assert bookie.local_ids() == set(edges)
    assert sorted(bookie.forgotten) == neighbours
    checkpoint(bookie.storage)
    assert await bookie.collect() == 0
    assert bookie.metrics.ledgers_deleted_count == len(neighbours)


async def test_names_that_are_no_ledgers_and_the_fatal_id_delete_nothing(bookie: Bookie, store: ZooKeeperStore) -> None:
    """Id 2^63-1 in the metadata makes every Java bookie delete everything (metadata section 4.3)."""
    kept = [5, 6, 10005, 2**31, 2**62, LEDGER_ID_MAX]
    bookie.store_locally(*kept, 8)
    await bookie.create(*kept)
    garbage = ("922/3372/0368/5477/L5807", "00/0000/Lxxxx", "00/0000/garbage", "00/12345/L0001", "99/x", "7")
    for path in garbage:
        if await store.exists(f"{bookie.root}/{path}") is None:
            await store.create(f"{bookie.root}/{path}", b"", make_parents=True)
    assert await bookie.collect() == 1
    assert bookie.local_ids() == set(kept)


async def test_a_part_that_cannot_be_listed_deletes_nothing_of_it(bookie: Bookie, zookeeper: EmbeddedZooKeeper) -> None:
    await bookie.create(5, 10005, 20005)
    bookie.store_locally(5, 6, 10005, 10006, 20005, 20006)
    owner = KazooClient(zookeeper.connect_string, auth_data=[("digest", "other:secret")])
    owner.start()
    try:
        owner.set_acls(f"{bookie.root}/00/0001", [make_digest_acl("other", "secret", all=True)])
        assert await bookie.collect() == 2
        assert bookie.local_ids() == {5, 10005, 10006, 20005}
        assert bookie.metrics.ledgers_kept_count >= 2
    finally:
        owner.stop()
        owner.close()


async def test_a_ledger_that_is_created_while_it_is_looked_for_stays(bookie: Bookie) -> None:
    bookie.store_locally(50, 51)
    bookie.hooked.before_get[bookie.ledgers.path(50)] = lambda: bookie.create(50)
    assert await bookie.collect() == 1
    assert bookie.local_ids() == {50}


async def test_a_ledger_that_is_created_before_the_second_look_stays(bookie: Bookie) -> None:
    bookie.store_locally(50, 51)

    async def arm() -> None:
        bookie.hooked.before_get[bookie.ledgers.path(50)] = lambda: bookie.create(50)

    bookie.hooked.before_get[bookie.ledgers.path(50)] = arm
    assert await bookie.collect() == 1
    assert bookie.local_ids() == {50}


@pytest.mark.parametrize("touch", ["entry", "entry and checkpoint", "fence", "explicit LAC", "limbo", "key"])
async def test_a_ledger_that_is_used_while_it_is_looked_for_stays(bookie: Bookie, touch: str) -> None:
    """The answer "missing" may be older than the use: whoever uses it may have created it again meanwhile."""
    bookie.store_locally(50, 51)
    engine = bookie.storage.engine_of(50)
    if touch == "key":
        engine.delete_ledger(50)
        engine.rows.set_fenced(50)
        checkpoint(bookie.storage)
    looks_count = 0

    async def use() -> None:
        nonlocal looks_count
        looks_count += 1
        if looks_count > 1:  # in the second look, and in every one that follows
            if touch.startswith("entry"):
                engine.add(50, looks_count, entry(50, looks_count))
            if touch == "entry and checkpoint":
                checkpoint(bookie.storage)
            if touch == "fence":
                engine.rows.set_fenced(50)
            if touch == "explicit LAC":
                engine.set_explicit_lac(50, bytes(15) + bytes([looks_count]) + b"digest")
            if touch == "limbo":
                engine.set_limbo(50)
            if touch == "key":
                engine.rows.set_master_key(50, KEY)
        bookie.hooked.before_get[bookie.ledgers.path(50)] = use

    bookie.hooked.before_get[bookie.ledgers.path(50)] = use
    await bookie.collect()
    assert looks_count >= 2
    # Once the row is as it was before the next attempt, only a new use could keep it: some happen once.
    assert (50 in bookie.local_ids()) == (touch not in {"fence", "limbo", "key"})
    assert (51 in bookie.local_ids()) == (touch == "entry and checkpoint")  # then every attempt was disturbed


async def test_a_ledger_that_is_used_beside_a_checkpoint_that_fails_stays(tmp_path: Path) -> None:
    """The write cache shrinks by what was deleted, and grows by the same: somebody has used it for all that."""
    storage = open_storage(config_below(tmp_path))
    storage.replay()
    local = LocalLedgers(storage, LaneWorkers(), lambda _: None)
    for ledger_id in (5, 6):
        storage.engine_of(ledger_id).rows.set_master_key(ledger_id, KEY)
        storage.engine_of(ledger_id).add(ledger_id, 0, entry(ledger_id, 0))
    running = storage.begin_checkpoint()
    first, second = local.mark(5), local.mark(6)
    assert first is not None
    assert second is not None
    assert local.delete({5: first}) == {5}
    storage.engine_of(6).add(6, 1, entry(6, 1))
    storage.end_checkpoint(running)  # nothing of it was written
    assert local.delete({6: second}) == set()
    assert storage.engine_of(6).find_cached(6, 1) == entry(6, 1)
    storage.close()


async def test_a_ledger_in_limbo_goes_when_it_is_gone(bookie: Bookie) -> None:
    """What may be lacking here has no bearing on it, and no repair ends the limbo of a ledger without metadata."""
    bookie.store_locally(50, 51)
    for ledger_id in (50, 51):
        bookie.storage.engine_of(ledger_id).set_limbo(ledger_id)
    await bookie.create(51)
    assert await bookie.collect() == 1
    assert bookie.local_ids() == {51}


async def test_a_checkpoint_beside_it_only_costs_another_attempt(bookie: Bookie) -> None:
    bookie.store_locally(50)
    looks_count = 0

    async def use() -> None:
        nonlocal looks_count
        looks_count += 1
        if looks_count == 2:
            checkpoint(bookie.storage)
        bookie.hooked.before_get[bookie.ledgers.path(50)] = use

    bookie.hooked.before_get[bookie.ledgers.path(50)] = use
    assert await bookie.collect() == 1
    assert looks_count == 3


async def _other_instance(bookie: Bookie, store: ZooKeeperStore) -> None:
    await store.set(Paths(bookie.root).instance_id, b"another", ANY_VERSION)


async def _no_instance(bookie: Bookie, store: ZooKeeperStore) -> None:
    await store.delete(Paths(bookie.root).instance_id)


async def _no_cookie(bookie: Bookie, store: ZooKeeperStore) -> None:
    await store.delete(f"{bookie.root}/cookies/{OWN_ID}")


async def _restore_under_way(bookie: Bookie, store: ZooKeeperStore) -> None:
    await store.set(bookie.root, RESTORE_MARK + b"0123", ANY_VERSION)


CHANGES = {"other": _other_instance, "none": _no_instance, "cookie": _no_cookie, "restore": _restore_under_way}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("moment", ["before", "during"])
async def test_another_cluster_says_nothing_about_this_bookie(
    bookie: Bookie, store: ZooKeeperStore, change: str, moment: str
) -> None:
    bookie.store_locally(50, 51)
    if moment == "before":
        await CHANGES[change](bookie, store)
    else:
        bookie.hooked.before_get[bookie.ledgers.path(50)] = lambda: CHANGES[change](bookie, store)
    with pytest.raises(MetadataError):
        await bookie.collect()
    assert bookie.local_ids() == {50, 51}


async def test_a_cluster_that_was_created_again_says_nothing(bookie: Bookie, store: ZooKeeperStore) -> None:
    bookie.store_locally(50)
    assert await bookie.collect() == 1
    bookie.store_locally(51)
    nodes = {path: (await store.get(f"{bookie.root}/{path}")).data for path in ("INSTANCEID", f"cookies/{OWN_ID}")}
    await _delete_below(store, bookie.root)
    with pytest.raises(MetadataError, match="is missing"):
        await bookie.collect()
    for path, data in nodes.items():
        await store.create(f"{bookie.root}/{path}", data, make_parents=True)
    with pytest.raises(MetadataError, match="created again"):
        await bookie.collect()
    assert bookie.local_ids() == {51}


async def _delete_below(store: ZooKeeperStore, path: str) -> None:
    for name in await store.children(path):
        await _delete_below(store, f"{path}/{name}")
    await store.delete(path)


async def test_a_cluster_without_any_ledger_is_believed_the_second_time(bookie: Bookie) -> None:
    await bookie.ledgers.delete(3)
    bookie.store_locally(50)
    assert await bookie.collect() == 0
    assert await bookie.collect() == 1
    bookie.store_locally(51)
    await bookie.create(60)
    assert await bookie.collect() == 1
    await bookie.ledgers.delete(60)
    bookie.store_locally(52)
    assert await bookie.collect() == 0


async def test_an_answer_of_another_session_is_no_proof(
    bookie: Bookie, store: ZooKeeperStore, zookeeper: EmbeddedZooKeeper
) -> None:
    bookie.store_locally(50)
    looks_count = 0

    async def lose_session() -> None:
        nonlocal looks_count
        looks_count += 1
        bookie.hooked.before_get[bookie.ledgers.path(50)] = lose_session
        if looks_count > 1:
            lost = store.session_id
            expire(session_of(store), zookeeper)
            while store.session_id in {lost, 0}:
                with contextlib.suppress(MetadataError):
                    await store.sync(bookie.root)

    bookie.hooked.before_get[bookie.ledgers.path(50)] = lose_session
    with contextlib.suppress(MetadataError):
        await bookie.collect()
    assert looks_count > 1
    assert bookie.local_ids() == {50}


# -- copies that the metadata does not name ----------------------------------------------------------------------


async def test_copies_that_the_metadata_does_not_name_go(bookie: Bookie, other_store: ZooKeeperStore) -> None:
    closed_here, closed_elsewhere = to_closed(OPEN, 0, 10), to_closed(FOREIGN, 0, 10)
    bookie.store_locally(20, 21, 22, 23, 24, 25)
    await bookie.create(20, metadata=closed_here)
    await bookie.create(21, 22, metadata=closed_elsewhere)
    await bookie.create(23, metadata=FOREIGN)
    await bookie.create(24, metadata=msgspec.structs.replace(closed_elsewhere, segments=(*FOREIGN.segments,)))
    bookie.storage.engine_of(24).set_limbo(24)
    # 25 is not in the metadata at all: that is the other collector's.
    lock = await ReplicationLocks(other_store, bookie.root, "a worker").acquire(22)
    assert lock is not None
    assert await bookie.overreplicated.collect(bookie.ledgers) == 1
    assert bookie.local_ids() == {20, 22, 23, 24, 25}
    await lock.release()
    assert await bookie.overreplicated.collect(bookie.ledgers) == 1
    assert bookie.local_ids() == {20, 23, 24, 25}
    assert bookie.metrics.ledgers_overreplicated_count == 2
    assert await other_store.children(f"{bookie.root}/underreplication/locks") == []


async def test_copies_that_may_be_the_only_ones_of_an_accepted_loss_stay(bookie: Bookie) -> None:
    """This bookie was given up and is back; or the ledger misses entries, which any bookie may have."""
    bookie.store_locally(21, 22, 23)
    await bookie.create(21, 22, 23, metadata=to_closed(FOREIGN, 0, 10))
    notes = RecoveryNotes(bookie.overreplicated._store, bookie.root).given_up
    await notes.put("21", GivenUpNote(written_ms=1, member_since={OWN_ID: 1}))
    await notes.put("22", GivenUpNote(written_ms=1, member_since={"b9:3181": 1}, lost=((0, 0),)))
    await notes.put("23", GivenUpNote(written_ms=1, member_since={"b9:3181": 1}))
    assert await bookie.overreplicated.collect(bookie.ledgers) == 1
    assert bookie.local_ids() == {21, 22}
    await notes.remove("21")
    assert await bookie.overreplicated.collect(bookie.ledgers) == 1
    assert bookie.local_ids() == {22}


async def test_a_copy_stays_while_a_bookie_that_its_ledger_names_is_not_registered(bookie: Bookie) -> None:
    """That name may be a former id of this bookie (cookie migrate), or of a bookie that does not return."""
    bookie.store_locally(21)
    await bookie.create(21, metadata=to_closed(FOREIGN, 0, 10))
    member = Paths(bookie.root).writable_bookie("third:3181")
    await bookie.store.delete(member)
    assert await bookie.overreplicated.collect(bookie.ledgers) == 0
    assert bookie.local_ids() == {21}
    await bookie.store.create(Paths(bookie.root).read_only_bookie("third:3181"))
    assert await bookie.overreplicated.collect(bookie.ledgers) == 1
    assert bookie.local_ids() == set()


async def test_a_copy_that_is_named_by_the_time_its_lock_is_held_stays(bookie: Bookie) -> None:
    """A repairer finished between the first look and the lock."""
    bookie.store_locally(21)
    await bookie.create(21, metadata=to_closed(FOREIGN, 0, 10))
    collector = bookie.overreplicated
    acquire = collector._locks.acquire

    async def acquire_late(ledger_id: int) -> object:
        found = await bookie.ledgers.read(ledger_id)
        named = msgspec.structs.replace(found.value, segments=OPEN.segments)
        await bookie.ledgers.write(ledger_id, named, found.version)
        return await acquire(ledger_id)

    collector._locks.acquire = acquire_late  # type: ignore[method-assign, assignment]
    assert await collector.collect(bookie.ledgers) == 0
    assert bookie.local_ids() == {21}


async def test_a_copy_that_is_just_being_written_stays(bookie: Bookie) -> None:
    bookie.store_locally(21)
    await bookie.create(21, metadata=to_closed(FOREIGN, 0, 10))
    engine = bookie.storage.engine_of(21)
    engine.add(21, 1, entry(21, 1))
    assert await bookie.overreplicated.collect(bookie.ledgers) == 0
    assert bookie.local_ids() == {21}


# -- their fences ------------------------------------------------------------------------------------------------


def fences(bookie: Bookie) -> list[int]:
    return sorted(ledger_id for engine in bookie.storage.engines for ledger_id in engine.collected.ids())


def recorded_fences(bookie: Bookie) -> list[int]:
    """Those on disk."""
    found: list[int] = []
    for engine in bookie.storage.engines:
        found += CollectedLedgers.open(OsFileSystem(), engine.ledger_directory).ids()
    return sorted(found)


async def test_a_fence_is_recorded_before_its_copy_goes_and_until_the_ledger_is_gone(bookie: Bookie) -> None:
    bookie.store_locally(20, 21, 22, 25)
    await bookie.create(20, metadata=to_closed(OPEN, 0, 10))
    await bookie.create(21, 22, metadata=to_closed(FOREIGN, 0, 10))
    assert await bookie.overreplicated.collect(bookie.ledgers) == 2
    assert fences(bookie) == recorded_fences(bookie) == [21, 22]
    assert await bookie.collect() == 1, "25, which is in no metadata and leaves no fence"
    assert fences(bookie) == recorded_fences(bookie) == [21, 22]
    bookie.storage.engine_of(22).rows.set_master_key(22, KEY)  # a copy that is made again
    checkpoint(bookie.storage)
    assert await bookie.overreplicated.collect(bookie.ledgers) == 1
    assert fences(bookie) == recorded_fences(bookie) == [21, 22]
    await bookie.ledgers.delete(22)
    assert await bookie.collect() == 0, "no row is deleted"
    assert sorted(bookie.forgotten) == [21, 22, 22, 25], "the row of 22 was deleted twice"
    assert fences(bookie) == recorded_fences(bookie) == [21]
    bookie.storage.engine_of(21).rows.set_master_key(21, KEY)
    checkpoint(bookie.storage)
    await bookie.ledgers.delete(21)
    assert await bookie.collect() == 1
    assert fences(bookie) == recorded_fences(bookie) == []
    assert bookie.local_ids() == {20}
    assert bookie.metrics.ledgers_deleted_count == 2
    assert bookie.metrics.ledgers_kept_count == 0


async def test_a_copy_whose_fence_cannot_be_recorded_stays(bookie: Bookie, monkeypatch: pytest.MonkeyPatch) -> None:
    bookie.store_locally(21, 22)
    await bookie.create(21, 22, metadata=to_closed(FOREIGN, 0, 10))
    directory = Path(bookie.storage.engine_of(21).ledger_directory)
    (directory / COLLECTED).mkdir()  # in the way
    assert await bookie.overreplicated.collect(bookie.ledgers) == 1
    assert bookie.local_ids() == {21}
    assert fences(bookie) == [22]
    assert await bookie.collect() == 0, "the file still cannot be replaced, and the round goes on"
    (directory / COLLECTED).rmdir()
    assert await bookie.collect() == 0
    assert await bookie.overreplicated.collect(bookie.ledgers) == 1
    assert bookie.local_ids() == set()
    assert fences(bookie) == recorded_fences(bookie) == [21, 22]


async def test_a_fence_goes_only_after_the_second_look(bookie: Bookie) -> None:
    """Its ledger is created again, or its metadata was not seen, when it is looked for."""
    bookie.store_locally(21)
    await bookie.create(21, metadata=to_closed(FOREIGN, 0, 10))
    assert await bookie.overreplicated.collect(bookie.ledgers) == 1
    found = await bookie.ledgers.read(21)
    await bookie.ledgers.delete(21)

    async def arm() -> None:
        bookie.hooked.before_get[bookie.ledgers.path(21)] = lambda: bookie.create(21, metadata=found.value)

    bookie.hooked.before_get[bookie.ledgers.path(21)] = arm
    assert await bookie.collect() == 0
    assert fences(bookie) == recorded_fences(bookie) == [21]


async def test_a_fence_stays_when_its_ledger_is_used_while_it_is_looked_for(bookie: Bookie) -> None:
    bookie.store_locally(21)
    await bookie.create(21, metadata=to_closed(FOREIGN, 0, 10))
    assert await bookie.overreplicated.collect(bookie.ledgers) == 1
    checkpoint(bookie.storage)
    await bookie.ledgers.delete(21)
    engine = bookie.storage.engine_of(21)
    looks_count = 0

    async def use() -> None:
        nonlocal looks_count
        looks_count += 1
        if looks_count > 1:
            engine.set_explicit_lac(21, bytes(15) + bytes([looks_count]))
            engine.rows.set_master_key(21, KEY)
            engine.add(21, looks_count, entry(21, looks_count))
        bookie.hooked.before_get[bookie.ledgers.path(21)] = use

    bookie.hooked.before_get[bookie.ledgers.path(21)] = use
    assert await bookie.collect() == 0
    assert bookie.local_ids() == {21}
    assert fences(bookie) == [21]


@pytest.mark.parametrize("moment", ["before the sync", "after the sync"])
async def test_a_round_that_is_cut_off_while_it_records_a_fence_keeps_the_copy(bookie: Bookie, moment: str) -> None:
    """The record may be on disk then: the next round writes it again, or removes it with the ledger."""
    bookie.store_locally(21)
    await bookie.create(21, metadata=to_closed(FOREIGN, 0, 10))
    may_go_on = threading.Event()
    blocked = bookie.workers.run(COMPACTION_LANE, may_go_on.wait)
    running = asyncio.ensure_future(bookie.overreplicated.collect(bookie.ledgers))
    path = Path(bookie.storage.engine_of(21).ledger_directory, COLLECTED)
    if moment == "after the sync":
        may_go_on.set()
        async with asyncio.timeout(60):
            while not path.exists():  # noqa: ASYNC110  a file sends no event
                await asyncio.sleep(0)
    else:
        lock = f"{bookie.root}/underreplication/locks"
        async with asyncio.timeout(60):
            while not await bookie.store.exists(lock) or not await bookie.store.children(lock):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.wait([running])
    may_go_on.set()
    await blocked
    if running.cancelled():
        assert bookie.local_ids() == {21}
        assert await bookie.overreplicated.collect(bookie.ledgers) == 1
    assert bookie.local_ids() == set()
    assert 21 in fences(bookie)
    assert set(recorded_fences(bookie)) == {21}
