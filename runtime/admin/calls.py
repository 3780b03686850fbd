"""Calls of an admin interface, independent of the HTTP library: its address, and the errors of failed calls."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from bkctl.runtime.admin.api import ErrorAnswer
from bkctl.runtime.admin.messages import AdminError, Problem
from bkctl.runtime.errors import (
    AdminAccessError,
    AuthenticationError,
    BookieTimeoutError,
    BookieUnavailableError,
    ConflictError,
    RefusedError,
)
from bkctl.runtime.ledger.metadata import parse_host_and_port
from bkctl.runtime.security_config import ClientTlsConfig
from bkctl.storage.errors import BkctlError
from bkctl.storage.words import exact_size

if TYPE_CHECKING:  # a probe starts without it
    import ssl

BKCTL_API: Final = "/api/v1/bkctl"
"""Beginning of the paths that a Java server does not have."""

REBUILD_JOB: Final = "index rebuild"
"""Kind of the job that rebuilds the location indexes."""

ALL_ADDRESSES: Final = frozenset({"0.0.0.0", "::", ""})  # noqa: S104
"""Hosts that mean all addresses of a machine."""

ANSWER_BYTES_MAX: Final = 8 * 1024 * 1024
"""Longest answer that a client reads. A bookie with 100,000 entry logs lists them in 1.5 MiB."""

AnswerT = TypeVar("AnswerT")

_BY_WORD: Final = {problem.word: problem for problem in Problem}
_BY_STATUS: Final = {problem.status: problem for problem in Problem}
_BEGINNING_BYTES: Final = 60
_TEXT_LENGTH_MAX: Final = 200
_SENTENCE_LENGTH_MAX: Final = 2000
_CREDENTIALS: Final = struct.Struct("3i")  # of a process: its id, its user, its group
CREDENTIALS_BYTES: Final = _CREDENTIALS.size


class AdminAddress(msgspec.Struct, frozen=True):
    """Where an admin interface listens: on a unix socket, or on a host and port.

    ``user_id``: the user whose process must listen on the socket; None: any. ``is_https``: of the port.
    """

    socket_path: str = ""
    host: str = ""
    port: int = 0
    user_id: int | None = None
    is_https: bool = False

    def __str__(self) -> str:
        return f"admin socket {self.socket_path}" if self.socket_path else f"admin port {self.host}:{self.port}"


class AdminCredentials(msgspec.Struct, frozen=True):
    """What a client shows to an admin port, and what it asks of it.

    ``trusted``: hosts, or addresses ``HOST:PORT``, in lower case, that may get the token of any bookie.
    ``tls_context``: for HTTPS, checks the host's name; None: no CA is configured.
    """

    token: str | None = None
    trusted: frozenset[str] = frozenset()
    tls_context: Callable[[], ssl.SSLContext] | None = None
    tls_config: ClientTlsConfig | None = None
    """The settings of ``tls_context``, for messages."""

    def trusts(self, address: AdminAddress) -> bool:
        """Whether the operator has named this address."""
        host = address.host.lower()
        return not self.trusted.isdisjoint({host, f"{host}:{address.port}"})

    def name_to_verify(self, bookie: str, address: AdminAddress) -> str:
        """The host that the certificate must name. A registration, which names the address, proves nothing."""
        own = parse_host_and_port(bookie)
        return address.host if own is None or self.trusts(address) else own[0]

    def require_may_get_token(self, bookie: str, address: AdminAddress) -> None:
        """AdminAccessError unless the token may go to this address."""
        if self.trusts(address) or (address.is_https and parse_host_and_port(bookie) is not None):
            return
        how = "" if address.is_https else " in clear text"
        advice = "" if address.is_https else "serve it over HTTPS (httpServerTlsEnable=true), or "
        raise AdminAccessError(
            f"bookie {bookie}: the token is not sent{how} to {address}, which only its registration names: {advice}"
            f"set BKCTL_ADMIN_TOKEN_HOSTS={address.host}:{address.port} if this is the bookie's"
        )


def no_ca_error(bookie: str, address: AdminAddress) -> AuthenticationError:
    """The error for HTTPS without a CA that could sign the certificate."""
    return AuthenticationError(
        f"bookie {bookie}: {address} uses HTTPS: set ca_file in [bookie_client.tls] (BKCTL_BOOKIE_CLIENT_TLS_CA_FILE)"
    )


def decode_answer(bookie: str, body: bytes, kind: type[AnswerT]) -> AnswerT:
    """The JSON of an answer, checked; AdminError."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        reason = str(error) if isinstance(error, msgspec.ValidationError) else _not_json(body)
        raise AdminError(
            Problem.INTERNAL, f"bookie {bookie}: its answer is not that of a bookie's admin interface: {reason}"
        ) from error


def _not_json(body: bytes) -> str:
    """What it is instead: the beginning of a page names many a server."""
    text = body[:_BEGINNING_BYTES].decode(errors="replace")
    return f"it is not JSON, but begins with {text!r}" if text else "it is empty"


def require_short(bookie: str, address: AdminAddress, size_bytes: int) -> None:
    """AdminError once an answer has more bytes than a client reads."""
    if size_bytes > ANSWER_BYTES_MAX:
        raise AdminError(
            Problem.INTERNAL,
            f"bookie {bookie}: the answer from {address} is longer than {exact_size(ANSWER_BYTES_MAX)}, so this is not "
            "the admin interface of a bookie",
        )


def error_of_answer(bookie: str, status: int, body: bytes, *, has_token: bool = False) -> BkctlError:
    """The error that an answer of ``bookie`` with this status (400 or more) reports.

    ``has_token``: whether the client has one.
    """
    sentence, problem = _read(status, body)
    text = f"bookie {bookie}: {sentence}"
    match problem:
        case Problem.UNAUTHORIZED:
            kind = AuthenticationError if has_token else AdminAccessError
            reason = "it does not accept this token: " if has_token else ""
            return kind(
                f"bookie {bookie}: {reason}give the token of this bookie with --token-file or BKCTL_ADMIN_TOKEN_FILE"
            )
        case Problem.NOT_PERMITTED:
            return AuthenticationError(text)
        case Problem.REFUSED:
            return RefusedError(text)
        case Problem.CONFLICT:
            return ConflictError(text)
        case Problem.UNAVAILABLE:
            return BookieUnavailableError(bookie, sentence)
        case _:
            return AdminError(problem, text)


def connection_error(bookie: str, address: AdminAddress, error: OSError) -> BkctlError:
    """The error for a connection that could not be made."""
    if isinstance(error, PermissionError):
        return AdminAccessError(f"bookie {bookie}: no permission to use {address}: run bkctl as the user of the bookie")
    if isinstance(error, FileNotFoundError):
        return BookieUnavailableError(bookie, f"it does not run: there is no {address}")
    if isinstance(error, ConnectionRefusedError):
        reason = f"no process listens on {address}"
    else:
        reason = f"cannot connect to {address}: {error.strerror or str(error) or 'the connection was closed'}"
    if address.host:
        reason += "; it listens where httpServerHost says: an address that this machine can reach?"
    return BookieUnavailableError(bookie, reason)


def require_listener(bookie: str, address: AdminAddress, credentials: bytes) -> None:
    """AdminAccessError if another user listens on the socket; ``credentials``: its option SO_PEERCRED."""
    _, user_id, _ = _CREDENTIALS.unpack(credentials)
    if address.user_id not in {None, user_id}:
        raise AdminAccessError(f"bookie {bookie}: a process of another user (id {user_id}) listens on {address}")


def process_of(credentials: bytes) -> int:
    """Id of the process that listens on a socket; ``credentials``: its option SO_PEERCRED."""
    process_id, _, _ = _CREDENTIALS.unpack(credentials)
    return int(process_id)


def lost_error(bookie: str, address: AdminAddress, *, is_change: bool) -> BkctlError:
    """The error for a connection that ended before the answer."""
    doubt = "; whether it did what was asked is not known" if is_change else ""
    return BookieUnavailableError(bookie, f"{address} was closed before the answer{doubt}")


def timeout_error(bookie: str, address: AdminAddress, timeout_s: float, *, is_change: bool) -> BkctlError:
    """The error for an answer that did not come in time."""
    doubt = "; it may still do what was asked" if is_change else ""
    return BookieTimeoutError(bookie, f"no answer from {address} within {timeout_s:g} s (--timeout){doubt}")


def _read(status: int, body: bytes) -> tuple[str, Problem]:
    """Sentence and kind. A Java bookie answers with text, or with an HTML page."""
    problem = _BY_STATUS.get(status, Problem.INTERNAL)
    try:
        answer = msgspec.json.decode(body, type=ErrorAnswer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass  # text
    else:
        return answer.error[:_SENTENCE_LENGTH_MAX], _BY_WORD.get(answer.problem, problem)
    text = body.decode(errors="replace").strip()
    if not text or text.startswith("<"):
        return f"it answers {status} ({problem.word})", problem
    return f"it answers {status}: {text[:_TEXT_LENGTH_MAX]}", problem
