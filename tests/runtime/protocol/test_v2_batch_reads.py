"""Batch reads are written as a Java bookie reads them, and its answers are read; everything else is refused."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bkctl.runtime.errors import ProtocolError
from bkctl.runtime.protocol.status import Status
from bkctl.runtime.protocol.v2_batch_reads import (
    BatchReadAnswer,
    BatchReadCall,
    decode_batch_read_answer,
    encode_batch_read,
)
from tests.runtime.protocol.golden import Row, rows

STATUSES = {
    "EOK": Status.OK,
    "ENOLEDGER": Status.NO_SUCH_LEDGER,
    "ENOENTRY": Status.NO_SUCH_ENTRY,
    "EUNKNOWNLEDGERSTATE": Status.UNKNOWN_LEDGER_STATE,
}
HEAD = struct.Struct(">Iiqqq")
HEADER = 0x02070000


def exchanges() -> list[Row]:
    return rows("v2-batch-reads-4.18.0.jsonl")


@pytest.mark.parametrize("row", [row for row in exchanges() if row.direction == "request"], ids=lambda row: row.name)
def test_requests_are_java_s(row: Row) -> None:
    fields = row.decoded
    call = BatchReadCall(
        fields["requestId"], fields["ledgerId"], fields["entryId"], fields["maxCount"], fields["maxSize"]
    )
    assert encode_batch_read(call) == row.frame


@pytest.mark.parametrize("row", [row for row in exchanges() if row.direction == "response"], ids=lambda row: row.name)
def test_answers_of_java_are_read(row: Row) -> None:
    fields = row.decoded
    answer = decode_batch_read_answer(row.payload)
    assert answer == BatchReadAnswer(
        fields["requestId"],
        fields["ledgerId"],
        fields["entryId"],
        STATUSES[fields["status"]],
        [bytes.fromhex(body) for body in fields["bodies"]],
    )


def test_a_gap_ends_an_answer() -> None:
    (answer,) = [row for row in exchanges() if (row.name, row.direction) == ("batch-gap", "response")]
    decoded = decode_batch_read_answer(answer.payload)
    assert decoded.status is Status.OK
    assert len(decoded.bodies) == 2


@pytest.mark.parametrize("row", [row for row in exchanges() if row.direction == "response"], ids=lambda row: row.name)
def test_any_other_length_is_refused(row: Row) -> None:
    boundaries = {32}
    for body in row.decoded["bodies"]:
        boundaries.add(max(boundaries) + 4 + len(body) // 2)
    boundaries -= {32} if row.decoded["bodies"] else set()
    for size in range(len(row.payload)):
        if size not in boundaries:
            with pytest.raises(ProtocolError):
                decode_batch_read_answer(row.payload[:size])
    for more in (b"x", b"\0\0\0", b"\0\0\0\x05four", b"\xff\xff\xff\xff", b"\x80\0\0\0"):
        with pytest.raises(ProtocolError):
            decode_batch_read_answer(row.payload + more)


@pytest.mark.parametrize(
    "payload",
    [
        HEAD.pack(HEADER, 0, 1, 0, 1),  # no entries
        HEAD.pack(HEADER, 2, 1, 0, 1) + b"\0\0\0\x01x",  # entries with an error
        HEAD.pack(HEADER, 99, 1, 0, 1),  # a code that is not in the protocol
        HEAD.pack(HEADER, -1, 1, 0, 1),
        HEAD.pack(0x02020000, 2, 1, 0, 1),  # a single read
        HEAD.pack(0x01070000, 2, 1, 0, 1),  # version 1
        HEAD.pack(0x02070001, 2, 1, 0, 1),  # a flag
        bytes.fromhex("0a060803100418011000"),  # v3
    ],
)
def test_what_is_no_answer_is_refused(payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_batch_read_answer(payload)


def test_an_answer_fits_its_own_request_only() -> None:
    answer = BatchReadAnswer(7, 1, 5, Status.OK, [b"five", b"six"])
    assert answer.fits(BatchReadCall(7, 1, 5, 2, 100))
    assert not answer.fits(BatchReadCall(7, 2, 5, 2, 100))
    assert not answer.fits(BatchReadCall(7, 1, 4, 2, 100))
    assert not answer.fits(BatchReadCall(7, 1, 5, 1, 100))


@given(bodies=st.lists(st.binary(max_size=40), min_size=1, max_size=5))
def test_bodies_of_any_size(bodies: list[bytes]) -> None:
    payload = HEAD.pack(HEADER, 0, 3, 4, 5) + b"".join(struct.pack(">I", len(body)) + body for body in bodies)
    assert decode_batch_read_answer(payload) == BatchReadAnswer(5, 3, 4, Status.OK, bodies)


@given(st.binary(max_size=80) | st.binary(max_size=60).map(lambda rest: struct.pack(">II", HEADER, 0) + rest))
def test_any_bytes_are_an_answer_or_an_error(payload: bytes) -> None:
    try:
        answer = decode_batch_read_answer(payload)
    except ProtocolError:
        return
    size = HEAD.size + sum(4 + len(body) for body in answer.bodies)
    assert size == len(payload)
