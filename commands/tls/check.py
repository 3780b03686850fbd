"""``bkctl tls check``: certificate files, and certificates that bookies show."""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterable, Iterator
from typing import Annotated, Any

import typer

from bkctl.commands.command import command
from bkctl.commands.context import BookieFlags, CommandContext
from bkctl.commands.errors import InvalidArgumentError, NoDirectoryError, Outcome
from bkctl.commands.rendering import Column, Table
from bkctl.commands.tls.file_checks import CheckedFiles, findings_of_file, findings_of_settings, read_certificates
from bkctl.commands.tls.live_checks import findings_of_bookie
from bkctl.runtime.config import BookieConfig
from bkctl.runtime.ledger.metadata import parse_host_and_port
from bkctl.runtime.net.bookie_security import why_contradictory, why_refused_by_others
from bkctl.runtime.security.certificate_checks import CertificateFinding, Purpose
from bkctl.runtime.security_config import ClientTlsConfig
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
