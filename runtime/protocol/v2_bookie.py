"""Wire protocol v2, bookie side: binary packets to calls, answers to packets. Source: wire sections 3 and 13.

A packet has no transaction id. Its call has a negative one instead, which stands for the version that the answer must
repeat. Transaction ids of v3 are never negative, so the codec of an answer follows from its call.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Sequence
from itertools import chain, repeat, takewhile
from typing import Final, cast

from google.protobuf.message import DecodeError

from bkctl.runtime.protocol.bookkeeper_wire_pb2 import AuthMessage
from bkctl.runtime.protocol.framing import LENGTH
from bkctl.runtime.protocol.messages import (
    AddRun,
    AuthAnswer,
    AuthCall,
    BatchReadRequest,
    BookieAnswer,
    Call,
    EntriesAnswer,
    Junk,
    ReadAnswer,
    ReadCall,
    ReadRun,
    RefusedCall,
    RequestCall,
    read_runs,
)
from bkctl.runtime.protocol.status import Status

_ADD: Final = 1
_READ: Final = 2
_AUTH: Final = 3
_BATCH_READ: Final = 7

_OPERATIONS: Final = frozenset({_ADD, _READ, _AUTH, _BATCH_READ})

_FENCE: Final = 1
_RECOVERY_ADD: Final = 2
_HIGH_PRIORITY: Final = 4

_VERSION_MAX: Final = 2
_COUNT_MAX: Final = 2**31 - 1

_HEADER: Final = struct.Struct(">I")
_KEY_BYTES: Final = 20
_ADD_HEAD_BYTES: Final = _HEADER.size + _KEY_BYTES
_IDS: Final = struct.Struct(">qq")
_ENTRY_ID: Final = struct.Struct(">q")
_ENTRY_ID_AT: Final = _ADD_HEAD_BYTES + 8
_ADD_BYTES_MIN: Final = _ENTRY_ID_AT + _ENTRY_ID.size
_BODY_OF: Final = operator.itemgetter(slice(_ADD_HEAD_BYTES, None))
_READ_REQUEST: Final = struct.Struct(">Iqq")
_BATCH_READ_REQUEST: Final = struct.Struct(">Iqqqiq")
_ANSWER: Final = struct.Struct(">IIIqq")
"""With the length word."""
_ANSWER_BYTES: Final = _ANSWER.size - LENGTH.size
_REQUEST_ID: Final = struct.Struct(">q")

_CODES: Final = {
    Status.OK: 0,
    Status.NO_SUCH_LEDGER: 1,
    Status.NO_SUCH_ENTRY: 2,
    Status.BAD_REQUEST: 100,
    Status.IO_ERROR: 101,
    Status.UNAUTHORIZED: 102,
    Status.BAD_VERSION: 103,
    Status.FENCED: 104,
    Status.READ_ONLY: 105,
    Status.TOO_MANY_REQUESTS: 106,
    # Java bookies have a code for it, at which every Java client closes its connection (wire section 3.2).
    Status.UNKNOWN_LEDGER_STATE: 101,
}


def is_binary(payload: bytes) -> bool:
    """Whether the payload cannot be a v3 request: a protobuf message begins with a field number above 0."""
    return payload[0] < 1 << 3


def names_operation(payload: bytes) -> bool:
    """Whether a payload that is no v3 request is a packet of an unknown version, which is answered (wire 3.5)."""
    return len(payload) > 1 and payload[1] in _OPERATIONS


def is_binary_call(call: RequestCall) -> bool:
    """Whether the call came in a binary packet, so that its answer is one too."""
    return (call.txn_ids[0] if isinstance(call, AddRun) else call.txn_id) < 0


def decode_packets(payloads: Sequence[bytes], frame_bytes_max: int) -> list[Call]:
    """Calls of binary packets; consecutive adds to one ledger become one run. If the last call is Junk, close.

    Consecutive reads are decoded together.
    """
    calls: list[Call] = []
    index = 0
    while index < len(payloads):
        payload = payloads[index]
        index += 1
        if len(payload) < _HEADER.size:
            calls.append(Junk("a binary packet is too short"))
            break
        call = _decode(payload, int(_HEADER.unpack_from(payload)[0]), frame_bytes_max)
        calls.append(call)
        if isinstance(call, Junk):
            break
        if index == len(payloads) or not payloads[index].startswith(payload[: _HEADER.size]):
            continue
        if isinstance(call, AddRun):
            index += _extend(call, payloads, index)
        elif isinstance(call, ReadCall) and call.fence_with is None:
            like = _like(payloads, index, _HEADER.size, _READ_REQUEST.size)
            calls += _runs(call, like)
            index += len(like)
    return calls


def _runs(call: ReadCall, payloads: Sequence[bytes]) -> list[ReadRun]:
    """Reads whose packets have the same header as that of ``call``."""
    ids = list(map(_READ_REQUEST.unpack_from, payloads))
    ledger_ids, entry_ids = (list(map(operator.itemgetter(column), ids)) for column in (1, 2))
    return read_runs([call.txn_id] * len(ids), ledger_ids, entry_ids, is_high_priority=call.is_high_priority)


def _extend(run: AddRun, payloads: Sequence[bytes], first: int) -> int:
    """Append the adds from index ``first`` on whose packets begin as that of the run's first one did, up to the entry
    id; returns how many there are."""
    same = _like(payloads, first, _ENTRY_ID_AT, _ADD_BYTES_MIN)
    entry_ids = list(chain.from_iterable(map(_ENTRY_ID.unpack_from, same, repeat(_ENTRY_ID_AT))))
    run.extend(run.txn_ids * len(same), entry_ids, list(map(_BODY_OF, same)))
    return len(same)


def _like(payloads: Sequence[bytes], first: int, head_bytes: int, bytes_min: int) -> Sequence[bytes]:
    """The payloads from index ``first`` on, up to the first one that is too short or does not begin as the one before
    ``first`` does."""
    head = payloads[first - 1][:head_bytes]
    if not payloads[first].startswith(head):
        return ()
    # All loops run in the interpreter's C code.
    rest = payloads[first:]
    count = len(list(takewhile(head.__eq__, map(operator.itemgetter(slice(head_bytes)), rest))))
    return rest[: len(list(takewhile(bytes_min.__le__, map(len, rest[:count]))))]


def _decode(payload: bytes, header: int, frame_bytes_max: int) -> Call:
    version, opcode, flags = header >> 24, header >> 16 & 0xFF, header & 0xFFFF
    if version == 0:
        opcode, flags = header & 0xFF, 0
    txn_id = -1 - version
    try:
        call: AddRun | ReadCall | BatchReadRequest | RefusedCall
        if opcode == _ADD:
            call = _decode_add(payload, flags, txn_id)
        elif opcode == _READ:
            call = _decode_read(payload, flags, txn_id)
        elif opcode == _BATCH_READ:
            call = _decode_batch_read(payload, flags, txn_id, frame_bytes_max)
        elif opcode == _AUTH:
            return _decode_auth(payload, txn_id)
        else:
            return Junk(f"a binary packet has the unknown operation {opcode}")
    except struct.error:
        return Junk("a binary packet is too short for its operation")
    if version > _VERSION_MAX:
        return RefusedCall(call.call if isinstance(call, RefusedCall) else call, Status.BAD_VERSION)
    return call


def decode_packet_before_login(payload: bytes) -> AuthCall | RefusedCall | Junk:
    """Decode a packet of a client that must log in first (wire 12.2); after Junk, close the connection."""
    (call,) = decode_packets([payload], len(payload))
    refused = call.call if isinstance(call, RefusedCall) else call
    if isinstance(refused, AddRun | ReadCall):
        return RefusedCall(refused, Status.UNAUTHORIZED)
    if isinstance(call, AuthCall | Junk):
        return call
    return Junk("a client that must log in sent a batch read")


def _decode_auth(payload: bytes, txn_id: int) -> AuthCall | Junk:
    try:
        message = AuthMessage.FromString(payload[_HEADER.size :])
    except DecodeError:
        return Junk("the bytes of a login are not a message")
    return AuthCall(txn_id, b"", message.authPluginName, message.payload)


def _decode_add(payload: bytes, flags: int, txn_id: int) -> AddRun:
    ledger_id, entry_id = _IDS.unpack_from(payload, _ADD_HEAD_BYTES)
    key = payload[_HEADER.size : _ADD_HEAD_BYTES]
    is_recovery, is_high_priority = bool(flags & _RECOVERY_ADD), bool(flags & _HIGH_PRIORITY)
    body = payload[_ADD_HEAD_BYTES:]
    return AddRun(ledger_id, key, is_recovery, is_high_priority, False, [txn_id], [entry_id], [body])


def _decode_read(payload: bytes, flags: int, txn_id: int) -> ReadCall | RefusedCall:
    _, ledger_id, entry_id = _READ_REQUEST.unpack_from(payload)
    key = _fencing_key(payload, _READ_REQUEST.size, flags, txn_id)
    call = ReadCall(txn_id, ledger_id, entry_id, key or None, bool(flags & _HIGH_PRIORITY))
    return RefusedCall(call, Status.UNAUTHORIZED) if key == b"" else call


def _decode_batch_read(payload: bytes, flags: int, txn_id: int, frame_bytes_max: int) -> BatchReadRequest | RefusedCall:
    _, ledger_id, first_entry_id, request_id, count, size_bytes = _BATCH_READ_REQUEST.unpack_from(payload)
    key = _fencing_key(payload, _BATCH_READ_REQUEST.size, flags, txn_id)
    call = BatchReadRequest(
        txn_id,
        request_id,
        ledger_id,
        first_entry_id,
        count if count > 0 else _COUNT_MAX,
        min(size_bytes, frame_bytes_max),
        key or None,
        bool(flags & _HIGH_PRIORITY),
    )
    return RefusedCall(call, Status.UNAUTHORIZED) if key == b"" else call


def _fencing_key(payload: bytes, offset: int, flags: int, txn_id: int) -> bytes | None:
    """The key of a fencing read; None if it does not fence, empty if its version has none; struct.error."""
    if not flags & _FENCE:
        return None
    if txn_id > -1 - _VERSION_MAX:
        return b""
    return bytes(struct.unpack_from(f"{_KEY_BYTES}s", payload, offset)[0])


def encode_packets(call: RequestCall, answer: BookieAnswer, frame_bytes_max: int) -> bytes:
    """The frames of an answer to a binary call: one, or one for each add of a run.

    Entries that are too large for a frame become IO_ERROR.
    """
    if isinstance(call, AddRun):
        return _encode_adds(call, cast("Status", answer))
    if isinstance(call, AuthCall):
        return _encode_auth(answer)
    frame = _encode_read(cast("ReadCall | BatchReadRequest", call), answer)
    if len(frame) <= frame_bytes_max:
        return frame
    return _encode_read(cast("ReadCall | BatchReadRequest", call), Status.IO_ERROR)


def encode_binary_bodies(run: ReadRun, bodies: Sequence[bytes]) -> bytes:
    """The frames of positive answers to reads in packets."""
    header = _answer_header(run.txn_id, _READ)
    if len(bodies) == 1:
        return _ANSWER.pack(_ANSWER_BYTES + len(bodies[0]), header, 0, run.ledger_id, run.entry_id) + bodies[0]
    sizes = map(_ANSWER_BYTES.__add__, map(len, bodies))
    fields = (sizes, repeat(header), repeat(0), repeat(run.ledger_id), run.entry_ids)
    return b"".join(chain.from_iterable(zip(map(_ANSWER.pack, *fields), bodies, strict=True)))


def encode_entries(bodies: Sequence[bytes]) -> bytes:
    """The entries of the answer to a batch read."""
    return b"".join(chain.from_iterable(zip(map(LENGTH.pack, map(len, bodies)), bodies, strict=True)))


def _answer_header(txn_id: int, opcode: int) -> int:
    version = -1 - txn_id
    return version << 24 | opcode << 16 if version else opcode


def _encode_adds(run: AddRun, status: Status) -> bytes:
    header, code, ledger_id = _answer_header(run.txn_ids[0], _ADD), _CODES[status], run.ledger_id
    each = map(_ANSWER.pack, repeat(_ANSWER_BYTES), repeat(header), repeat(code), repeat(ledger_id), run.entry_ids)
    return b"".join(each)


def _encode_read(call: ReadCall | BatchReadRequest, answer: BookieAnswer) -> bytes:
    status = answer if isinstance(answer, Status) else answer.status
    parts: list[bytes] = []
    if isinstance(call, BatchReadRequest):
        opcode, entry_id = _BATCH_READ, call.first_entry_id
        parts.append(_REQUEST_ID.pack(call.request_id))
        if isinstance(answer, EntriesAnswer):
            parts.append(answer.block)
    else:
        opcode, entry_id = _READ, call.entry_id  # the requested id, even if it is -1
        if status is Status.OK and isinstance(answer, ReadAnswer) and answer.body is not None:
            parts.append(answer.body)
    size_bytes = _ANSWER_BYTES + sum(map(len, parts))
    header = _answer_header(call.txn_id, opcode)
    return b"".join((_ANSWER.pack(size_bytes, header, _CODES[status], call.ledger_id, entry_id), *parts))


def _encode_auth(answer: BookieAnswer) -> bytes:
    message = cast("AuthAnswer", answer)
    inner = AuthMessage(authPluginName=message.plugin_name, payload=message.payload).SerializeToString()
    header = _HEADER.pack(_VERSION_MAX << 24 | _AUTH << 16)  # whatever the version of the request (wire 3.5)
    return LENGTH.pack(len(header) + len(inner)) + header + inner
