"""A cluster at one glance, over a real ZooKeeper, with nodes as Java writes them."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

import pytest

from bkctl.runtime.errors import ClusterNotFoundError
from bkctl.runtime.metadata.cluster.root import init_cluster
from bkctl.runtime.metadata.cluster.summary import ClusterSummary, read_cluster_summary
from bkctl.runtime.metadata.paths import Paths
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore


class NewCluster:
    """A new cluster, and nodes put into it."""

    def __init__(self, store: ZooKeeperStore, root: str) -> None:
        self.store = store
        self.paths = Paths(root)

    async def put(self, path: str, data: bytes = b"", *, is_ephemeral: bool = False) -> None:
        await self.store.create(path, data, make_parents=True, is_ephemeral=is_ephemeral)

    async def summary(self) -> ClusterSummary:
        return await read_cluster_summary(self.store, self.paths.root)


@pytest.fixture
async def cluster(metadata_uri: str) -> AsyncIterator[NewCluster]:
    uri = parse_metadata_uri(metadata_uri)
    async with await ZooKeeperStore.connect(uri.servers) as store:
        await init_cluster(store, uri.root, uri.tree, random.Random(1))
        yield NewCluster(store, uri.root)


async def test_a_new_cluster_is_empty_and_looking_creates_nothing(cluster: NewCluster) -> None:
    summary = await cluster.summary()
    assert (summary.known_count, summary.writable_count, summary.read_only_count) == (0, 0, 0)
    assert summary.unavailable_count == 0
    assert (summary.is_auditor_elected, summary.auditor_id) == (False, None)
    assert (summary.is_under_replicated, summary.is_replication_enabled) == (None, None), "no auditor looks"
    assert await cluster.store.children(cluster.paths.root) == ["INSTANCEID", "LAYOUT", "available"]


async def elect(cluster: NewCluster) -> None:
    await cluster.put(f"{cluster.paths.auditor_election}/V_0000000001", b'bookieId: "a:1"\n', is_ephemeral=True)


async def test_under_replication_is_known_only_where_an_auditor_looks(cluster: NewCluster) -> None:
    async def known() -> tuple[bool | None, bool | None]:
        summary = await cluster.summary()
        return summary.is_under_replicated, summary.is_replication_enabled

    await cluster.put(cluster.paths.cookie("a:1"))
    await cluster.put(cluster.paths.writable_bookie("a:1"), is_ephemeral=True)
    assert await known() == (None, None)
    await elect(cluster)
    assert await known() == (False, True)
    await cluster.put(cluster.paths.cookie("b:1"))
    assert await known() == (None, True), "the auditor may not have noticed yet that a bookie is down"
    await cluster.put(cluster.paths.replication_disabled)
    assert await known() == (None, False)
    await cluster.put(cluster.paths.read_only_bookie("b:1"), is_ephemeral=True)
    assert await known() == (None, False), "no auditor looks while replication is off"
    await cluster.put(cluster.paths.mark(7), b'replica: "b:1"\n')
    assert await known() == (True, False)


async def test_bookies_are_counted_by_cookie_and_registration(cluster: NewCluster) -> None:
    for bookie_id in ("a:1", "b:1", "c:1", "d:1"):
        await cluster.put(cluster.paths.cookie(bookie_id))
    await cluster.put(cluster.paths.writable_bookie("a:1"), is_ephemeral=True)
    await cluster.put(cluster.paths.read_only_bookie("b:1"), is_ephemeral=True)
    summary = await cluster.summary()
    assert (summary.known_count, summary.writable_count, summary.read_only_count) == (4, 1, 1)
    assert summary.unavailable_count == 2


async def test_the_lowest_vote_is_the_auditor(cluster: NewCluster) -> None:
    election = cluster.paths.auditor_election
    await cluster.put(f"{election}/V_0000000010", b'bookieId: "late:3181"\n')
    await cluster.put(f"{election}/V_0000000009", b'bookieId: "10.0.0.1:3181"\n')
    summary = await cluster.summary()
    assert (summary.is_auditor_elected, summary.auditor_id) == (True, "10.0.0.1:3181")
    await cluster.put(f"{election}/V_0000000001", b"no protobuf {")
    summary = await cluster.summary()
    assert (summary.is_auditor_elected, summary.auditor_id) == (True, None)
    await cluster.put(f"{election}/V_junk")
    assert (await cluster.summary()).is_auditor_elected, "a name that ends every Java elector is passed over"


async def test_a_mark_counts_and_an_empty_branch_does_not(cluster: NewCluster) -> None:
    await elect(cluster)
    marks = cluster.paths.under_replicated_ledgers
    await cluster.put(f"{marks}/0000/0000/0000/0001")
    assert (await cluster.summary()).is_under_replicated is False
    await cluster.put(f"{marks}/0000/0000/0000/0002/urL0000000002", b'replica: "10.0.0.1:3181"\n')
    assert (await cluster.summary()).is_under_replicated


async def test_the_switch_of_automatic_replication(cluster: NewCluster) -> None:
    await cluster.put(cluster.paths.replication_disabled)
    assert (await cluster.summary()).is_replication_enabled is False


async def test_no_cluster(cluster: NewCluster) -> None:
    with pytest.raises(ClusterNotFoundError):
        await read_cluster_summary(cluster.store, cluster.paths.root + "-none")
