"""The job of a recovery: its file, and the byte rates that can be changed while it runs."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import stat
import time
from collections.abc import AsyncIterator, Collection, Iterable, Iterator
from contextlib import asynccontextmanager

import msgspec

from bkctl.commands.console import Console
from bkctl.commands.context import CommandContext, CopyFlags
from bkctl.commands.errors import InvalidArgumentError, NotFoundError
from bkctl.commands.parse import NO_LIMIT, parse_rate_limit
from bkctl.commands.safety.gate import Change
from bkctl.commands.safety.state_directory import state_directory
from bkctl.commands.session import Session
from bkctl.runtime.errors import ConfigurationError, ConflictError, RefusedError
from bkctl.runtime.net.loop import LaneWorkers
from bkctl.runtime.new_file import write_whole
from bkctl.runtime.replication.config import CopyPace, Policy
from bkctl.runtime.replication.plan.recovery_plan import RecoveryPlan
from bkctl.runtime.replication.plan.store import JobFile, JobStart, JobWork, RecoveryJob, UnfinishedJob, no_job_file
from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.adapters.sqlite import SqliteDatabase, create_database
from bkctl.storage.advice import without_path
from bkctl.storage.errors import BkctlError
from bkctl.storage.words import counted, size

_SUFFIX = ".sqlite"
_OLD_SUFFIX = ".jsonl"
_HEAD = b"SQLite format 3\0"
_OLD_HEAD = b'{"record":"start",'
_START_BYTES_MAX = 1 << 20
_UNTOUCHED_S_MAX = 30 * 24 * 3600
"""After so long, a job is hardly continued; without its file, a later run only scans and copies more."""
_RATE_FIELDS = {"copy-rate": "bytes_per_s", "copy-rate-per-bookie": "bytes_per_s_per_bookie"}


@dataclasses.dataclass
class OpenedJob:
    """For ``BookieRecovery.run``. Set ``is_finished`` once nothing needs the job file."""

    path: str
    job: RecoveryJob
    is_finished: bool = False

    @property
    def kept_file(self) -> str | None:
        """The job file that a later run continues with, if there is one."""
        return None if self.is_finished else self.path


def read_unfinished(path: str, bookie_ids: Collection[str], session: Session) -> UnfinishedJob:
    """What a job of bookies has left; ConflictError if it is another one; errors of ``_reopen``."""
    with contextlib.closing(_reopen(path)) as job_file:
        unfinished = job_file.unfinished
    start = unfinished.start
    _require_of_cluster(path, start, session)
    if not start.bookie_ids:
        raise ConflictError(f"nothing was changed: {path} is a job of bkctl recover ledger")
    if set(start.bookie_ids) != set(bookie_ids):
        raise ConflictError(f"nothing was changed: {path} is a job for {', '.join(start.bookie_ids)}: repeat these ids")
    return unfinished


def read_unfinished_of_ledgers(path: str, ledger_ids: Collection[int], session: Session) -> UnfinishedJob:
    """What a job of ``recover ledger`` has left; ConflictError if it is another one; errors of ``_reopen``.

    ``ledger_ids``: those of the command line, which may be repeated; the job has those with bad copies.
    """
    with contextlib.closing(_reopen(path)) as job_file:
        unfinished, planned = job_file.unfinished, job_file.ledger_ids
    _require_of_cluster(path, unfinished.start, session)
    if unfinished.start.bookie_ids:
        raise ConflictError(f"nothing was changed: {path} is a job for {', '.join(unfinished.start.bookie_ids)}")
    if ledger_ids and not planned <= set(ledger_ids):
        raise ConflictError(
            f"nothing was changed: {path} is a job of {counted(len(planned), 'ledger')}, which are not all among "
            "these: leave out LEDGER"
        )
    return unfinished


def _require_of_cluster(path: str, start: JobStart, session: Session) -> None:
    if (start.root, start.instance_id) != (session.root, session.instance_id):
        raise ConflictError(f"nothing was changed: {path} is a job of another cluster")


def _reopen(path: str, *, is_exclusive: bool = False) -> JobFile:
    """An existing job file; NotFoundError, InvalidArgumentError, ConfigurationError, ConflictError if it is in use."""
    try:
        head = _head(path, max(len(_HEAD), len(_OLD_HEAD)))
        if head.startswith(_OLD_HEAD):
            raise ConfigurationError(
                f"{path} is a job file of an older bkctl: continue it with the bkctl that began it, or start a new job"
            )
        if head and not head.startswith(_HEAD):
            raise no_job_file(path)
        return JobFile(SqliteDatabase(path, is_exclusive=is_exclusive))
    except FileNotFoundError as error:
        raise NotFoundError(f"there is no job file {path}") from error
    except BlockingIOError as error:
        raise ConflictError(f"nothing was changed: another process continues the job of {path}") from error
    except OSError as error:
        raise InvalidArgumentError(f"cannot open the job file {path}: {error.strerror}") from error


def _head(path: str, size_bytes: int) -> bytes:
    with contextlib.closing(OsFileSystem().open(path)) as file:
        return file.pread(size_bytes, 0)


@asynccontextmanager
async def open_job(
    context: CommandContext, change: Change, flags: CopyFlags, start: JobStart, work: Iterable[JobWork]
) -> AsyncIterator[OpenedJob]:
    """The job file of a run, new or continued; RefusedError if it cannot be written. ``work``: of a new job.

    The first line that is printed names it, and the file with its byte rates. Both are deleted if it is finished.
    """
    path = flags.resume or os.path.join(state_directory(context.settings, "jobs"), f"{start.job_id}{_SUFFIX}")
    rates = RatesFile(_rates_path(path), context.console)
    try:
        if flags.resume is None:
            _delete_untouched(os.path.dirname(path))
            job_file = JobFile.create(create_database(path), start, work)
        else:
            job_file = _reopen(path, is_exclusive=True)
        if flags.resume is None or flags.copy_rate or flags.copy_rate_per_bookie or not rates.exists:
            rates.write(flags)
        rates.load()
    except OSError as error:
        if flags.resume is None:
            delete_job(path)
        raise RefusedError(f"nothing was changed: cannot write the job file {path} ({error.strerror})") from error
    if flags.resume is not None:
        ledgers, bytes_copied = job_file.done_before
        context.console.say(
            f"continues a job with {counted(ledgers, 'ledger')} done before ({size(bytes_copied)} copied); "
            f"now with {rates.limits}"
        )
    if job_file.has_ledgers:
        context.console.say(f"job file {path}; the byte rates in {rates.path} can be changed at any time")
    workers = LaneWorkers()
    opened: OpenedJob | None = None
    try:
        job = RecoveryJob(job_file, workers, rates.read, context.console.warn, change.hold_lock)
        opened = OpenedJob(path, job)
        yield opened
    finally:
        await workers.close()
        job_file.close()
        if opened is not None and opened.is_finished:
            delete_job(path)


def delete_job(path: str) -> None:
    """Delete the files of a finished job, if they can be deleted."""
    for finished in (_rates_path(path), f"{path}-journal", path):  # the one that is looked for goes last
        with contextlib.suppress(OSError):
            os.unlink(finished)


async def delete_finished_jobs(
    context: CommandContext, session: Session, bookie_ids: Collection[str], resumed: str | None = None
) -> None:
    """Delete the files of all jobs for only these bookies, which must have nothing left to move, and of ``resumed``."""
    if resumed is not None:
        delete_job(resumed)
    cluster, state_directory = (session.root, session.instance_id), context.settings.state_directory

    def delete_all(folder: str) -> None:
        for path in _job_files(folder):
            with contextlib.suppress(OSError, BkctlError, msgspec.DecodeError):
                start = _read_start(path)
                is_of_cluster = (start.root, start.instance_id) == cluster
                if is_of_cluster and start.bookie_ids and set(start.bookie_ids) <= set(bookie_ids):
                    delete_job(path)

    if state_directory and bookie_ids:  # in a thread, which may wait for a job that another process has open
        await asyncio.to_thread(delete_all, os.path.join(state_directory, "jobs"))


def _read_start(path: str) -> JobStart:
    """What a job is for, also one of an older bkctl; errors of ``_reopen``, OSError, DecodeError."""
    if path.endswith(_OLD_SUFFIX):
        return msgspec.json.decode(_head(path, _START_BYTES_MAX).partition(b"\n")[0], type=JobStart)
    with contextlib.closing(_reopen(path)) as job_file:
        return job_file.start


def _delete_untouched(directory: str) -> None:
    oldest_s = time.time() - _UNTOUCHED_S_MAX
    for path in _job_files(directory):
        with contextlib.suppress(OSError):
            if os.stat(path).st_mtime < oldest_s:
                delete_job(path)


def _job_files(directory: str) -> list[str]:
    try:
        return [
            os.path.join(directory, name) for name in os.listdir(directory) if name.endswith((_SUFFIX, _OLD_SUFFIX))
        ]
    except OSError:
        return []  # there was no job yet


def _rates_path(path: str) -> str:
    return f"{path}.rates"


def start_of(
    context: CommandContext, session: Session, policy: Policy, operation_id: str, plan: RecoveryPlan | None = None
) -> JobStart:
    """What a new job is for. ``plan`` None: ledgers are repaired in place."""
    return JobStart(
        job_id=operation_id,
        command=context.command,
        root=session.root,
        instance_id=session.instance_id,
        bookie_ids=() if plan is None else plan.bookie_ids,
        only_targets=plan.targets if plan is not None and plan.is_restricted else (),
        is_of_ledgers=plan is None or plan.is_of_ledgers,
        open_ledgers=policy.open_ledgers,
        placement=policy.config.placement,
        verify=policy.config.verify,
        started_ms=session.now_ms,
    )


def work_of(plan: RecoveryPlan) -> Iterator[JobWork]:
    """The ledgers of a plan. Their metadata is read again, so no more is recorded."""
    for ledger in plan.ledgers:
        yield JobWork(ledger.surviving_copies, ledger.ledger_id)
    for failure in plan.unreadable:
        yield JobWork(0, failure.ledger_id)


def with_recorded_rates(flags: CopyFlags, console: Console) -> CopyFlags:
    """With ``--resume``, the byte rates of the job for those that were not given; ConfigurationError."""
    rates = RatesFile(_rates_path(flags.resume or ""), console)
    if flags.resume is None or not rates.exists:
        return flags
    rates.load()
    total, per_bookie = (None if each is None else str(each) for each in rates.kept)
    return msgspec.structs.replace(
        flags,
        copy_rate=flags.copy_rate or total,
        copy_rate_per_bookie=flags.copy_rate_per_bookie or per_bookie,
    )


class RatesFile:
    """The byte rates of a running job, in a file that an operator may edit: ``KEY = RATE`` lines."""

    def __init__(self, path: str, console: Console) -> None:
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

    @property
    def kept(self) -> tuple[int | None, int | None]:
        """The rates that were loaded: of all copies, and for each bookie."""
        return self._pace.bytes_per_s, self._pace.bytes_per_s_per_bookie

    def write(self, flags: CopyFlags) -> None:
        """Put the file in place; a rate that is not given stays as an earlier file has it. OSError; as ``load``."""
        given = (flags.copy_rate, flags.copy_rate_per_bookie)
        if self.exists and not all(given):
            self.load()
        pairs = zip(_RATE_FIELDS, given, self.kept, strict=True)
        lines = [f"{key} = {new or old or NO_LIMIT}" for key, new, old in pairs]
        text = f"# Read every second; for example 200MiB/s, or {NO_LIMIT}.\n" + "\n".join(lines) + "\n"
        write_whole(self.path, text.encode())

    @property
    def limits(self) -> str:
        """The rates that were loaded, in words: they may be those of an earlier run."""
        rates = {key: getattr(self._pace, field) for key, field in _RATE_FIELDS.items()}
        return ", ".join(f"{key} {NO_LIMIT if rate is None else size(rate) + '/s'}" for key, rate in rates.items())

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
        rates[_RATE_FIELDS[key]] = parse_rate_limit(value)
    return rates


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "it is not text"
    return without_path(error)


def _in_words(pace: CopyPace) -> str:
    rates = zip(("all copies", "each bookie"), (pace.bytes_per_s, pace.bytes_per_s_per_bookie), strict=True)
    return ", ".join(f"{what} {NO_LIMIT if rate is None else f'{size(rate)}/s'}" for what, rate in rates)
