"""When checkpoints happen: on a timer, when the write cache fills up, and once at the end. Source: storage section 5.8.

``storage.engine.ledger_storage`` has the order of the steps that makes a crash safe. This service decides when, and
runs the lane side in the checkpoint lane. Without room on a disk none begins: the bookie is read-only until then.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from runtime.bookie.disks.modes import BookieModes, sentence
from runtime.ports import Workers
from storage.disk_room import DiskRoom, is_disk_failing, is_out_of_room
from storage.engine.ledger_storage import LedgerStorage, StorageCheckpoint
from storage.errors import DiskUnusableError, IndexFailedError, StorageError

logger = logging.getLogger(__name__)

CHECKPOINT_LANE = "checkpoint"

REST_SHARE: Final = 1.0
"""Rest for each second of work. By the clock, not by what was computed: on a busy machine, and beside reads, the same
work is in their way for longer."""

REST_S_MAX: Final = 1.0
"""Longest rest at once: one slow sync is no reason to stop for as long."""


class CheckpointPace:
    """Called between the parts of a checkpoint, in its lane: it rests as long as it worked.

    So reads keep more than half of their rate. A checkpoint of a million rows computes for seconds, and meanwhile each
    read would wait for the interpreter several times. What counts is therefore the share of the time in which the
    checkpoint's lane wants the interpreter, not the length of its turns.
    """

    def __init__(self, now_s: Callable[[], float], sleep: Callable[[float], None]) -> None:
        """``now_s``: a clock that never goes back; ``sleep``: waits for some seconds."""
        self._now_s = now_s
        self._sleep = sleep
        self._rested_at_s = 0.0
        self._is_urgent: Callable[[], bool] = lambda: False

    def urge_when(self, is_urgent: Callable[[], bool]) -> None:
        """Never rest while this says so: adds wait for the checkpoint, or the bookie is being stopped."""
        self._is_urgent = is_urgent

    def begin(self) -> None:
        """A checkpoint begins in the lane that calls this."""
        self._rested_at_s = self._now_s()

    def pause(self) -> None:
        """Rest for the work done since the last rest."""
        rest_s = min(REST_SHARE * (self._now_s() - self._rested_at_s), REST_S_MAX)
        if rest_s > 0 and not self._is_urgent():
            self._sleep(rest_s)
        self._rested_at_s = self._now_s()


class RetryDelays(NamedTuple):
    """How long after a failed checkpoint the next one begins."""

    usual_s: float = 1.0
    full_s_max: float = 10.0
    """While a disk is full (diskCheckInterval); less when checkpoints are due more often."""


USUAL_RETRY_DELAYS = RetryDelays()


class CheckpointService:
    """Runs the checkpoints of one bookie, one at a time."""

    def __init__(
        self,
        storage: LedgerStorage,
        workers: Workers,
        interval_s: float,
        room: DiskRoom,
        modes: BookieModes,
        pace: CheckpointPace,
        retry_delays: RetryDelays = USUAL_RETRY_DELAYS,
    ) -> None:
        self._storage = storage
        self._workers = workers
        self._interval_s = interval_s
        self._room = room
        self._modes = modes
        self._pace = pace
        self._retry_delays = retry_delays
        pace.urge_when(self._is_urgent)
        self._swap_callbacks: list[Callable[[], None]] = []
        self._wake = asyncio.Event()
        self._stopping = asyncio.Event()
        self._has_failed = False
        self._waiting: list[asyncio.Future[None]] = []
        self._paths_without_mark: set[str] = set()
        self._settling: list[asyncio.Future[None]] = []

    def on_caches_swapped(self, callback: Callable[[], None]) -> None:
        """Call back at the start of every checkpoint, when the write caches have room again, and at its good end."""
        self._swap_callbacks.append(callback)

    def request(self) -> None:
        """Make the next checkpoint start now, or as soon as the one under way has ended."""
        self._wake.set()

    async def flushed(self) -> None:
        """Return when a checkpoint that begins from now on has ended, well or not. Without room there may be none."""
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(ended)
        self.request()
        await ended

    async def settle(self) -> None:
        """Wait until all that was taken so far is durable in the ledger directories; for a caller beside ``run``."""
        settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._settling.append(settled)
        self.request()
        await settled

    async def run(self) -> None:
        """Checkpoint until ``stop``. A failed one is tried again: the journal keeps what it could not flush.

        Raises what trying again does not mend: IndexFailedError, DiskUnusableError; and NoWritableDiskError.
        """
        while await self._wait_due():
            if await self.require_room():
                await self._try_checkpoint()

    async def begin(self) -> None:
        """Before anybody is served: read-only from the start where a disk lacks room. NoWritableDiskError."""
        if self._storage.flush_failure is not None:
            self._note_failure(self._storage.flush_failure)
        else:
            await self.require_room()

    async def require_room(self) -> bool:
        """Whether the disks have room for a checkpoint; if not, the bookie is read-only from now on."""
        needed_bytes = sum(engine.checkpoint_bytes for engine in self._storage.engines)
        try:
            await self._workers.run(CHECKPOINT_LANE, self._room.require, needed_bytes)
        except OSError as error:
            self._note_failure(error)
            return False
        return True

    async def _try_checkpoint(self) -> None:
        try:
            await self._checkpoint(self._between_parts)
        except IndexFailedError:
            raise
        except (StorageError, OSError) as error:
            self._note_failure(error)
        else:
            self._has_failed = False
            self._modes.note_room()

    def _note_failure(self, error: StorageError | OSError) -> None:
        self._has_failed = True
        if is_disk_failing(error):
            raise DiskUnusableError(f"a disk failed: {sentence(error)}") from error
        if is_out_of_room(error):
            self._modes.note_disk_full(error)
        else:
            logger.error("checkpoint failed; its entries stay in the journal: %s", sentence(error))

    async def _wait_due(self) -> bool:
        """True when a checkpoint is due, False when the service is to stop."""
        if self._has_failed:
            is_full = self._modes.is_disk_full
            event = self._stopping  # requests do not make the retry come sooner
            usual_s, full_s_max = self._retry_delays
            timeout_s = max(usual_s, min(self._interval_s, full_s_max)) if is_full else usual_s
        else:
            event, timeout_s = self._wake, self._interval_s
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await event.wait()
        self._wake.clear()
        return not self._stopping.is_set()

    async def _checkpoint(self, between_parts: Callable[[], None]) -> None:
        """One checkpoint of all ledger directories; StorageError or OSError when it could not be finished."""
        # The retry of a failed one takes nothing newer: who came since waits for the next.
        settling: list[asyncio.Future[None]] = []
        is_retry = self._storage.is_retry_due
        if not is_retry:
            settling, self._settling = self._settling, []
        checkpoint = self._storage.begin_checkpoint()
        waiting, self._waiting = self._waiting, []
        for callback in self._swap_callbacks:
            callback()
        try:
            await self._workers.run(CHECKPOINT_LANE, self._write, checkpoint, between_parts)
        finally:
            self._storage.end_checkpoint(checkpoint)
            for ended in waiting:
                if not ended.done():
                    ended.set_result(None)
            if self._storage.is_retry_due:
                self._settling = settling + self._settling
            is_due = is_retry or any(engine.is_checkpoint_due for engine in self._storage.engines)
            if self._settling or is_due:
                self._wake.set()
        for settled in settling:
            if not settled.done():
                settled.set_result(None)
        for callback in self._swap_callbacks:  # ids of deleted ledgers can be used again
            callback()
        self._report_marks()
        # Freeing the tables takes milliseconds, which the loop does not have.
        await self._workers.run(CHECKPOINT_LANE, self._storage.release_checkpoint, checkpoint)

    def _write(self, checkpoint: StorageCheckpoint, between_parts: Callable[[], None]) -> None:
        """In the lane."""
        self._pace.begin()
        self._storage.write_checkpoint(checkpoint, between_parts)

    def _between_parts(self) -> None:
        """In the lane."""
        self._pace.pause()
        # The journal, for one, has gone on meanwhile, and knows no reserve.
        self._room.require_still()

    def _is_urgent(self) -> bool:
        """Whether somebody waits for the end of the checkpoint under way, or for the next."""
        if self._stopping.is_set() or self._waiting or self._settling:
            return True
        return any(engine.is_filling_up for engine in self._storage.engines)

    def _report_marks(self) -> None:
        """Name the directories that took no mark, once: the largest mark counts, which the others have."""
        paths = {str(failure.filename) for failure in self._storage.mark_failures}
        for failure in self._storage.mark_failures:
            if str(failure.filename) not in self._paths_without_mark:
                logger.warning("%s", sentence(failure))
        self._paths_without_mark = paths

    async def flush(self) -> None:
        """Make everything durable that was taken so far, with what room there is: nothing comes behind it.

        The retry of a failed checkpoint takes nothing newer.
        """
        if self._storage.is_retry_due:
            await self._checkpoint(self._pace.pause)
        await self._checkpoint(self._pace.pause)

    def stop(self) -> None:
        """Let ``run`` return; a checkpoint under way is finished first."""
        self._stopping.set()
        self._wake.set()
