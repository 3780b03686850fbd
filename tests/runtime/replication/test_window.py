from __future__ import annotations

import asyncio

import pytest

from bkctl.runtime.metadata.pipeline import each_of
from bkctl.runtime.replication.copy.limits import (
    SHRINK_MAX,
    WINDOW_BYTES_FIRST,
    Lease,
    Window,
    Windows,
    for_each_leased,
)

MEBIBYTE = 2**20


async def test_items_are_admitted_in_order_while_they_fit() -> None:
    window = Window(100)
    async with window.lease(60) as first:
        large = asyncio.create_task(window.lease(60).acquire())
        small = asyncio.create_task(window.lease(10).acquire())
        await asyncio.sleep(0)
        assert not large.done()
        assert not small.done(), "the order of the calls stays"
        first.resize(40)
        await asyncio.sleep(0)
        assert large.done()
        assert not small.done()
    await small
    assert (window.bytes_in_flight, window.items_in_flight) == (70, 2)


async def test_the_number_of_items_can_be_limited_too() -> None:
    window = Window(100, items_max=3)
    leases = [await window.lease(1).acquire() for _ in range(3)]
    waiting = asyncio.create_task(window.lease(1).acquire())
    await asyncio.sleep(0)
    assert not waiting.done()
    leases[0].release()
    leases[0].release()
    await waiting
    assert (window.bytes_in_flight, window.items_in_flight) == (3, 3)


async def test_what_is_larger_than_the_window_goes_alone() -> None:
    window = Window(100)
    async with window.lease(1000):
        waiting = asyncio.create_task(window.lease(1).acquire())
        await asyncio.sleep(0)
        assert not waiting.done()
    await waiting
    assert window.bytes_in_flight == 1


async def test_one_overload_halves_the_window_once_for_all_that_was_in_flight() -> None:
    window = Windows(64 * MEBIBYTE, 512).of("b1")
    assert window.bytes_now == WINDOW_BYTES_FIRST
    async with window.lease(MEBIBYTE) as one, window.lease(MEBIBYTE) as two:
        one.note_outcome(is_overloaded=True)
        two.note_outcome(is_overloaded=True)
    assert window.bytes_now == WINDOW_BYTES_FIRST // 2
    for _ in range(20):
        async with window.lease(MEBIBYTE) as lease:
            lease.note_outcome(is_overloaded=True)
    assert window.bytes_now == WINDOW_BYTES_FIRST // SHRINK_MAX == 64 * 1024


async def test_an_overload_limits_the_items_too_and_success_brings_them_back() -> None:
    window = Window(4 * MEBIBYTE, items_max=4)
    for _ in range(20):
        window.shrink(window.shrinks)
    held = await window.lease(1).acquire()
    waiting = asyncio.create_task(window.lease(1).acquire())
    await asyncio.sleep(0)
    assert not waiting.done(), "one at a time is the least"
    while window.bytes_now < 2 * MEBIBYTE:
        window.grow(MEBIBYTE)
    held.resize(2)
    await waiting
    assert window.items_in_flight == 2


async def test_a_window_grows_by_a_mebibyte_for_each_window_of_success_up_to_its_limit() -> None:
    window = Window(12 * MEBIBYTE, bytes_first=8 * MEBIBYTE)
    async with window.lease(8 * MEBIBYTE) as lease:
        lease.note_outcome(is_overloaded=False)
    assert 9 * MEBIBYTE <= window.bytes_now <= 9 * MEBIBYTE + 1
    for _ in range(100):
        async with window.lease(MEBIBYTE) as lease:
            lease.note_outcome(is_overloaded=False)
    assert window.bytes_now == 12 * MEBIBYTE


async def test_each_bookie_has_one_window() -> None:
    windows = Windows(MEBIBYTE, 512)
    assert windows.of("b1") is windows.of("b1")
    assert len({id(each) for each in (windows.of("b1"), windows.of("b2"), windows.memory, windows.items)}) == 4


async def test_a_cancelled_wait_leaves_nothing_in_flight() -> None:
    window = Window(10)
    async with window.lease(10):
        waiting, admitted = (asyncio.create_task(window.lease(5).acquire()) for _ in range(2))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.sleep(0)
    admitted.cancel()  # its turn came just before
    await asyncio.gather(waiting, admitted, return_exceptions=True)
    assert (window.bytes_in_flight, window.items_in_flight) == (0, 0)


async def test_a_failing_worker_ends_the_others_and_is_the_error() -> None:
    window = Window(100, items_max=4)
    ended = []

    async def work(item: int, lease: Lease) -> None:
        lease.resize(5)
        try:
            if item == 2:
                raise ValueError(item)
            await asyncio.sleep(60)
        finally:
            ended.append(item)

    with pytest.raises(ValueError, match="2"):
        await for_each_leased(each_of(range(100)), work, window, lambda: 1)
    await asyncio.sleep(0)
    assert sorted(ended) == [0, 1, 2, 3][: len(ended)]
    assert 2 in ended
    assert (window.bytes_in_flight, window.items_in_flight) == (0, 0)
