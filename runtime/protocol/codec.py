"""The codec of a connection to a bookie: payloads to calls, calls and answers to frames. Source: wire section 2.

A connection starts in v3. The first payload that is not v3 determines the protocol of all following payloads. Binary
packets (v2) may follow a START_TLS in v3, but v3 never follows them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from bkctl.runtime.errors import ProtocolError
from bkctl.runtime.protocol.messages import (
    AuthAnswer,
    AuthCall,
    BookieAnswer,
    Call,
    HandshakeCall,
    Junk,
    RefusedCall,
    RequestCall,
)
from bkctl.runtime.protocol.status import Status
from bkctl.runtime.protocol.v3_bookie import FIRST_BYTE_MIN, V3BookieCodec, decode_before_login
from bkctl.runtime.protocol.v3_handshake import NO_PLUGIN

_BATCH_READ: Final = b"\x02\x07"
"""Version and opcode."""


class BookieCodec:
    """Codec of one connection's requests and answers."""

    def __init__(self, frame_bytes_max: int) -> None:
        self._v3 = V3BookieCodec(frame_bytes_max)

    def decode(self, payloads: Sequence[bytes]) -> list[Call]:
        """Decode the payloads of one socket read. If the last call is Junk, close the connection."""
        calls, v3_count = self._v3.decode(payloads)
        if v3_count < len(payloads):
            calls.append(_decode_binary(payloads[v3_count]))
        return calls

    def decode_before_login(self, payload: bytes) -> HandshakeCall | RefusedCall | Junk:
        """Decode a payload of a client that must log in or start TLS first; after Junk, close the connection."""
        if payload[0] < FIRST_BYTE_MIN:
            return _decode_binary(payload)
        try:
            return decode_before_login(payload)
        except ProtocolError as error:
            return Junk(str(error))

    def encode(self, call: RequestCall, answer: BookieAnswer) -> bytes:
        """Encode the frames of an answer, in the protocol of the request."""
        return self._v3.encode(call, answer)


def handshake_answer(call: HandshakeCall) -> BookieAnswer:
    """The answer of a bookie without authentication and TLS. Source: wire section 12."""
    if isinstance(call, AuthCall):
        return AuthAnswer(call.txn_id, Status.OK, NO_PLUGIN, b"")
    return Status.BAD_REQUEST  # START_TLS without TLS (wire 12.3)


def _decode_binary(payload: bytes) -> Junk:
    if payload.startswith(_BATCH_READ):
        # bkctl's own client tries this once for each bookie, then it reads singly.
        return Junk("the peer sent a batch read, which is not supported", is_logged=False)
    return Junk(f"the peer uses wire protocol v{payload[0]}, which is not supported (Java: useV2WireProtocol=false)")
