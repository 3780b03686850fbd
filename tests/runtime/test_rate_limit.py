"""The limit of a rate, in virtual time."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bkctl.runtime.rate_limit import RateLimit
from tests.sim.loop import VirtualClock, run_simulated


def simulate(scenario: Callable[[VirtualClock], Awaitable[None]]) -> None:
    """Run a scenario to its end."""

    async def run() -> None:
        await scenario(VirtualClock())

    run_simulated(run())


def test_bytes_are_paid_for_before_more_are_spent() -> None:
    async def scenario(clock: VirtualClock) -> None:
        await clock.sleep(5)
        rate = RateLimit(clock, 1000)
        began_ns = clock.monotonic_ns()
        for _ in range(10):
            await rate.take()
            rate.spend(500)
        await rate.take()
        assert 5_000_000_000 <= clock.monotonic_ns() - began_ns <= 5_000_000_100

    simulate(scenario)


def test_without_a_burst_idle_time_is_not_saved_up() -> None:
    async def scenario(clock: VirtualClock) -> None:
        rate = RateLimit(clock, 1000)
        await clock.sleep(100)
        began_ns = clock.monotonic_ns()
        rate.spend(2000)
        await rate.take()
        assert clock.monotonic_ns() - began_ns >= 2_000_000_000

    simulate(scenario)


_CALLERS = st.lists(
    st.tuples(st.floats(0, 3), st.integers(0, 3000), st.integers(0, 3000), st.booleans()), min_size=1, max_size=40
)
"""Of each: when it comes, what it takes, what that really is, whether it is cancelled meanwhile."""


@settings(max_examples=200, deadline=None)
@given(_CALLERS, st.floats(10, 5000), st.sampled_from([0.0, 0.01, 0.1, 1.0]))
def test_no_window_sees_more_than_the_rate_and_the_burst(
    callers: list[tuple[float, int, int, bool]], per_s: float, burst_s: float
) -> None:
    """And all callers get their turn, in the order in which they came, as soon as the rate allows it."""

    async def scenario(clock: VirtualClock) -> None:
        limit = RateLimit(clock, per_s, burst_s)
        taken: list[tuple[float, int]] = []
        asked: list[int] = []
        served: list[int] = []

        async def call(number: int, when_s: float, estimate: int, real: int) -> None:
            await clock.sleep(when_s)
            asked.append(number)
            await limit.take(estimate)
            taken.append((clock.monotonic_ns() / 1e9, real))
            served.append(number)
            limit.correct(estimate, real)

        tasks = [
            asyncio.create_task(call(number, when_s, estimate, real))
            for number, (when_s, estimate, real, _) in enumerate(callers)
        ]
        await clock.sleep(1.5)
        for task, (*_, is_cancelled) in zip(tasks, callers, strict=True):
            if is_cancelled:
                task.cancel()
        await asyncio.wait(tasks)
        assert {number for number, caller in enumerate(callers) if not caller[3]} <= set(served)
        assert served == [number for number in asked if number in set(served)]

        for first, last in itertools.combinations_with_replacement(range(len(taken)), 2):
            # The last one is paid for afterwards, however large it is.
            before_last = sum(real for _, real in taken[first:last])
            elapsed_s = taken[last][0] - taken[first][0]
            assert before_last <= per_s * (elapsed_s + burst_s + 1e-5) + 1e-6

        total = sum(real for _, real in taken)
        if taken:
            # No caller waits while the rate would allow more, and a cancelled one costs nothing.
            assert taken[-1][0] <= 3.0 + total / per_s + 1e-5

    simulate(scenario)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.floats(0.01, 5), st.one_of(st.none(), st.floats(10, 10_000))), max_size=20))
def test_a_caller_that_waits_pays_at_each_rate_for_as_long_as_it_holds(
    changes: list[tuple[float, float | None]],
) -> None:

    async def scenario(clock: VirtualClock) -> None:
        limit = RateLimit(clock, 1000)
        limit.spend(50_000)
        debt, rate = 50_000.0, 1000.0
        waiting = asyncio.create_task(limit.take())
        for pause_s, per_s in changes:
            await clock.sleep(pause_s)
            debt -= rate * pause_s
            limit.change(per_s)
            if per_s is None:
                debt = 0.0
            if debt <= 0 or per_s is None:
                break
            rate = per_s
        began_ns = clock.monotonic_ns()
        await waiting
        assert (clock.monotonic_ns() - began_ns) / 1e9 == pytest.approx(max(0.0, debt / rate), abs=1e-4)

    simulate(scenario)


def test_what_is_given_back_shortens_the_wait_and_more_spent_lengthens_it() -> None:
    async def scenario(clock: VirtualClock) -> None:
        limit = RateLimit(clock, 1000)
        limit.spend(10_000)
        waiting = asyncio.create_task(limit.take(1))
        await clock.sleep(1)
        limit.correct(9000, 2000)
        await waiting
        assert clock.monotonic_ns() == pytest.approx(3e9)
        waiting = asyncio.create_task(limit.take())
        await clock.sleep(0)
        limit.correct(1, 1001)
        await waiting
        assert clock.monotonic_ns() == pytest.approx(4.001e9)

    simulate(scenario)


def test_looking_at_the_balance_changes_nothing() -> None:
    """A debt of many bytes, looked at more often than a byte takes: no look may round anything away."""

    async def scenario(clock: VirtualClock) -> None:
        limit = RateLimit(clock, 1e9)
        limit.spend(1e15)
        began_ns = clock.monotonic_ns()
        for _ in range(1000):
            await clock.sleep(1e-8)
            limit.balance()
            limit.wait_s()
        elapsed_ns = clock.monotonic_ns() - began_ns
        assert limit.balance() == pytest.approx(elapsed_ns - 1e15, abs=1)

    simulate(scenario)
