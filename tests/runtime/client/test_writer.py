"""The writer: scenarios of protocol section 11, parts B and C, and its limits."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from bkctl.runtime.config import ClientConfig
from bkctl.runtime.errors import (
    BookieTimeoutError,
    ConflictError,
    LedgerClosedError,
    LedgerFencedError,
    LedgerNotFoundError,
    LedgerPasswordError,
    MetadataUnavailableError,
    NotEnoughBookiesError,
    TooManyPendingAddsError,
)
from bkctl.runtime.ledger.metadata import LedgerState, Segment
from bkctl.runtime.protocol.status import Status
from bkctl.storage.errors import EntryTooLargeError
from tests.runtime.client.fakes import (
    PASSWORD,
    TIMEOUT_S,
    Fakes,
    answers_so_far,
    closed,
    credentials,
    end,
    payload,
    segments,
)
from tests.runtime.client.scripted_bookie import StoredLedger
from tests.runtime.net.stepped_clock import SteppedClock
from tests.until import until

THREE = ("b1", "b2", "b3")


async def test_t8_entries_are_acknowledged_in_order(fakes: Fakes) -> None:
    bookies = await fakes.bookies(*THREE)
    held = [bookie.hold("add", 0) for bookie in bookies]
    writer, client = await fakes.writer(THREE, 3, 2)
    first, second = writer.append_nowait(payload(0)), writer.append_nowait(payload(1))
    await until(lambda: all(bookie.holds(writer.ledger_id) == [1] for bookie in bookies))
    held[0].release()
    await until(lambda: bookies[0].holds(writer.ledger_id) == [0, 1])
    await answers_so_far(client, "b1")
    assert not first.done()
    assert not second.done()
    assert writer.last_add_confirmed == -1
    held[1].release()
    assert [await first, await second] == [0, 1]
    assert writer.last_add_confirmed == 1


async def test_t9_an_entry_carries_the_lac_before_it_and_a_tailing_reader_sees_one_less(fakes: Fakes) -> None:
    await fakes.bookies(*THREE)
    writer, client = await fakes.writer(THREE, 3, 3)
    for i in range(10):
        await writer.append(payload(i))
    reader = await client.open(writer.ledger_id, password=PASSWORD)
    assert reader.last_add_confirmed == 8
    for i in range(10, 20):
        await writer.append(payload(i))
    seen: list[int] = []
    while len(seen) <= reader.last_add_confirmed:
        seen += [entry.entry_id for entry in await reader.read(len(seen))]
    assert seen == list(range(19))


async def test_pipelined_entries_carry_what_is_confirmed_when_they_are_sent(fakes: Fakes) -> None:
    """The entry before is sent but not confirmed: a reader that believed it could read what recovery cuts off."""
    bookies = await fakes.bookies(*THREE)
    held = [bookie.hold("add") for bookie in bookies]
    writer, _ = await fakes.writer(THREE, 3, 2)
    adds = [writer.append_nowait(payload(entry_id)) for entry_id in range(3)]
    for one in held:
        one.release()
    assert await asyncio.gather(*adds) == [0, 1, 2]
    assert await writer.append(payload(3)) == 3
    await until(lambda: all(bookie.count("add") == 4 for bookie in bookies))
    codec = credentials(writer.ledger_id).codec
    for bookie in bookies:
        sent = [codec.decode(request.entry_id, request.body) for request in bookie.requests]
        assert [(entry.entry_id, entry.last_add_confirmed) for entry in sent] == [(0, -1), (1, -1), (2, -1), (3, 2)]
        assert [entry.length for entry in sent] == [10, 20, 30, 40]


async def test_t10_one_change_serves_all_pending_adds(fakes: Fakes) -> None:
    b1, *_ = await fakes.bookies("b1", "b2", "b3", "b4")
    b1.refuse("add", Status.IO_ERROR)
    writer, client = await fakes.writer(THREE, 3, 2)
    ids = await asyncio.gather(*(writer.append_nowait(payload(i)) for i in range(5)))
    assert ids == [0, 1, 2, 3, 4]
    assert client.held_store.write_count == 1
    assert segments(await fakes.metadata(writer.ledger_id)) == {0: ("b4", "b2", "b3")}
    await writer.close()
    assert end(await fakes.metadata(writer.ledger_id)) == closed(4, 50)


async def test_t11_a_change_after_an_acknowledged_entry_appends_a_segment(fakes: Fakes) -> None:
    b1, *_ = await fakes.bookies("b1", "b2", "b3", "b4")
    writer, _ = await fakes.writer(THREE, 3, 3)
    await writer.append(payload(0))
    b1.drop("add", 1)
    assert await writer.append(payload(1)) == 1
    await writer.close()
    stored = await fakes.metadata(writer.ledger_id)
    assert segments(stored) == {0: THREE, 1: ("b4", "b2", "b3")}
    assert end(stored) == closed(1, 20)


async def test_t12_a_second_failure_during_a_change_is_another_change(fakes: Fakes) -> None:
    b1, b2, *_ = await fakes.bookies("b1", "b2", "b3", "b4", "b5")
    b1.refuse("add", Status.IO_ERROR)
    second = b2.hold("add")
    writer, client = await fakes.writer(THREE, 3, 3)
    client.held_store.hold_writes()
    added = writer.append_nowait(payload(0))
    await client.held_store.write_is_held()
    await second.arrived()
    await b2.stop()
    await until(lambda: "b2" in client.ports.suspects.current())
    client.held_store.release_writes()
    assert await added == 0
    assert client.held_store.write_count == 2
    (only,) = segments(await fakes.metadata(writer.ledger_id)).items()
    assert (only[0], set(only[1]), only[1][2]) == (0, {"b3", "b4", "b5"}, "b3")


@pytest.mark.parametrize("good_entries", [0, 1])
async def test_t13_without_a_spare_the_ledger_is_closed_at_what_was_acknowledged(
    fakes: Fakes, good_entries: int
) -> None:
    b1, b2, _ = await fakes.bookies(*THREE)
    writer, _ = await fakes.writer(THREE, 3, 3)
    for i in range(good_entries):
        await writer.append(payload(i))
    b1.refuse("add", Status.IO_ERROR)
    b2.refuse("add", Status.READ_ONLY)
    with pytest.raises(NotEnoughBookiesError):
        await writer.append(payload(good_entries))
    with pytest.raises(LedgerClosedError):
        await writer.append(payload(good_entries))
    await writer.close()
    stored = await fakes.metadata(writer.ledger_id)
    assert end(stored) == closed(good_entries - 1, 10 * good_entries)
    assert segments(stored) == {0: THREE}


async def test_t14_nothing_is_acknowledged_while_a_change_is_in_flight(fakes: Fakes) -> None:
    b1, b2, b3, _ = await fakes.bookies("b1", "b2", "b3", "b4")
    writer, client = await fakes.writer(THREE, 3, 2)
    await writer.append(payload(0))
    await until(lambda: b3.holds(writer.ledger_id) == [0])
    held = [b1.hold("add", 1), b2.hold("add", 1)]
    b3.refuse("add", Status.IO_ERROR, entry_id=1)
    client.held_store.hold_writes()
    added = writer.append_nowait(payload(1))
    await client.held_store.write_is_held()
    for one in held:
        one.release()
    await until(lambda: b1.holds(writer.ledger_id) == [0, 1] and b2.holds(writer.ledger_id) == [0, 1])
    await answers_so_far(client, "b1", "b2")
    assert not added.done()
    assert writer.last_add_confirmed == 0
    client.held_store.release_writes()
    assert await added == 1
    assert segments(await fakes.metadata(writer.ledger_id)) == {0: THREE, 1: ("b1", "b2", "b4")}


async def test_t15_an_entry_that_the_change_does_not_touch_completes_right_after_it(fakes: Fakes) -> None:
    b1, b2, b3, b4 = await fakes.bookies("b1", "b2", "b3", "b4")
    never = b1.hold("add")
    writer, client = await fakes.writer(THREE, 2, 1)
    await writer.append(payload(0))
    await never.arrived()
    await b1.stop()
    client.held_store.hold_writes()
    await until(lambda: "b1" in client.ports.suspects.current())
    added = writer.append_nowait(payload(1))
    await client.held_store.write_is_held()
    await until(lambda: b2.holds(writer.ledger_id) == [0, 1] and b3.holds(writer.ledger_id) == [1])
    await answers_so_far(client, "b2", "b3")
    assert not added.done()
    client.held_store.release_writes()
    async with asyncio.timeout(60):
        assert await added == 1
    assert segments(await fakes.metadata(writer.ledger_id)) == {0: THREE, 1: ("b4", "b2", "b3")}
    assert b4.count("add") == 0


async def test_t16_a_change_keeps_what_others_did_to_older_segments(fakes: Fakes) -> None:
    b1, _, b3, _ = await fakes.bookies("b1", "b2", "b3", "b4")
    writer, client = await fakes.writer(THREE, 3, 3)
    await writer.append(payload(0))
    b3.refuse("add", Status.IO_ERROR)
    await writer.append(payload(1))
    await fakes.bookies("b5")
    b1.refuse("add", Status.IO_ERROR)
    client.held_store.hold_writes()
    added = writer.append_nowait(payload(2))
    await client.held_store.write_is_held()
    moved = (Segment(0, ("b4", "b2", "b5")), Segment(1, ("b1", "b2", "b4")))
    await fakes.change(writer.ledger_id, segments=moved)
    client.held_store.release_writes()
    assert await added == 2
    assert segments(await fakes.metadata(writer.ledger_id)) == {
        0: ("b4", "b2", "b5"),
        1: ("b1", "b2", "b4"),
        2: ("b5", "b2", "b4"),
    }


async def test_t17_a_change_that_finds_the_ledger_closed_adopts_the_end(fakes: Fakes) -> None:
    _, b2, *_ = await fakes.bookies("b1", "b2", "b3", "b4")
    b2.refuse("add", Status.IO_ERROR)
    writer, client = await fakes.writer(THREE, 3, 3)
    client.held_store.hold_writes()
    added = writer.append_nowait(payload(0))
    await client.held_store.write_is_held()
    await fakes.change(writer.ledger_id, state=LedgerState.CLOSED, last_entry_id=1234, length=10)
    client.held_store.release_writes()
    with pytest.raises(LedgerClosedError):
        await added
    assert (writer.last_add_confirmed, writer.length) == (1234, 10)
    assert segments(await fakes.metadata(writer.ledger_id)) == {0: THREE}
    await writer.close()
    assert end(await fakes.metadata(writer.ledger_id)) == closed(1234, 10)


async def test_t18_a_change_that_finds_a_recovery_leaves_the_metadata_alone(fakes: Fakes) -> None:
    _, b2, *_ = await fakes.bookies("b1", "b2", "b3", "b4")
    b2.refuse("add", Status.IO_ERROR)
    writer, client = await fakes.writer(THREE, 3, 3)
    client.held_store.hold_writes()
    added = writer.append_nowait(payload(0))
    await client.held_store.write_is_held()
    await fakes.change(writer.ledger_id, state=LedgerState.IN_RECOVERY)
    client.held_store.release_writes()
    with pytest.raises(LedgerFencedError):
        await added
    stored = await fakes.metadata(writer.ledger_id)
    assert (stored.state, segments(stored)) == (LedgerState.IN_RECOVERY, {0: THREE})
    assert not writer.metadata.is_closed
    with pytest.raises(LedgerClosedError):
        writer.append_nowait(payload(0))


async def test_t19_close_goes_past_a_blocked_change(fakes: Fakes) -> None:
    _, b2, *_ = await fakes.bookies("b1", "b2", "b3", "b4")
    b2.refuse("add", Status.IO_ERROR)
    writer, client = await fakes.writer(THREE, 3, 3)
    client.held_store.hold_writes()
    added = writer.append_nowait(payload(0))
    await client.held_store.write_is_held()
    closing = asyncio.create_task(writer.close())
    with pytest.raises(LedgerClosedError):
        await added
    client.held_store.release_writes()
    await closing
    stored = await fakes.metadata(writer.ledger_id)
    assert end(stored) == closed(-1, 0)
    assert len(stored.segments) == 1


async def test_t20_a_late_failure_waits_for_the_next_add(fakes: Fakes) -> None:
    b1, *_ = await fakes.bookies("b1", "b2", "b3", "b4")
    silent = b1.hold("add")
    clock = SteppedClock()
    writer, client = await fakes.writer(THREE, 3, 2, clock=clock)
    await writer.append(payload(0))
    await silent.arrived()
    await answers_so_far(client, "b2", "b3")
    clock.advance(TIMEOUT_S)
    await until(lambda: "b1" in client.ports.suspects.current())
    assert client.held_store.write_count == 0
    await writer.append(payload(1))
    assert segments(await fakes.metadata(writer.ledger_id)) == {0: THREE, 1: ("b4", "b2", "b3")}


async def test_t26_too_many_changes_without_progress_end_the_writer(fakes: Fakes) -> None:
    """The limit counts only changes in a row that confirmed nothing."""
    for bookie in await fakes.bookies("b1", "b2"):
        bookie.refuse("add", Status.IO_ERROR, entry_id=1)
    writer, client = await fakes.writer(("b1",), 1, 1, ClientConfig(ensemble_changes_without_progress_max=3))
    await writer.append(payload(0))
    async with asyncio.timeout(60):
        with pytest.raises(NotEnoughBookiesError, match="3 ensemble changes in a row"):
            await writer.append(payload(1))
    await writer.close()
    assert end(await fakes.metadata(writer.ledger_id)) == closed(0, 10)
    assert client.held_store.write_count == 4


async def test_t27_a_dead_cluster_gives_not_enough_bookies_and_length_zero(fakes: Fakes) -> None:
    bookies = await fakes.bookies(*THREE)
    writer, _ = await fakes.writer(THREE, 3, 2)
    for bookie in bookies:
        await bookie.stop()
    results = await asyncio.gather(*(writer.append_nowait(payload(i)) for i in range(3)), return_exceptions=True)
    assert all(isinstance(result, NotEnoughBookiesError) for result in results)
    assert writer.length == 0
    await writer.close()  # it closes the ledger on its own, but perhaps after a recovery that finds no bookie
    assert end(await fakes.recover(writer.ledger_id)) == closed(-1, 0)


async def test_t29_the_word_of_a_replaced_bookie_does_not_count(fakes: Fakes) -> None:
    b1, b2, b3, b4 = await fakes.bookies("b1", "b2", "b3", "b4")
    b2_on_0, late, successor = b2.hold("add", 0), b1.hold("add", 1), b4.hold("add")
    b3.hold("add")
    b1.refuse("add", Status.IO_ERROR, entry_id=2)
    writer, client = await fakes.writer(THREE, 3, 2)
    client.held_store.hold_writes()
    adds = [writer.append_nowait(payload(i)) for i in range(3)]
    await client.held_store.write_is_held()  # b1 failed on entry 2 ...
    b2_on_0.release()  # ... and entry 0 now has b1 and b2: an ack quorum, but b1 is on its way out
    await until(lambda: b1.holds(writer.ledger_id) == [0] and b2.holds(writer.ledger_id) == [0, 1, 2])
    await answers_so_far(client, "b1", "b2")
    client.held_store.release_writes()
    await successor.arrived()
    late.release()
    await until(lambda: b1.holds(writer.ledger_id) == [0, 1])
    await answers_so_far(client, "b1")
    assert [add.done() for add in adds] == [False, False, False]
    successor.release()
    assert await asyncio.gather(*adds) == [0, 1, 2]


async def test_t29_a_late_acknowledgement_of_a_replaced_bookie_is_ignored(fakes: Fakes) -> None:
    b1, b2, b3, b4 = await fakes.bookies("b1", "b2", "b3", "b4")
    late, successor = b1.hold("add", 0), b4.hold("add")
    b3.hold("add")
    b1.refuse("add", Status.IO_ERROR, entry_id=1)
    writer, client = await fakes.writer(THREE, 3, 2)
    adds = [writer.append_nowait(payload(i)) for i in range(2)]
    await successor.arrived()
    await until(lambda: b2.holds(writer.ledger_id) == [0, 1])
    late.release()
    await until(lambda: b1.holds(writer.ledger_id) == [0])
    await answers_so_far(client, "b1")
    assert not adds[0].done()
    successor.release()
    assert await asyncio.gather(*adds) == [0, 1]


async def test_t30_closing_fails_the_adds_under_way(fakes: Fakes) -> None:
    bookies = await fakes.bookies(*THREE)
    for bookie in bookies:
        bookie.hold("add")
    writer, _ = await fakes.writer(THREE, 3, 2)
    added = writer.append_nowait(payload(0))
    await writer.close()
    with pytest.raises(LedgerClosedError):
        await added
    assert end(await fakes.metadata(writer.ledger_id)) == closed(-1, 0)


async def test_t30_close_racing_append_never_lies(fakes: Fakes) -> None:
    await fakes.bookies(*THREE)
    client = await fakes.client()
    outcomes = set()
    for round_number in range(150):
        ledger_id, metadata = await fakes.create(THREE, 3, 2)
        writer = client.writer_of(ledger_id, metadata)
        added = writer.append_nowait(payload(0))
        for _ in range(round_number % 12):
            await asyncio.sleep(0)
        await writer.close()
        try:
            expected = await added
        except LedgerClosedError:
            expected = -1
        outcomes.add(expected)
        assert (await fakes.metadata(ledger_id)).last_entry_id == expected
    assert -1 in outcomes


async def test_t31_closing_keeps_what_others_changed_meanwhile(fakes: Fakes) -> None:
    await fakes.bookies(*THREE)
    writer, client = await fakes.writer(THREE, 3, 3)
    await asyncio.gather(*(writer.append_nowait(payload(i)) for i in range(2)))
    client.held_store.hold_writes()
    closing = asyncio.create_task(writer.close())
    await client.held_store.write_is_held()
    await fakes.change(writer.ledger_id, segments=(Segment(0, ("b9", "b2", "b3")),))
    client.held_store.release_writes()
    await closing
    stored = await fakes.metadata(writer.ledger_id)
    assert segments(stored) == {0: ("b9", "b2", "b3")}
    assert end(stored) == closed(1, 20)


@pytest.mark.parametrize(("last_entry_id", "length", "is_same"), [(1, 20, True), (0, 20, False), (1, 21, False)])
async def test_t32_a_ledger_closed_by_others_must_end_where_the_writer_did(
    fakes: Fakes, last_entry_id: int, length: int, is_same: bool
) -> None:
    await fakes.bookies(*THREE)
    writer, client = await fakes.writer(THREE, 3, 3)
    await asyncio.gather(*(writer.append_nowait(payload(i)) for i in range(2)))
    client.held_store.hold_writes()
    closing = asyncio.create_task(writer.close())
    await client.held_store.write_is_held()
    await fakes.change(writer.ledger_id, state=LedgerState.CLOSED, last_entry_id=last_entry_id, length=length)
    client.held_store.release_writes()
    if is_same:
        await closing
    else:
        with pytest.raises(ConflictError):
            await closing
    assert end(await fakes.metadata(writer.ledger_id)) == closed(last_entry_id, length)


async def test_t33_the_writer_closes_over_a_recovery_at_its_own_end(fakes: Fakes) -> None:
    await fakes.bookies(*THREE)
    writer, client = await fakes.writer(THREE, 3, 3)
    await asyncio.gather(*(writer.append_nowait(payload(i)) for i in range(2)))
    client.held_store.hold_writes()
    closing = asyncio.create_task(writer.close())
    await client.held_store.write_is_held()
    await fakes.change(writer.ledger_id, state=LedgerState.IN_RECOVERY)
    client.held_store.release_writes()
    await closing
    assert end(await fakes.metadata(writer.ledger_id)) == closed(1, 20)


async def test_t34_a_second_close_waits_for_the_first(fakes: Fakes) -> None:
    await fakes.bookies(*THREE)
    writer, client = await fakes.writer(THREE, 3, 3)
    client.held_store.hold_writes()
    first, second = asyncio.create_task(writer.close()), asyncio.create_task(writer.close())
    await client.held_store.write_is_held()
    assert not first.done()
    assert not second.done()
    client.held_store.release_writes()
    await asyncio.gather(first, second)
    await writer.close()
    assert client.held_store.write_count == 1


async def test_with_fewer_spares_than_failures_the_bookies_left_are_asked_again(fakes: Fakes) -> None:
    b1, b2, *_ = await fakes.bookies("b1", "b2", "b3", "b4")
    writer, client = await fakes.writer(THREE, 3, 1)
    held = [bookie.hold("add", 0) for bookie in (b1, b2)]
    await writer.append(payload(0))
    for bookie, one in zip((b1, b2), held, strict=True):
        await one.arrived()
        await bookie.stop()
    await until(lambda: client.ports.suspects.current() == {"b1", "b2"})
    for bookie in (b1, b2):
        await bookie.start()
    adds = [writer.append_nowait(payload(i)) for i in (1, 2)]
    assert await asyncio.gather(*adds) == [1, 2]
    assert segments(await fakes.metadata(writer.ledger_id)) == {0: THREE, 1: ("b4", "b2", "b3")}
    await until(lambda: b2.count("add", 1) == 2)  # the ack quorum of one does not wait for it


async def test_an_add_that_loses_its_acknowledgement_before_it_is_delivered_starts_a_change(fakes: Fakes) -> None:
    """One spare for two failures: b2 stays and is asked again, and its first answer to entry 3 comes last."""
    b1, b2, b3, b4 = await fakes.bookies("b1", "b2", "b3", "b4")
    writer, client = await fakes.writer(THREE, 2, 1)
    late = [b1.hold("add", 0, status=Status.IO_ERROR), b2.hold("add", 1, status=Status.IO_ERROR)]
    first_of_b2 = b2.hold("add", 3, times=1, status=Status.IO_ERROR)
    head = [b3.hold("add", 2), b4.hold("add", 2)]
    only_of_b4 = b4.hold("add", 3, times=1, status=Status.IO_ERROR)
    for entry_id in range(2):
        await writer.append(payload(entry_id))
    for one in late:
        await one.arrived()
        one.release()
    await until(lambda: client.ports.suspects.current() == {"b1", "b2"})
    added = [writer.append_nowait(payload(entry_id)) for entry_id in (2, 3)]
    await first_of_b2.arrived()
    await until(lambda: b2.holds(writer.ledger_id) == [0, 3])
    await answers_so_far(client, "b2")  # entry 3 has its acknowledgement now, and waits for entry 2
    await only_of_b4.arrived()
    only_of_b4.release()
    await until(lambda: "b4" in client.ports.suspects.current())
    await fakes.bookies("b5")
    first_of_b2.release()
    await answers_so_far(client, "b2")
    for one in head:
        one.release()
    async with asyncio.timeout(60):
        assert await asyncio.gather(*added) == [2, 3]


async def test_a_failure_after_the_delivery_is_late_whatever_was_acknowledged_before(fakes: Fakes) -> None:
    """b2 is asked twice for entry 3. It acknowledges first, and answers "fenced" when entry 3 is delivered already."""
    b1, b2, _, b4 = await fakes.bookies("b1", "b2", "b3", "b4")
    writer, client = await fakes.writer(THREE, 2, 1)
    late = [b1.hold("add", 0, status=Status.IO_ERROR), b2.hold("add", 1, status=Status.IO_ERROR)]
    first_of_b2 = b2.hold("add", 3, times=1, status=Status.FENCED)
    only_of_b4 = b4.hold("add", 3, times=1, status=Status.IO_ERROR)
    for entry_id in range(2):
        await writer.append(payload(entry_id))
    for one in late:
        await one.arrived()
        one.release()
    await until(lambda: client.ports.suspects.current() == {"b1", "b2"})
    assert await asyncio.gather(*[writer.append_nowait(payload(entry_id)) for entry_id in (2, 3)]) == [2, 3]
    await only_of_b4.arrived()
    only_of_b4.release()
    await until(lambda: "b4" in client.ports.suspects.current())
    await first_of_b2.arrived()
    first_of_b2.release()
    await answers_so_far(client, "b2")
    assert client.held_store.write_count == 1
    assert await writer.append(payload(4)) == 4


async def test_a_bookie_that_knows_another_key_ends_the_writer(fakes: Fakes) -> None:
    b1, *_ = await fakes.bookies(*THREE)
    writer, _ = await fakes.writer(THREE, 3, 2)
    b1.ledgers[writer.ledger_id] = StoredLedger(b"another key")
    with pytest.raises(LedgerPasswordError):
        await asyncio.gather(*(writer.append_nowait(payload(i)) for i in range(3)))
    await writer.close()
    assert (await fakes.metadata(writer.ledger_id)).is_closed


async def test_a_deleted_ledger_ends_the_writer_at_the_next_metadata_write(fakes: Fakes) -> None:
    b1, *_ = await fakes.bookies("b1", "b2", "b3", "b4")
    writer, _ = await fakes.writer(THREE, 3, 3)
    await writer.append(payload(0))
    await fakes.ledgers.delete(writer.ledger_id)
    b1.refuse("add", Status.IO_ERROR)
    with pytest.raises(LedgerNotFoundError):
        await writer.append(payload(1))
    with pytest.raises(LedgerNotFoundError):
        await writer.close()


async def test_append_waits_for_room_and_append_nowait_does_not(fakes: Fakes) -> None:
    bookies = await fakes.bookies(*THREE)
    held = [bookie.hold("add") for bookie in bookies]
    writer, client = await fakes.writer(THREE, 3, 2, ClientConfig(pending_adds_max=2))
    adds = [asyncio.create_task(writer.append(payload(i))) for i in range(7)]
    await held[0].arrived()
    await answers_so_far(client, "b1")
    assert bookies[0].count("add") == 2
    with pytest.raises(TooManyPendingAddsError):
        writer.append_nowait(payload(0))
    for one in held:
        one.release()
    async with asyncio.timeout(60):
        assert sorted(await asyncio.gather(*adds)) == list(range(7))


async def test_appends_that_wait_for_room_learn_that_the_writer_closed(fakes: Fakes) -> None:
    held = [bookie.hold("add") for bookie in await fakes.bookies(*THREE)]
    writer, _ = await fakes.writer(THREE, 3, 2, ClientConfig(pending_bytes_max=10))
    adds = [asyncio.create_task(writer.append(payload(i))) for i in range(3)]
    await held[0].arrived()
    await writer.close()
    results = await asyncio.gather(*adds, return_exceptions=True)
    assert all(isinstance(result, LedgerClosedError) for result in results)


async def test_an_entry_that_fits_no_frame_is_refused_and_changes_nothing(fakes: Fakes) -> None:
    await fakes.bookies(*THREE)
    writer, _ = await fakes.writer(THREE, 3, 2)
    with pytest.raises(EntryTooLargeError):
        await writer.append(bytes(5 * 1024 * 1024))
    assert await writer.append(bytes(5 * 1024 * 1024 - 1024)) == 0
    assert await writer.append(b"") == 1
    await writer.close()
    assert end(await fakes.metadata(writer.ledger_id)) == closed(1, 5 * 1024 * 1024 - 1024)


async def test_leaving_the_block_with_an_error_closes_and_keeps_the_error(fakes: Fakes) -> None:
    await fakes.bookies(*THREE)
    writer, _ = await fakes.writer(THREE, 3, 2)
    await writer.append(payload(0))
    await fakes.change(writer.ledger_id, state=LedgerState.CLOSED, last_entry_id=7, length=1)
    with pytest.raises(KeyError):
        async with writer:
            raise KeyError
    with pytest.raises(ConflictError):
        await writer.close()


async def test_an_abandoned_ledger_stays_open_for_recovery(fakes: Fakes) -> None:
    await fakes.bookies(*THREE)
    writer, client = await fakes.writer(THREE, 3, 3)
    await writer.append(payload(0))
    writer.abandon()
    with pytest.raises(LedgerClosedError):
        await writer.append(payload(1))
    await client.close()
    stored = await fakes.metadata(writer.ledger_id)
    assert stored.state is LedgerState.OPEN
    assert msgspec.structs.replace(stored, creator_token=0) == msgspec.structs.replace(writer.metadata, creator_token=0)
    assert end(await fakes.recover(writer.ledger_id)) == closed(0, 10)


async def test_a_close_that_cannot_reach_zookeeper_says_what_becomes_of_the_ledger(fakes: Fakes) -> None:
    await fakes.bookies("b1")
    writer, client = await fakes.writer(("b1",), 1, 1)
    await writer.append(payload(0))
    await client.held_store.close()
    with pytest.raises(
        MetadataUnavailableError, match=r"ledger \d+: its end, entry 0, may not be recorded; acknowledged"
    ):
        await writer.close()
    assert end(await fakes.recover(writer.ledger_id)) == closed(0, 10)


async def test_after_a_late_failure_a_force_still_saves_what_was_acknowledged(fakes: Fakes) -> None:
    *_, b3, _ = await fakes.bookies(*THREE, "b4")
    late = b3.hold("add", 0, status=Status.IO_ERROR)
    writer, client = await fakes.writer(THREE, 3, 2, deferred_sync=True)
    await writer.append(payload(0))
    await late.arrived()
    late.release()
    await until(lambda: client.ports.suspects.current() == {"b3"})
    assert await writer.force() == 0
    with pytest.raises(NotEnoughBookiesError, match="b3 failed, and a ledger with deferred sync keeps its bookies"):
        await writer.append(payload(1))
    await writer.close()
    stored = await fakes.metadata(writer.ledger_id)
    assert (end(stored), segments(stored)) == (closed(0, 10), {0: THREE})


async def test_a_force_that_a_bookie_never_answers_fails_in_time_and_can_be_repeated(fakes: Fakes) -> None:
    _, b2, _ = await fakes.bookies(*THREE)
    b2.hang("force", times=1)
    writer, _ = await fakes.writer(THREE, 3, 2, ClientConfig(read_timeout_s=0.5), deferred_sync=True)
    await writer.append(payload(0))
    with pytest.raises(BookieTimeoutError, match="b2"):
        await writer.force()
    assert writer.last_add_confirmed == -1
    assert await writer.force() == 0


async def test_a_bookie_that_closed_its_connection_proves_nothing(fakes: Fakes) -> None:
    _, b2, _ = await fakes.bookies(*THREE)
    writer, client = await fakes.writer(THREE, 3, 3, deferred_sync=True)
    await writer.append(payload(0))
    await b2.stop()
    await b2.start()
    await until(lambda: client.ports.bookies.losses("b2") == 1)
    with pytest.raises(NotEnoughBookiesError, match="the connection to b2 was lost"):
        await writer.force()
    await writer.close()
    assert end(await fakes.metadata(writer.ledger_id)) == closed(-1, 0)
