"""TCP ports: the real adapter of the Listen port."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

_BACKLOG = 1024


class TcpPort:
    """An open TCP port."""

    def __init__(self, server: asyncio.Server) -> None:
        self._server = server
        self.port = int(server.sockets[0].getsockname()[1])

    def close(self) -> None:
        """Accept no more connections; those that are open stay. Safe to repeat."""
        self._server.close()


async def listen_tcp(accept: Callable[[], asyncio.BufferedProtocol], host: str | None, port: int) -> TcpPort:
    """Listen on ``host`` (None: all addresses) and ``port`` (0: a free one); OSError."""
    server = await asyncio.get_running_loop().create_server(accept, host, port, backlog=_BACKLOG)
    for listening in server.sockets:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # accepted sockets inherit it
    return TcpPort(server)
