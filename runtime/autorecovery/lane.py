"""A lane of the daemon: one task that repeats, with a watchdog. No lane can stop another.

A lane runs when it is due or woken. A run that raises is reported, and repeated after a pause. A run that shows no
sign of life for ``silence_max_s`` hangs: it is cancelled, reported, and repeated. A run that ignores its cancellation
is left behind after ``CANCEL_WAIT_S``, and the lane goes on.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from bkctl.runtime.metadata.replication.recovery_notes import LaneStatus
from bkctl.runtime.ports import Clock

logger = logging.getLogger(__name__)

CANCEL_WAIT_S = 5.0
RETRY_FIRST_S = 1.0
RETRY_MAX_S = 60.0


class Turn:
    """One run of a lane, as the code of the lane sees it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.beat_ns = clock.monotonic_ns()
        self.result_ms: int | None = None
        """When the result of this run was found, if an earlier run found it."""

    def beat(self) -> None:
        """Sign of life: call it at least every ``silence_max_s``."""
        self.beat_ns = self._clock.monotonic_ns()


@dataclasses.dataclass(eq=False)
class Lane:
    """Repeats ``run``, which returns what it did, in a few words. ``run`` may call ``due_in`` for its next run.

    ``interval_s``: time between the end of a run and the next one; None: only when woken.
    """

    name: str
    run: Callable[[Turn], Awaitable[str]]
    clock: Clock
    interval_s: float | None
    silence_max_s: float = 120.0

    def __post_init__(self) -> None:
        self.status = LaneStatus(name=self.name)
        self._woken = asyncio.Event()
        self._next_s: float | None = None

    def wake(self) -> None:
        """Run now, or again after the current run."""
        self._woken.set()

    def due_in(self, seconds: float) -> None:
        """Run again after this time if nothing wakes the lane before; for one time instead of the interval."""
        self._next_s = max(0.0, seconds)

    async def serve(self) -> None:
        """Run until cancelled. The first run begins at once, unless ``due_in`` was called."""
        pause_s, retry_s = self._take_pause(0.0), RETRY_FIRST_S
        while True:
            await is_set_within(self._woken, pause_s)
            self._woken.clear()
            if await self._run_once():
                pause_s, retry_s = self._take_pause(self.interval_s), RETRY_FIRST_S
            else:
                pause_s, retry_s = retry_s, min(2 * retry_s, RETRY_MAX_S)

    def _take_pause(self, usual_s: float | None) -> float | None:
        pause_s, self._next_s = usual_s if self._next_s is None else self._next_s, None
        return pause_s

    async def _run_once(self) -> bool:
        """Whether the run reached its end without an error."""
        status, turn = self.status, Turn(self.clock)
        status.is_running, status.started_ms = True, self.clock.now_ms()
        status.runs += 1
        running = asyncio.ensure_future(self.run(turn))
        try:
            if await self._is_hung(running, turn):
                status.hangs += 1
                self._note_failure(f"no progress for {self.silence_max_s:g} s")
                return False
            status.result, status.result_ms = running.result(), turn.result_ms
        except asyncio.CancelledError:
            await end_tasks((running,), CANCEL_WAIT_S)
            raise
        except Exception as error:  # a lane must survive everything
            logger.debug("lane %s", status.name, exc_info=True)
            self._note_failure(str(error) or type(error).__name__)
            return False
        finally:
            status.is_running, status.ended_ms = False, self.clock.now_ms()
        status.error, status.succeeded_ms = None, status.ended_ms
        return True

    async def _is_hung(self, running: asyncio.Future[str], turn: Turn) -> bool:
        """Wait for the end of the run; True if it was given up."""
        silence_max_ns, first_beat_ns = int(self.silence_max_s * 1e9), turn.beat_ns
        while not running.done():
            left_ns = turn.beat_ns + silence_max_ns - self.clock.monotonic_ns()
            if left_ns <= 0:
                await end_tasks((running,), CANCEL_WAIT_S)
                return True
            await asyncio.wait((running,), timeout=left_ns / 1e9)
            if turn.beat_ns != first_beat_ns:
                self.status.error = None  # this run is past it, and may take days
        return False

    def _note_failure(self, reason: str) -> None:
        self.status.failures += 1
        self.status.error = reason
        logger.warning("the lane %s failed and will be repeated: %s", self.status.name, reason)


async def is_set_within(event: asyncio.Event, seconds: float | None) -> bool:
    """Wait for an event, but no longer than this; None: without a limit."""
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False


async def end_tasks(tasks: Iterable[asyncio.Future[Any]], wait_s: float | None) -> None:
    """Cancel tasks, and wait for their ends, no longer than this. What fails meanwhile is no news."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    if tasks:
        done, _ = await asyncio.wait(tasks, timeout=wait_s)
        for task in done:
            if not task.cancelled():
                task.exception()
