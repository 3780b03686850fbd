"""How fast compaction copies, in virtual time."""

from __future__ import annotations

import pytest

from bkctl.runtime.bookie.collection.compaction import CompactionThrottle
from bkctl.runtime.config import GarbageCollectionConfig
from tests.sim.loop import VirtualClock, run_simulated


@pytest.mark.parametrize(("is_by_bytes", "expected_s"), [(False, 9 * 10 / 20), (True, 9 * 4000 / 1000)])
def test_copies_are_spaced_by_entries_or_by_bytes(is_by_bytes: bool, expected_s: float) -> None:
    async def copy() -> float:
        clock = VirtualClock(seed=1)
        config = GarbageCollectionConfig(
            is_throttled_by_bytes=is_by_bytes, copied_entries_per_s_max=20, copied_bytes_per_s_max=1000
        )
        throttle = CompactionThrottle(clock, config)
        began_ns = clock.monotonic_ns()
        for _ in range(10):
            assert await throttle.wait()
            throttle.note(10, 4000)
        return (clock.monotonic_ns() - began_ns) / 1e9

    assert run_simulated(copy()) == pytest.approx(expected_s)


def test_time_in_which_nothing_was_copied_is_not_made_up_for() -> None:
    async def copy() -> float:
        clock = VirtualClock(seed=1)
        throttle = CompactionThrottle(clock, GarbageCollectionConfig(copied_entries_per_s_max=1))
        throttle.note(1, 0)
        await clock.sleep(1000)
        began_ns = clock.monotonic_ns()
        for _ in range(2):
            await throttle.wait()
            throttle.note(5, 0)
        return (clock.monotonic_ns() - began_ns) / 1e9

    assert run_simulated(copy()) == pytest.approx(5)


def test_who_waits_can_be_woken_to_look_again_and_waits_for_the_rest() -> None:
    async def copy() -> list[float]:
        clock = VirtualClock(seed=1)
        throttle = CompactionThrottle(clock, GarbageCollectionConfig(copied_entries_per_s_max=1))
        throttle.interrupt()  # nobody waits
        throttle.note(100, 0)
        clock.call_later(10, throttle.interrupt)
        assert not await throttle.wait()
        woken_s = clock.monotonic_ns() / 1e9
        assert await throttle.wait()
        return [woken_s, clock.monotonic_ns() / 1e9]

    assert run_simulated(copy()) == pytest.approx([10, 100])
