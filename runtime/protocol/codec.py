"""The codec of a connection to a bookie: payloads to calls, calls and answers to frames. Source: wire section 2.

A connection starts in v3. The first payload that is not v3 determines the protocol of all following payloads. Binary
packets (v2) may follow a START_TLS in v3, but v3 never follows them.
"""

from __future__ import annotations

from collections.abc import Sequence

from bkctl.runtime.errors import ProtocolError
from bkctl.runtime.protocol.messages import (
    AuthAnswer,
    AuthCall,
    BookieAnswer,
    Call,
    HandshakeCall,
    Junk,
    ReadAnswer,
    ReadRun,
    RefusedCall,
    RequestCall,
)
from bkctl.runtime.protocol.status import Status
from bkctl.runtime.protocol.v2_bookie import (
    decode_packet_before_login,
    decode_packets,
    encode_binary_bodies,
    encode_packets,
    is_binary,
    is_binary_call,
    names_operation,
)
from bkctl.runtime.protocol.v3_bookie import V3BookieCodec, decode_before_login
from bkctl.runtime.protocol.v3_handshake import NO_PLUGIN
from bkctl.runtime.protocol.v3_reads import READ_OVERHEAD_BYTES, encode_read_answers


class BookieCodec:
    """Codec of one connection's requests and answers."""

    def __init__(self, frame_bytes_max: int) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._v3 = V3BookieCodec(frame_bytes_max)
        self._is_binary = False

    def decode(self, payloads: Sequence[bytes]) -> list[Call]:
        """Decode the payloads of one socket read. If the last call is Junk, close the connection."""
        if self._is_binary:
            return decode_packets(payloads, self._frame_bytes_max)
        calls, v3_count = self._v3.decode(payloads)
        if v3_count < len(payloads):
            self._is_binary = True
            calls += decode_packets(payloads[v3_count:], self._frame_bytes_max)
        return calls

    def decode_before_login(self, payload: bytes) -> HandshakeCall | RefusedCall | Junk:
        """Decode a payload of a client that must log in or start TLS first; after Junk, close the connection."""
        self._is_binary = self._is_binary or is_binary(payload)
        if not self._is_binary:
            try:
                return decode_before_login(payload)
            except ProtocolError as error:
                if not names_operation(payload):
                    return Junk(str(error))
                self._is_binary = True
        return decode_packet_before_login(payload)

    def encode(self, call: RequestCall, answer: BookieAnswer) -> bytes:
        """Encode the frames of an answer, in the protocol of the request."""
        if is_binary_call(call):
            return encode_packets(call, answer, self._frame_bytes_max)
        return self._v3.encode(call, answer)

    def encode_bodies(self, run: ReadRun, bodies: Sequence[bytes], lac: int | None) -> bytes:
        """Encode the frames of positive answers to reads."""
        if max(map(len, bodies)) > self._frame_bytes_max - READ_OVERHEAD_BYTES:
            answers = (
                ReadAnswer(txn_id, Status.OK, body, lac) for txn_id, body in zip(run.txn_ids, bodies, strict=True)
            )
            return b"".join(map(self.encode, run.singly(), answers))
        return encode_read_answers(run, bodies, lac) if run.wants_lac else encode_binary_bodies(run, bodies)


def handshake_answer(call: HandshakeCall) -> BookieAnswer:
    """The answer of a bookie without authentication and TLS. Source: wire section 12."""
    if isinstance(call, AuthCall):
        return AuthAnswer(call.txn_id, Status.OK, NO_PLUGIN, b"")
    return Status.BAD_REQUEST  # START_TLS without TLS (wire 12.3)
