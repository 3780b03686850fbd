"""``bkctl tls check``: certificate files, and certificates that bookies show."""

from __future__ import annotations

import datetime
import os
import stat
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec
import typer
from cryptography import x509

from bkctl.commands.command import command
from bkctl.commands.context import BookieFlags, CommandContext
from bkctl.commands.errors import InvalidArgumentError, NoDirectoryError, Outcome
from bkctl.commands.rendering import Column, Table
from bkctl.runtime.config import BookieConfig, ClientConfig
from bkctl.runtime.errors import AuthenticationError, BookieError, ConfigurationError, ProtocolError
from bkctl.runtime.ledger.metadata import parse_host_and_port
from bkctl.runtime.net.bookie_security import why_contradictory, why_refused_by_others
from bkctl.runtime.net.client_handshake import NO_TLS, ClientSecurity
from bkctl.runtime.net.frame_connection import reason_of_failure
from bkctl.runtime.net.loop import LoopClock
from bkctl.runtime.net.pool import BookiePool
from bkctl.runtime.net.tls_probe import ShownTls, look
from bkctl.runtime.security.certificate_checks import CertificateFinding, Checked, Purpose, examine
from bkctl.runtime.security.key_files import pem_certificates
from bkctl.runtime.security.tls_contexts import (
    client_contexts,
    own_pair,
    read_key_file,
    trusted_authorities,
    unverified_contexts,
)
from bkctl.runtime.security_config import BookieClientConfig, ClientTlsConfig, StoreType, TlsFiles
from bkctl.storage.severity import Severity

_TABLE = Table(
    "TlsFindingList",
    Column("severity", "SEVERITY"),
    Column("subject", "SUBJECT"),
    Column("check", "CHECK"),
    Column("finding", "FINDING"),
    name="subject",
)


@command(
    "check",
    example="tls check --bookie b1.example.com:3181",
    is_listing=True,
    is_metadata_rate_taken=False,
)
async def check(
    context: CommandContext,
    paths: Annotated[
        list[str] | None, typer.Argument(metavar="[FILE]...", help="PEM files (default: those of the settings)")
    ] = None,
    bookies: Annotated[
        list[str] | None,
        typer.Option("--bookie", metavar="HOST:PORT", help="Connect to this bookie; repeatable"),
    ] = None,
    ca_file: Annotated[
        str | None, typer.Option("--ca-file", metavar="FILE", help="CA of FILEs (default: that of [bookie_client.tls])")
    ] = None,
) -> Outcome:
    """Check certificates: those of the settings or of files, and those of live bookies.

    Looks at chain, names, dates, role, use, key and, on a connection, the protocol and whether the bookie accepts this
    client. The settings are [bookie_client.tls], [bookie.tls] and [bookie.admin.tls], or Java's keys in --conf; those
    of a bookie must also let it use other bookies that have them. A certificate that expires within 30 days is a
    warning, an expired one is critical. Exits with 10 if a finding is a warning or worse.
    """
    if ca_file is not None and not paths:
        raise InvalidArgumentError("--ca-file is for FILEs: without one, the settings name their CA")
    now = datetime.datetime.now(datetime.UTC)
    rows = list(_file_rows(context, paths, ca_file, now) if paths else () if bookies else _setting_rows(context, now))
    if not rows and not bookies:
        raise InvalidArgumentError(
            "the settings have no TLS files of a client, or of a bookie with its ledger directories: give FILEs or "
            "--bookie HOST:PORT"
        )
    for address in bookies or ():
        rows += await _bookie_rows(context, address, now)
    with context.console.listing(_TABLE) as listing:
        for row in rows:
            listing.add(row)
    is_bad = any(row["severity"] != Severity.INFORMATION.value for row in rows)
    return Outcome.FINDINGS if is_bad else Outcome.OK


def _file_rows(
    context: CommandContext, paths: Iterable[str], ca_file: str | None, now: datetime.datetime
) -> Iterator[dict[str, Any]]:
    tls = context.settings.client.security.tls
    ca_file = ca_file or (tls.ca_file if tls is not None else None)
    authorities = None if ca_file is None else read_certificates(ca_file)
    for path in paths:
        for found in findings_of_file(path, authorities, now):
            yield _row(found.path, found.finding)


def _setting_rows(context: CommandContext, now: datetime.datetime) -> Iterator[dict[str, Any]]:
    """Once for files that several tables name."""
    config = _bookie_config(context)
    tables = _configured(context.settings.client.security.tls, config)
    findings = (each for checked in tables for each in findings_of_settings(checked, os.environ, now))
    for found in dict.fromkeys(findings):
        yield _row(found.path, found.finding)
    if config is None:
        return
    if (why := why_contradictory(config)) is not None:
        yield _row("settings", CertificateFinding(Severity.CRITICAL, "settings", why))
    elif (why := why_refused_by_others(config)) is not None:
        yield _row("settings", CertificateFinding(Severity.WARNING, "settings", why))


async def _bookie_rows(context: CommandContext, address: str, now: datetime.datetime) -> list[dict[str, Any]]:
    parsed = parse_host_and_port(address)
    if parsed is None:
        raise InvalidArgumentError(f"--bookie {address}: give HOST:PORT, where the bookie listens")
    settings = context.settings
    found = findings_of_bookie(*parsed, settings.client, settings.timeout_s, now)
    return [_row(f"bookie {address}", finding) async for finding in found]


def _configured(client: ClientTlsConfig | None, config: BookieConfig | None) -> Iterator[CheckedFiles]:
    if client is not None:
        roles = config.tls.authorized_roles if config is not None and config.tls is not None else ()
        yield CheckedFiles(client, Purpose.CLIENT, roles=roles)
    if config is None:
        return
    host = config.advertised_address
    if config.tls is not None:
        yield CheckedFiles(config.tls, Purpose.BOOKIE, host)
    if config.admin.tls is not None and config.admin.tls.has_files:
        yield CheckedFiles(config.admin.tls, Purpose.BOOKIE, host)


def _bookie_config(context: CommandContext) -> BookieConfig | None:
    try:
        return context.load_bookie_settings(BookieFlags()).config
    except NoDirectoryError:
        return None


def _row(subject: str, found: CertificateFinding) -> dict[str, Any]:
    return {"severity": found.severity.value, "subject": subject, "check": found.check, "finding": found.finding}


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


class CheckedFiles(NamedTuple):
    """Files of one side of a connection. ``host``: what clients call the bookie; ``roles``: those that it accepts."""

    files: TlsFiles
    purpose: Purpose
    host: str | None = None
    roles: Sequence[str] = ()


class FileFinding(NamedTuple):
    """A finding and the file that it is about."""

    path: str
    finding: CertificateFinding


def findings_of_settings(
    checked: CheckedFiles, environment: Mapping[str, str], now: datetime.datetime
) -> Iterator[FileFinding]:
    """Findings about the CA, the certificate and the key; files that cannot be used are one, too."""
    files, authorities = checked.files, None
    if files.ca_file is not None:
        try:
            authorities = trusted_authorities(files, environment)
        except ConfigurationError as error:
            yield _unusable(files.ca_file, error)
        for each in authorities or ():
            for finding in examine(Checked([each], Purpose.AUTHORITY), now):
                yield FileFinding(files.ca_file, finding)
    path = files.certificate_file or files.key_file
    if path is None:
        return
    try:
        pair = own_pair(files, environment)
    except ConfigurationError as error:
        yield _unusable(path, error)
        return
    if pair is None:
        return
    for finding in examine(Checked(pair.chain, checked.purpose, authorities, checked.host, checked.roles), now):
        yield FileFinding(path, finding)
    key_path = files.key_file
    if key_path is not None and os.stat(key_path).st_mode & stat.S_IRWXO:
        sentence = f"every user of this machine may use it: chmod o= {key_path}"
        yield FileFinding(key_path, CertificateFinding(Severity.WARNING, "key", sentence))


def findings_of_file(
    path: str, authorities: Sequence[x509.Certificate] | None, now: datetime.datetime
) -> Iterator[FileFinding]:
    """Findings about a PEM file of certificates: of CAs, or of one other with its chain."""
    try:
        chain = read_certificates(path)
    except ConfigurationError as error:
        yield _unusable(path, error)
        return
    purpose = _purpose(chain[0])
    for each in [[one] for one in chain] if purpose is Purpose.AUTHORITY else [chain]:
        for finding in examine(Checked(each, purpose, authorities), now):
            yield FileFinding(path, finding)


def read_certificates(path: str) -> Sequence[x509.Certificate]:
    """The certificates of a PEM file; ConfigurationError."""
    return pem_certificates(read_key_file("certificate", path, StoreType.PEM, None, {}))


def _purpose(certificate: x509.Certificate) -> Purpose:
    """A certificate with host names is a bookie's."""
    extensions = certificate.extensions
    for each in extensions:
        if isinstance(each.value, x509.BasicConstraints) and each.value.ca:
            return Purpose.AUTHORITY
    is_named = any(isinstance(each.value, x509.SubjectAlternativeName) for each in extensions)
    return Purpose.BOOKIE if is_named else Purpose.CLIENT


def _unusable(path: str, error: ConfigurationError) -> FileFinding:
    return FileFinding(path, CertificateFinding(Severity.CRITICAL, "files", str(error)))
