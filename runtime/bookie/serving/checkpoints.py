"""When checkpoints run: on a timer, when the write cache fills up, and at the stop. Source: storage section 5.8.

One whose write cache is half full begins when the adds pause, so that the next burst need not share the disk with it.

``bkctl.storage.engine.ledger_storage`` defines the order of the steps that makes a crash safe. This service runs them
in the checkpoint lane. While a disk has no space for a checkpoint none starts, and the bookie is read-only.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from bkctl.runtime.bookie.disks.modes import BookieModes
from bkctl.runtime.ports import Workers
from bkctl.storage.advice import with_path
from bkctl.storage.disk_room import DiskRoom, is_disk_failing, is_out_of_room
from bkctl.storage.engine.ledger_storage import LedgerStorage, StorageCheckpoint
from bkctl.storage.errors import DiskUnusableError, IndexFailedError, StorageError

logger = logging.getLogger(__name__)

CHECKPOINT_LANE = "checkpoint"

REST_SHARE: Final = 1.0
"""Seconds of rest for each second of work. Elapsed time counts, not CPU time: on a busy machine, or with many reads,
the same work blocks reads for longer."""

REST_S_MAX: Final = 1.0
"""Longest single rest, so that one slow sync does not cause an equally long pause."""


IDLE_S: Final = 0.05
"""Adds pause if none came for this long and none is queued."""


class CheckpointPace:
    """Called between the parts of a checkpoint, in its lane: rests as long as it worked.

    This way reads keep more than half of their rate. A checkpoint of a million rows computes for seconds, and each read
    waits for the interpreter several times. So what matters is the share of time in which the checkpoint's lane wants
    the interpreter, not how long it holds it each time.
    """

    def __init__(self, now_s: Callable[[], float], sleep: Callable[[float], None]) -> None:
        """``now_s``: a monotonic clock; ``sleep``: waits for a number of seconds."""
        self._now_s = now_s
        self._sleep = sleep
        self._rested_at_s = 0.0
        self.step_count = 0
        """Parts that have ended, so that others see that a checkpoint goes on."""
        self._is_urgent: Callable[[], bool] = lambda: False

    def urge_when(self, is_urgent: Callable[[], bool]) -> None:
        """Do not rest while ``is_urgent`` returns True: adds wait for the checkpoint, or the bookie is stopping."""
        self._is_urgent = is_urgent

    def begin(self) -> None:
        """Start measuring; call this in the lane when a checkpoint begins."""
        self._rested_at_s = self._now_s()

    def pause(self) -> None:
        """Rest for the work done since the last rest."""
        self.step_count += 1
        rest_s = min(REST_SHARE * (self._now_s() - self._rested_at_s), REST_S_MAX)
        if rest_s > 0 and not self._is_urgent():
            self._sleep(rest_s)
        self._rested_at_s = self._now_s()


class RetryDelays(NamedTuple):
    """Delays between a failed checkpoint and the next attempt."""

    full_s_max: float
    """Upper limit while a disk is full (diskCheckInterval); the checkpoint interval is used if it is shorter."""
    usual_s: float = 1.0


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
        retry_delays: RetryDelays,
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
        self._is_idle: Callable[[], bool] = lambda: False
        self._has_adds = False
        self._idle_look: asyncio.TimerHandle | None = None

    def step_count(self) -> int:
        """Grows while a checkpoint goes on."""
        return self._pace.step_count

    def on_caches_swapped(self, callback: Callable[[], None]) -> None:
        """Register a callback for the start of each checkpoint, when caches have room again, and for its success."""
        self._swap_callbacks.append(callback)

    def request(self) -> None:
        """Start the next checkpoint now, or as soon as the running one has ended."""
        self._wake.set()

    def idle_when(self, is_idle: Callable[[], bool]) -> None:
        """``is_idle``: whether no add waits for the journal."""
        self._is_idle = is_idle

    def note_adds(self) -> None:
        """Call after each run of adds: when they pause, a write cache that is half full is flushed."""
        self._has_adds = True
        if self._idle_look is None:
            self._look_again()

    def _look_again(self) -> None:
        self._idle_look = asyncio.get_running_loop().call_later(IDLE_S, self._look_for_pause)

    def _look_for_pause(self) -> None:
        is_pause, self._has_adds, self._idle_look = self._is_idle() and not self._has_adds, False, None
        if not is_pause:
            self._look_again()
        elif any(engine.is_checkpoint_due for engine in self._storage.engines):
            self.request()

    async def flushed(self) -> None:
        """Return when the next checkpoint to start has ended, even if it failed; without disk space, possibly never."""
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(ended)
        self.request()
        await ended

    async def settle(self) -> None:
        """Wait until everything accepted so far is durable in the ledger directories. Needs ``run`` to be running."""
        settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._settling.append(settled)
        self.request()
        await settled

    async def run(self) -> None:
        """Run checkpoints until ``stop``. A failed one is retried; the journal keeps what was not flushed.

        Raises errors that a retry cannot fix: IndexFailedError, DiskUnusableError and NoWritableDiskError.
        """
        while await self._wait_due():
            if await self.require_room():
                await self._try_checkpoint()

    async def begin(self) -> None:
        """Call before serving requests: switches to read-only if a disk has too little space. NoWritableDiskError."""
        if self._storage.flush_failure is not None:
            self._note_failure(self._storage.flush_failure)
        else:
            await self.require_room()

    async def require_room(self) -> bool:
        """Whether the disks have space for a checkpoint; if not, switches the bookie to read-only."""
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
            raise DiskUnusableError(f"a disk failed: {with_path(error)}") from error
        if is_out_of_room(error):
            self._modes.note_disk_full(error)
        else:
            logger.error("checkpoint failed; its entries stay in the journal: %s", with_path(error))

    async def _wait_due(self) -> bool:
        """True when a checkpoint is due, False when the service stops."""
        if self._has_failed:
            is_full = self._modes.is_disk_full
            event = self._stopping  # requests do not shorten the delay
            full_s_max, usual_s = self._retry_delays
            timeout_s = max(usual_s, min(self._interval_s, full_s_max)) if is_full else usual_s
        else:
            event, timeout_s = self._wake, self._interval_s
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await event.wait()
        self._wake.clear()
        return not self._stopping.is_set()

    async def _checkpoint(self, between_parts: Callable[[], None]) -> None:
        """One checkpoint of all ledger directories; StorageError or OSError if it failed."""
        # The retry of a failed checkpoint includes nothing newer: later callers of ``settle`` wait for the next one.
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
        for callback in self._swap_callbacks:  # ids of deleted ledgers can be used again now
            callback()
        self._report_marks()

    def _write(self, checkpoint: StorageCheckpoint, between_parts: Callable[[], None]) -> None:
        """Runs in the checkpoint lane."""
        self._pace.begin()
        self._storage.write_checkpoint(checkpoint, between_parts)

    def _between_parts(self) -> None:
        """Runs in the checkpoint lane."""
        self._pace.pause()
        # The journal and others may have used disk space in the meantime; they respect no reserve.
        self._room.require_still()

    def _is_urgent(self) -> bool:
        """Whether callers wait for this checkpoint or the next one, or a write cache is filling up."""
        if self._stopping.is_set() or self._waiting or self._settling:
            return True
        return any(engine.is_filling_up for engine in self._storage.engines)

    def _report_marks(self) -> None:
        """Log each directory without the new mark, once. The others have it, and the largest mark counts."""
        paths = {str(failure.filename) for failure in self._storage.mark_failures}
        for failure in self._storage.mark_failures:
            if str(failure.filename) not in self._paths_without_mark:
                logger.warning("%s", with_path(failure))
        self._paths_without_mark = paths

    async def flush(self) -> None:
        """Make everything accepted so far durable, using all space there is, because no checkpoint follows.

        The retry of a failed checkpoint includes nothing newer, so a second checkpoint is needed then.
        """
        if self._storage.is_retry_due:
            await self._checkpoint(self._pace.pause)
        await self._checkpoint(self._pace.pause)

    def stop(self) -> None:
        """Let ``run`` return after the checkpoint that is running, if any."""
        if self._idle_look is not None:
            self._idle_look.cancel()
        self._stopping.set()
        self._wake.set()
