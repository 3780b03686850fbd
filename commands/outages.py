"""Outages of ZooKeeper during a long job: what is printed while it waits, and when it ends before its work is done."""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Protocol, TypeVar

from bkctl.commands.console import Console
from bkctl.commands.context import CommandContext
from bkctl.commands.errors import ChangeCutOffError
from bkctl.commands.rendering import time_of_day
from bkctl.commands.safety.state_directory import mask_secrets
from bkctl.runtime.errors import MetadataUnavailableError
from bkctl.runtime.metadata.cluster.operation_lock import OperationLockedError
from bkctl.runtime.metadata.outage import MetadataOutage
from bkctl.runtime.replication.run.ledgers import RecoveryProgress
from bkctl.storage.errors import BkctlError
from bkctl.storage.words import counted, size


def report_outage(console: Console, outage: MetadataOutage) -> None:
    """Print since when and until when a job waits for ZooKeeper, and when it continues."""
    since = time_of_day(outage.since_ms)
    if outage.is_over:
        console.warn(f"ZooKeeper answers again (no answer since {since}); continuing")
        return
    until = time_of_day(outage.since_ms + outage.wait_max_s * 1000)
    console.warn(f"ZooKeeper has not answered since {since}: waiting until {until} at most ({outage.reason})")


class InterruptibleWork(Protocol):
    """Work that can be continued by the same command if it ends early."""

    @property
    def is_begun(self) -> bool:
        """Whether the operator has agreed to the plan."""

    @property
    def file(self) -> str | None:
        """The job file, if there is one: a later run can continue with it."""

    @property
    def state(self) -> tuple[str, ...]:
        """The state of the cluster if the work ends now, with the command that undoes what stays changed."""

    @property
    def has_results(self) -> bool:
        """Whether any part of it has ended."""

    def sentence(self) -> str:
        """A sentence about what is done and what is left."""


WorkT = TypeVar("WorkT", bound=InterruptibleWork)


class WorkProgress:
    """Passes on the progress of a run, and keeps the latest in case the run is interrupted."""

    def __init__(self, ledgers: int, rest: str = "") -> None:
        self._ledgers = ledgers
        self.rest = rest
        """End of the sentence about what is left."""
        self.is_begun = False
        self.last: RecoveryProgress | None = None
        self.file: str | None = None
        self.state: tuple[str, ...] = ()
        self.show: Callable[[RecoveryProgress], None] = lambda _: None

    def note(self, moment: RecoveryProgress) -> None:
        """Receive the progress of the run."""
        self.last = moment
        self.show(moment)

    @property
    def has_results(self) -> bool:
        """Whether the run has reported anything."""
        return self.last is not None

    def sentence(self) -> str:
        """A sentence about what is done and what is left."""
        last = self.last
        if not self._ledgers:
            return f"stopped before the end: there were no ledgers to move{self.rest}"
        if last is None:
            return f"stopped before the first of {counted(self._ledgers, 'ledger')} was finished{self.rest}"
        left = last.ledgers_total - last.ledgers_done
        done = f"{last.ledgers_done - last.ledgers_failed} of {counted(last.ledgers_total, 'ledger')} finished"
        copied = f"{counted(last.entries_copied, 'entry', 'entries')} ({size(last.bytes_copied)}) copied"
        waits = counted(
            last.waiting_for_writers, "open ledger waits for its writer", "open ledgers wait for their writers"
        )
        waiting = f"; {waits}" if last.waiting_for_writers else ""
        return f"stopped before the end: {done}{last.failed}, {left} left; {copied}{waiting}{self.rest}"


@asynccontextmanager
async def reporting_interruption(context: CommandContext, work: WorkT) -> AsyncIterator[WorkT]:
    """If the work inside ends early, for any reason: print what is done, what is left, and how to continue.

    Set ``is_begun`` once the plan is confirmed. ChangeCutOffError when ZooKeeper is the reason.
    """
    console = context.console
    try:
        yield work
    except BaseException as error:
        if not work.is_begun:
            if not isinstance(error, Exception):
                console.say("nothing was changed")
            raise
        is_refused = isinstance(error, BkctlError) and not isinstance(error, MetadataUnavailableError)
        has_begun = work.has_results or not is_refused
        if has_begun:
            console.warn(work.sentence())
        for sentence in work.state:
            console.warn(sentence)
        if has_begun:  # else it was refused before the first change: the error is complete
            if isinstance(error, OperationLockedError):
                console.warn(
                    "the ZooKeeper session of this command has ended, because it was suspended or ZooKeeper was out of "
                    "reach, and another command works there now: continue once that has ended"
                )
            console.warn(f"to continue: {continuing_command(context.settings.command_line, work.file)}")
        if isinstance(error, MetadataUnavailableError):
            raise ChangeCutOffError(str(error), error.path) from error
        raise


_IN_JOB_FILE = frozenset(
    {"--apply", "--resume", "--to", "--ledger", "--from-file", "--copy-rate", "--copy-rate-per-bookie"}
)
"""Options that a continued job takes from its files; the rates may have been changed since."""


def continuing_command(
    command_line: tuple[str, ...], job_file: str | None = None, *, dropped: frozenset[str] = frozenset()
) -> str:
    """The same command, without its saved plan, which no longer fits once a part of it is done.

    With a job file, what the file says is left out too. ``dropped``: more options to leave out, with their values.
    """
    dropped |= {"--apply"} if job_file is None else _IN_JOB_FILE
    if "decommission" in command_line:
        dropped -= {"--from-file"}  # the ledgers that it gives up are in no job
    words: list[str] = []
    is_skipping = False
    for word in command_line:
        if is_skipping or word.partition("=")[0] in dropped:
            is_skipping = word in dropped
        else:
            words.append(word)
    return shlex.join(["bkctl", *mask_secrets(words), *(() if job_file is None else ("--resume", job_file))])
