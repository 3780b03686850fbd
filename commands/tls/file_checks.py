"""Findings about the certificate files of settings, and about files that the operator names."""

from __future__ import annotations

import datetime
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import pkcs12

from bkctl.commands.errors import InvalidArgumentError
from bkctl.runtime.errors import ConfigurationError
from bkctl.runtime.security.certificate_checks import CertificateFinding, Checked, Purpose, examine
from bkctl.runtime.security.secrets import read_secret
from bkctl.runtime.security_config import StoreType, TlsFiles
from bkctl.storage.adapters.given_files import read_given_file
from bkctl.storage.severity import Severity

_PUBLIC = serialization.PublicFormat.SubjectPublicKeyInfo


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


class _KeyFile(NamedTuple):
    chain: Sequence[x509.Certificate]
    public_key: bytes


def findings_of_settings(
    checked: CheckedFiles, environment: Mapping[str, str], now: datetime.datetime
) -> Iterator[FileFinding]:
    """Findings about the CA, the certificate and the key; a file that cannot be read is one, too."""
    files = checked.files
    authorities = None
    try:
        if files.ca_file is not None:
            authorities = _authorities(files, environment)
            for each in authorities:
                for finding in examine(Checked([each], Purpose.AUTHORITY), now):
                    yield FileFinding(files.ca_file, finding)
    except (OSError, ValueError, ConfigurationError) as error:
        yield _unreadable(files.ca_file or "", error)
    path = files.certificate_file or files.key_file
    if path is None:
        return
    try:
        key = _key(files, environment)
        chain = x509.load_pem_x509_certificates(read_given_file(path)) if files.certificate_file else key.chain
    except (OSError, ValueError, TypeError, ConfigurationError) as error:
        yield _unreadable(path, error)
        return
    for finding in examine(Checked(chain, checked.purpose, authorities, checked.host, checked.roles), now):
        yield FileFinding(path, finding)
    if files.key_file is not None:
        yield from _key_findings(files.key_file, key, chain[0])


def findings_of_file(
    path: str, authorities: Sequence[x509.Certificate] | None, now: datetime.datetime
) -> Iterator[FileFinding]:
    """Findings about a PEM file of certificates: of a CA, or of one other with its chain."""
    try:
        chain = x509.load_pem_x509_certificates(read_given_file(path))
    except (OSError, ValueError) as error:
        yield _unreadable(path, error)
        return
    purpose = _purpose(chain[0])
    for each in [[one] for one in chain] if purpose is Purpose.AUTHORITY else [chain]:
        for finding in examine(Checked(each, purpose, authorities), now):
            yield FileFinding(path, finding)


def read_authorities(path: str) -> list[x509.Certificate]:
    """The certificates of a PEM file; InvalidArgumentError."""
    try:
        return x509.load_pem_x509_certificates(read_given_file(path))
    except (OSError, ValueError) as error:
        raise InvalidArgumentError(f"{path}: {_reason(error)}") from error


def _purpose(certificate: x509.Certificate) -> Purpose:
    """A certificate with host names is a bookie's."""
    for kind, purpose in ((x509.BasicConstraints, Purpose.AUTHORITY), (x509.SubjectAlternativeName, Purpose.BOOKIE)):
        try:
            value = certificate.extensions.get_extension_for_class(kind).value
        except x509.ExtensionNotFound:
            continue
        if not isinstance(value, x509.BasicConstraints) or value.ca:
            return purpose
    return Purpose.CLIENT


def _authorities(files: TlsFiles, environment: Mapping[str, str]) -> list[x509.Certificate]:
    assert files.ca_file is not None
    data = read_given_file(files.ca_file)
    if files.ca_type is StoreType.PEM:
        return x509.load_pem_x509_certificates(data)
    password = _password(files.ca_password, "the password of ca_file", environment)
    store = pkcs12.load_pkcs12(data, password)
    return [each.certificate for each in ([store.cert] if store.cert else []) + store.additional_certs]


def _key(files: TlsFiles, environment: Mapping[str, str]) -> _KeyFile:
    assert files.key_file is not None
    data = read_given_file(files.key_file)
    password = _password(files.key_password, "the password of key_file", environment)
    if files.key_type is StoreType.PEM:
        return _KeyFile([], _public(serialization.load_pem_private_key(data, password)))
    store = pkcs12.load_pkcs12(data, password)
    if store.key is None or store.cert is None:
        raise ValueError("a trust store")
    return _KeyFile(
        [store.cert.certificate, *(each.certificate for each in store.additional_certs)], _public(store.key)
    )


def _public(key: PrivateKeyTypes) -> bytes:
    return key.public_key().public_bytes(serialization.Encoding.DER, _PUBLIC)


def _password(reference: str | None, purpose: str, environment: Mapping[str, str]) -> bytes | None:
    return None if reference is None else read_secret(reference, purpose, environment).encode()


def _key_findings(path: str, key: _KeyFile, certificate: x509.Certificate) -> Iterator[FileFinding]:
    if certificate.public_key().public_bytes(serialization.Encoding.DER, _PUBLIC) != key.public_key:
        finding = CertificateFinding(Severity.CRITICAL, "key", "it is not the key of the certificate")
        yield FileFinding(path, finding)
    if os.stat(path).st_mode & stat.S_IRWXO:
        finding = CertificateFinding(Severity.WARNING, "key", f"every user of this machine may use it: chmod o= {path}")
        yield FileFinding(path, finding)


def _unreadable(path: str, error: Exception) -> FileFinding:
    return FileFinding(path, CertificateFinding(Severity.CRITICAL, "files", _reason(error)))


def _reason(error: Exception) -> str:
    """Why a file cannot be used. Other libraries' words about its contents could repeat some of them."""
    if isinstance(error, OSError):
        return error.strerror or "cannot be read"
    if isinstance(error, ConfigurationError):
        return str(error)
    return "no certificate or key of the configured form, or a wrong password"
