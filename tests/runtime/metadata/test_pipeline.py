from __future__ import annotations

import asyncio

import pytest

from bkctl.runtime.metadata.pipeline import each_of, pipelined


@pytest.mark.parametrize("window", [1, 2, 5, 100])
async def test_order_and_window(window: int) -> None:
    under_way = 0
    peak = 0

    async def request(number: int) -> int:
        nonlocal under_way, peak
        under_way += 1
        peak = max(peak, under_way)
        for _ in range((number * 7) % 5):
            await asyncio.sleep(0)
        under_way -= 1
        return number * 10

    found = [result async for result in pipelined(each_of(range(20)), request, window)]
    assert found == [number * 10 for number in range(20)]
    assert peak <= window
    assert peak > 1 or window == 1


async def test_a_failure_ends_it_and_cancels_the_rest() -> None:
    started: list[int] = []
    cancelled: list[int] = []

    async def request(number: int) -> int:
        started.append(number)
        if number == 1:
            raise KeyError(number)
        try:
            await asyncio.sleep(0 if number == 0 else 3600)
        except asyncio.CancelledError:
            cancelled.append(number)
            raise
        return number

    results = pipelined(each_of(range(10)), request, 4)
    assert await anext(results) == 0
    with pytest.raises(KeyError):
        await anext(results)
    assert cancelled == started[2:]
    assert len(asyncio.all_tasks()) == 1
