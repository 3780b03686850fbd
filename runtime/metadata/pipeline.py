"""Concurrent requests with answers in order. Memory is bounded by the window and by the weight of the answers."""

from __future__ import annotations

import asyncio
import collections
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from typing import TypeVar

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")

_UNDER_WAY_MIN = 2


async def each_of(items: Iterable[ItemT]) -> AsyncIterator[ItemT]:
    """Turn known items into a stream."""
    for item in items:
        yield item


async def pipelined(
    items: AsyncIterator[ItemT],
    request: Callable[[ItemT], Awaitable[ResultT]],
    window: int,
    *,
    weigh: Callable[[ResultT], int] | None = None,
    weight_max: int = 0,
) -> AsyncGenerator[ResultT, None]:
    """Yield ``await request(item)`` for every item, in order, with at most ``window`` requests in flight.

    With ``weigh``, fewer are in flight while answers are heavy: about as many as weigh ``weight_max`` together, judged
    by the heaviest recent answer, but always at least two. An answer that waits for its turn counts as in flight.

    The first request that fails ends the stream with its error. Requests still in flight then, or when the consumer
    closes the iterator early, are cancelled.
    """
    assert window > 0
    under_way: collections.deque[asyncio.Future[ResultT]] = collections.deque()
    limit = window
    expected_weight = 0
    try:
        async for item in items:
            under_way.append(asyncio.ensure_future(request(item)))
            while len(under_way) >= limit:
                result = await under_way.popleft()
                if weigh is not None:
                    expected_weight = max(weigh(result), expected_weight // 2, 1)
                    limit = min(window, max(_UNDER_WAY_MIN, weight_max // expected_weight))
                yield result
        while under_way:
            yield await under_way.popleft()
    finally:
        for future in under_way:
            future.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
