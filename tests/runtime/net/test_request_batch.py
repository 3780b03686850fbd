"""Reads and adds in batches: one future per batch, and every entry has its own outcome, whatever happens."""

from __future__ import annotations

import asyncio

import pytest

from bkctl.runtime.config import ClientConfig
from bkctl.runtime.errors import NoSuchEntryError
from bkctl.runtime.net.pool import BookiePool
from bkctl.runtime.protocol.status import Status
from tests.runtime.net.memory_bookie import MemoryBookie, memory_bookie
from tests.runtime.net.pools import BOOKIE, KEY, Outcomes, pool_of
from tests.runtime.net.stepped_clock import SteppedClock

BYTES_MAX = 1 << 20


def bodies(count: int) -> dict[int, bytes]:
    return {entry_id: entry_id.to_bytes(8, "big") * (1 + entry_id % 50) for entry_id in range(count)}


async def answer_one_of_five(bookie: MemoryBookie, pool: BookiePool, index: int) -> None:
    """Return when the client has the answer to one of the five requests that are held."""
    await bookie.holds(5)
    bookie.held.pop(index)()
    later = pool.read(BOOKIE, 1, 9)  # its answer comes after that one
    await bookie.holds(5)
    bookie.held.pop()()
    await asyncio.wait([later])
    assert isinstance(later.exception(), NoSuchEntryError)


async def test_batches_of_adds_and_reads() -> None:
    async with memory_bookie() as bookie, pool_of(bookie) as pool:
        entries = bodies(3000)
        assert await pool.add_many(BOOKIE, 1, KEY, list(entries.items())) == [Status.OK] * 3000
        assert {entry_id: body for (_, entry_id), body in bookie.entries.items()} == entries
        assert set(bookie.add_flags) == {(KEY, False, False, False)}
        found = await pool.read_many(BOOKIE, 1, range(3000), bytes_max=BYTES_MAX)
        assert found == list(entries.values())[: len(found)]
        assert found
        assert set(bookie.read_flags) == {(None, False)}


async def test_recovery_adds_have_the_flag_and_no_priority() -> None:
    async with memory_bookie() as bookie, pool_of(bookie) as pool:
        assert await pool.add_many(BOOKIE, 1, KEY, [(7, b"seven")], is_recovery_add=True) == [Status.OK]
        assert bookie.add_flags == [(KEY, True, False, False)]
        assert bookie.entries == {(1, 7): b"seven"}


async def test_each_entry_has_its_own_outcome() -> None:
    async with memory_bookie() as bookie, pool_of(bookie) as pool:
        bookie.entries.update({(1, entry_id): b"%d" % entry_id for entry_id in (3, 1, 9)})
        bookie.is_holding = True
        reads = pool.read_many(BOOKIE, 1, [9, 2, 1, 1, 3], bytes_max=BYTES_MAX)
        await bookie.holds(5)
        bookie.release()  # the last answer comes first
        assert await reads == [b"9", Status.NO_SUCH_ENTRY, b"1", b"1", b"3"]


async def test_batches_and_single_requests_share_a_connection() -> None:
    async with memory_bookie() as bookie, pool_of(bookie) as pool:
        outcomes = Outcomes(pool)
        bookie.entries[1, 0] = b"zero"
        bookie.is_holding = True
        adds = pool.add_many(BOOKIE, 1, KEY, [(5, b"five"), (6, b"six")])
        outcomes.add(7)
        reads = pool.read_many(BOOKIE, 1, [0], bytes_max=BYTES_MAX)
        single = pool.read(BOOKIE, 1, 0)
        await bookie.holds(5)
        bookie.release()
        assert await adds == [Status.OK, Status.OK]
        assert await outcomes.wait(1) == [(7, Status.OK)]
        assert await reads == [b"zero"]
        assert (await single).body == b"zero"


async def test_an_empty_batch_is_a_mistake_of_the_caller() -> None:
    async with memory_bookie() as bookie, pool_of(bookie) as pool:
        with pytest.raises(ValueError, match="no requests"):
            pool.read_many(BOOKIE, 1, [], bytes_max=BYTES_MAX)
        with pytest.raises(ValueError, match="no requests"):
            pool.add_many(BOOKIE, 1, KEY, [])


async def test_a_lost_connection_is_the_outcome_of_all_unanswered_entries() -> None:
    async with memory_bookie() as bookie, pool_of(bookie) as pool:
        bookie.entries[1, 0] = b"zero"
        bookie.is_holding = True
        reads = pool.read_many(BOOKIE, 1, [0, 2, 4], bytes_max=BYTES_MAX)
        adds = pool.add_many(BOOKIE, 1, KEY, [(5, b"five"), (6, b"six")])
        await answer_one_of_five(bookie, pool, 0)
        await bookie.close()
        assert await reads == [b"zero", Status.UNAVAILABLE, Status.UNAVAILABLE]
        assert await adds == [Status.UNAVAILABLE, Status.UNAVAILABLE]
        assert await pool.add_many(BOOKIE, 1, KEY, [(5, b"five")]) == [Status.UNAVAILABLE]
        await bookie.open()
        bookie.is_holding = False
        assert await pool.add_many(BOOKIE, 1, KEY, [(5, b"five")]) == [Status.OK]


async def test_an_unknown_bookie_is_unavailable() -> None:
    async with memory_bookie() as bookie, pool_of(bookie) as pool:
        assert await pool.read_many("nobody", 1, [0, 1], bytes_max=BYTES_MAX) == [Status.UNAVAILABLE] * 2
        assert await pool.add_many("nobody", 1, KEY, [(0, b""), (1, b"")]) == [Status.UNAVAILABLE] * 2


async def test_entries_of_a_batch_time_out_by_themselves() -> None:
    clock = SteppedClock()
    config = ClientConfig(add_timeout_s=600, read_timeout_s=5)
    async with memory_bookie() as bookie, pool_of(bookie, config, clock=clock) as pool:
        bookie.entries[1, 1] = b"one"
        bookie.is_holding = True
        reads = pool.read_many(BOOKIE, 1, [0, 1, 3], bytes_max=BYTES_MAX)
        adds = pool.add_many(BOOKIE, 1, KEY, [(5, b"five"), (6, b"six")])
        await answer_one_of_five(bookie, pool, 1)
        clock.advance(4.9)
        assert not reads.done()
        clock.advance(0.6)
        assert await reads == [Status.TIMEOUT, b"one", Status.TIMEOUT]
        assert not adds.done(), "adds have another timeout"
        bookie.release()  # two late answers to reads, which are dropped
        assert await adds == [Status.OK, Status.OK]


async def test_a_cancelled_batch_leaves_the_connection_alone() -> None:
    async with memory_bookie() as bookie, pool_of(bookie) as pool:
        bookie.is_holding = True
        reads = pool.read_many(BOOKIE, 1, [1, 0], bytes_max=BYTES_MAX)
        adds = pool.add_many(BOOKIE, 1, KEY, [(0, b"zero"), (1, b"one")])
        await bookie.holds(4)
        reads.cancel()
        adds.cancel()
        bookie.release()
        bookie.is_holding = False
        assert await pool.read_many(BOOKIE, 1, [0, 1], bytes_max=BYTES_MAX) == [b"zero", b"one"]


async def test_what_cannot_be_sent_is_an_outcome() -> None:
    config = ClientConfig(frame_bytes_max=2000)
    async with memory_bookie() as bookie, pool_of(bookie, config, unsent_bytes_max=5000) as pool:
        adds = [(0, bytes(2000)), *((entry_id, bytes(1000)) for entry_id in range(1, 8))]
        statuses = await pool.add_many(BOOKIE, 1, KEY, adds)
        assert statuses == [Status.BAD_REQUEST] + [Status.OK] * 4 + [Status.TOO_MANY_REQUESTS] * 3


async def test_close_ends_batches() -> None:
    async with memory_bookie() as bookie, pool_of(bookie) as pool:
        bookie.is_holding = True
        reads = pool.read_many(BOOKIE, 1, [0, 1], bytes_max=BYTES_MAX)
        await bookie.holds(1)
        waiting = pool.add_many("another", 1, KEY, [(0, b"")])  # still connecting
        await pool.close()
        assert await reads == [Status.UNAVAILABLE] * 2
        assert await waiting == [Status.UNAVAILABLE]
        assert await pool.read_many(BOOKIE, 1, [0], bytes_max=BYTES_MAX) == [Status.UNAVAILABLE]
