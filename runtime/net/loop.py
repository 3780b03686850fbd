"""The real clock and the real lanes: adapters of the Clock and Workers ports."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from runtime.ports import TimerHandle

P = ParamSpec("P")
T = TypeVar("T")


class LoopClock:
    """Time of this machine and timers of the running loop; made and used on the loop.

    ``random`` is seeded from the operating system, or with ``seed`` where a run is to be repeated.
    """

    def __init__(self, seed: int | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._random = random.Random(seed)  # noqa: S311  spreads load and retries, guards no secret

    def now_ms(self) -> int:
        """Wall-clock time in milliseconds since 1970, UTC."""
        return time.time_ns() // 1_000_000

    def monotonic_ns(self) -> int:
        """Nanoseconds of a clock that never goes back."""
        return time.monotonic_ns()

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> TimerHandle:
        """Call back on the loop after ``seconds``."""
        return self._loop.call_later(seconds, callback)

    @property
    def random(self) -> random.Random:
        """The one source of randomness."""
        return self._random


class LaneWorkers:
    """One thread per lane, started with its first job. Made and used on one loop.

    The threads are not daemons: a process that ends without ``close`` still finishes the jobs it queued.
    """

    def __init__(self) -> None:
        self._lanes: dict[str, ThreadPoolExecutor] = {}
        self._is_closed = False

    def run(self, lane: str, function: Callable[P, T], /, *arguments: P.args, **keywords: P.kwargs) -> Awaitable[T]:
        """Queue a job; RuntimeError after ``close``. A job still queued when its future is cancelled never runs."""
        if self._is_closed:
            raise RuntimeError(f"lane {lane} takes no more jobs: the workers are closed")
        executor = self._lanes.get(lane)
        if executor is None:
            executor = self._lanes[lane] = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"lane-{lane}")
        return asyncio.get_running_loop().run_in_executor(executor, partial(function, *arguments, **keywords))

    async def close(self) -> None:
        """Finish what was queued, then end the threads; safe to repeat."""
        self._is_closed = True
        lanes, self._lanes = self._lanes, {}
        loop = asyncio.get_running_loop()
        await asyncio.gather(*(loop.run_in_executor(executor, _nothing) for executor in lanes.values()))
        for executor in lanes.values():
            executor.shutdown()


def _nothing() -> None:
    """A last job: when it is done, so are all before it."""
