"""Frames come out whole, however they come in."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.errors import ProtocolError
from runtime.protocol.framing import FRAME_BYTES_MAX, FrameSplitter, encode_frame


def feed(splitter: FrameSplitter, data: bytes) -> list[bytes]:
    """Give ``data`` to the splitter as a transport does; the payloads that come out."""
    payloads: list[bytes] = []
    while data:
        space = splitter.free_space()
        taken = min(len(space), len(data))
        space[:taken] = data[:taken]
        splitter.advance(taken)
        payloads.extend(splitter.payloads())
        data = data[taken:]
    return payloads


@given(
    payloads=st.lists(st.binary(min_size=1, max_size=300), max_size=20),
    buffer_bytes=st.integers(4, 400),
    data=st.data(),
)
def test_any_cut_gives_the_same_payloads(payloads: list[bytes], buffer_bytes: int, data: st.DataObject) -> None:
    splitter = FrameSplitter(1000, buffer_bytes)
    stream = b"".join(map(encode_frame, payloads))
    seen: list[bytes] = []
    while stream:
        cut = data.draw(st.integers(1, len(stream)))
        seen.extend(feed(splitter, stream[:cut]))
        stream = stream[cut:]
    assert seen == payloads


def test_frame_at_the_limit_passes_and_one_byte_more_is_refused_by_its_length_word() -> None:
    largest = b"x" * (FRAME_BYTES_MAX - 4)
    assert feed(FrameSplitter(), encode_frame(largest)) == [largest]
    with pytest.raises(ProtocolError):
        feed(FrameSplitter(), struct.pack(">I", len(largest) + 1))


def test_length_is_unsigned() -> None:
    with pytest.raises(ProtocolError):
        feed(FrameSplitter(), b"\xff\xff\xff\xff")


def test_empty_frame_is_refused_after_the_frames_before_it() -> None:
    splitter = FrameSplitter()
    stream = encode_frame(b"one") + b"\0\0\0\0"
    splitter.free_space()[: len(stream)] = stream
    splitter.advance(len(stream))
    payloads = splitter.payloads()
    assert next(payloads) == b"one"
    with pytest.raises(ProtocolError):
        next(payloads)


def test_a_caller_that_stops_gets_the_rest_later_and_finds_room_meanwhile() -> None:
    splitter = FrameSplitter(buffer_bytes=16)
    stream = b"".join(map(encode_frame, (b"1111", b"2222")))
    splitter.free_space()[:16] = stream
    splitter.advance(16)
    assert next(splitter.payloads()) == b"1111"
    assert len(splitter.free_space()) > 0
    assert list(splitter.payloads()) == [b"2222"]


def test_room_is_left_even_when_no_frame_was_taken_out() -> None:
    splitter = FrameSplitter(buffer_bytes=16)
    stream = b"".join(map(encode_frame, (b"1111", b"2222")))
    splitter.free_space()[:16] = stream
    splitter.advance(16)
    assert len(splitter.free_space()) > 0
    assert list(splitter.payloads()) == [b"1111", b"2222"]


def test_buffer_grows_for_a_large_frame_and_returns_to_its_size() -> None:
    splitter = FrameSplitter(buffer_bytes=1024)
    assert feed(splitter, encode_frame(b"x" * 100_000)) == [b"x" * 100_000]
    assert feed(splitter, encode_frame(b"small")) == [b"small"]
    assert len(splitter.free_space()) == 1024
