"""The pool against real listeners on loopback sockets: every request ends, in one way."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bkctl.runtime.config import ClientConfig
from bkctl.runtime.errors import (
    BookieError,
    BookieIOError,
    BookieTimeoutError,
    BookieUnavailableError,
    NoSuchEntryError,
    UnauthorizedError,
)
from bkctl.runtime.net.loop import LoopClock
from bkctl.runtime.net.pool import BookiePool
from bkctl.runtime.net.request_ages import RequestAges
from bkctl.runtime.net.server_connection import ListenerLimits
from bkctl.runtime.ports import BookieInfo, LacReply, ReadReply
from bkctl.runtime.protocol.status import Status
from tests.runtime.net.memory_bookie import LOOPBACK, memory_bookie
from tests.runtime.net.pools import BOOKIE, KEY, Outcomes, pool_of
from tests.runtime.net.stepped_clock import SteppedClock


async def test_pipelined_adds_are_stored_and_confirmed_in_order() -> None:
    async with memory_bookie() as bookie, pool_of(bookie) as pool:
        outcomes = Outcomes(pool)
        for entry_id in range(3000):
            outcomes.add(entry_id, entry_id.to_bytes(1024, "big"))
        assert await outcomes.wait(3000) == [(entry_id, Status.OK) for entry_id in range(3000)]
        assert bookie.entries[1, 2999] == (2999).to_bytes(1024, "big")


@pytest.mark.parametrize("step_count", range(12))
async def test_a_pool_that_is_closed_at_any_step_of_connecting_ends(step_count: int) -> None:
    async with memory_bookie() as bookie, pool_of(bookie) as pool:
        unanswered = pool.read(BOOKIE, 1, 0)
        for _ in range(step_count):
            await asyncio.sleep(0)
        async with asyncio.timeout(30):
            await pool.close()
        with pytest.raises(BookieError):
            await unanswered


async def test_flags_and_keys_travel() -> None:
    async with memory_bookie() as bookie, pool_of(bookie) as pool:
        outcomes = Outcomes(pool)
        outcomes.add(0)
        outcomes.add(1, is_recovery=True)
        await outcomes.wait(2)
        assert bookie.add_flags == [(KEY, False, False, False), (KEY, True, True, False)]
        await pool.read(BOOKIE, 1, 0, fence_with=KEY, is_high_priority=True)
        await pool.read(BOOKIE, 1, 0)
        assert bookie.read_flags == [(KEY, True), (None, False)]


async def test_every_kind_of_request_gets_its_own_answer_in_any_order() -> None:
    async with memory_bookie() as bookie, pool_of(bookie) as pool:
        bookie.entries[1, 0] = b"zero"
        bookie.is_holding = True
        found, missing = pool.read(BOOKIE, 1, 0), pool.read(BOOKIE, 1, 1)
        lac, info = pool.read_lac(BOOKIE, 1), asyncio.ensure_future(pool.info(BOOKIE))
        listed = pool.list_entries(BOOKIE, 1)
        await bookie.holds(5)
        bookie.release()
        assert await found == ReadReply(b"zero", None)
        with pytest.raises(NoSuchEntryError):
            await missing
        assert await lac == LacReply(None, b"zero")
        assert await info == BookieInfo(2000, 1000)
        assert (await listed).groups == ((0, 0, 1, 0),)


async def test_a_list_that_no_answer_can_hold_is_an_error_and_not_a_shorter_list() -> None:
    async with memory_bookie(ListenerLimits(frame_bytes_max=1000)) as bookie, pool_of(bookie) as pool:
        bookie.entries.update({(1, entry_id * entry_id): b"" for entry_id in range(100)})
        bookie.entries.update({(2, entry_id): b"" for entry_id in range(400) if entry_id % 3})
        with pytest.raises(BookieIOError):
            await pool.list_entries(BOOKIE, 1)
        assert len(await pool.list_entries(BOOKIE, 2)) == 266


async def test_an_explicit_lac_without_an_entry_is_an_answer() -> None:
    async with memory_bookie() as bookie, pool_of(bookie) as pool:
        bookie.lac_packets[1] = b"packet"  # the bookie says IO_ERROR, as Java does
        assert await pool.read_lac(BOOKIE, 1) == LacReply(b"packet", None)
        with pytest.raises(NoSuchEntryError):
            await pool.read_lac(BOOKIE, 2)


async def test_an_entry_that_comes_with_the_error_of_the_last_one_counts_unless_the_read_fences() -> None:
    async with memory_bookie() as bookie, pool_of(bookie) as pool:
        bookie.entries |= {(1, 0): b"zero", (1, 2): b"two", (1, 3): b""}
        for status in (Status.IO_ERROR, Status.UNKNOWN_LEDGER_STATE, Status.NO_SUCH_ENTRY):
            bookie.read_status = status  # as Java, if it cannot read its last entry (wire 5.2)
            assert await pool.read(BOOKIE, 1, 0) == ReadReply(b"zero", None)
            assert await pool.read_many(BOOKIE, 1, [0, 2, 3], bytes_max=1000) == [b"zero", b"two", status]
            with pytest.raises(BookieError):
                await pool.read(BOOKIE, 1, 0, fence_with=KEY)
        bookie.read_status = Status.UNAUTHORIZED
        with pytest.raises(UnauthorizedError):
            await pool.read(BOOKIE, 1, 0)


async def test_time_outs_end_requests_and_late_answers_are_dropped() -> None:
    clock = SteppedClock()
    async with memory_bookie() as bookie, pool_of(bookie, clock=clock) as pool:
        outcomes = Outcomes(pool)
        bookie.is_holding = True
        late = pool.read(BOOKIE, 1, 0)
        await bookie.holds(1)
        clock.advance(4.9)
        assert not late.done()
        clock.advance(0.6)
        with pytest.raises(BookieTimeoutError):
            await late
        bookie.release()
        bookie.is_holding = False
        outcomes.add(1)
        assert await outcomes.wait(1) == [(1, Status.OK)]
        clock.advance(60)  # idle: the timer stops, and starts again with the next request
        bookie.is_holding = True
        info = asyncio.ensure_future(pool.info(BOOKIE))
        await bookie.holds(1)
        clock.advance(5.5)
        with pytest.raises(BookieTimeoutError):
            await info


async def test_the_late_answer_to_an_add_is_dropped() -> None:
    clock = SteppedClock()
    async with memory_bookie() as bookie, pool_of(bookie, clock=clock) as pool:
        outcomes = Outcomes(pool)
        bookie.is_holding = True
        outcomes.add(0)
        await bookie.holds(1)
        clock.advance(5.5)
        assert await outcomes.wait(1) == [(0, Status.TIMEOUT)]
        bookie.release()
        bookie.is_holding = False
        assert await pool.read(BOOKIE, 1, 0) == ReadReply(b"body", None), "it came, behind the answer to the add"
        assert outcomes.statuses == [(0, Status.TIMEOUT)]


async def test_a_time_out_may_close_the_pool() -> None:
    clock = SteppedClock()
    async with memory_bookie() as bookie, pool_of(bookie, clock=clock) as pool:
        bookie.is_holding = True
        statuses: list[Status] = []
        closing: list[asyncio.Task[None]] = []

        def close(status: Status) -> None:
            statuses.append(status)
            closing.append(asyncio.ensure_future(pool.close()))

        pool.add(BOOKIE, 1, 0, KEY, b"body", close)
        outcomes = Outcomes(pool)
        outcomes.add(1)
        await bookie.holds(2)
        clock.advance(5.5)
        await outcomes.wait(1)
        await asyncio.gather(*closing)
        assert statuses == [Status.TIMEOUT]
        assert outcomes.statuses[0][1] in {Status.TIMEOUT, Status.UNAVAILABLE}


async def test_adds_and_reads_have_their_own_time_outs() -> None:
    clock = SteppedClock()
    config = ClientConfig(add_timeout_s=600, read_timeout_s=5)
    async with memory_bookie() as bookie, pool_of(bookie, config, clock=clock) as pool:
        outcomes = Outcomes(pool)
        bookie.is_holding = True
        outcomes.add(0)
        read = pool.read(BOOKIE, 1, 0)
        await bookie.holds(2)
        clock.advance(5.5)
        with pytest.raises(BookieTimeoutError):
            await read
        bookie.release()
        assert await outcomes.wait(1) == [(0, Status.OK)]


async def test_connection_loss_fails_everything_pending_and_the_next_request_connects_again() -> None:
    async with memory_bookie() as bookie, pool_of(bookie) as pool:
        outcomes = Outcomes(pool)
        bookie.is_holding = True
        for entry_id in range(10):
            outcomes.add(entry_id)
        read = pool.read(BOOKIE, 1, 0)
        await bookie.holds(11)
        await bookie.close()
        assert await outcomes.wait(10) == [(entry_id, Status.UNAVAILABLE) for entry_id in range(10)]
        with pytest.raises(BookieUnavailableError):
            await read
        with pytest.raises(BookieUnavailableError, match="refused"):
            await pool.read(BOOKIE, 1, 0)
        await bookie.open()
        bookie.is_holding = False
        outcomes.add(10)
        assert (await outcomes.wait(11))[10] == (10, Status.OK)


async def test_each_bookie_has_its_own_connection() -> None:
    async with memory_bookie() as left, memory_bookie() as right:

        async def resolve(bookie_id: str) -> tuple[str, int]:
            return LOOPBACK, {"left": left, "right": right}[bookie_id].port

        pool = BookiePool(resolve, ClientConfig(), LoopClock())
        outcomes = Outcomes(pool)
        outcomes.add(0, bookie_id="left")
        outcomes.add(1, bookie_id="right")
        await outcomes.wait(2)
        assert (set(left.entries), set(right.entries)) == ({(1, 0)}, {(1, 1)})
        left.is_holding = True
        outcomes.add(2, bookie_id="left")
        await left.holds(1)
        await left.close()
        outcomes.add(3, bookie_id="right")
        assert sorted((await outcomes.wait(4))[2:]) == [(2, Status.UNAVAILABLE), (3, Status.OK)]
        await pool.close()


async def test_a_bookie_without_an_address_is_unavailable_and_says_why() -> None:
    async with memory_bookie() as bookie, pool_of(bookie) as pool:
        outcomes = Outcomes(pool)
        outcomes.add(0, bookie_id="nobody")
        with pytest.raises(BookieUnavailableError, match="not registered"):
            await pool.info("nobody")
        assert await outcomes.wait(1) == [(0, Status.UNAVAILABLE)]


async def test_a_cancelled_read_leaves_the_connection_alone() -> None:
    async with memory_bookie() as bookie, pool_of(bookie) as pool:
        bookie.is_holding = True
        read = pool.read(BOOKIE, 1, 0)
        await bookie.holds(1)
        read.cancel()
        bookie.release()
        bookie.is_holding = False
        assert await pool.info(BOOKIE) == BookieInfo(2000, 1000)


async def test_close_fails_what_is_outstanding_and_all_that_comes_later() -> None:
    async with memory_bookie() as bookie, pool_of(bookie) as pool:
        outcomes = Outcomes(pool)
        bookie.is_holding = True
        outcomes.add(0)
        await bookie.holds(1)
        outcomes.add(1, bookie_id="another")  # still connecting
        await pool.close()
        outcomes.add(2)
        assert sorted(await outcomes.wait(3)) == [(entry_id, Status.UNAVAILABLE) for entry_id in range(3)]
        with pytest.raises(BookieUnavailableError, match="closed"):
            await pool.info(BOOKIE)


def test_requests_expire_when_they_are_old_enough_and_not_before() -> None:
    ages = RequestAges(100)
    ages.note(0, 10)
    ages.note(50, 20)
    assert ages.expired_below(99, 100) == 0
    assert ages.expired_below(100, 100) == 10
    assert ages.expired_below(100, 50) == 20


@given(steps=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 5)), max_size=30), timeout_ns=st.integers(1, 100))
def test_never_too_early_and_late_by_one_interval_at_most(steps: list[tuple[int, int]], timeout_ns: int) -> None:
    ages = RequestAges(100)
    sent_ns: list[int] = []
    note_ns: list[int] = []
    now_ns = 0
    for interval_ns, count in steps:
        now_ns += interval_ns
        ages.note(now_ns, len(sent_ns))
        note_ns.append(now_ns)
        expired = ages.expired_below(now_ns, timeout_ns)
        assert all(sent <= now_ns - timeout_ns for sent in sent_ns[:expired])
        covered = max((noted for noted in note_ns if noted <= now_ns - timeout_ns), default=-1)
        assert all(sent >= covered for sent in sent_ns[expired:])
        sent_ns.extend([now_ns] * count)
