"""What one answer is worth, and that a silent bookie costs its back-off once."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from bkctl.runtime.client.ports import credentials_of
from bkctl.runtime.protocol.digest import master_key
from bkctl.runtime.protocol.status import Status
from bkctl.runtime.replication.copy.reader import CopyReader
from bkctl.runtime.replication.judge.copies import CopyState
from tests.runtime.client.fakes import TIMEOUT_S, credentials
from tests.runtime.replication.fleet import QUICK, Fleet, SteppedFleet
from tests.runtime.replication.samples import ledger


def reader(fleet: Fleet, *registered: str, silence_pause_s: float = QUICK.silence_pause_s) -> CopyReader:
    config = msgspec.structs.replace(QUICK, silence_pause_s=silence_pause_s)
    return CopyReader(fleet.client.ports, config, registered.__contains__)


@pytest.mark.parametrize(
    ("status", "state", "requests"),
    [
        (Status.NO_SUCH_ENTRY, CopyState.MISSING, 1),
        (Status.NO_SUCH_LEDGER, CopyState.MISSING, 1),
        (Status.IO_ERROR, CopyState.FAILED, 1),
        (Status.UNKNOWN_LEDGER_STATE, CopyState.FAILED, 1),
        (Status.TOO_MANY_REQUESTS, CopyState.UNREACHABLE, QUICK.attempts_max),
    ],
)
async def test_only_the_two_negatives_are_missing(
    fleet: Fleet, status: Status, state: CopyState, requests: int
) -> None:
    await fleet.start("b1")
    fleet.bookies["b1"].refuse("read", status)

    copy = await reader(fleet, "b1").read("b1", credentials(1), 0)

    assert (copy.state, fleet.bookies["b1"].count("read")) == (state, requests)
    assert copy.reason
    assert not copy.reason.startswith("bookie")


async def test_a_silent_bookie_is_asked_once_more_and_then_left_alone(stepped: SteppedFleet) -> None:
    await stepped.start("b1")
    ledger_id = await stepped.store(ledger({0: ["b1"]}, 1, 1, last_entry_id=9, length=1))
    bookie, copies, keys = stepped.bookies["b1"], reader(stepped, "b1", silence_pause_s=3600), credentials(ledger_id)
    bookie.hang("read")

    found = await stepped.finish(copies.read_all(["b1"] * 4, keys, 0))
    assert bookie.count("read") == 5, "one request for all four reads that got no answer"
    found += [await copies.read("b1", keys, entry_id) for entry_id in range(4, 10)]

    assert bookie.count("read") == 5, "no entry costs a further request"
    assert {copy.state for copy in found} == {CopyState.UNREACHABLE}
    assert all(copy.reason for copy in found)


async def test_reads_that_begin_while_a_silent_bookie_is_asked_again_share_the_outcome(stepped: SteppedFleet) -> None:
    await stepped.start("b1")
    ledger_id = await stepped.store(ledger({0: ["b1"]}, 1, 1, last_entry_id=9, length=1))
    bookie, copies, keys = stepped.bookies["b1"], reader(stepped, "b1", silence_pause_s=3600), credentials(ledger_id)
    held = bookie.hold("read")
    first = asyncio.create_task(copies.read("b1", keys, 0))
    await held.arrived(1)
    await stepped.advance(TIMEOUT_S)
    await stepped.advance(QUICK.backoff_max_s)
    await held.arrived(2)

    assert (await copies.read("b1", keys, 1, attempts_max=1)).state is CopyState.UNREACHABLE
    assert not first.done(), "a caller that has other bookies to ask does not wait"
    assert (await stepped.finish(copies.read("b1", keys, 2))).state is CopyState.UNREACHABLE
    assert (await first).state is CopyState.UNREACHABLE
    assert bookie.count("read") == 2


async def test_a_silent_bookie_is_asked_again_by_one_read_after_the_pause(stepped: SteppedFleet) -> None:
    await stepped.start("b1")
    ledger_id = await stepped.store(ledger({0: ["b1"]}, 1, 1, last_entry_id=9, length=1))
    bookie, copies, keys = stepped.bookies["b1"], reader(stepped, "b1", silence_pause_s=60), credentials(ledger_id)
    bookie.hang("read")
    await stepped.finish(copies.read("b1", keys, 0))
    assert bookie.count("read") == 2
    await stepped.advance(60)
    found = await stepped.finish(copies.read_all(["b1"] * 10, keys, 0))
    assert {copy.state for copy in found} == {CopyState.UNREACHABLE}
    assert bookie.count("read") == 3

    bookie.obey()
    await stepped.advance(60)
    assert (await copies.read("b1", keys, 0)).state is CopyState.PRESENT
    found = await copies.read_all(["b1"] * 10, keys, 0)
    assert {copy.state for copy in found} == {CopyState.PRESENT}


async def test_a_refusal_stays_the_reason_while_one_read_asks_again(stepped: SteppedFleet) -> None:
    await stepped.start("b1")
    ledger_id = await stepped.store(ledger({0: ["b1"]}, 1, 1, last_entry_id=9, length=1))
    bookie, copies, keys = stepped.bookies["b1"], reader(stepped, "b1", silence_pause_s=60), credentials(ledger_id)
    bookie.reject_client("read")
    refused = await stepped.finish(copies.read("b1", keys, 0))
    assert refused.is_refused
    bookie.obey()
    held = bookie.hold("read")
    await stepped.advance(60)
    asking = asyncio.create_task(copies.read("b1", keys, 0))
    await held.arrived(1)
    assert await copies.read("b1", keys, 1) == refused
    held.release()
    assert (await asking).state is CopyState.PRESENT
    assert (await copies.read("b1", keys, 1)).state is CopyState.PRESENT


async def test_one_time_out_is_not_silence(stepped: SteppedFleet) -> None:
    await stepped.start("b1")
    ledger_id = await stepped.store(ledger({0: ["b1"]}, 1, 1, last_entry_id=9, length=1))
    copies, keys = reader(stepped, "b1", silence_pause_s=3600), credentials(ledger_id)
    stepped.bookies["b1"].hang("read", times=3)
    found = await stepped.finish(copies.read_all(["b1"] * 3, keys, 0))
    assert {copy.state for copy in found} == {CopyState.PRESENT}


async def test_a_bookie_without_a_connection_gets_the_attempts_that_a_restart_takes(fleet: Fleet) -> None:
    await fleet.start("b1")
    ledger_id = await fleet.store(ledger({0: ["b1"]}, 1, 1, last_entry_id=9, length=1))
    bookie, copies, keys = fleet.bookies["b1"], reader(fleet, "b1", silence_pause_s=3600), credentials(ledger_id)
    bookie.drop("read", times=QUICK.attempts_max - 1)
    assert (await copies.read("b1", keys, 0)).state is CopyState.PRESENT
    bookie.drop("read", times=QUICK.attempts_max)
    asked = bookie.count("read")
    assert (await copies.read("b1", keys, 0)).state is CopyState.UNREACHABLE
    assert bookie.count("read") == asked + QUICK.attempts_max


async def test_a_read_that_was_cancelled_leaves_the_asking_to_the_others(stepped: SteppedFleet) -> None:
    await stepped.start("b1")
    ledger_id = await stepped.store(ledger({0: ["b1"]}, 1, 1, last_entry_id=9, length=1))
    bookie, copies, keys = stepped.bookies["b1"], reader(stepped, "b1", silence_pause_s=3600), credentials(ledger_id)
    held = bookie.hold("read")
    first = asyncio.create_task(copies.read("b1", keys, 0))
    await held.arrived(1)
    await stepped.advance(TIMEOUT_S)
    await stepped.advance(QUICK.backoff_max_s)
    await held.arrived(2)
    second = asyncio.create_task(copies.read("b1", keys, 1))
    await asyncio.sleep(0)
    bookie.obey()
    first.cancel()
    assert (await second).state is CopyState.PRESENT


async def test_a_bookie_that_is_not_registered_is_not_asked(fleet: Fleet) -> None:
    await fleet.start("b1")
    assert (await reader(fleet).read("b1", credentials(1), 0)).reason == "not registered"
    assert fleet.bookies["b1"].requests == []


async def test_a_copy_of_another_entry_is_corrupt(fleet: Fleet) -> None:
    await fleet.start("b1")
    ledger_id = await fleet.store(ledger({0: ["b1"]}, 1, 1, last_entry_id=3, length=1))
    stored = fleet.bookies["b1"].ledgers[ledger_id].entries
    stored[1] = stored[2]
    assert (await reader(fleet, "b1").read("b1", credentials(ledger_id), 1)).state is CopyState.CORRUPT


def test_metadata_of_old_releases_is_read_with_the_defaults() -> None:
    old = msgspec.structs.replace(ledger({0: ["b1"]}, 1, 1), digest_type=None, password=None)
    keys = credentials_of(9, old)
    assert keys.master_key == master_key(b"")
    assert len(keys.codec.encode(0, -1, 0, b"")) == 40, "CRC32 takes eight bytes"
