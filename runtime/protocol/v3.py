"""Wire protocol v3: requests and answers as protobuf messages in frames. Source: wire sections 4, 5, 12.1 and 14.

Every function is pure. The bookie's side decodes requests and encodes answers; the client's side does the reverse. What
is encoded comes as a complete frame, what is decoded is the payload of one.

Messages are made anew for each use: a protobuf message that is parsed into again, or whose byte strings are replaced,
keeps the memory of all that it ever held.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, cast

from google.protobuf.message import DecodeError

from runtime.errors import ProtocolError
from runtime.protocol.bookkeeper_wire_pb2 import (
    ADD_ENTRY,
    AUTH,
    FORCE_LEDGER,
    GET_BOOKIE_INFO,
    GET_LIST_OF_ENTRIES_OF_LEDGER,
    READ_ENTRY,
    READ_LAC,
    START_TLS,
    VERSION_THREE,
    WRITE_LAC,
    AddRequest,
    BKPacketHeader,
    GetBookieInfoRequest,
    OperationType,
    ReadRequest,
    Request,
    Response,
    StatusCode,
)
from runtime.protocol.framing import encode_frame
from runtime.protocol.messages import (
    AddAnswer,
    AddCall,
    Answer,
    BookieInfoAnswer,
    BookieInfoCall,
    Call,
    ForceLedgerCall,
    ListEntriesCall,
    OtherAnswer,
    ReadAnswer,
    ReadCall,
    ReadLacAnswer,
    ReadLacCall,
    SelfAnsweredCall,
    WriteLacCall,
)
from runtime.protocol.status import Status
from runtime.protocol.v3_entry_list import decode_list_entries_answer, encode_list_entries_response
from storage.ids import INVALID_ENTRY_ID

PRIORITY_HIGH: Final = 100
"""What Java sends for high priority; anything above zero means the same."""

_AUTH_DISABLED_PLUGIN: Final = "AuthDisabledPlugin"
_DEFERRED_SYNC: Final = 1
_TOTAL_DISK_CAPACITY: Final = int(GetBookieInfoRequest.TOTAL_DISK_CAPACITY)
_FREE_DISK_SPACE: Final = int(GetBookieInfoRequest.FREE_DISK_SPACE)
_BINARY_VERSION_MAX: Final = 2
"""First payload bytes 0 to 2 start a v0, v1 or v2 packet; a protobuf message cannot start so (wire section 2)."""

_STATUS_OF_CODE: Final = {int(status): status for status in Status if status >= Status.OK}


# The bookie's side.


def decode_request(payload: bytes) -> Call:
    """Read one request.

    ProtocolError, after which the connection is closed: a binary (v2) packet, bytes that are no request, a required
    field missing, or a known operation without its inner message.
    """
    if payload[0] <= _BINARY_VERSION_MAX:
        raise ProtocolError(
            f"the peer speaks wire protocol v{payload[0]}, which is not served yet (Java: useV2WireProtocol=false)"
        )
    try:
        message = Request.FromString(payload)
    except DecodeError as error:
        raise ProtocolError("the bytes are not a v3 request") from error
    if not message.IsInitialized():
        raise ProtocolError("a v3 request lacks a required field")
    header = message.header
    decode = _DECODERS.get(header.operation)
    if decode is None:
        return _refuse_operation(header)
    return decode(message, header)


def _decode_add(message: Request, header: BKPacketHeader) -> Call:
    _demand(message, "addRequest")
    add = message.addRequest
    if header.version != VERSION_THREE:
        return SelfAnsweredCall(
            AddResponseEncoder().encode(header.txnId, add.ledgerId, add.entryId, Status.BAD_VERSION)
        )
    return AddCall(
        header.txnId,
        add.ledgerId,
        add.entryId,
        add.masterKey,
        add.body,
        add.HasField("flag"),  # RECOVERY_ADD is the only value; an unknown one counts as not set (wire 4.1)
        header.priority > 0,
        add.writeFlags & _DEFERRED_SYNC != 0,
    )


def _decode_read(message: Request, header: BKPacketHeader) -> Call:
    _demand(message, "readRequest")
    read = message.readRequest
    txn_id, ledger_id, entry_id = header.txnId, read.ledgerId, read.entryId
    flag = read.flag if read.HasField("flag") else None
    refusal: Status | None = None
    fence_with: bytes | None = None
    if header.version != VERSION_THREE:
        refusal = Status.BAD_VERSION
    elif flag == ReadRequest.FENCE_LEDGER:
        if read.HasField("masterKey"):
            fence_with = read.masterKey
        else:
            refusal = Status.UNAUTHORIZED
    elif flag == ReadRequest.ENTRY_PIGGYBACK and read.HasField("previousLAC") and entry_id != INVALID_ENTRY_ID:
        # A long poll (wire 5.4) is answered at once, as a plain read: the poller then asks again.
        refusal = Status.BAD_REQUEST
    if refusal is not None:
        return SelfAnsweredCall(encode_read_response(txn_id, ledger_id, entry_id, refusal, None, None))
    return ReadCall(txn_id, ledger_id, entry_id, fence_with, header.priority > 0)


def _decode_read_lac(message: Request, header: BKPacketHeader) -> Call:
    _demand(message, "readLacRequest")
    ledger_id = message.readLacRequest.ledgerId
    if header.version != VERSION_THREE:
        return SelfAnsweredCall(encode_read_lac_response(header.txnId, ledger_id, Status.BAD_VERSION, None, None))
    return ReadLacCall(header.txnId, ledger_id)


def _decode_write_lac(message: Request, header: BKPacketHeader) -> Call:
    _demand(message, "writeLacRequest")
    write = message.writeLacRequest
    if header.version != VERSION_THREE:
        return SelfAnsweredCall(encode_write_lac_response(header.txnId, write.ledgerId, Status.BAD_VERSION))
    return WriteLacCall(header.txnId, write.ledgerId, write.masterKey, write.body)


def _decode_force_ledger(message: Request, header: BKPacketHeader) -> Call:
    _demand(message, "forceLedgerRequest")
    ledger_id = message.forceLedgerRequest.ledgerId
    if header.version != VERSION_THREE:
        return SelfAnsweredCall(encode_force_ledger_response(header.txnId, ledger_id, Status.BAD_VERSION))
    return ForceLedgerCall(header.txnId, ledger_id)


def _decode_bookie_info(message: Request, header: BKPacketHeader) -> Call:
    requested = message.getBookieInfoRequest.requested  # without the inner message nothing is asked for (wire 4.4)
    if header.version != VERSION_THREE:
        return SelfAnsweredCall(encode_bookie_info_response(header.txnId, Status.BAD_VERSION, requested, None, None))
    return BookieInfoCall(header.txnId, requested)


def _decode_list_entries(message: Request, header: BKPacketHeader) -> Call:
    _demand(message, "getListOfEntriesOfLedgerRequest")
    ledger_id = message.getListOfEntriesOfLedgerRequest.ledgerId
    if header.version != VERSION_THREE:
        return SelfAnsweredCall(encode_list_entries_response(header.txnId, ledger_id, Status.BAD_VERSION, None))
    return ListEntriesCall(header.txnId, ledger_id)


def _answer_auth(message: Request, header: BKPacketHeader) -> Call:  # noqa: ARG001  any AUTH is answered alike
    """Authentication is disabled: tell the peer so, and it takes itself for authenticated (wire 12.1)."""
    response = Response(header=header, status=_code(Status.OK))
    response.authResponse.authPluginName = _AUTH_DISABLED_PLUGIN
    response.authResponse.payload = b""
    return SelfAnsweredCall(encode_frame(response.SerializeToString()))


def _refuse_start_tls(message: Request, header: BKPacketHeader) -> Call:  # noqa: ARG001  its inner message is empty
    """TLS is not configured: BAD_REQUEST without an inner message (wire 12.3)."""
    response = _response(header.txnId, START_TLS, Status.BAD_REQUEST)
    return SelfAnsweredCall(encode_frame(response.SerializeToString()))


def _refuse_operation(header: BKPacketHeader) -> Call:
    """Operations without messages: BAD_REQUEST under a copy of the request's header (wire 4.4)."""
    response = Response(header=header, status=_code(Status.BAD_REQUEST))
    return SelfAnsweredCall(encode_frame(response.SerializeToString()))


def _demand(message: Request, field: str) -> None:
    if not message.HasField(field):
        raise ProtocolError(f"a v3 request lacks its {field}")


_DECODERS: Final[dict[int, Callable[[Request, BKPacketHeader], Call]]] = {
    ADD_ENTRY: _decode_add,
    READ_ENTRY: _decode_read,
    READ_LAC: _decode_read_lac,
    WRITE_LAC: _decode_write_lac,
    FORCE_LEDGER: _decode_force_ledger,
    GET_BOOKIE_INFO: _decode_bookie_info,
    GET_LIST_OF_ENTRIES_OF_LEDGER: _decode_list_entries,
    AUTH: _answer_auth,
    START_TLS: _refuse_start_tls,
}


class AddResponseEncoder:
    """Writes the answers to adds with one message that is used again and again: half the time of making each anew.

    It holds numbers only, so that nothing gathers in it. Not for use by two threads at once.
    """

    def __init__(self) -> None:
        self._response = _response(0, ADD_ENTRY, Status.OK)
        self._header = self._response.header
        self._inner = self._response.addResponse

    def encode(self, txn_id: int, ledger_id: int, entry_id: int, status: Status) -> bytes:
        """Answer to an add."""
        inner = self._inner
        self._header.txnId = txn_id
        self._response.status = inner.status = _code(status)
        inner.ledgerId = ledger_id
        inner.entryId = entry_id
        return encode_frame(self._response.SerializeToString())


def encode_read_response(
    txn_id: int,
    ledger_id: int,
    entry_id: int,
    status: Status,
    body: bytes | None,
    max_last_add_confirmed: int | None,
) -> bytes:
    """Answer to a read; ``entry_id`` is the one that was asked for, -1 included."""
    response = _response(txn_id, READ_ENTRY, status)
    inner = response.readResponse
    inner.status = _code(status)
    inner.ledgerId = ledger_id
    inner.entryId = entry_id
    if body is not None:
        inner.body = body
    if max_last_add_confirmed is not None:
        inner.maxLAC = max_last_add_confirmed
    return encode_frame(response.SerializeToString())


def encode_read_lac_response(
    txn_id: int, ledger_id: int, status: Status, lac_body: bytes | None, last_entry_body: bytes | None
) -> bytes:
    """Answer to a LAC read."""
    response = _response(txn_id, READ_LAC, status)
    inner = response.readLacResponse
    inner.status = _code(status)
    inner.ledgerId = ledger_id
    if lac_body is not None:
        inner.lacBody = lac_body
    if last_entry_body is not None:
        inner.lastEntryBody = last_entry_body
    return encode_frame(response.SerializeToString())


def encode_write_lac_response(txn_id: int, ledger_id: int, status: Status) -> bytes:
    """Answer to an explicit LAC."""
    response = _response(txn_id, WRITE_LAC, status)
    response.writeLacResponse.status = _code(status)
    response.writeLacResponse.ledgerId = ledger_id
    return encode_frame(response.SerializeToString())


def encode_force_ledger_response(txn_id: int, ledger_id: int, status: Status) -> bytes:
    """Answer to a force."""
    response = _response(txn_id, FORCE_LEDGER, status)
    response.forceLedgerResponse.status = _code(status)
    response.forceLedgerResponse.ledgerId = ledger_id
    return encode_frame(response.SerializeToString())


def encode_bookie_info_response(
    txn_id: int, status: Status, requested: int, total_bytes: int | None, free_bytes: int | None
) -> bytes:
    """Answer with the numbers that ``requested`` asks for and that are known."""
    response = _response(txn_id, GET_BOOKIE_INFO, status)
    inner = response.getBookieInfoResponse
    inner.status = _code(status)
    if total_bytes is not None and requested & _TOTAL_DISK_CAPACITY:
        inner.totalDiskCapacity = total_bytes
    if free_bytes is not None and requested & _FREE_DISK_SPACE:
        inner.freeDiskSpace = free_bytes
    return encode_frame(response.SerializeToString())


def _code(status: Status) -> StatusCode:
    return cast("StatusCode", status)


def _response(txn_id: int, operation: OperationType, status: Status) -> Response:
    response = Response()
    header = response.header
    header.version = VERSION_THREE
    header.operation = operation
    header.txnId = txn_id
    response.status = _code(status)
    return response


# The client's side.


def encode_add_request(
    txn_id: int,
    ledger_id: int,
    entry_id: int,
    master_key: bytes,
    body: bytes,
    is_recovery_add: bool,
    is_high_priority: bool,
) -> bytes:
    """Request to store an entry."""
    request = _request(txn_id, ADD_ENTRY, is_high_priority)
    inner = request.addRequest
    inner.ledgerId = ledger_id
    inner.entryId = entry_id
    inner.masterKey = master_key
    inner.body = body
    if is_recovery_add:
        inner.flag = AddRequest.RECOVERY_ADD
    return encode_frame(request.SerializeToString())


def encode_read_request(
    txn_id: int, ledger_id: int, entry_id: int, fence_with: bytes | None, is_high_priority: bool
) -> bytes:
    """Request to read an entry, or the last one for -1; with a key it fences the ledger first."""
    request = _request(txn_id, READ_ENTRY, is_high_priority)
    inner = request.readRequest
    inner.ledgerId = ledger_id
    inner.entryId = entry_id
    if fence_with is not None:
        inner.flag = ReadRequest.FENCE_LEDGER
        inner.masterKey = fence_with
    return encode_frame(request.SerializeToString())


def encode_read_lac_request(txn_id: int, ledger_id: int) -> bytes:
    """Request for what the bookie knows of the end of a ledger."""
    request = _request(txn_id, READ_LAC, is_high_priority=False)
    request.readLacRequest.ledgerId = ledger_id
    return encode_frame(request.SerializeToString())


def encode_bookie_info_request(txn_id: int) -> bytes:
    """Request for total and free disk space."""
    request = _request(txn_id, GET_BOOKIE_INFO, is_high_priority=False)
    request.getBookieInfoRequest.requested = _TOTAL_DISK_CAPACITY | _FREE_DISK_SPACE
    return encode_frame(request.SerializeToString())


def _request(txn_id: int, operation: OperationType, is_high_priority: bool) -> Request:
    request = Request()
    header = request.header
    header.version = VERSION_THREE
    header.operation = operation
    header.txnId = txn_id
    if is_high_priority:
        header.priority = PRIORITY_HIGH
    return request


def decode_response(payload: bytes) -> Answer:
    """Read one answer; its status is the outer one, or the inner one where the outer says OK (wire 14.2).

    ProtocolError, after which the connection is closed: bytes that are no answer, a status or operation that is not in
    the protocol, or a positive answer to an add without its inner message.
    """
    try:
        message = Response.FromString(payload)
    except DecodeError as error:
        raise ProtocolError("the bytes are not a v3 response") from error
    if not message.IsInitialized():
        raise ProtocolError("a v3 response lacks a required field")
    header = message.header
    status = _STATUS_OF_CODE[message.status]
    decode = _ANSWER_DECODERS.get(header.operation)
    if decode is None:
        return OtherAnswer(header.txnId, status)
    return decode(message, header.txnId, status)


def _decode_add_answer(message: Response, txn_id: int, status: Status) -> Answer:
    if status is Status.OK:
        if not message.HasField("addResponse"):
            raise ProtocolError("a positive answer to an add names no entry")
        status = _STATUS_OF_CODE[message.addResponse.status]
    return AddAnswer(txn_id, status)


def _decode_read_answer(message: Response, txn_id: int, status: Status) -> Answer:
    inner = message.readResponse
    return ReadAnswer(
        txn_id,
        _STATUS_OF_CODE[inner.status] if status is Status.OK else status,
        inner.body if inner.HasField("body") else None,
        inner.maxLAC if inner.HasField("maxLAC") else None,
    )


def _decode_read_lac_answer(message: Response, txn_id: int, status: Status) -> Answer:
    inner = message.readLacResponse
    return ReadLacAnswer(
        txn_id,
        _STATUS_OF_CODE[inner.status] if status is Status.OK else status,
        inner.lacBody if inner.HasField("lacBody") else None,
        inner.lastEntryBody if inner.HasField("lastEntryBody") else None,
    )


def _decode_bookie_info_answer(message: Response, txn_id: int, status: Status) -> Answer:
    inner = message.getBookieInfoResponse
    return BookieInfoAnswer(
        txn_id,
        _STATUS_OF_CODE[inner.status] if status is Status.OK else status,
        inner.totalDiskCapacity if inner.HasField("totalDiskCapacity") else None,
        inner.freeDiskSpace if inner.HasField("freeDiskSpace") else None,
    )


_ANSWER_DECODERS: Final[dict[int, Callable[[Response, int, Status], Answer]]] = {
    ADD_ENTRY: _decode_add_answer,
    READ_ENTRY: _decode_read_answer,
    READ_LAC: _decode_read_lac_answer,
    GET_BOOKIE_INFO: _decode_bookie_info_answer,
    GET_LIST_OF_ENTRIES_OF_LEDGER: decode_list_entries_answer,
}
