"""Binary packets (v2): how any bytes become calls, and what their answers look like."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bkctl.runtime.protocol.codec import BookieCodec
from bkctl.runtime.protocol.framing import FRAME_BYTES_MAX
from bkctl.runtime.protocol.messages import (
    AddRun,
    AuthAnswer,
    AuthCall,
    BatchReadRequest,
    EntriesAnswer,
    Junk,
    ReadAnswer,
    ReadCall,
    ReadRun,
    RefusedCall,
)
from bkctl.runtime.protocol.status import Status
from bkctl.runtime.protocol.v2_batch_reads import BatchReadCall, decode_batch_read_answer, encode_batch_read
from bkctl.runtime.protocol.v2_bookie import decode_packets, encode_entries, encode_packets, is_binary_call

KEY = bytes(range(20))
IDS = st.integers(-(2**63), 2**63 - 1)


def add_packet(ledger_id: int, entry_id: int, flags: int = 0, key: bytes = KEY, rest: bytes = b"") -> bytes:
    return struct.pack(">I", 0x02010000 | flags) + key + struct.pack(">qq", ledger_id, entry_id) + rest


def read_packet(ledger_id: int, entry_id: int, rest: bytes = b"") -> bytes:
    return struct.pack(">Iqq", 0x02020000, ledger_id, entry_id) + rest


def test_adds_of_one_ledger_key_and_kind_become_one_run() -> None:
    packets = [
        add_packet(1, 0),
        add_packet(1, 1),
        add_packet(1, 2, flags=6),
        add_packet(1, 3, flags=6),
        add_packet(2, 0),
        add_packet(1, 4, key=KEY[::-1]),
    ]
    runs = decode_packets(packets, FRAME_BYTES_MAX)
    assert [
        (run.ledger_id, run.entry_ids, run.is_recovery_add, run.is_high_priority)
        for run in runs
        if isinstance(run, AddRun)
    ] == [(1, [0, 1], False, False), (1, [2, 3], True, True), (2, [0], False, False), (1, [4], False, False)]
    assert len(runs) == 4


@pytest.mark.parametrize("version", [0, 1, 2])
def test_an_answer_repeats_the_version(version: int) -> None:
    header = 2 if version == 0 else version << 24 | 2 << 16
    (call,) = decode_packets([struct.pack(">Iqq", header, 7, -1)], FRAME_BYTES_MAX)
    assert isinstance(call, ReadCall)
    assert is_binary_call(call)
    frame = encode_packets(call, ReadAnswer(call.txn_id, Status.OK, b"body", 5), FRAME_BYTES_MAX)
    assert frame == struct.pack(">IIiqq", 28, header, 0, 7, -1) + b"body"


def test_a_state_that_no_java_client_knows_is_an_io_error() -> None:
    (call,) = decode_packets([struct.pack(">Iqq", 2 << 24 | 2 << 16, 7, 0)], FRAME_BYTES_MAX)
    assert isinstance(call, ReadCall)
    frame = encode_packets(call, Status.UNKNOWN_LEDGER_STATE, FRAME_BYTES_MAX)
    assert struct.unpack_from(">i", frame, 8) == (101,)


def test_entries_that_do_not_fit_into_a_frame_are_an_io_error() -> None:
    (call,) = decode_packets([struct.pack(">Iqq", 2 << 24 | 2 << 16, 7, 0)], FRAME_BYTES_MAX)
    assert isinstance(call, ReadCall)
    frame = encode_packets(call, ReadAnswer(call.txn_id, Status.OK, bytes(100), None), 127)
    assert (len(frame), struct.unpack_from(">i", frame, 8)) == (28, (101,))
    assert len(encode_packets(call, ReadAnswer(call.txn_id, Status.OK, bytes(100), None), 128)) == 128


@given(
    first=st.integers(0, 2**62),
    request_id=IDS,
    bodies=st.lists(st.binary(max_size=50), min_size=1, max_size=5),
)
def test_our_client_understands_batches(first: int, request_id: int, bodies: list[bytes]) -> None:
    asked = BatchReadCall(request_id, 9, first, 10, 10_000)
    (call,) = decode_packets([encode_batch_read(asked)[4:]], FRAME_BYTES_MAX)
    assert isinstance(call, BatchReadRequest)
    assert (call.ledger_id, call.first_entry_id, call.count_max, call.bytes_max) == (9, first, 10, 10_000)
    found = EntriesAnswer(-3, Status.OK, encode_entries(bodies))
    answer = decode_batch_read_answer(encode_packets(call, found, FRAME_BYTES_MAX)[4:])
    assert (answer.request_id, answer.first_entry_id, answer.bodies) == (request_id, first, bodies)
    assert answer.fits(asked)


def test_limits_of_a_batch() -> None:
    packet = struct.pack(">Iqqqiq", 2 << 24 | 7 << 16, 1, 0, 5, 0, 2**62)
    (call,) = decode_packets([packet], 1000)
    assert isinstance(call, BatchReadRequest)
    assert (call.count_max, call.bytes_max) == (2**31 - 1, 1000)


def test_a_login_is_answered_in_version_2() -> None:
    (call,) = decode_packets([bytes.fromhex("030300000a01781200")], FRAME_BYTES_MAX)
    assert isinstance(call, AuthCall)
    frame = encode_packets(call, AuthAnswer(call.txn_id, Status.OK, "AuthDisabledPlugin", b""), FRAME_BYTES_MAX)
    assert frame.hex() == "0000001a020300000a124175746844697361626c6564506c7567696e1200"


@given(packets=st.lists(st.binary(min_size=1, max_size=80), max_size=6))
def test_any_bytes_are_calls_of_which_only_the_last_may_be_junk(packets: list[bytes]) -> None:
    calls = decode_packets(packets, FRAME_BYTES_MAX)
    assert not any(isinstance(call, Junk) for call in calls[:-1])
    for call in calls:
        if isinstance(call, RefusedCall):
            assert len(BookieCodec(FRAME_BYTES_MAX).encode(call.call, call.status)) >= 28
        elif isinstance(call, AddRun | ReadCall | BatchReadRequest):
            assert len(BookieCodec(FRAME_BYTES_MAX).encode(call, Status.IO_ERROR)) >= 28


@given(
    makers=st.lists(st.sampled_from([add_packet, read_packet]), min_size=1, max_size=4),
    repeats=st.integers(1, 10),
    size=st.integers(0, 200),
    changes=st.lists(st.tuples(st.integers(0, 39), st.integers(0, 60), st.binary(max_size=2)), max_size=2),
)
def test_many_packets_become_the_calls_that_each_of_them_becomes(
    makers: list[Callable[..., bytes]], repeats: int, size: int, changes: list[tuple[int, int, bytes]]
) -> None:
    """Adds and reads, of which a few differ somewhere: in the header, the key, the ids, or their length."""
    makers = [maker for maker in makers for _ in range(repeats)]
    packets = [maker(7, entry_id, rest=bytes(size)) for entry_id, maker in enumerate(makers)]
    count = len(packets)
    for index, place, changed in changes:
        packet = packets[index % count]
        packets[index % count] = packet[:place] + changed + packet[place + 1 :]
    together = _flat(decode_packets(packets, FRAME_BYTES_MAX))
    apart: list[object] = []
    for packet in packets:
        calls = decode_packets([packet], FRAME_BYTES_MAX)
        apart += _flat(calls)
        if isinstance(calls[-1], Junk):
            break
    assert together == apart


@pytest.mark.parametrize("packet", [add_packet(7, 2), read_packet(7, 2)])
def test_a_short_packet_after_whole_ones_is_junk(packet: bytes) -> None:
    *whole, last = _flat(decode_packets([packet, packet, packet[:-1]], FRAME_BYTES_MAX))
    assert len(whole) == 2
    assert isinstance(last, Junk)


def _flat(calls: Sequence[object]) -> list[object]:
    """The calls, with each add and each read by itself."""
    flat: list[object] = []
    for call in calls:
        if isinstance(call, AddRun):
            kind = (call.ledger_id, call.master_key, call.is_recovery_add, call.is_high_priority)
            columns = zip(call.txn_ids, call.entry_ids, call.bodies, strict=True)
            flat += [(*kind, *column) for column in columns]
        elif isinstance(call, ReadRun):
            flat += call.singly()
        else:
            flat.append(call)
    return flat
