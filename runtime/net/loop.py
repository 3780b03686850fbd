"""Adapters of the Clock and Workers ports: the event loop's clock, and lanes as threads."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from queue import SimpleQueue
from threading import Barrier, Thread
from typing import Any, ParamSpec, TypeVar

from bkctl.runtime.net.exhaustion import report_exhaustion
from bkctl.runtime.ports import TimerHandle

P = ParamSpec("P")
T = TypeVar("T")


class LoopClock:
    """Time of this machine and timers of the running loop; create and use it on the loop.

    ``random`` is seeded by the operating system, or with ``seed`` for reproducible runs.
    """

    def __init__(self, seed: int | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._random = random.Random(seed)  # noqa: S311  spreads load and retries, guards no secret

    def now_ms(self) -> int:
        """Wall-clock time in milliseconds since 1970, UTC."""
        return time.time_ns() // 1_000_000

    monotonic_ns = staticmethod(time.monotonic_ns)
    """Nanoseconds of a clock that never goes backwards. Called for each group, so it has no frame of its own."""

    async def sleep(self, seconds: float) -> None:
        """Sleep without blocking the loop."""
        await asyncio.sleep(seconds)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> TimerHandle:
        """Run ``callback`` on the loop after ``seconds``."""
        return self._loop.call_later(seconds, callback)

    @property
    def random(self) -> random.Random:
        """The only source of randomness."""
        return self._random


class LaneWorkers:
    """One thread per lane, started with its first job. Create and use it on one loop.

    Each lane has its own thread and queue instead of an executor. Every commit hands work to a lane and back, and an
    executor's locks and chained futures would double the cost of these hand-overs.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._lanes: dict[str, _Lane] = {}
        self._is_closed = False

    def run(self, lane: str, function: Callable[P, T], /, *arguments: P.args, **keywords: P.kwargs) -> Awaitable[T]:
        """Queue a job; RuntimeError after ``close``. A job whose future was cancelled before its turn never runs."""
        if self._is_closed:
            raise RuntimeError(f"lane {lane} accepts no jobs: the workers are closed")
        queue = self._lanes.get(lane)
        if queue is None:
            queue = self._begin(lane)
        future: asyncio.Future[T] = self._loop.create_future()
        queue.put(future, partial(function, *arguments, **keywords))
        return future

    def _begin(self, lane: str) -> _Lane:
        try:
            begun = self._lanes[lane] = _Lane(self._loop, f"lane-{lane}")
        except RuntimeError as error:
            report_exhaustion(self._loop, error)
            raise
        return begun

    async def run_at_rest(self, lanes: Sequence[str], lane: str, job: Callable[[], T]) -> T:
        """Run ``job`` in ``lane`` while none of ``lanes`` runs anything."""
        meeting = Barrier(len(lanes) + 1)

        def rest() -> None:
            meeting.wait()
            meeting.wait()

        def run() -> T:
            meeting.wait()
            try:
                return job()
            finally:
                meeting.wait()

        resting = asyncio.gather(*(self.run(each, rest) for each in lanes))
        running = asyncio.ensure_future(self.run(lane, run))
        # If one of these jobs was cancelled before it began, the other lanes would wait forever.
        await asyncio.shield(asyncio.gather(running, resting, return_exceptions=True))
        return running.result()

    def wait(self, seconds: float) -> None:
        """Block the calling job and its lane."""
        time.sleep(seconds)

    async def close(self) -> None:
        """Finish the queued jobs, then end the threads; safe to repeat."""
        self._is_closed = True
        lanes, self._lanes = self._lanes, {}
        await asyncio.gather(*(lane.end() for lane in lanes.values()))


class _Lane:
    """A thread that runs jobs one after another and reports their outcomes to the loop.

    The thread is a daemon, so a process that exits without closing its lanes does not wait for it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        self._loop = loop
        self._jobs: SimpleQueue[tuple[asyncio.Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._thread = Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def put(self, future: asyncio.Future[T], job: Callable[[], T]) -> None:
        self._jobs.put((future, job))

    async def end(self) -> None:
        """Run the queued jobs, then end the thread."""
        done: asyncio.Future[None] = self._loop.create_future()
        self._jobs.put((done, _nothing))
        self._jobs.put(None)
        await done
        self._thread.join()

    def _work(self) -> None:
        while (item := self._jobs.get()) is not None:
            future, job = item
            if future.cancelled():
                continue
            try:
                outcome = job()
            except BaseException as error:  # the caller gets any exception
                self._report(_fail, future, error)
            else:
                self._report(_succeed, future, outcome)

    def _report(self, settle: Callable[[asyncio.Future[Any], Any], None], future: asyncio.Future[Any], it: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed; no caller is waiting
            self._loop.call_soon_threadsafe(settle, future, it)


def _succeed(future: asyncio.Future[Any], outcome: Any) -> None:
    if not future.done():
        future.set_result(outcome)


def _fail(future: asyncio.Future[Any], error: BaseException) -> None:
    report_exhaustion(future.get_loop(), error)  # whatever the caller does with it
    if not future.done():
        future.set_exception(error)


def _nothing() -> None:
    """Last job of a lane: when it is done, all earlier jobs are."""
