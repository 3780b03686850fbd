"""A TLS context that sends the alert of a failed handshake: event loops close the connection without it.

Without it, a client whose certificate has expired sees only that the bookie closed the connection.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Any


class _AlertingObject(ssl.SSLObject):
    """TLS state of one connection."""

    outgoing: ssl.MemoryBIO
    send: Callable[[bytes], None] | None

    def do_handshake(self) -> None:
        """Go on with the handshake; if it fails, send OpenSSL's alert first."""
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError:
            if self.send is not None and (alert := self.outgoing.read()):
                self.send(alert)
            raise


class AlertingContext(ssl.SSLContext):
    """The context of a bookie. ``send_next``: writes to the next connection that starts TLS, below TLS."""

    sslobject_class = _AlertingObject
    send_next: Callable[[bytes], None] | None = None

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *args: Any, **keywords: Any) -> ssl.SSLObject:
        """See ``ssl.SSLContext.wrap_bio``."""
        wrapped = super().wrap_bio(incoming, outgoing, *args, **keywords)
        assert isinstance(wrapped, _AlertingObject)
        wrapped.outgoing, wrapped.send, self.send_next = outgoing, self.send_next, None
        return wrapped
