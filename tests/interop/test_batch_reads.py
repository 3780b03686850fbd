"""Batch reads of Java bookies, and what a client does where a bookie does not serve them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bkctl.runtime.client import LedgerClient
from bkctl.runtime.config import ClientConfig
from bkctl.runtime.metadata.zookeeper.embedded import EmbeddedZooKeeper
from bkctl.runtime.net.loop import LoopClock
from bkctl.runtime.net.pool import BookiePool
from bkctl.runtime.protocol.digest import DigestType, master_key
from bkctl.runtime.protocol.entry_body import EntryCodec
from bkctl.runtime.protocol.status import Status
from tests.interop.java_cluster import JavaCluster

LEDGER_ID = 7
ENTRY_COUNT = 300
HOLE = 250
BYTES_MAX = 1 << 20
CODEC = EntryCodec(LEDGER_ID, DigestType.CRC32C, b"")
CODEC_BYTES = len(CODEC.encode(0, -1, 0, b""))


def bodies() -> dict[int, bytes]:
    """Entries from empty ones to 20 kB; one in the middle is missing."""
    sizes = [0, 1, 100, 1000, 20_000]
    return {
        entry_id: CODEC.encode(entry_id, entry_id - 1, 0, bytes([entry_id % 256]) * sizes[entry_id % len(sizes)])
        for entry_id in range(ENTRY_COUNT)
        if entry_id != HOLE
    }


@pytest.mark.parametrize("release", ["4.14", "4.18"])
async def test_a_reader_reads_a_ledger_whether_its_bookie_serves_batches_or_not(
    tmp_path: Path, zookeeper: EmbeddedZooKeeper, release: str
) -> None:
    uri = f"zk+hierarchical://{zookeeper.connect_string}/batch-readers-{release}"
    with JavaCluster(str(tmp_path), uri, release=release) as cluster:
        cluster.start_bookies(1)
        async with await LedgerClient.connect(uri) as client:
            writer = await client.create(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)
            payloads = [body[CODEC_BYTES:] for body in bodies().values()]
            await asyncio.gather(*map(writer.append, payloads))
            await writer.close()
            for _ in range(2):
                reader = await client.open(writer.ledger_id)
                assert [entry.payload async for entry in reader] == payloads


@contextlib.asynccontextmanager
async def pool_of(directory: str, zookeeper: EmbeddedZooKeeper, release: str) -> AsyncIterator[tuple[BookiePool, str]]:
    """One Java bookie of this release with the entries, and a pool."""

    async def resolve(bookie_id: str) -> tuple[str, int]:
        host, _, port = bookie_id.rpartition(":")
        return host, int(port)

    uri = f"zk+hierarchical://{zookeeper.connect_string}/batch-reads-{release}"
    with JavaCluster(directory, uri, release=release) as cluster:
        (bookie_id,) = cluster.start_bookies(1)
        pool = BookiePool(resolve, ClientConfig(), LoopClock())
        try:
            adds = list(bodies().items())
            assert await pool.add_many(bookie_id, LEDGER_ID, master_key(b""), adds, is_recovery_add=True) == [
                Status.OK
            ] * len(adds)
            yield pool, bookie_id
        finally:
            await pool.close()


async def read_all(pool: BookiePool, bookie_id: str, *, bytes_max: int) -> tuple[dict[int, bytes | Status], int]:
    """The outcomes of all entries, and how many calls they took."""
    found: dict[int, bytes | Status] = {}
    calls = 0
    while len(found) < ENTRY_COUNT:
        wanted = range(len(found), ENTRY_COUNT)
        outcomes = await pool.read_many(bookie_id, LEDGER_ID, wanted, bytes_max=bytes_max)
        assert outcomes
        found.update(zip(wanted, outcomes, strict=False))
        calls += 1
    return found, calls


@pytest.mark.parametrize("release", ["4.17", "4.18"])
async def test_a_java_bookie_answers_batches(tmp_path: Path, zookeeper: EmbeddedZooKeeper, release: str) -> None:
    expected = {**bodies(), HOLE: Status.NO_SUCH_ENTRY}
    async with pool_of(str(tmp_path), zookeeper, release) as (pool, bookie_id):
        found, calls = await read_all(pool, bookie_id, bytes_max=BYTES_MAX)
        assert found == expected
        assert calls == 3, "two answers of up to 1 MiB, of which the second ends at the hole; then single reads"
        for count in (1, 2, 3):
            limit = 36 + sum(len(bodies()[entry_id]) + 4 for entry_id in range(count))
            assert len(await pool.read_many(bookie_id, LEDGER_ID, range(3), bytes_max=limit)) == count
        assert await pool.read_many(bookie_id, LEDGER_ID, range(4, 9), bytes_max=1) == [expected[4]]
        assert await pool.read_many(bookie_id, LEDGER_ID, range(300, 305), bytes_max=1) == [Status.NO_SUCH_ENTRY] * 5
        assert await pool.read_many(bookie_id, 99, range(2), bytes_max=1) == [Status.NO_SUCH_LEDGER] * 2


async def test_an_older_java_bookie_gets_single_reads(tmp_path: Path, zookeeper: EmbeddedZooKeeper) -> None:
    async with pool_of(str(tmp_path), zookeeper, "4.14") as (pool, bookie_id):
        for _ in range(2):
            found, calls = await read_all(pool, bookie_id, bytes_max=BYTES_MAX)
            assert found == {**bodies(), HOLE: Status.NO_SUCH_ENTRY}
            assert calls == 1, "single reads have no common limit"
