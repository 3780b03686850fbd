"""Limits that all ledgers of a run share, and tasks within them: bytes in flight, and bytes per second.

There is a window for each bookie, and two for the memory of a run. A window is like a congestion window: halved when a
bookie answers "too many requests" or does not answer in time, and widened again by each success (replication section
15.1; bk#3408, pu#4213: unbounded or fixed batches overloaded bookies). Tasks raise the first error itself, while
asyncio.TaskGroup raises a group.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Self, TypeVar

from bkctl.runtime.ports import Clock
from bkctl.runtime.rate_limit import RateLimit

WINDOW_BYTES_FIRST = 8 * 1024 * 1024
"""First size of a bookie's window."""

SHRINK_MAX = 128
"""A window never shrinks below this part of its first size. What is larger is admitted alone."""

_WIDENING_BYTES = 1024 * 1024
"""A window grows by this much each time that a whole window of bytes has succeeded."""
BURST_S = 0.1
"""The bucket holds this much time's worth of bytes: what was not used earlier is lost."""
T = TypeVar("T")


class Window:
    """Bytes in flight, and how many items have them. Admits in the order of the calls; what is too large, alone."""

    def __init__(self, bytes_max: int, *, bytes_first: int | None = None, items_max: int | None = None) -> None:
        """``items_max``: limit for batches or entries, which shrinks with the window; None: no limit."""
        self.bytes_in_flight = 0
        self.items_in_flight = 0
        self.bytes_now = min(bytes_max, bytes_first or bytes_max)
        """Current size of the window."""
        self.shrinks = 0
        """How often it was halved."""
        self._bytes_max = bytes_max
        self._bytes_min = max(1, self.bytes_now // SHRINK_MAX)
        self._items_max = items_max
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()

    def lease(self, size_bytes: int) -> Lease:
        """Room for an item, as ``async with``, or from ``acquire`` to ``release``."""
        return Lease(self, size_bytes)

    async def turn(self, size_bytes: int) -> None:
        """Wait until an item fits, which counts from then on."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((size_bytes, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.change(-size_bytes, -1)  # admitted just before the cancellation
            raise

    def is_admitted(self, size_bytes: int) -> bool:
        """Count an item, if it fits now and none waits."""
        if self._waiters or not self._fits(size_bytes):
            return False
        self._take(size_bytes, 1)
        return True

    def change(self, size_bytes: int, items: int = 0) -> None:
        """Correct what is in flight, and admit waiting items that fit now."""
        self._take(size_bytes, items)
        while self._waiters:
            waiting_bytes, turn = self._waiters[0]
            if not turn.done() and not self._fits(waiting_bytes):
                return
            self._waiters.popleft()
            if not turn.done():
                self._take(waiting_bytes, 1)
                turn.set_result(None)

    def shrink(self, shrinks_seen: int) -> None:
        """An overload: halve the window, unless it was halved after the request had been sent."""
        if shrinks_seen == self.shrinks:
            self.shrinks += 1
            self.bytes_now = max(self.bytes_now // 2, self._bytes_min)

    def grow(self, size_bytes: int) -> None:
        """A success: widen the window."""
        if self.bytes_now < self._bytes_max:
            widened = self.bytes_now + _WIDENING_BYTES * size_bytes // self.bytes_now + 1
            self.bytes_now = min(self._bytes_max, widened)

    def _fits(self, size_bytes: int) -> bool:
        if self.items_in_flight == 0:
            return True
        if self._items_max is not None and self.items_in_flight >= self._items_max * self.bytes_now // self._bytes_max:
            return False
        return self.bytes_in_flight + size_bytes <= self.bytes_now

    def _take(self, size_bytes: int, items: int) -> None:
        self.bytes_in_flight += size_bytes
        self.items_in_flight += items


class Lease:
    """The part of a window that one item uses."""

    __slots__ = ("_is_held", "_shrinks_seen", "_size_bytes", "_window")

    def __init__(self, window: Window, size_bytes: int) -> None:
        self._window = window
        self._size_bytes = size_bytes
        self._shrinks_seen = 0
        self._is_held = False

    async def acquire(self) -> Self:
        """Wait until it fits."""
        if not self._window.is_admitted(self._size_bytes):
            await self._window.turn(self._size_bytes)
        self._shrinks_seen = self._window.shrinks
        self._is_held = True
        return self

    __aenter__ = acquire

    def release(self) -> None:
        """Free what it uses; safe to repeat."""
        if self._is_held:
            self._is_held = False
            self._window.change(-self._size_bytes, -1)

    async def __aexit__(self, *_: object) -> None:
        self.release()

    def resize(self, size_bytes: int) -> None:
        """Correct the size once it is known. Never waits; later items wait instead."""
        self._window.change(size_bytes - self._size_bytes)
        self._size_bytes = size_bytes

    def note_outcome(self, *, is_overloaded: bool) -> None:
        """Widen or halve the window."""
        if is_overloaded:
            self._window.shrink(self._shrinks_seen)
        else:
            self._window.grow(self._size_bytes)


class Windows:
    """All windows of a run."""

    def __init__(self, bytes_max: int, items_max: int) -> None:
        self.memory = Window(bytes_max)
        """For batches that are copied."""
        self.items = Window(bytes_max, items_max=items_max)
        """For entries, or batches of entries, whose copies may be on any bookie: what is read one by one shrinks it."""
        self._bytes_max = bytes_max
        self._bookies: dict[str, Window] = {}

    def of(self, bookie_id: str) -> Window:
        """For batches that are read from a bookie, or written to it."""
        window = self._bookies.get(bookie_id)
        if window is None:
            window = self._bookies[bookie_id] = Window(self._bytes_max, bytes_first=WINDOW_BYTES_FIRST)
        return window


class CopyRate(RateLimit):
    """The limit of bytes per second that all reads and copies of a run share. They take an estimate and correct it."""

    def __init__(self, clock: Clock, bytes_per_second: int | None) -> None:
        super().__init__(clock, bytes_per_second, BURST_S)


class SharedPacer:
    """The byte rates of a run: of all copies together, and of each bookie, whose reads and writes count."""

    def __init__(self, clock: Clock, total: CopyRate | None = None) -> None:
        """``total``: the rate of all together; None: a new one without a limit."""
        self._clock = clock
        self.total = total or CopyRate(clock, None)
        self._bytes_per_s_per_bookie: int | None = None
        self._bookies: dict[str, CopyRate] = {}

    def change(self, bytes_per_s: int | None, bytes_per_s_per_bookie: int | None) -> None:
        """Set the rates from now on."""
        self.total.change(bytes_per_s)
        self._bytes_per_s_per_bookie = bytes_per_s_per_bookie
        for rate in self._bookies.values():
            rate.change(bytes_per_s_per_bookie)

    def least_s(self, size_bytes: int, targets: int) -> float:
        """How long copies of so many bytes to so many bookies take at least."""
        limits = (self.total.per_s, (self._bytes_per_s_per_bookie or 0) * targets)
        return max((size_bytes / each for each in limits if each), default=0.0)

    async def take(self, source: str, target: str, size_bytes: int) -> None:
        """Wait until a batch of about this size may be read and copied."""
        for rate in self._rates(source, target):
            await rate.take(size_bytes)

    def correct(self, source: str, target: str, taken_bytes: int, real_bytes: int) -> None:
        """Replace an estimate that was taken by the real size."""
        for rate in self._rates(source, target):
            rate.correct(taken_bytes, real_bytes)

    async def take_read(self, bookie_id: str, size_bytes: int) -> None:
        """Wait until about this much may be read from one bookie to verify its copies. It is no part of the copies."""
        await self._rate_of(bookie_id).take(size_bytes)

    async def take_reads(self, sizes_bytes: Mapping[str, int]) -> None:
        """Wait until about this much may be read from each of these bookies. It counts in all, too."""
        await self.total.take(sum(sizes_bytes.values()))
        for bookie_id, size_bytes in sizes_bytes.items():
            await self._rate_of(bookie_id).take(size_bytes)

    def correct_reads(self, taken_bytes: Mapping[str, int], real_bytes: Mapping[str, int]) -> None:
        """Replace estimates that were taken by the real sizes of the same bookies."""
        for bookie_id, taken in taken_bytes.items():
            for rate in (self.total, self._rate_of(bookie_id)):
                rate.correct(taken, real_bytes.get(bookie_id, 0))

    def _rates(self, source: str, target: str) -> list[CopyRate]:
        if self.total.per_s is self._bytes_per_s_per_bookie is None:
            return []
        return [self.total, *(self._rate_of(bookie_id) for bookie_id in dict.fromkeys((source, target)))]

    def _rate_of(self, bookie_id: str) -> CopyRate:
        if bookie_id not in self._bookies:
            self._bookies[bookie_id] = CopyRate(self._clock, self._bytes_per_s_per_bookie)
        return self._bookies[bookie_id]


async def for_each_leased(
    items: AsyncIterable[T],
    worker: Callable[[T, Lease], Coroutine[Any, Any, None]],
    window: Window,
    size_bytes: Callable[[], int],
) -> None:
    """Run ``worker`` on as many items concurrently as fit in ``window``; ``size_bytes`` estimates the next item's size.

    The worker may resize its lease, which is released when the worker ends. The first exception of a worker cancels the
    others and is raised.
    """
    try:
        async with asyncio.TaskGroup() as group:
            async for item in items:
                lease = await window.lease(size_bytes()).acquire()
                task = group.create_task(worker(item, lease))
                # Use a callback: a task that is cancelled before its first step runs no finally clause.
                task.add_done_callback(partial(_release, lease))
    except BaseExceptionGroup as errors:
        raise _first_error(errors) from errors


async def for_each_bounded(
    items: AsyncIterable[T], worker: Callable[[T], Coroutine[Any, Any, None]], count_max: int
) -> None:
    """Run ``worker`` on every item, at most ``count_max`` concurrently; see ``for_each_leased``."""
    await for_each_leased(items, lambda item, _: worker(item), Window(count_max), lambda: 1)


async def run_all(works: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Results of all works, which run concurrently. The first exception cancels the others and is raised."""
    if len(works) == 1:
        return [await works[0]]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in works]
    except BaseExceptionGroup as errors:
        raise _first_error(errors) from errors
    return [task.result() for task in tasks]


def _release(lease: Lease, _: asyncio.Task[None]) -> None:
    lease.release()


def _first_error(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    error = errors.exceptions[0]
    return _first_error(error) if isinstance(error, BaseExceptionGroup) else error
