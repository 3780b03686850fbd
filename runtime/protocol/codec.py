"""The codec of a connection to a bookie: payloads to calls, calls and answers to frames. Source: wire section 2.

A connection begins in v3. The first payload that is not v3 decides how it goes on, for all payloads that follow: binary
packets (v2) may follow a START_TLS in v3, and v3 never follows them.
"""

from __future__ import annotations

from collections.abc import Sequence

from runtime.protocol.messages import BookieAnswer, Call, Junk, RequestCall
from runtime.protocol.v3_bookie import V3BookieCodec


class BookieCodec:
    """One connection's requests and answers."""

    def __init__(self, frame_bytes_max: int) -> None:
        self._v3 = V3BookieCodec(frame_bytes_max)

    def decode(self, payloads: Sequence[bytes]) -> list[Call]:
        """Read the requests of one read; a last call that is Junk ends the connection."""
        calls, v3_count = self._v3.decode(payloads)
        if v3_count < len(payloads):
            calls.append(_decode_binary(payloads[v3_count]))
        return calls

    def encode(self, call: RequestCall, answer: BookieAnswer) -> bytes:
        """The frames of an answer, in the form of the request."""
        return self._v3.encode(call, answer)


def _decode_binary(payload: bytes) -> Call:
    return Junk(f"the peer uses wire protocol v{payload[0]}, which is not supported (Java: useV2WireProtocol=false)")
