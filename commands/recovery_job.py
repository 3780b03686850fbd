"""The job of a recovery: its file, its processes, and the byte rates that can be changed while it runs."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

from commands.context import CommandContext, CopyFlags
from commands.errors import InvalidArgumentError
from commands.parse import parse_bytes_per_second
from commands.safety.state_folder import state_folder, write_whole
from runtime.errors import ConflictError, RefusedError

if TYPE_CHECKING:
    from commands.console import Console
    from commands.session import Session
    from runtime.replication.copy_messages import CopyPace, CopyProcessSetup
    from runtime.replication.job_file import JobFile, JobStart, RecordedJob
    from runtime.replication.recovery_plan import RecoveryPlan
    from runtime.replication.recovery_run import RecoveryJob

PROCESSES_MAX = 4
"""More processes than this only if they are asked for."""
_PROCESS_WORTH_BYTES = 256 * 1024 * 1024
"""How much work one more process is started for: below, its start and its own sessions cost more than it helps."""
_LEDGER_COST_BYTES = 64 * 1024
"""A ledger takes about as much CPU time as copying this, in addition to its bytes."""
_RECORDS_PER_WRITE = 10_000
_NO_LIMIT = "none"
_RATE_KEYS = ("copy-rate", "copy-rate-per-bookie")


def pace_of(flags: CopyFlags) -> CopyPace:
    """The byte rates of the command line; InvalidArgumentError."""
    from runtime.replication.copy_messages import CopyPace

    total, per_bookie = (
        None if text is None else parse_bytes_per_second(text) for text in (flags.copy_rate, flags.copy_rate_per_bookie)
    )
    return CopyPace(bytes_per_s=total, bytes_per_s_per_bookie=per_bookie)


class OpenedJob(NamedTuple):
    """For ``BookieRecovery.run``."""

    path: str
    job: RecoveryJob
    processes: CopyProcessSetup | None


def read_job_state(path: str, bookie_ids: Collection[str], root: str, instance_id: str | None) -> RecordedJob:
    """What the job file says; InvalidArgumentError, ConfigurationError, ConflictError if it is of another job."""
    from runtime.replication.job_file import read_job
    from storage.adapters.filesystem import OsFileSystem

    try:
        state = read_job(OsFileSystem(), path)
    except OSError as error:
        raise InvalidArgumentError(f"cannot read the job file {path}: {error.strerror}") from error
    start = state.start
    if (start.root, start.instance_id) != (root, instance_id):
        raise ConflictError(f"nothing was changed: {path} is a job of another cluster")
    if set(start.bookie_ids) != set(bookie_ids):
        raise ConflictError(f"nothing was changed: {path} is a job for {', '.join(start.bookie_ids)}: repeat these ids")
    if not state.is_planned:
        raise ConflictError(
            f"nothing was changed: {path} has no complete plan, so the job had copied nothing: start it again without "
            "--resume"
        )
    return state


@asynccontextmanager
async def open_job(
    context: CommandContext, session: Session, plan: RecoveryPlan, flags: CopyFlags, operation_id: str
) -> AsyncIterator[OpenedJob]:
    """The job file of a run, new or continued; RefusedError if it cannot be written.

    The first line that is printed names it, and the file with its byte rates. Both are deleted once the plan is done.
    """
    from runtime.net.loop import LaneWorkers
    from runtime.replication.job_file import JobFile
    from runtime.replication.recovery_run import RecoveryJob
    from storage.adapters.filesystem import OsFileSystem

    path = flags.resume or os.path.join(state_folder(context.settings, "jobs"), f"{operation_id}.jsonl")
    rates = RatesFile(f"{path}.rates", context.console)
    try:
        if flags.resume is None:
            job_file, state = JobFile.create(OsFileSystem(), path, _start(context, session, plan, operation_id)), None
            _record_plan(job_file, plan)
        else:
            job_file, state = JobFile.reopen(OsFileSystem(), path)
        if flags.resume is None or flags.copy_rate or flags.copy_rate_per_bookie or not rates.exists:
            rates.write(flags)
    except OSError as error:
        raise RefusedError(f"nothing was changed: cannot write the job file {path} ({error.strerror})") from error
    if plan.ledgers:
        context.console.say(f"job file {path}; the byte rates in {rates.path} can be changed at any time")
    workers = LaneWorkers()
    try:
        job = RecoveryJob(job_file, state, workers, rates.read)
        yield OpenedJob(path, job, await _processes(context, plan, flags))
    finally:
        await workers.close()
        job_file.close()
    for finished in (path, rates.path):
        with contextlib.suppress(OSError):
            os.unlink(finished)


def _start(context: CommandContext, session: Session, plan: RecoveryPlan, operation_id: str) -> JobStart:
    from runtime.replication.job_file import JobStart

    return JobStart(
        job_id=operation_id,
        command=context.command,
        root=session.root,
        instance_id=session.instance_id,
        bookie_ids=plan.bookie_ids,
        only_targets=plan.targets if plan.is_restricted else (),
        started_ms=session.now_ms,
    )


def _record_plan(job_file: JobFile, plan: RecoveryPlan) -> None:
    from runtime.replication.job_file import JobLedger, JobPlanned

    for count, ledger in enumerate(plan.ledgers):
        job_file.append(JobLedger(ledger_id=ledger.ledger_id, surviving_copies=ledger.surviving_copies))
        if count % _RECORDS_PER_WRITE == 0:
            job_file.write()
    for failure in plan.unreadable:
        job_file.append(JobLedger(ledger_id=failure.ledger_id, surviving_copies=0))
    job_file.append(JobPlanned(ledgers=len(plan.ledgers), ledgers_scanned=plan.ledgers_scanned))
    job_file.write()


async def _processes(context: CommandContext, plan: RecoveryPlan, flags: CopyFlags) -> CopyProcessSetup | None:
    """None: the work is done in this process."""
    from commands.session import require_metadata_uri
    from runtime.net.host import canonical_host_name
    from runtime.replication.copy_messages import CopyProcessSetup
    from storage.adapters.child_pool import ChildProcesses

    totals = plan.totals
    count = flags.processes or default_processes(totals.bytes_to_copy, totals.ledgers, ChildProcesses().core_count)
    if count == 1:
        return None
    return CopyProcessSetup(
        metadata_uri=require_metadata_uri(context),
        client=context.settings.client,
        zookeeper=context.settings.zookeeper,
        lock_holder=await asyncio.to_thread(canonical_host_name),
        count=count,
    )


def default_processes(bytes_to_copy: int, ledgers: int, core_count: int) -> int:
    """How many processes are worth their start."""
    worth = 1 + (bytes_to_copy + ledgers * _LEDGER_COST_BYTES) // _PROCESS_WORTH_BYTES
    return min(PROCESSES_MAX, core_count, worth)


class RatesFile:
    """The byte rates of a running job, in a file that an operator may edit: ``KEY = RATE`` lines."""

    def __init__(self, path: str, console: Console) -> None:
        self.path = path
        self._console = console
        self._text: str | None = None

    @property
    def exists(self) -> bool:
        """Whether there is such a file."""
        return os.path.exists(self.path)

    def write(self, flags: CopyFlags) -> None:
        """Put the file in place; OSError."""
        rates = zip(_RATE_KEYS, (flags.copy_rate, flags.copy_rate_per_bookie), strict=True)
        lines = [f"{key} = {rate or _NO_LIMIT}" for key, rate in rates]
        text = f"# Read every second; for example 200MiB/s, or {_NO_LIMIT}.\n" + "\n".join(lines) + "\n"
        write_whole(self.path, text.encode())

    def read(self) -> CopyPace | None:
        """The rates if the file has changed; None otherwise, and for a file with mistakes, which is reported once."""
        try:
            with open(self.path, encoding="utf-8") as file:
                text = file.read()
        except (OSError, UnicodeDecodeError):
            return None  # it may just be being replaced
        if text == self._text:
            return None
        is_first, self._text = self._text is None, text
        try:
            pace = parse_rates(text)
        except InvalidArgumentError as error:
            self._console.warn(f"{self.path}: {error}; the byte rates stay as they were")
            return None
        if not is_first:
            self._console.say(f"new byte rates: {_in_words(pace)}")
        return pace


def parse_rates(text: str) -> CopyPace:
    """The rates from the text of the file; InvalidArgumentError. A key that is absent means no limit."""
    from runtime.replication.copy_messages import CopyPace

    rates: dict[str, int | None] = dict.fromkeys(_RATE_KEYS)
    for line in text.splitlines():
        key, separator, value = (part.strip() for part in line.partition("#")[0].partition("="))
        if not key and not separator:
            continue
        if key not in rates:
            raise InvalidArgumentError(f"'{line.strip()}' is not understood: use {' or '.join(_RATE_KEYS)} = RATE")
        rates[key] = None if value == _NO_LIMIT else parse_bytes_per_second(value)
    total, per_bookie = (rates[key] for key in _RATE_KEYS)
    return CopyPace(bytes_per_s=total, bytes_per_s_per_bookie=per_bookie)


def _in_words(pace: CopyPace) -> str:
    from commands.rendering import size

    rates = zip(("all copies", "each bookie"), (pace.bytes_per_s, pace.bytes_per_s_per_bookie), strict=True)
    return ", ".join(f"{what} {_NO_LIMIT if rate is None else f'{size(rate)}/s'}" for what, rate in rates)
