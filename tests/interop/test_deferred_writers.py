"""Deferred sync and entry ids that the caller chooses: written by Java's client or ours, read by both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from bkctl.runtime.client import LedgerClient
from bkctl.runtime.metadata.zookeeper.embedded import EmbeddedZooKeeper
from tests.interop.exchange import PASSWORD, append_all, bkctl_reads, payloads
from tests.interop.java import JavaClient, JavaError
from tests.interop.java_cluster import JavaCluster
from tests.processes import DevCluster

COUNT = 40
ENTRIES = payloads(COUNT)
FORCED = 25
SHUFFLED = [entry_id for start in range(0, COUNT, 8) for entry_id in reversed(range(start, start + 8))]


@pytest.fixture(scope="module", params=["java", "bkctl"])
def uri(
    request: pytest.FixtureRequest, zookeeper: EmbeddedZooKeeper, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """A cluster of Java bookies, or of ours."""
    if request.param == "bkctl":
        bkctl_bookies: DevCluster = request.getfixturevalue("bkctl_bookies")
        yield bkctl_bookies.metadata_uri
        return
    java_uri = f"zk+hierarchical://{zookeeper.connect_string}/deferred-java"
    with JavaCluster(str(tmp_path_factory.mktemp("deferred") / "java"), java_uri) as cluster:
        cluster.start_bookies(3)
        yield java_uri


@pytest.fixture
async def client(uri: str) -> AsyncIterator[LedgerClient]:
    async with await LedgerClient.connect(uri) as client:
        yield client


@pytest.fixture
def java(uri: str, tmp_path: Path) -> Iterator[JavaClient]:
    java = JavaClient(uri, str(tmp_path / "log"))
    try:
        yield java
    finally:
        java.stop()


async def test_java_reads_what_bkctl_forced(client: LedgerClient, java: JavaClient) -> None:
    writer = await client.create(
        write_quorum_size=3, password=PASSWORD.encode(), deferred_sync=True, lac_interval_s=0.05
    )
    await append_all(writer, ENTRIES[:FORCED])
    assert writer.last_add_confirmed == -1
    assert await writer.force() == FORCED - 1
    assert await java.follow(writer.ledger_id, FORCED, password=PASSWORD) == ENTRIES[:FORCED], "an explicit LAC"
    await append_all(writer, ENTRIES[FORCED:])
    await writer.close()
    assert await java.read(writer.ledger_id, password=PASSWORD) == ENTRIES[:FORCED]
    assert await bkctl_reads(client, writer.ledger_id) == ENTRIES[:FORCED]
    answer = await java.call("read", ledger_id=writer.ledger_id, recover=False, digest_type="CRC32C", password=PASSWORD)
    assert answer["length"] == sum(map(len, ENTRIES[:FORCED]))


async def test_java_recovers_what_a_bkctl_writer_with_deferred_sync_left(
    client: LedgerClient, java: JavaClient
) -> None:
    writer = await client.create(write_quorum_size=3, password=PASSWORD.encode(), deferred_sync=True)
    await append_all(writer, ENTRIES)
    await writer.force()
    writer.abandon()
    assert await java.read(writer.ledger_id, recover=True, password=PASSWORD) == ENTRIES


async def test_bkctl_reads_what_java_forced(client: LedgerClient, java: JavaClient) -> None:
    ledger_id = await java.create(password=PASSWORD, deferred_sync=True)
    await java.append(ledger_id, ENTRIES[:FORCED])
    assert (await java.call("force", ledger_id=ledger_id))["last_add_confirmed"] == FORCED - 1
    await java.append(ledger_id, ENTRIES[FORCED:])
    assert await java.close_ledger(ledger_id) == FORCED - 1
    assert await bkctl_reads(client, ledger_id) == ENTRIES[:FORCED]


async def test_java_reads_entries_whose_ids_the_caller_of_bkctl_chose(client: LedgerClient, java: JavaClient) -> None:
    writer = await client.create(write_quorum_size=3, password=PASSWORD.encode(), caller_entry_ids=True)
    async with writer:
        adds = [writer.append_nowait(ENTRIES[entry_id], entry_id=entry_id) for entry_id in SHUFFLED]
        assert await asyncio.gather(*adds) == SHUFFLED
    assert await java.read(writer.ledger_id, password=PASSWORD) == ENTRIES
    assert await bkctl_reads(client, writer.ledger_id) == ENTRIES


@pytest.mark.parametrize(("deferred_sync", "ledger_id"), [(False, 71_001), (True, 71_002)])
async def test_bkctl_reads_entries_whose_ids_the_caller_of_java_chose(
    client: LedgerClient, java: JavaClient, deferred_sync: bool, ledger_id: int
) -> None:
    assert ledger_id == await java.create(password=PASSWORD, deferred_sync=deferred_sync, adv_ledger_id=ledger_id)
    chosen = [ENTRIES[entry_id] for entry_id in SHUFFLED]
    assert await java.append(ledger_id, chosen, SHUFFLED) == SHUFFLED
    if deferred_sync:
        await java.call("force", ledger_id=ledger_id)
    with pytest.raises(JavaError) as duplicate:
        await java.append(ledger_id, [b"again"], [3])
    assert duplicate.value.code == -22, "DuplicateEntryId"
    assert await java.close_ledger(ledger_id) == COUNT - 1
    assert await bkctl_reads(client, ledger_id) == ENTRIES
