"""Why there is no ZooKeeper session: how each server failed at the last attempt, in words for an operator."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Sequence

from bkctl.runtime.errors import MetadataUnavailableError

logger = logging.getLogger(__name__)

_REPORT_DELAY_S = 0.3
"""Without a connection for so long, the reason is reported: most connections take less."""
_REPORT_PAUSE_S = 2.0
"""Between two looks whether the reason is another one."""
_PROBE_TIMEOUT_S = 0.4
_ACCEPTED = "accepts connections, but opens no session"
_UNANSWERED = "accepts connections, but does not answer"
_SILENT = "does not respond"
_UNKNOWN_NAME = "cannot resolve"
_OPENED_NONE = "is running, but opened no session in time"
_NOT_TRIED = "is running, but was not tried yet"
_STATES = {
    b"ro": "serves reads only, it has lost its quorum",
    b"null": "has no leader",
}

Address = tuple[str, int]


class ConnectFailures:
    """Last failures by server; the connecting thread writes, the loop reads. Assignments of one item are atomic."""

    def __init__(self, servers: Sequence[Address], *, is_secured: bool = False) -> None:
        """``is_secured``: this client uses TLS."""
        self._servers = tuple(servers)
        self._name_causes(may_be_tls_port=not is_secured)
        self._reasons: dict[Address, str] = {}
        self._refusals: dict[Address, str] = {}
        self.login_failure: str | None = None
        """Why this side could not begin or finish a login, which it does after the session is open."""

    def _name_causes(self, *, may_be_tls_port: bool) -> None:
        """A halted process accepts connections too; a TLS port may wait for more bytes."""
        self._accepted = _ACCEPTED + (" (is it a TLS port?)" if may_be_tls_port else "")
        self._unanswered = f"{_UNANSWERED} (is the server halted{', or is it a TLS port' if may_be_tls_port else ''}?)"

    @property
    def servers_count(self) -> int:
        """Number of addresses."""
        return len(self._servers)

    def note_login(self, failure: str | None) -> None:
        """The last login failed for a reason of this side, or succeeded."""
        self.login_failure = failure

    def login_error(self, path: str = "/") -> MetadataUnavailableError | None:
        """The error of operations while this side cannot log in; None if it can, as far as is known."""
        if self.login_failure is None:
            return None
        return MetadataUnavailableError(f"{path}: no session with ZooKeeper: {self.login_failure}", path)

    def note_error(self, server: Address, error: Exception) -> None:
        """An attempt to connect failed, or the server broke the connection with a TLS alert."""
        if isinstance(error, ssl.SSLError):
            self._reasons[server] = f"TLS failed: {_tls_reason(error)}"
            if isinstance(error, ssl.SSLCertVerificationError) or "ALERT" in (error.reason or ""):
                self._refusals[server] = self._reasons[server]
        elif isinstance(error, TimeoutError):
            was_accepted = self._reasons.get(server) in {self._accepted, self._unanswered}
            self._reasons[server] = self._unanswered if was_accepted else _SILENT
        elif isinstance(error, OSError) and error.strerror:
            self._reasons[server] = error.strerror.lower()
        else:
            self._reasons[server] = type(error).__name__

    def note_accepted(self, server: Address) -> None:
        """The server accepted the connection, but has not opened a session yet."""
        self._reasons[server] = self._accepted
        self._refusals.pop(server, None)

    def clear(self) -> None:
        """A session was opened: whatever stops the next one, it is not that the port wants TLS."""
        self._name_causes(may_be_tls_port=False)
        self._reasons.clear()
        self._refusals.clear()

    @property
    def refusal(self) -> str | None:
        """Why every server permanently refuses this client, or is refused by it; None when waiting may help."""
        if set(self._servers) <= set(self._refusals):
            return self._sentence(self._refusals)
        return None

    @property
    def sentence(self) -> str:
        """The known failures, without asking the servers; may be empty."""
        return self.login_failure or self._sentence(self._reasons)

    async def explain(self) -> str:
        """A sentence about all servers, in half a second: those that did not fail or accept connections are asked."""
        open_ports = {self._accepted, self._unanswered}
        asked = [each for each in self._servers if self._reasons.get(each, self._accepted) in open_ports]
        states = await asyncio.gather(*(self._state_of(server) for server in asked))
        for server, state in zip(asked, states, strict=True):
            if state == _UNKNOWN_NAME:
                self._reasons.setdefault(server, state)  # the connecting thread does not get to this server
        return self._sentence(self._reasons | dict(zip(asked, states, strict=True)))

    @staticmethod
    def _sentence(reasons: dict[Address, str]) -> str:
        return "; ".join(
            f"{reason} {host}" if reason == _UNKNOWN_NAME else f"{host}:{port} {reason}"
            for (host, port), reason in sorted(reasons.items())
        )

    async def _state_of(self, server: Address) -> str:
        """State that a server reports: ``isro`` is allowed by default where read-only servers are enabled."""
        is_open = False
        try:
            async with asyncio.timeout(_PROBE_TIMEOUT_S):
                reader, writer = await asyncio.open_connection(*server)
                is_open = True
                try:
                    writer.write(b"isro\n")  # five bytes are enough for a TLS port to end the connection
                    answer = await reader.read(64)
                finally:
                    writer.close()
        except socket.gaierror:
            return _UNKNOWN_NAME
        except OSError as error:
            if is_open:
                return self._unanswered if isinstance(error, TimeoutError) else self._accepted
            return _SILENT if isinstance(error, TimeoutError) else (error.strerror or str(error)).lower()
        if answer == b"rw" or answer.startswith(b"isro"):  # a server that refuses the command names it
            return _OPENED_NONE if server in self._reasons else _NOT_TRIED
        return _STATES.get(answer, self._accepted)


class WaitReports:
    """Reports why there is no connection, while there is none. Its methods are called on the event loop."""

    def __init__(self, failures: ConnectFailures, on_wait: Callable[[str | None], None] | None) -> None:
        """``on_wait``: called with each new reason, and with None once the reported wait is over; None: no reports."""
        self._failures = failures
        self._on_wait = on_wait
        self._task: asyncio.Task[None] | None = None
        self._has_reported = False

    def begin(self) -> None:
        """There is no connection."""
        if self._on_wait is not None and self._task is None:
            self._task = asyncio.create_task(self._report(self._on_wait))

    def end(self) -> None:
        """There is a connection, or no more is wanted."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        if self._has_reported and self._on_wait is not None:
            self._has_reported = False
            self._on_wait(None)

    async def _report(self, on_wait: Callable[[str | None], None]) -> None:
        reported, pause_s = "", _REPORT_DELAY_S
        while True:
            await asyncio.sleep(pause_s)
            reason = await self._failures.explain()
            if reason != reported:
                self._has_reported = True
                on_wait(reason)
            reported, pause_s = reason, _REPORT_PAUSE_S


def _tls_reason(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the server's certificate is not trusted ({error.verify_message.rstrip('.')})"
    reason = (error.reason or "connection closed").lower().replace("_", " ")
    if "alert" in reason:
        return f"the server rejects this client's certificate ({reason})"
    return reason


def log_wait(reason: str | None) -> None:
    """For ``WaitReports`` of a server; the store itself logs when the wait is over."""
    if reason is not None:
        logger.warning("waiting for ZooKeeper: %s", reason)
