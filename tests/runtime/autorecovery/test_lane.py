"""Lanes in virtual time: repeats, failures, hangs."""

from __future__ import annotations

import asyncio
import contextlib

from bkctl.runtime.autorecovery.lane import RETRY_FIRST_S, Lane, Turn
from tests.sim.loop import VirtualClock, run_simulated


async def serve_for(lane: Lane, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await lane.serve()


def test_it_repeats_after_the_interval_and_when_woken() -> None:
    async def scenario() -> None:
        clock, times = VirtualClock(), list[int]()

        async def run(_: Turn) -> str:
            times.append(clock.monotonic_ns() // 10**9)
            if len(times) == 2:
                lane.due_in(3)
            return "looked"

        lane = Lane("look", run, clock, interval_s=10)
        asyncio.get_running_loop().call_later(15, lane.wake)
        await serve_for(lane, 30)
        assert times == [0, 10, 13, 15, 25]
        assert lane.status.result == "looked"
        assert (lane.status.runs, lane.status.failures, lane.status.is_running) == (5, 0, False)

    run_simulated(scenario())


def test_a_failure_is_reported_and_repeated_soon() -> None:
    async def scenario() -> None:
        clock, times = VirtualClock(), list[int]()

        async def run(_: Turn) -> str:
            times.append(clock.monotonic_ns())
            if len(times) == 1:
                raise ValueError("node /x is bad")
            return "done"

        lane = Lane("look", run, clock, interval_s=None)
        await serve_for(lane, RETRY_FIRST_S / 2)
        assert (lane.status.error, lane.status.failures, lane.status.succeeded_ms) == ("node /x is bad", 1, None)
        await serve_for(lane, RETRY_FIRST_S)
        assert (lane.status.error, lane.status.failures) == (None, 1)

    run_simulated(scenario())


def test_a_run_without_a_sign_of_life_is_given_up() -> None:
    async def scenario() -> None:
        clock, runs = VirtualClock(), list[str]()

        async def run(turn: Turn) -> str:
            runs.append("begun")
            if len(runs) > 1:
                for _ in range(5):
                    await clock.sleep(40)
                    turn.beat()
                return "slow, but alive"
            with contextlib.suppress(asyncio.CancelledError):
                await clock.sleep(1000)
            await clock.sleep(1000)  # it ignores its cancellation
            return "too late"

        lane = Lane("check", run, clock, interval_s=None, silence_max_s=60)
        errors: list[str | None] = []
        for at_s in (60 + 5 + 1 + 10, 60 + 5 + 1 + 70):
            asyncio.get_running_loop().call_later(at_s, lambda: errors.append(lane.status.error))
        await serve_for(lane, 60 + 5 + 1 + 200 + 1)
        assert errors == ["no progress for 60 s", None], "a run that makes progress is past the failure"
        assert runs == ["begun", "begun"]
        assert (lane.status.hangs, lane.status.error, lane.status.result) == (1, None, "slow, but alive")

    run_simulated(scenario())
