"""What a failed TLS connection to a bookie means, and which setting matters. Pure. Source: wire section 12.3."""

from __future__ import annotations

import re
import ssl
from typing import Final

from bkctl.runtime.security_config import SHOW_CERTIFICATE, ClientTlsConfig
from bkctl.storage.advice import without_path

# Codes of OpenSSL's verification (x509_vfy.h).
_NOT_YET_VALID: Final = 9
_EXPIRED: Final = 10
_UNKNOWN_CA: Final = frozenset({2, 18, 19, 20, 21})
_OTHER_NAME: Final = frozenset({62, 64})

_NO_COMMON_VERSION: Final = "it and this client have no TLS version in common: check bookie_client.tls.protocols"
_OTHER_REASONS: Final = {
    "NO_PROTOCOLS_AVAILABLE": _NO_COMMON_VERSION,
    "TLSV1_ALERT_PROTOCOL_VERSION": _NO_COMMON_VERSION,
    "UNSUPPORTED_PROTOCOL": _NO_COMMON_VERSION,
    "WRONG_SSL_VERSION": _NO_COMMON_VERSION,
    "WRONG_VERSION_NUMBER": "it agreed to use TLS (bookie_client.tls), but does not answer the TLS handshake",
}
_EXPIRED_ALERT: Final = "SSLV3_ALERT_CERTIFICATE_EXPIRED"
_ANY_REJECTION: Final = frozenset({"SSLV3_ALERT_CERTIFICATE_UNKNOWN", "SSLV3_ALERT_HANDSHAKE_FAILURE"})
"""Alerts for several reasons: Java has them for an expired certificate, too."""
_CERTIFICATE_ALERTS: Final = {
    # OpenSSL's answer to a certificate that is not valid yet; it has other alerts for most other reasons.
    "SSLV3_ALERT_BAD_CERTIFICATE": "it rejects {}: perhaps not valid yet, check its dates and the clocks",
    _EXPIRED_ALERT: "it rejects {}: expired",
    "SSLV3_ALERT_CERTIFICATE_REVOKED": "it rejects {}: revoked",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "it rejects {}: expired, not valid yet, or not signed by a CA that it trusts",
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": "it rejects {}: not for clients",
    "TLSV1_ALERT_ACCESS_DENIED": "it rejects {}: access denied",
    "TLSV1_ALERT_UNKNOWN_CA": "it rejects {}: not signed by a CA that it trusts",
}
_ALERT: Final = re.compile("(?:SSLV3|TLSV1)_ALERT_(.+)")
_TABLE: Final = "bookie_client.tls."
_UNCHECKED: Final = f", or set {_TABLE}is_hostname_checked to false"


def handshake_sentence(
    error: ssl.SSLError,
    config: ClientTlsConfig | None,
    host: str,
    *,
    is_expired: bool = False,
    or_else: str = _UNCHECKED,
) -> str:
    """Why the handshake failed, and what to check. ``is_expired``: this client's certificate, which it rejects then.

    ``or_else``: what helps if the bookie's certificate is for another host and stays so.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return _verification_sentence(error, config or ClientTlsConfig(), host, or_else)
    return alert_sentence(error, config, is_expired=is_expired)


def _verification_sentence(
    error: ssl.SSLCertVerificationError, config: ClientTlsConfig, host: str, or_else: str
) -> str:
    code, ca_file = error.verify_code, config.name_of("ca", _TABLE)
    if code == _EXPIRED:
        return "its certificate has expired: renew it (on the bookie: key_file and certificate_file)"
    if code == _NOT_YET_VALID:
        return "its certificate is not valid yet: check the clocks of both machines"
    if code in _UNKNOWN_CA and config.ca_file is None:
        return f"its certificate is not signed by a CA that this machine trusts: set {ca_file}"
    if code in _UNKNOWN_CA:
        return f"its certificate is not signed by a CA in {ca_file}"
    if code in _OTHER_NAME:
        return f"its certificate is not for the host {host}: use one with this name{or_else}"
    return f"its certificate is not valid ({ca_file}): {error.verify_message}"


def alert_sentence(error: ssl.SSLError, config: ClientTlsConfig | None, *, is_expired: bool = False) -> str:
    """What the bookie rejects. With TLS 1.3 its alert arrives only after the handshake."""
    reason = error.reason or str(error)
    if is_expired and reason in _ANY_REJECTION:
        reason = _EXPIRED_ALERT
    is_rejected = reason in _CERTIFICATE_ALERTS
    own = _own_certificate(config)
    if reason == "TLSV13_ALERT_CERTIFICATE_REQUIRED" or (is_rejected and own is None):
        return _no_certificate(config)
    if is_rejected:
        return _CERTIFICATE_ALERTS[reason].format(own)
    if reason == "SSLV3_ALERT_HANDSHAKE_FAILURE":
        perhaps = f"perhaps {_no_certificate(config)}" if own is None else f"check {own}"
        return f"it rejects the TLS handshake: check bookie_client.tls.ciphers; {perhaps}"
    return _OTHER_REASONS.get(reason, f"TLS failed (bookie_client.tls): {reason.lower().replace('_', ' ')}")


def closed_sentence(config: ClientTlsConfig | None, *, is_expired: bool = False) -> str:
    """A bookie closed the connection before its first answer in TLS. Some reject certificates without another sign."""
    own = _own_certificate(config)
    if is_expired:
        return _CERTIFICATE_ALERTS[_EXPIRED_ALERT].format(own)
    perhaps = _no_certificate(config) if own is None else f"it rejects {own}"
    return f"it closed the connection at the TLS handshake; perhaps {perhaps}"


def client_failure(error: OSError) -> str:
    """Why the handshake of a client failed, for the log of its server. Many clients close without an alert."""
    reason = error.reason or "" if isinstance(error, ssl.SSLError) else ""
    if reason in _CERTIFICATE_ALERTS and (alert := _ALERT.fullmatch(reason)):
        return f"the client rejects the certificate of this server: {alert[1].lower().replace('_', ' ')}"
    return without_path(error) or (
        "the client closed the connection in the handshake; perhaps it rejects the certificate of this server"
    )


def _own_certificate(config: ClientTlsConfig | None) -> str | None:
    """The certificate of this client, with its file and setting; None: it has none."""
    if config is None or not (path := config.certificate_file or config.key_file):
        return None
    setting = config.name_of("certificate" if config.certificate_file else "key", _TABLE)
    return f"the certificate of this client, {path} ({setting})"


def _no_certificate(config: ClientTlsConfig | None) -> str:
    config = config or ClientTlsConfig()
    names = f"{config.name_of('certificate', _TABLE)} and {config.name_of('key', _TABLE)}"
    if config.key_java_key == SHOW_CERTIFICATE:
        names = SHOW_CERTIFICATE
    elif config.key_java_key is not None:
        names = f"{SHOW_CERTIFICATE}, {names}"
    return f"it requires a client certificate: set {names}"
