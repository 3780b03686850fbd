"""Compactions that run side by side fill no disk together that each of them found room on."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from bkctl.runtime.bookie.collection.logs import CompactionRoom
from bkctl.runtime.net.loop import LaneWorkers
from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.disk_room import DiskRoom
from bkctl.storage.ports import DiskSpace


class DiskOf100Bytes(OsFileSystem):
    """Nobody writes anything: what is free stays so."""

    def space(self, path: str) -> DiskSpace:
        return DiskSpace(total_bytes=100, usable_bytes=100, filesystem_id=1)


class Claims:
    """Claims in the order in which they were let in."""

    def __init__(self, directory: Path, workers: LaneWorkers) -> None:
        self.room = CompactionRoom(DiskRoom(DiskOf100Bytes(), [str(directory)], 0), workers)
        self.running: list[int] = []
        self._ends: dict[int, asyncio.Event] = {}

    def begin(self, size_bytes: int) -> asyncio.Task[None]:
        self._ends[size_bytes] = asyncio.Event()
        return asyncio.create_task(self._claim(size_bytes))

    async def end(self, size_bytes: int) -> None:
        self._ends[size_bytes].set()
        await self.rest()

    async def rest(self) -> None:
        """Until nothing changes any more without something from outside."""
        for _ in range(20):
            await self.room._workers.run("compaction", int)

    async def _claim(self, size_bytes: int) -> None:
        async with self.room.claimed(size_bytes):
            self.running.append(size_bytes)
            await self._ends[size_bytes].wait()
        self.running.remove(size_bytes)


@pytest.fixture
async def claims(tmp_path: Path) -> Claims:
    return Claims(tmp_path, LaneWorkers())


async def test_who_finds_the_room_taken_waits_for_it(claims: Claims) -> None:
    tasks = [claims.begin(size_bytes) for size_bytes in (60, 30, 50, 5)]
    await claims.rest()
    assert claims.running == [60, 30]  # in their order: a large log is not passed by small ones for ever
    await claims.end(30)
    assert claims.running == [60]
    await claims.end(60)
    assert claims.running == [50, 5]
    await claims.end(50)
    await claims.end(5)
    await asyncio.gather(*tasks)
    await claims.room._workers.close()


async def test_who_would_find_no_room_without_the_others_either_is_told_so(claims: Claims) -> None:
    alone = claims.begin(101)
    with pytest.raises(OSError, match="are needed") as caught:
        await alone
    assert caught.value.errno == errno.ENOSPC
    first = claims.begin(60)
    await claims.rest()
    large, none = claims.begin(101), claims.begin(0)
    await claims.rest()
    assert claims.running == [60, 0]  # who needs none waits for nobody
    await claims.end(60)
    with pytest.raises(OSError, match="are needed"):
        await large
    await claims.end(0)
    await asyncio.gather(first, none)
    await claims.room._workers.close()


async def test_who_stops_waiting_lets_the_next_one_in(claims: Claims) -> None:
    first = claims.begin(60)
    await claims.rest()
    second, third = claims.begin(50), claims.begin(40)
    await claims.rest()
    second.cancel()
    await claims.rest()
    assert claims.running == [60, 40]
    await claims.end(60)
    await claims.end(40)
    await asyncio.gather(first, third)
    await claims.room._workers.close()
