"""What is wrong with certificates, before a client or a bookie finds out. Pure. Source: operations 4.1, 4.2."""

from __future__ import annotations

import datetime
import enum
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID

from bkctl.runtime.security.certificates import alternative_names, matches_host
from bkctl.runtime.security.roles import first_role
from bkctl.storage.severity import Severity

WARNING_DAYS: Final = 30
"""A certificate that expires sooner is a warning."""

_DAY: Final = datetime.timedelta(days=1)


class Purpose(enum.Enum):
    """What a certificate is for."""

    BOOKIE = "bookie"
    CLIENT = "client"
    AUTHORITY = "authority"


class CertificateFinding(NamedTuple):
    """One fact about a certificate. ``check``: chain, names, dates, role, use, key, protocol, files or settings."""

    severity: Severity
    check: str
    finding: str


class Checked(NamedTuple):
    """A certificate and what it must fit. ``chain``: it, then its intermediates. ``authorities`` None: none is known.

    ``host``: what clients call the bookie; None: not known. ``roles``: those that a bookie accepts; empty: all.
    """

    chain: Sequence[x509.Certificate]
    purpose: Purpose
    authorities: Sequence[x509.Certificate] | None = None
    host: str | None = None
    roles: Sequence[str] = ()


def examine(checked: Checked, now: datetime.datetime) -> Iterator[CertificateFinding]:
    """Findings about a certificate; information where nothing is wrong."""
    for certificate in checked.chain:
        yield _dates(certificate, now, is_intermediate=certificate is not checked.chain[0])
    if checked.purpose is Purpose.AUTHORITY:
        yield from _authority(checked.chain[0])
        return
    if checked.authorities is not None:
        yield _chain(checked.chain, checked.authorities)
    if checked.purpose is Purpose.BOOKIE:
        yield _names(checked.chain[0], checked.host)
    yield from _use(checked.chain[0], checked.purpose)
    yield _role(checked.chain[0], checked.roles)


def subject_of(certificate: x509.Certificate) -> str:
    """The subject as ``CN=b1.example.com``; "no name" if it is empty."""
    return certificate.subject.rfc4514_string() or "no name"


def _dates(certificate: x509.Certificate, now: datetime.datetime, *, is_intermediate: bool) -> CertificateFinding:
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    which = f"intermediate {subject_of(certificate)}: " if is_intermediate else ""
    if now < begin:
        return CertificateFinding(Severity.CRITICAL, "dates", f"{which}not valid before {_shown(begin)}")
    days = int((end - now) / _DAY)
    if now > end:
        return CertificateFinding(Severity.CRITICAL, "dates", f"{which}expired at {_shown(end)}")
    severity = Severity.WARNING if days < WARNING_DAYS else Severity.INFORMATION
    return CertificateFinding(severity, "dates", f"{which}expires at {_shown(end)}, in {days} days")


def _shown(moment: datetime.datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _chain(chain: Sequence[x509.Certificate], authorities: Sequence[x509.Certificate]) -> CertificateFinding:
    current, others = chain[0], list(chain[1:])
    while True:
        signer = next((each for each in authorities if _has_signed(each, current)), None)
        if signer is not None:
            return CertificateFinding(Severity.INFORMATION, "chain", f"signed by the CA {subject_of(signer)}")
        between = next((each for each in others if _has_signed(each, current)), None)
        if between is None:
            issuer = current.issuer.rfc4514_string()
            has_name = any(each.subject == current.issuer for each in authorities)
            other = ", which has another CA with this name" if has_name else ""
            return CertificateFinding(Severity.CRITICAL, "chain", f"its issuer {issuer} is not in the CA file{other}")
        others.remove(between)
        current = between


def _has_signed(signer: x509.Certificate, certificate: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(signer)
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


def _names(certificate: x509.Certificate, host: str | None) -> CertificateFinding:
    names = alternative_names(certificate)
    listed = ", ".join(names)
    if not names:
        return CertificateFinding(Severity.CRITICAL, "names", "it names no host: clients that check it refuse it")
    if host is not None and not matches_host(names, host):
        return CertificateFinding(Severity.CRITICAL, "names", f"it does not name {host}, only {listed}")
    return CertificateFinding(Severity.INFORMATION, "names", listed)


def _use(certificate: x509.Certificate, purpose: Purpose) -> Iterator[CertificateFinding]:
    try:
        allowed = list(certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
    except x509.ExtensionNotFound:
        return  # everything is allowed
    if purpose is Purpose.BOOKIE and ExtendedKeyUsageOID.SERVER_AUTH not in allowed:
        yield CertificateFinding(Severity.CRITICAL, "use", "it is not for servers (serverAuth)")
    if ExtendedKeyUsageOID.CLIENT_AUTH not in allowed:
        severity = Severity.WARNING if purpose is Purpose.BOOKIE else Severity.CRITICAL
        yield CertificateFinding(severity, "use", "it is not for clients (clientAuth): bookies refuse it as a client's")


def _authority(certificate: x509.Certificate) -> Iterator[CertificateFinding]:
    try:
        is_authority = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        is_authority = False
    if not is_authority:
        yield CertificateFinding(Severity.CRITICAL, "use", f"{subject_of(certificate)} is no CA: it cannot sign others")


def _role(certificate: x509.Certificate, roles: Sequence[str]) -> CertificateFinding:
    role = first_role(certificate.public_bytes(Encoding.DER))
    if roles and role not in roles:
        has = "no role" if role is None else f"the first role {role}"
        return CertificateFinding(Severity.WARNING, "role", f"{has}, but the bookie accepts {', '.join(roles)}")
    return CertificateFinding(Severity.INFORMATION, "role", "none" if role is None else role)
