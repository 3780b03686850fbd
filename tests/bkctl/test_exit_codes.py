"""Errors and outcomes have the exit codes that docs/reference/exit-codes.md promises."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from typing import Final

import pytest
from kazoo.client import KazooClient
from kazoo.security import OPEN_ACL_UNSAFE, make_digest_acl

from bkctl.commands.errors import InvalidArgumentError, NoRoomError, NotFoundError, Outcome, StoppedBySignalError
from bkctl.exit_codes import (
    SERVER_COMMANDS,
    ExitCode,
    ServerExitCode,
    exit_code_of_error,
    exit_code_of_outcome,
    exit_code_of_usage,
)
from bkctl.runtime import errors as runtime_errors
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.storage import errors as storage_errors
from tests.bkctl.test_main import NO_SERVER
from tests.processes import bkctl_command, bkctl_environment, run_bkctl
from tests.test_repository import read

_RIGHTS: Final = "-dac_override,-dac_read_search"
AS_A_USER: Final = ("setpriv", f"--bounding-set={_RIGHTS}", f"--inh-caps={_RIGHTS}") if os.getuid() == 0 else ()
"""Root, too, may then use only the files whose mode allows it."""

ADMINISTRATIVE = [
    (storage_errors.BkctlError("x"), 1),
    (ValueError("x"), 1),
    (OSError(28, "No space left on device"), 1),
    (NoRoomError("x"), 1),
    (InvalidArgumentError("x"), 2),
    (runtime_errors.RefusedError("x"), 3),
    (runtime_errors.CookieError("x"), 3),
    (runtime_errors.LedgerNotFoundError(1, "x"), 4),
    (runtime_errors.BookieNotFoundError("x"), 4),
    (runtime_errors.ClusterNotFoundError("x"), 4),
    (NotFoundError("x"), 4),
    (runtime_errors.ConflictError("x"), 5),
    (runtime_errors.BadVersionError("x"), 5),
    (runtime_errors.LedgerExistsError(1, "x"), 5),
    (runtime_errors.PortInUseError("x"), 5),
    (storage_errors.DirectoryLockedError("x"), 5),
    (runtime_errors.MetadataUnavailableError("x"), 6),
    (runtime_errors.SessionExpiredError("x"), 6),
    (runtime_errors.BookieUnavailableError("b", "x"), 7),
    (runtime_errors.BookieIOError("b", "x"), 7),
    (runtime_errors.NotEnoughBookiesError(1, "x"), 7),
    (TimeoutError(), 8),
    (runtime_errors.MetadataAuthError("x"), 11),
    (runtime_errors.LedgerPasswordError(1, "x"), 11),
    (runtime_errors.AdminAccessError("x"), 11),
    (runtime_errors.DigestMismatchError(1, "x"), 12),
    (runtime_errors.MetadataFormatError("x"), 12),
    (storage_errors.CorruptFileError("p", 0, "x"), 12),
    (runtime_errors.ConfigurationError("x"), 13),
    (KeyboardInterrupt(), 130),
    (StoppedBySignalError(signal.SIGTERM), 143),
]

SERVERS = [
    (InvalidArgumentError("x"), 1),
    (runtime_errors.ConfigurationError("x"), 1),
    (runtime_errors.RefusedError("x"), 1),
    (runtime_errors.PortInUseError("x"), 2),
    (runtime_errors.CookieError("x"), 2),
    (runtime_errors.MetadataUnavailableError("x"), 2),
    (storage_errors.DirectoryLockedError("x"), 2),
    (OSError(28, "No space left on device"), 2),
    (ValueError("x"), 2),
    (runtime_errors.SessionExpiredError("x"), 3),
    (runtime_errors.RegistrationError("x"), 4),
    (storage_errors.JournalFailedError("x"), 5),
    (storage_errors.IndexFailedError("x"), 2),
    (runtime_errors.BookieFailedError("x"), 5),
    (KeyboardInterrupt(), 130),
]


DECIDED = {
    1: """
        BkctlError StorageError JournalFailedError JournalFullError IndexFailedError IndexFullError ChildFailedError
        DiskUnusableError NoWritableDiskError NoRoomToStartError MemtableFullError EntryTooLargeError
        ProtocolError MetadataError LedgerError TooManyPendingAddsError DuplicateEntryError LedgerReadError
        LedgerRecoveryError AnswersMissingError
        BookieFailedError RegistrationError LedgerCollectedError
    """,
    3: "MisplacedLedgerError AdoptionRefusedError RefusedError CookieError UnpairedIndexError",
    4: """
        NoNodeError ClusterNotFoundError NoSuchEntryError NoSuchLedgerError LedgerNotFoundError BookieNotFoundError
        LogNotFoundError LogPositionError
    """,
    5: """
        DirectoryLockedError DeletionPendingError PortInUseError ConflictError NodeExistsError BadVersionError
        NotEmptyError FencedError LedgerExistsError LedgerClosedError LedgerFencedError LogExistsError
        LogTakenOverError
    """,
    6: "MetadataUnavailableError MetadataClosedError MetadataLoginError MetadataOutageError SessionExpiredError",
    7: """
        BookieError BookieReadOnlyError TooManyRequestsError BookieIOError BadRequestError UnknownLedgerStateError
        BookieTimeoutError BookieUnavailableError ClientClosedError NotEnoughBookiesError
    """,
    11: """
        MasterKeyMismatchError MetadataAuthError UnauthorizedError AuthenticationRequiredError LedgerPasswordError
        AdminAccessError AuthenticationError
    """,
    12: """
        CorruptFileError JournalError EntryLogError EntryLogMissingError EntryDamagedError IndexDamagedError
        IndexMissingError EntryDigestError MetadataFormatError DigestMismatchError
    """,
    13: "ConfigurationError",
}
"""The exit code of every error of the two lower packages. A new error needs a decision: is anything damaged (12)?"""


def test_the_exit_code_of_every_error_is_decided() -> None:
    found: dict[int, set[str]] = {}
    for module in (storage_errors, runtime_errors):
        for kind in vars(module).values():
            if isinstance(kind, type) and issubclass(kind, storage_errors.BkctlError):
                code = exit_code_of_error(kind.__new__(kind), "bkctl ledger show")
                found.setdefault(code, set()).add(kind.__name__)
    assert found == {code: set(names.split()) for code, names in DECIDED.items()}


@pytest.mark.parametrize(("error", "code"), ADMINISTRATIVE, ids=lambda value: type(value).__name__)
def test_administrative_commands(error: BaseException, code: int) -> None:
    assert exit_code_of_error(error, "bkctl ledger show") == code


@pytest.mark.parametrize(("error", "code"), SERVERS, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("path", ["bkctl bookie start", "bkctl autorecovery start", "bkctl dev zookeeper"])
def test_commands_that_start_servers(error: BaseException, code: int, path: str) -> None:
    assert exit_code_of_error(error, path) == code


@pytest.mark.parametrize("kind", [runtime_errors.ConfigurationError, InvalidArgumentError, runtime_errors.RefusedError])
def test_no_permission_is_11_whatever_the_sentence_is_about(kind: type[Exception]) -> None:
    cause = PermissionError(13, "Permission denied", "/data")
    assert exit_code_of_error(cause, "bkctl storage check") == 11
    error = kind("cannot read /data")
    error.__cause__ = cause
    assert exit_code_of_error(error, "bkctl storage check") == 11
    assert exit_code_of_error(error, "bkctl bookie start") != 11


def test_a_connection_that_a_firewall_refuses_is_no_lack_of_permission() -> None:
    cause = PermissionError(1, "Operation not permitted")
    assert exit_code_of_error(cause, "bkctl ledger show") == 1
    error = runtime_errors.BookieUnavailableError("b1:3181", "Operation not permitted")
    expected = exit_code_of_error(error, "bkctl ledger show")
    error.__cause__ = cause
    assert exit_code_of_error(error, "bkctl ledger show") == expected == 7


NO_FILE = [
    *(("--config", "{secret}"), ("--conf", "{secret}"), ("config", "show", "--config", "{secret}")),
    *(("ledger", "delete", "--from-file", "{secret}"), ("audit", "--from", "{secret}")),
    *(
        ("cluster", "restore", "{secret}"),
        ("audit", "show", "{closed}/report"),
    ),
    *(("ledger", "read", "1", "--password-file", "{secret}"),),
    *(("storage", "files", "--journal-dir", "{closed}", "--ledger-dir", "{closed}"),),
    *(("bookie", "state", "--ledger-dir", "{closed}"), ("bookie", "stop", "--ledger-dir", "{closed}")),
    ("bookie", "list", "-c", "{secret}"),
]
WITH_CLUSTER = [
    *(("recover", "ledger", "--from-file", "{secret}"), ("cluster", "backup", "{closed}/backup")),
    ("autorecovery", "disable", "--reason", "x", "--apply", "{secret}"),
    ("ledger", "import", "{secret}", "--create-only"),
]


@pytest.fixture(scope="module")
def without_permission() -> Iterator[dict[str, str]]:
    """A file and a directory that its owner may not use either."""
    with tempfile.TemporaryDirectory() as directory:
        names = {"secret": f"{directory}/secret", "closed": f"{directory}/closed"}
        os.mkdir(names["closed"], 0)
        with open(names["secret"], "x", encoding="utf-8") as file:
            os.fchmod(file.fileno(), 0)
        yield names
        os.chmod(names["closed"], 0o700)


@pytest.mark.parametrize("words", NO_FILE, ids=" ".join)
def test_no_permission_for_a_file_is_exit_11_and_one_sentence(
    words: tuple[str, ...], without_permission: dict[str, str]
) -> None:
    arguments = [word.format(**without_permission) for word in words]
    if words[0] in {"ledger", "cluster"} or "--from" in words:
        arguments += ["-u", NO_SERVER]
    arguments += ["bookie", "list"] if words[0].startswith("-") else []
    assert_no_permission(arguments)


@pytest.mark.parametrize("words", WITH_CLUSTER, ids=" ".join)
def test_no_permission_for_a_file_of_a_change_is_exit_11(
    words: tuple[str, ...], without_permission: dict[str, str], metadata_uri: str
) -> None:
    assert run_bkctl("cluster", "init", "-u", metadata_uri).exit_code == 0
    assert_no_permission([*(word.format(**without_permission) for word in words), "-u", metadata_uri])


@pytest.mark.parametrize(
    "words",
    [
        *("status", "bookie list", "bookie show b1:3181", "cluster info", "cluster init", "cookie list", "ledger list"),
        *("ledger show 1", "ledger delete 1 --confirm x", "metadata doctor", "autorecovery status", "audit"),
        *("recover b1:3181 --yes", "decommission b1:3181 --yes", "autorecovery enable", "cluster nuke --confirm x"),
    ],
)
def test_no_permission_in_zookeeper_is_exit_11(words: str, metadata_uri: str) -> None:
    uri = parse_metadata_uri(metadata_uri)
    assert run_bkctl("cluster", "init", "-u", metadata_uri).exit_code == 0
    client = KazooClient(uri.servers)
    client.start()
    try:
        nodes = [uri.root]
        for node in nodes:
            nodes += [f"{node}/{name}" for name in client.get_children(node)]
        for node in reversed(nodes):
            client.set_acls(node, [make_digest_acl("other", "password", all=True)])
        ended = run_bkctl(*words.split(), "-u", metadata_uri)
        client.add_auth("digest", "other:password")
        for node in nodes:
            client.set_acls(node, OPEN_ACL_UNSAFE)
    finally:
        client.stop()
        client.close()
    assert ended.exit_code == 11, ended
    assert "permission" in ended.stderr


def assert_no_permission(arguments: list[str]) -> None:
    ended = subprocess.run(
        [*AS_A_USER, *bkctl_command(*arguments)],
        capture_output=True,
        text=True,
        env=bkctl_environment(),
        check=False,
    )
    assert (ended.returncode, ended.stderr.count("\n")) == (11, 1), ended.stderr
    assert ended.stderr.startswith("error: ")
    assert "ermission" in ended.stderr


def test_outcomes() -> None:
    codes = {outcome: exit_code_of_outcome(outcome) for outcome in Outcome}
    assert codes == {
        Outcome.OK: 0,
        Outcome.FAILED: 1,
        Outcome.METADATA_UNAVAILABLE: 6,
        Outcome.PARTIAL: 9,
        Outcome.FINDINGS: 10,
        Outcome.UNAUTHORIZED: 11,
        Outcome.CRITICAL: 14,
    }
    assert exit_code_of_outcome(None) == 0


def test_usage() -> None:
    assert exit_code_of_usage("bkctl bookie list") == 2
    assert exit_code_of_usage("bkctl bookie start") == 1


def test_the_page_lists_both_tables() -> None:
    commands, servers = re.split("^## Servers$", read("docs/reference/exit-codes.md"), flags=re.MULTILINE)
    for text, codes in ((commands, ExitCode), (servers, ServerExitCode)):
        listed = re.findall(r"^\| (\d+) \| (\w+) \|", text, re.MULTILINE)
        assert listed == [(str(each.value), each.name) for each in codes]
    for command in SERVER_COMMANDS:
        assert f"`bkctl {command}`" in servers
