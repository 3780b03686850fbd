"""Reading one entry: failover, speculation, and which error stands. Protocol section 7.4."""

from __future__ import annotations

import asyncio

import pytest

from bkctl.runtime.client.entry_read import EntryReader, Replies, prevailing_error
from bkctl.runtime.config import ClientConfig
from bkctl.runtime.errors import (
    BookieTimeoutError,
    BookieUnavailableError,
    DigestMismatchError,
    LedgerReadError,
    NoSuchEntryError,
    NoSuchLedgerError,
)
from bkctl.runtime.net.loop import LoopClock
from bkctl.runtime.ports import ReadReply
from bkctl.runtime.protocol.status import Status
from bkctl.storage.errors import BkctlError
from tests.runtime.client.fakes import PASSWORD, TIMEOUT_S, Fakes, answers_so_far, credentials, payload
from tests.runtime.net.stepped_clock import SteppedClock
from tests.until import until

THREE = ("b1", "b2", "b3")
ABSENT = NoSuchEntryError("b1", "")
NO_LEDGER = NoSuchLedgerError("b2", "")
TIMEOUT = BookieTimeoutError("b3", "")
UNAVAILABLE = BookieUnavailableError("b4", "")


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        ([ABSENT, TIMEOUT], TIMEOUT),
        ([UNAVAILABLE, ABSENT], UNAVAILABLE),
        ([UNAVAILABLE, TIMEOUT], TIMEOUT),
        ([TIMEOUT, UNAVAILABLE], TIMEOUT),
        ([ABSENT, NO_LEDGER], NO_LEDGER),
        ([ABSENT, UNAVAILABLE, TIMEOUT], TIMEOUT),
        ([TIMEOUT, ABSENT, NO_LEDGER], TIMEOUT),
    ],
)
def test_t63_absence_is_reported_only_if_all_replicas_say_so(errors: list[BkctlError], expected: BkctlError) -> None:
    prevailing: BkctlError | None = None
    for error in errors:
        prevailing = prevailing_error(prevailing, error)
    assert prevailing is expected


async def test_t62_a_damaged_copy_is_passed_over(fakes: Fakes) -> None:
    bookies = await fakes.bookies(*THREE)
    writer, client = await fakes.writer(THREE, 3, 3)
    await writer.append(payload(0))
    await writer.close()
    reader = await client.open(writer.ledger_id, password=PASSWORD)
    bookies[0].damage(writer.ledger_id, 0)
    assert (await reader.read(0))[0].payload == payload(0)
    assert [bookie.count("read") for bookie in bookies] == [1, 1, 0]
    for bookie in bookies[1:]:
        bookie.damage(writer.ledger_id, 0)
    with pytest.raises(DigestMismatchError):
        await reader.read(0)


async def test_damage_is_told_with_what_became_of_the_other_copies(fakes: Fakes) -> None:
    """An operator who hears of the damaged copy alone believes the entry lost, where a bookie is merely down."""
    bookies = await fakes.bookies(*THREE)
    writer, client = await fakes.writer(THREE, 3, 3)
    await writer.append(payload(0))
    await writer.close()
    reader = await client.open(writer.ledger_id, password=PASSWORD)
    bookies[0].damage(writer.ledger_id, 0)
    bookies[1].refuse("read", Status.IO_ERROR)
    bookies[2].refuse("read", Status.IO_ERROR)
    with pytest.raises(DigestMismatchError) as caught:
        await reader.read(0)
    told = str(caught.value)
    assert told.startswith(f"ledger {writer.ledger_id}: entry 0: no bookie has a good copy: the copy on bookie b1 is")
    assert told.count("; bookie b2: ") == told.count("; bookie b3: ") == 1


async def test_an_entry_of_another_ledger_is_a_damaged_copy(fakes: Fakes) -> None:
    b1, b2, _ = await fakes.bookies(*THREE)
    writer, client = await fakes.writer(THREE, 2, 2)
    await writer.append(payload(0))
    await writer.close()
    b1.ledgers[writer.ledger_id].entries[0] = credentials(99).codec.encode(0, -1, 10, payload(0))
    reader = await client.open(writer.ledger_id, password=PASSWORD)
    assert (await reader.read(0))[0].payload == payload(0)
    assert b2.count("read") == 1


async def test_a_failing_replica_is_asked_last_from_then_on(fakes: Fakes) -> None:
    b1, b2, _ = await fakes.bookies(*THREE)
    writer, client = await fakes.writer(THREE, 3, 3)
    await asyncio.gather(*(writer.append_nowait(payload(i)) for i in range(7)))
    await writer.close()
    b1.refuse("read", Status.IO_ERROR)
    reader = await client.open(writer.ledger_id, password=PASSWORD)
    for _ in range(2):
        assert (await reader.read(0, 0))[0].payload == payload(0)
    assert (b1.count("read"), b2.count("read")) == (1, 2)


async def test_t64_a_silent_replica_is_overtaken(fakes: Fakes) -> None:
    b1, b2, b3 = await fakes.bookies(*THREE)
    writer, _ = await fakes.writer(THREE, 2, 2)
    for i in range(2):
        await writer.append(payload(i))
    await writer.close()
    silent = b2.hold("read")
    clock = SteppedClock()
    client = await fakes.client(ClientConfig(speculative_read_timeout_s=2.0, read_timeout_s=3600), clock)
    reader = await client.open(writer.ledger_id, password=PASSWORD)
    reading = asyncio.create_task(reader.read(1))
    await silent.arrived()
    clock.advance(2.0)
    async with asyncio.timeout(60):
        assert (await reading)[0].payload == payload(1)
    assert client.ports.suspects.current() == {"b2"}
    assert [bookie.count("read", 1) for bookie in (b1, b2, b3)] == [0, 1, 1]


async def test_t64_without_speculation_the_time_out_decides(fakes: Fakes) -> None:
    _, b2, b3 = await fakes.bookies(*THREE)
    writer, _ = await fakes.writer(THREE, 2, 2)
    for i in range(2):
        await writer.append(payload(i))
    await writer.close()
    silent = b2.hold("read")
    clock = SteppedClock()
    client = await fakes.client(ClientConfig(speculative_read_timeout_s=3600), clock)
    reader = await client.open(writer.ledger_id, password=PASSWORD)
    reading = asyncio.create_task(reader.read(1))
    await silent.arrived()
    clock.advance(TIMEOUT_S)
    async with asyncio.timeout(60):
        assert (await reading)[0].payload == payload(1)
    assert b3.count("read", 1) == 1


async def test_all_reads_of_a_reader_begin_with_the_same_bookie_if_every_bookie_has_every_entry(fakes: Fakes) -> None:
    bookies = await fakes.bookies(*THREE)
    writer, client = await fakes.writer(THREE, 3, 3)
    await asyncio.gather(*(writer.append_nowait(payload(i)) for i in range(30)))
    await writer.close()
    reader = await client.open(writer.ledger_id, password=PASSWORD)
    assert [entry.payload for entry in await reader.read(0)] == [payload(i) for i in range(30)]
    assert sorted(bookie.count("read") for bookie in bookies) == [0, 0, 30]


async def test_one_read_finds_out_that_a_bookie_is_slow_and_the_others_follow(fakes: Fakes) -> None:
    bookies = await fakes.bookies(*THREE)
    writer, _ = await fakes.writer(THREE, 3, 3)
    await asyncio.gather(*(writer.append_nowait(payload(i)) for i in range(20)))
    await writer.close()
    clock = SteppedClock()
    config = ClientConfig(
        speculative_read_timeout_s=2.0, read_timeout_s=3600, read_bytes_in_flight_max=8 * len(payload(0))
    )
    client = await fakes.client(config, clock)
    reader = await client.open(writer.ledger_id, password=PASSWORD)
    await reader.read(0, 0)
    (first,) = (bookie for bookie in bookies if bookie.count("read"))
    others = [bookie for bookie in bookies if bookie is not first]
    slow = first.hold("read")
    reading = asyncio.create_task(reader.read(2, 9))
    await slow.arrived(8)
    clock.advance(0.1)
    async with asyncio.timeout(60):
        await until(lambda: client.ports.suspects.current() == {first.bookie_id})
    assert sum(bookie.count("read") for bookie in others) == 2, "the entries of one request, not of all four"
    clock.advance(0.1)
    async with asyncio.timeout(60):
        assert [entry.payload for entry in await reading] == [payload(i) for i in range(2, 10)]
    slow.release()
    clock.advance(client.ports.config.suspect_bookie_s)
    assert not client.ports.suspects.current()
    await reader.read(10)
    assert first.count("read") == 1 + 8, "another bookie has taken its place, for longer than it is a suspect"


async def test_a_busy_cluster_gets_one_more_request_and_not_a_second_one_for_each(fakes: Fakes) -> None:
    bookies = await fakes.bookies(*THREE)
    writer, _ = await fakes.writer(THREE, 3, 3)
    await asyncio.gather(*(writer.append_nowait(payload(i)) for i in range(8)))
    await writer.close()
    held = [bookie.hold("read") for bookie in bookies]
    clock = SteppedClock()
    client = await fakes.client(ClientConfig(speculative_read_timeout_s=2.0, read_timeout_s=3600), clock)
    reader = await client.open(writer.ledger_id, password=PASSWORD)
    reading = asyncio.create_task(reader.read(0))
    await until(lambda: sum(bookie.count("read") for bookie in bookies) == 8)
    for _ in range(5):
        clock.advance(0.1)
        await answers_so_far(client)
    await until(lambda: sum(bookie.count("read") for bookie in bookies) == 10)
    for each in held:
        each.release()
    async with asyncio.timeout(60):
        assert len(await reading) == 8
    assert sum(bookie.count("read") for bookie in bookies) == 10


async def test_the_speculative_answer_may_be_the_bad_one(fakes: Fakes) -> None:
    """Two requests are under way: the failure of one does not end the read, nor start a third."""
    b1, b2, b3 = await fakes.bookies(*THREE)
    writer, _ = await fakes.writer(THREE, 2, 2)
    await writer.append(payload(0))
    await writer.close()
    slow = b1.hold("read", 0)
    b2.damage(writer.ledger_id, 0)
    clock = SteppedClock()
    client = await fakes.client(ClientConfig(speculative_read_timeout_s=2.0), clock)
    reader = await client.open(writer.ledger_id, password=PASSWORD)
    reading = asyncio.create_task(reader.read(0))
    await slow.arrived()
    clock.advance(2.0)
    await until(lambda: b2.count("read") == 1)
    await answers_so_far(client, "b2")
    slow.release()
    assert (await reading)[0].payload == payload(0)
    assert b3.count("read") == 0


async def test_all_replicas_absent_and_all_replicas_silent(fakes: Fakes) -> None:
    bookies = await fakes.bookies(*THREE)
    ledger_id, metadata = await fakes.create(THREE, 3, 2)
    clock = SteppedClock()
    client = await fakes.client(clock=clock)
    entries = EntryReader(client.ports, credentials(ledger_id))
    with pytest.raises(NoSuchLedgerError):
        await entries.read(metadata, 0)
    silent = bookies[1].hold("read")
    reading = asyncio.create_task(entries.read(metadata, 0))
    await silent.arrived()
    clock.advance(TIMEOUT_S)
    with pytest.raises(BookieTimeoutError):
        await reading
    reader = await client.open(ledger_id, password=PASSWORD)
    again = asyncio.create_task(reader.read_unconfirmed(0, 0))
    await until(lambda: bookies[1].count("read") == 3)
    clock.advance(TIMEOUT_S)
    with pytest.raises(LedgerReadError, match="entry 0: bookie b2"):
        await again


ENTRY = ReadReply(b"body", None)


def futures(count: int) -> list[asyncio.Future[ReadReply]]:
    return [asyncio.get_running_loop().create_future() for _ in range(count)]


async def test_answers_come_as_they_arrive_errors_included() -> None:
    replies = Replies[int, ReadReply](LoopClock())
    first, second = futures(2)
    replies.expect(1, first)
    replies.expect(2, second)
    absent = NoSuchEntryError("b2", "absent")
    second.set_exception(absent)
    assert await replies.next() == (2, absent)
    asyncio.get_running_loop().call_soon(first.set_result, ENTRY)
    assert await replies.next() == (1, ENTRY)
    assert replies.outstanding == 0


async def test_silence_ends_with_the_time_out_and_the_answer_can_still_come() -> None:
    replies = Replies[int, ReadReply](LoopClock())
    (slow,) = futures(1)
    replies.expect(1, slow)
    assert await replies.next(timeout_s=0.01) is None
    slow.set_result(ENTRY)
    assert await replies.next(timeout_s=0.01) == (1, ENTRY)


async def test_an_error_that_is_no_bookies_answer_is_raised() -> None:
    replies = Replies[int, ReadReply](LoopClock())
    (broken,) = futures(1)
    replies.expect(1, broken)
    broken.set_exception(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        await replies.next()


async def test_answers_that_nobody_waits_for_are_not_reported_as_unhandled() -> None:
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: complaints.append(context))
    replies = Replies[int, ReadReply](LoopClock())
    (late,) = futures(1)
    replies.expect(1, late)
    late.set_exception(NoSuchEntryError("b1", "absent"))
    await asyncio.sleep(0)
    del late, replies
    await asyncio.sleep(0)
    assert complaints == []
