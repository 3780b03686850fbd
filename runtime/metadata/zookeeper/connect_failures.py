"""Why there is no ZooKeeper session: how each server failed at the last attempt, in words for an operator."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence

_PROBE_TIMEOUT_S = 1.0
_ACCEPTED = "accepts connections, but opens no session"
_STATES = {
    b"ro": "serves reads only, it has lost its quorum",
    b"null": "has no leader",
    b"rw": "is running, but opened no session in time",
}

Address = tuple[str, int]


class ConnectFailures:
    """Last failures by server; the connecting thread writes, the loop reads. Assignments of one item are atomic."""

    def __init__(self, servers: Sequence[Address]) -> None:
        self._servers = tuple(servers)
        self._reasons: dict[Address, str] = {}
        self._refusals: dict[Address, str] = {}

    def note_error(self, server: Address, error: Exception) -> None:
        """An attempt to connect failed, or the server broke the connection with a TLS alert."""
        if isinstance(error, ssl.SSLError):
            self._reasons[server] = f"TLS failed: {_tls_reason(error)}"
            if isinstance(error, ssl.SSLCertVerificationError) or "ALERT" in (error.reason or ""):
                self._refusals[server] = self._reasons[server]
        elif isinstance(error, TimeoutError):
            self._reasons[server] = "does not respond"
        elif isinstance(error, OSError) and error.strerror:
            self._reasons[server] = error.strerror.lower()
        else:
            self._reasons[server] = type(error).__name__

    def note_accepted(self, server: Address) -> None:
        """The server accepted the connection, but has not opened a session yet."""
        self._reasons[server] = _ACCEPTED
        self._refusals.pop(server, None)

    def clear(self) -> None:
        """A session was opened."""
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
        return self._sentence(self._reasons)

    async def explain(self) -> str:
        """The known failures, after asking the servers that accept connections for their state (a second at most)."""
        reasons = dict(self._reasons)
        accepting = [server for server, reason in reasons.items() if reason == _ACCEPTED]
        states = await asyncio.gather(*(_state_of(server) for server in accepting))
        reasons |= dict(zip(accepting, states, strict=True))
        return self._sentence(reasons)

    @staticmethod
    def _sentence(reasons: dict[Address, str]) -> str:
        return "; ".join(f"{host}:{port} {reason}" for (host, port), reason in sorted(reasons.items()))


def _tls_reason(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the server's certificate is not trusted ({error.verify_message.rstrip('.')})"
    reason = (error.reason or "connection closed").lower().replace("_", " ")
    if "alert" in reason:
        return f"the server rejects this client's certificate ({reason})"
    return reason


async def _state_of(server: Address) -> str:
    """State that a server reports: ``isro`` is allowed by default where read-only servers are enabled."""
    try:
        async with asyncio.timeout(_PROBE_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(*server)
            try:
                writer.write(b"isro")
                return _STATES.get(await reader.read(64), _ACCEPTED)
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return _ACCEPTED
