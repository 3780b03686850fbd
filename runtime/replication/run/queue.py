"""The ledgers of a run in the order of work. A ledger whose lock another process has goes to the end of the queue."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator

from bkctl.runtime.ports import Clock
from bkctl.runtime.replication.config import ReplicationConfig
from bkctl.runtime.replication.copy.activity import LedgerActivity
from bkctl.runtime.replication.judge.ledger_result import FailureReason, LedgerResult
from bkctl.runtime.replication.turn.task import LedgerTask


class LedgerQueue:
    """Gives out each ledger, and a locked one again until ``lock_wait_s`` has passed and nothing else is left to do.

    Iterate over it once, and call ``finish`` for each ledger that it gave out.
    """

    def __init__(self, tasks: AsyncIterable[LedgerTask], clock: Clock, config: ReplicationConfig) -> None:
        self._tasks = tasks
        self._clock = clock
        self._wait_ns = int(config.lock_wait_s * 1e9)
        self._poll_ns = int(config.lock_poll_s * 1e9)
        self._in_progress: set[int] = set()
        self._first_tried_ns: dict[int, int] = {}
        """When ledgers were found locked for the first time."""
        self._locked: deque[tuple[int, LedgerTask]] = deque()
        """Locked ledgers, and when each may be tried again."""
        self._finished = asyncio.Event()

    async def __aiter__(self) -> AsyncIterator[LedgerTask]:
        async for task in self._tasks:
            self._in_progress.add(task.ledger_id)
            yield task
        while self._locked or self._in_progress:
            if not self._locked:
                self._finished.clear()
                await self._finished.wait()
                continue
            due_ns, task = self._locked.popleft()
            self._in_progress.add(task.ledger_id)
            pause_ns = due_ns - self._clock.monotonic_ns()
            if pause_ns > 0:
                await self._clock.sleep(pause_ns / 1e9)
            yield task

    def oldest_locked(self) -> LedgerActivity | None:
        """The ledger that has waited longest for its lock; None if no ledger waits."""
        waiting = ((since_ns, ledger_id) for ledger_id, since_ns in self._first_tried_ns.items())
        since_ns, ledger_id = min(waiting, default=(0, None))
        return None if ledger_id is None else LedgerActivity(ledger_id, since_ns, "the lock that another process has")

    def finish(self, task: LedgerTask, result: LedgerResult) -> bool:
        """Note the result of a ledger that was given out; False if it is locked and will be given out again."""
        self._in_progress.discard(task.ledger_id)
        self._finished.set()
        if not any(failure.reason is FailureReason.LOCKED for failure in result.failures):
            self._first_tried_ns.pop(task.ledger_id, None)
            return True
        now_ns = self._clock.monotonic_ns()
        is_wait_over = now_ns - self._first_tried_ns.setdefault(task.ledger_id, now_ns) >= self._wait_ns
        if is_wait_over and self._in_progress <= self._first_tried_ns.keys():
            return True
        self._locked.append((now_ns + self._poll_ns, task))
        return False
