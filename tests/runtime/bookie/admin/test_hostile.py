"""A bookie serves its ledgers whatever clients of its admin interface do."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import re

import msgspec

from bkctl.runtime.admin.exposition import TEXT_LIFE_S
from bkctl.runtime.bookie.admin.interface import socket_path
from bkctl.runtime.bookie.boot.process import running_bookie
from bkctl.runtime.config import AdminConfig, BookieConfig, ClientConfig
from bkctl.runtime.net.loop import LoopClock
from bkctl.runtime.net.pool import BookiePool
from bkctl.runtime.protocol.status import Status
from tests.runtime.bookie.admin.asking import tcp_asker
from tests.runtime.bookie.conftest import Peer

HOSTILE = (
    b"",
    b"GET /metrics HTTP/1.1\r\nX: ",
    b"PUT /api/v1/bookie/gc HTTP/1.1\r\nHost: b\r\nContent-Length: 99999999\r\n\r\n" + b"x" * 100_000,
    b"GET /metrics HTTP/1.1\r\nHost: b\r\n\r\n" * 20,
    b"PUT /api/v1/bookie/state/readonly HTTP/1.1\r\nHost: b\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"GET /../../etc/passwd HTTP/1.1\r\nHost: b\r\n\r\n",
    os.urandom(5000),
)


async def test_adds_and_reads_go_on(bookie_config: BookieConfig) -> None:
    config = msgspec.structs.replace(bookie_config, admin=AdminConfig(is_http_enabled=True, http_port=0))
    async with contextlib.AsyncExitStack() as at_end:
        server = await at_end.enter_async_context(running_bookie(config))
        port = server.view.http_port
        assert port is not None

        async def resolve(_: str) -> tuple[str, int]:
            return "127.0.0.1", server.port

        pool = BookiePool(resolve, ClientConfig(), LoopClock())
        at_end.push_async_callback(pool.close)
        peer = Peer(pool, server.bookie_id)

        async def annoy(data: bytes) -> None:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            at_end.callback(writer.close)
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(data)

        for entry_id in range(20):
            await asyncio.gather(*map(annoy, HOSTILE))
            assert await peer.add(1, entry_id) is Status.OK
            assert await peer.read(1, entry_id) == peer.body(1, entry_id)
        async with tcp_asker(port) as admin:
            assert (await admin.get("/api/v1/bookie/is_ready")).status == 200
            assert (await admin.get("/api/v1/bookie/state/readonly")).json == {"readOnly": False}


async def test_pipelined_scrapes_share_texts(bookie_config: BookieConfig) -> None:
    """The uptime in each answer tells when its text was made. Twice the clock's step of 1 ms is allowed for."""
    count = 300
    async with running_bookie(bookie_config):
        path = socket_path(bookie_config.storage.ledger_directories[0])
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: b\r\n\r\n" * (count - 1))
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: b\r\nConnection: close\r\n\r\n")
        answers = await reader.read()
        writer.close()
    uptimes = [float(found) for found in re.findall(rb"\nbkctl_uptime_seconds (\S+)", answers)]
    assert len(uptimes) == count
    made = sorted(set(uptimes))
    assert all(later - earlier > TEXT_LIFE_S - 0.002 for earlier, later in itertools.pairwise(made)), made
