"""The replication worker with real bookies and a real ZooKeeper."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest

from bkctl.runtime.autorecovery.config import AutorecoveryConfig
from bkctl.runtime.autorecovery.worker import Worker
from bkctl.runtime.client.api import LedgerClient
from bkctl.runtime.metadata.replication.directories import ForeignNames
from bkctl.runtime.metadata.replication.marks import UnderReplicationMarks, list_marks
from bkctl.runtime.metadata.zookeeper.embedded import EmbeddedZooKeeper
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from bkctl.runtime.replication.config import ReplicationConfig
from bkctl.runtime.replication.survey.checker import LedgerChecker
from tests.commands.test_recover_ledger import forget
from tests.processes import Cluster
from tests.runtime.metadata.conftest import expire, session_of
from tests.until import until

pytestmark = pytest.mark.cluster

ENTRIES = [b"entry %d" % number * 20 for number in range(60)]


@contextlib.asynccontextmanager
async def working(client: LedgerClient, replication: ReplicationConfig | None = None) -> AsyncIterator[Worker]:
    """A worker that runs."""
    config = AutorecoveryConfig()
    worker = Worker(client.ports, client.store, config, replication or ReplicationConfig(), holder="this-host")
    serving = asyncio.ensure_future(worker.serve())
    try:
        yield worker
    finally:
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving


async def until_unmarked(client: LedgerClient) -> None:
    async def is_unmarked() -> bool:
        return not [each async for each in list_marks(client.store, client.ports.ledgers.root, ForeignNames())]

    await until(is_unmarked)


async def written(client: LedgerClient, *, is_closed: bool = True) -> int:
    writer = await client.create(ensemble_size=3, write_quorum_size=3, ack_quorum_size=2)
    await asyncio.gather(*map(writer.append, ENTRIES))
    if is_closed:
        await writer.close()
    return writer.ledger_id


async def assert_complete(client: LedgerClient, *ledger_ids: int) -> None:
    """All copies are on registered bookies, and good."""
    live = (await client.ports.registrations.snapshot()).live
    checker = LedgerChecker(client.ports, live, ReplicationConfig())
    for ledger_id in ledger_ids:
        metadata = (await client.ports.ledgers.read(ledger_id)).value
        assert (metadata.is_closed, metadata.last_entry_id) == (True, len(ENTRIES) - 1)
        assert metadata.bookies() <= live
        check = await checker.check(ledger_id)
        assert check.is_clean, check


def marks_of(client: LedgerClient) -> UnderReplicationMarks:
    return UnderReplicationMarks(client.store, client.ports.ledgers.root, client.ports.clock)


async def test_the_ledgers_of_a_stopped_bookie_are_copied_an_open_one_too_and_a_lost_session_does_not_matter(
    start_cluster: Callable[[int], Cluster], zookeeper: EmbeddedZooKeeper
) -> None:
    cluster = start_cluster(4)
    async with await LedgerClient.connect(cluster.metadata_uri) as client:
        open_id = await written(client, is_closed=False)
        lost = (await client.ports.ledgers.read(open_id)).value.last_segment.ensemble[0]
        ids = [await written(client) for _ in range(8)]
        named = [each for each in ids if lost in (await client.ports.ledgers.read(each)).value.bookies()]
        cluster.stop_bookie(lost)
        async with await LedgerClient.connect(cluster.metadata_uri) as other:
            store = other.store
            assert isinstance(store, ZooKeeperStore)
            async with working(other, ReplicationConfig(open_ledger_wait_s=0.2)) as worker:
                await marks_of(client).mark(open_id, [lost])
                await until_unmarked(client)
                session_lost = asyncio.Event()
                store.on_session_lost(session_lost.set)
                await asyncio.to_thread(expire, session_of(store), zookeeper)
                await session_lost.wait()
                for ledger_id in named:
                    await marks_of(client).mark(ledger_id, [lost])
                await until_unmarked(client)
                assert worker.status().bytes_copied >= sum(map(len, ENTRIES))
        await assert_complete(client, open_id, *ids)
        assert await client.store.children(f"{client.ports.ledgers.root}/underreplication/locks") == []


async def test_entries_that_a_bookie_forgot_are_written_again_in_place(cluster: Cluster) -> None:
    async with await LedgerClient.connect(cluster.metadata_uri) as client:
        ledger_id = await written(client)
    cluster.down()
    forgetful = cluster.bookies[0]
    forget(forgetful, ledger_id, 3, 4, 5)
    cluster.up(3)
    async with await LedgerClient.connect(cluster.metadata_uri) as client:
        before = await client.ports.ledgers.read(ledger_id)
        await marks_of(client).mark(ledger_id, [forgetful.id])
        async with working(client) as worker:
            await until_unmarked(client)
            assert 0 < worker.status().bytes_copied < sum(map(len, ENTRIES)) / 2
        await assert_complete(client, ledger_id)
        assert (await client.ports.ledgers.read(ledger_id)).version == before.version
