"""START_TLS and AUTH in v3, client side: requests to frames, payloads to answers. Source: wire section 12. Pure."""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from bkctl.runtime.protocol.bookkeeper_wire_pb2 import AUTH, START_TLS, VERSION_THREE, OperationType, Request
from bkctl.runtime.protocol.framing import encode_frame
from bkctl.runtime.protocol.messages import AuthAnswer
from bkctl.runtime.protocol.status import STATUS_OF_CODE, Status
from bkctl.runtime.protocol.v3 import parse_response

NO_PLUGIN: Final = "AuthDisabledPlugin"
"""Name of the plugin in the answer of a bookie that requires no login (wire 12.1)."""

_TXN_ID: Final = 0
"""Of all messages here: one is in flight at a time, and the requests that follow have higher ids."""


class StartTlsAnswer(msgspec.Struct, frozen=True, gc=False):
    """OK: the next bytes are the TLS handshake."""

    status: Status


HandshakeAnswer: TypeAlias = StartTlsAnswer | AuthAnswer


def encode_start_tls_request() -> bytes:
    """Encode the request to switch the connection to TLS."""
    request = _request(START_TLS)
    request.startTLSRequest.SetInParent()  # required before a login (wire 12.2)
    return encode_frame(request.SerializeToString())


def encode_auth_request(plugin_name: str, token: bytes) -> bytes:
    """Encode one step of a login."""
    request = _request(AUTH)
    request.authRequest.authPluginName = plugin_name
    request.authRequest.payload = token
    return encode_frame(request.SerializeToString())


def decode_handshake_answer(payload: bytes) -> HandshakeAnswer | None:
    """Decode one answer; None for an answer to another operation. ProtocolError for bytes that are no answer."""
    message = parse_response(payload)
    status = STATUS_OF_CODE[message.status]
    if message.header.operation == START_TLS:
        return StartTlsAnswer(status)
    if message.header.operation == AUTH:
        step = message.authResponse
        return AuthAnswer(message.header.txnId, status, step.authPluginName, step.payload)
    return None


def _request(operation: OperationType) -> Request:
    request = Request()
    request.header.version = VERSION_THREE
    request.header.operation = operation
    request.header.txnId = _TXN_ID
    return request
