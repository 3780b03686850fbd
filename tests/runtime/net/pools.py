"""Pools for tests, and what becomes of the adds that are sent through them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from bkctl.runtime.config import ClientConfig
from bkctl.runtime.errors import BookieNotFoundError
from bkctl.runtime.net.loop import LoopClock
from bkctl.runtime.net.pool import BookiePool
from bkctl.runtime.ports import Clock
from bkctl.runtime.protocol.status import Status
from tests.runtime.net.batch_bookie import BatchBookie
from tests.runtime.net.memory_bookie import LOOPBACK, MemoryBookie

KEY = b"k" * 20
BOOKIE = "bookie-1"


@contextlib.asynccontextmanager
async def pool_of(
    bookie: MemoryBookie | BatchBookie,
    config: ClientConfig | None = None,
    unsent_bytes_max: int = 1 << 28,
    clock: Clock | None = None,
) -> AsyncIterator[BookiePool]:
    """A pool that finds every bookie id but one at the address of ``bookie``."""

    async def resolve(bookie_id: str) -> tuple[str, int]:
        if bookie_id == "nobody":
            raise BookieNotFoundError("bookie nobody is not registered")
        return LOOPBACK, bookie.port

    pool = BookiePool(resolve, config or ClientConfig(), clock or LoopClock(), unsent_bytes_max=unsent_bytes_max)
    try:
        yield pool
    finally:
        await pool.close()


class Outcomes:
    """Statuses of adds, in the order in which they came."""

    def __init__(self, pool: BookiePool) -> None:
        self._pool = pool
        self._changed = asyncio.Event()
        self.statuses: list[tuple[int, Status]] = []

    def add(self, entry_id: int, body: bytes = b"body", bookie_id: str = BOOKIE, *, is_recovery: bool = False) -> None:
        def done(status: Status) -> None:
            self.statuses.append((entry_id, status))
            self._changed.set()

        before = len(self.statuses)
        self._pool.add(
            bookie_id, 1, entry_id, KEY, body, done, is_recovery_add=is_recovery, is_high_priority=is_recovery
        )
        assert len(self.statuses) == before, "never from inside the call"

    async def wait(self, count: int) -> list[tuple[int, Status]]:
        async with asyncio.timeout(120):
            while len(self.statuses) < count:
                self._changed.clear()
                await self._changed.wait()
        return self.statuses
