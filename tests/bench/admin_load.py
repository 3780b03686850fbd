"""Child process of the benchmark: connections that do nothing, a scrape every second, and garbage collection.

``python -m tests.bench.admin_load ADMIN_PORT SOCKET CONNECTIONS`` obeys the lines of its stdin. ``begin`` opens the
connections, answers with an empty line, then starts one garbage collection and scrapes every second. ``end`` stops that
and answers with a ``Load`` as JSON.
"""

from __future__ import annotations

import asyncio
import sys
import time

import aiohttp
import msgspec
import uvloop

SCRAPE_INTERVAL_S = 1.0
REOPEN_S = 1.0


class Load(msgspec.Struct):
    """What the bookie had to do besides adds."""

    scrape_ms: list[float] = []
    scrape_bytes: int = 0
    connections: int = 0
    """Open ones at the end."""
    reopened: int = 0
    """Idle connections that the bookie closed; each was opened again a second later."""
    collections: int = 0


class IdleConnections:
    """So many connections that send nothing."""

    def __init__(self, port: int, count: int) -> None:
        self._port = port
        self._count = count
        self._open: set[asyncio.BaseTransport] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.reopened = 0

    async def open(self) -> None:
        """Open all of them."""
        for _ in range(self._count):
            await self._open_one()

    def close(self) -> int:
        """Close them and return how many were open."""
        transports, self._open = self._open, set()
        for transport in transports:
            transport.abort()  # type: ignore[attr-defined]
        for task in self._tasks:
            task.cancel()
        return len(transports)

    async def _open_one(self, after_s: float = 0.0) -> None:
        await asyncio.sleep(after_s)
        await asyncio.get_running_loop().create_connection(lambda: _Idle(self), "127.0.0.1", self._port)

    def opened(self, transport: asyncio.BaseTransport) -> None:
        """A connection is open."""
        self._open.add(transport)

    def lost(self, transport: asyncio.BaseTransport) -> None:
        """A connection was closed; open another one if the bookie closed it."""
        if transport in self._open:
            self._open.remove(transport)
            self.reopened += 1
            task = asyncio.get_running_loop().create_task(self._open_one(REOPEN_S))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)


class _Idle(asyncio.Protocol):
    def __init__(self, connections: IdleConnections) -> None:
        self._connections = connections

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._connections.opened(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.lost(self._transport)


async def _scrape(session: aiohttp.ClientSession, url: str, load: Load) -> None:
    while True:
        begin = time.perf_counter()
        async with session.get(url) as answer:
            answer.raise_for_status()
            load.scrape_bytes = len(await answer.read())
        seconds = time.perf_counter() - begin
        load.scrape_ms.append(seconds * 1000)
        await asyncio.sleep(SCRAPE_INTERVAL_S - seconds)


async def _collect(path: str, load: Load) -> None:
    async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(path)) as session:
        async with session.put("http://bookie/api/v1/bookie/gc") as answer:
            answer.raise_for_status()
        load.collections += 1


async def _settle(port: int) -> None:
    """Wait until the bookie has accepted or closed all connections; that is not measured."""
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/heartbeat") as answer:
        answer.raise_for_status()


async def _run(port: int, path: str, count: int) -> None:
    loop = asyncio.get_running_loop()
    while await loop.run_in_executor(None, sys.stdin.readline):
        load, connections = Load(), IdleConnections(port, count)
        await connections.open()
        await _settle(port)
        _say("")
        async with aiohttp.ClientSession() as session:
            tasks = [
                asyncio.ensure_future(_scrape(session, f"http://127.0.0.1:{port}/metrics", load)),
                asyncio.ensure_future(_collect(path, load)),
            ]
            ended = asyncio.ensure_future(loop.run_in_executor(None, sys.stdin.readline))
            await asyncio.wait([ended, tasks[0]], return_when=asyncio.FIRST_COMPLETED)
            await tasks[1]
            tasks[0].cancel()
            await asyncio.wait(tasks)
            if not tasks[0].cancelled():
                tasks[0].result()
        load.connections, load.reopened = connections.close(), connections.reopened
        await _settle(port)
        _say(msgspec.json.encode(load).decode())


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    uvloop.run(_run(int(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
