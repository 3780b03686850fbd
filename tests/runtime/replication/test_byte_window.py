from __future__ import annotations

import asyncio

import pytest

from runtime.replication.copy.byte_window import ByteWindow, Lease, for_each_leased


async def test_bytes_and_entries_are_bounded_and_served_in_order() -> None:
    window = ByteWindow(bytes_max=100, entries_max=3)
    first = await window.acquire(60)
    large = asyncio.create_task(window.acquire(60))
    small = asyncio.create_task(window.acquire(10))
    await asyncio.sleep(0)
    assert not large.done()
    assert not small.done(), "nobody overtakes"
    first.release()
    await asyncio.gather(large, small)
    assert (window.bytes_in_flight, window.entries_in_flight) == (70, 2)


async def test_what_is_larger_than_the_window_goes_alone() -> None:
    window = ByteWindow(bytes_max=100, entries_max=10)
    huge = await window.acquire(1000)
    waiting = asyncio.create_task(window.acquire(1))
    await asyncio.sleep(0)
    assert not waiting.done()
    huge.release()
    huge.release()
    (await waiting).release()
    assert (window.bytes_in_flight, window.entries_in_flight) == (0, 0)


async def test_a_true_size_counts_at_once() -> None:
    window = ByteWindow(bytes_max=100, entries_max=10)
    lease = await window.acquire(1)
    lease.resize(99)
    waiting = asyncio.create_task(window.acquire(2))
    await asyncio.sleep(0)
    assert not waiting.done()
    lease.release()
    (await waiting).release()
    assert window.bytes_in_flight == 0


async def test_overload_halves_the_window_and_success_brings_it_back() -> None:
    window = ByteWindow(bytes_max=100, entries_max=4)
    for _ in range(20):
        window.shrink()
    leases = [await window.acquire(1)]
    waiting = asyncio.create_task(window.acquire(1))
    await asyncio.sleep(0)
    assert not waiting.done(), "one at a time is the least"
    for _ in range(4):
        window.grow()
    leases.pop().release()
    (await waiting).release()
    assert window.share == 1.0


async def test_cancelled_waiters_leak_nothing() -> None:
    window = ByteWindow(bytes_max=10, entries_max=1)
    held = await window.acquire(1)
    waiting = asyncio.create_task(window.acquire(1))
    await asyncio.sleep(0)
    held.release()  # its turn comes, and the cancellation with it
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert (window.bytes_in_flight, window.entries_in_flight) == (0, 0)


async def test_a_failing_worker_ends_the_others_and_is_the_error() -> None:
    window = ByteWindow(bytes_max=100, entries_max=4)
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
        await for_each_leased(range(100), work, window, lambda: 1)
    await asyncio.sleep(0)
    assert sorted(ended) == [0, 1, 2, 3][: len(ended)]
    assert 2 in ended
    assert (window.bytes_in_flight, window.entries_in_flight) == (0, 0)
