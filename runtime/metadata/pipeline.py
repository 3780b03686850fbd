"""Many requests under way at once, answers in order, memory bounded by the window."""

from __future__ import annotations

import asyncio
import collections
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import TypeVar

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


async def pipelined(
    items: AsyncIterator[ItemT], request: Callable[[ItemT], Awaitable[ResultT]], window: int
) -> AsyncGenerator[ResultT, None]:
    """Yield ``await request(item)`` for every item, in order, with at most ``window`` requests under way.

    The first request that fails ends it with its error; whatever is still under way then, or when the consumer stops
    early and closes the iterator, is cancelled.
    """
    assert window > 0
    under_way: collections.deque[asyncio.Future[ResultT]] = collections.deque()
    try:
        async for item in items:
            under_way.append(asyncio.ensure_future(request(item)))
            if len(under_way) >= window:
                yield await under_way.popleft()
        while under_way:
            yield await under_way.popleft()
    finally:
        for future in under_way:
            future.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
