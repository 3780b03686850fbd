"""Requests and answers against recorded frames, both ways; any bytes give a message or ProtocolError."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bkctl.runtime.errors import ProtocolError
from bkctl.runtime.protocol import v3, v3_bookie
from bkctl.runtime.protocol.bookkeeper_wire_pb2 import Request, Response
from bkctl.runtime.protocol.codec import BookieCodec, handshake_answer
from bkctl.runtime.protocol.framing import FRAME_BYTES_MAX, FrameSplitter, encode_frame, read_buffer
from bkctl.runtime.protocol.messages import (
    AddAnswer,
    AddRun,
    Answer,
    BookieInfoAnswer,
    BookieInfoCall,
    Call,
    ForceLedgerCall,
    HandshakeCall,
    Junk,
    ListEntriesAnswer,
    ListEntriesCall,
    LongPollRead,
    OtherAnswer,
    ReadAnswer,
    ReadCall,
    ReadLacAnswer,
    ReadLacCall,
    ReadRun,
    RefusedCall,
    WriteLacCall,
)
from bkctl.runtime.protocol.status import Status
from tests.runtime.protocol.golden import Row, rows, vectors

WIRE_STATUSES = [status for status in Status if status >= 0]
STATUS_OF_NAME = {
    "EOK": Status.OK,
    "ENOLEDGER": Status.NO_SUCH_LEDGER,
    "ENOENTRY": Status.NO_SUCH_ENTRY,
    "EBADREQ": Status.BAD_REQUEST,
    "EIO": Status.IO_ERROR,
    "EUA": Status.UNAUTHORIZED,
    "EBADVERSION": Status.BAD_VERSION,
    "EFENCED": Status.FENCED,
    "EREADONLY": Status.READ_ONLY,
    "ETOOMANYREQUESTS": Status.TOO_MANY_REQUESTS,
    "EUNKNOWNLEDGERSTATE": Status.UNKNOWN_LEDGER_STATE,
}
FENCE_LEDGER = 1
ENTRY_PIGGYBACK = 2
ENTRY_PIGGYBACK = 2

EXCHANGES = [
    (name, list(group)) for name, group in itertools.groupby(rows("v3-bookie-4.18.0.jsonl"), key=lambda row: row.name)
]
JAVA_REQUESTS = rows("v3-java-clients.jsonl")
BOOKIE_REQUESTS = [row for _, group in EXCHANGES for row in group if row.direction == "request"]
RESPONSES = [row for _, group in EXCHANGES for row in group if row.direction == "response"]

SERVED = {"ADD_ENTRY", "READ_ENTRY", "READ_LAC", "WRITE_LAC", "FORCE_LEDGER", "GET_BOOKIE_INFO",
          "GET_LIST_OF_ENTRIES_OF_LEDGER"}  # fmt: skip


def as_bytes(value: str | None) -> bytes | None:
    return None if value is None else bytes.fromhex(value)


def is_served(row: Row) -> bool:
    """Whether the request reaches the handler; the others are answered, or refused, by the protocol alone."""
    header, inner = row.decoded["header"], row.inner
    if header["version"] != 3 or row.operation not in SERVED:
        return False
    if row.operation == "READ_ENTRY" and inner.get("flag") == FENCE_LEDGER:
        return "masterKey" in inner
    if row.operation == "READ_ENTRY" and inner.get("flag") == ENTRY_PIGGYBACK and "previousLAC" in inner:
        return bool(inner["entryId"] == -1)
    return True


def one_by_one(calls: list[Call]) -> list[Call]:
    """The calls, with runs taken apart."""
    seen: list[Call] = []
    for call in calls:
        if isinstance(call, ReadRun):
            seen += call.singly()
            continue
        while isinstance(call, AddRun) and len(call.bodies) > 1:
            seen.append(call.cut(1))
        seen.append(call)
    return seen


def answered_by_the_protocol(call: Call) -> bytes:
    """The answer to a request that no handler sees."""
    codec = BookieCodec(FRAME_BYTES_MAX)
    if isinstance(call, RefusedCall):
        return codec.encode(call.call, call.status)
    assert isinstance(call, HandshakeCall)
    return codec.encode(call, handshake_answer(call))


def expected_call(row: Row) -> Call:
    """The call that another reader's view of the frame stands for."""
    header, inner = row.decoded["header"], row.inner
    txn_id, is_high_priority = header["txnId"], header.get("priority", 0) > 0
    match row.operation:
        case "ADD_ENTRY":
            return AddRun(
                inner["ledgerId"],
                bytes.fromhex(inner["masterKey"]),
                inner.get("flag") == 1,
                is_high_priority,
                inner.get("writeFlags", 0) & 1 == 1,
                [txn_id],
                [inner["entryId"]],
                [bytes.fromhex(inner["body"])],
            )
        case "READ_ENTRY":
            if "previousLAC" in inner:
                waiting = inner["previousLAC"], inner["timeOut"], inner.get("flag") == ENTRY_PIGGYBACK
                return LongPollRead(txn_id, inner["ledgerId"], inner["entryId"], *waiting, is_high_priority)
            key = as_bytes(inner["masterKey"]) if inner.get("flag") == FENCE_LEDGER else None
            return ReadCall(txn_id, inner["ledgerId"], inner["entryId"], key, is_high_priority)
        case "READ_LAC":
            return ReadLacCall(txn_id, inner["ledgerId"])
        case "WRITE_LAC":
            return WriteLacCall(
                txn_id, inner["ledgerId"], bytes.fromhex(inner["masterKey"]), bytes.fromhex(inner["body"])
            )
        case "FORCE_LEDGER":
            return ForceLedgerCall(txn_id, inner["ledgerId"])
        case "GET_LIST_OF_ENTRIES_OF_LEDGER":
            return ListEntriesCall(txn_id, inner["ledgerId"])
    return BookieInfoCall(txn_id, inner.get("requested", 0))


def answers(group: list[Row]) -> list[tuple[Row, Row]]:
    """Requests of one exchange with their answers, matched by transaction id."""
    responses = {row.decoded["header"]["txnId"]: row for row in group if row.direction == "response"}
    return [
        (row, responses[row.decoded["header"]["txnId"]])
        for row in group
        if row.direction == "request" and row.decoded.get("header", {}).get("txnId") in responses
    ]


def test_the_recordings_cover_what_is_tested() -> None:
    assert {row.operation for row in BOOKIE_REQUESTS if is_served_or_none(row)} == SERVED
    assert {row.decoded["status"] for row in RESPONSES} >= {"EOK", "ENOLEDGER", "ENOENTRY", "EBADREQ", "EIO", "EUA"}


def is_served_or_none(row: Row) -> bool:
    return "header" in row.decoded and is_served(row)


@pytest.mark.parametrize("row", [row for row in JAVA_REQUESTS if is_served(row)], ids=lambda row: row.name)
def test_requests_of_java_clients_are_understood(row: Row) -> None:
    assert v3_bookie.decode_request(row.payload) == expected_call(row)


@pytest.mark.parametrize(
    ("request_row", "response_row"),
    [pytest.param(*pair, id=name) for name, group in EXCHANGES for pair in answers(group)],
)
def test_recorded_requests_reach_the_handler_or_are_answered_as_java_does(request_row: Row, response_row: Row) -> None:
    call = v3_bookie.decode_request(request_row.payload)
    if is_served(request_row):
        assert call == expected_call(request_row)
    else:
        assert answered_by_the_protocol(call) == response_row.frame


@pytest.mark.parametrize(
    "row",
    [
        row
        for name, group in EXCHANGES
        for row in group
        if row.direction == "request" and any(other.direction == "close" for other in group)
        if row.name != "v3-group-field"  # a restriction of Java 4.18 alone
    ],
    ids=lambda row: row.name,
)
def test_what_java_closes_the_connection_on_is_no_request(row: Row) -> None:
    with pytest.raises(ProtocolError):
        v3_bookie.decode_request(row.payload)


def test_the_first_v2_packet_makes_all_that_follow_binary() -> None:
    binary = bytes.fromhex("0202000000000000000000010000000000000000")
    add = v3.encode_add_request(1, 1, 0, b"key", b"body", False, False)[4:]
    codec = BookieCodec(FRAME_BYTES_MAX)
    first, second, junk = codec.decode([add, binary, add])
    assert first == v3_bookie.decode_request(add)
    assert isinstance(second, ReadCall)
    assert (second.ledger_id, second.entry_id) == (1, 0)
    assert isinstance(junk, Junk)
    assert [type(call) for call in codec.decode([binary])] == [ReadCall]


def encode_response(row: Row) -> bytes:
    """The frame of the answer that a handler would give to the request."""
    inner: dict[str, Any] = row.inner
    txn_id, status = row.decoded["header"]["txnId"], STATUS_OF_NAME[row.decoded["status"]]
    ledger_id: int = inner.get("ledgerId", 0)
    codec = BookieCodec(FRAME_BYTES_MAX)
    match row.operation:
        case "ADD_ENTRY":
            return codec.encode(
                AddRun(ledger_id, b"", False, False, False, [txn_id], [inner["entryId"]], [b""]), status
            )
        case "READ_ENTRY":
            body, lac = as_bytes(inner.get("body")), inner.get("maxLAC")
            read = ReadCall(txn_id, ledger_id, inner["entryId"], None, False)
            return codec.encode(read, ReadAnswer(txn_id, status, body, lac))
        case "READ_LAC":
            bodies = as_bytes(inner.get("lacBody")), as_bytes(inner.get("lastEntryBody"))
            return codec.encode(ReadLacCall(txn_id, ledger_id), ReadLacAnswer(txn_id, status, *bodies))
        case "WRITE_LAC":
            return codec.encode(WriteLacCall(txn_id, ledger_id, b"", b""), status)
        case "FORCE_LEDGER":
            return codec.encode(ForceLedgerCall(txn_id, ledger_id), status)
        case "GET_LIST_OF_ENTRIES_OF_LEDGER":
            return codec.encode(ListEntriesCall(txn_id, ledger_id), status)
    total, free = inner.get("totalDiskCapacity"), inner.get("freeDiskSpace")
    requested = (total is not None) + 2 * (free is not None)
    return codec.encode(BookieInfoCall(txn_id, requested), BookieInfoAnswer(txn_id, status, total or 1, free or 1))


def expected_answer(row: Row) -> Answer:
    inner = row.inner
    txn_id, status = row.decoded["header"]["txnId"], STATUS_OF_NAME[row.decoded["status"]]
    match row.operation:
        case "ADD_ENTRY":
            return AddAnswer(txn_id, status)
        case "READ_ENTRY":
            return ReadAnswer(txn_id, status, as_bytes(inner.get("body")), inner.get("maxLAC"))
        case "READ_LAC":
            return ReadLacAnswer(txn_id, status, as_bytes(inner.get("lacBody")), as_bytes(inner.get("lastEntryBody")))
        case "GET_BOOKIE_INFO":
            return BookieInfoAnswer(txn_id, status, inner.get("totalDiskCapacity"), inner.get("freeDiskSpace"))
        case "GET_LIST_OF_ENTRIES_OF_LEDGER":
            return ListEntriesAnswer(txn_id, status, None)
    return OtherAnswer(txn_id, status)


@pytest.mark.parametrize(
    "row",
    [
        row
        for row in RESPONSES
        if row.operation in SERVED and "lacUpdateTimestamp" not in row.inner  # only a long poll has the latter
    ],
    ids=lambda row: row.name,
)
def test_answers_are_written_as_java_writes_them(row: Row) -> None:
    assert encode_response(row) == row.frame


@pytest.mark.parametrize("row", RESPONSES, ids=lambda row: row.name)
def test_answers_of_java_are_understood(row: Row) -> None:
    assert v3.decode_response(row.payload) == expected_answer(row)


def test_our_requests_are_those_of_java_clients() -> None:
    golden, key = vectors(), vectors()["master b'testPasswd'"]
    body = golden["body CRC32C"]
    assert v3.encode_add_request(1, 1, 0, key, body, False, False) == golden["v3 add"]
    assert v3.encode_add_request(2, 1, 0, key, body, True, True) == golden["v3 recovery add (number order)"]
    assert v3.encode_read_request(3, 1, -1, key, False) == golden["v3 fence read -1 (number order)"]
    assert v3.encode_read_lac_request(5, 1) == golden["v3 readlac req"]
    assert v3.encode_bookie_info_request(6) == golden["v3 info req"]
    plain_read = next(row for row in JAVA_REQUESTS if row.name == "java-v3-read")
    assert v3.encode_read_request(4, 1, 0, None, False) == plain_read.frame
    force = next(row for row in BOOKIE_REQUESTS if row.name == "force")
    assert v3.encode_force_request(force.decoded["header"]["txnId"], force.inner["ledgerId"]) == force.frame


ids = st.integers(-(2**63), 2**63 - 1)
txn_ids = st.integers(0, 2**64 - 1)


@given(
    txn_id=txn_ids,
    ledger_id=ids,
    entry_id=ids,
    key=st.binary(),
    body=st.binary(),
    flags=st.tuples(*[st.booleans()] * 3),
)
def test_adds_round_trip(
    txn_id: int, ledger_id: int, entry_id: int, key: bytes, body: bytes, flags: tuple[bool, bool, bool]
) -> None:
    frame = v3.encode_add_request(txn_id, ledger_id, entry_id, key, body, *flags)
    run = AddRun(ledger_id, key, *flags, [txn_id], [entry_id], [body])
    assert v3_bookie.decode_request(frame[4:]) == run


@given(txn_id=txn_ids, ledger_id=ids, entry_id=ids, key=st.none() | st.binary(), is_high_priority=st.booleans())
def test_reads_round_trip(
    txn_id: int, ledger_id: int, entry_id: int, key: bytes | None, is_high_priority: bool
) -> None:
    frame = v3.encode_read_request(txn_id, ledger_id, entry_id, key, is_high_priority)
    assert v3_bookie.decode_request(frame[4:]) == ReadCall(txn_id, ledger_id, entry_id, key, is_high_priority)


@given(
    ledger_id=ids, adds=st.lists(st.tuples(txn_ids, ids), min_size=1, max_size=5), status=st.sampled_from(WIRE_STATUSES)
)
def test_a_run_is_answered_with_a_frame_for_each_add(
    ledger_id: int, adds: list[tuple[int, int]], status: Status
) -> None:
    frames = b""
    for txn_id, entry_id in adds:
        response = Response()
        response.header.version = 3  # type: ignore[assignment]  # numbers are what the wire has
        response.header.operation = 2  # type: ignore[assignment]
        response.header.txnId = txn_id
        response.status = response.addResponse.status = int(status)  # type: ignore[assignment]
        response.addResponse.ledgerId = ledger_id
        response.addResponse.entryId = entry_id
        frames += encode_frame(response.SerializeToString())
    run = AddRun(ledger_id, b"", False, False, False, [txn for txn, _ in adds], [entry for _, entry in adds], [])
    assert BookieCodec(FRAME_BYTES_MAX).encode(run, status) == frames


def test_inner_status_counts_where_the_outer_says_ok() -> None:
    frame = BookieCodec(FRAME_BYTES_MAX).encode(ReadCall(1, 1, 1, None, False), Status.NO_SUCH_ENTRY)
    message = Response.FromString(frame[4:])
    message.status = 0  # type: ignore[assignment]
    assert v3.decode_response(message.SerializeToString()) == ReadAnswer(1, Status.NO_SUCH_ENTRY, None, None)


def test_an_add_is_acknowledged_only_by_a_whole_answer() -> None:
    header_only = bytes.fromhex("0a060803100218011000")
    with pytest.raises(ProtocolError):
        v3.decode_response(header_only)
    refused = bytes.fromhex("0a0608031002180110f803")
    assert v3.decode_response(refused) == AddAnswer(1, Status.FENCED)


def test_unauthorized_without_a_message_of_the_operation_asks_for_authentication() -> None:
    header_only = bytes.fromhex("0a0608031002180110f603")
    assert v3.decode_response(header_only) == AddAnswer(1, Status.AUTHENTICATION_REQUIRED)
    wrong_key = bytes.fromhex("0a0608031002180110f603" + "aa060708f60310011800")
    assert v3.decode_response(wrong_key) == AddAnswer(1, Status.UNAUTHORIZED)


def test_a_status_that_is_not_in_the_protocol_is_no_answer() -> None:
    with pytest.raises(ProtocolError):
        v3.decode_response(bytes.fromhex("0a06080310021801" + "10e707" + "aa060708e70710011800"))


def calls_of(stream: bytes, cuts: list[int]) -> list[Any]:
    """What a connection makes of a stream that arrives in pieces, adds one by one; it ends at the first error."""
    splitter = FrameSplitter(10_000, read_buffer(64))
    codec = BookieCodec(10_000)
    seen: list[Any] = []
    edges = [0, *sorted(cuts), len(stream)]
    for start, stop in itertools.pairwise(edges):
        piece = stream[start:stop]
        while piece:
            space = splitter.free_space()
            taken = min(len(space), len(piece))
            space[:taken] = piece[:taken]
            splitter.advance(taken)
            try:
                while payloads := splitter.payloads():
                    seen.extend(one_by_one(codec.decode(payloads)))
                    if isinstance(seen[-1], Junk):
                        return seen
            except ProtocolError as error:
                return [*seen, Junk(str(error))]
            piece = piece[taken:]
    return seen


VALID_FRAMES = [row.frame for row in BOOKIE_REQUESTS]


@st.composite
def damaged_streams(draw: st.DrawFn) -> bytes:
    """Recorded requests one behind the other, with some bytes changed, cut out or put in."""
    stream = bytearray(b"".join(draw(st.lists(st.sampled_from(VALID_FRAMES), min_size=1, max_size=4))))
    for _ in range(draw(st.integers(0, 3))):
        position = draw(st.integers(0, len(stream) - 1)) if stream else 0
        stream[position : position + draw(st.integers(0, 2))] = draw(st.binary(max_size=3))
    return bytes(stream)


@given(stream=st.binary(max_size=200) | damaged_streams())
def test_any_bytes_give_requests_or_a_protocol_error_in_one_piece_or_byte_by_byte(stream: bytes) -> None:
    assert calls_of(stream, []) == calls_of(stream, list(range(1, len(stream))))


@given(payload=st.binary(min_size=1, max_size=100) | st.sampled_from(RESPONSES).map(lambda row: row.payload[:-1]))
def test_any_bytes_give_an_answer_or_a_protocol_error(payload: bytes) -> None:
    try:
        answer = v3.decode_response(payload)
    except ProtocolError:
        return
    assert answer.txn_id >= 0


@given(operation=st.integers(1, 12), field=st.integers(100, 108), inner=st.binary(max_size=40))
def test_any_inner_message_gives_a_request_or_a_protocol_error(operation: int, field: int, inner: bytes) -> None:
    message = Request()
    message.header.version = 3  # type: ignore[assignment]
    message.header.operation = operation  # type: ignore[assignment]
    message.header.txnId = 9
    tag = field << 3 | 2
    field_bytes = bytes([tag & 0x7F | 0x80, tag >> 7, len(inner)]) + inner
    try:
        call = v3_bookie.decode_request(message.SerializeToString() + field_bytes)
    except ProtocolError:
        return
    request = call.call if isinstance(call, RefusedCall) else call
    assert not isinstance(request, Junk)
    assert (request.txn_ids == [9]) if isinstance(request, AddRun) else (request.txn_id == 9)
