"""A relay between clients and one bookie that keeps every byte; the bookie's registration is made to name it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Self

import msgspec
from kazoo.client import KazooClient

from bkctl.runtime.metadata.bookies.service_info import decode_service_info, encode_service_info
from bkctl.runtime.metadata.paths import Paths
from tests.processes import LOOPBACK, free_port

_READ_BYTES = 1 << 16


class TrafficRelay:
    """Use as a context manager; on a thread of its own, so that a test may wait for a command."""

    def __init__(self, bookie_id: str) -> None:
        self._bookie_id = bookie_id
        self._target = int(bookie_id.rpartition(":")[2])
        self._directions: list[bytearray] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self.port = free_port()

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def take_over(self, zookeeper: KazooClient, root: str) -> None:
        """From now on clients that look the bookie up connect to this relay."""
        path = f"{Paths(root).available}/{self._bookie_id}"
        info = decode_service_info(self._bookie_id, zookeeper.get(path)[0])
        endpoints = tuple(
            msgspec.structs.replace(each, port=self.port) if each.port == self._target else each
            for each in info.endpoints
        )
        assert endpoints != info.endpoints
        zookeeper.set(path, encode_service_info(msgspec.structs.replace(info, endpoints=endpoints)))

    @property
    def byte_count(self) -> int:
        """Bytes that were passed on so far, in both directions."""
        return sum(map(len, self._directions))

    def has_seen(self, marker: bytes) -> bool:
        """Whether any connection has carried these bytes in one direction."""
        return any(marker in direction for direction in self._directions)

    def cut(self) -> None:
        """End all connections; new ones are accepted."""
        asyncio.run_coroutine_threadsafe(self._cut(), self._loop).result()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, LOOPBACK, self.port)

    async def _close(self) -> None:
        self._server.close()
        await self._cut()

    async def _cut(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError), contextlib.closing(writer):
            bookie_reader, bookie_writer = await asyncio.open_connection(LOOPBACK, self._target)
            with contextlib.closing(bookie_writer):
                await asyncio.gather(self._pass_on(reader, bookie_writer), self._pass_on(bookie_reader, writer))

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen = bytearray()
        self._directions.append(seen)
        while part := await reader.read(_READ_BYTES):
            seen += part
            writer.write(part)
            await writer.drain()
        writer.close()
