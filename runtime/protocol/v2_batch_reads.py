"""Batch reads in wire protocol v2, client side: requests to frames, payloads to answers. Source: wire section 13.

A batch read asks for consecutive entries of a ledger. The answer is the status of the first one, and if that is OK, the
bodies of as many as the limits allow, up to the first one that is missing. Bookies have it since 4.17.0.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from bkctl.runtime.errors import ProtocolError
from bkctl.runtime.protocol.framing import LENGTH
from bkctl.runtime.protocol.status import Status

_HEADER: Final = 2 << 24 | 7 << 16
"""Version 2, opcode BATCH_READ_ENTRY, no flags."""

_REQUEST: Final = struct.Struct(">IqqqiQ")
_ANSWER: Final = struct.Struct(">Iiqqq")
_SIZE: Final = struct.Struct(">I")
_STATUSES: Final = {
    0: Status.OK,
    1: Status.NO_SUCH_LEDGER,
    2: Status.NO_SUCH_ENTRY,
    100: Status.BAD_REQUEST,
    101: Status.IO_ERROR,
    102: Status.AUTHENTICATION_REQUIRED,  # a read has no key that could be wrong
    103: Status.BAD_VERSION,
    104: Status.FENCED,
    105: Status.READ_ONLY,
    106: Status.TOO_MANY_REQUESTS,
    107: Status.UNKNOWN_LEDGER_STATE,
}


class BatchReadCall(msgspec.Struct, frozen=True, gc=False):
    """Read up to ``count_max`` entries. Ids must not be negative; ``count_max`` and ``bytes_max`` must be positive."""

    request_id: int
    ledger_id: int
    first_entry_id: int
    count_max: int
    bytes_max: int
    """Maximum size of the answer, unless the first entry alone has more."""


class BatchReadAnswer(msgspec.Struct, frozen=True, gc=False):
    """``bodies`` has at least one if the status is OK, and otherwise none."""

    request_id: int
    ledger_id: int
    first_entry_id: int
    status: Status
    bodies: list[bytes]

    def fits(self, call: BatchReadCall) -> bool:
        """Whether this can be the answer to a call with its request id."""
        ids = (self.ledger_id, self.first_entry_id)
        return ids == (call.ledger_id, call.first_entry_id) and len(self.bodies) <= call.count_max


def encode_batch_read(call: BatchReadCall) -> bytes:
    """Encode the frame of a batch read without a fence."""
    return LENGTH.pack(_REQUEST.size) + _REQUEST.pack(
        _HEADER, call.ledger_id, call.first_entry_id, call.request_id, call.count_max, call.bytes_max
    )


def decode_batch_read_answer(payload: bytes) -> BatchReadAnswer:
    """Decode an answer; ProtocolError if it is not exactly one to a batch read."""
    if len(payload) < _ANSWER.size:
        raise ProtocolError(f"the answer to a batch read has only {len(payload)} bytes")
    header, code, ledger_id, first_entry_id, request_id = _ANSWER.unpack_from(payload)
    status = _STATUSES.get(code)
    if header != _HEADER or status is None:
        raise ProtocolError(f"the header {header:08x} with code {code} is not an answer to a batch read")
    bodies: list[bytes] = []
    offset, end = _ANSWER.size, len(payload)
    while offset < end:
        start = offset + _SIZE.size
        offset = start + _SIZE.unpack_from(payload, offset)[0] if start <= end else end + 1
        bodies.append(payload[start:offset])
    if offset != end or bool(bodies) != (status is Status.OK):
        raise ProtocolError("the answer to a batch read does not consist of whole entries")
    return BatchReadAnswer(request_id, ledger_id, first_entry_id, status, bodies)
