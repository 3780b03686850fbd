"""Exit codes of errors and outcomes: the two tables of docs/reference/exit-codes.md, in one place."""

from __future__ import annotations

import enum
import signal
from collections.abc import Mapping

from bkctl.commands.errors import (
    InvalidArgumentError,
    NotFoundError,
    Outcome,
    SeveralFailedError,
    StoppedBySignalError,
    WaitTimeoutError,
)
from bkctl.runtime import errors as runtime_errors
from bkctl.storage import errors as storage_errors


class ExitCode(enum.IntEnum):
    """Exit codes of administrative commands."""

    OK = 0
    FAILED = 1
    USAGE = 2
    REFUSED = 3
    NOT_FOUND = 4
    CONFLICT = 5
    METADATA_UNAVAILABLE = 6
    BOOKIE_UNAVAILABLE = 7
    TIMEOUT = 8
    PARTIAL = 9
    FINDINGS = 10
    AUTH = 11
    INTEGRITY = 12
    CONFIG = 13
    CRITICAL = 14
    INTERRUPTED = 130
    BROKEN_PIPE = 141


class ServerExitCode(enum.IntEnum):
    """Exit codes of commands that start servers: the table of the Java server."""

    OK = 0
    INVALID_CONF = 1
    SERVER_EXCEPTION = 2
    ZK_EXPIRED = 3
    ZK_REG_FAIL = 4
    BOOKIE_EXCEPTION = 5


SERVER_COMMANDS = frozenset({"bookie start", "autorecovery start", "dev zookeeper"})
"""Commands that are servers, and exit with codes of the server table."""

_OUTCOMES = {
    None: ExitCode.OK,
    Outcome.OK: ExitCode.OK,
    Outcome.FAILED: ExitCode.FAILED,
    Outcome.PARTIAL: ExitCode.PARTIAL,
    Outcome.FINDINGS: ExitCode.FINDINGS,
    Outcome.UNAUTHORIZED: ExitCode.AUTH,
    Outcome.CRITICAL: ExitCode.CRITICAL,
    Outcome.METADATA_UNAVAILABLE: ExitCode.METADATA_UNAVAILABLE,
}

# The nearest base class of an error decides, so a family needs one row and each exception to it another.
_ERRORS: dict[type[BaseException], ExitCode] = {
    storage_errors.BkctlError: ExitCode.FAILED,
    InvalidArgumentError: ExitCode.USAGE,
    runtime_errors.ConfigurationError: ExitCode.CONFIG,
    runtime_errors.PortInUseError: ExitCode.CONFLICT,
    runtime_errors.RefusedError: ExitCode.REFUSED,
    runtime_errors.CookieError: ExitCode.REFUSED,
    runtime_errors.ConflictError: ExitCode.CONFLICT,
    runtime_errors.NodeExistsError: ExitCode.CONFLICT,
    runtime_errors.BadVersionError: ExitCode.CONFLICT,
    runtime_errors.NotEmptyError: ExitCode.CONFLICT,
    runtime_errors.LedgerExistsError: ExitCode.CONFLICT,
    runtime_errors.LedgerClosedError: ExitCode.CONFLICT,
    runtime_errors.LedgerFencedError: ExitCode.CONFLICT,
    runtime_errors.FencedError: ExitCode.CONFLICT,
    storage_errors.DirectoryLockedError: ExitCode.CONFLICT,
    storage_errors.DeletionPendingError: ExitCode.CONFLICT,
    runtime_errors.NoNodeError: ExitCode.NOT_FOUND,
    runtime_errors.ClusterNotFoundError: ExitCode.NOT_FOUND,
    runtime_errors.LedgerNotFoundError: ExitCode.NOT_FOUND,
    runtime_errors.LogNotFoundError: ExitCode.NOT_FOUND,
    runtime_errors.LogPositionError: ExitCode.NOT_FOUND,
    runtime_errors.LogExistsError: ExitCode.CONFLICT,
    runtime_errors.BookieNotFoundError: ExitCode.NOT_FOUND,
    NotFoundError: ExitCode.NOT_FOUND,
    runtime_errors.NoSuchLedgerError: ExitCode.NOT_FOUND,
    runtime_errors.NoSuchEntryError: ExitCode.NOT_FOUND,
    runtime_errors.MetadataUnavailableError: ExitCode.METADATA_UNAVAILABLE,
    runtime_errors.BookieError: ExitCode.BOOKIE_UNAVAILABLE,
    runtime_errors.NotEnoughBookiesError: ExitCode.BOOKIE_UNAVAILABLE,
    TimeoutError: ExitCode.TIMEOUT,
    WaitTimeoutError: ExitCode.TIMEOUT,
    runtime_errors.AdminAccessError: ExitCode.AUTH,
    runtime_errors.AuthenticationError: ExitCode.AUTH,
    runtime_errors.MetadataAuthError: ExitCode.AUTH,
    runtime_errors.UnauthorizedError: ExitCode.AUTH,
    runtime_errors.LedgerPasswordError: ExitCode.AUTH,
    storage_errors.MasterKeyMismatchError: ExitCode.AUTH,
    runtime_errors.MetadataFormatError: ExitCode.INTEGRITY,
    runtime_errors.DigestMismatchError: ExitCode.INTEGRITY,
    runtime_errors.EntryDigestError: ExitCode.INTEGRITY,
    # Only errors that prove damage: a full disk, a failed write or an ended child process leaves the data unchanged.
    storage_errors.CorruptFileError: ExitCode.INTEGRITY,
    storage_errors.JournalError: ExitCode.INTEGRITY,
    storage_errors.JournalFailedError: ExitCode.FAILED,
    storage_errors.JournalFullError: ExitCode.FAILED,
    storage_errors.EntryLogError: ExitCode.INTEGRITY,
    storage_errors.IndexDamagedError: ExitCode.INTEGRITY,
    storage_errors.IndexMissingError: ExitCode.INTEGRITY,
    storage_errors.AdoptionRefusedError: ExitCode.REFUSED,
    storage_errors.MisplacedLedgerError: ExitCode.REFUSED,
    storage_errors.UnpairedIndexError: ExitCode.REFUSED,
    KeyboardInterrupt: ExitCode.INTERRUPTED,
}

_REFUSALS = (runtime_errors.MetadataAuthError, runtime_errors.AuthenticationRequiredError)

_SERVER_ERRORS: dict[type[BaseException], ServerExitCode] = {
    BaseException: ServerExitCode.SERVER_EXCEPTION,
    InvalidArgumentError: ServerExitCode.INVALID_CONF,
    runtime_errors.ConfigurationError: ServerExitCode.INVALID_CONF,
    runtime_errors.PortInUseError: ServerExitCode.SERVER_EXCEPTION,
    runtime_errors.RefusedError: ServerExitCode.INVALID_CONF,
    storage_errors.UnpairedIndexError: ServerExitCode.INVALID_CONF,
    runtime_errors.BookieNotFoundError: ServerExitCode.INVALID_CONF,
    NotFoundError: ServerExitCode.INVALID_CONF,
    runtime_errors.SessionExpiredError: ServerExitCode.ZK_EXPIRED,
    runtime_errors.RegistrationError: ServerExitCode.ZK_REG_FAIL,
    runtime_errors.BookieFailedError: ServerExitCode.BOOKIE_EXCEPTION,
    storage_errors.JournalFailedError: ServerExitCode.BOOKIE_EXCEPTION,
}


LOGGING_COMMANDS = frozenset({"bookie start", "autorecovery start"})
"""Servers in the foreground: they log to stderr."""


def is_logging_command(command_path: str) -> bool:
    """Whether the command's log belongs on stderr without ``--debug``."""
    return command_path.partition(" ")[2] in LOGGING_COMMANDS


def is_server_command(command_path: str) -> bool:
    """Whether a command exits with codes of the server table, as ``bkctl bookie start`` does."""
    return command_path.partition(" ")[2] in SERVER_COMMANDS


def exit_code_of_outcome(outcome: Outcome | None) -> int:
    """Exit code of a command that raised no error."""
    return _OUTCOMES[outcome]


def exit_code_of_error(error: BaseException, command_path: str) -> int:
    """Exit code of a command that ended with an error."""
    if isinstance(error, StoppedBySignalError):
        return 128 + error.signal_number
    if isinstance(error, SeveralFailedError):
        codes = (exit_code_of_error(each, command_path) for each in error.errors)
        return max(exit_code_of_outcome(error.outcome), *codes)
    if isinstance(error, KeyboardInterrupt):
        return 128 + signal.SIGINT
    if is_server_command(command_path):
        return _nearest(error, _SERVER_ERRORS, ServerExitCode.SERVER_EXCEPTION)
    if any(map(_is_of_permission, (error, error.__cause__))):
        return ExitCode.AUTH  # whatever its sentence is about: a file of settings, of findings, a directory
    return _nearest(_without_answer(error) or error, _ERRORS, ExitCode.FAILED)


def _without_answer(error: BaseException) -> BaseException | None:
    """Why a bookie that is needed for a read gave no valid answer; None if it answered that it has no such entry."""
    cause = error.__cause__
    if not isinstance(error, runtime_errors.LedgerReadError) or cause is None:
        return None
    if not isinstance(cause, runtime_errors.BookieError):
        return _without_answer(cause)
    is_proof = isinstance(cause, runtime_errors.NoSuchEntryError | runtime_errors.NoSuchLedgerError)
    return None if is_proof else cause


def exit_code_of_usage(command_path: str) -> int:
    """Exit code for an option or argument that could not be parsed."""
    return ServerExitCode.INVALID_CONF if is_server_command(command_path) else ExitCode.USAGE


def _is_of_permission(error: BaseException | None) -> bool:
    """Whether a file or a login was refused. An error of a connection names no file: a firewall refuses with EPERM."""
    if isinstance(error, PermissionError):
        return error.filename is not None
    return isinstance(error, _REFUSALS)


def _nearest(error: BaseException, table: Mapping[type[BaseException], int], default: int) -> int:
    return next((int(table[ancestor]) for ancestor in type(error).__mro__ if ancestor in table), default)
