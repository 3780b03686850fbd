"""Lanes keep order, run side by side, and end cleanly; the clock is the machine's."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time

import pytest

from bkctl.runtime.net.loop import LaneWorkers, LoopClock


async def test_jobs_of_a_lane_run_one_after_another_in_one_thread() -> None:
    workers = LaneWorkers()
    seen: list[int] = []
    threads: set[int] = set()

    def job(number: int, *, pause_s: float) -> int:
        time.sleep(pause_s)
        seen.append(number)
        threads.add(threading.get_ident())
        return number * 2

    results = await asyncio.gather(*(workers.run("one", job, n, pause_s=0.01 * (n == 0)) for n in range(20)))
    assert results == [n * 2 for n in range(20)]
    assert seen == list(range(20))
    assert len(threads) == 1
    assert threading.get_ident() not in threads
    await workers.close()


async def test_lanes_run_side_by_side() -> None:
    workers = LaneWorkers()
    meeting = threading.Barrier(2)
    await asyncio.gather(workers.run("left", meeting.wait, 60), workers.run("right", meeting.wait, 60))
    await workers.close()


async def test_errors_reach_the_caller_and_the_lane_goes_on() -> None:
    workers = LaneWorkers()

    def fail() -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        await workers.run("one", fail)
    assert await workers.run("one", str, 7) == "7"
    await workers.close()


async def test_close_finishes_what_was_queued_and_ends_the_threads() -> None:
    workers = LaneWorkers()
    done: list[int] = []

    def job(number: int) -> None:
        time.sleep(0.01)
        done.append(number)

    queued = [workers.run("lane-of-this-test", job, number) for number in range(5)]
    await workers.close()
    assert done == list(range(5))
    await asyncio.gather(*queued)
    assert not [thread for thread in threading.enumerate() if "lane-of-this-test" in thread.name]
    with pytest.raises(RuntimeError):
        workers.run("lane-of-this-test", job, 5)
    await workers.close()


def test_a_process_ends_without_closing_its_lanes() -> None:
    program = (
        "import asyncio\n"
        "from bkctl.runtime.net.loop import LaneWorkers\n"
        "async def main():\n"
        "    await LaneWorkers().run('lane', print, 'ran')\n"
        "asyncio.run(main())\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True)
    assert ended.stdout == "ran\n"


async def test_clock_tells_time_and_calls_back_on_the_loop() -> None:
    clock = LoopClock()
    before_ns = clock.monotonic_ns()
    called = asyncio.Event()
    clock.call_later(60, called.set).cancel()
    await clock.sleep(0)
    assert not called.is_set()
    clock.call_later(0.01, called.set)
    async with asyncio.timeout(120):
        await called.wait()
    # uvloop counts whole milliseconds: a timer may be early by one.
    assert clock.monotonic_ns() >= before_ns + 9_000_000
    assert abs(clock.now_ms() - time.time() * 1000) < 60_000


async def test_a_seed_repeats_the_randomness() -> None:
    assert LoopClock(seed=5).random.random() == LoopClock(seed=5).random.random()
    assert LoopClock().random.random() != LoopClock().random.random()
