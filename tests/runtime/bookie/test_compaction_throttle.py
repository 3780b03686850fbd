"""How fast compaction copies, in virtual time."""

from __future__ import annotations

import pytest

from runtime.bookie.compaction_throttle import CompactionThrottle
from runtime.config import GarbageCollectionConfig
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
            await throttle.wait(10, 4000)
        return (clock.monotonic_ns() - began_ns) / 1e9

    assert run_simulated(copy()) == pytest.approx(expected_s)


def test_time_in_which_nothing_was_copied_is_not_made_up_for() -> None:
    async def copy() -> float:
        clock = VirtualClock(seed=1)
        throttle = CompactionThrottle(clock, GarbageCollectionConfig(copied_entries_per_s_max=1))
        await throttle.wait(1, 0)
        await clock.sleep(1000)
        began_ns = clock.monotonic_ns()
        await throttle.wait(5, 0)
        await throttle.wait(5, 0)
        return (clock.monotonic_ns() - began_ns) / 1e9

    assert run_simulated(copy()) == pytest.approx(5)
