"""Reads from disk: all of a tick are answered, and a limited number of bodies is in memory at once."""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from runtime.bookie.reads import ReadBatcher, ReadJob, ReadOutcome
from runtime.net.loop import LaneWorkers
from runtime.protocol.status import Status
from storage.config import EngineConfig
from storage.filesystem import OsFileSystem
from storage.replay import checkpoint_now
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


async def test_many_reads_of_one_tick_are_answered_in_turns(tmp_path: Path) -> None:
    engine = open_engine(tmp_path, filesystem=OsFileSystem(), config=EngineConfig())
    engine.set_master_key(1, b"key")
    for entry_id in range(200):
        engine.add(1, entry_id, body_of(entry_id))
    checkpoint_now(engine)
    workers = WatchedWorkers()
    reads = ReadBatcher(workers)
    answered: list[tuple[int, Status, bytes | None, int]] = []

    def submit(entry_id: int) -> None:
        def done(outcome: ReadOutcome) -> None:
            answered.append((entry_id, outcome.status, outcome.body, len(workers.turns)))

        reads.submit(ReadJob(engine, 1, entry_id, False, engine.read_generation), done)

    for entry_id in range(201):
        submit(entry_id)
    await reads.read(ReadJob(engine, 1, 0, False, engine.read_generation))
    assert [entry_id for entry_id, *_ in answered] == list(range(201))
    assert all(answer[1:3] == (Status.OK, body_of(answer[0])) for answer in answered[:200])
    assert answered[200][1:3] == (Status.NO_SUCH_ENTRY, None)
    assert max(workers.turns) <= 64
    assert answered[0][3] == 1, "answered, and free to be forgotten, before the next turn begins"
    await workers.close()
    engine.close()
