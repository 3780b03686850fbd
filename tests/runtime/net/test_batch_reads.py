"""Batch reads: the bookie answers a prefix; whatever else happens, the entries are read singly in the same call."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from bkctl.runtime.config import ClientConfig
from bkctl.runtime.net.pool import BookiePool
from bkctl.runtime.ports import Clock
from bkctl.runtime.protocol.status import Status
from bkctl.runtime.protocol.v2_batch_reads import BatchReadCall
from tests.runtime.net.batch_bookie import BatchBookie, answer_frame, batch_bookie
from tests.runtime.net.memory_bookie import memory_bookie
from tests.runtime.net.pools import BOOKIE, KEY, pool_of
from tests.runtime.net.stepped_clock import SteppedClock

BYTES_MAX = 1 << 20
REJECTIONS = [100, 103]


@contextlib.asynccontextmanager
async def bookie_and_pool(
    entry_count: int, config: ClientConfig | None = None, clock: Clock | None = None
) -> AsyncIterator[tuple[BatchBookie, BookiePool]]:
    """A bookie with entries 0, 1, 2, ... of ledger 1, of 100 bytes each, and a pool.

    Its requests do not time out, also if a busy machine halts the test for seconds, unless the test's clock goes on.
    """
    async with (
        memory_bookie() as memory,
        batch_bookie(memory) as bookie,
        pool_of(bookie, config, clock=clock or SteppedClock()) as pool,
    ):
        memory.entries.update({(1, entry_id): body(entry_id) for entry_id in range(entry_count)})
        yield bookie, pool


def body(entry_id: int) -> bytes:
    return entry_id.to_bytes(100, "big")


def bodies(*entry_ids: int) -> list[bytes]:
    return [body(entry_id) for entry_id in entry_ids]


async def test_consecutive_entries_are_one_request_on_a_connection_of_their_own() -> None:
    async with bookie_and_pool(10) as (bookie, pool):
        assert await pool.read_many(BOOKIE, 1, range(2, 8), bytes_max=BYTES_MAX) == bodies(2, 3, 4, 5, 6, 7)
        assert await pool.read_many(BOOKIE, 1, [8, 9], bytes_max=BYTES_MAX) == bodies(8, 9)
        assert [(call.first_entry_id, call.count_max, call.bytes_max) for call in bookie.calls] == [
            (2, 6, BYTES_MAX),
            (8, 2, BYTES_MAX),
        ]
        assert bookie.connection_count == 1
        assert bookie.memory.request_count == 0
        assert await pool.add_many(BOOKIE, 1, KEY, [(10, b"ten")]) == [Status.OK]


async def test_other_ids_and_single_entries_are_single_reads() -> None:
    async with bookie_and_pool(10) as (bookie, pool):
        for entry_ids in ([5], [1, 3], [2, 1], [1, 1], [0, 2, 2, 3], [1, 3, 2, 4]):
            assert await pool.read_many(BOOKIE, 1, entry_ids, bytes_max=BYTES_MAX) == bodies(*entry_ids)
        assert bookie.calls == []


async def test_the_answer_is_a_prefix_within_the_size() -> None:
    async with bookie_and_pool(10) as (_, pool):
        assert await pool.read_many(BOOKIE, 1, range(10), bytes_max=36 + 4 * 104) == bodies(0, 1, 2, 3)
        assert await pool.read_many(BOOKIE, 1, range(4, 10), bytes_max=BYTES_MAX) == bodies(4, 5, 6, 7, 8, 9)
        assert await pool.read_many(BOOKIE, 1, range(10), bytes_max=1) == bodies(0)
        assert await pool.read_many(BOOKIE, 1, range(10), bytes_max=-1) == bodies(0)


async def test_no_answer_is_asked_for_that_is_larger_than_a_frame() -> None:
    async with bookie_and_pool(10, ClientConfig(frame_bytes_max=1000)) as (bookie, pool):
        assert await pool.read_many(BOOKIE, 1, range(10), bytes_max=BYTES_MAX) == bodies(*range(9))
        assert bookie.calls[0].bytes_max == 1000


async def test_a_missing_entry_ends_the_answer_and_is_then_read_singly() -> None:
    async with bookie_and_pool(10) as (bookie, pool):
        del bookie.memory.entries[1, 4]
        assert await pool.read_many(BOOKIE, 1, range(10), bytes_max=BYTES_MAX) == bodies(0, 1, 2, 3)
        assert await pool.read_many(BOOKIE, 1, range(4, 7), bytes_max=BYTES_MAX) == [
            Status.NO_SUCH_ENTRY,
            *bodies(5, 6),
        ]
        assert await pool.read_many(BOOKIE, 1, range(7, 10), bytes_max=BYTES_MAX) == bodies(7, 8, 9)
        assert len(bookie.calls) == 3


@pytest.mark.parametrize("code", REJECTIONS)
async def test_a_bookie_that_rejects_batch_reads_is_not_asked_again(code: int) -> None:
    async with bookie_and_pool(10) as (bookie, pool):
        bookie.answer = lambda call: answer_frame(call, code, [])
        for _ in range(3):
            assert await pool.read_many(BOOKIE, 1, range(10), bytes_max=BYTES_MAX) == bodies(*range(10))
        assert len(bookie.calls) == 1


async def test_a_bookie_that_closes_the_connection_is_not_asked_again() -> None:
    async with bookie_and_pool(10) as (bookie, pool):
        bookie.answer = lambda call: b""
        first, second = (pool.read_many(BOOKIE, 1, range(start, 10), bytes_max=BYTES_MAX) for start in (0, 5))
        assert await first == bodies(*range(10))
        assert await second == bodies(*range(5, 10))
        assert await pool.read_many(BOOKIE, 1, range(10), bytes_max=BYTES_MAX) == bodies(*range(10))
        assert bookie.connection_count == 1


async def test_a_bkctl_bookie_serves_all_entries_and_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with memory_bookie() as bookie, pool_of(bookie) as pool:
        bookie.entries.update({(1, entry_id): body(entry_id) for entry_id in range(10)})
        for _ in range(2):
            assert await pool.read_many(BOOKIE, 1, range(10), bytes_max=BYTES_MAX) == bodies(*range(10))
    assert caplog.records == []


async def test_a_connection_lost_after_an_answer_says_nothing_about_batch_reads() -> None:
    async with bookie_and_pool(10) as (bookie, pool):
        await pool.read_many(BOOKIE, 1, range(10), bytes_max=BYTES_MAX)
        bookie.answer = lambda call: b""
        assert await pool.read_many(BOOKIE, 1, range(10), bytes_max=BYTES_MAX) == bodies(*range(10))
        bookie.answer = bookie.entries
        assert await pool.read_many(BOOKIE, 1, range(10), bytes_max=BYTES_MAX) == bodies(*range(10))
        assert (len(bookie.calls), bookie.connection_count) == (3, 2)


def another_ledger(call: BatchReadCall) -> bytes:
    return answer_frame(BatchReadCall(call.request_id, 2, call.first_entry_id, 1, 1), 0, [b"x"])


def another_entry(call: BatchReadCall) -> bytes:
    return answer_frame(BatchReadCall(call.request_id, 1, call.first_entry_id + 1, 1, 1), 0, [b"x"])


def too_many(call: BatchReadCall) -> bytes:
    return answer_frame(call, 0, [b"x"] * (call.count_max + 1))


def cut(call: BatchReadCall) -> bytes:
    return b"\0\0\0\x2a" + answer_frame(call, 0, [b"12345", b"678"])[4:-2]


def no_frame(call: BatchReadCall) -> bytes:
    return b"\xff\xff\xff\xff"


@pytest.mark.parametrize("answer", [another_ledger, another_entry, too_many, cut, no_frame])
@pytest.mark.parametrize("is_first", [True, False])
async def test_a_wrong_answer_ends_the_connection_and_no_entry_is_lost(
    answer: object, is_first: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with bookie_and_pool(10) as (bookie, pool):
        if not is_first:
            await pool.read_many(BOOKIE, 1, range(10), bytes_max=BYTES_MAX)
        bookie.answer = answer  # type: ignore[assignment]
        pending = [pool.read_many(BOOKIE, 1, range(start, 10), bytes_max=BYTES_MAX) for start in (0, 5)]
        assert [await each for each in pending] == [bodies(*range(10)), bodies(*range(5, 10))]
        assert bookie.connection_count == 1
        assert len(caplog.records) == 1


async def test_too_many_requests_is_the_answer_of_all_entries() -> None:
    async with bookie_and_pool(10) as (bookie, pool):
        bookie.answer = lambda call: answer_frame(call, 106, [])
        expected = [Status.TOO_MANY_REQUESTS] * 10
        assert await pool.read_many(BOOKIE, 1, range(10), bytes_max=BYTES_MAX) == expected
        assert bookie.memory.request_count == 0


async def test_a_silent_bookie_times_out_once_and_its_late_answer_is_dropped() -> None:
    clock = SteppedClock()
    async with bookie_and_pool(10, clock=clock) as (bookie, pool):
        bookie.answer = lambda call: None
        read = pool.read_many(BOOKIE, 1, range(10), bytes_max=BYTES_MAX)
        await bookie.calls_are(1)
        clock.advance(4.9)
        assert not read.done()
        clock.advance(0.6)
        assert await read == [Status.TIMEOUT] * 10
        assert bookie.memory.request_count == 0
        bookie.send(bookie.entries(bookie.calls[0]))
        bookie.answer = bookie.entries
        assert await pool.read_many(BOOKIE, 1, range(5), bytes_max=BYTES_MAX) == bodies(*range(5))
        assert bookie.connection_count == 1


async def test_answers_come_in_any_order() -> None:
    async with bookie_and_pool(10) as (bookie, pool):
        bookie.answer = lambda call: None
        reads = [pool.read_many(BOOKIE, 1, range(start, 10), bytes_max=BYTES_MAX) for start in (0, 5)]
        await bookie.calls_are(2)
        for call in reversed(bookie.calls):
            bookie.send(bookie.entries(call))
        assert [await read for read in reads] == [bodies(*range(10)), bodies(*range(5, 10))]


async def test_a_bookie_without_a_connection_is_unavailable_and_may_serve_batches_later() -> None:
    async with bookie_and_pool(10) as (bookie, pool):
        port, bookie.port = bookie.port, 1
        assert await pool.read_many(BOOKIE, 1, range(3), bytes_max=BYTES_MAX) == [Status.UNAVAILABLE] * 3
        bookie.port = port
        assert await pool.read_many(BOOKIE, 1, range(3), bytes_max=BYTES_MAX) == bodies(0, 1, 2)
        assert len(bookie.calls) == 1


async def test_a_cancelled_batch_read_leaves_the_connection_alone() -> None:
    async with bookie_and_pool(10) as (bookie, pool):
        bookie.answer = lambda call: None
        answered, refused = (pool.read_many(BOOKIE, 1, range(10), bytes_max=BYTES_MAX) for _ in range(2))
        await bookie.calls_are(2)
        answered.cancel()
        refused.cancel()
        bookie.send(bookie.entries(bookie.calls[0]) + answer_frame(bookie.calls[1], 2, []))
        bookie.answer = bookie.entries
        assert await pool.read_many(BOOKIE, 1, range(10), bytes_max=BYTES_MAX) == bodies(*range(10))
        assert (bookie.memory.request_count, bookie.connection_count) == (0, 1)


async def test_close_ends_batch_reads() -> None:
    async with bookie_and_pool(10) as (bookie, pool):
        bookie.answer = lambda call: None
        read = pool.read_many(BOOKIE, 1, range(10), bytes_max=BYTES_MAX)
        await bookie.calls_are(1)
        await pool.close()
        assert await asyncio.wait_for(read, 60) == [Status.UNAVAILABLE] * 10
        assert await pool.read_many(BOOKIE, 1, range(10), bytes_max=BYTES_MAX) == [Status.UNAVAILABLE] * 10
