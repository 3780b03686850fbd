"""Long jobs of a server process that an operator started: progress, result, cancel.

They end with the process. The last ones that ended are kept, so that their results can be read later.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

import msgspec

from bkctl.runtime.admin.api import Job, JobState, StepProgress
from bkctl.runtime.admin.messages import AdminError, Problem, problem_of
from bkctl.runtime.errors import ConflictError
from bkctl.runtime.ports import Clock
from bkctl.storage.advice import with_path
from bkctl.storage.errors import BkctlError

logger = logging.getLogger(__name__)

ENDED_JOBS_KEPT: Final = 16


Work: TypeAlias = Callable[[StepProgress], Awaitable[object]]


class Jobs:
    """The jobs of one process; at most one of each kind runs."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._jobs: dict[int, Job] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._last_id = 0

    @property
    def all(self) -> list[Job]:
        """From the oldest to the newest."""
        return list(self._jobs.values())

    def find(self, job_id: int) -> Job:
        """AdminError if there is none."""
        if job_id not in self._jobs:
            raise AdminError(Problem.NOT_FOUND, f"there is no job {job_id}; jobs end when the process ends")
        return self._jobs[job_id]

    def begin(self, kind: str, work: Work, reached: Callable[[], object] = lambda: None) -> Job:
        """Start ``work``; its result must be a msgspec struct or JSON. ConflictError while one of this kind runs.

        ``reached``: the result of work that failed or was cancelled; None if there is none.
        """
        for job in self._jobs.values():
            if job.kind == kind and job.state is JobState.RUNNING:
                raise ConflictError(f"nothing was changed: job {job.id} ({kind}) is still running")
        self._last_id += 1
        job = Job(
            id=self._last_id,
            kind=kind,
            started_ms=self._clock.now_ms(),
            state=JobState.RUNNING,
            progress=StepProgress(),
            ended_ms=None,
            error=None,
            problem=None,
        )
        self._jobs[job.id] = job
        task = asyncio.get_running_loop().create_task(self._run(job, work, reached))
        self._tasks[job.id] = task
        task.add_done_callback(lambda _: self._note_end(job))
        logger.info("job %d (%s) started", job.id, kind)
        return job

    async def cancel(self, job_id: int, wait_s: float | None = None) -> Job:
        """Cancel a job and wait for its end, at most ``wait_s``; no effect on a job that has ended. AdminError."""
        job = self.find(job_id)
        task = self._tasks.get(job_id)
        if task is not None:
            if not job.is_cancelling:
                job.is_cancelling = True
                task.cancel()
            await asyncio.wait([task], timeout=wait_s)
        return job

    async def stop(self) -> None:
        """Cancel all jobs and wait until they have ended."""
        await asyncio.gather(*(self.cancel(job_id) for job_id in list(self._tasks)))

    async def _run(self, job: Job, work: Work, reached: Callable[[], object]) -> None:
        try:
            job.result = msgspec.to_builtins(await work(job.progress))
            job.state = JobState.DONE
        except (BkctlError, OSError) as error:
            job.state, job.error, job.problem = JobState.FAILED, with_path(error), problem_of(error).word
        except Exception:
            logger.exception("job %d (%s) failed", job.id, job.kind)
            job.state, job.error = JobState.FAILED, "the job failed; the log of the server says why"
            job.problem = Problem.INTERNAL.word
        finally:
            if job.state is not JobState.DONE:
                job.result = msgspec.to_builtins(reached())

    def _note_end(self, job: Job) -> None:
        if job.state is JobState.RUNNING:  # also if it was cancelled before it began
            job.state = JobState.CANCELLED
        job.ended_ms = self._clock.now_ms()
        del self._tasks[job.id]
        seconds = (job.ended_ms - job.started_ms) / 1000
        reason = "" if job.error is None else f": {job.error}"
        logger.info("job %d (%s) %s after %.1f s%s", job.id, job.kind, job.state.value, seconds, reason)
        ended = [each.id for each in self._jobs.values() if each.ended_ms is not None]
        for job_id in ended[:-ENDED_JOBS_KEPT]:
            del self._jobs[job_id]
