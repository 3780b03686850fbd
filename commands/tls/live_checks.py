"""Findings about the certificate that a bookie shows, and about what it accepts."""

from __future__ import annotations

import datetime
import os
from collections.abc import AsyncIterator

import msgspec
from cryptography import x509

from bkctl.runtime.config import ClientConfig
from bkctl.runtime.errors import AuthenticationError, BookieError, ProtocolError
from bkctl.runtime.net.client_handshake import NO_TLS, ClientSecurity
from bkctl.runtime.net.frame_connection import reason_of_failure
from bkctl.runtime.net.loop import LoopClock
from bkctl.runtime.net.pool import BookiePool
from bkctl.runtime.net.tls_probe import ShownTls, look
from bkctl.runtime.security.certificate_checks import CertificateFinding, Checked, Purpose, examine
from bkctl.runtime.security.tls_contexts import client_contexts, unverified_contexts
from bkctl.runtime.security_config import BookieClientConfig, ClientTlsConfig
from bkctl.storage.severity import Severity


async def findings_of_bookie(
    host: str, port: int, config: ClientConfig, timeout_s: float, now: datetime.datetime
) -> AsyncIterator[CertificateFinding]:
    """Findings about a bookie at an address, as a client with these settings sees it. ConfigurationError.

    The login is tried at the end, with a request that changes nothing.
    """
    tls = config.security.tls
    refusal = None
    try:
        shown = await look(host, port, _security(tls, is_verified=True), timeout_s)
    except AuthenticationError as error:
        if tls is None and str(error) == NO_TLS:
            yield CertificateFinding(
                Severity.INFORMATION, "handshake", "it does not use TLS, and neither do the settings"
            )
            yield await _access(host, port, config, timeout_s)
            return
        refusal = CertificateFinding(Severity.CRITICAL, "handshake", str(error))
    except (OSError, ProtocolError) as error:
        reason = f"no answer within {timeout_s:g} s" if isinstance(error, TimeoutError) else reason_of_failure(error)
        yield CertificateFinding(Severity.CRITICAL, "connection", reason)
        return
    if refusal is not None:
        yield refusal
        try:
            shown = await look(host, port, _security(tls, is_verified=False), timeout_s)
        except (AuthenticationError, OSError, ProtocolError):
            return  # the same reason
    for finding in _of_shown(shown, tls, host, now, is_verified=refusal is None and tls is not None):
        yield finding
    if refusal is None:
        yield await _access(host, port, config, timeout_s)


def _security(tls: ClientTlsConfig | None, *, is_verified: bool) -> ClientSecurity:
    config = BookieClientConfig(tls=tls or ClientTlsConfig())
    assert config.tls is not None
    make = client_contexts if is_verified and tls is not None else unverified_contexts
    return ClientSecurity(config, make(config.tls, os.environ), None)


def _of_shown(
    shown: ShownTls, tls: ClientTlsConfig | None, host: str, now: datetime.datetime, *, is_verified: bool
) -> list[CertificateFinding]:
    certificate = x509.load_der_x509_certificate(shown.certificate)
    findings = [CertificateFinding(Severity.INFORMATION, "protocol", f"{shown.protocol}, {shown.cipher}")]
    if is_verified and tls is not None:
        findings.append(CertificateFinding(Severity.INFORMATION, "chain", f"verified with {tls.ca_file}"))
    elif tls is None:
        sentence = "not verified: the settings have no [bookie_client.tls]"
        findings.append(CertificateFinding(Severity.INFORMATION, "chain", sentence))
    return findings + list(examine(Checked([certificate], Purpose.BOOKIE, host=host), now))


async def _access(host: str, port: int, config: ClientConfig, timeout_s: float) -> CertificateFinding:
    """Whether the bookie answers a request of this client, after its login."""

    async def resolve(_: str) -> tuple[str, int]:
        return host, port

    bounded = msgspec.structs.replace(config, connect_timeout_s=timeout_s, read_timeout_s=timeout_s)
    pool = BookiePool(resolve, bounded, LoopClock())
    try:
        await pool.info(f"{host}:{port}")
    except (AuthenticationError, BookieError) as error:
        return CertificateFinding(Severity.CRITICAL, "access", str(error).removeprefix(f"bookie {host}:{port}: "))
    finally:
        await pool.close()
    how = "" if config.security.tls is not None else " without TLS"
    return CertificateFinding(Severity.INFORMATION, "access", f"it serves this client{how}")
