"""Files of certificates for tests, as ``bkctl tls init`` makes them, also such as it never makes."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import NamedTuple

from bkctl.runtime.security.certificates import (
    Authority,
    CertificateRequest,
    certificate_pem,
    key_pem,
    new_key,
    sign,
)


class CertificateFiles(NamedTuple):
    """Paths of PEM files."""

    key: str
    certificate: str
    ca: str


def write_certificate(
    authority: Authority,
    directory: Path,
    *,
    hosts: tuple[str, ...] = (),
    role: str | None = None,
    days: int = 9,
    now: datetime.datetime | None = None,
) -> CertificateFiles:
    """A key and its certificate in a new directory; without hosts it is that of a client."""
    directory.mkdir()
    key = new_key()
    request = CertificateRequest(hosts[0] if hosts else directory.name, hosts, role, days)
    signed = sign(authority, request, key, now or datetime.datetime.now(datetime.UTC))
    files = CertificateFiles(*(str(directory / name) for name in ("key.pem", "certificate.pem", "ca.pem")))
    Path(files.key).touch(0o600)
    Path(files.key).write_bytes(key_pem(key))
    Path(files.certificate).write_bytes(certificate_pem(signed))
    Path(files.ca).write_bytes(certificate_pem(authority.certificate))
    return files
