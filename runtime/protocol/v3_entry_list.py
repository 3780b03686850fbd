"""GET_LIST_OF_ENTRIES_OF_LEDGER of wire protocol v3: request and answer. Source: wire sections 4.3 and 5.9."""

from __future__ import annotations

from typing import cast

from runtime.protocol.bookkeeper_wire_pb2 import (
    GET_LIST_OF_ENTRIES_OF_LEDGER,
    VERSION_THREE,
    BKPacketHeader,
    Request,
    Response,
    StatusCode,
)
from runtime.protocol.framing import encode_frame
from runtime.protocol.messages import ListEntriesAnswer
from runtime.protocol.status import Status


def encode_list_entries_request(txn_id: int, ledger_id: int) -> bytes:
    """Request for the ids of all entries that the bookie has of a ledger."""
    request = Request(header=_header(txn_id))
    request.getListOfEntriesOfLedgerRequest.ledgerId = ledger_id
    return encode_frame(request.SerializeToString())


def encode_list_entries_response(txn_id: int, ledger_id: int, status: Status, blob: bytes | None) -> bytes:
    """Answer with the blob of ``runtime.protocol.entry_list``, which only OK has."""
    code = cast("StatusCode", status)
    response = Response(header=_header(txn_id), status=code)
    inner = response.getListOfEntriesOfLedgerResponse
    inner.status = code
    inner.ledgerId = ledger_id
    if blob is not None:
        inner.availabilityOfEntriesOfLedger = blob
    return encode_frame(response.SerializeToString())


def decode_list_entries_answer(message: Response, txn_id: int, status: Status) -> ListEntriesAnswer:
    """Read an answer whose outer status is ``status``."""
    inner = message.getListOfEntriesOfLedgerResponse
    return ListEntriesAnswer(
        txn_id,
        Status(inner.status) if status is Status.OK else status,
        inner.availabilityOfEntriesOfLedger if inner.HasField("availabilityOfEntriesOfLedger") else None,
    )


def _header(txn_id: int) -> BKPacketHeader:
    return BKPacketHeader(version=VERSION_THREE, operation=GET_LIST_OF_ENTRIES_OF_LEDGER, txnId=txn_id)
