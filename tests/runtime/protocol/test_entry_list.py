"""The blob of wire section 11: Java's bytes both ways, and what a hostile or striped one says."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bkctl.runtime.errors import ProtocolError
from bkctl.runtime.protocol import v3, v3_bookie
from bkctl.runtime.protocol.codec import BookieCodec
from bkctl.runtime.protocol.entry_list import (
    EntryGroup,
    EntryList,
    EntryListBuilder,
    decode_entry_list,
    encode_entry_list,
)
from bkctl.runtime.protocol.messages import ListEntriesAnswer, ListEntriesCall, RefusedCall
from bkctl.runtime.protocol.status import Status
from tests.runtime.protocol.golden import Row, rows, vectors

GOLDEN = rows("v3-list-of-entries.jsonl")
FRAME_BYTES = 5 << 20
HEADER = bytes(7)

JAVA_BLOBS = {
    (): "",
    (0, 1, 2): "0000000000000000 0000000000000000 00000003 00000000",
    (
        0,
        1,
        5,
    ): "0000000000000000 0000000000000000 00000002 00000000 0000000000000005 0000000000000005 00000001 00000000",
    (1, 2, 4, 5, 7, 8): "0000000000000001 0000000000000001 00000002 00000000 0000000000000004 0000000000000004"
    " 00000002 00000000 0000000000000007 0000000000000007 00000002 00000000",
}


def list_of(*entry_ids: int) -> EntryList:
    builder = EntryListBuilder()
    builder.extend(entry_ids)
    return builder.finish()


@pytest.mark.parametrize("entry_ids", JAVA_BLOBS)
def test_blobs_are_those_of_java(entry_ids: tuple[int, ...]) -> None:
    groups = bytes.fromhex(JAVA_BLOBS[entry_ids])
    blob = bytes(4) + (len(groups) // 24).to_bytes(4, "big") + bytes(56) + groups
    assert encode_entry_list(list_of(*entry_ids), FRAME_BYTES) == blob
    decoded = decode_entry_list(blob)
    assert [entry_id for entry_id in range(20) if entry_id in decoded] == list(entry_ids)
    assert len(decoded) == len(entry_ids)


@pytest.mark.parametrize("row", [row for row in GOLDEN if row.direction == "request"], ids=lambda row: row.name)
def test_requests_of_java(row: Row) -> None:
    call = ListEntriesCall(row.decoded["header"]["txnId"], row.inner["ledgerId"])
    assert v3_bookie.decode_request(row.payload) == call
    assert v3.encode_list_entries_request(call.txn_id, call.ledger_id) == row.frame


@pytest.mark.parametrize("row", [row for row in GOLDEN if row.direction == "response"], ids=lambda row: row.name)
def test_answers_of_java(row: Row) -> None:
    answer = v3.decode_response(row.payload)
    assert isinstance(answer, ListEntriesAnswer)
    blob = row.inner.get("availabilityOfEntriesOfLedger")
    assert (answer.entries is None) == (blob is None)
    if answer.entries is not None:
        assert encode_entry_list(answer.entries, FRAME_BYTES) == bytes.fromhex(blob or "")
    call = ListEntriesCall(answer.txn_id, row.inner["ledgerId"])
    assert BookieCodec(FRAME_BYTES).encode(call, answer) == row.frame


def test_another_version_of_the_protocol_is_refused_with_the_ledger_id() -> None:
    frame = bytearray(vectors()["v3 list, ledger 78"])
    call = v3_bookie.decode_request(bytes(frame[4:]))
    assert isinstance(call, ListEntriesCall)
    assert call.ledger_id == 78
    frame[4 + 3] = 2  # the version in the header
    assert v3_bookie.decode_request(bytes(frame[4:])) == RefusedCall(call, Status.BAD_VERSION)


def test_a_striped_ledger_takes_one_group_where_javas_form_does_not_fit() -> None:
    """Ensemble of three, write quorum of two: each bookie has two entries of every three."""
    builder = EntryListBuilder()
    for first in range(0, 3_000_000, 300_000):
        builder.extend(entry_id for entry_id in range(first, first + 300_000) if entry_id % 3)
    entries = builder.finish()
    assert builder.group_count == 1
    assert (entries.run_count, len(entries)) == (1_000_000, 2_000_000)
    blob = encode_entry_list(entries, FRAME_BYTES)
    assert blob is not None
    assert len(blob) == 64 + 24
    decoded = decode_entry_list(blob)
    assert [entry_id in decoded for entry_id in (-1, 0, 1, 2, 3, 2_999_999, 3_000_000, 3_000_001)] == [
        *(False, False, True, True, False, True, False, False)
    ]


def test_a_list_that_does_not_fit_either_way() -> None:
    entries = list_of(0, 2, 5, 9, 14)
    assert encode_entry_list(entries, 64 + 4 * 24) is not None
    assert encode_entry_list(entries, 64 + 3 * 24 - 1) is None


@given(st.sets(st.integers(0, 200)), st.integers(64, 2000))
def test_every_list_comes_back(entry_ids: set[int], size_bytes_max: int) -> None:
    entries = list_of(*sorted(entry_ids))
    assert len(entries) == len(entry_ids)
    blob = encode_entry_list(entries, size_bytes_max)
    if blob is None:
        assert 64 + 24 * len(entries.groups) > size_bytes_max
        return
    assert len(blob) <= size_bytes_max
    decoded = decode_entry_list(blob)
    assert {entry_id for entry_id in range(-1, 210) if entry_id in decoded} == entry_ids


def blob_of(*groups: EntryGroup) -> bytes:
    whole = encode_entry_list(EntryList(), 64)
    assert whole is not None
    packed = b"".join(
        first.to_bytes(8, "big", signed=True)
        + last.to_bytes(8, "big", signed=True)
        + size.to_bytes(4, "big", signed=True)
        + period.to_bytes(4, "big", signed=True)
        for first, last, size, period in groups
    )
    return whole[:4] + len(groups).to_bytes(4, "big") + whole[8:] + packed


@pytest.mark.parametrize(
    "blob",
    [
        b"",
        bytes(63),
        bytes(65),
        bytes([0, 0, 0, 1]) + bytes(60),
        bytes(4) + b"\xff\xff\xff\xff" + bytes(56),
        blob_of(EntryGroup(5, 5, 0, 0)),
        blob_of(EntryGroup(-5, -5, 1, 0)),
        blob_of(EntryGroup(5, 9, 1, 0)),
        blob_of(EntryGroup(5, 9, 1, -4)),
        blob_of(EntryGroup(5, 9, 5, 4)),
        blob_of(EntryGroup(5, 9, 1, 3)),
        blob_of(EntryGroup(5, 5, 3, 0), EntryGroup(7, 7, 1, 0)),
    ],
)
def test_what_no_bookie_writes_is_refused(blob: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_entry_list(blob)


def test_a_hostile_list_costs_nothing() -> None:
    entries = decode_entry_list(blob_of(EntryGroup(0, 2**62, 1, 2)))
    assert 2**61 in entries
    assert 2**61 + 1 not in entries


@given(st.binary(max_size=200))
def test_any_bytes_are_a_list_or_refused(blob: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        decode_entry_list(blob)
