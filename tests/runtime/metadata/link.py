"""A way through TCP to a ZooKeeper server that can be cut, frozen and made deaf, as the link of the model can."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Self

LOOPBACK = "127.0.0.1"
_CHUNK_BYTES = 65536


class TcpLink:
    """A proxy on the running loop; obtain it from ``open``."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._passing = asyncio.Event()
        self._passing.set()
        self._is_down = self._is_deaf = self._breaks_after_first_answer = self._ignores_next = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._ways: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @classmethod
    async def open(cls, target_port: int) -> Self:
        link = cls(target_port)
        link._server = await asyncio.start_server(link._serve, LOOPBACK, 0)
        return link

    @property
    def address(self) -> str:
        assert self._server is not None
        return f"{LOOPBACK}:{self._server.sockets[0].getsockname()[1]}"

    def cut(self) -> None:
        """Connections break; new ones are closed at once until ``restore``."""
        self._is_down = True
        self.break_connections()

    def break_connections(self, *, ignores_next: bool = False) -> None:
        """Connections break. ``ignores_next``: the next one is accepted and never answered, later ones are."""
        self._ignores_next = ignores_next
        for writer in list(self._writers):
            writer.transport.abort()

    def freeze(self) -> None:
        """Nothing passes either way, nothing is lost, until ``restore``."""
        self._passing.clear()

    def lose_answers(self) -> None:
        """Requests arrive, what comes back is lost. Cut the link before it is restored."""
        self._is_deaf = True

    def break_after_first_answer(self) -> None:
        """Every connection ends once one answer has come back on it: a server that dies while somebody logs in."""
        self._breaks_after_first_answer = True
        self.break_connections()

    def restore(self) -> None:
        """All is well again."""
        self._is_down = self._is_deaf = self._breaks_after_first_answer = False
        self._passing.set()

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        self._passing.set()
        while self._ways:
            await asyncio.wait(self._ways)

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        with contextlib.ExitStack() as at_end, contextlib.suppress(OSError):
            way = asyncio.current_task()
            assert way is not None
            self._ways.add(way)
            at_end.callback(self._ways.discard, way)
            self._keep(to_client, at_end)
            if self._is_down:
                return
            if self._ignores_next:
                self._ignores_next = False
                await client.read()
                return
            server, to_server = await asyncio.open_connection(LOOPBACK, self._target_port)
            self._keep(to_server, at_end)
            pumps = {
                asyncio.create_task(self._pump(client, to_server, is_answers=False)),
                asyncio.create_task(self._pump(server, to_client, is_answers=True)),
            }
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for writer in (to_client, to_server):
                writer.transport.abort()
            await asyncio.wait(pumps)

    def _keep(self, writer: asyncio.StreamWriter, at_end: contextlib.ExitStack) -> None:
        self._writers.add(writer)
        at_end.callback(self._writers.discard, writer)
        at_end.callback(writer.transport.abort)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_answers: bool) -> None:
        with contextlib.suppress(OSError):
            while chunk := await reader.read(_CHUNK_BYTES):
                await self._passing.wait()
                if not (is_answers and self._is_deaf):
                    writer.write(chunk)
                    await writer.drain()
                if is_answers and self._breaks_after_first_answer:
                    await asyncio.sleep(0.05)  # what was written is still to arrive
                    return
