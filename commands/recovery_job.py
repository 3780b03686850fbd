"""The job of a recovery: its file, and the byte rates that can be changed while it runs."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import stat
import time
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from commands.context import CommandContext, CopyFlags
from commands.errors import InvalidArgumentError, NotFoundError
from commands.parse import parse_bytes_per_second
from commands.rendering import counted, size
from commands.safety.state_folder import state_folder
from runtime.errors import ConfigurationError, ConflictError, RefusedError
from runtime.new_file import write_whole
from storage.adapters.filesystem import OsFileSystem
from storage.advice import without_path

if TYPE_CHECKING:
    from commands.console import Console
    from commands.replication_access import ReplicationAccess
    from commands.session import Session
    from runtime.replication.config import OpenLedgers
    from runtime.replication.plan.job_file import JobFile, JobStart, RecordedJob
    from runtime.replication.plan.recovery_plan import RecoveryPlan
    from runtime.replication.policy import CopyPace
    from runtime.replication.run.ledgers import RecoveryJob

_RECORDS_PER_WRITE = 10_000
_NO_LIMIT = "none"
_SUFFIX = ".jsonl"
_UNTOUCHED_S_MAX = 30 * 24 * 3600
"""After so long, a job is hardly continued; without its file, a later run only scans and copies more."""
_RATE_FIELDS = {"copy-rate": "bytes_per_s", "copy-rate-per-bookie": "bytes_per_s_per_bookie"}


@dataclasses.dataclass
class OpenedJob:
    """For ``BookieRecovery.run``. Set ``is_finished`` once nothing needs the job file."""

    path: str
    job: RecoveryJob
    is_finished: bool = False


class JobChoices(NamedTuple):
    """What a job does: given on the command line, or else as the job file says, if one is continued."""

    flags: CopyFlags
    open_ledgers: OpenLedgers | None


def as_recorded(state: RecordedJob, flags: CopyFlags, open_ledgers: OpenLedgers | None) -> JobChoices:
    """The choices for a continued job."""
    start = state.start
    flags = msgspec.structs.replace(
        flags, placement=flags.placement or start.placement, verify=flags.verify or start.verify
    )
    return JobChoices(flags, open_ledgers or start.open_ledgers)


def read_job_state(path: str, bookie_ids: Collection[str], root: str, instance_id: str | None) -> RecordedJob:
    """What the job file says; InvalidArgumentError, ConfigurationError, ConflictError if it is of another job."""
    from runtime.replication.plan.job_file import read_job

    try:
        state = read_job(OsFileSystem(), path)
    except FileNotFoundError as error:
        raise NotFoundError(f"there is no job file {path}") from error
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
    context: CommandContext, access: ReplicationAccess, plan: RecoveryPlan, flags: CopyFlags, operation_id: str
) -> AsyncIterator[OpenedJob]:
    """The job file of a run, new or continued; RefusedError if it cannot be written.

    The first line that is printed names it, and the file with its byte rates. Both are deleted if it is finished.
    """
    from runtime.net.loop import LaneWorkers
    from runtime.replication.plan.job_file import JobFile
    from runtime.replication.run.ledgers import RecoveryJob

    path = flags.resume or os.path.join(state_folder(context.settings, "jobs"), f"{operation_id}{_SUFFIX}")
    rates = RatesFile(_rates_path(path), context.console)
    try:
        if flags.resume is None:
            _delete_untouched(os.path.dirname(path))
            job_file, state = JobFile.create(OsFileSystem(), path, _start(context, access, plan, operation_id)), None
            _record_plan(job_file, plan)
        else:
            job_file, state = JobFile.reopen(OsFileSystem(), path)
        if flags.resume is None or flags.copy_rate or flags.copy_rate_per_bookie or not rates.exists:
            rates.write(flags)
        rates.load()
    except OSError as error:
        if flags.resume is None:
            delete_job(path)
        raise RefusedError(f"nothing was changed: cannot write the job file {path} ({error.strerror})") from error
    if state is not None:
        done = f"{counted(state.ledgers_done, 'ledger')} done before ({size(state.bytes_copied)} copied)"
        context.console.say(f"continues a job with {done}")
    if plan.ledgers:
        context.console.say(f"job file {path}; the byte rates in {rates.path} can be changed at any time")
    workers = LaneWorkers()
    opened: OpenedJob | None = None
    try:
        job = RecoveryJob(job_file, state, workers, rates.read, context.console.warn)
        opened = OpenedJob(path, job)
        yield opened
    finally:
        await workers.close()
        job_file.close()
        if opened is not None and opened.is_finished:
            delete_job(path)
    if not opened.is_finished:
        context.console.say(f"{path} is kept: with --resume, copies that are partly made continue")


def delete_job(path: str) -> None:
    """Delete the files of a finished job, if they can be deleted."""
    for finished in (_rates_path(path), path):  # the one that is looked for goes last
        with contextlib.suppress(OSError):
            os.unlink(finished)


def delete_finished_jobs(
    context: CommandContext, session: Session, bookie_ids: Collection[str], resumed: str | None = None
) -> None:
    """Delete the files of all jobs for only these bookies, which must have nothing left to move, and of ``resumed``."""
    from runtime.replication.plan.job_file import read_start

    if resumed is not None:
        delete_job(resumed)
    state_directory = context.settings.state_directory
    for path in _job_files(os.path.join(state_directory, "jobs")) if state_directory else ():
        with contextlib.suppress(OSError, ConfigurationError):
            start = read_start(OsFileSystem(), path)
            is_of_cluster = (start.root, start.instance_id) == (session.root, session.instance_id)
            if is_of_cluster and set(start.bookie_ids) <= set(bookie_ids):
                delete_job(path)


def _delete_untouched(folder: str) -> None:
    oldest_s = time.time() - _UNTOUCHED_S_MAX
    for path in _job_files(folder):
        with contextlib.suppress(OSError):
            if os.stat(path).st_mtime < oldest_s:
                delete_job(path)


def _job_files(folder: str) -> list[str]:
    try:
        return [os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(_SUFFIX)]
    except OSError:
        return []  # there was no job yet


def _rates_path(path: str) -> str:
    return f"{path}.rates"


def _start(context: CommandContext, access: ReplicationAccess, plan: RecoveryPlan, operation_id: str) -> JobStart:
    from runtime.replication.plan.job_file import JobStart

    session = access.session
    return JobStart(
        job_id=operation_id,
        command=context.command,
        root=session.root,
        instance_id=session.instance_id,
        bookie_ids=plan.bookie_ids,
        only_targets=plan.targets if plan.is_restricted else (),
        is_of_ledgers=plan.is_of_ledgers,
        open_ledgers=access.policy.open_ledgers,
        placement=access.policy.config.placement,
        verify=access.policy.config.verify,
        started_ms=session.now_ms,
    )


def _record_plan(job_file: JobFile, plan: RecoveryPlan) -> None:
    from runtime.replication.plan.job_file import JobLedger, JobPlanned

    for count, ledger in enumerate(plan.ledgers):
        job_file.append(JobLedger(ledger_id=ledger.ledger_id, surviving_copies=ledger.surviving_copies))
        if count % _RECORDS_PER_WRITE == 0:
            job_file.write()
    for failure in plan.unreadable:
        job_file.append(JobLedger(ledger_id=failure.ledger_id, surviving_copies=0))
    job_file.append(JobPlanned(ledgers=len(plan.ledgers), ledgers_scanned=plan.ledgers_scanned))
    job_file.write()


class RatesFile:
    """The byte rates of a running job, in a file that an operator may edit: ``KEY = RATE`` lines."""

    def __init__(self, path: str, console: Console) -> None:
        from runtime.replication.policy import CopyPace

        self.path = path
        self._console = console
        self._text = ""
        self._problem: str | None = None
        self._pace = CopyPace(bytes_per_s=None, bytes_per_s_per_bookie=None)
        self._is_read = False

    @property
    def exists(self) -> bool:
        """Whether there is such a file."""
        return os.path.exists(self.path)

    def write(self, flags: CopyFlags) -> None:
        """Put the file in place; OSError."""
        rates = zip(_RATE_FIELDS, (flags.copy_rate, flags.copy_rate_per_bookie), strict=True)
        lines = [f"{key} = {rate or _NO_LIMIT}" for key, rate in rates]
        text = f"# Read every second; for example 200MiB/s, or {_NO_LIMIT}.\n" + "\n".join(lines) + "\n"
        write_whole(self.path, text.encode())

    def load(self) -> None:
        """Take the rates to start with; ConfigurationError for a file with mistakes, or one that cannot be read."""
        try:
            self._text = self._text_now()
            self._pace = msgspec.structs.replace(self._pace, **parse_rates(self._text))
        except (OSError, UnicodeDecodeError, InvalidArgumentError) as error:
            raise ConfigurationError(f"nothing was changed: {self.path}: {_reason(error)}") from error

    def read(self) -> CopyPace | None:
        """The loaded rates at first, then those of a changed file.

        None if it is unchanged, and for a file with mistakes, which is reported once.
        """
        if not self._is_read:
            self._is_read = True
            return self._pace
        try:
            text = self._text_now()
            if text == self._text:
                return None
            rates = parse_rates(text)
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError, InvalidArgumentError) as error:
            if (reason := _reason(error)) != self._problem:
                self._problem = reason
                self._console.warn(f"{self.path}: {reason}; the byte rates stay as they were")
            return None
        self._text, self._problem = text, None
        pace = msgspec.structs.replace(self._pace, **rates)
        if pace == self._pace:
            return None
        self._pace = pace
        self._console.say(f"new byte rates: {_in_words(pace)}")
        return pace

    def _text_now(self) -> str:
        descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # it may be a pipe
        with open(descriptor, encoding="utf-8") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise InvalidArgumentError("it is not a regular file")
            return file.read()


def parse_rates(text: str) -> dict[str, int | None]:
    """The rates that the text of the file sets, by field of ``CopyPace``; InvalidArgumentError."""
    rates: dict[str, int | None] = {}
    for line in text.splitlines():
        key, separator, value = (part.strip() for part in line.partition("#")[0].partition("="))
        if not key and not separator:
            continue
        if key not in _RATE_FIELDS:
            raise InvalidArgumentError(f"'{line.strip()}' is not understood: use {' or '.join(_RATE_FIELDS)} = RATE")
        rates[_RATE_FIELDS[key]] = None if value == _NO_LIMIT else parse_bytes_per_second(value)
    return rates


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "it is not text"
    return without_path(error)


def _in_words(pace: CopyPace) -> str:
    rates = zip(("all copies", "each bookie"), (pace.bytes_per_s, pace.bytes_per_s_per_bookie), strict=True)
    return ", ".join(f"{what} {_NO_LIMIT if rate is None else f'{size(rate)}/s'}" for what, rate in rates)
