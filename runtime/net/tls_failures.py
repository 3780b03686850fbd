"""What a failed TLS connection to a bookie means, and which setting matters. Pure. Source: wire section 12.3."""

from __future__ import annotations

import ssl
from typing import Final

from bkctl.runtime.security_config import ClientTlsConfig

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
_THIS_CERTIFICATE: Final = "the certificate of this client (bookie_client.tls.certificate_file)"
_CERTIFICATE_ALERTS: Final = {
    # OpenSSL's answer to a certificate that is not valid yet; it has other alerts for most other reasons.
    "SSLV3_ALERT_BAD_CERTIFICATE": "it rejects {}: perhaps not valid yet, check its dates and the clocks",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "it rejects {}: expired",
    "SSLV3_ALERT_CERTIFICATE_REVOKED": "it rejects {}: revoked",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "it rejects {}: expired, not valid yet, or not signed by a CA that it trusts",
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": "it rejects {}: not for clients",
    "TLSV1_ALERT_ACCESS_DENIED": "it rejects {}: access denied",
    "TLSV1_ALERT_UNKNOWN_CA": "it rejects {}: not signed by a CA that it trusts",
}
_NO_CERTIFICATE: Final = (
    "it requires a client certificate: set bookie_client.tls.certificate_file and bookie_client.tls.key_file"
)


def handshake_sentence(error: ssl.SSLError, config: ClientTlsConfig | None, host: str) -> str:
    """Why the handshake failed, and what to check."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _verification_sentence(error, host)
    return alert_sentence(error, config)


def _verification_sentence(error: ssl.SSLCertVerificationError, host: str) -> str:
    code = error.verify_code
    if code == _EXPIRED:
        return "its certificate has expired: renew it (on the bookie: key_file and certificate_file)"
    if code == _NOT_YET_VALID:
        return "its certificate is not valid yet: check the clocks of both machines"
    if code in _UNKNOWN_CA:
        return "its certificate is not signed by a CA in bookie_client.tls.ca_file"
    if code in _OTHER_NAME:
        return (
            f"its certificate is not for the host {host}: use one with this name, or set "
            "bookie_client.tls.is_hostname_checked to false"
        )
    return f"its certificate is not valid (bookie_client.tls.ca_file): {error.verify_message}"


def alert_sentence(error: ssl.SSLError, config: ClientTlsConfig | None) -> str:
    """What the bookie rejects. With TLS 1.3 its alert arrives only after the handshake."""
    reason = error.reason or str(error)
    is_rejected = reason in _CERTIFICATE_ALERTS
    if reason == "TLSV13_ALERT_CERTIFICATE_REQUIRED" or (is_rejected and not _has_certificate(config)):
        return _NO_CERTIFICATE
    if is_rejected:
        return _CERTIFICATE_ALERTS[reason].format(_THIS_CERTIFICATE)
    if reason == "SSLV3_ALERT_HANDSHAKE_FAILURE":
        perhaps = f"check {_THIS_CERTIFICATE}" if _has_certificate(config) else f"perhaps {_NO_CERTIFICATE}"
        return f"it rejects the TLS handshake: check bookie_client.tls.ciphers; {perhaps}"
    return _OTHER_REASONS.get(reason, f"TLS failed (bookie_client.tls): {reason.lower().replace('_', ' ')}")


def closed_sentence(config: ClientTlsConfig | None) -> str:
    """A bookie closed the connection before its first answer in TLS. Some reject certificates without another sign."""
    perhaps = f"perhaps it rejects {_THIS_CERTIFICATE}" if _has_certificate(config) else f"perhaps {_NO_CERTIFICATE}"
    return f"it closed the connection at the TLS handshake; {perhaps}"


def _has_certificate(config: ClientTlsConfig | None) -> bool:
    return config is not None and (config.certificate_file is not None or config.key_file is not None)
