"""Jobs, online rebuild and stop, asked of a running bookie over its socket."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bkctl.runtime.bookie.admin.interface import socket_path
from bkctl.runtime.bookie.boot.process import running_bookie
from bkctl.runtime.bookie.boot.server import BookieServer
from bkctl.runtime.bookie.disks.modes import ReadOnlyReason
from bkctl.runtime.config import BookieConfig, ClientConfig
from bkctl.runtime.metadata.bookies.registration import BookieMode
from bkctl.runtime.net.loop import LoopClock
from bkctl.runtime.net.pool import BookiePool
from bkctl.runtime.protocol.status import Status
from tests.runtime.bookie.conftest import Peer

pytestmark = pytest.mark.cluster

REBUILD = "index/rebuild"


class Admin:
    """Requests to the bookie's socket."""

    def __init__(self, server: BookieServer, session: aiohttp.ClientSession, peer: Peer) -> None:
        self.server = server
        self.peer = peer
        self._session = session

    async def ask(self, method: str, path: str, status: int = 200) -> Any:
        async with self._session.request(method, f"http://bookie/api/v1/bkctl/{path}") as answer:
            assert answer.status == status, await answer.text()
            return await answer.json()

    async def ended(self, job_id: int) -> Any:
        """The job, once it has ended."""
        async with asyncio.timeout(60):
            while (job := await self.ask("GET", f"jobs/{job_id}"))["state"] == "running":  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return job


@contextlib.asynccontextmanager
async def booted(config: BookieConfig) -> AsyncIterator[Admin]:
    async with running_bookie(config) as server:

        async def resolve(_: str) -> tuple[str, int]:
            return "127.0.0.1", server.port

        pool = BookiePool(resolve, ClientConfig(), LoopClock())
        connector = aiohttp.UnixConnector(socket_path(config.storage.ledger_directories[0]))
        try:
            async with aiohttp.ClientSession(connector=connector) as session:
                yield Admin(server, session, Peer(pool, server.bookie_id))
        finally:
            await pool.close()


async def test_a_rebuild_is_a_job_with_progress_and_result(bookie_config: BookieConfig) -> None:
    async with booted(bookie_config) as admin:
        for entry_id in range(50):
            assert await admin.peer.add(1, entry_id) is Status.OK
        started = await admin.ask("POST", REBUILD, 202)
        assert (started["id"], started["kind"], started["state"]) == (1, "index rebuild", "running")
        conflict = await admin.ask("POST", REBUILD, 409)
        assert conflict["problem"] == "conflict"
        assert admin.server.view.modes.reasons == (ReadOnlyReason.REBUILD,)
        job = await admin.ended(1)
        assert (job["state"], job["error"]) == ("done", None)
        (directory,) = job["result"]["directories"]
        assert (directory["row_count"], directory["limbo_count"], directory["damages"]) == (50, 1, [])
        assert job["ended_ms"] >= job["started_ms"]
        assert [each["id"] for each in (await admin.ask("GET", "jobs"))["jobs"]] == [1]
        assert admin.server.view.modes.mode is BookieMode.WRITABLE
        sizes = await admin.ask("GET", REBUILD)
        assert sizes["directories"][0]["log_bytes"] > 50 * 20
        assert sizes["directories"][0]["ledger_count"] == 1


async def test_cancel(bookie_config: BookieConfig) -> None:
    directory = Path(bookie_config.storage.ledger_directories[0])
    async with booted(bookie_config) as admin:
        assert await admin.peer.add(1, 0) is Status.OK
        job = await admin.ask("POST", REBUILD, 202)
        job = await admin.ask("DELETE", f"jobs/{job['id']}")
        assert (job["state"], job["result"]) == ("cancelled", None)
        assert admin.server.view.modes.mode is BookieMode.WRITABLE
        assert await admin.peer.read(1, 0) == admin.peer.body(1, 0)
        assert await admin.peer.add(1, 1) is Status.OK
        assert not list(directory.rglob("*.rebuilt"))
        for path in ("jobs/99", "jobs/x", f"jobs/{'9' * 30}"):
            assert (await admin.ask("DELETE", path, 404))["problem"] == "not found"


async def test_stop_answers_and_ends_a_rebuild(bookie_config: BookieConfig) -> None:
    async with booted(bookie_config) as admin:
        assert await admin.peer.add(1, 0) is Status.OK
        stop = asyncio.Event()
        serving = asyncio.ensure_future(admin.server.serve_until(stop))
        await asyncio.sleep(0)
        await admin.ask("POST", REBUILD, 202)
        assert (await admin.ask("POST", "stop", 202))["is_stopping"]
        await serving
        (job,) = admin.server.view.jobs.all
    assert job.state.value == "cancelled"
    async with booted(bookie_config) as admin:
        assert admin.server.view.modes.mode is BookieMode.WRITABLE
        assert await admin.peer.read(1, 0) == admin.peer.body(1, 0)
        assert (await admin.ask("POST", "stop", 503))["problem"] == "unavailable"
