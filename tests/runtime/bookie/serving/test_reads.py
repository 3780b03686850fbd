"""Reads from disk: all of a tick are answered, and a limited number of bodies is in memory at once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import pytest

from bkctl.runtime.bookie.serving import reads
from bkctl.runtime.bookie.serving.reads import READS_LANE, ReadBatcher, ReadOutcome, new_read
from bkctl.runtime.net.loop import LaneWorkers
from bkctl.runtime.protocol.status import Status
from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.config import EngineConfig
from bkctl.storage.engine.measures import ReadWatch
from bkctl.storage.engine.replay import checkpoint_now
from tests.storage.engines import open_engine

_HEAD = struct.Struct(">qqqq")

P = ParamSpec("P")
T = TypeVar("T")


def body_of(entry_id: int) -> bytes:
    return _HEAD.pack(1, entry_id, entry_id - 1, 4) + b"body"


class WatchedWorkers(LaneWorkers):
    """Real lanes; notes how many jobs each turn has."""

    def __init__(self) -> None:
        super().__init__()
        self.turns: list[int] = []

    def run(self, lane: str, function: Callable[P, T], /, *arguments: P.args, **keywords: P.kwargs) -> Awaitable[T]:
        jobs: Any = arguments[0]
        self.turns.append(len(jobs))
        return super().run(lane, function, *arguments, **keywords)


class OpenEngine:
    """A directory with the entries 0 to ``entry_count`` - 1 of ledger 1 on disk, and its reads."""

    def __init__(self, root: Path, entry_count: int, config: EngineConfig) -> None:
        self.engine = open_engine(root, filesystem=OsFileSystem(), config=config)
        self.engine.rows.set_master_key(1, b"key")
        for entry_id in range(entry_count):
            self.engine.add(1, entry_id, body_of(entry_id))
        checkpoint_now(self.engine)
        self.workers = WatchedWorkers()
        self.reads = ReadBatcher(self.workers, READS_LANE)

    def read(self, entry_id: int) -> Awaitable[ReadOutcome]:
        return self.reads.read(new_read(self.engine, 1, entry_id, needs_last_entry=False))


@contextlib.asynccontextmanager
async def filled_engine(root: Path, entry_count: int, config: EngineConfig | None = None) -> AsyncIterator[OpenEngine]:
    filled = OpenEngine(root, entry_count, config or EngineConfig())
    yield filled
    await filled.workers.close()
    filled.engine.close()


async def test_many_reads_of_one_tick_are_answered_in_turns(tmp_path: Path) -> None:
    answered: list[tuple[int, Status, bytes | None, int]] = []
    async with filled_engine(tmp_path, 200) as filled:

        def submit(entry_id: int) -> None:
            def done(outcome: ReadOutcome) -> None:
                answered.append((entry_id, outcome.status, outcome.body, len(filled.workers.turns)))

            filled.reads.submit(new_read(filled.engine, 1, entry_id, needs_last_entry=False), done)

        for entry_id in range(201):
            submit(entry_id)
        await filled.read(0)
        assert [entry_id for entry_id, *_ in answered] == list(range(201))
        assert all(answer[1:3] == (Status.OK, body_of(answer[0])) for answer in answered[:200])
        assert answered[200][1:3] == (Status.NO_SUCH_ENTRY, None)
        assert max(filled.workers.turns) <= 64
        assert answered[0][3] == 1, "answered, and free to be forgotten, before the next turn begins"


async def test_errors_of_one_file_are_one_line_in_a_while(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A log that is gone may have held a million entries, and readers ask for them again and again."""
    engine = open_engine(tmp_path, filesystem=OsFileSystem(), config=EngineConfig())
    engine.rows.set_master_key(1, b"key")
    for entry_id in range(200):
        engine.add(1, entry_id, body_of(entry_id))
    checkpoint_now(engine)
    (tmp_path / "0.log").unlink()
    workers = LaneWorkers()
    reads = ReadBatcher(workers, READS_LANE)
    for entry_id in range(3, 103):
        outcome = await reads.read(new_read(engine, 1, entry_id, needs_last_entry=False))
        assert outcome.status is Status.IO_ERROR
    assert (await reads.read(new_read(engine, 1, -1, needs_last_entry=True))).status is Status.IO_ERROR
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(lines) == 1
    assert lines[0].startswith(f"cannot read ledger 1 entry 3: {tmp_path}/0.log: entry 1:3 at offset")
    reads.close()
    assert caplog.records[-1].getMessage() == f"100 more errors in 10 s: {tmp_path}/0.log"
    await workers.close()
    engine.close()


async def test_reads_are_answered_even_if_their_turn_ends_by_a_defect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(*_: object) -> None:
        raise ValueError("a defect")

    async with filled_engine(tmp_path, 100) as filled:
        monkeypatch.setattr(reads, "read_all", find)
        outcomes = await asyncio.wait_for(asyncio.gather(*map(filled.read, range(100))), 60)
    assert {outcome.status for outcome in outcomes} == {Status.IO_ERROR}


async def test_a_read_that_cannot_be_answered_leaves_the_others_their_answers(tmp_path: Path) -> None:
    told: list[Status] = []

    def refuse_data(outcome: ReadOutcome) -> None:
        told.append(outcome.status)
        if outcome.status is Status.OK:
            raise ValueError("a defect")

    async with filled_engine(tmp_path, 100) as filled:
        before = filled.read(0)
        filled.reads.submit(new_read(filled.engine, 1, 1, needs_last_entry=False), refuse_data)
        outcomes = await asyncio.wait_for(asyncio.gather(before, *map(filled.read, range(2, 100))), 60)
    assert {outcome.status for outcome in outcomes} == {Status.OK}
    assert told == [Status.OK, Status.IO_ERROR], "its client must not wait for ever"


async def test_a_reader_that_goes_through_a_ledger_asks_the_disk_once_in_a_while(tmp_path: Path) -> None:
    async with filled_engine(tmp_path, 200, EngineConfig(read_ahead_count_max=50)) as filled:
        for entry_id in range(200):
            if filled.engine.find_cached(1, entry_id) is None:
                assert (await filled.read(entry_id)).body == body_of(entry_id)
            assert filled.engine.find_cached(1, entry_id) == body_of(entry_id)
        assert len(filled.workers.turns) == 4


async def test_reads_of_one_tick_share_what_the_first_of_them_brings(tmp_path: Path) -> None:
    """A client asks for the entries of a range at once; none of them is in the cache when the others are asked for."""
    async with filled_engine(tmp_path, 100) as filled:
        engine = filled.engine
        opened: list[int] = []
        read_run, read = engine.stored.read_run, engine.stored.read

        def noted_read_run(
            ledger_id: int, entry_id: int, count_max: int, bytes_max: int, watch: ReadWatch
        ) -> list[bytes]:
            opened.append(entry_id)
            return read_run(ledger_id, entry_id, count_max, bytes_max, watch)

        def noted_read(ledger_id: int, entry_id: int, watch: ReadWatch) -> bytes | None:
            opened.append(entry_id)
            return read(ledger_id, entry_id, watch)

        engine.stored.read_run = noted_read_run  # type: ignore[method-assign,assignment]
        engine.stored.read = noted_read  # type: ignore[method-assign,assignment]
        asked = [filled.read(entry_id) for entry_id in range(30, 70)]
        assert [(await outcome).body for outcome in asked] == [body_of(entry_id) for entry_id in range(30, 70)]
        assert opened == [30, 31], "31 follows 30, and that is what reads on"


async def test_what_was_read_ahead_does_not_hide_a_newer_add(tmp_path: Path) -> None:
    """H18, from the other side: an add that comes while the lane reads."""
    async with filled_engine(tmp_path, 10) as filled:
        engine = filled.engine
        asked = filled.read(0)
        engine.add(1, 5, body_of(5) + b"newer")
        await asked
        assert engine.find_cached(1, 4) == body_of(4)
        assert engine.find_cached(1, 5) == body_of(5) + b"newer"
        checkpoint_now(engine)
        assert engine.find_cached(1, 5) is None
        assert engine.stored.read(1, 5) == body_of(5) + b"newer"
