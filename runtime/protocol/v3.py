"""Wire protocol v3, client side: requests and answers as protobuf messages. Source: wire sections 4, 5 and 14.

All functions are pure. They encode complete frames and decode payloads of frames.

Every use creates a new message. A protobuf message that is reused for parsing, or whose byte strings are replaced,
never releases the memory of its earlier contents.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final

from google.protobuf.message import DecodeError

from bkctl.runtime.errors import ProtocolError
from bkctl.runtime.protocol import v3_adds
from bkctl.runtime.protocol.bookkeeper_wire_pb2 import (
    ADD_ENTRY,
    FORCE_LEDGER,
    GET_BOOKIE_INFO,
    GET_LIST_OF_ENTRIES_OF_LEDGER,
    READ_ENTRY,
    READ_LAC,
    VERSION_THREE,
    WRITE_LAC,
    AddRequest,
    GetBookieInfoRequest,
    OperationType,
    ReadRequest,
    Request,
    Response,
)
from bkctl.runtime.protocol.entry_list import decode_entry_list
from bkctl.runtime.protocol.framing import encode_frame
from bkctl.runtime.protocol.messages import (
    AddAnswer,
    Answer,
    BookieInfoAnswer,
    ListEntriesAnswer,
    OtherAnswer,
    ReadAnswer,
    ReadLacAnswer,
)
from bkctl.runtime.protocol.status import STATUS_OF_CODE, Status
from bkctl.storage.ids import INVALID_ENTRY_ID

PRIORITY_HIGH: Final = 100
"""The value that Java sends for high priority; any value above zero means the same."""

_DEFERRED_SYNC: Final = 1
"""Bit of the write flags of an add: the bookie answers before the sync."""

_TOTAL_DISK_CAPACITY: Final = int(GetBookieInfoRequest.TOTAL_DISK_CAPACITY)
_FREE_DISK_SPACE: Final = int(GetBookieInfoRequest.FREE_DISK_SPACE)


def encode_add_request(
    txn_id: int,
    ledger_id: int,
    entry_id: int,
    master_key: bytes,
    body: bytes,
    is_recovery_add: bool,
    is_high_priority: bool,
    is_deferred_sync: bool = False,
) -> bytes:
    """Encode a request to store an entry."""
    if not (is_recovery_add or is_high_priority or is_deferred_sync) and ledger_id >= 0 and entry_id >= 0:
        return v3_adds.encode_add_request(txn_id, ledger_id, entry_id, master_key, body)
    request = _request(txn_id, ADD_ENTRY, is_high_priority)
    inner = request.addRequest
    inner.ledgerId = ledger_id
    inner.entryId = entry_id
    inner.masterKey = master_key
    inner.body = body
    if is_recovery_add:
        inner.flag = AddRequest.RECOVERY_ADD
    if is_deferred_sync:
        inner.writeFlags = _DEFERRED_SYNC
    return encode_frame(request.SerializeToString())


def encode_force_request(txn_id: int, ledger_id: int) -> bytes:
    """Encode a request to sync what the bookie has answered of a ledger without a sync."""
    request = _request(txn_id, FORCE_LEDGER, is_high_priority=False)
    request.forceLedgerRequest.ledgerId = ledger_id
    return encode_frame(request.SerializeToString())


def encode_read_request(
    txn_id: int, ledger_id: int, entry_id: int, fence_with: bytes | None, is_high_priority: bool
) -> bytes:
    """Encode a request to read an entry, or the last one for -1; with a key it fences the ledger first."""
    request = _request(txn_id, READ_ENTRY, is_high_priority)
    inner = request.readRequest
    inner.ledgerId = ledger_id
    inner.entryId = entry_id
    if fence_with is not None:
        inner.flag = ReadRequest.FENCE_LEDGER
        inner.masterKey = fence_with
    return encode_frame(request.SerializeToString())


def encode_poll_request(txn_id: int, ledger_id: int, previous_lac: int, timeout_ms: int) -> bytes:
    """Encode a long poll: a read that waits for a LAC above ``previous_lac``, and gets the entry after it too."""
    request = _request(txn_id, READ_ENTRY, is_high_priority=False)
    inner = request.readRequest
    inner.ledgerId = ledger_id
    inner.entryId = INVALID_ENTRY_ID
    inner.flag = ReadRequest.ENTRY_PIGGYBACK
    inner.previousLAC = previous_lac
    inner.timeOut = timeout_ms
    return encode_frame(request.SerializeToString())


def encode_read_lac_request(txn_id: int, ledger_id: int) -> bytes:
    """Encode a request for the explicit LAC and the last entry of a ledger."""
    request = _request(txn_id, READ_LAC, is_high_priority=False)
    request.readLacRequest.ledgerId = ledger_id
    return encode_frame(request.SerializeToString())


def encode_write_lac_request(txn_id: int, ledger_id: int, master_key: bytes, lac: int, lac_body: bytes) -> bytes:
    """Encode a request to store an explicit LAC packet (wire 8.4), which tells those who wait for it."""
    request = _request(txn_id, WRITE_LAC, is_high_priority=False)
    inner = request.writeLacRequest
    inner.ledgerId = ledger_id
    inner.lac = lac
    inner.masterKey = master_key
    inner.body = lac_body
    return encode_frame(request.SerializeToString())


def encode_bookie_info_request(txn_id: int) -> bytes:
    """Encode a request for total and free disk space."""
    request = _request(txn_id, GET_BOOKIE_INFO, is_high_priority=False)
    request.getBookieInfoRequest.requested = _TOTAL_DISK_CAPACITY | _FREE_DISK_SPACE
    return encode_frame(request.SerializeToString())


def encode_list_entries_request(txn_id: int, ledger_id: int) -> bytes:
    """Encode a request for the ids of all entries that the bookie has of a ledger."""
    request = _request(txn_id, GET_LIST_OF_ENTRIES_OF_LEDGER, is_high_priority=False)
    request.getListOfEntriesOfLedgerRequest.ledgerId = ledger_id
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
    """Decode one answer. Its status is the outer one, or the inner one if the outer is OK (wire 14.2).

    ProtocolError, after which the connection must be closed, for invalid bytes, a status or operation that is not in
    the protocol, or a positive answer to an add without its inner message.
    """
    message = parse_response(payload)
    header = message.header
    status = STATUS_OF_CODE[message.status]
    if status is Status.UNAUTHORIZED and len(message.ListFields()) == _FIELDS_WITHOUT_OPERATION:
        status = Status.AUTHENTICATION_REQUIRED
    decode = _ANSWER_DECODERS.get(header.operation)
    if decode is None:
        return OtherAnswer(header.txnId, status)
    return decode(message, header.txnId, status)


def parse_response(payload: bytes) -> Response:
    """The message of an answer; ProtocolError."""
    try:
        message = Response.FromString(payload)
    except DecodeError as error:
        raise ProtocolError("the bytes are not a v3 response") from error
    if not message.IsInitialized():
        raise ProtocolError("a v3 response misses a required field")
    return message


_FIELDS_WITHOUT_OPERATION: Final = 2
"""Header and status."""


def _decode_add_answer(message: Response, txn_id: int, status: Status) -> Answer:
    if status is Status.OK:
        if not message.HasField("addResponse"):
            raise ProtocolError("a positive response to an add has no entry")
        status = STATUS_OF_CODE[message.addResponse.status]
    return AddAnswer(txn_id, status)


def _decode_force_answer(message: Response, txn_id: int, status: Status) -> Answer:
    return OtherAnswer(txn_id, STATUS_OF_CODE[message.forceLedgerResponse.status] if status is Status.OK else status)


def _decode_read_answer(message: Response, txn_id: int, status: Status) -> Answer:
    inner = message.readResponse
    return ReadAnswer(
        txn_id,
        STATUS_OF_CODE[inner.status] if status is Status.OK else status,
        inner.body if inner.HasField("body") else None,
        inner.maxLAC if inner.HasField("maxLAC") else None,
    )


def _decode_read_lac_answer(message: Response, txn_id: int, status: Status) -> Answer:
    inner = message.readLacResponse
    return ReadLacAnswer(
        txn_id,
        STATUS_OF_CODE[inner.status] if status is Status.OK else status,
        inner.lacBody if inner.HasField("lacBody") else None,
        inner.lastEntryBody if inner.HasField("lastEntryBody") else None,
    )


def _decode_bookie_info_answer(message: Response, txn_id: int, status: Status) -> Answer:
    inner = message.getBookieInfoResponse
    return BookieInfoAnswer(
        txn_id,
        STATUS_OF_CODE[inner.status] if status is Status.OK else status,
        inner.totalDiskCapacity if inner.HasField("totalDiskCapacity") else None,
        inner.freeDiskSpace if inner.HasField("freeDiskSpace") else None,
    )


def _decode_list_entries_answer(message: Response, txn_id: int, status: Status) -> Answer:
    inner = message.getListOfEntriesOfLedgerResponse
    if status is Status.OK:
        status = STATUS_OF_CODE[inner.status]
    entries = None
    if status is Status.OK:
        with contextlib.suppress(ProtocolError):  # fails this request, not the connection
            entries = decode_entry_list(inner.availabilityOfEntriesOfLedger)
    return ListEntriesAnswer(txn_id, status, entries)


_ANSWER_DECODERS: Final[dict[int, Callable[[Response, int, Status], Answer]]] = {
    ADD_ENTRY: _decode_add_answer,
    FORCE_LEDGER: _decode_force_answer,
    READ_ENTRY: _decode_read_answer,
    READ_LAC: _decode_read_lac_answer,
    GET_BOOKIE_INFO: _decode_bookie_info_answer,
    GET_LIST_OF_ENTRIES_OF_LEDGER: _decode_list_entries_answer,
}
