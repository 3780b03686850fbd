"""One run of a recovery plan: gives out the ledgers, counts the results, and keeps the job file."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, Protocol

import msgspec

from runtime.client.ports import ClientPorts
from runtime.errors import LedgerNotFoundError, MetadataError
from runtime.ledger.owner import owner_of
from runtime.metadata.pulsar_migration import LOOK_AGE_S_MAX
from runtime.ports import Workers
from runtime.replication.config import OpenLedgers, ReplicationConfig
from runtime.replication.copy.byte_window import for_each_bounded
from runtime.replication.judge.ledger_result import LedgerRepaired
from runtime.replication.plan.job_file import JobDone, JobFile, JobRange
from runtime.replication.plan.recovery_plan import LedgerPlan, RecoveryPlan
from runtime.replication.run.queue import LedgerQueue
from runtime.replication.run.report import RecoveryReport, RecoveryTally
from runtime.replication.turn.messages import CopyMoment, CopyPace, LedgerWork

PROGRESS_INTERVAL_NS = 100_000_000
TICK_S = 1.0
"""How often progress is reported even if nothing ends, and how often the job file is written and the rates are read."""
JOB_FILE_LANE = "job-file"


class RecoveryProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of a running recovery."""

    ledgers_done: int
    ledgers_total: int
    ledgers_failed: int
    entries_copied: int
    entries_planned: int
    bytes_copied: int
    bytes_planned: int
    """Estimated; ledgers of unknown size do not count."""
    waiting_for_writers: int = 0
    """Open ledgers that are left alone for some time, so that their writers can replace the bookies."""
    writers_wait_s: float = 0.0
    """How long these are still left alone."""
    current_ledgers: tuple[int, ...]
    """Ledgers in progress, oldest first; the first one may be delaying the run."""
    oldest_ledger: int | None = None
    """The ledger that was begun first, in progress or waiting for its lock."""
    oldest_s: float = 0.0
    """How long ago that was."""
    oldest_waits_for: str = ""
    """What it waits for, for example "source b1:3181"; empty if nothing."""


class Repairs(Protocol):
    """Repairs ledgers, in this process or in others."""

    async def repair(self, work: LedgerWork) -> LedgerRepaired:
        """The result for a ledger; MetadataOutageError."""

    def moments(self) -> Sequence[CopyMoment]:
        """What each process has copied so far, and has in progress."""

    def set_pace(self, pace: CopyPace) -> None:
        """Set the byte rates of all processes together."""


@dataclasses.dataclass(frozen=True)
class RecoveryJob:
    """How a run is recorded and slowed down. ``read_pace`` is called once a second; None: the rates are unchanged.

    ``warn`` receives sentences for the operator.
    """

    file: JobFile
    workers: Workers
    read_pace: Callable[[], CopyPace | None]
    warn: Callable[[str], None]


class RecoveryRun:
    """State of one run of a plan."""

    def __init__(
        self,
        ports: ClientPorts,
        config: ReplicationConfig,
        plan: RecoveryPlan,
        open_ledgers: OpenLedgers,
        on_progress: Callable[[RecoveryProgress], None] | None,
        job: RecoveryJob | None,
    ) -> None:
        self._ports = ports
        self._config = config
        self._plan = plan
        self._open_ledgers = open_ledgers
        self._on_progress = on_progress
        self._progress_at_ns = 0
        self._job = job
        self._is_unrecorded = False
        """Whether the job file can no longer be written."""
        self._repairs: Repairs | None = None
        self._queue = LedgerQueue(self._ledgers(), ports.clock, config)
        self._tally = RecoveryTally(config.verify)
        self._totals = plan.totals
        self._waiting_for_writers = 0

    def note_range(self, found: JobRange) -> None:
        """A long copy has come this far."""
        if self._job is not None and not self._is_unrecorded:
            self._job.file.append(found)

    async def run(self, repairs: Repairs) -> RecoveryReport:
        """Repair all ledgers of the plan; RefusedError as soon as Pulsar begins to migrate its metadata."""
        self._repairs = repairs
        started_ns = self._ports.clock.monotonic_ns()
        self._follow_pace()
        ticking = asyncio.create_task(self._tick())
        try:
            await self._unless_migrating(
                for_each_bounded(self._queue, self._repair_one, self._config.ledgers_in_parallel)
            )
        finally:
            ticking.cancel()
            self._report_progress(is_forced=True)
            await asyncio.gather(ticking, return_exceptions=True)
            await self._write_job()
        seconds = (self._ports.clock.monotonic_ns() - started_ns) / 1e9
        return self._tally.report(self._plan.bookie_ids, seconds, self._plan.unreadable)

    async def _unless_migrating(self, work: Coroutine[Any, Any, None]) -> None:
        tasks = [asyncio.create_task(self._watch_migration()), asyncio.create_task(work)]
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
            await self._ports.clock.sleep(LOOK_AGE_S_MAX)

    async def _tick(self) -> None:
        while True:
            await self._ports.clock.sleep(TICK_S)
            self._report_progress()
            self._follow_pace()
            await self._write_job()

    def _follow_pace(self) -> None:
        if self._job is not None and self._repairs is not None and (pace := self._job.read_pace()) is not None:
            self._repairs.set_pace(pace)

    async def _write_job(self) -> None:
        """Record what is done. Without disk space the run goes on: the metadata shows what is done, too."""
        if self._job is None or self._is_unrecorded:
            return
        try:
            await self._job.workers.run(JOB_FILE_LANE, self._job.file.write)
        except OSError as error:
            self._is_unrecorded = True
            self._job.warn(f"cannot write the job file, so --resume cannot continue this run: {error.strerror}")

    async def _ledgers(self) -> AsyncIterator[LedgerPlan]:
        """The ledgers in the order of work; those that wait for their writers come last, after the wait."""
        waits = self._open_ledgers is OpenLedgers.WAIT
        for ledger in self._plan.ledgers:
            if not (waits and ledger.may_have_writer):
                yield ledger
        if not waits:
            return
        written = [ledger for ledger in self._plan.ledgers if ledger.may_have_writer]
        wait_s = self._writers_wait_s()
        if written and wait_s > 0:
            self._waiting_for_writers = len(written)
            self._report_progress(is_forced=True)
            await self._ports.clock.sleep(wait_s)
            self._waiting_for_writers = 0
        for ledger in written:
            yield ledger

    def _writers_wait_s(self) -> float:
        """How long after now the writers of open ledgers still have to replace the leaving bookies."""
        waited_s = (self._ports.clock.monotonic_ns() - self._plan.seen_at_ns) / 1e9
        return max(0.0, self._config.open_ledger_wait_s - waited_s)

    async def _repair_one(self, ledger: LedgerPlan) -> None:
        assert self._repairs is not None
        seen = None if ledger.open_look is None else ledger.open_look.segment
        stored = self._plan.seen.pop(ledger.ledger_id, None)
        result = await self._repairs.repair(
            LedgerWork(ledger.ledger_id, seen, self._ranges_of(ledger.ledger_id), stored)
        )
        if not self._queue.finish(ledger, result):
            return
        if result.failures or result.was_closed:
            result = result.with_owner(await self._owner(ledger.ledger_id))
        self._tally.add(result)
        if self._job is not None and not result.failures and not self._is_unrecorded:
            self._job.file.append(done_record(result))
        self._report_progress()

    def _ranges_of(self, ledger_id: int) -> tuple[JobRange, ...]:
        return () if self._job is None else self._job.file.ranges_of(ledger_id)

    async def _owner(self, ledger_id: int) -> str | None:
        """The owner, for the report; None if it cannot be read."""
        try:
            return owner_of(dict((await self._ports.ledgers.read(ledger_id)).value.custom_metadata))
        except (LedgerNotFoundError, MetadataError):
            return None

    def _report_progress(self, *, is_forced: bool = False) -> None:
        if self._on_progress is None or self._repairs is None:
            return
        now_ns = self._ports.clock.monotonic_ns()
        if not is_forced and now_ns - self._progress_at_ns < PROGRESS_INTERVAL_NS:
            return
        self._progress_at_ns = now_ns
        moments = self._repairs.moments()
        current = sorted((each for moment in moments for each in moment.current), key=lambda each: each.since_ns)
        oldest = current[0] if current else self._queue.oldest_locked()
        self._on_progress(
            RecoveryProgress(
                ledgers_done=self._tally.ledgers,
                ledgers_total=self._totals.ledgers,
                ledgers_failed=self._tally.ledgers_failed,
                entries_copied=sum(moment.entries_copied for moment in moments),
                entries_planned=self._totals.entries,
                bytes_copied=sum(moment.bytes_copied for moment in moments),
                bytes_planned=self._totals.bytes_to_copy,
                waiting_for_writers=self._waiting_for_writers,
                writers_wait_s=self._writers_wait_s() if self._waiting_for_writers else 0.0,
                current_ledgers=tuple(each.ledger_id for each in current),
                oldest_ledger=None if oldest is None else oldest.ledger_id,
                oldest_s=0.0 if oldest is None else (now_ns - oldest.since_ns) / 1e9,
                oldest_waits_for="" if oldest is None else oldest.waits_for,
            )
        )


def done_record(result: LedgerRepaired) -> JobDone:
    """The record of a ledger without failures."""
    return JobDone(
        ledger_id=result.ledger_id,
        outcome=result.outcome.name,
        fragments=result.fragments,
        entries=result.entries,
        bytes=result.bytes_copied,
        was_closed=result.was_closed,
    )
