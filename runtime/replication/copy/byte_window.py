"""Limit for entries that are read one by one: a budget of bytes and entries shared by all reads of one run.

It is halved when a bookie answers "too many requests" and grows back slowly, like a congestion window
(replication section 15.1; bk#3408, pu#4213: unbounded or fixed batches overloaded bookies).

``for_each_bounded`` and ``for_each_leased`` run tasks within such limits. They raise the first error itself, while
asyncio.TaskGroup raises a group.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

SHARE_MIN = 1 / 64
"""The window never shrinks below this fraction of its limits, nor below one entry."""


class Lease:
    """The part of the window that one entry uses. ``release`` frees it; safe to repeat."""

    __slots__ = ("_size_bytes", "_window")

    def __init__(self, window: ByteWindow, size_bytes: int) -> None:
        self._window = window
        self._size_bytes = size_bytes

    def resize(self, size_bytes: int) -> None:
        """Correct the size once it is known. Never waits; later entries wait instead."""
        self._window.bytes_in_flight += size_bytes - self._size_bytes
        self._size_bytes = size_bytes

    def release(self) -> None:
        """Free the bytes and the entry."""
        if self._size_bytes >= 0:
            self._window.bytes_in_flight -= self._size_bytes
            self._window.entries_in_flight -= 1
            self._size_bytes = -1
            self._window.wake()


class ByteWindow:
    """See the module docstring. An entry larger than the whole window is admitted alone."""

    def __init__(self, bytes_max: int, entries_max: int) -> None:
        self.bytes_in_flight = 0
        self.entries_in_flight = 0
        self._bytes_max = bytes_max
        self._entries_max = entries_max
        self._share = 1.0
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def share(self) -> float:
        """Current fraction of the limits: 1 if no bookie is overloaded."""
        return self._share

    async def acquire(self, size_bytes: int) -> Lease:
        """Wait, in order of the calls, until an entry of about this size fits."""
        if self._waiters or not self._fits(size_bytes):
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append((size_bytes, turn))
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._take_back(size_bytes)  # admitted just before the cancellation
                raise
        else:
            self._take(size_bytes)
        return Lease(self, size_bytes)

    def shrink(self) -> None:
        """A bookie is overloaded: halve the window."""
        self._share = max(self._share / 2, SHARE_MIN)

    def grow(self) -> None:
        """An entry succeeded: widen the window by one entry's share."""
        if self._share < 1:
            self._share = min(1.0, self._share + 1 / self._entries_max)

    def wake(self) -> None:
        """Admit waiting entries that fit now."""
        while self._waiters:
            size_bytes, turn = self._waiters[0]
            if turn.done():
                self._waiters.popleft()
            elif self._fits(size_bytes):
                self._waiters.popleft()
                self._take(size_bytes)
                turn.set_result(None)
            else:
                return

    def _fits(self, size_bytes: int) -> bool:
        if self.entries_in_flight == 0:
            return True
        return (
            self.entries_in_flight < max(1, int(self._entries_max * self._share))
            and self.bytes_in_flight + size_bytes <= self._bytes_max * self._share
        )

    def _take(self, size_bytes: int) -> None:
        self.bytes_in_flight += size_bytes
        self.entries_in_flight += 1

    def _take_back(self, size_bytes: int) -> None:
        self.bytes_in_flight -= size_bytes
        self.entries_in_flight -= 1
        self.wake()


T = TypeVar("T")


async def for_each_bounded(
    items: AsyncIterable[T], worker: Callable[[T], Coroutine[Any, Any, None]], count_max: int
) -> None:
    """Run ``worker`` on every item, at most ``count_max`` concurrently. Takes an item only when a worker is free.

    The first exception of a worker cancels the others and is raised.
    """
    room = asyncio.Semaphore(count_max)
    try:
        async with asyncio.TaskGroup() as group:
            async for item in items:
                await room.acquire()
                task = group.create_task(worker(item))
                # Use a callback: a task that is cancelled before its first step runs no finally clause.
                task.add_done_callback(lambda _: room.release())
    except BaseExceptionGroup as errors:
        raise _first_error(errors) from errors


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


async def for_each_leased(
    items: Iterable[T],
    worker: Callable[[T, Lease], Coroutine[Any, Any, None]],
    window: ByteWindow,
    size_bytes: Callable[[], int],
) -> None:
    """Run ``worker`` on as many items concurrently as fit in ``window``; ``size_bytes`` estimates the next item's size.

    The worker may resize its lease, which is released when the worker ends. The first exception cancels the others and
    is raised.
    """
    try:
        async with asyncio.TaskGroup() as group:
            for item in items:
                lease = await window.acquire(size_bytes())
                task = group.create_task(worker(item, lease))
                task.add_done_callback(partial(_release, lease))
    except BaseExceptionGroup as errors:
        raise _first_error(errors) from errors


def _release(lease: Lease, _: asyncio.Task[None]) -> None:
    lease.release()


def _first_error(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    error = errors.exceptions[0]
    return _first_error(error) if isinstance(error, BaseExceptionGroup) else error
