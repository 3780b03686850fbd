"""Jobs of a server: one of a kind at a time, results kept, cancelled at any moment."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from bkctl.runtime.admin.api import JobState, StepProgress
from bkctl.runtime.admin.jobs import ENDED_JOBS_KEPT, Jobs, Work
from bkctl.runtime.admin.messages import AdminError
from bkctl.runtime.errors import ConflictError
from bkctl.runtime.net.loop import LoopClock
from bkctl.storage.errors import StorageError


class Report(msgspec.Struct):
    entry_count: int


class Held:
    """Work that goes on until it may end."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self.has_begun = asyncio.Event()
        self.was_cleaned_up = False

    async def run(self, progress: StepProgress) -> Report:
        progress.begin("counting", 10, "entries")
        progress.advance(4)
        self.has_begun.set()
        try:
            await self.may_end.wait()
        finally:
            self.was_cleaned_up = True
        return Report(7)


def failing(error: Exception) -> Work:
    async def run(_: StepProgress) -> None:
        raise error

    return run


async def ended(jobs: Jobs) -> None:
    await asyncio.gather(*jobs._tasks.values())


async def test_progress_and_result() -> None:
    jobs, work = Jobs(LoopClock()), Held()
    job = jobs.begin("counting", work.run)
    await work.has_begun.wait()
    assert (job.id, job.state, job.ended_ms, job.result) == (1, JobState.RUNNING, None, None)
    assert job.progress == StepProgress("counting", 4, 10, "entries")
    work.may_end.set()
    await ended(jobs)
    assert (job.state, job.result, job.error) == (JobState.DONE, {"entry_count": 7}, None)
    assert job.ended_ms is not None
    assert jobs.find(1) is job
    assert jobs.all == [job]


async def test_one_of_a_kind_at_a_time() -> None:
    jobs, work = Jobs(LoopClock()), Held()
    jobs.begin("counting", work.run)
    with pytest.raises(ConflictError, match=r"job 1 \(counting\) is still running"):
        jobs.begin("counting", work.run)
    other = jobs.begin("something else", work.run)
    work.may_end.set()
    await ended(jobs)
    assert other.state is JobState.DONE
    assert jobs.begin("counting", work.run).id == 3
    await jobs.stop()


@pytest.mark.parametrize(
    ("error", "sentence", "problem"),
    [
        (ConflictError("another one"), "another one", "conflict"),
        (StorageError("broken"), "broken", "internal"),
        (OSError(28, "No space left on device", "/data"), "/data: No space left on device", "internal"),
        (ZeroDivisionError("secret"), "the job failed; the log of the server says why", "internal"),
    ],
)
async def test_failures(error: Exception, sentence: str, problem: str) -> None:
    jobs = Jobs(LoopClock())
    job = jobs.begin("counting", failing(error))
    await ended(jobs)
    assert (job.state, job.error, job.problem) == (JobState.FAILED, sentence, problem)


@pytest.mark.parametrize("is_begun", [False, True])
async def test_cancel_waits_until_the_work_has_cleaned_up(is_begun: bool) -> None:
    jobs, work = Jobs(LoopClock()), Held()
    job = jobs.begin("counting", work.run)
    if is_begun:
        await work.has_begun.wait()
    cancelled = await jobs.cancel(job.id)
    assert cancelled.state is JobState.CANCELLED
    assert cancelled.ended_ms is not None
    assert work.was_cleaned_up == is_begun
    assert (await jobs.cancel(job.id)).state is JobState.CANCELLED
    assert jobs.begin("counting", work.run).id == 2
    await jobs.stop()


async def test_stop_ends_all() -> None:
    jobs, work = Jobs(LoopClock()), Held()
    running = [jobs.begin(kind, work.run) for kind in ("a", "b")]
    await jobs.stop()
    assert [job.state for job in running] == [JobState.CANCELLED] * 2
    await jobs.stop()


async def test_only_the_last_ended_ones_are_kept() -> None:
    jobs = Jobs(LoopClock())
    for _ in range(ENDED_JOBS_KEPT + 3):
        jobs.begin("counting", failing(StorageError("broken")))
        await ended(jobs)
    assert [job.id for job in jobs.all] == list(range(4, ENDED_JOBS_KEPT + 4))
    with pytest.raises(AdminError, match="there is no job 1"):
        jobs.find(1)
