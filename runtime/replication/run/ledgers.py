"""One run over many ledgers: the order of its tasks, and its progress."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import heapq
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from bkctl.runtime.client.access import require_access
from bkctl.runtime.errors import LedgerNotFoundError, MetadataError
from bkctl.runtime.ledger.owner import owner_of
from bkctl.runtime.metadata.pulsar_migration import FLAG_AGE_S_MAX
from bkctl.runtime.ports import Clock
from bkctl.runtime.replication.config import ReplicationConfig
from bkctl.runtime.replication.copy.activity import LedgerActivity
from bkctl.runtime.replication.copy.limits import for_each_bounded
from bkctl.runtime.replication.judge.ledger_result import FailureReason, LedgerResult
from bkctl.runtime.replication.plan.recovery_plan import PlanTotals
from bkctl.runtime.replication.turn.state import LedgerTask, TurnTools
from bkctl.runtime.replication.turn.turn import LedgerTurn

PROGRESS_INTERVAL_NS = 100_000_000
TICK_S = 1.0
"""How often progress is reported even if nothing ends, and how often the job file is written and the rates are read."""
_ACCESS_PAUSE_S = 10.0
"""Shortest time between two checks of whether the bookies accept this client."""


class LedgerQueue:
    """Gives out each ledger in the order of work, and a locked one again until ``lock_wait_s`` has passed and nothing
    else is left to do.

    One whose targets all failed, which may be restarting, is given out a second time, at the end and after
    ``registration_wait_s``.
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


class RecoveryProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of a running recovery."""

    ledgers_done: int
    ledgers_total: int
    ledgers_failed: int
    entries_copied: int
    bytes_copied: int
    bytes_planned: int
    """Estimated; ledgers of unknown size, and those that failed, do not count."""
    least_s: float = 0.0
    """How long the rest of these takes at least, by the byte rates."""
    ledgers_open: int = 0
    """Those of the failed that are left to their writers."""
    why_failed: str = ""
    """Why most of the others failed."""
    waiting_for_writers: int = 0
    """Open ledgers that are left alone for some time, so that their writers can replace the bookies."""
    writers_wait_s: float = 0.0
    """How long these are still left alone."""
    oldest_ledger: int | None = None
    """The ledger that was begun first, in progress or waiting for its lock."""
    oldest_s: float = 0.0
    """How long ago that was."""
    oldest_waits_for: str = ""
    """What it waits for, for example "source b1:3181"; empty if nothing."""
    refusal: str = ""
    """Why bookies refused this client when the last ledger failed; empty if they did not."""

    @property
    def failed(self) -> str:
        """How many ledgers failed and why, like ", 2 failed (no bookie to copy to), 1 left to its writer", or empty."""
        text, failed = "", self.ledgers_failed - self.ledgers_open
        if failed:
            text = f", {failed} failed" + (f" ({self.why_failed})" if self.why_failed else "")
        if self.ledgers_open:
            text += f", {self.ledgers_open} left to {'its writer' if self.ledgers_open == 1 else 'their writers'}"
        return text


def most_common_reason(
    failures: Counter[FailureReason], more: Mapping[FailureReason, str] = MappingProxyType({})
) -> str:
    """Why most of the ledgers failed, by the first reason of each; empty if none did. ``more``: said after a reason."""
    mostly = "mostly: " if len(failures) > 1 else ""
    return "".join(f"{mostly}{reason.value}{more.get(reason, '')}" for reason, _ in failures.most_common(1))


@dataclasses.dataclass(eq=False)
class LedgerRun:
    """State of one run over many ledgers. ``on_result`` gets the result of each, once."""

    tools: TurnTools
    totals: PlanTotals
    on_result: Callable[[LedgerResult], None]
    on_progress: Callable[[RecoveryProgress], None] | None

    def __post_init__(self) -> None:
        self._ports, self._config, self._job = self.tools.ports, self.tools.policy.config, self.tools.job
        self._current: dict[int, LedgerActivity] = {}
        self._progress_at_ns = 0
        self._is_in_doubt = asyncio.Event()
        """A ledger failed: the bookies may not accept this client any longer."""
        self._refusal = ""
        self._done = self._failed_bytes = 0
        self._failures: Counter[FailureReason] = Counter()
        """The ledgers that failed, by their first reasons, but for those in ``_open``, left to their writers."""
        self._open = 0
        self._silent: Counter[str] = Counter()
        """How many of them cannot be read because of a bookie that is not to be replaced."""
        self._waiting_for_writers = 0
        self._writers_due_ns = 0
        self._queue: LedgerQueue

    async def run(self, tasks: AsyncIterable[LedgerTask]) -> float:
        """Work on all tasks; returns the seconds. RefusedError as soon as Pulsar begins to migrate its metadata;
        AuthenticationRequiredError once no bookie accepts this client."""
        self._queue = LedgerQueue(tasks, self._ports.clock, self._config)
        started_ns = self._ports.clock.monotonic_ns()
        self._follow_pace()
        ticking = asyncio.create_task(self._tick())
        try:
            await self._unless_stopped(
                for_each_bounded(self._queue, self._repair_one, self._config.ledgers_in_parallel)
            )
        finally:
            ticking.cancel()
            self._report_progress(is_forced=True)
            await asyncio.gather(ticking, return_exceptions=True)
            if self._job is not None:
                await self._job.write()
        return (self._ports.clock.monotonic_ns() - started_ns) / 1e9

    async def wait_for_writers(self, ledgers: int, until_ns: int) -> None:
        """Leave some open ledgers alone, and report it, so that their writers can replace the bookies."""
        wait_ns = until_ns - self._ports.clock.monotonic_ns()
        if ledgers and wait_ns > 0:
            self._waiting_for_writers, self._writers_due_ns = ledgers, until_ns
            self._report_progress(is_forced=True)
            await self._ports.clock.sleep(wait_ns / 1e9)
            self._waiting_for_writers = 0

    async def _unless_stopped(self, work: Coroutine[Any, Any, None]) -> None:
        watches = (self._watch_migration(), self._watch_access(), work)
        tasks = [asyncio.create_task(each) for each in watches]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in tasks:
            if task in done:
                task.result()

    async def _watch_migration(self) -> None:
        while True:
            with contextlib.suppress(MetadataError):  # the repairs wait for the store, or fail
                await self._ports.ledgers.migration.require_none()
            await self._ports.clock.sleep(FLAG_AGE_S_MAX)

    async def _watch_access(self) -> None:
        while True:
            await self._is_in_doubt.wait()
            self._is_in_doubt.clear()
            with contextlib.suppress(MetadataError):
                await require_access(self._ports, is_under_way=True)
            await self._ports.clock.sleep(_ACCESS_PAUSE_S)

    async def _tick(self) -> None:
        while True:
            await self._ports.clock.sleep(TICK_S)
            self._report_progress()
            self._follow_pace()
            if self._job is not None:
                await self._job.write()

    def _follow_pace(self) -> None:
        if self._job is not None and (pace := self._job.read_pace()) is not None:
            self.tools.set_pace(pace)

    async def _repair_one(self, task: LedgerTask) -> None:
        activity = self._current[task.ledger_id] = LedgerActivity(task.ledger_id, self._ports.clock.monotonic_ns())
        try:
            tried = await self.tools.outage.outlast(LedgerTurn(self.tools, task, activity).run)
        finally:
            del self._current[task.ledger_id]
        if tried.failures:
            self._is_in_doubt.set()
        self._refusal = next((each.bare_detail for each in tried.failures if each.is_refused), "")
        if (result := self._queue.finish(task, tried)) is None:
            return
        if result.failures or result.was_closed:
            result = result.with_owner(await self._owner(task.ledger_id))
        self._done += 1
        if result.failures:
            first = result.failures[0]
            if first.reason is FailureReason.OPEN:
                self._open += 1
            else:
                self._failures[first.reason] += 1
            if first.reason is FailureReason.UNREADABLE:
                self._silent.update(set(first.absent).difference(task.leaving, task.unreachable))
            self._failed_bytes += task.bytes_to_copy
        self.on_result(result)
        if self._job is not None and not result.failures:
            self._job.append(result)
        self._report_progress()

    async def _owner(self, ledger_id: int) -> str | None:
        """The owner, for the report; None if it cannot be read."""
        try:
            return owner_of(dict((await self._ports.ledgers.read(ledger_id)).value.custom_metadata))
        except (LedgerNotFoundError, MetadataError):
            return None

    def _why_failed(self) -> str:
        silent = "".join(f": {each} does not answer" for each, _ in self._silent.most_common(1))
        return most_common_reason(self._failures, {FailureReason.UNREADABLE: silent})

    def _report_progress(self, *, is_forced: bool = False) -> None:
        now_ns = self._ports.clock.monotonic_ns()
        if self.on_progress is None or not (is_forced or now_ns - self._progress_at_ns >= PROGRESS_INTERVAL_NS):
            return
        self._progress_at_ns = now_ns
        oldest = next(iter(self._current.values()), None) or self._queue.oldest_waiting()
        planned = max(0, self.totals.bytes_to_copy - self._failed_bytes)
        left = max(0, planned - self.tools.bytes_copied)
        self.on_progress(
            RecoveryProgress(
                ledgers_done=self._done,
                ledgers_total=self.totals.ledgers,
                ledgers_failed=self._failures.total() + self._open,
                ledgers_open=self._open,
                entries_copied=self.tools.entries_copied,
                bytes_copied=self.tools.bytes_copied,
                bytes_planned=planned,
                least_s=self.tools.pacer.least_s(left, self.tools.targets.count),
                why_failed=self._why_failed(),
                waiting_for_writers=self._waiting_for_writers,
                writers_wait_s=max(0.0, (self._writers_due_ns - now_ns) / 1e9) if self._waiting_for_writers else 0.0,
                oldest_ledger=None if oldest is None else oldest.ledger_id,
                oldest_s=0.0 if oldest is None else (now_ns - oldest.since_ns) / 1e9,
                oldest_waits_for="" if oldest is None else oldest.waits_for,
                refusal=self._refusal,
            )
        )
