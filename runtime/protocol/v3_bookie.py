"""Wire protocol v3, bookie side: requests to calls, answers to frames. Source: wire sections 4, 5 and 12.

Every use creates a new message. A protobuf message that is reused for parsing, or whose byte strings are replaced,
never releases the memory of its earlier contents.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias, cast

from google.protobuf.message import DecodeError

from bkctl.runtime.errors import ProtocolError
from bkctl.runtime.protocol import v3_adds, v3_reads
from bkctl.runtime.protocol.bookkeeper_wire_pb2 import (
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
    BKPacketHeader,
    GetBookieInfoRequest,
    OperationType,
    ReadRequest,
    Request,
    Response,
    StatusCode,
)
from bkctl.runtime.protocol.entry_list import encode_entry_list
from bkctl.runtime.protocol.framing import encode_frame
from bkctl.runtime.protocol.messages import (
    AddRun,
    AuthAnswer,
    AuthCall,
    BookieAnswer,
    BookieInfoAnswer,
    BookieInfoCall,
    Call,
    ForceLedgerCall,
    HandshakeCall,
    Junk,
    ListEntriesAnswer,
    ListEntriesCall,
    LongPollAnswer,
    LongPollRead,
    ReadAnswer,
    ReadCall,
    ReadLacAnswer,
    ReadLacCall,
    ReadRun,
    ReceivedCall,
    RefusedCall,
    RequestCall,
    SingleCall,
    StartTlsCall,
    UnknownCall,
    WriteLacCall,
)
from bkctl.runtime.protocol.status import Status
from bkctl.runtime.protocol.v2_bookie import is_binary, names_operation
from bkctl.storage.ids import INVALID_ENTRY_ID

_DEFERRED_SYNC: Final = 1
_TOTAL_DISK_CAPACITY: Final = int(GetBookieInfoRequest.TOTAL_DISK_CAPACITY)
_FREE_DISK_SPACE: Final = int(GetBookieInfoRequest.FREE_DISK_SPACE)

_MASTER_KEY_BYTES_MAX: Final = 64
"""Keys have 20 bytes (wire section 9). A bookie keeps the key of each ledger in memory, so none may be large."""
_EXPLICIT_LAC_BYTES_MAX: Final = 36
"""Two ids and the largest digest (wire section 8.4); kept in memory like the key."""

_LIST_FRAME_OVERHEAD_BYTES: Final = 128
"""Maximum size of a frame with an entry list, without the list."""


class V3BookieCodec:
    """Codec of one connection in v3. ``v3_adds`` and ``v3_reads`` handle plain requests."""

    def __init__(self, frame_bytes_max: int) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._add_form: v3_adds.AddForm | None = None
        self._read_form = v3_reads.FIRST_FORM

    def decode(self, payloads: Sequence[bytes]) -> tuple[list[Call], int]:
        """Decode the payloads of one socket read; returns their calls, and how many payloads were v3.

        The first payload that is not v3, if any, is for another codec. Adds of one ledger become one run unless another
        request separates them. For invalid bytes, a missing required field, or a known operation without its inner
        message, the last call is Junk, after which the connection is closed.
        """
        calls: list[Call] = []
        runs: _Runs = {}
        index = 0
        while index < len(payloads):
            if v3_reads.may_be_read(payloads[index]):
                reads, self._read_form = v3_reads.parse_reads(payloads, index, self._read_form)
                if reads:
                    for run in reads:
                        index += len(run.txn_ids)
                    runs.clear()
                    calls += reads
                    continue
            elif self._add_form is not None:
                adds = v3_adds.parse_adds(payloads, index, self._add_form)
                if adds.txn_ids:
                    self._add_form = adds.form
                    index += len(adds.txn_ids)
                    _gather(adds, calls, runs)
                    continue
            payload = payloads[index]
            if is_binary(payload):
                break
            try:
                call = decode_request(payload)
            except ProtocolError as error:
                if names_operation(payload):
                    break
                calls.append(Junk(str(error)))
                return calls, len(payloads)
            index += 1
            if isinstance(call, AddRun) and not (call.is_high_priority or call.is_deferred_sync):
                if self._add_form is not None and self._add_form.is_recovery != call.is_recovery_add:
                    runs.clear()
                overhead_bytes = len(payload) - len(call.bodies[0])
                self._add_form = v3_adds.AddForm(
                    call.master_key, overhead_bytes, call.txn_ids[0], 1, call.is_recovery_add
                )
                _join(call, calls, runs)
            else:
                runs.clear()
                calls.append(call)
        return calls, index

    def encode(self, call: RequestCall, answer: BookieAnswer) -> bytes:
        """Encode the frame of an answer; one that is too large for a frame becomes IO_ERROR.

        The answer to a run of adds is a status, which becomes one frame per add.
        """
        if isinstance(call, AddRun):
            return _encode_adds(call, cast("Status", answer))
        frame = _encode_read(call, answer) or _encode_other(call, answer, self._frame_bytes_max)
        if len(frame) <= self._frame_bytes_max:
            return frame
        return _encode_other(call, Status.IO_ERROR, self._frame_bytes_max)


_Runs: TypeAlias = dict[tuple[int, bytes], AddRun]
"""Runs that can be extended, by ledger and master key. All of them are of recovery adds, or none."""


def _gather(adds: v3_adds.PlainAdds, calls: list[Call], runs: _Runs) -> None:
    """Append adds to the runs of their ledgers."""
    txn_ids, ledger_ids, entry_ids, bodies, form = adds
    key = form.master_key
    if ledger_ids.count(ledger_ids[0]) == len(ledger_ids):
        _join(AddRun(ledger_ids[0], key, form.is_recovery, False, False, txn_ids, entry_ids, bodies), calls, runs)
        return
    for txn_id, ledger_id, entry_id, body in zip(txn_ids, ledger_ids, entry_ids, bodies, strict=True):
        run = runs.get((ledger_id, key))
        if run is None:
            run = runs[ledger_id, key] = AddRun(ledger_id, key, form.is_recovery, False, False, [], [], [])
            calls.append(run)
        run.extend([txn_id], [entry_id], [body])


def _join(adds: AddRun, calls: list[Call], runs: _Runs) -> None:
    run = runs.setdefault((adds.ledger_id, adds.master_key), adds)
    if run is adds:
        calls.append(adds)
    else:
        run.extend(adds.txn_ids, adds.entry_ids, adds.bodies)


def decode_before_login(payload: bytes) -> HandshakeCall | RefusedCall:
    """Decode one request of a client that must log in or start TLS first (wire 12.2). ProtocolError."""
    message = _parse(payload)
    header = message.header
    if header.operation == AUTH:
        return _decode_auth(message, header)
    if header.operation == START_TLS and message.HasField("startTLSRequest"):
        return StartTlsCall(header.txnId)
    return RefusedCall(UnknownCall(header.txnId, header.SerializeToString()), Status.UNAUTHORIZED)


def decode_request(payload: bytes) -> Call:
    """Decode one request with protobuf; ProtocolError if it is invalid."""
    message = _parse(payload)
    header = message.header
    decode = _DECODERS.get(header.operation)
    if decode is None:
        return RefusedCall(UnknownCall(header.txnId, header.SerializeToString()), Status.BAD_REQUEST)
    call = decode(message, header)
    if header.version != VERSION_THREE and not isinstance(call, AuthCall | StartTlsCall):
        return RefusedCall(call.call if isinstance(call, RefusedCall) else call, Status.BAD_VERSION)
    return call


def _parse(payload: bytes) -> Request:
    try:
        message = Request.FromString(payload)
    except DecodeError as error:
        raise ProtocolError("the bytes are not a v3 request") from error
    if not message.IsInitialized():
        raise ProtocolError("a v3 request misses a required field")
    return message


def _decode_add(message: Request, header: BKPacketHeader) -> AddRun | RefusedCall:
    _demand(message, "addRequest")
    add = message.addRequest
    call = AddRun(
        add.ledgerId,
        add.masterKey,
        add.HasField("flag"),  # RECOVERY_ADD is the only value; an unknown one counts as not set (wire 4.1)
        header.priority > 0,
        add.writeFlags & _DEFERRED_SYNC != 0,
        [header.txnId],
        [add.entryId],
        [add.body],
    )
    return RefusedCall(call, Status.BAD_REQUEST) if len(add.masterKey) > _MASTER_KEY_BYTES_MAX else call


def _decode_read(message: Request, header: BKPacketHeader) -> ReadCall | LongPollRead | RefusedCall:
    _demand(message, "readRequest")
    read = message.readRequest
    flag = read.flag if read.HasField("flag") else None
    is_fencing = flag == ReadRequest.FENCE_LEDGER and read.HasField("masterKey")
    call = ReadCall(
        header.txnId, read.ledgerId, read.entryId, read.masterKey if is_fencing else None, header.priority > 0
    )
    if flag == ReadRequest.FENCE_LEDGER and not is_fencing:
        return RefusedCall(call, Status.UNAUTHORIZED)
    if is_fencing and len(read.masterKey) > _MASTER_KEY_BYTES_MAX:
        return RefusedCall(call, Status.BAD_REQUEST)
    if flag == ReadRequest.FENCE_LEDGER or not read.HasField("previousLAC"):
        return call
    is_piggyback = flag == ReadRequest.ENTRY_PIGGYBACK
    if is_piggyback and read.entryId != INVALID_ENTRY_ID:
        return RefusedCall(call, Status.BAD_REQUEST)
    return LongPollRead(
        header.txnId,
        read.ledgerId,
        read.entryId,
        read.previousLAC,
        max(0, read.timeOut),
        is_piggyback,
        header.priority > 0,
    )


def _decode_read_lac(message: Request, header: BKPacketHeader) -> ReadLacCall:
    _demand(message, "readLacRequest")
    return ReadLacCall(header.txnId, message.readLacRequest.ledgerId)


def _decode_write_lac(message: Request, header: BKPacketHeader) -> WriteLacCall | RefusedCall:
    _demand(message, "writeLacRequest")
    write = message.writeLacRequest
    call = WriteLacCall(header.txnId, write.ledgerId, write.masterKey, write.body)
    is_too_large = len(write.masterKey) > _MASTER_KEY_BYTES_MAX or len(write.body) > _EXPLICIT_LAC_BYTES_MAX
    return RefusedCall(call, Status.BAD_REQUEST) if is_too_large else call


def _decode_force_ledger(message: Request, header: BKPacketHeader) -> ForceLedgerCall:
    _demand(message, "forceLedgerRequest")
    return ForceLedgerCall(header.txnId, message.forceLedgerRequest.ledgerId)


def _decode_bookie_info(message: Request, header: BKPacketHeader) -> BookieInfoCall:
    # Without the inner message no value is requested (wire 4.4).
    return BookieInfoCall(header.txnId, message.getBookieInfoRequest.requested)


def _decode_list_entries(message: Request, header: BKPacketHeader) -> ListEntriesCall:
    _demand(message, "getListOfEntriesOfLedgerRequest")
    return ListEntriesCall(header.txnId, message.getListOfEntriesOfLedgerRequest.ledgerId)


def _decode_auth(message: Request, header: BKPacketHeader) -> AuthCall:
    step = message.authRequest
    plugin_name = step.authPluginName if message.HasField("authRequest") else None
    return AuthCall(header.txnId, header.SerializeToString(), plugin_name, step.payload)


def _decode_start_tls(message: Request, header: BKPacketHeader) -> StartTlsCall:  # noqa: ARG001  it is empty
    return StartTlsCall(header.txnId)


def _demand(message: Request, field: str) -> None:
    if not message.HasField(field):
        raise ProtocolError(f"a v3 request misses its {field}")


_DECODERS: Final[dict[int, Callable[[Request, BKPacketHeader], ReceivedCall | HandshakeCall | RefusedCall]]] = {
    ADD_ENTRY: _decode_add,
    READ_ENTRY: _decode_read,
    READ_LAC: _decode_read_lac,
    WRITE_LAC: _decode_write_lac,
    FORCE_LEDGER: _decode_force_ledger,
    GET_BOOKIE_INFO: _decode_bookie_info,
    GET_LIST_OF_ENTRIES_OF_LEDGER: _decode_list_entries,
    AUTH: _decode_auth,
    START_TLS: _decode_start_tls,
}


def _encode_adds(run: AddRun, status: Status) -> bytes:
    if status is Status.OK and run.ledger_id >= 0 and min(run.entry_ids) >= 0:
        return v3_adds.encode_add_answers(run.ledger_id, run.txn_ids, run.entry_ids)
    return b"".join(
        _encode_add(run.ledger_id, txn_id, entry_id, status)
        for txn_id, entry_id in zip(run.txn_ids, run.entry_ids, strict=True)
    )


def _encode_add(ledger_id: int, txn_id: int, entry_id: int, status: Status) -> bytes:
    response = _response(txn_id, ADD_ENTRY, status)
    response.addResponse.status = _code(status)
    response.addResponse.ledgerId = ledger_id
    response.addResponse.entryId = entry_id
    return encode_frame(response.SerializeToString())


def _encode_read(call: SingleCall, answer: BookieAnswer) -> bytes:
    """The answer to a plain read; empty if it needs protobuf."""
    if isinstance(call, ReadCall) and isinstance(answer, ReadAnswer) and answer.status is Status.OK:
        body, lac = answer.body, answer.max_last_add_confirmed
        if body is not None and call.ledger_id >= 0 and call.entry_id >= 0:
            run = ReadRun(call.txn_id, call.ledger_id, call.is_high_priority, [call.txn_id], [call.entry_id])
            return v3_reads.encode_read_answers(run, [body], lac)
    return b""


def _encode_other(call: SingleCall, answer: BookieAnswer, frame_bytes_max: int) -> bytes:
    """Encode an answer to any request but adds. The inner message contains the ids even for an error (wire 4.4)."""
    status = answer if isinstance(answer, Status) else answer.status
    response = _response(call.txn_id, _OPERATIONS[type(call)], status)
    if isinstance(call, ReadCall | LongPollRead):
        _fill_read(response, call, answer)
    elif isinstance(call, ReadLacCall):
        _fill_read_lac(response, call, answer)
    elif isinstance(call, WriteLacCall):
        response.writeLacResponse.status = response.status
        response.writeLacResponse.ledgerId = call.ledger_id
    elif isinstance(call, ForceLedgerCall):
        response.forceLedgerResponse.status = response.status
        response.forceLedgerResponse.ledgerId = call.ledger_id
    elif isinstance(call, BookieInfoCall):
        _fill_bookie_info(response, call, answer)
    elif isinstance(call, ListEntriesCall):
        _fill_list_entries(response, call, answer, frame_bytes_max)
    elif isinstance(call, AuthCall | UnknownCall):
        response.header.ParseFromString(call.header)  # includes priority and version
        if isinstance(answer, AuthAnswer):
            response.authResponse.authPluginName = answer.plugin_name
            response.authResponse.payload = answer.payload
    elif status is Status.OK:  # of START_TLS
        response.startTLSResponse.SetInParent()
    return encode_frame(response.SerializeToString())


def _fill_read(response: Response, call: ReadCall | LongPollRead, answer: BookieAnswer) -> None:
    inner = response.readResponse
    inner.status = response.status
    inner.ledgerId = call.ledger_id
    inner.entryId = call.entry_id  # the requested id, even if it is -1
    if isinstance(answer, ReadAnswer):
        if answer.body is not None:
            inner.body = answer.body
        if answer.max_last_add_confirmed is not None:
            inner.maxLAC = answer.max_last_add_confirmed
    if isinstance(answer, LongPollAnswer):
        inner.entryId = answer.entry_id
        if answer.lac_changed_ms is not None:
            inner.lacUpdateTimestamp = answer.lac_changed_ms


def _fill_read_lac(response: Response, call: ReadLacCall, answer: BookieAnswer) -> None:
    inner = response.readLacResponse
    inner.status = response.status
    inner.ledgerId = call.ledger_id
    if isinstance(answer, ReadLacAnswer):
        if answer.lac_body is not None:
            inner.lacBody = answer.lac_body
        if answer.last_entry_body is not None:
            inner.lastEntryBody = answer.last_entry_body


def _fill_bookie_info(response: Response, call: BookieInfoCall, answer: BookieAnswer) -> None:
    inner = response.getBookieInfoResponse
    inner.status = response.status
    if isinstance(answer, BookieInfoAnswer):
        if answer.total_bytes is not None and call.requested & _TOTAL_DISK_CAPACITY:
            inner.totalDiskCapacity = answer.total_bytes
        if answer.free_bytes is not None and call.requested & _FREE_DISK_SPACE:
            inner.freeDiskSpace = answer.free_bytes


def _fill_list_entries(response: Response, call: ListEntriesCall, answer: BookieAnswer, frame_bytes_max: int) -> None:
    """A list too large for a frame becomes IO_ERROR, because a partial list would deny the other entries."""
    inner = response.getListOfEntriesOfLedgerResponse
    if isinstance(answer, ListEntriesAnswer) and answer.entries is not None:
        blob = encode_entry_list(answer.entries, frame_bytes_max - _LIST_FRAME_OVERHEAD_BYTES)
        if blob is None:
            response.status = _code(Status.IO_ERROR)
        else:
            inner.availabilityOfEntriesOfLedger = blob
    inner.status = response.status
    inner.ledgerId = call.ledger_id


_OPERATIONS: Final[dict[type, OperationType]] = {
    ReadCall: READ_ENTRY,
    LongPollRead: READ_ENTRY,
    ReadLacCall: READ_LAC,
    WriteLacCall: WRITE_LAC,
    ForceLedgerCall: FORCE_LEDGER,
    BookieInfoCall: GET_BOOKIE_INFO,
    ListEntriesCall: GET_LIST_OF_ENTRIES_OF_LEDGER,
    AuthCall: AUTH,
    StartTlsCall: START_TLS,
    UnknownCall: AUTH,  # replaced by the operation of its own header
}


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
