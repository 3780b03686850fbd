"""Room for the copies of compactions that run side by side."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from runtime.bookie.collection.compaction_survivors import COMPACTION_LANE
from runtime.ports import Workers
from storage.disk_room import DiskRoom


class CompactionRoom:
    """What the compactions of all directories on one disk may fill it with, together.

    Room that was seen by one of them is not there for the next one.
    """

    def __init__(self, room: DiskRoom, workers: Workers) -> None:
        self._room = room
        self._workers = workers
        self._claimed_bytes = 0
        self._turn = asyncio.Lock()
        self._freed = asyncio.Event()

    @contextlib.asynccontextmanager
    async def claimed(self, needed_bytes: int) -> AsyncIterator[None]:
        """There is room for that much within the block. Waits for others to end where they have taken it.

        OSError: there would not be enough without them either. Nothing is asked for 0 bytes: a log without survivors
        gives room and needs none.
        """
        if needed_bytes:
            await self._claim(needed_bytes)
        try:
            yield
        finally:
            self._claimed_bytes -= needed_bytes
            self._freed.set()

    async def _claim(self, needed_bytes: int) -> None:
        async with self._turn:
            while True:
                self._freed.clear()
                others_bytes = self._claimed_bytes
                try:
                    await self._workers.run(COMPACTION_LANE, self._room.require, others_bytes + needed_bytes)
                except OSError:
                    if not others_bytes:
                        raise
                    if others_bytes == self._claimed_bytes:
                        await self._freed.wait()
                else:
                    self._claimed_bytes += needed_bytes
                    return
