"""Attacks by clients over the loopback, each with a bounded number of connections and requests.

What they did before: the bookie ended because it could open no more files, accepted no new client, or let others wait.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from runtime.bookie.boot.process import running_bookie
from runtime.config import BookieConfig
from runtime.metadata.zookeeper.store import ZooKeeperStore
from runtime.protocol import v3
from runtime.protocol.messages import AddAnswer, BookieInfoAnswer
from runtime.protocol.status import Status
from tests.runtime.bookie.bookie_process import BookieUnderTest, open_files
from tests.runtime.bookie.conftest import KEY, Peer
from tests.runtime.net.test_listener import Peer as Client
from tests.runtime.net.test_listener import peer_of

pytestmark = [pytest.mark.cluster, pytest.mark.battery]

LEDGER_ID = 7
PAYLOAD = bytes(100_000)
CONNECTIONS_MAX = 100
FLOOD = 20_000


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
        async with idle_connections(bookie.port, count), peer_of(bookie.port) as client:
            for entry_id in range(60):  # six journals, and many checkpoints
                await add(client, peer, entry_id)
        assert process.poll() is None, bookie.said()
        process.kill()
    async with bookie.running() as (_, peer):
        for entry_id in range(60):
            assert await peer.read(LEDGER_ID, entry_id) == peer.body(LEDGER_ID, entry_id, PAYLOAD)


async def test_idle_connections_do_not_lock_out_new_clients(
    tmp_path: Path, metadata_uri: str, store: ZooKeeperStore
) -> None:
    (tmp_path / "bkctl.toml").write_text(f"[bookie]\nconnections_max = {CONNECTIONS_MAX}\n")
    bookie = BookieUnderTest(tmp_path, metadata_uri, store, BKCTL_CONFIG=str(tmp_path / "bkctl.toml"))
    async with bookie.running() as (_, peer), idle_connections(bookie.port, CONNECTIONS_MAX):
        for entry_id in range(3):
            async with idle_connections(bookie.port, 10), peer_of(bookie.port) as client:
                await add(client, peer, entry_id)


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
