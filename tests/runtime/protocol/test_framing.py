"""Frames come out whole, however they come in."""

from __future__ import annotations

import itertools
import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bkctl.runtime.errors import ProtocolError
from bkctl.runtime.protocol.framing import FRAME_BYTES_MAX, FrameSplitter, encode_frame, read_buffer


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
    buffer_bytes=st.integers(1, 400),
    data=st.data(),
)
def test_any_cut_gives_the_same_payloads(payloads: list[bytes], buffer_bytes: int, data: st.DataObject) -> None:
    splitter = FrameSplitter(1000, read_buffer(buffer_bytes))
    stream = b"".join(map(encode_frame, payloads))
    seen: list[bytes] = []
    while stream:
        cut = data.draw(st.integers(1, len(stream)))
        seen.extend(feed(splitter, stream[:cut]))
        stream = stream[cut:]
    assert seen == payloads


@given(
    sizes=st.lists(st.integers(1, 60) | st.integers(8 * 1024 - 8, 20_000), max_size=8),
    buffer_bytes=st.integers(5_000, 60_000),
    count_max=st.none() | st.integers(1, 4),
    reads=st.lists(st.integers(1, 9) | st.integers(3_000, 60_000), min_size=1, max_size=20),
)
def test_long_and_short_frames_give_the_same_payloads(
    sizes: list[int], buffer_bytes: int, count_max: int | None, reads: list[int]
) -> None:
    wanted = [bytes([number]) + b"-" * (size - 1) for number, size in enumerate(sizes)]
    buffer = read_buffer(buffer_bytes)
    splitter = FrameSplitter(20_004, buffer)
    stream = b"".join(map(encode_frame, wanted))
    seen: list[bytes] = []
    for read_bytes in itertools.cycle([*reads, 4_000]):
        if not stream:
            break
        space = splitter.free_space()
        taken = min(read_bytes, len(space), len(stream))
        space[:taken] = stream[:taken]
        splitter.advance(taken)
        while payloads := splitter.payloads(count_max):
            assert count_max is None or len(payloads) <= count_max
            seen += payloads
        buffer[:] = bytes(buffer_bytes)  # another connection uses it: nothing that was returned may change
        stream = stream[taken:]
    assert seen == wanted
    assert all(type(payload) is bytes for payload in seen)
    assert (splitter.unfinished_bytes, splitter.has_waiting) == (0, False)


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
    assert splitter.payloads() == [b"one"]
    with pytest.raises(ProtocolError):
        splitter.payloads()


def test_what_is_set_aside_is_there_later_though_the_buffer_serves_others_meanwhile() -> None:
    buffer = read_buffer(64)
    first, second = FrameSplitter(buffer=buffer), FrameSplitter(buffer=buffer)
    stream = b"".join(map(encode_frame, (b"1111", b"2222", b"33333")))
    first.free_space()[: len(stream) - 1] = stream[:-1]
    first.advance(len(stream) - 1)
    first.set_aside()
    assert feed(second, encode_frame(b"x" * 60)) == [b"x" * 60]
    assert first.payloads() == [b"1111", b"2222"]
    assert feed(first, stream[-1:] + encode_frame(b"4")) == [b"33333", b"4"]


def test_one_buffer_serves_many_connections() -> None:
    buffer = read_buffer(50)
    splitters = [FrameSplitter(buffer=buffer) for _ in range(3)]
    streams = [b"".join(encode_frame(mark * size) for size in range(1, 100)) for mark in (b"a", b"b", b"c")]
    seen: list[list[bytes]] = [[], [], []]
    for start in range(0, len(streams[0]), 7):
        for splitter, stream, payloads in zip(splitters, streams, seen, strict=True):
            payloads.extend(feed(splitter, stream[start : start + 7]))
    assert seen == [[mark * size for size in range(1, 100)] for mark in (b"a", b"b", b"c")]


def held_bytes_after(*pieces: bytes) -> int:
    """Memory that many connections take, each, which were sent these pieces."""
    buffer = read_buffer()
    tracemalloc.start()
    try:
        splitters = [FrameSplitter(buffer=buffer) for _ in range(20)]
        for splitter in splitters:
            for piece in pieces:
                feed(splitter, piece)
        return tracemalloc.get_traced_memory()[0] // len(splitters)
    finally:
        tracemalloc.stop()


def test_memory_grows_with_what_came_and_not_with_what_is_promised() -> None:
    promise = struct.pack(">I", FRAME_BYTES_MAX - 4)
    assert held_bytes_after(promise) < 4_000
    assert held_bytes_after(promise, bytes(1_000)) < 8_000
    assert held_bytes_after(promise, bytes(300_000)) < 700_000
    assert held_bytes_after(encode_frame(bytes(300_000)), encode_frame(b"small")) < 4_000, "nothing between two frames"


def test_what_is_unfinished_is_told() -> None:
    splitter = FrameSplitter()
    frame = encode_frame(bytes(1000))
    for taken, promised in ((0, 0), (3, 0), (4, 1004), (1003, 1004)):
        feed(splitter, frame[splitter.unfinished_bytes : taken])
        assert (splitter.unfinished_bytes, splitter.promised_bytes, splitter.gathered_count) == (taken, promised, 0)
    assert feed(splitter, frame[1003:] + frame) == [bytes(1000)] * 2
    assert (splitter.unfinished_bytes, splitter.promised_bytes, splitter.gathered_count) == (0, 0, 1)


@given(
    runs=st.lists(st.tuples(st.integers(1, 300) | st.integers(8_000, 9_000), st.integers(1, 40)), max_size=4),
    count_max=st.none() | st.integers(1, 30),
    reads=st.lists(st.integers(1, 9) | st.integers(3_000, 60_000), min_size=1, max_size=9),
)
def test_frames_of_equal_length_are_split_like_all_others(
    runs: list[tuple[int, int]], count_max: int | None, reads: list[int]
) -> None:
    sizes = [size for size, count in runs for _ in range(count)]
    wanted = [number.to_bytes(2)[:size].ljust(size, b"-") for number, size in enumerate(sizes)]
    buffer = read_buffer()
    splitter = FrameSplitter(20_004, buffer)
    stream = b"".join(map(encode_frame, wanted))
    seen: list[bytes] = []
    for read_bytes in itertools.cycle([*reads, 50_000]):
        if not stream:
            break
        space = splitter.free_space()
        taken = min(read_bytes, len(space), len(stream))
        space[:taken] = stream[:taken]
        splitter.advance(taken)
        stream = stream[taken:]
        while payloads := splitter.payloads(count_max):
            assert count_max is None or len(payloads) <= count_max
            seen += payloads
            splitter.set_aside()
            buffer[:] = bytes(len(buffer))
    assert seen == wanted
    assert all(type(payload) is bytes for payload in seen)


@pytest.mark.parametrize("length", [0, 20_001, 2**31])
def test_a_bad_length_after_frames_of_equal_length_is_refused_after_them(length: int) -> None:
    splitter = FrameSplitter(20_004, read_buffer())
    stream = encode_frame(b"12345") * 20 + struct.pack(">I", length)
    splitter.free_space()[: len(stream)] = stream
    splitter.advance(len(stream))
    assert splitter.payloads() == [b"12345"] * 20
    with pytest.raises(ProtocolError):
        splitter.payloads()
