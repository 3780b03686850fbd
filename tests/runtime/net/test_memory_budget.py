"""Separate shares, and turns in the order of asking."""

from __future__ import annotations

import struct

from bkctl.runtime.net.memory_budget import LongFrame, MemoryBudget
from bkctl.runtime.protocol.framing import LONG_READ_BYTES, READ_BYTES, FrameSplitter, read_buffer


class Counted:
    """A budget of 800 bytes: 200 for requests, 100 for long frames, 300 for answers; and what it said."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.budget = MemoryBudget(800, lambda: self.said.append("full"), lambda: self.said.append("low"))

    def ask(self, owner: str, size_bytes: int) -> bool:
        return self.budget.admit_frame(owner, size_bytes, lambda: self.said.append(owner))


def test_requests_stop_all_reading_above_their_share_and_go_on_at_half() -> None:
    counted = Counted()
    counted.budget.add_request(200)
    assert (counted.said, counted.budget.free_request_bytes) == ([], 0)
    counted.budget.add_request(1)
    counted.budget.add_request(100)
    assert counted.budget.free_request_bytes == 0
    counted.budget.end_request(200)
    assert (counted.said, counted.budget.is_full) == (["full"], True)
    counted.budget.end_request(1)
    assert (counted.said, counted.budget.is_full) == (["full", "low"], False)
    assert counted.budget.free_request_bytes == 100


def test_long_frames_get_their_turns_in_order() -> None:
    counted = Counted()
    assert counted.ask("a", 60)
    assert not counted.ask("b", 60)
    assert not counted.ask("c", 10), "there is room for it, but b was first"
    counted.budget.end_frame("a", 60)
    assert counted.said == ["b", "c"]
    assert not counted.ask("d", 31)
    assert not counted.ask("e", 30)
    counted.budget.end_frame("d", 0)
    assert counted.said == ["b", "c", "e"], "who gives up waiting holds up nobody"


def test_a_frame_above_the_share_comes_in_alone() -> None:
    counted = Counted()
    assert counted.ask("a", 5000)
    assert not counted.ask("b", 1)
    counted.budget.end_frame("a", 5000)
    assert not counted.ask("c", 5000)
    counted.budget.end_frame("b", 1)
    assert counted.said == ["b", "c"]


def test_answers_not_taken_have_a_share_of_their_own() -> None:
    counted = Counted()
    counted.budget.add_request(10_000)
    counted.ask("a", 10_000)
    assert counted.budget.free_answer_bytes == 300
    counted.budget.add_answers(1)
    assert counted.budget.free_answer_bytes == 299
    counted.budget.add_answers(-1)
    assert counted.budget.free_answer_bytes == 300


def test_a_turn_begins_ends_and_passes_on() -> None:
    budget = MemoryBudget(800, lambda: None, lambda: None)  # 100 bytes of it for long frames
    said: list[str] = []
    first, second, third = (LongFrame(budget, lambda name=name: said.append(name)) for name in ("1", "2", "3"))  # type: ignore[misc]
    for frame in (first, second, third):
        frame.begin(80)
    assert [frame.is_waiting for frame in (first, second, third)] == [False, True, True]
    second.end()  # given up while waiting: it had taken nothing
    assert said == []
    first.end()
    first.end()
    assert (said, third.is_waiting, third.size_bytes) == (["3"], False, 80)
    third.end()
    first.begin(100)
    assert not first.is_waiting


def test_reads_are_long_while_little_is_kept_for_later() -> None:
    budget = MemoryBudget(256 << 20, lambda: None, lambda: None)
    frames = [LongFrame(budget, lambda: None) for _ in range(50)]
    splitters = [FrameSplitter(buffer=read_buffer(LONG_READ_BYTES)) for _ in frames]
    kept_bytes: list[int] = []
    for frame, splitter in zip(frames, splitters, strict=True):
        space = splitter.free_space(budget.read_bytes)
        splitter.advance(len(space))
        frame.set_aside(splitter)
        kept_bytes.append(len(space) - READ_BYTES)
        assert budget.used_bytes == sum(kept_bytes) <= 8 << 20
    assert kept_bytes[0] == LONG_READ_BYTES - READ_BYTES
    assert kept_bytes[-1] == 0, "one socket read of the usual size is always allowed"
    for frame in frames:
        frame.release()
        frame.release()
    assert (budget.used_bytes, budget.read_bytes) == (0, LONG_READ_BYTES)


def test_the_start_of_a_long_frame_that_waits_is_counted() -> None:
    budget = MemoryBudget(16 << 20, lambda: None, lambda: None)
    others, waiting = LongFrame(budget, lambda: None), LongFrame(budget, lambda: None)
    others.begin(2 << 20)  # the whole share of long frames
    splitter = FrameSplitter(buffer=read_buffer(LONG_READ_BYTES))
    start = struct.pack(">I", 1 << 20) + bytes(100_000)
    splitter.free_space()[: len(start)] = start
    splitter.advance(len(start))
    assert splitter.payloads() == []
    assert not waiting.admit(splitter)
    assert budget.used_bytes == (2 << 20) + len(start) - READ_BYTES
    others.end()
    waiting.release()
    assert budget.used_bytes == 4 + (1 << 20), "it counts as a whole now"
    assert waiting.admit(splitter)
    waiting.end()
    assert budget.used_bytes == 0
