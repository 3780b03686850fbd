"""``LedgerReader.follow`` on a bookie of ours: its long polls, and what a follower leaves behind."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from bkctl.runtime.bookie.boot.process import running_bookie
from bkctl.runtime.bookie.boot.server import BookieServer
from bkctl.runtime.client import LedgerClient, LedgerReader, LedgerWriter
from bkctl.runtime.config import BookieConfig, ClientConfig
from bkctl.runtime.errors import LedgerReadError
from bkctl.runtime.net.listener import BookieListener
from tests.until import until

PATIENT = ClientConfig(read_timeout_s=3600)
"""No long poll ends by its time."""


@pytest.fixture
async def listener(bookie_config: BookieConfig) -> AsyncIterator[BookieListener]:
    async with running_bookie(bookie_config) as server:
        yield listener_of(server)


@pytest.fixture
async def client(listener: BookieListener, metadata_uri: str) -> AsyncIterator[LedgerClient]:
    async with await LedgerClient.connect(metadata_uri, config=PATIENT) as client:
        yield client


def listener_of(server: BookieServer) -> BookieListener:
    assert server.view.listener is not None
    return server.view.listener


async def new_writer(client: LedgerClient) -> LedgerWriter:
    return await client.create(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)


async def collect(reader: LedgerReader, into: list[bytes]) -> None:
    async with contextlib.aclosing(reader.follow()) as entries:
        async for entry in entries:
            into.append(entry.payload)


async def test_each_entry_ends_one_long_poll_and_nothing_else_is_asked(
    listener: BookieListener, client: LedgerClient
) -> None:
    """So it comes as soon as it is confirmed: there is no pause before a request that is waiting already."""
    writer = await new_writer(client)
    found: list[bytes] = []
    follower = asyncio.create_task(collect(await client.open(writer.ledger_id), found))
    measures = listener.measures
    expected: list[bytes] = []
    for number in range(20):
        expected.append(b"entry %d" % number)
        await writer.append(expected[-1])
        if number > 0:
            await until(lambda: len(found) == len(expected) - 1)
        if number == 1:
            asked = measures.reads.succeeded.count, measures.lac_reads.succeeded.count
            polls = measures.long_polls.succeeded.count
        await until(lambda: follower.done() or listener.read_lanes.waiting_poll_count == 1)
    assert (measures.reads.succeeded.count, measures.lac_reads.succeeded.count) == asked
    assert measures.long_polls.succeeded.count - polls == 18
    await writer.close()
    await asyncio.wait_for(follower, 300)
    assert found == expected


async def test_a_writer_that_pauses_tells_of_its_last_entries(listener: BookieListener, client: LedgerClient) -> None:
    writer = await client.create(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1, lac_interval_s=0.01)
    found: list[bytes] = []
    follower = asyncio.create_task(collect(await client.open(writer.ledger_id), found))
    expected: list[bytes] = []
    for number in range(3):
        burst = [b"entry %d of %d" % (each, number) for each in range(5)]
        await asyncio.gather(*(writer.append(each) for each in burst))
        expected.extend(burst)
        await until(lambda: found == expected)
    lac_writes = listener.measures.lac_writes
    await until(lambda: lac_writes.succeeded.count >= 3)  # followers may know before the request is answered
    told = lac_writes.succeeded.count
    await asyncio.sleep(0.1)
    assert lac_writes.succeeded.count == told, "nothing new, nothing told"
    await writer.close()
    await asyncio.wait_for(follower, 300)


async def test_a_closed_client_ends_its_followers(
    listener: BookieListener, client: LedgerClient, metadata_uri: str
) -> None:
    writer = await new_writer(client)
    await writer.append(b"first")
    async with await LedgerClient.connect(metadata_uri, config=PATIENT) as other:
        follower = asyncio.create_task(collect(await other.open(writer.ledger_id), []))
        await until(lambda: listener.read_lanes.waiting_poll_count == 1)
    with pytest.raises(LedgerReadError, match="the client was closed"):
        await asyncio.wait_for(follower, 300)
    await until(lambda: listener.read_lanes.waiting_poll_count == 0)


async def test_a_cancelled_follower_leaves_no_task_and_no_connection(
    listener: BookieListener, client: LedgerClient, metadata_uri: str
) -> None:
    writer = await new_writer(client)
    await writer.append(b"first")
    connections = listener.connection_count
    async with await LedgerClient.connect(metadata_uri, config=PATIENT) as other:
        reader = await other.open(writer.ledger_id)
        tasks = asyncio.all_tasks()
        follower = asyncio.create_task(collect(reader, []))
        await until(lambda: listener.read_lanes.waiting_poll_count == 1)
        assert listener.connection_count == connections + 1, "it shares that of its client"
        follower.cancel()
        await asyncio.wait([follower])
        await until(lambda: asyncio.all_tasks() <= tasks)
    await until(lambda: (listener.read_lanes.waiting_poll_count, listener.connection_count) == (0, connections))
