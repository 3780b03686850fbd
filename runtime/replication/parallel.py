"""Running many things side by side within limits, so that one failure is one exception.

asyncio.TaskGroup reports failures as a group even when there is one; the callers here, and the roof, want the error.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable, Coroutine, Iterable
from functools import partial
from typing import Any, TypeVar

from runtime.replication.byte_window import ByteWindow, Lease

T = TypeVar("T")


async def for_each_bounded(
    items: AsyncIterable[T], worker: Callable[[T], Coroutine[Any, Any, None]], count_max: int
) -> None:
    """Run ``worker`` on every item, at most ``count_max`` at once; an item is taken when there is room for it.

    The first exception of a worker cancels the others and is raised.
    """
    room = asyncio.Semaphore(count_max)
    try:
        async with asyncio.TaskGroup() as group:
            async for item in items:
                await room.acquire()
                task = group.create_task(worker(item))
                # A callback, because a task that is cancelled before its first step runs no finally clause.
                task.add_done_callback(lambda _: room.release())
    except BaseExceptionGroup as errors:
        raise _first_error(errors) from errors


async def for_each_leased(
    items: Iterable[T],
    worker: Callable[[T, Lease], Coroutine[Any, Any, None]],
    window: ByteWindow,
    size_bytes: Callable[[], int],
) -> None:
    """Run ``worker`` on every item, as many at once as fit into ``window``; ``size_bytes`` estimates the next one.

    The worker may resize its lease; it is released when the worker ends. The first exception cancels the others and is
    raised.
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
