"""Reads private keys and certificates from PEM and PKCS12 files. Python's ``ssl`` reads no PKCS12.

In: contents of files. Out: keys and certificates, or a ConfigurationError with the file and the fix.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
    pkcs12,
)

from bkctl.runtime.errors import ConfigurationError
from bkctl.runtime.security_config import StoreType, keytool_command

_JAVA_ENDINGS: Final = {"file": "", "type": "Type", "password": "PasswordPath"}
_ADMIN_ENDING: Final = "Path"
"""Of Java's keys for stores of the admin port, such as httpServerKeyStorePath. They have no key for the type."""
_JKS_MAGIC: Final = (bytes.fromhex("feedfeed"), bytes.fromhex("cececece"))
_PEM_MARK: Final = b"-----BEGIN "
_CERTIFICATE_MARK: Final = b"CERTIFICATE-----"
_PEM_CERTIFICATE: Final = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


class KeyPair(NamedTuple):
    """A private key and its certificates, its own one first."""

    key: PrivateKeyTypes
    chain: tuple[x509.Certificate, ...]


class GivenFile(NamedTuple):
    """Contents of a file. ``setting``: what names it, for errors (``ca``, ``key``, ``certificate``).

    ``java_key``: the key of a Java file that names it instead, such as tlsTrustStore.
    """

    setting: str
    path: str
    content: bytes
    type: StoreType
    password: str | None
    java_key: str | None = None

    def name_of(self, part: str) -> str:
        """The setting of its file, type or password, as its source names it."""
        if self.java_key is None:
            return f"{self.setting}_{part}"
        if self.has_type:
            return self.java_key + _JAVA_ENDINGS[part]
        return self.java_key if part == "file" else self.java_key.removesuffix(_ADMIN_ENDING) + "Password"

    @property
    def has_type(self) -> bool:
        """Whether its source has a setting for its type."""
        return self.java_key is None or not self.java_key.endswith(_ADMIN_ENDING)


def key_pair(key_file: GivenFile, certificate_file: GivenFile | None, certificate_setting: str) -> KeyPair:
    """The private key and its chain; in PKCS12 both are in one file. ConfigurationError.

    ``certificate_setting``: what would name the file of the certificate.
    """
    is_left_over = certificate_file is not None and certificate_file.java_key is None  # if the key file is a store
    _check_format(key_file, ", and remove certificate_file" if is_left_over else "")
    if key_file.type is StoreType.PKCS12:
        if certificate_file is not None:
            raise ConfigurationError(
                f"certificate_file ({certificate_file.path}) has no effect: {key_file.path} is PKCS12 and contains the "
                "certificate. Remove certificate_file, or set key_type to PEM"
            )
        return _pkcs12_pair(key_file)
    key = _pem_key(key_file)
    if certificate_file is None and _CERTIFICATE_MARK not in key_file.content:
        raise ConfigurationError(f"{key_file.path} contains a key without a certificate: set {certificate_setting}")
    pair = KeyPair(key, pem_certificates(certificate_file or key_file))
    if _public_bytes(pair.key.public_key()) != _public_bytes(pair.chain[0].public_key()):
        raise ConfigurationError(
            f"the key in {key_file.path} does not belong to the (first) certificate in "
            f"{(certificate_file or key_file).path}"
        )
    return pair


def authorities_pem(file: GivenFile) -> str:
    """The certificates that sign those of the other side, as PEM; ConfigurationError, also if there are none.

    Those of PEM files are not examined: bundles of systems have old ones that only OpenSSL accepts.
    """
    if file.type is StoreType.PEM:
        _check_format(file)
        blocks = _PEM_CERTIFICATE.findall(file.content)
        if not blocks:
            raise ConfigurationError(_no_certificate(file))
        return b"\n".join(blocks).decode(errors="replace")
    store = _pkcs12_store(file)
    found = [*([store.cert] if store.cert is not None else []), *store.additional_certs]
    if not found:
        raise ConfigurationError(f"{file.path} contains no certificate: import the CA with keytool -importcert")
    return "".join(each.certificate.public_bytes(Encoding.PEM).decode() for each in found)


def pem_certificates(file: GivenFile) -> tuple[x509.Certificate, ...]:
    """The certificates of a PEM file, at least one; ConfigurationError."""
    _check_format(file)
    try:
        return tuple(x509.load_pem_x509_certificates(file.content))
    except ValueError as error:
        if _CERTIFICATE_MARK in file.content:
            raise ConfigurationError(f"the certificate in {file.path} is damaged") from error
        raise ConfigurationError(_no_certificate(file)) from error


def _no_certificate(file: GivenFile) -> str:
    return f"the certificate in {file.path} is missing: expected '-----BEGIN CERTIFICATE-----'"


def _pem_key(file: GivenFile) -> PrivateKeyTypes:
    _check_format(file)
    password = None if file.password is None else file.password.encode()
    is_encrypted = b"ENCRYPTED" in file.content
    try:
        return load_pem_private_key(file.content, password if is_encrypted else None)
    except TypeError as error:  # no password
        raise ConfigurationError(f"the key in {file.path} is encrypted: set {file.name_of('password')}") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        if is_encrypted:
            reason = f"cannot be decrypted: check {file.name_of('password')}"
        elif b"PRIVATE KEY-----" in file.content:
            reason = "is damaged, or of a kind that is not supported"
        else:
            reason = "is missing: expected '-----BEGIN PRIVATE KEY-----'"
        raise ConfigurationError(f"the key in {file.path} {reason}") from error


def _pkcs12_pair(file: GivenFile) -> KeyPair:
    store = _pkcs12_store(file)
    if store.key is None or store.cert is None:
        raise ConfigurationError(f"{file.path} contains no private key with a certificate; is it a trust store?")
    return KeyPair(store.key, _in_order(store.cert.certificate, [each.certificate for each in store.additional_certs]))


def _in_order(own: x509.Certificate, others: list[x509.Certificate]) -> tuple[x509.Certificate, ...]:
    """The chain from its own certificate upwards: key stores keep the others in any order, and may have more."""
    chain = [own]
    while issuer := next((each for each in others if each.subject == chain[-1].issuer and each not in chain), None):
        chain.append(issuer)
    return tuple(chain)


def _pkcs12_store(file: GivenFile) -> pkcs12.PKCS12KeyAndCertificates:
    _check_format(file)
    try:
        return pkcs12.load_pkcs12(file.content, None if file.password is None else file.password.encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        cause = f"its password is wrong (check {file.name_of('password')})"
        if file.password is None:
            cause = f"it needs a password (set {file.name_of('password')})"
        raise ConfigurationError(f"cannot open {file.path}: {cause}, or it is not PKCS12") from error


def _check_format(file: GivenFile, more: str = "") -> None:
    """Refuse files of another format by its name. ``more``: what else to do when a JKS file is replaced."""
    if file.content.startswith(_JKS_MAGIC):
        target = file.path.removesuffix(".jks") + ".p12"
        type_fix = f" and {file.name_of('type')} to PKCS12" if file.has_type else ""
        raise ConfigurationError(
            f"{file.path} is a JKS file, which only Java reads. Convert it: {keytool_command(file.path, target)}; then "
            f"set {file.name_of('file')} to {target}{type_fix}{more}"
        )
    if not file.content:
        raise ConfigurationError(f"{file.path} is empty")
    is_pem = _PEM_MARK in file.content
    if is_pem and file.type is StoreType.PKCS12:
        fix = f"set {file.name_of('type')} to PEM"
        if not file.has_type:
            fix = f"{file.name_of('file')} needs a PKCS12 file, which openssl pkcs12 -export makes of PEM files"
        raise ConfigurationError(f"{file.path} is a PEM file: {fix}")
    if not is_pem and file.type is StoreType.PEM and file.content[0] == 0x30:  # ASN.1, which no PEM file begins with
        fix = f"set {file.name_of('type')} to PKCS12"
        kind = "certificate_file must be PEM" if file.setting == "certificate" else fix
        raise ConfigurationError(f"{file.path} is not a PEM file but a binary one: {kind}")


def _public_bytes(key: object) -> bytes:
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)  # type: ignore[attr-defined,no-any-return]
