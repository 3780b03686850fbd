"""What all connections of a bookie share when they are protected: TLS contexts, logins, roles, limits, counts.

Source: wire section 12.
"""

from __future__ import annotations

import dataclasses
import enum
import os
from collections import Counter
from collections.abc import Callable
from typing import Final, Protocol, Self

from bkctl.runtime.config import BookieConfig
from bkctl.runtime.errors import ConfigurationError
from bkctl.runtime.net.connection_room import ConnectionRoom, Replaceable
from bkctl.runtime.security.exchange import BookieExchange
from bkctl.runtime.security.login import bookie_logins
from bkctl.runtime.security.roles import first_role
from bkctl.runtime.security.tls_contexts import TlsContexts, bookie_contexts

HANDSHAKE_BYTES: Final = 64 * 1024
"""Approximate memory of a TLS handshake; OpenSSL accepts certificate chains of up to 100 KiB."""
AUTH_MESSAGES_MAX: Final = 16
"""Per connection, until a login is complete. DIGEST-MD5 needs 3, GSSAPI 4."""
TOKEN_BYTES_MAX: Final = 64 * 1024
"""Of one AUTH message. The largest are Kerberos tickets."""
HANDSHAKE_S_MAX: Final = 30.0
"""From START_TLS to the end of the handshake, and from the first AUTH to the end of the login."""
HANDSHAKES_MAX: Final = 512
"""In progress at a time. A further one replaces the oldest of the address that has the most."""


class ProtectionFailure(enum.StrEnum):
    """Why a handshake or a login failed, as in the metrics."""

    CERTIFICATE = "certificate"
    """The client's certificate is not accepted, or the client does not accept the bookie's."""
    CLEAR_TEXT = "clear_text"
    CLOSED = "closed"
    LIMIT = "limit"
    PROTOCOL = "protocol"
    REFUSED = "refused"
    """Wrong password, unknown user, an id that is not allowed, or another plugin."""
    ROLE = "role"
    TIMEOUT = "timeout"


class ProtectionMeasures:
    """Counts of handshakes and logins. Only the loop changes this."""

    def __init__(self) -> None:
        self.handshakes_count = 0
        self.failed_handshakes: Counter[ProtectionFailure] = Counter()
        self.logins_count = 0
        self.failed_logins: Counter[ProtectionFailure] = Counter()
        self.refused_requests_count = 0
        """Requests before a login or before TLS, answered with EUA."""


class Handshaking(Replaceable, Protocol):
    """A connection whose TLS handshake is in progress."""

    def give_way(self) -> None:
        """End it: another handshake takes its place."""


def _handshake_room() -> ConnectionRoom[Handshaking]:
    return ConnectionRoom(HANDSHAKES_MAX)


def why_contradictory(config: BookieConfig) -> str | None:
    """Why no bookie can start with these settings of TLS and logins; None if one can. Reads no file."""
    if config.tls is None or not config.tls.authorized_roles or config.sasl is None:
        return None
    return (
        "roles of certificates and logins with SASL exclude each other: remove authorized_roles from bookie.tls, or "
        "the table bookie.sasl"
    )


def why_refused_by_others(config: BookieConfig) -> str | None:
    """Why bookies with the same settings refuse this one when it repairs ledgers there; None if they may not.

    Roles of certificates are not compared here. Reads no file.
    """
    tls, client, why = config.tls, config.client, None
    if config.sasl is not None and client.sasl is None:
        why = "does not log in (bookie_client.sasl)"
    elif tls is not None and client.tls is None and (tls.is_required or tls.authorized_roles):
        why = "connects in clear text (bookie_client.tls)"
    elif (
        tls is not None
        and (tls.is_client_certificate_required or tls.authorized_roles)
        and client.tls is not None
        and client.tls.key_file is None
    ):
        why = f"shows no certificate ({client.tls.name_of('key', 'bookie_client.tls.')})"
    return None if why is None else f"bookies with these settings refuse this one as their client: it {why}"


@dataclasses.dataclass(frozen=True)
class BookieSecurity:
    """How connections of clients are protected. ``contexts`` None: no TLS; ``begin_login`` None: no SASL."""

    contexts: TlsContexts | None
    begin_login: Callable[[], BookieExchange] | None
    is_tls_required: bool = False
    authorized_roles: frozenset[str] = frozenset()
    handshakes: ConnectionRoom[Handshaking] = dataclasses.field(default_factory=_handshake_room)
    measures: ProtectionMeasures = dataclasses.field(default_factory=ProtectionMeasures)

    @classmethod
    def of(cls, config: BookieConfig) -> Self | None:
        """Read the files of the settings; None for clear text without logins. ConfigurationError."""
        tls, sasl = config.tls, config.sasl
        if tls is None and sasl is None:
            return None
        if (why := why_contradictory(config)) is not None:
            raise ConfigurationError(why)
        return cls(
            contexts=None if tls is None else bookie_contexts(tls, os.environ),
            begin_login=None if sasl is None else bookie_logins(sasl),
            is_tls_required=tls is not None and (tls.is_required or bool(tls.authorized_roles)),
            authorized_roles=frozenset() if tls is None else frozenset(tls.authorized_roles),
        )

    def refused_role(self, certificate_der: bytes | None) -> str | None:
        """Why a client with this certificate may not use the bookie; None if it may."""
        if not self.authorized_roles:
            return None
        if certificate_der is None:
            return "it has no certificate, and only roles in authorized_roles may use this bookie"
        role = first_role(certificate_der)
        if role in self.authorized_roles:
            return None
        if role is None:
            return "its certificate has no role in its OU (0:ROLE)"
        return f"the role {role[:64]!a} of its certificate is not in authorized_roles"
