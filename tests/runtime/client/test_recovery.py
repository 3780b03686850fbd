"""Recovery: scenarios of protocol section 11, part D."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from bkctl.exit_codes import ExitCode, exit_code_of_error
from bkctl.runtime.config import ClientConfig
from bkctl.runtime.errors import (
    AnswersMissingError,
    BookieError,
    DigestMismatchError,
    LedgerClosedError,
    LedgerFencedError,
    LedgerPasswordError,
    LedgerRecoveryError,
    NotEnoughBookiesError,
)
from bkctl.runtime.ledger.metadata import LedgerState, Segment
from bkctl.runtime.protocol.status import Status
from tests.runtime.client.fakes import PASSWORD, TIMEOUT_S, Fakes, answers_so_far, closed, end, payload, segments
from tests.runtime.client.scripted_bookie import Held, StoredLedger
from tests.runtime.net.stepped_clock import SteppedClock
from tests.until import until

THREE = ("b1", "b2", "b3")
ONE_AT_A_TIME = ClientConfig(recovery_reads_in_flight_max=1)
PATIENT = ClientConfig(read_timeout_s=3600, add_timeout_s=3600)
"""A recovery that waits for a bookie that never answers is caught by the test's own limit."""


async def recover_past_silence(fakes: Fakes, ledger_id: int, silent: list[Held]) -> None:
    """Recover the ledger. When all others have answered, the time is up for the requests that are held."""
    clock = SteppedClock()
    client = await fakes.client(clock=clock)
    opening = asyncio.create_task(client.open(ledger_id, password=PASSWORD, recover=True))
    for one in silent:
        await one.arrived()
    await answers_so_far(client, *THREE)
    clock.advance(TIMEOUT_S)
    await opening


@pytest.mark.parametrize("count", [100, 1, 0])
async def test_t35_recovery_takes_the_ledger_from_its_writer(fakes: Fakes, count: int) -> None:
    await fakes.bookies(*THREE)
    writer, _ = await fakes.writer(THREE, 3, 2)
    for i in range(count):
        await writer.append(payload(i, 19))
    assert end(await fakes.recover(writer.ledger_id)) == closed(count - 1, 19 * count)
    with pytest.raises(LedgerFencedError):
        await writer.append(payload(count, 19))
    with pytest.raises(LedgerClosedError):
        await writer.append(payload(count, 19))
    await writer.close()
    assert end(await fakes.metadata(writer.ledger_id)) == closed(count - 1, 19 * count)


async def test_t36_a_wrong_password_reaches_no_bookie(fakes: Fakes) -> None:
    bookies = await fakes.bookies(*THREE)
    writer, client = await fakes.writer(THREE, 3, 3)
    await writer.append(payload(0))
    for recover in (True, False):
        with pytest.raises(LedgerPasswordError):
            await client.open(writer.ledger_id, password=b"wrong", recover=recover)
    assert all(bookie.count("read") == bookie.count("read_lac") == 0 for bookie in bookies)
    assert await writer.append(payload(1)) == 1


@pytest.mark.parametrize("has_spare", [False, True])
async def test_a_bookie_that_refuses_this_client_first_and_is_not_needed(fakes: Fakes, has_spare: bool) -> None:
    """It counts like one without a valid answer, and stays a member: it may have the entries from the writer."""
    b1, b2, b3 = await fakes.bookies(*THREE)
    if has_spare:
        await fakes.bookies("b4")
    ledger_id, _ = await fakes.create(THREE, 3, 2)
    for bookie in (b1, b2, b3):
        fakes.put(bookie, ledger_id, 0)
    for kind in ("read", "add"):
        b1.reject_client(kind)
    held = {kind: [bookie.hold(kind) for bookie in (b2, b3)] for kind in ("read", "add")}
    client = await fakes.client(PATIENT)
    recovering = asyncio.create_task(client.open(ledger_id, password=PASSWORD, recover=True))
    for requests in held.values():
        for each in requests:
            await each.arrived()
        await answers_so_far(client, "b1")
        assert not recovering.done()
        for each in requests:
            each.release()
    stored = (await recovering).metadata
    assert (segments(stored), end(stored)) == ({0: THREE}, closed(0, 10))


async def test_bookies_that_refuse_this_client_and_are_needed(fakes: Fakes) -> None:
    """The error names them with the reason, and is about the login; the ledger can be closed once they accept it."""
    b1, b2, b3 = await fakes.bookies(*THREE)
    ledger_id, _ = await fakes.create(THREE, 3, 2)
    for bookie in (b1, b2, b3):
        fakes.put(bookie, ledger_id, 0)
    for bookie in (b1, b2):
        bookie.reject_client("read")
    with pytest.raises(AnswersMissingError, match=r"b[12]: it serves only clients that use TLS or log in") as caught:
        await fakes.recover(ledger_id)
    assert set(caught.value.missing) == {"b1", "b2"}
    assert caught.value.is_refused
    assert exit_code_of_error(caught.value, "bkctl log append") == ExitCode.AUTH
    b2.obey()
    b1.reject_client("add")  # and reads, as before: a bookie refuses all requests of a connection
    b3.refuse("add", Status.IO_ERROR)
    with pytest.raises(LedgerRecoveryError, match=r"is left to replace b3 .*; bookie b1: it serves"):
        await fakes.recover(ledger_id)
    assert (await fakes.metadata(ledger_id)).state is LedgerState.IN_RECOVERY
    b1.obey()
    assert end(await fakes.recover(ledger_id)) == closed(0, 10)


async def test_t37_recovery_reads_fence(fakes: Fakes) -> None:
    """D1 of protocol section 6.5: without the flag, the entry would reach an ack quorum after the ledger was closed."""
    b1, b2, b3 = await fakes.bookies(*THREE)
    writer, _ = await fakes.writer(THREE, 3, 2)
    for i in range(2):
        await writer.append(payload(i))
    await until(lambda: all(bookie.holds(writer.ledger_id) == [0, 1] for bookie in (b1, b2, b3)))
    on_their_way = [b1.hold("add", 2), b2.hold("add", 2)]
    added = writer.append_nowait(payload(2))
    for one in on_their_way:
        await one.arrived()
    await until(lambda: b3.holds(writer.ledger_id) == [0, 1, 2])
    b2.hold("read", -1)
    b3.hold("read", 2)
    assert end(await fakes.recover(writer.ledger_id, PATIENT)) == closed(1, 20)
    for one in on_their_way:
        one.release()
    with pytest.raises(LedgerFencedError):
        await added
    assert writer.last_add_confirmed == 1
    assert b2.holds(writer.ledger_id) == [0, 1]
    assert all(request.is_fencing for request in b2.requests if request.kind == "read" and request.entry_id >= 2)


async def test_t38_recovery_never_starts_before_the_last_segment(fakes: Fakes) -> None:
    b1, b4 = await fakes.bookies("b1", "b4")
    ledger_id, _ = await fakes.create(("b1", "b2"), 2, 2)
    await fakes.change(ledger_id, segments=(Segment(0, ("b1", "b2")), Segment(1, ("b1", "b3"))))
    for entry_id in (0, 1):
        fakes.put(b1, ledger_id, entry_id)
    stored = await fakes.recover(ledger_id)
    assert segments(stored) == {0: ("b1", "b2"), 1: ("b1", "b4")}
    assert end(stored) == closed(1, 20)
    assert b1.count("read", 0) == 0
    assert b4.holds(ledger_id) == [1]


async def test_t39_a_bookie_that_fails_on_the_first_entry_is_replaced_in_the_same_segment(fakes: Fakes) -> None:
    b1, b2, b3, b4 = await fakes.bookies("b1", "b2", "b3", "b4")
    await b2.stop()
    ledger_id, _ = await fakes.create(THREE, 3, 2)
    fakes.put(b1, ledger_id, 0)
    slow = b3.hold("add")
    recovering = asyncio.create_task(fakes.recover(ledger_id))
    await until(lambda: b4.holds(ledger_id) == [0])
    slow.release()
    stored = await recovering
    assert segments(stored) == {0: ("b1", "b4", "b3")}
    assert end(stored) == closed(0, 10)


async def test_t40_a_bookie_that_fails_later_is_replaced_from_there_on(fakes: Fakes) -> None:
    b1, b2, b3, b4 = await fakes.bookies("b1", "b2", "b3", "b4")
    ledger_id, _ = await fakes.create(THREE, 3, 2)
    fakes.put(b1, ledger_id, 0)
    fakes.put(b3, ledger_id, 1)
    for entry_id in (0, 1):
        b2.refuse("read", Status.IO_ERROR, entry_id=entry_id)  # or two negatives could end the ledger first
    b2.refuse("add", Status.IO_ERROR, entry_id=1)
    slow = b3.hold("add", 1)
    recovering = asyncio.create_task(fakes.recover(ledger_id, ONE_AT_A_TIME))
    await until(lambda: b4.holds(ledger_id) == [1])
    slow.release()
    stored = await recovering
    assert segments(stored) == {0: THREE, 1: ("b1", "b4", "b3")}
    assert end(stored) == closed(1, 20)
    assert b2.holds(ledger_id) == [0]


async def test_t41_two_failures_at_the_same_entry_leave_one_segment(fakes: Fakes) -> None:
    b1, b2, b3, b4, b5 = await fakes.bookies("b1", "b2", "b3", "b4", "b5")
    ledger_id, _ = await fakes.create(THREE, 3, 2)
    for bookie in (b1, b2):
        fakes.put(bookie, ledger_id, 0)
        bookie.refuse("add", Status.IO_ERROR)
    b3.hold("add")
    stored = await fakes.recover(ledger_id)
    (only,) = segments(stored).items()
    assert (only[0], set(only[1]), only[1][2]) == (0, {"b3", "b4", "b5"}, "b3")
    assert end(stored) == closed(0, 10)
    assert b4.holds(ledger_id) == b5.holds(ledger_id) == [0]


async def test_t42_with_all_bookies_down_recovery_fails_and_can_be_repeated(fakes: Fakes) -> None:
    bookies = await fakes.bookies(*THREE)
    writer, client = await fakes.writer(THREE, 3, 2)
    for i in range(3):
        await writer.append(payload(i))
    writer.abandon()
    await client.close()
    for bookie in bookies:
        await bookie.stop()
    with pytest.raises(LedgerRecoveryError) as failure:
        await fakes.recover(writer.ledger_id)
    assert isinstance(failure.value.__cause__, BookieError)
    stored = await fakes.metadata(writer.ledger_id)
    assert (stored.state, segments(stored)) == (LedgerState.IN_RECOVERY, {0: THREE})
    for bookie in bookies:
        await bookie.start()
    assert end(await fakes.recover(writer.ledger_id)) == closed(2, 30)


async def test_t43_without_a_spare_a_refused_write_back_stops_recovery(fakes: Fakes) -> None:
    bookies = await fakes.bookies(*THREE)
    ledger_id, _ = await fakes.create(THREE, 3, 2)
    for bookie in bookies:
        fakes.put(bookie, ledger_id, 0)
        bookie.refuse("add", Status.IO_ERROR)
    with pytest.raises(LedgerRecoveryError) as failure:
        await fakes.recover(ledger_id)
    assert isinstance(failure.value.__cause__, NotEnoughBookiesError)
    stored = await fakes.metadata(ledger_id)
    assert (stored.state, segments(stored)) == (LedgerState.IN_RECOVERY, {0: THREE})


async def test_t43_a_new_bookie_lets_recovery_end(fakes: Fakes) -> None:
    _, _, b3 = await fakes.bookies(*THREE)
    writer, client = await fakes.writer(THREE, 3, 3)
    for i in range(3):
        await writer.append(payload(i))
    writer.abandon()
    await client.close()
    await b3.stop()
    with pytest.raises(LedgerRecoveryError):
        await fakes.recover(writer.ledger_id)
    await fakes.bookies("b4")
    stored = await fakes.recover(writer.ledger_id)
    assert end(stored) == closed(2, 30)
    assert stored.last_segment.ensemble == ("b1", "b2", "b4")


async def test_t44_a_ledger_closed_meanwhile_is_adopted(fakes: Fakes) -> None:
    bookies = await fakes.bookies(*THREE)
    ledger_id, _ = await fakes.create(THREE, 3, 2)
    for bookie in bookies:
        fakes.put(bookie, ledger_id, 0)
    held = [bookie.hold("add") for bookie in bookies]
    recovering = asyncio.create_task(fakes.recover(ledger_id))
    await held[0].arrived()
    await fakes.change(ledger_id, state=LedgerState.CLOSED, last_entry_id=-1, length=0)
    for one in held:
        one.release()
    assert end(await recovering) == closed(-1, 0)


async def test_t45_a_segment_that_appears_during_recovery_is_refused(fakes: Fakes) -> None:
    bookies = await fakes.bookies(*THREE)
    ledger_id, _ = await fakes.create(THREE, 3, 2)
    for bookie in bookies:
        fakes.put(bookie, ledger_id, 0)
    held = [bookie.hold("add") for bookie in bookies]
    recovering = asyncio.create_task(fakes.recover(ledger_id))
    await held[0].arrived()
    await fakes.change(ledger_id, segments=(Segment(0, THREE), Segment(5, ("b2", "b3", "b1"))))
    for one in held:
        one.release()
    with pytest.raises(LedgerRecoveryError, match="last segment"):
        await recovering
    assert (await fakes.metadata(ledger_id)).state is LedgerState.IN_RECOVERY


async def test_older_segments_may_change_during_recovery(fakes: Fakes) -> None:
    """Re-replication moves copies of old segments at any time; the close keeps what it did (protocol section 6.3)."""
    bookies = await fakes.bookies(*THREE)
    ledger_id, _ = await fakes.create(THREE, 3, 2)
    await fakes.change(ledger_id, segments=(Segment(0, ("b7", "b8", "b9")), Segment(4, THREE)))
    for bookie in bookies:
        fakes.put(bookie, ledger_id, 4, lac=3)
    held = [bookie.hold("add") for bookie in bookies]
    recovering = asyncio.create_task(fakes.recover(ledger_id))
    await held[0].arrived()
    await fakes.change(ledger_id, segments=(Segment(0, ("b6", "b8", "b9")), Segment(4, THREE)))
    for one in held:
        one.release()
    stored = await recovering
    assert segments(stored) == {0: ("b6", "b8", "b9"), 4: THREE}
    assert end(stored) == closed(4, 50)


async def test_t46_a_rolling_restart_truncates_nothing(fakes: Fakes) -> None:
    b1, b2, _, b4 = await fakes.bookies("b1", "b2", "b3", "b4")
    b4.refuse("add", Status.IO_ERROR)
    writer, client = await fakes.writer(THREE, 2, 2)
    for i in range(10):
        await writer.append(payload(i))
    writer.abandon()
    await client.close()
    for bookie in (b1, b2):
        await bookie.stop()
        with pytest.raises(LedgerRecoveryError):
            await fakes.recover(writer.ledger_id)
        await bookie.start()
    stored = await fakes.recover(writer.ledger_id)
    assert end(stored) == closed(9, 100)
    assert segments(stored) == {0: THREE}


async def test_t47_what_lies_behind_a_gap_is_not_recovered(fakes: Fakes) -> None:
    (b1,) = await fakes.bookies("b1")
    ledger_id, _ = await fakes.create(("b1",), 1, 1)
    for entry_id in range(10):
        fakes.put(b1, ledger_id, entry_id, lac=entry_id - 1)
    fakes.put(b1, ledger_id, 14, lac=8)
    assert end(await fakes.recover(ledger_id)) == closed(9, 100)
    assert b1.count("add") == 1


@pytest.mark.parametrize(
    ("answers", "expected_end"),
    [
        (("absent", "hung", "hung"), None),
        (("absent", "hung", "present"), 5),
        (("absent", "absent", "hung"), 4),
        (("absent", "unknown", "absent"), 4),
        (("absent", "unknown", "hung"), None),
        (("absent", "damaged", "hung"), None),
        (("absent", "damaged", "present"), 5),
    ],
)
async def test_t48_only_explicit_negatives_end_a_ledger(
    fakes: Fakes, answers: tuple[str, ...], expected_end: int | None
) -> None:
    bookies = await fakes.bookies(*THREE)
    ledger_id, _ = await fakes.create(THREE, 3, 2)
    silent = []
    for bookie, answer in zip(bookies, answers, strict=True):
        for entry_id in range(5):
            fakes.put(bookie, ledger_id, entry_id, lac=entry_id - 1)
        if answer in {"present", "damaged"}:
            fakes.put(bookie, ledger_id, 5, lac=4)
        if answer == "damaged":
            bookie.damage(ledger_id, 5)
        if answer == "unknown":
            bookie.refuse("read", Status.UNKNOWN_LEDGER_STATE, entry_id=5)
        if answer == "hung":
            silent.append(bookie.hold("read", 5))
    if expected_end is None:
        with pytest.raises(LedgerRecoveryError, match="entry 5"):
            await recover_past_silence(fakes, ledger_id, silent)
        assert (await fakes.metadata(ledger_id)).state is LedgerState.IN_RECOVERY
        return
    async with asyncio.timeout(60):
        stored = await fakes.recover(ledger_id, PATIENT)
    assert end(stored) == closed(expected_end, 10 * (expected_end + 1))


async def test_a_late_copy_counts_more_than_negatives(fakes: Fakes) -> None:
    """A bookie that came back with empty disks under its ID is the first to answer, and has none of the entries."""
    b1, b2 = await fakes.bookies("b1", "b2")
    ledger_id, _ = await fakes.create(("b1", "b2"), 2, 2)
    for entry_id in range(3):
        fakes.put(b2, ledger_id, entry_id)
    late = [b2.hold("read", entry_id) for entry_id in range(3)]
    client = await fakes.client(PATIENT)
    recovering = asyncio.create_task(client.open(ledger_id, password=PASSWORD, recover=True))
    for each in late:
        await each.arrived()
    await answers_so_far(client, "b1")
    for each in late:
        each.release()
    assert end((await recovering).metadata) == closed(2, 30)
    assert b1.holds(ledger_id) == [0, 1, 2]


async def test_t49_an_ack_quorum_of_one_needs_every_bookie(fakes: Fakes) -> None:
    b1, _, _ = await fakes.bookies("b1", "b2", "b3")
    risky, _ = await fakes.create(("b1", "b2"), 2, 1)
    sound, _ = await fakes.create(("b1", "b2"), 2, 2)
    await b1.stop()
    with pytest.raises(LedgerRecoveryError):
        await fakes.recover(risky)
    assert end(await fakes.recover(sound)) == closed(-1, 0)


async def test_t50_a_hung_bookie_holds_up_neither_recovery_nor_the_fence(fakes: Fakes) -> None:
    _, b2, _ = await fakes.bookies(*THREE)
    writer, _ = await fakes.writer(THREE, 3, 2)
    for i in range(3):
        await writer.append(payload(i))
    b2.hang("read")
    b2.hang("add")
    async with asyncio.timeout(60):
        assert end(await fakes.recover(writer.ledger_id, PATIENT)) == closed(2, 30)
    with pytest.raises(LedgerFencedError):
        await writer.append(payload(3))


async def test_t52_parallel_recoveries_agree_on_one_end(fakes: Fakes) -> None:
    await fakes.bookies(*THREE, "b4")  # a spare: a late "fenced" makes the writer change its ensemble first
    writer, _ = await fakes.writer(THREE, 3, 2)
    for i in range(5):
        await writer.append(payload(i))

    async def write_on() -> None:
        for i in range(5, 2000):
            await writer.append(payload(i))

    writing = asyncio.create_task(write_on())
    clients = [await fakes.client() for _ in range(3)]
    opening = [client.open(writer.ledger_id, password=PASSWORD, recover=True) for client in clients for _ in range(3)]
    readers = await asyncio.gather(*opening)
    with pytest.raises((LedgerFencedError, LedgerClosedError)):
        await writing
    confirmed = writer.last_add_confirmed
    (the_end,) = {end(reader.metadata) for reader in readers}
    assert the_end == end(await fakes.metadata(writer.ledger_id))
    assert the_end == closed(the_end[1], 10 * (the_end[1] + 1))
    assert the_end[1] >= confirmed
    assert [entry.payload for entry in await readers[0].read(0)] == [payload(i) for i in range(the_end[1] + 1)]


async def test_t53_a_ledger_closed_before_the_mark_is_not_fenced(fakes: Fakes) -> None:
    bookies = await fakes.bookies(*THREE)
    writer, _ = await fakes.writer(THREE, 3, 3)
    for i in range(2):
        await writer.append(payload(i))
    other = await fakes.client()
    other.held_store.hold_writes()
    opening = asyncio.create_task(other.open(writer.ledger_id, password=PASSWORD, recover=True))
    await other.held_store.write_is_held()
    await writer.close()
    other.held_store.release_writes()
    reader = await opening
    assert reader.last_add_confirmed == 1
    assert end(reader.metadata) == closed(1, 20)
    assert all(bookie.count("read") == 0 for bookie in bookies)


async def test_t54_the_next_recoverer_reads_from_the_stored_ensemble(fakes: Fakes) -> None:
    b1, b2, b3, b4 = await fakes.bookies("b1", "b2", "b3", "b4")
    ledger_id, _ = await fakes.create(THREE, 3, 2)
    for entry_id in range(3):
        fakes.put(b1, ledger_id, entry_id)
        fakes.put(b3, ledger_id, entry_id)
    b2.refuse("add", Status.IO_ERROR)
    b3.hold("add")
    substitute = b4.hold("add")
    first = await fakes.client()
    crashing = asyncio.create_task(first.open(ledger_id, password=PASSWORD, recover=True))
    await substitute.arrived()
    first.held_store.hold_writes()
    substitute.release()
    await first.held_store.write_is_held()  # all is written, the close is on its way
    crashing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await crashing
    for bookie in (b2, b3, b4):
        bookie.obey()
        bookie.requests.clear()
    stored = await fakes.recover(ledger_id)
    assert end(stored) == closed(2, 30)
    assert segments(stored) == {0: THREE}
    assert b4.requests == []
    await until(lambda: b2.holds(ledger_id) == [0, 1, 2])


async def test_d4_recovery_reads_from_the_bookies_it_has_itself_replaced(fakes: Fakes) -> None:
    """Entry 2 was acknowledged by b2 and b3. They take no write-backs any more; their substitutes lack the entry."""
    b1, b2, b3, _, _ = await fakes.bookies("b1", "b2", "b3", "b4", "b5")
    ledger_id, _ = await fakes.create(THREE, 3, 2)
    for bookie, count in ((b1, 2), (b2, 3), (b3, 3)):
        for entry_id in range(count):
            fakes.put(bookie, ledger_id, entry_id)
    for bookie in (b2, b3):
        bookie.refuse("add", Status.IO_ERROR)
    b1.hold("add")  # so that both substitutes are needed from the first entry on
    stored = await fakes.recover(ledger_id, ONE_AT_A_TIME)
    assert end(stored) == closed(2, 30)
    assert set(stored.last_segment.ensemble) == {"b1", "b4", "b5"}


async def test_t55_a_damaged_answer_to_the_fence_counts_for_coverage_alone(fakes: Fakes) -> None:
    b1, b2, b3 = await fakes.bookies(*THREE)
    ledger_id, _ = await fakes.create(THREE, 3, 2)
    for bookie, lac in ((b1, 7), (b2, 1), (b3, 2)):
        for entry_id in range(4):
            fakes.put(bookie, ledger_id, entry_id, lac=lac)
    b1.damage(ledger_id, 3)
    slow = [bookie.hold("read", -1) for bookie in (b2, b3)]
    recovering = asyncio.create_task(fakes.recover(ledger_id))
    await slow[0].arrived()
    await until(lambda: b1.count("read", -1) == 1)
    for one in slow:
        one.release()
    assert end(await recovering) == closed(3, 40)


async def test_t55_a_damaged_last_answer_is_no_success(fakes: Fakes) -> None:
    """Fencing is covered, but how far the ledger is confirmed was not learned (protocol section 2.3)."""
    b1, b2, b3 = await fakes.bookies(*THREE)
    ledger_id, _ = await fakes.create(THREE, 3, 2)
    for bookie in (b1, b2):
        fakes.put(bookie, ledger_id, 0)
        bookie.damage(ledger_id, 0)
    await b3.stop()
    with pytest.raises(LedgerRecoveryError) as failure:
        await fakes.recover(ledger_id)
    assert isinstance(failure.value.__cause__, DigestMismatchError | BookieError)


@pytest.mark.parametrize("in_flight_max", [1, 3, 13])
async def test_t56_how_far_it_reads_ahead_changes_nothing(fakes: Fakes, in_flight_max: int) -> None:
    bookies = await fakes.bookies(*THREE)
    ledger_id, _ = await fakes.create(THREE, 3, 2)
    for entry_id in range(10):
        for bookie in bookies:
            fakes.put(bookie, ledger_id, entry_id)
    stored = await fakes.recover(ledger_id, ClientConfig(recovery_reads_in_flight_max=in_flight_max))
    assert end(stored) == closed(9, 100)
    await until(lambda: all(bookie.count("add") >= 10 for bookie in bookies))  # the third copy may be late
    for bookie in bookies:
        assert [bookie.count("add", entry_id) for entry_id in range(11)] == [1] * 10 + [0]


async def test_t57_limbo_is_unknown_and_not_absent(fakes: Fakes) -> None:
    """An entry is on b1 and b3; b1 has lost it, and knows that it may have."""
    b1, b2, b3 = await fakes.bookies(*THREE)
    ledger_id, _ = await fakes.create(THREE, 3, 2)
    fakes.put(b3, ledger_id, 0)
    b1.ledgers[ledger_id] = StoredLedger(b3.ledgers[ledger_id].master_key, is_fenced=True, is_limbo=True)
    silent = b3.hold("read", 0)
    with pytest.raises(LedgerRecoveryError, match="entry 0"):
        await recover_past_silence(fakes, ledger_id, [silent])
    assert (await fakes.metadata(ledger_id)).state is LedgerState.IN_RECOVERY
    b3.obey()
    b2.hold("add")
    assert end(await fakes.recover(ledger_id)) == closed(0, 10)
    assert b1.holds(ledger_id) == [0]


async def test_t57_without_limbo_two_negatives_truncate(fakes: Fakes) -> None:
    """The model's negative case: it shows that the test above depends on the bookie's "unknown"."""
    b1, _, b3 = await fakes.bookies(*THREE)
    ledger_id, _ = await fakes.create(THREE, 3, 2)
    fakes.put(b3, ledger_id, 0)
    b1.ledgers[ledger_id] = StoredLedger(b3.ledgers[ledger_id].master_key, is_fenced=True)
    b3.hang("read", 0)
    assert end(await fakes.recover(ledger_id, PATIENT)) == closed(-1, 0)


async def test_t58_an_empty_last_segment_takes_the_length_of_the_entry_before_it(fakes: Fakes) -> None:
    bookies = await fakes.bookies(*THREE)
    ledger_id, _ = await fakes.create(THREE, 3, 2)
    await fakes.change(ledger_id, segments=(Segment(0, THREE), Segment(10, ("b3", "b1", "b2"))))
    for bookie in bookies[:2]:
        for entry_id in range(10):
            fakes.put(bookie, ledger_id, entry_id, lac=entry_id - 1)
    stored = await fakes.recover(ledger_id)
    assert end(stored) == closed(9, 100)
    assert all(bookie.count("add") == 0 for bookie in bookies)


async def test_the_length_is_exact_when_nothing_is_recovered(fakes: Fakes) -> None:
    """The best answer to the fence describes entry 2, which no ack quorum holds and recovery does not find."""
    b1, b2, b3 = await fakes.bookies(*THREE)
    ledger_id, _ = await fakes.create(THREE, 3, 2)
    for bookie in (b1, b2, b3):
        for entry_id in range(2):
            fakes.put(bookie, ledger_id, entry_id, lac=entry_id - 1)
    fakes.put(b3, ledger_id, 2, lac=1)
    b3.hold("read", 2)
    slow = [bookie.hold("read", -1) for bookie in (b1, b2)]
    recovering = asyncio.create_task(fakes.recover(ledger_id, PATIENT))
    await slow[0].arrived()
    await until(lambda: b3.count("read", -1) == 1)
    slow[0].release()
    assert end(await recovering) == closed(1, 20)


async def test_t59_write_backs_are_recovery_adds_with_the_first_lac(fakes: Fakes) -> None:
    b1, b2, b3 = await fakes.bookies(*THREE)
    writer, client = await fakes.writer(THREE, 3, 2)
    await writer.append(payload(0))
    ledger_id = writer.ledger_id
    await until(lambda: all(bookie.holds(ledger_id) == [0] for bookie in (b1, b2, b3)))
    for entry_id in (1, 2, 3):
        fakes.put(b1, ledger_id, entry_id, lac=0)
        fakes.put(b3, ledger_id, entry_id, lac=0)
    b2.requests.clear()
    assert end(await fakes.recover(ledger_id, ONE_AT_A_TIME)) == closed(3, 40)
    await until(lambda: b2.count("add") >= 3)
    adds = [request for request in b2.requests if request.kind == "add"]
    assert [request.entry_id for request in adds] == [1, 2, 3]
    assert all(request.is_recovery and request.is_high_priority for request in adds)
    assert {int.from_bytes(request.body[16:24]) for request in adds} == {0}
    with pytest.raises(LedgerFencedError):
        await writer.append(payload(1))
    await until(lambda: b2.count("add") == 4)
    assert not b2.requests[-1].is_recovery
    await client.close()


async def test_a_bookie_that_answers_fenced_to_a_recovery_add_is_replaced(fakes: Fakes) -> None:
    """A Java bookie refuses all adds to a ledger that it collected after a fence."""
    b1, b2, b3, b4 = await fakes.bookies("b1", "b2", "b3", "b4")
    ledger_id, _ = await fakes.create(THREE, 3, 3)
    for bookie in (b1, b3):
        fakes.put(bookie, ledger_id, 0)
    b2.refuse("add", Status.FENCED)
    b2.refuse("read", Status.IO_ERROR, entry_id=0)  # a denial that comes first would end the ledger: ack quorum 3
    stored = await fakes.recover(ledger_id)
    assert end(stored) == closed(0, 10)
    assert segments(stored) == {0: ("b1", "b4", "b3")}
    assert b4.holds(ledger_id) == [0]


async def test_a_bookie_that_answered_fenced_does_not_come_back_as_a_successor(fakes: Fakes) -> None:
    b1, b2, b3, b4 = await fakes.bookies("b1", "b2", "b3", "b4")
    ledger_id, _ = await fakes.create(THREE, 3, 3)
    for entry_id in range(2):
        fakes.put(b1, ledger_id, entry_id)
        fakes.put(b3, ledger_id, entry_id)
        b2.refuse("read", Status.IO_ERROR, entry_id=entry_id)  # a denial that comes first would end the ledger
    b2.refuse("add", Status.FENCED)
    b4.refuse("add", Status.IO_ERROR, entry_id=1)
    with pytest.raises(LedgerRecoveryError, match="no writable bookie is left"):
        await fakes.recover(ledger_id, ONE_AT_A_TIME)
    assert b2.count("add", 1) == 0


@pytest.mark.parametrize("is_fenced_first", [True, False])
async def test_one_spare_for_a_dead_bookie_and_one_that_answers_fenced_lets_recovery_end(
    fakes: Fakes, *, is_fenced_first: bool
) -> None:
    """An ack quorum can be reached with the spare and the bookie that is left: no further successor is needed."""
    b2, b3, b4 = await fakes.bookies("b2", "b3", "b4")
    ledger_id, _ = await fakes.create(THREE, 3, 2)
    for entry_id in range(3):
        fakes.put(b3, ledger_id, entry_id)
    for entry_id in range(4):
        b2.refuse("read", Status.UNKNOWN_LEDGER_STATE if entry_id < 3 else Status.NO_SUCH_LEDGER, entry_id=entry_id)
    fenced = b2.hold("add", status=Status.FENCED)
    spare = b4.hold("add")
    recovering = asyncio.create_task(fakes.recover(ledger_id))
    if is_fenced_first:
        fenced.release()
    await spare.arrived()
    fenced.release()
    spare.release()
    stored = await recovering
    assert end(stored) == closed(2, 30)
    assert segments(stored) == {0: ("b4", "b2", "b3")}
    assert b4.holds(ledger_id) == [0, 1, 2]


async def test_the_last_spare_replaces_the_member_that_is_not_registered(fakes: Fakes) -> None:
    """It would fail too, only later than the member that refused."""
    b1, b2, b3, _ = await fakes.bookies("b1", "b2", "b3", "b4")
    ledger_id, _ = await fakes.create(THREE, 3, 2)
    fakes.put(b3, ledger_id, 0)
    b1.hang("read")
    unanswered = b1.hold("add")
    refused = b2.hold("add", status=Status.FENCED)
    recovering = asyncio.create_task(fakes.recover(ledger_id, PATIENT))
    await unanswered.arrived()
    await refused.arrived()
    await fakes.withdraw("b1")
    refused.release()
    stored = await recovering
    assert segments(stored) == {0: ("b4", "b2", "b3")}
    assert end(stored) == closed(0, 10)


async def test_a_bookie_with_another_key_stops_recovery_at_once(fakes: Fakes) -> None:
    b1, *_ = await fakes.bookies(*THREE)
    ledger_id, _ = await fakes.create(THREE, 3, 1)  # every bookie's answer is needed
    b1.ledgers[ledger_id] = StoredLedger(b"another key")
    with pytest.raises(LedgerPasswordError):
        await fakes.recover(ledger_id)


async def test_a_recovered_ledger_is_not_recovered_again(fakes: Fakes) -> None:
    bookies = await fakes.bookies(*THREE)
    ledger_id, _ = await fakes.create(THREE, 3, 2)
    fakes.put(bookies[0], ledger_id, 0)
    first = await fakes.recover(ledger_id)
    for bookie in bookies:
        await bookie.stop()  # nobody is asked
    second = await fakes.recover(ledger_id)
    assert msgspec.structs.replace(first, creator_token=0) == msgspec.structs.replace(second, creator_token=0)
