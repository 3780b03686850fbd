"""The limit for bytes per second, in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bkctl.runtime.replication.copy.limits import BURST_S, CopyRate, SharedPacer
from tests.sim.loop import VirtualClock, run_simulated

SECONDS = 10.0
RATE = 1_000_000


def moved_in_10_s(rate: int, sizes: Callable[[], int], streams: int = 1, estimate: int | None = None) -> int:
    """Bytes that callers move in ten seconds; with ``estimate`` they learn each size only after the move."""

    async def run() -> int:
        clock = VirtualClock()
        limit = CopyRate(clock, rate)
        moved = 0

        async def stream() -> None:
            nonlocal moved
            while True:
                size = sizes()
                await limit.take(size if estimate is None else estimate)
                if estimate is not None:
                    await clock.sleep(0.001)
                    limit.correct(estimate, size)
                if clock.monotonic_ns() >= SECONDS * 1e9:
                    return
                moved += size

        await asyncio.gather(*(stream() for _ in range(streams)))
        return moved

    return run_simulated(run())


@pytest.mark.parametrize("size", [1_000, 64_000, 1_000_000])
@pytest.mark.parametrize("streams", [1, 2])
def test_t43_the_rate_is_kept_for_small_and_large_entries(size: int, streams: int) -> None:
    moved = moved_in_10_s(RATE, lambda: size, streams)
    assert moved == pytest.approx(RATE * SECONDS, rel=0.1)


def test_t43_the_rate_is_kept_for_tiny_entries() -> None:
    moved = moved_in_10_s(RATE // 100, lambda: 10, streams=2)
    assert moved == pytest.approx(RATE // 100 * SECONDS, rel=0.1)


@pytest.mark.parametrize("estimate", [10, 64_000, 1_000_000])
def test_t43_wrong_estimates_do_not_add_up(estimate: int) -> None:
    source = random.Random(3)
    moved = moved_in_10_s(RATE, lambda: source.choice([10, 1_000, 64_000, 500_000]), streams=2, estimate=estimate)
    assert moved == pytest.approx(RATE * SECONDS, rel=0.1)


@settings(max_examples=50)
@given(st.lists(st.integers(10_000, 1_000_000), min_size=1, max_size=40), st.integers(1, 4))
def test_t43_any_mixture_of_sizes_keeps_the_rate(sizes: list[int], streams: int) -> None:
    source = random.Random(1)
    moved = moved_in_10_s(RATE, lambda: source.choice(sizes), streams)
    assert RATE * SECONDS * 0.9 - max(sizes) <= moved <= RATE * (SECONDS + BURST_S) + max(sizes)


def simulate(scenario: Callable[[VirtualClock], Awaitable[None]]) -> None:
    """Run a scenario to its end."""

    async def run() -> None:
        await scenario(VirtualClock())

    run_simulated(run())


def test_an_entry_larger_than_the_bucket_moves_at_once_and_delays_the_next_by_its_whole_size() -> None:
    async def scenario(clock: VirtualClock) -> None:
        limit = CopyRate(clock, 1000)
        await limit.take(5000)
        assert clock.monotonic_ns() == 0
        await limit.take(1)
        assert clock.monotonic_ns() == pytest.approx(5e9)

    simulate(scenario)


def test_idle_time_is_saved_up_only_to_the_size_of_the_bucket() -> None:
    async def scenario(clock: VirtualClock) -> None:
        limit = CopyRate(clock, 1000)
        await clock.sleep(100)
        await limit.take(int(1000 * BURST_S) + 1000)
        await limit.take(1)
        assert clock.monotonic_ns() == pytest.approx(101e9)

    simulate(scenario)


def test_callers_go_in_order_and_a_cancelled_one_takes_nothing() -> None:
    async def scenario(clock: VirtualClock) -> None:
        limit = CopyRate(clock, 1000)
        await limit.take(1000)
        order: list[str] = []

        async def take(name: str, size: int) -> None:
            await limit.take(size)
            order.append(name)

        first, second, third = (
            asyncio.create_task(take(name, size)) for name, size in (("a", 10**9), ("b", 1000), ("c", 1))
        )
        await clock.sleep(0.5)
        first.cancel()
        await asyncio.gather(second, third)
        assert order == ["b", "c"]
        assert clock.monotonic_ns() == pytest.approx(2e9)

    simulate(scenario)


def test_a_waiting_caller_follows_a_changed_rate() -> None:
    async def scenario(clock: VirtualClock) -> None:
        limit = CopyRate(clock, 1000)
        await limit.take(1_000_000)
        waiting = asyncio.create_task(limit.take(1))
        await clock.sleep(1.0)
        limit.change(999_000)
        await waiting
        assert clock.monotonic_ns() == pytest.approx(2e9, rel=0.05)

        limit.change(None)
        await asyncio.gather(*(limit.take(10**12) for _ in range(100)))
        assert clock.monotonic_ns() == pytest.approx(2e9, rel=0.05)
        assert limit.per_s is None

    simulate(scenario)


@pytest.mark.parametrize(
    ("rates", "least_s"), [((None, None), 0), ((100, None), 10), ((None, 50), 5), ((100, 10), 25), ((100, 50), 10)]
)
def test_the_least_time_of_copies_is_that_of_the_slower_limit(
    rates: tuple[int | None, int | None], least_s: float
) -> None:
    async def scenario(clock: VirtualClock) -> None:
        pacer = SharedPacer(clock)
        pacer.change(*rates)
        assert pacer.least_s(1000, targets=4) == least_s

    simulate(scenario)
