"""A network in memory: the Listen port, and clients that exchange bytes with what listens."""

from __future__ import annotations

import asyncio
import collections
import errno
import os
from collections.abc import Callable
from typing import Any

from bkctl.runtime.protocol.bookkeeper_wire_pb2 import Request, Response

_LENGTH_BYTES = 4
_FIRST_PORT = 40_000


class MemoryNetwork:
    """The open ports of one machine."""

    def __init__(self) -> None:
        self.ports: dict[int, MemoryPort] = {}

    async def listen(self, accept: Callable[[], asyncio.BaseProtocol], host: str | None, port: int) -> MemoryPort:
        number = port or next(free for free in range(_FIRST_PORT, 65_536) if free not in self.ports)
        if number in self.ports:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        opened = self.ports[number] = MemoryPort(self, number, accept)
        return opened

    async def listen_local(self, accept: Callable[[], asyncio.BaseProtocol], path: str) -> MemoryPort:
        """A unix socket that no client of this network connects to."""
        return MemoryPort(self, 0, accept)

    def connect(self, port: int) -> WireClient:
        """A client of this port; ConnectionRefusedError."""
        if port not in self.ports:
            raise ConnectionRefusedError(f"nothing listens on port {port}")
        client = WireClient()
        protocol = self.ports[port].accept()
        assert isinstance(protocol, asyncio.BufferedProtocol)
        client.transport = MemoryTransport(protocol, client)
        protocol.connection_made(client.transport)
        return client


class MemoryPort:
    """A port that accepts connections."""

    def __init__(self, network: MemoryNetwork, port: int, accept: Callable[[], asyncio.BaseProtocol]) -> None:
        self._network = network
        self.port = port
        self.accept = accept

    def close(self) -> None:
        if self._network.ports.get(self.port) is self:
            del self._network.ports[self.port]


class MemoryTransport(asyncio.Transport):
    """The server's end of a connection. What is written arrives at once, so that there is never a write buffer."""

    def __init__(self, protocol: asyncio.BufferedProtocol, client: WireClient) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self._protocol = protocol
        self._client = client
        self._incoming = bytearray()
        self._is_paused = False
        self._is_closing = False
        self._loop = asyncio.get_running_loop()

    def receive(self, data: bytes) -> None:
        """Bytes from the client."""
        self._incoming += data
        self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        while self._incoming and not (self._is_paused or self._is_closing):
            buffer: Any = self._protocol.get_buffer(-1)
            count = min(len(buffer), len(self._incoming))
            buffer[:count] = self._incoming[:count]
            del self._incoming[:count]
            self._protocol.buffer_updated(count)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._is_closing:
            self._client.take(bytes(data))

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        self._is_paused = False
        self._loop.call_soon(self._deliver)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """The buffer is always empty."""

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._loop.call_soon(self._protocol.connection_lost, None)
            self._client.end()

    def abort(self) -> None:
        self.close()


class WireClient:
    """Sends frames of protobuf messages (wire v3) and waits for their answers by transaction id."""

    def __init__(self) -> None:
        self.transport: MemoryTransport
        self._received = bytearray()
        self._waiting: dict[int, asyncio.Future[Response]] = {}
        self._txn_ids = iter(range(1, 1 << 62))
        self.frames: collections.deque[Response] = collections.deque()
        self.is_closed = False

    def ask(self, request: Request) -> asyncio.Future[Response]:
        """Send a request; the future fails with ConnectionError when the answer cannot come any more."""
        txn_id = request.header.txnId = next(self._txn_ids)
        frame = request.SerializeToString()
        answer = self._waiting[txn_id] = asyncio.get_running_loop().create_future()
        self.transport.receive(len(frame).to_bytes(_LENGTH_BYTES, "big") + frame)
        return answer

    def take(self, data: bytes) -> None:
        """Bytes from the server."""
        self._received += data
        while len(self._received) >= (end := _LENGTH_BYTES + int.from_bytes(self._received[:_LENGTH_BYTES], "big")):
            response = Response.FromString(bytes(self._received[_LENGTH_BYTES:end]))
            del self._received[:end]
            self._waiting.pop(response.header.txnId).set_result(response)

    def end(self) -> None:
        """The connection is closed."""
        self.is_closed = True
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(ConnectionError("closed"))
        self._waiting.clear()
