"""Findings about the certificate files of settings, and about files that the operator names."""

from __future__ import annotations

import datetime
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from cryptography import x509

from bkctl.runtime.errors import ConfigurationError
from bkctl.runtime.security.certificate_checks import CertificateFinding, Checked, Purpose, examine
from bkctl.runtime.security.key_files import pem_certificates
from bkctl.runtime.security.tls_contexts import own_pair, read_key_file, trusted_authorities
from bkctl.runtime.security_config import StoreType, TlsFiles
from bkctl.storage.severity import Severity


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
