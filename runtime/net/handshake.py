"""Authentication and TLS of one connection. Source: wire section 12."""

from __future__ import annotations

from bkctl.runtime.protocol.messages import AuthAnswer, AuthCall, BookieAnswer, HandshakeCall
from bkctl.runtime.protocol.status import Status

_AUTH_DISABLED_PLUGIN = "AuthDisabledPlugin"


class OpenHandshake:
    """Handshake of a bookie without authentication and TLS; always complete."""

    def answer(self, call: HandshakeCall) -> BookieAnswer:
        """Answer a handshake step. Tells a peer that starts authentication that it is disabled (wire 12.1)."""
        if isinstance(call, AuthCall):
            return AuthAnswer(call.txn_id, Status.OK, _AUTH_DISABLED_PLUGIN, b"")
        return Status.BAD_REQUEST  # START_TLS without TLS (wire 12.3)
