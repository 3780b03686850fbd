"""A TLS context that sends the alert of a failed handshake: event loops close the connection without it.

Without it, a client whose certificate has expired sees only that the bookie closed the connection.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any


def route_alert(context: ssl.SSLContext, loop: asyncio.AbstractEventLoop, send: Callable[[bytes], None]) -> None:
    """Send the alert of the handshake that starts next with ``send``, below TLS. Call it directly before start_tls."""
    if isinstance(context, AlertingContext):
        # The TLS protocol takes its state from the context: asyncio's in start_tls, uvloop's in its first callback.
        route = _AlertRoute(send)
        context.announce(route)
        loop.call_soon(context.announce, route)


class _AlertRoute:
    """Where the alert of one connection goes. ``send`` writes to the connection, below TLS."""

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self.send = send
        self.is_taken = False


class _AlertingObject(ssl.SSLObject):
    """TLS state of one connection."""

    outgoing: ssl.MemoryBIO
    route: _AlertRoute | None

    def do_handshake(self) -> None:
        """Go on with the handshake; if it fails, send OpenSSL's alert first."""
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError:
            if self.route is not None and (alert := self.outgoing.read()):
                self.route.send(alert)
            raise


class AlertingContext(ssl.SSLContext):
    """The context of a bookie."""

    sslobject_class = _AlertingObject
    _next: _AlertRoute | None = None

    def announce(self, route: _AlertRoute) -> None:
        """Name the connection that starts TLS next. Call it directly before that; no effect if it has started."""
        if not route.is_taken:
            self._next = route

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *args: Any, **keywords: Any) -> ssl.SSLObject:
        """See ``ssl.SSLContext.wrap_bio``."""
        wrapped = super().wrap_bio(incoming, outgoing, *args, **keywords)
        assert isinstance(wrapped, _AlertingObject)
        wrapped.outgoing, wrapped.route, self._next = outgoing, self._next, None
        if wrapped.route is not None:
            wrapped.route.is_taken = True
        return wrapped
