"""Adds while the write cache is full: they wait, go on in order, or are refused with nothing stored and journaled."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from bkctl.runtime.bookie.serving.adds import AddPath
from bkctl.runtime.bookie.serving.group_commit import GroupCommit
from bkctl.runtime.bookie.serving.ledger_handles import LedgerHandles
from bkctl.runtime.net.loop import LaneWorkers, LoopClock
from bkctl.runtime.protocol.messages import AddRun, BookieAnswer, BookieCall
from bkctl.runtime.protocol.status import Status
from bkctl.storage.engine.ledger_storage import LedgerStorage
from bkctl.storage.engine.replay import checkpoint_now
from tests.runtime.bookie.committing import add_run
from tests.storage.engines import KEY, checkpoint, config_below, open_storage

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
        self.answered: list[list[int]] = []
        self.checkpoint_requests = 0
        self._workers = LaneWorkers()
        self._journal = GroupCommit(
            self.storage.journals[0], self._workers, "journal-0", self.config.journal, on_disk_room=lambda _: None
        )
        self._handles = handles = LedgerHandles(self.storage, [self._journal], LoopClock())
        clock: Any = self.clock
        self.path = AddPath(handles, clock, 10.0, self._note_request)
        self._commits = asyncio.get_running_loop().create_task(self._journal.run())

    def answer(self, call: BookieCall, answer: BookieAnswer) -> None:
        assert isinstance(call, AddRun)
        assert isinstance(answer, Status)
        self.answered.append(list(call.entry_ids))
        self.answers.update(dict.fromkeys(call.entry_ids, answer))

    def add(self, entry_id: int, payload: bytes = PAYLOAD, *, ledger_id: int = 5, key: bytes = KEY) -> None:
        self.path.add(self, add_run(ledger_id, entry_id, payload=payload, key=key))

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
    assert storage.engines[0].stored.list_entries(5) == list(range(waiting + 2))


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
    assert storage.engines[0].stored.list_entries(5) == [*range(waiting), waiting + 2]


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
    assert storage.engine_of(4).stored.list_entries(4) == [1000]
    assert storage.engine_of(7).stored.list_entries(7) == []
    storage.close()


async def test_the_id_of_a_deleted_ledger_is_used_again_when_no_replay_can_bring_it_back(adder: Adder) -> None:
    """H6: records of both lives in one journal would mix them; with another key they would stop the boot."""
    adder.add(0)
    await adder.journaled()
    adder.delete()
    adder.add(1, key=b"other")
    assert adder.engine.rows.find(5) is None
    assert adder.checkpoint_requests == 1
    checkpoint(adder.storage)
    adder.path.retry_waiting()
    await adder.journaled()
    assert adder.answers == {0: Status.OK, 1: Status.OK}
    storage = await adder.restarted()
    assert storage.engines[0].stored.list_entries(5) == [1]
    row = storage.engines[0].rows.find(5)
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
    assert adder.engine.rows.find(5) is None
    checkpoint(adder.storage)
    adder.path.retry_waiting()
    storage = await adder.restarted()
    assert storage.engines[0].stored.list_entries(5) == [1]


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
    assert storage.engines[0].stored.list_entries(5) == [50]


async def test_a_run_is_stored_as_a_whole(adder: Adder) -> None:
    adder.path.add(adder, add_run(5, *range(100)))
    assert adder.engine.last_add_confirmed(5) == 98
    storage = await adder.restarted()
    assert adder.answers == dict.fromkeys(range(100), Status.OK)
    assert storage.engines[0].stored.list_entries(5) == list(range(100))


@pytest.mark.parametrize("is_rebuilding", [False, True])
async def test_the_lac_of_a_ledger_that_an_earlier_process_wrote_is_read_from_disk(
    adder: Adder, *, is_rebuilding: bool
) -> None:
    """Of a new ledger nothing is stored, unless the index may be incomplete: its first read needs no disk."""
    adder.engine.negatives_are_unknown = is_rebuilding
    adder.add(0)
    assert adder.engine.last_add_confirmed(5) == (None if is_rebuilding else -1)
    storage = await adder.restarted()
    assert storage.engine_of(5).last_add_confirmed(5) is None, "what is on disk may say more"


async def test_what_is_wrong_with_one_add_of_a_run_is_the_answer_to_that_one_alone(adder: Adder) -> None:
    run = add_run(5, *range(10))
    run.bodies[3] = run.bodies[3][:23]
    run.bodies[4] = run.bodies[5]  # names another entry
    run.entry_ids[7] = -1
    run.bodies[8] += os.urandom(40 * 1024)  # can never fit
    adder.path.add(adder, run)
    storage = await adder.restarted()
    refused = dict.fromkeys((3, 4, -1, 8), Status.BAD_REQUEST)
    assert adder.answers == dict.fromkeys((0, 1, 2, 5, 6, 9), Status.OK) | refused
    assert storage.engines[0].stored.list_entries(5) == [0, 1, 2, 5, 6, 9]


async def test_a_long_run_of_wrong_adds_is_refused_add_by_add(adder: Adder) -> None:
    run = add_run(5, *range(4000))
    run.bodies[1:] = run.bodies[:1] * 3999  # all name entry 0
    adder.path.add(adder, run)
    await adder.journaled()
    assert adder.answers == {0: Status.OK} | dict.fromkeys(range(1, 4000), Status.BAD_REQUEST)


async def test_a_run_that_does_not_fit_is_stored_as_far_as_it_does_and_the_rest_waits(adder: Adder) -> None:
    adder.path.add(adder, add_run(5, *range(100), payload=PAYLOAD))
    stored = sum(adder.engine.find_cached(5, entry_id) is not None for entry_id in range(100))
    assert 0 < stored < 100
    assert adder.checkpoint_requests == 1
    adder.path.add(adder, add_run(5, 100, 101))
    while len(adder.answers) < 102:
        await adder.journaled()
        adder.checkpoint()
    storage = await adder.restarted()
    assert adder.answers == dict.fromkeys(range(102), Status.OK)
    assert storage.engines[0].stored.list_entries(5) == list(range(102))


async def test_a_run_that_waits_stays_one(adder: Adder) -> None:
    """Adds one by one cost several times as much, and this is when the bookie has most to do."""
    waiting = adder.fill()
    adder.path.add(adder, add_run(5, *range(waiting + 1, waiting + 101)))
    adder.checkpoint()
    await adder.journaled()
    assert adder.answered[-2:] == [[waiting], [*range(waiting + 1, waiting + 101)]]


@pytest.mark.parametrize(
    ("state", "status"),
    [("fenced", Status.FENCED), ("limbo", Status.UNKNOWN_LEDGER_STATE), ("key", Status.UNAUTHORIZED)],
)
async def test_a_ledger_that_takes_no_adds_refuses_a_run(adder: Adder, state: str, status: Status) -> None:
    adder.add(0)
    if state == "fenced":
        adder.engine.rows.set_fenced(5)
    elif state == "limbo":
        adder.engine.set_limbo(5)
    adder.path.add(adder, add_run(5, 1, 2, 3, key=b"other" if state == "key" else KEY))
    storage = await adder.restarted()
    assert adder.answers == {0: Status.OK} | dict.fromkeys((1, 2, 3), status)
    assert storage.engines[0].stored.list_entries(5) == [0]


async def test_an_add_of_a_run_drops_the_copy_that_was_read_before(adder: Adder) -> None:
    """H18: an older copy must not outlive what was stored since."""
    adder.add(0, b"old")
    adder.add(1, b"old")
    adder.checkpoint()
    for entry_id in (0, 1):
        body = adder.engine.stored.read(5, entry_id)
        assert body is not None
        adder.engine.remember_read(5, entry_id, [body], adder.engine.read_generation)
    adder.path.add(adder, add_run(5, 0, 1, payload=b"new"))
    adder.checkpoint()
    assert [adder.engine.find_cached(5, entry_id) for entry_id in (0, 1)] == [None, None]


async def test_an_add_that_cannot_be_dealt_with_leaves_the_rest_in_the_run(adder: Adder) -> None:
    """The connection counts what is left: nothing will answer it."""
    run = add_run(5, 0, 1, 2, 3)
    run.bodies[2] = "no bytes" * 10  # type: ignore[call-overload]
    run.bodies[3] = b"short"
    with pytest.raises(TypeError):
        adder.path.add(adder, run)
    assert run.entry_ids == [2, 3]
    await adder.journaled()
    assert adder.answers == dict.fromkeys((0, 1), Status.OK)
