"""Separate shares, and turns in the order of asking."""

from __future__ import annotations

from bkctl.runtime.net.memory_budget import LongFrame, MemoryBudget


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
