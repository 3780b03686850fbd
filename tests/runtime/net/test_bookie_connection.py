"""One connection: how it begins, what it refuses to send, and what ends it."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from bkctl.runtime.config import ClientConfig
from bkctl.runtime.errors import (
    BadRequestError,
    BookieIOError,
    BookieTimeoutError,
    BookieUnavailableError,
)
from bkctl.runtime.net.frame_connection import UnsentBytes
from bkctl.runtime.net.loop import LoopClock
from bkctl.runtime.net.pool import BookiePool
from bkctl.runtime.protocol.status import Status
from tests.runtime.net.memory_bookie import LOOPBACK, memory_bookie
from tests.runtime.net.pools import BOOKIE, Outcomes, pool_of
from tests.runtime.net.stepped_clock import SteppedClock


@pytest.mark.parametrize("address", [("no such host\0", 3181), ("a" * 70 + ".example", 3181), (LOOPBACK, 99_999)])
async def test_an_address_that_cannot_be_one_is_unavailable(address: tuple[str, int]) -> None:
    async def resolve(bookie_id: str) -> tuple[str, int]:
        return address

    pool = BookiePool(resolve, ClientConfig(), LoopClock())
    with pytest.raises(BookieUnavailableError):
        await pool.info(BOOKIE)
    await pool.close()


async def test_requests_expire_while_the_connection_is_being_made() -> None:
    async def never(bookie_id: str) -> tuple[str, int]:
        await asyncio.Event().wait()
        raise AssertionError

    clock = SteppedClock()
    pool = BookiePool(never, ClientConfig(), clock)
    read = pool.read(BOOKIE, 1, 0)
    clock.advance(5.5)
    with pytest.raises(BookieTimeoutError):
        await read
    await pool.close()


async def test_connecting_has_its_time_out() -> None:
    async def never(bookie_id: str) -> tuple[str, int]:
        await asyncio.Event().wait()
        raise AssertionError

    pool = BookiePool(never, ClientConfig(connect_timeout_s=0.05), LoopClock())
    with pytest.raises(BookieUnavailableError, match=r"within 0\.05 s"):
        await pool.read(BOOKIE, 1, 0)
    await pool.close()


async def test_a_request_that_no_frame_can_hold_is_refused_here() -> None:
    async with memory_bookie() as bookie, pool_of(bookie, ClientConfig(frame_bytes_max=1000)) as pool:
        outcomes = Outcomes(pool)
        outcomes.add(0, bytes(1000))
        outcomes.add(1, bytes(900))
        assert sorted(await outcomes.wait(2)) == [(0, Status.BAD_REQUEST), (1, Status.OK)]
        with pytest.raises(BadRequestError, match="frame"):
            await pool.read(BOOKIE, 1, 0, fence_with=bytes(1000))


async def test_what_a_bookie_does_not_take_is_limited() -> None:
    async with memory_bookie() as bookie, pool_of(bookie, unsent_bytes_max=5000) as pool:
        outcomes = Outcomes(pool)
        for entry_id in range(10):  # the connection does not stand yet: all of it waits here
            outcomes.add(entry_id, bytes(1000))
        statuses = dict(await outcomes.wait(10))
        assert [statuses[entry_id] for entry_id in range(10)] == [Status.OK] * 4 + [Status.TOO_MANY_REQUESTS] * 6


async def test_what_waits_is_dropped_when_nobody_waits_for_it_any_more() -> None:
    async def never(bookie_id: str) -> tuple[str, int]:
        await asyncio.Event().wait()
        raise AssertionError

    clock = SteppedClock()
    pool = BookiePool(never, ClientConfig(), clock, unsent_bytes_max=5000)
    outcomes = Outcomes(pool)
    for entry_id in range(5):
        outcomes.add(entry_id, bytes(1000))
    assert await outcomes.wait(1) == [(4, Status.TOO_MANY_REQUESTS)]
    clock.advance(5.5)
    await outcomes.wait(5)
    for entry_id in range(5, 9):
        outcomes.add(entry_id, bytes(1000))
    clock.advance(5.5)
    assert [status for _, status in await outcomes.wait(9)] == [Status.TOO_MANY_REQUESTS] + [Status.TIMEOUT] * 8
    await pool.close()


async def test_what_one_bookie_lost_is_room_for_others() -> None:
    async with memory_bookie() as bookie, pool_of(bookie, unsent_bytes_max=5000) as pool:
        outcomes = Outcomes(pool)
        for round_number in range(3):
            for entry_id in range(4):
                outcomes.add(entry_id, bytes(1000), "nobody")
            await outcomes.wait(4 * round_number + 4)
        assert {status for _, status in outcomes.statuses} == {Status.UNAVAILABLE}


def test_bookies_that_take_nothing_share_a_limit_that_does_not_hold_up_the_others() -> None:
    mebibyte = 1024 * 1024
    unsent = UnsentBytes(per_bookie_max=64 * mebibyte, total_max=100 * mebibyte)
    assert unsent.has_room(0, 70 * mebibyte), "a first frame of any size"
    assert unsent.has_room(63 * mebibyte, mebibyte)
    assert not unsent.has_room(64 * mebibyte, 1)
    unsent.total = 100 * mebibyte
    assert not unsent.has_room(36 * mebibyte, 1)
    assert unsent.has_room(0, mebibyte)
    assert unsent.has_room(3 * mebibyte, mebibyte)
    assert not unsent.has_room(4 * mebibyte, 1)


async def test_a_bookie_that_stops_reading_gets_everything_in_the_end() -> None:
    patient = ClientConfig(add_timeout_s=300)  # 120 MB take longer than usual on a busy machine
    async with memory_bookie() as bookie, pool_of(bookie, patient) as pool:
        outcomes = Outcomes(pool)
        bookie.is_holding = True  # at 32 MiB unanswered the listener stops reading
        for entry_id in range(120):
            outcomes.add(entry_id, bytes(1_000_000))
        await bookie.holds(30)
        bookie.is_holding = False
        bookie.release()
        assert sorted(await outcomes.wait(120)) == [(entry_id, Status.OK) for entry_id in range(120)]


async def junk_server(answer: bytes) -> asyncio.Server:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(4)
        writer.write(answer)
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()

    return await asyncio.start_server(serve, LOOPBACK, 0)


@pytest.mark.parametrize(
    "answer",
    [
        b"\xff\xff\xff\xff",
        b"\0\0\0\0",
        b"\0\0\0\x03abc",
        bytes.fromhex("0000000a" + "0a060803100218011000"),  # an add confirmed without naming it
        bytes.fromhex("0000000b" + "0a0608031002186310f803" + "ffffffff"),  # junk after an answer
    ],
)
async def test_junk_from_a_bookie_ends_the_connection(answer: bytes, caplog: pytest.LogCaptureFixture) -> None:
    server = await junk_server(answer)
    port = server.sockets[0].getsockname()[1]

    async def resolve(bookie_id: str) -> tuple[str, int]:
        return LOOPBACK, port

    pool = BookiePool(resolve, ClientConfig(), LoopClock())
    outcomes = Outcomes(pool)
    outcomes.add(0)
    assert await outcomes.wait(1) == [(0, Status.UNAVAILABLE)]
    assert len(caplog.records) == 1
    await pool.close()
    server.close()


async def test_an_answer_of_another_kind_is_not_the_answer() -> None:
    read_lac_answer = bytes.fromhex("000000130a060803100718011000c2060608001001" + "2200")
    server = await junk_server(read_lac_answer)
    port = server.sockets[0].getsockname()[1]

    async def resolve(bookie_id: str) -> tuple[str, int]:
        return LOOPBACK, port

    pool = BookiePool(resolve, ClientConfig(read_timeout_s=1.0), LoopClock())  # no answer has to be in time
    with pytest.raises(BookieTimeoutError):
        await pool.read(BOOKIE, 1, 0)  # transaction id 1 as well
    await pool.close()
    server.close()


async def test_a_positive_answer_without_an_entry_is_an_error() -> None:
    read_answer = bytes.fromhex("000000130a060803100118011000a2060608001001" + "1800")
    server = await junk_server(read_answer)
    port = server.sockets[0].getsockname()[1]

    async def resolve(bookie_id: str) -> tuple[str, int]:
        return LOOPBACK, port

    pool = BookiePool(resolve, ClientConfig(), LoopClock())
    with pytest.raises(BookieIOError):
        await pool.read(BOOKIE, 1, 0)
    await pool.close()
    server.close()
