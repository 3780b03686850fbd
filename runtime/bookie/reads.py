"""Reads that miss the caches: all misses of one tick go to the reads lane together.

Rule (storage section 12): "no such entry" is a statement of fact. It is given only when caches and index both say no;
anything that cannot be read is an I/O error.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from runtime.ports import Workers
from runtime.protocol.status import Status
from storage.engine import LedgerDirectoryEngine
from storage.errors import StorageError
from storage.ids import INVALID_ENTRY_ID

logger = logging.getLogger(__name__)

READS_LANE = "reads"

_JOBS_PER_TURN_MAX = 64
"""Bodies are in memory from their turn of the lane to their answer: so many at once, however many reads a tick brings.
A peer that does not take its answers is refused the rest."""


class ReadOutcome(NamedTuple):
    """What the disk says: the body if the status is OK, and the last stored entry if it was asked for."""

    status: Status
    body: bytes | None
    last_entry: tuple[int, bytes] | None


class ReadJob(NamedTuple):
    """One question to an engine. Entry id -1 asks for the last entry alone."""

    engine: LedgerDirectoryEngine
    ledger_id: int
    entry_id: int
    needs_last_entry: bool
    read_generation: int
    """``engine.read_generation`` when the question was asked: an answer older than a checkpoint is not cached."""


ReadDone: TypeAlias = Callable[[ReadOutcome], None]


class ReadBatcher:
    """Collects the reads of one tick and runs them in the reads lane, a limited number at a time."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._jobs: list[ReadJob] = []
        self._callbacks: list[ReadDone] = []
        self._batches: set[asyncio.Task[None]] = set()

    def submit(self, job: ReadJob, done: ReadDone) -> None:
        """Queue a read; ``done`` is called on the loop with the outcome, always."""
        if not self._jobs:
            asyncio.get_running_loop().call_soon(self._start_batch)
        self._jobs.append(job)
        self._callbacks.append(done)

    def read(self, job: ReadJob) -> asyncio.Future[ReadOutcome]:
        """Like ``submit``, for a caller that awaits."""
        future: asyncio.Future[ReadOutcome] = asyncio.get_running_loop().create_future()

        def finish(outcome: ReadOutcome) -> None:
            if not future.done():
                future.set_result(outcome)

        self.submit(job, finish)
        return future

    def _start_batch(self) -> None:
        batch = asyncio.get_running_loop().create_task(self._run_batch(self._jobs, self._callbacks))
        self._jobs, self._callbacks = [], []
        self._batches.add(batch)
        batch.add_done_callback(self._batches.discard)

    async def _run_batch(self, jobs: list[ReadJob], callbacks: list[ReadDone]) -> None:
        for start in range(0, len(jobs), _JOBS_PER_TURN_MAX):
            turn = slice(start, start + _JOBS_PER_TURN_MAX)
            outcomes = await self._workers.run(READS_LANE, read_all, jobs[turn])
            for job, done, outcome in zip(jobs[turn], callbacks[turn], outcomes, strict=True):
                if outcome.body is not None:
                    job.engine.remember_read(job.ledger_id, job.entry_id, outcome.body, job.read_generation)
                done(outcome)


def read_all(jobs: list[ReadJob]) -> list[ReadOutcome]:
    """Answer a batch of reads from index and entry logs; runs in a lane and never raises for one entry's sake."""
    return [_read_one(job) for job in jobs]


def _read_one(job: ReadJob) -> ReadOutcome:
    try:
        last_entry = job.engine.find_last(job.ledger_id) if job.needs_last_entry else None
    except (StorageError, OSError) as error:
        # The entry itself may still be readable: its answer then goes out without a LAC.
        logger.error("ledger %d: the last entry cannot be read: %s", job.ledger_id, error)
        if job.entry_id == INVALID_ENTRY_ID:
            return ReadOutcome(Status.IO_ERROR, None, None)
        last_entry = None
    if job.entry_id == INVALID_ENTRY_ID:
        return ReadOutcome(Status.OK, None, last_entry)
    try:
        body = job.engine.read(job.ledger_id, job.entry_id)
    except (StorageError, OSError) as error:
        logger.error("ledger %d entry %d cannot be read: %s", job.ledger_id, job.entry_id, error)
        return ReadOutcome(Status.IO_ERROR, None, last_entry)
    return ReadOutcome(Status.NO_SUCH_ENTRY if body is None else Status.OK, body, last_entry)
