"""Listing by parts: of every id either whether there is a ledger, or that it is not known. Source: metadata 4.3."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl

from bkctl.runtime.config import ZooKeeperConfig
from bkctl.runtime.errors import (
    ClusterNotFoundError,
    ConfigurationError,
    MetadataAuthError,
    MetadataError,
    MetadataUnavailableError,
)
from bkctl.runtime.ledger.changes import new_ledger
from bkctl.runtime.ledger.metadata import DigestType
from bkctl.runtime.metadata.cluster.root import init_cluster
from bkctl.runtime.metadata.ledgers.layout import LedgerLayout, LedgerTree, encode_layout, node_at
from bkctl.runtime.metadata.ledgers.ledgers import LedgerStore, open_ledger_store
from bkctl.runtime.metadata.ledgers.listing import PartListing, RangeCover
from bkctl.runtime.metadata.store import MetadataStore
from bkctl.runtime.metadata.zookeeper.embedded import EmbeddedZooKeeper
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from bkctl.storage.ids import LEDGER_ID_MAX
from tests.runtime.metadata.conftest import expire, session_of
from tests.sim.loop import VirtualClock, run_simulated
from tests.sim.metadata_store import ModelLink, ModelMetadataStore
from tests.sim.zookeeper_model import ModelZooKeeper

OPEN = new_ledger(("b1:3181", "b2:3181"), 2, 2, DigestType.CRC32C, b"secret")
LEGACY = LedgerTree.LEGACY_HIERARCHICAL
HIERARCHICAL = LedgerTree.HIERARCHICAL
EDGES = [0, 9999, 10000, 99_999_999, 10**8, 2**31 - 2, 2**31 - 1, 2**31, 2147489999, 2147490000, 2**32, 2**63 - 2]


class Meddled:
    """A store with something done to it before the children of certain nodes are read; what that raises is answered."""

    def __init__(self, store: MetadataStore, meddle: Mapping[str, Callable[[], Awaitable[object]]]) -> None:
        self._store = store
        self._meddle = dict(meddle)
        self.synced: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., object]:
        method: Callable[..., object] = getattr(self._store, name)
        return method

    async def sync(self, path: str) -> None:
        self.synced.append(path)
        await self._store.sync(path)

    async def children(self, path: str) -> list[str]:
        if path in self._meddle:
            await self._meddle[path]()
        return await self._store.children(path)


async def unavailable() -> None:
    raise MetadataUnavailableError("no answer")


async def open_meddled(
    store: MetadataStore, root: str, meddle: Mapping[str, Callable[[], Awaitable[object]]]
) -> LedgerStore:
    return await open_ledger_store(Meddled(store, meddle), root)  # type: ignore[arg-type]


async def new_tree(store: MetadataStore, root: str, tree: LedgerTree, ids: Sequence[int]) -> LedgerStore:
    await init_cluster(store, root, tree, random.Random(1))
    ledgers = await open_ledger_store(store, root)
    for ledger_id in ids:
        await ledgers.create(OPEN, ledger_id=ledger_id)
    return ledgers


async def parts_of(ledgers: LedgerStore, window: int = 128) -> list[PartListing]:
    parts = [part async for part in ledgers.list_parts(window=window)]
    check_cover(parts)
    return parts


def check_cover(parts: Sequence[PartListing]) -> None:
    """What a collector relies on."""
    assert parts[0].first_ledger_id == 0
    assert parts[-1].last_ledger_id == LEDGER_ID_MAX == 2**63 - 2
    for before, after in itertools.pairwise(parts):
        assert before.last_ledger_id + 1 == after.first_ledger_id
    for part in parts:
        assert part.first_ledger_id <= part.last_ledger_id
        assert list(part.ledger_ids) == sorted(set(part.ledger_ids))
        assert all(part.first_ledger_id <= ledger_id <= part.last_ledger_id for ledger_id in part.ledger_ids)
        assert part.error is None or not part.ledger_ids


def ids_in(parts: Sequence[PartListing]) -> list[int]:
    return [ledger_id for part in parts for ledger_id in part.ledger_ids]


def failed_ranges(parts: Sequence[PartListing]) -> list[tuple[int, int]]:
    return [(part.first_ledger_id, part.last_ledger_id) for part in parts if part.error is not None]


# -- arithmetic, on the model -------------------------------------------------------------------------------------

ids_strategy = st.lists(
    st.one_of(st.sampled_from(EDGES), st.integers(0, 50_000), st.integers(0, 2**33), st.integers(0, 2**63 - 2)),
    max_size=25,
    unique=True,
)


@settings(max_examples=150)
@given(st.sampled_from(LedgerTree), ids_strategy, st.integers(1, 5), st.data())
def test_any_tree_with_any_nodes_that_cannot_be_listed(
    tree: LedgerTree, ids: list[int], window: int, data: st.DataObject
) -> None:
    if tree is LEGACY:
        ids = sorted({ledger_id % 10**10 for ledger_id in ids})
    nodes = {""}
    for ledger_id in ids:
        names = tree.ledger_path(ledger_id).split("/")
        nodes |= {"/".join(names[:depth]) for depth in range(len(names))}
    failing = data.draw(st.sets(st.sampled_from(sorted(nodes)), max_size=4))
    unreachable = {node for node in failing if not any(node != up and is_above(up, node) for up in failing)}

    async def run() -> list[PartListing]:
        clock = VirtualClock(1)
        store = await ModelMetadataStore.connect(ModelZooKeeper(clock), ModelLink(), clock, ZooKeeperConfig())
        await new_tree(store, "/r", tree, ids)
        meddle = {f"/r/{path}".rstrip("/"): unavailable for path in failing}
        parts = await parts_of(await open_meddled(store, "/r", meddle), window)
        await store.close()
        return parts

    parts = run_simulated(run())
    known = [ledger_id for ledger_id in ids if not any(holds(tree, node, ledger_id) for node in unreachable)]
    assert ids_in(parts) == sorted(known)
    expected = sorted(range_of(tree, node) for node in unreachable)
    assert failed_ranges(parts) == expected


def is_above(up: str, path: str) -> bool:
    return up == "" or path.startswith(f"{up}/")


def holds(tree: LedgerTree, path: str, ledger_id: int) -> bool:
    return is_above(path, tree.ledger_path(ledger_id))


def range_of(tree: LedgerTree, path: str) -> tuple[int, int]:
    node = node_at(tree, path)
    assert node is not None
    return node.first_ledger_id, node.last_ledger_id


@given(st.lists(st.tuples(st.integers(0, LEDGER_ID_MAX), st.integers(0, 10**6), st.booleans()), max_size=9))
def test_gaps_are_filled(ranges: list[tuple[int, int, bool]]) -> None:
    given_parts: list[PartListing] = []
    for first, width, is_failed in sorted(ranges):
        if not given_parts or given_parts[-1].last_ledger_id < first:
            error = MetadataError("no") if is_failed else None
            given_parts.append(PartListing(first, min(first + width, LEDGER_ID_MAX), error=error))
    cover = RangeCover()
    parts = [part for one in given_parts for part in cover.add(one)] + cover.finish(HIERARCHICAL)
    check_cover(parts)
    assert failed_ranges(parts) == failed_ranges(given_parts)


def test_parts_that_overlap_are_an_error_of_the_program() -> None:
    cover = RangeCover()
    cover.add(PartListing(0, 9))
    with pytest.raises(AssertionError, match="overlap"):
        cover.add(PartListing(9, 10))


# -- on a real server ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tree", LedgerTree)
@pytest.mark.parametrize("window", [1, 128])
async def test_every_layout(store: ZooKeeperStore, root: str, tree: LedgerTree, window: int) -> None:
    ids = [ledger_id for ledger_id in EDGES if ledger_id < 10**10 or tree is not LEGACY]
    parts = await parts_of(await new_tree(store, root, tree, ids), window)
    assert ids_in(parts) == ids
    assert failed_ranges(parts) == []
    assert (len(parts) == 1) == (tree is LedgerTree.FLAT)


@pytest.mark.parametrize("tree", LedgerTree)
async def test_a_cluster_without_ledgers_is_one_empty_part(store: ZooKeeperStore, root: str, tree: LedgerTree) -> None:
    (part,) = await parts_of(await new_tree(store, root, tree, []))
    assert (list(part.ledger_ids), part.error) == ([], None)


async def test_a_node_that_may_not_be_read_is_an_error_of_its_ids(
    store: ZooKeeperStore, root: str, zookeeper: EmbeddedZooKeeper
) -> None:
    ledgers = await new_tree(store, root, HIERARCHICAL, [5, 20_005, 100_000_005, 2**40])
    owner = KazooClient(zookeeper.connect_string, auth_data=[("digest", "other:secret")])
    owner.start()
    try:
        for path in ("00/0002", "01"):
            owner.set_acls(f"{root}/{path}", [make_digest_acl("other", "secret", all=True)])
        parts = await parts_of(ledgers)
        assert ids_in(parts) == [5, 2**40]
        assert failed_ranges(parts) == [(20_000, 29_999), (10**8, 2 * 10**8 - 1)]
        assert [type(part.error) for part in parts if part.error] == [MetadataAuthError] * 2
        with pytest.raises(MetadataAuthError, match="00/0002"):
            await ledgers.count()
    finally:
        owner.stop()
        owner.close()


async def test_the_largest_number_disturbs_nothing(
    store: ZooKeeperStore, root: str, caplog: pytest.LogCaptureFixture
) -> None:
    ids = [1, 2**63 - 2]
    ledgers = await new_tree(store, root, HIERARCHICAL, ids)
    await store.create(f"{root}/922/3372/0368/5477/L5807", make_parents=True)
    with caplog.at_level(logging.WARNING):
        parts = await parts_of(ledgers)
    assert ids_in(parts) == ids
    assert caplog.messages == [f"{root}/922/3372/0368/5477/L5807 was ignored: no ledger can be stored there"]


@pytest.mark.parametrize("tree", LedgerTree)
async def test_warnings_are_few(
    store: ZooKeeperStore, root: str, tree: LedgerTree, caplog: pytest.LogCaptureFixture
) -> None:
    ledgers = await new_tree(store, root, tree, [3])
    bucket = tree.ledger_path(3).rpartition("/")[0]
    for number in range(40):
        await store.create(f"{root}/{bucket}/Lx{number}".replace("//", "/"))
    with caplog.at_level(logging.WARNING):
        assert ids_in(await parts_of(ledgers)) == [3]
    assert len(caplog.messages) == 6
    assert caplog.messages[-1] == f"{root}: 35 more nodes were ignored"
    assert not any("\n" in message for message in caplog.messages)


async def test_a_bucket_deleted_meanwhile_is_empty(
    store: ZooKeeperStore, other_store: ZooKeeperStore, root: str
) -> None:
    await new_tree(store, root, HIERARCHICAL, [5, 20_005, 30_005, 2**40])
    deleter = await open_ledger_store(other_store, root)
    meddle = {
        f"{root}/00/0002": lambda: deleter.delete(20_005),
        f"{root}/{HIERARCHICAL.ledger_path(2**40).rpartition('/')[0]}": lambda: deleter.delete(2**40),
    }
    meddled = await open_meddled(store, root, meddle)
    parts = await parts_of(meddled)
    assert ids_in(parts) == [5, 30_005]
    assert failed_ranges(parts) == []
    assert [ledger_id async for ledger_id in (await open_meddled(store, root, meddle)).list_ids()] == [5, 30_005]


@pytest.mark.parametrize("is_made_anew", [False, True])
async def test_a_root_that_vanishes_is_never_an_empty_answer(
    store: ZooKeeperStore, other_store: ZooKeeperStore, root: str, is_made_anew: bool
) -> None:
    await new_tree(store, root, HIERARCHICAL, [5, 20_005, 30_005])

    async def delete_all() -> None:
        deleter = await open_ledger_store(other_store, root)
        for ledger_id in (5, 20_005, 30_005):
            await deleter.delete(ledger_id)
        for name in ("available/readonly", "available", "LAYOUT", "INSTANCEID"):
            await other_store.delete(f"{root}/{name}")
        await other_store.delete(root)
        if is_made_anew:
            await init_cluster(other_store, root, HIERARCHICAL, random.Random(2))

    meddled = await open_meddled(store, root, {f"{root}/00/0002": delete_all})
    parts = await parts_of(meddled, window=1)
    assert (20_000, 29_999) in failed_ranges(parts)
    assert "disappeared while it was listed" in str(next(part.error for part in parts if part.error))


async def test_without_a_root_nothing_is_known(store: ZooKeeperStore, root: str) -> None:
    ledgers = await new_tree(store, root, HIERARCHICAL, [])
    for name in ("available/readonly", "available", "LAYOUT", "INSTANCEID"):
        await store.delete(f"{root}/{name}")
    await store.delete(root)
    parts = await parts_of(ledgers)
    assert failed_ranges(parts) == [(0, LEDGER_ID_MAX)]
    assert isinstance(parts[0].error, ClusterNotFoundError)
    with pytest.raises(ClusterNotFoundError):
        await ledgers.count()


async def test_a_layout_that_is_another_one_by_now(store: ZooKeeperStore, root: str) -> None:
    """A bookie that took a cluster without LAYOUT for hierarchical must not find it empty of flat ledgers."""
    await store.create(root, make_parents=True)
    ledgers = await open_ledger_store(store, root)
    assert failed_ranges(await parts_of(ledgers)) == []
    await store.create(f"{root}/LAYOUT", encode_layout(LedgerLayout(LedgerTree.FLAT)))
    parts = await parts_of(ledgers)
    assert failed_ranges(parts) == [(0, LEDGER_ID_MAX)]
    with pytest.raises(ConfigurationError, match="created as flat, but was opened as hierarchical"):
        await ledgers.count()


async def test_ids_too_long_for_the_legacy_layout_are_not_taken_for_deleted(store: ZooKeeperStore, root: str) -> None:
    ledgers = await new_tree(store, root, LEGACY, [5])
    await store.create(f"{root}/12/3456/L78901", make_parents=True)
    parts = await parts_of(ledgers)
    assert ids_in(parts) == [5]
    assert failed_ranges(parts) == [(10**10, LEDGER_ID_MAX)]


async def test_a_session_that_ends_in_the_middle(
    store: ZooKeeperStore, root: str, zookeeper: EmbeddedZooKeeper
) -> None:
    ids = list(range(0, 200_000, 10_000))
    ledgers = await new_tree(store, root, HIERARCHICAL, ids)
    parts: list[PartListing] = []
    async for part in ledgers.list_parts(window=2):
        parts.append(part)
        if len(parts) == 3:
            is_lost = asyncio.Event()
            store.on_session_lost(is_lost.set)
            await asyncio.to_thread(expire, session_of(store), zookeeper)
            await is_lost.wait()
    check_cover(parts)
    failed = failed_ranges(parts)
    known = [ledger_id for ledger_id in ids if not any(first <= ledger_id <= last for first, last in failed)]
    assert ids_in(parts) == known
    assert ids[:3] == known[:3]


async def test_a_sync_goes_before_every_node_of_a_collector(store: ZooKeeperStore, root: str) -> None:
    await new_tree(store, root, HIERARCHICAL, [5, 20_005])
    meddled = Meddled(store, {})
    ledgers = await open_ledger_store(meddled, root)  # type: ignore[arg-type]
    await parts_of(ledgers)
    assert len(meddled.synced) == 1 + len(["root", "00", "00/0000", "00/0002"])
    meddled.synced.clear()
    assert await ledgers.count() == 2
    assert len(meddled.synced) == 1


async def test_leaving_early_ends_what_is_under_way(store: ZooKeeperStore, root: str) -> None:
    ledgers = await new_tree(store, root, HIERARCHICAL, [*range(0, 100_000, 10_000), *range(2**40, 2**50, 2**47)])
    for count in (1, 9, 12):
        parts = ledgers.list_parts(window=3)
        for _ in range(count):
            await anext(parts)
        await parts.aclose()
        assert [task for task in asyncio.all_tasks() if "_answer" in repr(task)] == []


@pytest.mark.parametrize("tree", [LEGACY, HIERARCHICAL])
async def test_creators_and_deleters_at_work_all_the_time(
    store: ZooKeeperStore, other_store: ZooKeeperStore, root: str, tree: LedgerTree
) -> None:
    lasting = [bucket * 10_000 + 1 for bucket in range(30)]
    ledgers = await new_tree(store, root, tree, lasting)
    others = await open_ledger_store(other_store, root)
    is_done = False

    async def churn(offset: int) -> None:
        while not is_done:
            for bucket in range(0, 60, 3):
                await others.create(OPEN, ledger_id=bucket * 10_000 + offset)
            for bucket in range(0, 60, 3):
                await others.delete(bucket * 10_000 + offset)

    churning = [asyncio.create_task(churn(offset)) for offset in (2, 3)]
    try:
        for _ in range(10):
            parts = await parts_of(ledgers, window=4)
            assert failed_ranges(parts) == []
            assert set(lasting) <= set(ids_in(parts))
            assert set(lasting) <= {ledger_id async for ledger_id in ledgers.list_ids(window=4)}
    finally:
        is_done = True
        await asyncio.gather(*churning)
