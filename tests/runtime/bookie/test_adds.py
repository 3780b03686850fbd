"""Adds while the write cache is full: they wait, go on in order, or are refused with nothing stored and journaled."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from runtime.bookie.adds import AddPath, PendingAdd
from runtime.bookie.group_commit import GroupCommit
from runtime.bookie.ledger_handles import LedgerHandles
from runtime.net.loop import LaneWorkers
from runtime.protocol.status import Status
from storage.ledger_storage import LedgerStorage
from storage.replay import checkpoint_now
from tests.storage.engines import KEY, checkpoint, config_below, entry, open_storage

PAYLOAD = bytes(4000)


class ManualClock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._timers: list[tuple[float, Any]] = []

    def monotonic_ns(self) -> int:
        return int(self.now_s * 1e9)

    def call_later(self, seconds: float, callback: Any) -> None:
        self._timers.append((self.now_s + seconds, callback))

    def advance(self, seconds: float) -> None:
        self.now_s += seconds
        due = [callback for at_s, callback in self._timers if at_s <= self.now_s]
        self._timers = [timer for timer in self._timers if timer[0] > self.now_s]
        for callback in due:
            callback()


class Adder:
    def __init__(self, root: Path, *, ledgers: int = 1) -> None:
        self.config = config_below(root, ledgers=ledgers)
        self.storage = open_storage(self.config)
        self.storage.replay()
        self.engine = self.storage.engine_of(5)
        self.clock = ManualClock()
        self.answers: dict[int, Status] = {}
        self.checkpoint_requests = 0
        self._workers = LaneWorkers()
        self._journal = GroupCommit(
            self.storage.journals[0], self._workers, "journal-0", self.config.journal, on_disk_room=lambda _: None
        )
        self._handles = handles = LedgerHandles(self.storage, [self._journal])
        clock: Any = self.clock
        self.path = AddPath(handles, clock, 10.0, self._note_request)
        self._commits = asyncio.get_running_loop().create_task(self._journal.run())

    def respond_add(self, txn_id: int, ledger_id: int, entry_id: int, status: Status) -> None:
        self.answers[entry_id] = status

    def add(self, entry_id: int, payload: bytes = PAYLOAD, *, ledger_id: int = 5, key: bytes = KEY) -> None:
        self.path.add(PendingAdd(self, 1, ledger_id, entry_id, key, entry(ledger_id, entry_id, payload), False))

    def delete(self) -> None:
        """Delete the ledger, as the collector does."""
        self.engine.delete_ledger(5)
        self._handles.forget(5)

    async def journaled(self) -> None:
        """Wait until all that was journaled so far is durable."""
        await self._journal.barrier()

    def fill(self) -> int:
        """Add until one has to wait; returns its id."""
        entry_id = 0
        while self.checkpoint_requests == 0:
            self.add(entry_id)
            entry_id += 1
        return entry_id - 1

    def checkpoint(self) -> None:
        checkpoint_now(self.engine)
        self.path.retry_waiting()

    def _note_request(self) -> None:
        self.checkpoint_requests += 1

    async def restarted(self) -> LedgerStorage:
        """After a kill, once all that was journaled is on disk: nothing but the journal speaks for the entries."""
        self._journal.stop()
        await self._commits
        await self._workers.close()
        self.storage.close()
        self.storage = open_storage(self.config)
        self.storage.replay()
        return self.storage


@pytest.fixture
async def adder(tmp_path: Path) -> AsyncIterator[Adder]:
    adder = Adder(tmp_path)
    yield adder
    await adder.restarted()
    adder.storage.close()


async def test_an_add_that_waits_goes_on_when_there_is_room(adder: Adder) -> None:
    waiting = adder.fill()
    adder.add(waiting + 1, b"small enough, but behind the other")
    assert adder.engine.find_cached(5, waiting) is None
    assert adder.engine.find_cached(5, waiting + 1) is None
    adder.clock.advance(9)
    adder.checkpoint()
    adder.clock.advance(9)
    storage = await adder.restarted()
    assert adder.answers == dict.fromkeys(range(waiting + 2), Status.OK)
    assert storage.engines[0].list_entries(5) == list(range(waiting + 2))


async def test_an_add_that_waits_too_long_is_refused_and_nowhere(adder: Adder) -> None:
    """dbStorage_maxThrottleTimeMs; nothing of it was journaled."""
    waiting = adder.fill()
    adder.clock.advance(5)
    adder.add(waiting + 1)
    adder.clock.advance(5)
    assert adder.answers[waiting] is Status.TOO_MANY_REQUESTS
    assert waiting + 1 not in adder.answers
    adder.clock.advance(5)
    assert adder.answers[waiting + 1] is Status.TOO_MANY_REQUESTS
    adder.checkpoint()
    adder.add(waiting + 2)
    storage = await adder.restarted()
    assert storage.engines[0].list_entries(5) == [*range(waiting), waiting + 2]


async def test_a_full_directory_holds_up_no_other(tmp_path: Path) -> None:
    adder = Adder(tmp_path, ledgers=2)
    waiting = adder.fill()
    adder.add(1000, ledger_id=4)
    adder.add(1001, b"small, but behind", ledger_id=7)
    assert adder.storage.engine_of(4).find_cached(4, 1000) is not None
    assert adder.storage.engine_of(7).find_cached(7, 1001) is None, "in the directory of the one that waits"
    adder.clock.advance(10)
    assert [adder.answers[entry_id] for entry_id in (waiting, 1001)] == [Status.TOO_MANY_REQUESTS] * 2
    storage = await adder.restarted()
    assert adder.answers[1000] is Status.OK
    assert storage.engine_of(4).list_entries(4) == [1000]
    assert storage.engine_of(7).list_entries(7) == []
    storage.close()


async def test_the_id_of_a_deleted_ledger_is_used_again_when_no_replay_can_bring_it_back(adder: Adder) -> None:
    """H6: records of both lives in one journal would mix them; with another key they would stop the boot."""
    adder.add(0)
    await adder.journaled()
    adder.delete()
    adder.add(1, key=b"other")
    assert adder.engine.ledger(5) is None
    assert adder.checkpoint_requests == 1
    checkpoint(adder.storage)
    adder.path.retry_waiting()
    await adder.journaled()
    assert adder.answers == {0: Status.OK, 1: Status.OK}
    storage = await adder.restarted()
    assert storage.engines[0].list_entries(5) == [1]
    row = storage.engines[0].ledger(5)
    assert row is not None
    assert row.master_key == b"other"


async def test_the_id_of_a_deleted_ledger_waits_for_marks_that_cover_its_deletion(adder: Adder) -> None:
    """A checkpoint that was under way when the ledger was deleted has noted its marks before."""
    adder.add(0)
    await adder.journaled()
    running = adder.storage.begin_checkpoint()
    adder.delete()
    adder.storage.write_checkpoint(running)
    adder.storage.end_checkpoint(running)
    adder.add(1)
    assert adder.engine.ledger(5) is None
    checkpoint(adder.storage)
    adder.path.retry_waiting()
    storage = await adder.restarted()
    assert storage.engines[0].list_entries(5) == [1]


async def test_writes_that_stop_end_the_waiting(adder: Adder) -> None:
    waiting = adder.fill()
    adder.path.refuse_waiting()
    assert adder.answers[waiting] is Status.READ_ONLY


async def test_an_entry_that_can_never_fit_stops_nobody(adder: Adder) -> None:
    """H17: in Java it takes the room that it does not fit into, and all later adds are refused until a restart."""
    for number in range(50):
        adder.add(number, os.urandom(40 * 1024))
        assert adder.answers[number] is Status.BAD_REQUEST
    assert adder.checkpoint_requests == 0
    adder.add(50)
    storage = await adder.restarted()
    assert adder.answers[50] is Status.OK
    assert storage.engines[0].list_entries(5) == [50]
