"""Adds and their answers without protobuf say what protobuf says, for the forms that they know and for all others."""

from __future__ import annotations

import struct

from hypothesis import example, given
from hypothesis import strategies as st

from bkctl.runtime.errors import ProtocolError
from bkctl.runtime.protocol import v3_bookie
from bkctl.runtime.protocol.bookkeeper_wire_pb2 import Request
from bkctl.runtime.protocol.codec import BookieCodec
from bkctl.runtime.protocol.framing import FRAME_BYTES_MAX, encode_frame
from bkctl.runtime.protocol.messages import AddRun, Call, Junk
from bkctl.runtime.protocol.status import Status
from bkctl.runtime.protocol.v2_bookie import decode_packets, is_binary, names_operation
from bkctl.runtime.protocol.v3 import encode_read_request
from bkctl.runtime.protocol.v3_adds import AddForm, consecutive_varints, encode_add_request, parse_adds, varint
from bkctl.runtime.protocol.v3_batches import batch_ids, encode_adds

KEYS = (b"k" * 20, b"")
edges = st.sampled_from([0, 1, 127, 128, 16383, 16384, 2**21, 2**28 - 1, 2**28, 2**35, 2**63 - 1])
ids = edges | st.integers(0, 300)
txn_ids = ids | st.sampled_from([2**63, 2**64 - 1])


def add_payload(txn_id: int, ledger_id: int, entry_id: int, key: bytes, body: bytes) -> bytes:
    """As protobuf writes a plain add."""
    request = Request()
    request.header.version = 3  # type: ignore[assignment]  # numbers are what the wire has
    request.header.operation = 2  # type: ignore[assignment]
    request.header.txnId = txn_id
    request.addRequest.ledgerId = ledger_id
    request.addRequest.entryId = entry_id
    request.addRequest.masterKey = key
    request.addRequest.body = body
    return request.SerializeToString()


def recovery_payload(txn_id: int, ledger_id: int, entry_id: int, key: bytes, body: bytes) -> bytes:
    """A recovery add whose flag comes first, as Java 4.18 writes it."""
    (frame,) = encode_adds(batch_ids(txn_id, ledger_id, [entry_id]), key, [body], True)
    return frame[4:]


@st.composite
def payloads(draw: st.DrawFn) -> bytes:
    """An add as a client sends it, or one that is different in some way: in its flags, its ids, any byte."""
    ledger_id, entry_id, txn_id = draw(ids), draw(ids), draw(txn_ids)
    body_ids = (ledger_id, entry_id) if draw(st.integers(0, 7)) else (draw(ids), draw(ids))
    body = struct.pack(">qqq", *body_ids, entry_id - 1) + bytes(draw(st.sampled_from([0, 8, 80, 81, 200, 16400])))
    payload = add_payload(
        txn_id, ledger_id, entry_id, draw(st.sampled_from(KEYS)), body[: draw(st.integers(15, 17000))]
    )
    match draw(st.integers(0, 9)):
        case 0:
            request = Request.FromString(payload)
            request.header.priority = draw(st.integers(0, 200))
            return request.SerializeToString()
        case 1:
            request = Request.FromString(payload)
            request.addRequest.flag = 1  # type: ignore[assignment]
            return request.SerializeToString()
        case 2:
            request = Request.FromString(payload)
            request.addRequest.writeFlags = draw(st.integers(-1, 3))
            return request.SerializeToString()
        case 3:
            return recovery_payload(txn_id, ledger_id, entry_id, KEYS[0], body)
        case 4:
            return payload[: draw(st.integers(1, 80))]
        case 5:  # a number that is longer than it need be, or any other change
            position = draw(st.integers(0, min(80, len(payload) - 1)))
            changed = draw(st.binary(max_size=2))
            return payload[:position] + changed + payload[position + draw(st.integers(0, 2)) :] or b"\x0a"
    return payload


def adds_of(calls: list[Call]) -> dict[tuple[int, bytes], list[object]]:
    """The adds in their order, ledger by ledger: that of different ledgers means nothing."""
    adds: dict[tuple[int, bytes], list[object]] = {}
    for call in calls:
        if isinstance(call, AddRun):
            columns = zip(call.txn_ids, call.entry_ids, call.bodies, strict=True)
            flags = (call.is_recovery_add, call.is_high_priority, call.is_deferred_sync)
            adds.setdefault((call.ledger_id, call.master_key), []).extend((*column, flags) for column in columns)
    return adds


def by_protobuf(stream: list[bytes]) -> list[Call]:
    calls: list[Call] = []
    for index, payload in enumerate(stream):
        binary = decode_packets(stream[index:], FRAME_BYTES_MAX)
        if is_binary(payload):
            return [*calls, *binary]
        try:
            calls.append(v3_bookie.decode_request(payload))
        except ProtocolError as error:
            return [*calls, *(binary if names_operation(payload) else [Junk(str(error))])]
    return calls


SHORTEST = add_payload(5, 1, 0, KEYS[0], struct.pack(">qqq", 1, 0, -1))
OVERLONG = b"\x0a\x07" + SHORTEST[2:7] + b"\x85\x00" + SHORTEST[8:]
"""The same request, with a transaction id in two bytes."""


@given(stream=st.lists(payloads(), max_size=8), is_repeated=st.booleans())
@example([SHORTEST, OVERLONG, SHORTEST], False)
def test_any_adds_are_read_as_protobuf_reads_them(stream: list[bytes], is_repeated: bool) -> None:
    stream = stream * 2 if is_repeated else stream  # the second time their form is known
    calls, expected = BookieCodec(FRAME_BYTES_MAX).decode(stream), by_protobuf(stream)
    assert adds_of(calls) == adds_of(expected)
    others = [call for call in calls if not isinstance(call, AddRun)]
    expected_others = [call for call in expected if not isinstance(call, AddRun)]
    assert list(map(type, others)) == list(map(type, expected_others))


@given(
    first_txn_id=st.sampled_from([0, 1, 100, 120, 16_370, 2**40 - 20, 2**63 - 30, 2**64 - 30]),
    step=st.integers(1, 3),
    first_entry_id=st.sampled_from([0, 100, 120, 16_370, 2**40 - 15, 2**63 - 30]),
    size=st.sampled_from([24, 100, 200]),
    changes=st.lists(st.tuples(st.integers(0, 24), st.integers(0, 80), st.binary(max_size=2)), max_size=2),
    is_recovery=st.booleans(),
)
@example(0, 1, 0, 100, [], False)
@example(2**40 - 20, 1, 2**40 - 15, 100, [], False)
@example(2**40 - 20, 3, 2**40 - 15, 100, [], False)
def test_consecutive_adds_are_read_as_protobuf_reads_them(
    first_txn_id: int,
    step: int,
    first_entry_id: int,
    size: int,
    changes: list[tuple[int, int, bytes]],
    is_recovery: bool,
) -> None:
    """Many at once, of which a few differ somewhere: in the header, the ids, the body, or their length."""
    write = recovery_payload if is_recovery else add_payload
    stream = [
        write(
            (first_txn_id + step * number) % 2**64,
            7,
            (first_entry_id + number) % 2**63,
            KEYS[0],
            struct.pack(">qqq", 7, (first_entry_id + number) % 2**63, -1) + bytes(size - 24),
        )
        for number in range(25)
    ]
    for index, place, changed in changes:
        stream[index] = stream[index][:place] + changed + stream[index][place + 1 :]
    calls, expected = BookieCodec(FRAME_BYTES_MAX).decode(stream), by_protobuf(stream)
    assert adds_of(calls) == adds_of(expected)
    others = [call for call in calls if not isinstance(call, AddRun)]
    expected_others = [call for call in expected if not isinstance(call, AddRun)]
    assert list(map(type, others)) == list(map(type, expected_others))
    for call in calls:
        if isinstance(call, AddRun) and min(call.entry_ids) >= 0:
            singly = [
                v3_bookie._encode_add(call.ledger_id, *each, Status.OK)
                for each in zip(call.txn_ids, call.entry_ids, strict=True)
            ]
            assert BookieCodec(FRAME_BYTES_MAX).encode(call, Status.OK) == b"".join(singly)


def test_the_size_of_a_run_is_that_of_its_bodies() -> None:
    def sizes() -> list[tuple[int, int]]:
        return [(each.size_bytes, sum(map(len, each.bodies))) for each in (run, first)]

    run = AddRun(1, KEYS[0], False, False, False, [1, 2], [0, 1], [b"a", b"bb"])
    first = run.cut(1)
    assert sizes() == [(2, 2), (1, 1)]
    run.extend([3], [2], [b"ccc"])
    assert sizes() == [(5, 5), (1, 1)]
    run.put_back(first)
    assert sizes() == [(6, 6), (1, 1)]


def test_recovery_adds_become_one_run_and_others_keep_their_place() -> None:
    def payload(entry_id: int, is_recovery: bool) -> bytes:
        write = recovery_payload if is_recovery else add_payload
        return write(entry_id + 1, 1, entry_id, KEYS[0], struct.pack(">qqq", 1, entry_id, -1))

    kinds = [True, True, True, False, False, True, True]
    stream = [payload(entry_id, is_recovery) for entry_id, is_recovery in enumerate(kinds)]
    calls = BookieCodec(FRAME_BYTES_MAX).decode(stream)
    runs = [(call.is_recovery_add, call.entry_ids) for call in calls if isinstance(call, AddRun)]
    assert runs == [(True, [0, 1, 2]), (False, [3, 4]), (True, [5, 6])]
    assert len(calls) == 3


def test_requests_of_any_length_may_follow_an_add() -> None:
    """Shorter than what stands before the body of an add, too: those are read by protobuf, or are junk."""
    for size in range(1, len(SHORTEST)):
        for other in (SHORTEST[:size], encode_read_request(1, 2**size % 2**63, 3, KEYS[0], False)[4:][:size]):
            calls = BookieCodec(FRAME_BYTES_MAX).decode([SHORTEST, SHORTEST, other])
            assert adds_of(calls) == adds_of(by_protobuf([SHORTEST, SHORTEST]))
            assert type(calls[-1]) is type(by_protobuf([other])[-1])


def test_an_add_to_a_negative_ledger_is_read_by_protobuf() -> None:
    body = struct.pack(">qqq", -1, 0, -1)
    payload = add_payload(6, -1, 0, KEYS[0], body)
    add = add_payload(6, 1, 0, KEYS[0], body)
    headless = (
        add[:10] + bytes([add[10] - 3]) + add[14:]
    )  # as if the ledger id and the tag of the entry id were nothing
    assert len(headless) == 11 + headless[10]
    form = AddForm(KEYS[0], len(payload) - len(body), 5, 1)
    assert parse_adds([payload], 0, form).txn_ids == []
    assert parse_adds([headless], 0, form._replace(overhead_bytes=len(headless) - len(body))).txn_ids == []


@given(
    is_recovery=st.booleans(),
    txn_id=txn_ids,
    adds=st.lists(st.tuples(st.integers(1, 3), ids, ids, st.sampled_from([24, 120, 127, 128, 200])), min_size=1),
)
def test_what_protobuf_writes_in_this_form_needs_no_protobuf(
    is_recovery: bool, txn_id: int, adds: list[tuple[int, int, int, int]]
) -> None:
    """All adds of one form are taken: with any gaps in their ids, and to any ledger."""
    stream: list[bytes] = []
    expected: list[tuple[int, int, int, bytes]] = []
    for step, ledger_id, entry_id, size in adds:
        txn_id = (txn_id + step) % 2**63
        body = struct.pack(">qqq", ledger_id, entry_id, -1) + bytes(size - 24)
        write = recovery_payload if is_recovery else add_payload
        payload = write(txn_id, ledger_id, entry_id, KEYS[0], body)
        if not stream or len(payload) - size == len(stream[0]) - len(expected[0][3]):
            stream.append(payload)
            expected.append((txn_id, ledger_id, entry_id, body))
    form = AddForm(KEYS[0], len(stream[0]) - len(expected[0][3]), 0, 1, is_recovery)
    adds_read = parse_adds(stream, 0, form)
    assert list(zip(*adds_read[:4], strict=True)) == expected


@given(txn_id=txn_ids, ledger_id=ids, entry_id=ids, key=st.binary(max_size=130), body=st.binary(max_size=300))
def test_requests_are_written_as_protobuf_writes_them(
    txn_id: int, ledger_id: int, entry_id: int, key: bytes, body: bytes
) -> None:
    frame = encode_add_request(txn_id, ledger_id, entry_id, key, body)
    assert frame == encode_frame(add_payload(txn_id, ledger_id, entry_id, key, body))


@given(st.integers(0, 2**64 - 1) | edges)
def test_a_varint_has_the_bits_of_its_number_and_is_as_short_as_can_be(number: int) -> None:
    data = varint(number)
    assert sum((byte & 127) << 7 * index for index, byte in enumerate(data)) == number
    assert [byte > 127 for byte in data] == [True] * (len(data) - 1) + [False]
    assert len(data) == max(1, -(-number.bit_length() // 7))


@given(first=st.integers(0, 2**64 - 40_000) | edges.filter(lambda number: number < 2**63 - 1), count=st.integers(0, 40))
@example(first=16_000, count=40_000)
@example(first=0, count=3)
def test_consecutive_varints_are_those_of_each_number(first: int, count: int) -> None:
    assert consecutive_varints(first, count) == [varint(number) for number in range(first, first + count)]
