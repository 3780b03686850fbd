"""Metrics of TLS and logins of clients; only if the bookie has them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from bkctl.runtime.admin.metric import Scope
from bkctl.runtime.bookie.metrics.scopes import part
from bkctl.runtime.bookie.view import BookieView
from bkctl.runtime.net.bookie_security import BookieSecurity, ProtectionFailure


def _security(view: BookieView) -> BookieSecurity | None:
    return None if view.listener is None else view.listener.security


def _seconds_left(view: BookieView) -> float | None:
    security = _security(view)
    expires_s = None if security is None or security.contexts is None else security.contexts.expires_at()
    return None if expires_s is None else expires_s - view.ports.clock.now_ms() / 1000


def _failed_handshakes(view: BookieView) -> Iterable[tuple[tuple[str, ...], int]]:
    security = _security(view)
    return () if security is None else _by_reason(security.measures.failed_handshakes)


def _failed_logins(view: BookieView) -> Iterable[tuple[tuple[str, ...], int]]:
    security = _security(view)
    return () if security is None else _by_reason(security.measures.failed_logins)


def _by_reason(counts: dict[ProtectionFailure, int]) -> list[tuple[tuple[str, ...], int]]:
    return [((reason.value,), count) for reason, count in sorted(counts.items())]


_MEASURES: Final = part(lambda view: None if (security := _security(view)) is None else security.measures)

PROTECTION: Final = (
    part(_seconds_left).gauge(
        "bkctl_tls_certificate_expires_seconds",
        "Seconds until the certificate of the bookie expires; negative afterwards.",
        lambda seconds: seconds,
    ),
    _MEASURES.counter(
        "bkctl_tls_handshakes",
        "TLS handshakes with clients that succeeded.",
        lambda measures: measures.handshakes_count,
    ),
    Scope(("reason",), _failed_handshakes).counter(
        "bkctl_tls_handshakes_failed",
        "TLS handshakes with clients that failed, by reason.",
        lambda count: count,
    ),
    _MEASURES.counter(
        "bkctl_logins",
        "Logins of clients with SASL that succeeded.",
        lambda measures: measures.logins_count,
    ),
    Scope(("reason",), _failed_logins).counter(
        "bkctl_logins_failed",
        "Logins of clients that failed, and certificates without an authorized role, by reason.",
        lambda count: count,
    ),
    _MEASURES.counter(
        "bkctl_requests_refused_before_login",
        "Requests answered with EUA, because the client had not started TLS or logged in as the bookie requires.",
        lambda measures: measures.refused_requests_count,
    ),
)
