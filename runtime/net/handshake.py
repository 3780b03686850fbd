"""Authentication and TLS of one connection. Source: wire section 12."""

from __future__ import annotations

from runtime.protocol.messages import AuthAnswer, AuthCall, BookieAnswer, HandshakeCall
from runtime.protocol.status import Status

_AUTH_DISABLED_PLUGIN = "AuthDisabledPlugin"


class OpenHandshake:
    """The handshake of a bookie without authentication and TLS: complete from the beginning."""

    def answer(self, call: HandshakeCall) -> BookieAnswer:
        """Answer a step of the peer. One that wants to authenticate is told that it need not (wire 12.1)."""
        if isinstance(call, AuthCall):
            return AuthAnswer(call.txn_id, Status.OK, _AUTH_DISABLED_PLUGIN, b"")
        return Status.BAD_REQUEST  # START_TLS without TLS (wire 12.3)
