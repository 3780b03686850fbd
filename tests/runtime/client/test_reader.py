"""Reading: scenarios of protocol section 11, part E."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from runtime.client.reader import Entry
from runtime.config import ClientConfig
from runtime.errors import LedgerReadError, NoSuchEntryError
from runtime.ledger.metadata import LedgerState, Segment
from tests.runtime.client.world import PASSWORD, World, closed, end, payload, until

THREE = ("b1", "b2", "b3")


async def test_t61_an_open_ledger_is_read_as_far_as_it_is_confirmed(world: World) -> None:
    bookies = await world.bookies(*THREE)
    writer, client = await world.writer(THREE, 3, 3)
    for i in range(5):
        await writer.append(payload(i))
    reader = await client.open(writer.ledger_id, password=PASSWORD)
    assert (reader.last_add_confirmed, reader.is_closed) == (3, False)
    with pytest.raises(LedgerReadError):
        await reader.read(0, 4)
    assert all(bookie.count("read") == 0 for bookie in bookies)
    assert [entry.entry_id for entry in await reader.read_unconfirmed(0, 4)] == [0, 1, 2, 3, 4]
    with pytest.raises(LedgerReadError) as failure:
        await reader.read_unconfirmed(3, 5)
    assert isinstance(failure.value.__cause__, NoSuchEntryError)
    assert reader.last_add_confirmed == 3
    other = await world.client()
    assert (await other.open(writer.ledger_id, password=PASSWORD, recover=True)).last_add_confirmed == 4
    await writer.close()
    assert end(await world.metadata(writer.ledger_id)) == closed(4, 50)
    assert await reader.read_last_add_confirmed() == 4
    assert reader.is_closed


async def test_t66_one_bookie_tells_enough_for_a_quick_look(world: World) -> None:
    b1, b2, b3 = await world.bookies(*THREE)
    writer, client = await world.writer(THREE, 3, 2)
    for i in range(3):
        await writer.append(payload(i))
    await until(lambda: b3.holds(writer.ledger_id) == [0, 1, 2])
    reader = await client.open(writer.ledger_id, password=PASSWORD)
    for i in range(3, 7):
        await writer.append(payload(i))
    await until(lambda: b3.holds(writer.ledger_id) == list(range(7)))
    await b1.stop()
    await b2.stop()
    with pytest.raises(LedgerReadError):
        await reader.read_last_add_confirmed()
    assert reader.last_add_confirmed == 1
    assert await reader.try_read_last_add_confirmed() == 5
    await b3.stop()
    with pytest.raises(LedgerReadError):
        await reader.try_read_last_add_confirmed()
    assert reader.last_add_confirmed == 5


async def test_t69_an_empty_ledger_has_no_last_entry(world: World) -> None:
    await world.bookies(*THREE)
    writer, client = await world.writer(THREE, 3, 2)
    reader = await client.open(writer.ledger_id, password=PASSWORD)
    with pytest.raises(LedgerReadError):
        await reader.read_last_entry()
    assert await reader.read(0) == []
    await writer.append(payload(0))
    await writer.close()
    assert await reader.read_last_entry() == Entry(0, payload(0))


async def test_t70_a_tailing_reader_follows_the_ensemble(world: World) -> None:
    first = await world.bookies(*THREE)
    writer, client = await world.writer(THREE, 3, 3)
    for i in range(2):
        await writer.append(payload(i))
    reader = await client.open(writer.ledger_id, password=PASSWORD)
    await world.bookies("b4", "b5", "b6")
    for bookie in first:
        await bookie.stop()
    for i in range(2, 5):
        await writer.append(payload(i))
    assert set(writer.metadata.last_segment.ensemble) == {"b4", "b5", "b6"}
    assert await reader.read_last_add_confirmed() == 3
    assert [entry.payload for entry in await reader.read(2)] == [payload(2), payload(3)]


async def test_entries_come_in_order_whatever_the_order_of_answers(world: World) -> None:
    b1, *_ = await world.bookies(*THREE)
    writer, client = await world.writer(THREE, 1, 1)
    await asyncio.gather(*(writer.append_nowait(payload(i)) for i in range(30)))
    await writer.close()
    reader = await client.open(writer.ledger_id, password=PASSWORD)
    slow = b1.hold("read", 3)
    reading = asyncio.create_task(reader.read(2))
    await slow.arrived()
    await until(lambda: b1.count("read", 6) == 1)
    slow.release()
    assert await reading == [Entry(i, payload(i)) for i in range(2, 30)]
    assert [entry async for entry in reader] == [Entry(i, payload(i)) for i in range(30)]


async def test_reads_ahead_are_bounded_by_count_and_by_bytes(world: World) -> None:
    (b1,) = await world.bookies("b1")
    ledger_id, _ = await world.create(("b1",), 1, 1)
    for entry_id in range(50):
        world.put(b1, ledger_id, entry_id, lac=entry_id - 1, size=1000)
    await world.recover(ledger_id)
    client = await world.client(ClientConfig(reads_in_flight_max=12, read_bytes_in_flight_max=5500))
    reader = await client.open(ledger_id, password=PASSWORD)
    slow = b1.hold("read", 0)
    b1.requests.clear()
    async with contextlib.aclosing(reader.entries()) as entries:
        reading = asyncio.ensure_future(anext(entries))
        await slow.arrived()
        await asyncio.sleep(0.05)
        assert b1.count("read") == 8  # nothing is known of the sizes yet
        slow.release()
        await reading
        for _ in range(9):
            await anext(entries)
        await asyncio.sleep(0.05)
        assert b1.count("read") == 9 + 5  # five of 1000 bytes, and no more
    assert len(await reader.read(0)) == 50


@pytest.mark.parametrize(("first", "last"), [(-1, 0), (1, 0), (0, 5)])
async def test_impossible_ranges_ask_no_bookie(world: World, first: int, last: int) -> None:
    (b1,) = await world.bookies("b1")
    writer, client = await world.writer(("b1",), 1, 1)
    for i in range(5):
        await writer.append(payload(i))
    await writer.close()
    reader = await client.open(writer.ledger_id, password=PASSWORD)
    with pytest.raises(LedgerReadError):
        await reader.read(first, last)
    assert b1.count("read") == 0


async def test_an_open_ledger_is_confirmed_up_to_its_last_segment(world: World) -> None:
    """Whatever precedes an ensemble change was acknowledged, even if the new bookies hold nothing yet."""
    await world.bookies(*THREE)
    writer, client = await world.writer(THREE, 3, 3)
    await asyncio.gather(*(writer.append_nowait(payload(i)) for i in range(4)))
    await world.change(writer.ledger_id, segments=(Segment(0, THREE), Segment(4, ("b3", "b1", "b2"))))
    for state in (LedgerState.OPEN, LedgerState.IN_RECOVERY):
        await world.change(writer.ledger_id, state=state)
        reader = await client.open(writer.ledger_id, password=PASSWORD)
        assert [entry.entry_id for entry in await reader.read(0)] == [0, 1, 2, 3]
