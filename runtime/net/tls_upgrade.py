"""What both servers need when a connection starts TLS after it has been read from."""

from __future__ import annotations

import asyncio
from typing import cast


def pass_on(transport: asyncio.Transport, received: bytes | bytearray) -> None:
    """Give bytes that were read before to the protocol of TLS, which has just replaced that of the connection."""
    protocol = cast("asyncio.BufferedProtocol", transport.get_protocol())
    rest = memoryview(bytes(received))
    while rest and not transport.is_closing():
        space = memoryview(protocol.get_buffer(len(rest)))
        count = min(len(space), len(rest))
        space[:count] = rest[:count]
        rest = rest[count:]
        protocol.buffer_updated(count)
