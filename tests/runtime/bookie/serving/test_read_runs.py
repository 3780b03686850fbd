"""A run of reads gets, read by read, the answers that the same reads get alone: for any mix of entries that are in a
cache, on disk, missing or damaged, in ledgers of every state."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from bkctl.runtime.protocol.messages import (
    BookieAnswer,
    BookieCall,
    LongPollRead,
    ReadAnswer,
    ReadCall,
    ReadRun,
    ReadRunAnswer,
)
from bkctl.runtime.protocol.status import Status
from bkctl.storage.filenames import entry_log_file_name
from tests.runtime.bookie.handler_bookie import Bookie
from tests.runtime.protocol.test_v3_reads import run_of
from tests.storage.engines import KEY, checkpoint, config_below, entry, open_storage

LEDGER, UNKNOWN = 7, 8
ENTRY_COUNT = 30
PLACES = ("missing", "disk", "disk", "disk", "damaged", "rewritten", "cache")
PAYLOADS = (0, 10, 10, 10, 5000)
"""Sizes: the largest is longer than the first read of an entry."""

Answer = tuple[Status, bytes | None, int | None]


class AnsweredReads:
    """A connection that takes the answers to one run or to one read, in order."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def answer(self, call: BookieCall, answer: BookieAnswer) -> None:
        if isinstance(call, ReadCall):
            self.answers.append(_alone(answer))
        else:
            assert isinstance(call, ReadRun)
            self._take(call, answer)
            if call.entry_ids:
                return
        self.done.set_result(None)

    def _take(self, run: ReadRun, answer: BookieAnswer) -> None:
        if isinstance(answer, Status):
            self.answers += [(answer, None, None)] * len(run.cut(len(run.entry_ids)).entry_ids)
            return
        assert isinstance(answer, ReadRunAnswer)
        if answer.status is Status.OK:
            assert len(run.cut(len(answer.bodies)).entry_ids) == len(answer.bodies) > 0
            self.answers += [(Status.OK, body, answer.lac) for body in answer.bodies]
        else:
            run.cut(1)
            self.answers.append((answer.status, None, answer.lac))

    def suspend(self, _call: LongPollRead, _drop: Callable[[], None]) -> bool:
        raise AssertionError("no poll waits")

    def resume(self, _call: LongPollRead) -> None:
        raise AssertionError("no poll waits")


def _alone(answer: BookieAnswer) -> Answer:
    if isinstance(answer, Status):
        return answer, None, None
    assert isinstance(answer, ReadAnswer)
    return answer.status, answer.body, answer.max_last_add_confirmed


async def _asked(bookie: Bookie, call: ReadCall | ReadRun) -> list[Answer]:
    connection = AnsweredReads()
    bookie.handler.handle(connection, call)
    async with asyncio.timeout(120):
        await connection.done
    return connection.answers


def _damage(bookie: Bookie, entry_id: int) -> None:
    """Write another entry id where the index says that the entry is."""
    location = bookie.engine.stored._locations.find(LEDGER, entry_id)
    assert location is not None
    path = os.path.join(bookie.engine.ledger_directory, entry_log_file_name(location.log_id))
    with open(path, "r+b") as log:
        log.seek(location.offset + 8)
        log.write((entry_id + 1000).to_bytes(8, "big"))


async def _fill(bookie: Bookie, chance: random.Random) -> None:
    """Entries in all places, then a state of the ledger."""
    engine = bookie.engine
    engine.rows.set_master_key(LEDGER, KEY)
    places = chance.choices(PLACES, k=ENTRY_COUNT)
    for entry_id, place in enumerate(places):
        if place in {"disk", "damaged", "rewritten"}:
            engine.add(LEDGER, entry_id, entry(LEDGER, entry_id, bytes(chance.choice(PAYLOADS))))
            if chance.random() < 0.1 or engine.is_filling_up:
                checkpoint(bookie.storage)
    checkpoint(bookie.storage)
    for entry_id, place in enumerate(places):
        if place == "damaged":
            _damage(bookie, entry_id)
        elif place in {"rewritten", "cache"}:
            engine.add(LEDGER, entry_id, entry(LEDGER, entry_id, b"newer"))
    if chance.random() < 0.3:
        engine.postpone_checkpoint()
    state = chance.choice(("plain", "plain", "fenced", "limbo", "incomplete index", "deleted"))
    if state == "fenced":
        assert await bookie.fence(LEDGER) in {Status.OK, Status.NO_SUCH_ENTRY, Status.IO_ERROR}
    elif state == "limbo":
        assert engine.set_limbo(LEDGER)
    elif state == "incomplete index":
        engine.negatives_are_unknown = True
    elif state == "deleted":
        engine.delete_ledger(LEDGER)


@pytest.mark.parametrize("seed", range(40))
async def test_a_run_is_answered_as_its_reads_alone(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    config = config_below(tmp_path)
    storage = open_storage(config)
    storage.replay()
    bookie = Bookie(storage, config.journal)
    try:
        await _fill(bookie, chance)
        for _ in range(6):
            ledger_id = UNKNOWN if chance.random() < 0.1 else LEDGER
            first, txn_id = chance.randrange(ENTRY_COUNT), chance.choice((1, -3))
            calls = [
                ReadCall(txn_id, ledger_id, entry_id, None, False)
                for entry_id in range(first, chance.randrange(first + 1, ENTRY_COUNT + 5))
            ]

            async def in_a_run(calls: list[ReadCall] = calls) -> list[Answer]:
                return await _asked(bookie, run_of(calls))

            async def alone(calls: list[ReadCall] = calls) -> list[Answer]:
                return [(await _asked(bookie, call))[0] for call in calls]

            ways = [in_a_run, alone]
            chance.shuffle(ways)
            assert (await ways[0]()) == (await ways[1]())
    finally:
        await bookie.close()
