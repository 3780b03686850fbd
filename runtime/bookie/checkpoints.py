"""When checkpoints happen: on a timer, when the write cache fills up, and once at the end. Source: storage section 5.8.

The order of the steps that makes a crash safe is ``storage.ledger_storage``'s; this service decides when, and runs the
lane side in the checkpoint lane.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from runtime.ports import Workers
from storage.errors import IndexFailedError, StorageError
from storage.ledger_storage import LedgerStorage

logger = logging.getLogger(__name__)

CHECKPOINT_LANE = "checkpoint"
RETRY_DELAY_S = 1.0


class CheckpointService:
    """Runs the checkpoints of one bookie, one at a time."""

    def __init__(self, storage: LedgerStorage, workers: Workers, interval_s: float) -> None:
        self._storage = storage
        self._workers = workers
        self._interval_s = interval_s
        self._swap_callbacks: list[Callable[[], None]] = []
        self._wake = asyncio.Event()
        self._is_stopping = False
        self._is_retry_due = False

    def on_caches_swapped(self, callback: Callable[[], None]) -> None:
        """Call back at the start of every checkpoint, when the write caches have room again."""
        self._swap_callbacks.append(callback)

    def request(self) -> None:
        """Make the next checkpoint start now, or as soon as the one under way has ended."""
        self._wake.set()

    async def run(self) -> None:
        """Checkpoint until ``stop``. A failed one is tried again: the journal keeps what it could not flush.

        Raises IndexFailedError, which only a restart can mend.
        """
        while await self._wait_due():
            try:
                await self.checkpoint()
            except IndexFailedError:
                raise
            except (StorageError, OSError) as error:
                logger.error("checkpoint failed, the journal keeps what it held: %s", error)
                await asyncio.sleep(RETRY_DELAY_S)

    async def _wait_due(self) -> bool:
        """True when a checkpoint is due, False when the service is to stop."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._interval_s):
                await self._wake.wait()
        self._wake.clear()
        return not self._is_stopping

    async def checkpoint(self) -> None:
        """One checkpoint of all ledger directories; StorageError or OSError when it could not be finished."""
        checkpoint = self._storage.begin_checkpoint()
        for callback in self._swap_callbacks:
            callback()
        self._is_retry_due = True
        try:
            await self._workers.run(CHECKPOINT_LANE, self._storage.write_checkpoint, checkpoint)
            self._is_retry_due = False
        finally:
            self._storage.end_checkpoint(checkpoint)
            if any(engine.is_checkpoint_due for engine in self._storage.engines):
                self._wake.set()
        # Freeing the tables takes milliseconds, which the loop does not have.
        await self._workers.run(CHECKPOINT_LANE, self._storage.release_checkpoint, checkpoint)

    async def flush(self) -> None:
        """Make everything durable that was taken so far. The retry of a failed checkpoint takes nothing newer."""
        if self._is_retry_due:
            await self.checkpoint()
        await self.checkpoint()

    def stop(self) -> None:
        """Let ``run`` return; a checkpoint under way is finished first."""
        self._is_stopping = True
        self._wake.set()
