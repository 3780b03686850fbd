"""The real clock and the real lanes: adapters of the Clock and Workers ports."""

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

    A thread and a queue of its own per lane, not an executor: the way to the lane and back is part of every commit, and
    an executor's locks and two chained futures cost as much again as the wake-ups themselves.
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
            queue = self._lanes[lane] = _Lane(self._loop, f"lane-{lane}")
        future: asyncio.Future[T] = self._loop.create_future()
        queue.put(future, partial(function, *arguments, **keywords))
        return future

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
        # If one of these jobs never began, the other lanes would wait forever: none of them may be cancelled.
        await asyncio.shield(asyncio.gather(running, resting, return_exceptions=True))
        return running.result()

    def wait(self, seconds: float) -> None:
        """Called by a job: its lane waits."""
        time.sleep(seconds)

    async def close(self) -> None:
        """Finish what was queued, then end the threads; safe to repeat."""
        self._is_closed = True
        lanes, self._lanes = self._lanes, {}
        await asyncio.gather(*(lane.end() for lane in lanes.values()))


class _Lane:
    """A thread that runs jobs one after another and hands their outcomes back to the loop.

    The thread is a daemon: a process that ends without closing its lanes ends as if it were killed.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        self._loop = loop
        self._jobs: SimpleQueue[tuple[asyncio.Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._thread = Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def put(self, future: asyncio.Future[T], job: Callable[[], T]) -> None:
        self._jobs.put((future, job))

    async def end(self) -> None:
        """Run what is queued, then end the thread."""
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
            except BaseException as error:  # whatever it is, it is the caller's
                self._report(_fail, future, error)
            else:
                self._report(_succeed, future, outcome)

    def _report(self, settle: Callable[[asyncio.Future[Any], Any], None], future: asyncio.Future[Any], it: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits any more
            self._loop.call_soon_threadsafe(settle, future, it)


def _succeed(future: asyncio.Future[Any], outcome: Any) -> None:
    if not future.done():
        future.set_result(outcome)


def _fail(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)


def _nothing() -> None:
    """A last job: when it is done, so are all before it."""
