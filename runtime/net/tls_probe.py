"""What a bookie shows in a TLS handshake, for ``bkctl tls check``: the usual handshake, and no request."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from bkctl.runtime.net.client_handshake import ClientHandshake, ClientSecurity
from bkctl.runtime.protocol.framing import FrameSplitter


class ShownTls(NamedTuple):
    """A bookie's side of a connection. ``certificate``: DER; ``protocol``: TLSv1.3, for example."""

    certificate: bytes
    protocol: str
    cipher: str


async def look(host: str, port: int, security: ClientSecurity, timeout_s: float) -> ShownTls:
    """Connect, start TLS and disconnect; AuthenticationError, ProtocolError, OSError, TimeoutError."""
    handshake = ClientHandshake(FrameSplitter(), security)
    async with asyncio.timeout(timeout_s):
        transport, _ = await asyncio.get_running_loop().create_connection(lambda: handshake, host, port)
        try:
            transport = await handshake.run(transport, host)
            shown = transport.get_extra_info("ssl_object")
            return ShownTls(shown.getpeercert(binary_form=True), shown.version(), shown.cipher()[0])
        finally:
            transport.close()  # sends what the handshake still has to send
