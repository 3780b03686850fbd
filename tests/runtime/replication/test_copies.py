"""What one answer is worth, and that a silent bookie costs its back-off once."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from runtime.client.ports import credentials_of
from runtime.protocol.digest import master_key
from runtime.protocol.status import Status
from runtime.replication.byte_window import ByteWindow
from runtime.replication.copies import CopyReader, CopyState
from tests.runtime.client.world import credentials
from tests.runtime.replication.samples import ledger
from tests.runtime.replication.stage import QUICK, Stage


def reader(stage: Stage, *registered: str) -> CopyReader:
    window = ByteWindow(1_000_000, 100)
    return CopyReader(stage.client.ports.bookies, stage.client.ports.clock, window, QUICK, registered.__contains__)


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
    stage: Stage, status: Status, state: CopyState, requests: int
) -> None:
    await stage.start("b1")
    stage.bookies["b1"].refuse("read", status)

    copy = await reader(stage, "b1").read("b1", credentials(1), 0)

    assert (copy.state, stage.bookies["b1"].count("read")) == (state, requests)
    assert copy.reason
    assert not copy.reason.startswith("bookie")


async def test_a_silent_bookie_is_asked_often_once_and_then_once_until_it_answers(stage: Stage) -> None:
    await stage.start("b1")
    ledger_id = await stage.store(ledger({0: ["b1"]}, 1, 1, last_entry_id=3, length=1))
    bookie, copies, keys = stage.bookies["b1"], reader(stage, "b1"), credentials(ledger_id)
    bookie.drop("read")
    for expected in (QUICK.attempts_max, QUICK.attempts_max + 1):
        assert (await copies.read("b1", keys, 0)).state is CopyState.UNREACHABLE
        assert bookie.count("read") == expected
    bookie.obey()
    assert (await copies.read("b1", keys, 0)).state is CopyState.PRESENT
    bookie.drop("read", times=2)
    assert (await copies.read("b1", keys, 0)).state is CopyState.PRESENT


async def test_a_silent_bookie_is_asked_for_one_entry_at_a_time(stage: Stage) -> None:
    await stage.start("b1")
    ledger_id = await stage.store(ledger({0: ["b1"]}, 1, 1, last_entry_id=9, length=1))
    bookie, copies, keys = stage.bookies["b1"], reader(stage, "b1"), credentials(ledger_id)
    bookie.drop("read")
    await copies.read("b1", keys, 0)
    for round_number in (1, 2):
        found = await asyncio.gather(*(copies.read("b1", keys, entry_id) for entry_id in range(10)))
        assert {copy.state for copy in found} == {CopyState.UNREACHABLE}
        assert all(copy.reason for copy in found)
        assert bookie.count("read") == QUICK.attempts_max + round_number
    bookie.obey()
    assert (await copies.read("b1", keys, 0)).state is CopyState.PRESENT
    found = await asyncio.gather(*(copies.read("b1", keys, entry_id) for entry_id in range(10)))
    assert {copy.state for copy in found} == {CopyState.PRESENT}


async def test_a_bookie_that_is_not_registered_is_not_asked(stage: Stage) -> None:
    await stage.start("b1")
    assert (await reader(stage).read("b1", credentials(1), 0)).reason == "not registered"
    assert stage.bookies["b1"].requests == []


async def test_a_copy_of_another_entry_is_corrupt(stage: Stage) -> None:
    await stage.start("b1")
    ledger_id = await stage.store(ledger({0: ["b1"]}, 1, 1, last_entry_id=3, length=1))
    stored = stage.bookies["b1"].ledgers[ledger_id].entries
    stored[1] = stored[2]
    assert (await reader(stage, "b1").read("b1", credentials(ledger_id), 1)).state is CopyState.CORRUPT


def test_metadata_of_old_releases_is_read_with_the_defaults() -> None:
    old = msgspec.structs.replace(ledger({0: ["b1"]}, 1, 1), digest_type=None, password=None)
    keys = credentials_of(9, old)
    assert keys.master_key == master_key(b"")
    assert len(keys.codec.encode(0, -1, 0, b"")) == 40, "CRC32 takes eight bytes"
