"""How commands end: their errors, and the outcome of a command that raised none.

BkctlError
├── InvalidArgumentError    an argument is invalid; nothing was done
├── NotFoundError           something that the command line refers to does not exist
├── NoDirectoryError        no directory of a bookie is configured
├── ChangeCutOffError       ZooKeeper was lost during a change of the cluster; the command can be run again
├── PlanShown               the plan was requested, and has been shown
├── WaitTimeoutError        what the command waited for has not happened in the given time
├── NoRoomError             a disk of the bookie is full; its data is undamaged
├── ReaderGoneError         the reader of stdout has closed it
├── SeveralFailedError      the work for some of several bookies or ledgers failed; the errors were printed
└── StoppedBySignalError    a signal ended the command before its work was done
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

from bkctl.runtime.errors import ConfigurationError, MetadataUnavailableError
from bkctl.storage.errors import BkctlError


class InvalidArgumentError(BkctlError):
    """An argument is malformed or contradicts another; nothing was done."""


class NotFoundError(BkctlError):
    """Something that the command line refers to does not exist: an entry, a development cluster."""


def unreadable_file(what: str, error: OSError) -> BkctlError:
    """The error for a file of the command line that cannot be read; ``what`` names it."""
    kind = NotFoundError if isinstance(error, FileNotFoundError) else InvalidArgumentError
    return kind(f"cannot read {what}: {error.strerror}")


class NoDirectoryError(ConfigurationError):
    """The settings specify no directory for the data of a bookie."""


class ChangeCutOffError(MetadataUnavailableError):
    """The connection to ZooKeeper or the session was lost during a change; the command can be run again."""


class PlanShown(BkctlError):  # noqa: N818  it is not a failure
    """The plan was shown or saved, as ``--dry-run`` and ``--plan-out`` request: ends the command with ``outcome``."""

    def __init__(self, message: str, outcome: Outcome) -> None:
        super().__init__(message)
        self.outcome = outcome


class WaitTimeoutError(BkctlError):
    """What the command waited for has not happened within the time of its option."""


class NoRoomError(BkctlError):
    """A disk of the bookie on this machine is full; its data is undamaged."""


class ReaderGoneError(BkctlError):
    """The reader of the results has closed stdout (``| head``); the command ends."""


class StoppedBySignalError(BkctlError):
    """A signal ended the command before its work was done."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(f"stopped by signal {signal_number} before the work was done")
        self.signal_number = signal_number


class Outcome(enum.Enum):
    """Result of a command that raised no error; None stands for OK. Of several, the later one is worse."""

    OK = "done, or nothing to do"
    FAILED = "the operation ran and failed"
    PARTIAL = "some items done, some failed"
    FINDINGS = "the checks ran and found problems"
    UNAUTHORIZED = "no permission for what all unfinished items need"
    CRITICAL = "the checks ran and found problems that must not wait"
    METADATA_UNAVAILABLE = "the checks found that ZooKeeper does not answer"


class SeveralFailedError(BkctlError):
    """The work for some of several failed: their ``errors`` were printed. ``outcome``: the worst of the others."""

    def __init__(self, errors: Sequence[BkctlError], total: int, outcome: Outcome) -> None:
        super().__init__(f"{len(errors)} of {total} failed")
        self.errors = tuple(errors)
        self.outcome = outcome
