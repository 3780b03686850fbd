"""Reads and their answers without protobuf say what protobuf says, for the forms that they know and for all others."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from bkctl.runtime.protocol import v3
from bkctl.runtime.protocol.bookkeeper_wire_pb2 import Request, Response
from bkctl.runtime.protocol.codec import BookieCodec
from bkctl.runtime.protocol.framing import FRAME_BYTES_MAX, FrameSplitter, encode_frame, read_buffer
from bkctl.runtime.protocol.messages import Junk, LongPollRead, ReadCall, ReadRun
from bkctl.runtime.protocol.v3_reads import FIRST_FORM, parse_reads
from tests.runtime.protocol.test_v3 import one_by_one
from tests.runtime.protocol.test_v3_adds import KEYS, by_protobuf, ids, txn_ids

steps = st.sampled_from([1, 1, 1, 3, -1, 0, 2**14, -(2**35)])


@st.composite
def payloads(draw: st.DrawFn) -> list[bytes]:
    """Reads as a client sends them, one after the other, or one that is different in some way."""
    txn_id, ledger_id, entry_id = draw(txn_ids), draw(ids), draw(ids | st.just(-1))
    txn_step, entry_step = draw(steps), draw(steps)
    numbers = range(draw(st.integers(1, 4) | st.sampled_from([8, 9, 20, 150])))
    columns = [((txn_id + n * txn_step) % 2**64, (entry_id + n * entry_step) % 2**63) for n in numbers]
    reads = [v3.encode_read_request(txn, ledger_id, entry, None, is_high_priority=False)[4:] for txn, entry in columns]
    payload = v3.encode_read_request(txn_id, ledger_id, entry_id, None, is_high_priority=False)[4:]
    match draw(st.integers(0, 7)):
        case 0:
            return [v3.encode_read_request(txn_id, ledger_id, entry_id, KEYS[0], draw(st.booleans()))[4:]]
        case 1:
            return [v3.encode_poll_request(txn_id, ledger_id, entry_id, 5)[4:]]
        case 2:
            request = Request.FromString(payload)
            request.readRequest.flag = draw(st.integers(1, 2))  # type: ignore[assignment]
            return [request.SerializeToString()]
        case 3:
            return [payload[: draw(st.integers(1, len(payload)))] + bytes(draw(st.sampled_from([0, 1, 70_000])))]
        case 4:  # a number that is longer than it need be, or any other change
            position = draw(st.integers(0, len(payload) - 1))
            changed = draw(st.binary(max_size=2))
            return [payload[:position] + changed + payload[position + draw(st.integers(0, 2)) :] or b"\x0a"]
    return reads


def fields(call: object) -> object:
    """What tells two calls apart."""
    return str(call) if isinstance(call, ReadCall | LongPollRead) else type(call)


def run_of(calls: list[ReadCall]) -> ReadRun:
    """The same reads as a run."""
    first = calls[0]
    columns = [call.txn_id for call in calls], [call.entry_id for call in calls]
    return ReadRun(first.txn_id, first.ledger_id, first.is_high_priority, *columns)


PLAIN = v3.encode_read_request(5, 1, 0, None, is_high_priority=False)[4:]
OVERLONG = b"\x0a\x07" + PLAIN[2:7] + b"\x85\x00" + PLAIN[8:]
"""The same request, with a transaction id in two bytes."""


@given(streams=st.lists(payloads(), max_size=5))
@example([[PLAIN, OVERLONG, PLAIN]])
def test_any_reads_are_read_as_protobuf_reads_them(streams: list[list[bytes]]) -> None:
    stream = [payload for part in streams for payload in part]
    calls = one_by_one(BookieCodec(FRAME_BYTES_MAX).decode(stream))
    expected = by_protobuf(stream)
    assert [fields(call) for call in calls] == [fields(call) for call in expected]
    assert not any(isinstance(call, Junk) for call in calls[:-1])


def test_reads_in_their_usual_form_need_no_protobuf() -> None:
    stream = [v3.encode_read_request(2 * n + 9, 7 + n // 100, 250 - n, None, False)[4:] for n in range(250)]
    runs, _ = parse_reads(stream, 0, FIRST_FORM)
    assert [(run.ledger_id, len(run.txn_ids)) for run in runs] == [(7, 100), (8, 100), (9, 50)]
    assert parse_reads([PLAIN[:-1], *stream], 0, FIRST_FORM) == ([], FIRST_FORM)


def split(data: bytes) -> list[bytes]:
    splitter = FrameSplitter(FRAME_BYTES_MAX, read_buffer(len(data)))
    splitter.free_space()[:] = data
    splitter.advance(len(data))
    return splitter.payloads()


@given(
    reads=st.lists(st.tuples(txn_ids, ids, st.sampled_from([0, 1, 127, 128, 70_000])), min_size=1, max_size=5),
    ledger_id=ids,
    lac=st.none() | st.just(-1) | ids,
)
def test_answers_are_written_as_protobuf_writes_them(
    reads: list[tuple[int, int, int]], ledger_id: int, lac: int | None
) -> None:
    calls = [ReadCall(txn_id, ledger_id, entry_id, None, False) for txn_id, entry_id, _ in reads]
    bodies = [b"x" * size for _, _, size in reads]
    frames = []
    for call, body in zip(calls, bodies, strict=True):
        response = Response()
        response.header.version = 3  # type: ignore[assignment]
        response.header.operation = 1  # type: ignore[assignment]
        response.header.txnId = call.txn_id
        response.status = response.readResponse.status = 0  # type: ignore[assignment]
        response.readResponse.ledgerId = ledger_id
        response.readResponse.entryId = call.entry_id
        response.readResponse.body = body
        if lac is not None:
            response.readResponse.maxLAC = lac
        frames.append(encode_frame(response.SerializeToString()))
    assert BookieCodec(FRAME_BYTES_MAX).encode_bodies(run_of(calls), bodies, lac) == b"".join(frames)


def test_a_body_too_large_for_a_frame_becomes_an_error_and_the_others_do_not() -> None:
    calls = [ReadCall(n + 1, 1, n, None, False) for n in range(3)]
    answers = split(BookieCodec(4096).encode_bodies(run_of(calls), [b"a", bytes(4096), b"c"], 2))
    assert [Response.FromString(answer).status for answer in answers] == [0, 501, 0]
    binary = [ReadCall(-3, 1, n, None, False) for n in range(3)]
    answers = split(BookieCodec(4096).encode_bodies(run_of(binary), [b"a", bytes(4096), b"c"], None))
    assert [int.from_bytes(answer[4:8]) for answer in answers] == [0, 101, 0]
    assert answers[2][24:] == b"c"
