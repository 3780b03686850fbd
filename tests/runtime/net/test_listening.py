from __future__ import annotations

import asyncio
import socket

from runtime.net.listening import listen_tcp


class Noted(asyncio.BufferedProtocol):
    """A connection whose transport a test looks at."""

    def __init__(self, made: asyncio.Future[asyncio.BaseTransport]) -> None:
        self._made = made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._made.set_result(transport)


async def test_accepted_connections_are_kept_alive() -> None:
    """The kernel notices a client whose machine is gone."""
    made: asyncio.Future[asyncio.BaseTransport] = asyncio.get_running_loop().create_future()
    port = await listen_tcp(lambda: Noted(made), "127.0.0.1", 0)
    _, writer = await asyncio.open_connection("127.0.0.1", port.port)
    transport = await made
    assert transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    transport.close()
    writer.close()
    port.close()
    port.close()
