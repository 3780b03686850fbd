"""The memory of failed bookies."""

from __future__ import annotations

from bkctl.runtime.client.ports import SuspectBookies
from bkctl.runtime.net.loop import LoopClock


class SteppedClock(LoopClock):
    """The loop's clock, but its monotonic time moves by hand."""

    now_ns = 0

    def monotonic_ns(self) -> int:
        return self.now_ns


async def test_a_suspicion_lasts_as_long_as_configured_after_the_last_failure() -> None:
    clock = SteppedClock()
    suspects = SuspectBookies(clock, suspicion_s=10)
    suspects.add("b1")
    clock.now_ns += 6_000_000_000
    suspects.add("b2")
    assert suspects.current() == {"b1", "b2"}
    clock.now_ns += 5_000_000_000
    assert suspects.current() == {"b2"}
    suspects.add("b2")
    clock.now_ns += 9_999_999_999
    assert suspects.current() == {"b2"}
    clock.now_ns += 1
    assert suspects.current() == frozenset()


async def test_suspects_come_last_and_the_others_keep_their_order() -> None:
    suspects = SuspectBookies(LoopClock(), suspicion_s=1000)
    assert suspects.last(("b3", "b1", "b2")) == ["b3", "b1", "b2"]
    suspects.add("b3")
    suspects.add("b9")
    assert suspects.last(("b3", "b1", "b2")) == ["b1", "b2", "b3"]
