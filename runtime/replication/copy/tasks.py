"""Runs tasks within limits. Raises the first error itself, while asyncio.TaskGroup raises a group."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

from bkctl.runtime.replication.copy.window import Lease, Window

T = TypeVar("T")


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
