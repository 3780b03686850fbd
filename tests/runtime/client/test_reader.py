"""Reading: scenarios of protocol section 11, part E."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from bkctl.runtime.client.reader import ENSEMBLES_TRIED_MAX, Entry
from bkctl.runtime.config import ClientConfig
from bkctl.runtime.errors import LedgerNotFoundError, LedgerReadError, MetadataError, NoSuchEntryError
from bkctl.runtime.ledger.metadata import LedgerState, Segment
from bkctl.runtime.protocol.status import Status
from tests.runtime.client.fakes import PASSWORD, Fakes, answers_so_far, closed, end, payload
from tests.runtime.client.scripted_bookie import ScriptedBookie
from tests.until import until

THREE = ("b1", "b2", "b3")


async def test_t61_an_open_ledger_is_read_as_far_as_it_is_confirmed(fakes: Fakes) -> None:
    bookies = await fakes.bookies(*THREE)
    writer, client = await fakes.writer(THREE, 3, 3)
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
    other = await fakes.client()
    assert (await other.open(writer.ledger_id, password=PASSWORD, recover=True)).last_add_confirmed == 4
    await writer.close()
    assert end(await fakes.metadata(writer.ledger_id)) == closed(4, 50)
    assert await reader.read_last_add_confirmed() == 4
    assert reader.is_closed


async def test_t66_one_bookie_tells_enough_for_a_quick_look(fakes: Fakes) -> None:
    b1, b2, b3 = await fakes.bookies(*THREE)
    writer, client = await fakes.writer(THREE, 3, 2)
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


async def test_t69_an_empty_ledger_has_no_last_entry(fakes: Fakes) -> None:
    await fakes.bookies(*THREE)
    writer, client = await fakes.writer(THREE, 3, 2)
    reader = await client.open(writer.ledger_id, password=PASSWORD)
    with pytest.raises(LedgerReadError):
        await reader.read_last_entry()
    assert await reader.read(0) == []
    await writer.append(payload(0))
    await writer.close()
    assert await reader.read_last_entry() == Entry(0, payload(0))


async def test_t70_a_tailing_reader_follows_the_ensemble(fakes: Fakes) -> None:
    first = await fakes.bookies(*THREE)
    writer, client = await fakes.writer(THREE, 3, 3)
    for i in range(2):
        await writer.append(payload(i))
    reader = await client.open(writer.ledger_id, password=PASSWORD)
    await fakes.bookies("b4", "b5", "b6")
    for bookie in first:
        await bookie.stop()
    for i in range(2, 5):
        await writer.append(payload(i))
    assert set(writer.metadata.last_segment.ensemble) == {"b4", "b5", "b6"}
    assert await reader.read_last_add_confirmed() == 3
    assert [entry.payload for entry in await reader.read(2)] == [payload(2), payload(3)]


async def test_entries_come_in_order_whatever_the_order_of_answers(fakes: Fakes) -> None:
    b1, *_ = await fakes.bookies(*THREE)
    writer, client = await fakes.writer(THREE, 1, 1)
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


async def test_reads_ahead_are_bounded_by_count_and_by_bytes(fakes: Fakes) -> None:
    bookies = await fakes.bookies("b1", "b2")
    ledger_id, _ = await fakes.create(("b1", "b2"), 1, 1)
    for entry_id in range(50):
        fakes.put(bookies[entry_id % 2], ledger_id, entry_id, lac=entry_id - 1, size=1000)
    await fakes.recover(ledger_id)
    client = await fakes.client(ClientConfig(reads_in_flight_max=12, read_bytes_in_flight_max=9500))
    reader = await client.open(ledger_id, password=PASSWORD)
    slow = bookies[0].hold("read", 0)
    for bookie in bookies:
        bookie.requests.clear()
    async with contextlib.aclosing(reader.entries()) as entries:
        reading = asyncio.ensure_future(anext(entries))
        await slow.arrived()
        await answers_so_far(client, "b1", "b2")
        assert sum(bookie.count("read") for bookie in bookies) == 8  # nothing is known of the sizes yet
        slow.release()
        await reading
        for _ in range(9):
            await anext(entries)
        await answers_so_far(client, "b1", "b2")
        assert sum(bookie.count("read") for bookie in bookies) == 9 + 9  # nine of 1000 bytes, and no more
    assert len(await reader.read(0)) == 50


@pytest.mark.parametrize(("first", "last"), [(-1, 0), (1, 0), (0, 5)])
async def test_impossible_ranges_ask_no_bookie(fakes: Fakes, first: int, last: int) -> None:
    (b1,) = await fakes.bookies("b1")
    writer, client = await fakes.writer(("b1",), 1, 1)
    for i in range(5):
        await writer.append(payload(i))
    await writer.close()
    reader = await client.open(writer.ledger_id, password=PASSWORD)
    with pytest.raises(LedgerReadError):
        await reader.read(first, last)
    assert b1.count("read") == 0


async def test_an_open_ledger_is_confirmed_up_to_its_last_segment(fakes: Fakes) -> None:
    """Whatever precedes an ensemble change was acknowledged, even if the new bookies hold nothing yet."""
    await fakes.bookies(*THREE)
    writer, client = await fakes.writer(THREE, 3, 3)
    await asyncio.gather(*(writer.append_nowait(payload(i)) for i in range(4)))
    await fakes.change(writer.ledger_id, segments=(Segment(0, THREE), Segment(4, ("b3", "b1", "b2"))))
    for state in (LedgerState.OPEN, LedgerState.IN_RECOVERY):
        await fakes.change(writer.ledger_id, state=state)
        reader = await client.open(writer.ledger_id, password=PASSWORD)
        assert [entry.entry_id for entry in await reader.read(0)] == [0, 1, 2, 3]


async def moved_ledger(fakes: Fakes, count: int = 10) -> tuple[int, list[ScriptedBookie]]:
    """A closed ledger on b1 and b2, and the four bookies."""
    bookies = await fakes.bookies("b1", "b2", "b3", "b4")
    ledger_id, _ = await fakes.create(("b1", "b2"), 2, 2)
    for entry_id in range(count):
        for bookie in bookies[:2]:
            fakes.put(bookie, ledger_id, entry_id, lac=entry_id - 1)
    await fakes.recover(ledger_id)
    return ledger_id, bookies


@pytest.mark.parametrize("is_dead", [True, False])
async def test_a_reader_finds_the_entries_of_a_closed_ledger_that_moved(fakes: Fakes, *, is_dead: bool) -> None:
    ledger_id, (b1, b2, b3, b4) = await moved_ledger(fakes)
    client = await fakes.client()
    reader = await client.open(ledger_id, password=PASSWORD)
    assert len(await reader.read(0)) == 10
    for old, new in ((b1, b3), (b2, b4)):
        new.ledgers[ledger_id] = old.ledgers.pop(ledger_id)
        if is_dead:
            await old.stop()
    await fakes.change(ledger_id, segments=(Segment(0, ("b3", "b4")),))
    assert [entry.payload for entry in await reader.read(0)] == [payload(i) for i in range(10)]
    assert reader.metadata.last_segment.ensemble == ("b3", "b4")


async def test_a_reader_of_an_open_ledger_finds_entries_behind_an_ensemble_change(fakes: Fakes) -> None:
    first = await fakes.bookies(*THREE)
    writer, client = await fakes.writer(THREE, 3, 3)
    for i in range(2):
        await writer.append(payload(i))
    readers = [await client.open(writer.ledger_id, password=PASSWORD) for _ in range(2)]
    await fakes.bookies("b4", "b5", "b6")
    for bookie in first:
        await bookie.stop()
    for i in range(2, 5):
        await writer.append(payload(i))
    assert [entry.payload for entry in await readers[0].read_unconfirmed(2, 4)] == [payload(i) for i in range(2, 5)]
    assert await readers[1].try_read_last_add_confirmed() == 3


async def test_a_quick_look_finds_that_the_ledger_was_closed(fakes: Fakes) -> None:
    bookies = await fakes.bookies(*THREE)
    writer, client = await fakes.writer(THREE, 3, 3)
    for i in range(3):
        await writer.append(payload(i))
    reader = await client.open(writer.ledger_id, password=PASSWORD)
    await writer.close()
    for bookie in bookies:
        await bookie.stop()
    assert await reader.try_read_last_add_confirmed() == 2
    assert reader.is_closed


async def test_an_entry_that_moves_again_and_again_is_not_sought_for_ever(fakes: Fakes) -> None:
    names = [f"b{number}" for number in range(ENSEMBLES_TRIED_MAX + 1)]
    bookies = await fakes.bookies(*names)
    ledger_id, _ = await fakes.create((names[0],), 1, 1)
    fakes.put(bookies[0], ledger_id, 0)
    await fakes.recover(ledger_id)
    client = await fakes.client()
    reader = await client.open(ledger_id, password=PASSWORD)
    refusals = [bookie.hold("read", 0, status=Status.NO_SUCH_ENTRY) for bookie in bookies]
    reading = asyncio.create_task(reader.read(0))
    for number in range(ENSEMBLES_TRIED_MAX):
        await refusals[number].arrived()
        await fakes.change(ledger_id, segments=(Segment(0, (names[number + 1],)),))
        refusals[number].release()
    with pytest.raises(LedgerReadError, match=names[-2]):
        await reading
    assert [bookie.count("read", 0) for bookie in bookies[1:]] == [1] * (ENSEMBLES_TRIED_MAX - 1) + [0]


async def test_an_entry_that_has_not_moved_is_asked_for_once(fakes: Fakes) -> None:
    ledger_id, (b1, b2, *_) = await moved_ledger(fakes, 1)
    client = await fakes.client()
    reader = await client.open(ledger_id, password=PASSWORD)
    b1.requests.clear()
    for bookie in (b1, b2):
        bookie.refuse("read", Status.IO_ERROR)
    await fakes.change(ledger_id, custom_metadata=(("label", b"new"),))
    with pytest.raises(LedgerReadError, match=r"entry 0: bookie b[12]"):
        await reader.read(0)
    assert b1.count("read") == 1


async def test_a_reader_of_a_deleted_ledger_says_so(fakes: Fakes) -> None:
    ledger_id, (b1, b2, *_) = await moved_ledger(fakes)
    client = await fakes.client()
    reader = await client.open(ledger_id, password=PASSWORD)
    await fakes.ledgers.delete(ledger_id)
    for bookie in (b1, b2):
        bookie.refuse("read", Status.NO_SUCH_LEDGER)
    with pytest.raises(LedgerNotFoundError):
        await reader.read(0)


async def test_a_reader_without_zookeeper_does_not_say_that_an_entry_does_not_exist(fakes: Fakes) -> None:
    ledger_id, (b1, b2, *_) = await moved_ledger(fakes)
    client = await fakes.client()
    reader = await client.open(ledger_id, password=PASSWORD)
    assert len(await reader.read(0)) == 10
    for bookie in (b1, b2):
        bookie.refuse("read", Status.NO_SUCH_ENTRY)
    await client.held_store.close()
    with pytest.raises(LedgerReadError, match="cannot check whether entry 0 has moved") as failure:
        await reader.read(0, 0)
    assert isinstance(failure.value.__cause__, MetadataError)
