"""Attacks by clients over the loopback, each with a bounded number of connections and requests.

What they did before: the bookie ended because it could open no more files, accepted no new client, kept in memory what
it was sent, or let others wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from bkctl.runtime.bookie.boot.process import running_bookie
from bkctl.runtime.config import BookieConfig
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from bkctl.runtime.protocol import v3
from bkctl.runtime.protocol.framing import encode_frame
from bkctl.runtime.protocol.messages import AddAnswer, BookieInfoAnswer, ReadAnswer
from bkctl.runtime.protocol.status import Status
from bkctl.storage.setting import MEBIBYTE
from tests.runtime.bookie.bookie_process import BookieUnderTest, open_files
from tests.runtime.bookie.conftest import KEY, Peer
from tests.runtime.bookie.serving.test_large_keys import request_of
from tests.runtime.net.test_listener import Peer as Client
from tests.runtime.net.test_listener import peer_of

pytestmark = [pytest.mark.cluster, pytest.mark.battery]

LEDGER_ID = 7
PAYLOAD = bytes(100_000)
IDLE = 2000
"""As many as a bookie accepts by default."""
CLIENTS = 20
FLOOD = 20_000
LARGE_REQUESTS = 250
MEMORY_MAX = 100 * MEBIBYTE
"""What they may cost: less than half of their bytes."""


@contextlib.asynccontextmanager
async def idle_connections(port: int, count: int) -> AsyncIterator[None]:
    """Connections that send nothing. Within the block the bookie has accepted or closed all of them."""
    async with contextlib.AsyncExitStack() as opened:
        for _ in range(count):
            with contextlib.suppress(ConnectionError):
                await opened.enter_async_context(peer_of(port))
        async with peer_of(port) as last:
            last.send(v3.encode_bookie_info_request(1))
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await last.frame()
        yield


@contextlib.contextmanager
def open_files_of_this_process(count: int) -> Iterator[None]:
    """Within the block the tests may have so many files open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < count:
        pytest.skip(f"this process may have only {hard} files open")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def most_memory(pid: int) -> int:
    """Bytes of memory that a process has had at most."""
    (line,) = (each for each in Path(f"/proc/{pid}/status").read_text().splitlines() if each.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


async def add(client: Client, peer: Peer, entry_id: int) -> None:
    body = peer.body(LEDGER_ID, entry_id, PAYLOAD)
    client.send(v3.encode_add_request(entry_id, LEDGER_ID, entry_id, KEY, body, False, False))
    assert await client.answer() == AddAnswer(entry_id, Status.OK)


@pytest.mark.parametrize(("soft", "hard", "count"), [(400, 400, 600), (1024, 4096, 1100)])
async def test_idle_connections_leave_the_files_that_storage_needs(
    tmp_path: Path, metadata_uri: str, store: ZooKeeperStore, soft: int, hard: int, count: int
) -> None:
    bookie = BookieUnderTest(tmp_path, metadata_uri, store, "--set", "journalMaxSizeMB=1", "--set", "flushInterval=100")
    async with bookie.running(open_files(soft, hard)) as (process, peer):
        async with peer_of(bookie.port, "127.0.0.2") as client, idle_connections(bookie.port, count):
            for entry_id in range(60):  # six journals, and many checkpoints
                await add(client, peer, entry_id)
        assert process.poll() is None, bookie.said()
        process.kill()
    async with bookie.running() as (_, peer):
        for entry_id in range(60):
            assert await peer.read(LEDGER_ID, entry_id) == peer.body(LEDGER_ID, entry_id, PAYLOAD)


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2"])
async def test_as_many_idle_connections_as_a_bookie_accepts_do_not_lock_out_new_clients(
    tmp_path: Path, metadata_uri: str, store: ZooKeeperStore, address: str
) -> None:
    """All of one address, with more before each client. Clients come from this address or from another, and stay."""
    bookie = BookieUnderTest(tmp_path, metadata_uri, store)
    async with contextlib.AsyncExitStack() as opened:
        opened.enter_context(open_files_of_this_process(IDLE + 1000))
        _, peer = await opened.enter_async_context(bookie.running())
        await opened.enter_async_context(idle_connections(bookie.port, IDLE))
        clients = []
        for _ in range(CLIENTS):
            await opened.enter_async_context(idle_connections(bookie.port, 10))
            clients.append(await opened.enter_async_context(peer_of(bookie.port, address)))
        for number in range(2):
            for entry_id, client in enumerate(clients, CLIENTS * number):
                await add(client, peer, entry_id)
                client.send(v3.encode_read_request(entry_id, LEDGER_ID, entry_id, None, False))
                answer = await client.answer()
                assert isinstance(answer, ReadAnswer)
                assert answer.body == peer.body(LEDGER_ID, entry_id, PAYLOAD)


@pytest.mark.parametrize("kind", ["key of a fence", "explicit LAC"])
async def test_large_keys_and_explicit_lacs_do_not_fill_the_memory(
    tmp_path: Path, metadata_uri: str, store: ZooKeeperStore, kind: str
) -> None:
    bookie = BookieUnderTest(tmp_path, metadata_uri, store)
    async with bookie.running() as (process, peer), peer_of(bookie.port) as client:
        before = most_memory(process.pid)
        for ledger_id in range(100, 100 + LARGE_REQUESTS):
            client.send(encode_frame(request_of(kind, peer, ledger_id).SerializeToString()))
            await client.answer()
        await add(client, peer, 0)
        assert most_memory(process.pid) - before < MEMORY_MAX


async def test_a_flood_of_tiny_requests_does_not_make_other_clients_wait_for_its_end(
    bookie_config: BookieConfig,
) -> None:
    async with (
        running_bookie(bookie_config) as server,
        peer_of(server.port) as greedy,
        peer_of(server.port) as other,
    ):
        assert server.view.listener is not None
        answered = server.view.listener.measures.bookie_infos
        for _ in range(5):
            before = answered.succeeded.count
            greedy.send(*map(v3.encode_bookie_info_request, range(FLOOD)))
            other.send(v3.encode_read_request(1, LEDGER_ID, 0, None, False))
            assert (await other.answer()).txn_id == 1
            assert answered.succeeded.count - before < FLOOD / 4
            for txn_id in range(FLOOD):
                answer = await greedy.answer()
                assert isinstance(answer, BookieInfoAnswer)
                assert answer.txn_id == txn_id
