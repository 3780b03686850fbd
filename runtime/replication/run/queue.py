"""The ledgers of a run in the order of work.

A ledger whose lock another process has goes to the end of the queue, and so does one that no target could store: its
target may be restarting.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterable, AsyncIterator

from bkctl.runtime.ports import Clock
from bkctl.runtime.replication.config import ReplicationConfig
from bkctl.runtime.replication.copy.activity import LedgerActivity
from bkctl.runtime.replication.judge.ledger_result import FailureReason, LedgerResult
from bkctl.runtime.replication.turn.task import LedgerTask


class LedgerQueue:
    """Gives out each ledger, and a locked one again until ``lock_wait_s`` has passed and nothing else is left to do.

    One whose targets all failed is given out a second time, at the end and after ``registration_wait_s``.
    Iterate over it once, and call ``finish`` for each ledger that it gave out.
    """

    def __init__(self, tasks: AsyncIterable[LedgerTask], clock: Clock, config: ReplicationConfig) -> None:
        self._tasks = tasks
        self._clock = clock
        self._wait_ns = int(config.lock_wait_s * 1e9)
        self._poll_ns = int(config.lock_poll_s * 1e9)
        self._return_ns = int(config.registration_wait_s * 1e9)
        self._in_progress: set[int] = set()
        self._first_tried_ns: dict[int, int] = {}
        """When ledgers were found locked for the first time."""
        self._later: list[tuple[int, int, LedgerTask]] = []
        """Heap of the ledgers to try again: when that may be, the id, the task."""
        self._without_target: dict[int, LedgerResult] = {}
        """The first results of ledgers that are tried again because every target failed."""
        self._finished = asyncio.Event()

    async def __aiter__(self) -> AsyncIterator[LedgerTask]:
        async for task in self._tasks:
            self._in_progress.add(task.ledger_id)
            yield task
        while self._later or self._in_progress:
            if not self._later:
                self._finished.clear()
                await self._finished.wait()
                continue
            pause_ns = self._later[0][0] - self._clock.monotonic_ns()
            if pause_ns > 0:
                await self._clock.sleep(min(pause_ns, self._poll_ns) / 1e9)
                continue
            _, ledger_id, task = heapq.heappop(self._later)
            self._in_progress.add(ledger_id)
            yield task

    def oldest_waiting(self) -> LedgerActivity | None:
        """The ledger that has waited longest for its lock, else for a target; None if no ledger waits."""
        locked = [(since_ns, ledger_id) for ledger_id, since_ns in self._first_tried_ns.items()]
        if locked:
            since_ns, ledger_id = min(locked)
            return LedgerActivity(ledger_id, since_ns, "the lock that another process has")
        if self._later:
            due_ns, ledger_id, _ = self._later[0]
            return LedgerActivity(ledger_id, due_ns - self._return_ns, "a bookie that takes its copies")
        return None

    def finish(self, task: LedgerTask, result: LedgerResult) -> LedgerResult | None:
        """Note the result of a ledger that was given out. Returns all that was done with it; None if that is not all,
        because it will be given out again."""
        ledger_id, now_ns = task.ledger_id, self._clock.monotonic_ns()
        self._in_progress.discard(ledger_id)
        self._finished.set()
        if any(failure.reason is FailureReason.LOCKED for failure in result.failures):
            is_wait_over = now_ns - self._first_tried_ns.setdefault(ledger_id, now_ns) >= self._wait_ns
            if not (is_wait_over and self._in_progress <= self._first_tried_ns.keys()):
                heapq.heappush(self._later, (now_ns + self._poll_ns, ledger_id, task))
                return None
        else:
            self._first_tried_ns.pop(ledger_id, None)
        first = self._without_target.get(ledger_id)
        if first is not None:
            return result.after(first)
        if any(failure.reason is FailureReason.TARGETS_FAILED for failure in result.failures):
            self._without_target[ledger_id] = result
            heapq.heappush(self._later, (now_ns + self._return_ns, ledger_id, task))
            return None
        return result
