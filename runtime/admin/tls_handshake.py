"""TLS of an admin port: the handshake of each connection, and which client certificates may change something."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, cast

from bkctl.runtime.admin.connections import AdminConnection, AdminRoom
from bkctl.runtime.net.tls_failures import client_failure
from bkctl.runtime.net.tls_upgrade import pass_on
from bkctl.runtime.security.alerting_context import route_alert
from bkctl.runtime.security.roles import first_role
from bkctl.storage.errors import BkctlError

_HANDSHAKE_S_MAX: Final = 10.0
_EARLY_BYTES_MAX: Final = 64 * 1024


class AdminTls(NamedTuple):
    """TLS of one port. ``next_context`` is called for each connection, so that new files are used without a restart.

    ``authorized_roles``: of client certificates that may change something without the token; empty: none may, because
    a CA signs certificates for many purposes.
    """

    next_context: Callable[[], Awaitable[ssl.SSLContext]]
    authorized_roles: frozenset[str] = frozenset()


class TlsHandshake(asyncio.Protocol):
    """A connection until its handshake is complete. Then ``connection`` replaces it, also in the room.

    Until then it has no request, so a new connection may replace it.
    """

    def __init__(self, room: AdminRoom, tls: AdminTls, connection: AdminConnection) -> None:
        self.address = ""
        self.is_busy = False
        self._origin = ""
        self._room = room
        self._tls = tls
        self._connection = connection
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self._early = bytearray()
        self._is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The client has connected."""
        transport = cast("asyncio.Transport", transport)  # uvloop has classes of its own
        self._transport = transport
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self.address, self._origin = peer[0], f"admin client {peer[0]}:{peer[1]}"
        if self._room.enter(self) is not None:
            self._room.report(self._origin, f"more than {self._room.connections_max} connections; closing one")
        if not transport.is_closing():
            self._task = asyncio.get_running_loop().create_task(self._shake_hands(transport))

    def data_received(self, data: bytes) -> None:
        """Bytes for the handshake before it begins, or of a request before the task learns that it has ended."""
        self._early += data
        if len(self._early) > _EARLY_BYTES_MAX:
            self.abort()

    def connection_lost(self, exc: BaseException | None) -> None:  # noqa: ARG002
        """The connection ended before its handshake did."""
        self._is_lost = True
        self._room.leave(self)

    def abort(self) -> None:
        """End it now."""
        if self._task is not None:
            self._task.cancel()
        if self._transport is not None:
            self._transport.abort()

    async def _shake_hands(self, transport: asyncio.Transport) -> None:
        try:
            context = await self._tls.next_context()
            secured = await self._start_tls(transport, context)
        except (OSError, BkctlError) as error:  # ssl.SSLError is an OSError
            # The frame that awaited the handshake keeps the error: a cycle with hundreds of KiB of buffers.
            error.__traceback__ = None
            reason = client_failure(error) if isinstance(error, OSError) else str(error)
            self._room.report(self._origin, f"TLS handshake failed: {reason}")
            transport.abort()
            return
        finally:
            self._room.leave(self)
        if self._is_lost or secured is None:
            return
        secured.set_protocol(self._connection)
        self._connection.connection_made(secured)
        if self._early:
            self._connection.data_received(bytes(self._early))

    async def _start_tls(self, transport: asyncio.Transport, context: ssl.SSLContext) -> asyncio.Transport | None:
        """Start the handshake with what has arrived: reading cannot be paused in ``connection_made`` of uvloop."""
        loop = asyncio.get_running_loop()

        async def start() -> asyncio.Transport | None:
            if transport.is_closing():
                return None  # uvloop would wait in vain for the handshake, with its buffers
            route_alert(context, loop, transport.write)
            return await loop.start_tls(
                transport, self, context, server_side=True, ssl_handshake_timeout=_HANDSHAKE_S_MAX
            )

        task = loop.create_task(start())
        # The task's first step pauses reading and schedules the next one, which this follows before bytes are read.
        loop.call_soon(loop.call_soon, self._pass_on, transport)
        try:
            return await task
        finally:
            task.cancel()

    def _pass_on(self, transport: asyncio.Transport) -> None:
        early, self._early = self._early, bytearray()
        pass_on(transport, early)


def certificate_refusal(transport: asyncio.BaseTransport | None, tls: AdminTls) -> str | None:
    """Why the client's certificate does not permit changes, "" if there is none; None if it does.

    The handshake has checked its CA.
    """
    found = None if transport is None else transport.get_extra_info("ssl_object")
    certificate = None if found is None else found.getpeercert(binary_form=True)
    if certificate is None:
        return ""
    role = first_role(certificate)
    if role in tls.authorized_roles:
        return None
    shown = "has no role" if role is None else f"has the role {role[:64]!a}"
    allowed = ", which is not set" if not tls.authorized_roles else ""
    return (
        f"the certificate of this client {shown}, and changes need one of the server's authorized_roles "
        f"(adminAuthorizedRoles){allowed}, or its token (adminTokenFile)"
    )
