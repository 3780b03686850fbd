"""Followers of a ledger that a Java client or ours writes, on Java bookies and on our own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from bkctl.runtime.client import LedgerClient
from bkctl.runtime.metadata.zookeeper.embedded import EmbeddedZooKeeper
from tests.interop.exchange import PASSWORD
from tests.interop.java import JavaClient
from tests.interop.java_cluster import JavaCluster
from tests.until import until

FOLLOWERS = 100


@pytest.fixture
def java_cluster(tmp_path: Path, zookeeper: EmbeddedZooKeeper) -> Iterator[JavaCluster]:
    uri = f"zk+hierarchical://{zookeeper.connect_string}/followed-{tmp_path.name}"
    with JavaCluster(str(tmp_path / "java"), uri) as cluster:
        cluster.start_bookies(4)
        yield cluster


@pytest.fixture
async def java_bookies_client(java_cluster: JavaCluster) -> AsyncIterator[LedgerClient]:
    async with await LedgerClient.connect(java_cluster.metadata_uri) as client:
        yield client


async def collect(client: LedgerClient, ledger_id: int, into: list[bytes], password: bytes = b"") -> None:
    reader = await client.open(ledger_id, password=password)
    async with contextlib.aclosing(reader.follow()) as entries:
        async for entry in entries:
            assert entry.entry_id == len(into)
            assert entry.entry_id <= reader.last_add_confirmed
            into.append(entry.payload)


@pytest.mark.parametrize("ensemble", [(3, 3, 2), (3, 2, 2)])
async def test_a_java_writer_is_followed_through_its_end(
    java_cluster: JavaCluster, java_bookies_client: LedgerClient, tmp_path: Path, ensemble: tuple[int, int, int]
) -> None:
    java = JavaClient(java_cluster.metadata_uri, str(tmp_path / "log"))
    try:
        ledger_id = await java.create(ensemble=ensemble, password=PASSWORD)
        found: list[bytes] = []
        follower = asyncio.create_task(collect(java_bookies_client, ledger_id, found, PASSWORD.encode()))
        expected: list[bytes] = []
        for number in range(30):
            expected.append(b"entry %d" % number)
            await java.append(ledger_id, [expected[-1]])
            await until(lambda: follower.done() or len(found) >= len(expected) - 1, tell=lambda: found)
        await java.close_ledger(ledger_id)
        await asyncio.wait_for(follower, 300)
        assert found == expected
    finally:
        java.stop()


async def test_a_hundred_followers_and_an_ensemble_change(
    java_cluster: JavaCluster, java_bookies_client: LedgerClient
) -> None:
    client = java_bookies_client
    writer = await client.create(ensemble_size=3, write_quorum_size=3, ack_quorum_size=2, lac_interval_s=0.05)
    lists: list[list[bytes]] = [[] for _ in range(FOLLOWERS)]
    followers = [asyncio.create_task(collect(client, writer.ledger_id, found)) for found in lists]
    expected = [b"entry %d" % number for number in range(60)]
    for number, payload in enumerate(expected):
        if number == 30:
            java_cluster.kill(writer.metadata.last_segment.ensemble[0])
        await writer.append(payload)
    await until(lambda: all(found == expected for found in lists), tell=lambda: min(map(len, lists)))
    assert len(writer.metadata.segments) == 2
    await writer.close()
    await asyncio.wait_for(asyncio.gather(*followers), 300)
    assert all(found == expected for found in lists)


async def test_a_dead_writers_ledger_ends_when_it_is_recovered(
    java_cluster: JavaCluster, java_bookies_client: LedgerClient, tmp_path: Path
) -> None:
    java = JavaClient(java_cluster.metadata_uri, str(tmp_path / "log"))
    ledger_id = await java.create(password=PASSWORD)
    found: list[bytes] = []
    follower = asyncio.create_task(collect(java_bookies_client, ledger_id, found, PASSWORD.encode()))
    expected = [b"entry %d" % number for number in range(10)]
    for each in expected:  # one after another: entries sent together would all carry the LAC before the first of them
        await java.append(ledger_id, [each])
    await until(lambda: len(found) == len(expected) - 1, tell=lambda: found)
    java.stop()
    assert not follower.done()
    recovered = await java_bookies_client.open(ledger_id, password=PASSWORD.encode(), recover=True)
    await asyncio.wait_for(follower, 300)
    assert found == expected
    assert recovered.last_add_confirmed == len(expected) - 1


async def test_our_bookies_are_followed(bkctl_client: LedgerClient) -> None:
    found: list[bytes] = []
    async with await bkctl_client.create() as writer:
        follower = asyncio.create_task(collect(bkctl_client, writer.ledger_id, found))
        for number in range(20):
            await writer.append(b"entry %d" % number)
            await until(lambda: follower.done() or len(found) >= writer.last_add_confirmed)
    await asyncio.wait_for(follower, 300)
    assert found == [b"entry %d" % number for number in range(20)]
