"""One frame of a connection takes room in the budget from its turn to its end."""

from __future__ import annotations

from runtime.net.long_frame import LongFrame
from runtime.net.memory_budget import MemoryBudget


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
