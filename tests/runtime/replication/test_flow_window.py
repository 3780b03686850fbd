from __future__ import annotations

import asyncio

from runtime.replication.copy.flow_window import WINDOW_BYTES_FIRST, WINDOW_BYTES_MIN, FlowWindow, FlowWindows

MEBIBYTE = 2**20


async def test_batches_are_admitted_in_order_while_they_fit() -> None:
    window = FlowWindow(100)
    async with window.lease(60) as first:
        large = asyncio.create_task(window.acquire(60))
        small = asyncio.create_task(window.acquire(10))
        await asyncio.sleep(0)
        assert not large.done()
        assert not small.done(), "no batch overtakes another"
        first.resize(40)
        await asyncio.sleep(0)
        assert large.done()
        assert not small.done()
    await small
    assert window.bytes_in_flight == 70


async def test_a_batch_larger_than_the_window_is_sent_alone() -> None:
    window = FlowWindow(100)
    async with window.lease(1000):
        waiting = asyncio.create_task(window.acquire(1))
        await asyncio.sleep(0)
        assert not waiting.done()
    await waiting
    assert window.bytes_in_flight == 1


async def test_one_overload_halves_the_window_once_for_all_batches_that_were_in_flight() -> None:
    window = FlowWindows(64 * MEBIBYTE).source("b1")
    assert window.bytes_now == WINDOW_BYTES_FIRST
    async with window.lease(MEBIBYTE) as one, window.lease(MEBIBYTE) as two:
        one.note_outcome(is_overloaded=True)
        two.note_outcome(is_overloaded=True)
    assert window.bytes_now == WINDOW_BYTES_FIRST // 2
    for _ in range(20):
        async with window.lease(MEBIBYTE) as lease:
            lease.note_outcome(is_overloaded=True)
    assert window.bytes_now == WINDOW_BYTES_MIN


async def test_a_window_grows_by_a_mebibyte_for_each_window_of_success_up_to_its_limit() -> None:
    window = FlowWindow(12 * MEBIBYTE, 8 * MEBIBYTE)
    async with window.lease(8 * MEBIBYTE) as lease:
        lease.note_outcome(is_overloaded=False)
    assert 9 * MEBIBYTE <= window.bytes_now <= 9 * MEBIBYTE + 1
    for _ in range(100):
        async with window.lease(MEBIBYTE) as lease:
            lease.note_outcome(is_overloaded=False)
    assert window.bytes_now == 12 * MEBIBYTE


async def test_windows_of_bookies_are_independent_and_each_bookie_has_two() -> None:
    windows = FlowWindows(MEBIBYTE)
    assert windows.source("b1") is windows.source("b1")
    assert len({id(each) for each in (windows.source("b1"), windows.target("b1"), windows.source("b2"))}) == 3


async def test_a_cancelled_wait_leaves_nothing_in_flight() -> None:
    window = FlowWindow(10)
    async with window.lease(10):
        waiting, admitted = (asyncio.create_task(window.acquire(5)) for _ in range(2))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.sleep(0)
    admitted.cancel()  # its turn came just before
    await asyncio.gather(waiting, admitted, return_exceptions=True)
    assert window.bytes_in_flight == 0
