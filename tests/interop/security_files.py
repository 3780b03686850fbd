"""Certificates of a test's own CA, as PEM and as PKCS12: what operators give to bookies and clients."""

from __future__ import annotations

import datetime
import ipaddress
import os
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import NameOID

from tests.processes import LOOPBACK

STORE_PASSWORD = "store-password-7f3a"
_DAY = datetime.timedelta(days=1)


class TestAuthority:
    """A CA whose files are in one directory: ``ca.pem``, ``ca.p12``, ``password`` (of all PKCS12 files)."""

    __test__ = False

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "CA of a test")])
        now = datetime.datetime.now(datetime.UTC)
        self._certificate = (
            _builder(self._name, self._name, self._key, now - _DAY, now + 365 * _DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(_KEY_USAGE_OF_A_CA, critical=True)
            .sign(self._key, hashes.SHA256())
        )
        directory.mkdir(parents=True, exist_ok=True)
        self.file("ca.pem").write_bytes(_pem(self._certificate))
        self.file("password").write_text(STORE_PASSWORD)
        trusted = [pkcs12.PKCS12Certificate(self._certificate, b"ca")]
        encryption = serialization.BestAvailableEncryption(STORE_PASSWORD.encode())
        self.file("ca.p12").write_bytes(pkcs12.serialize_java_truststore(trusted, encryption))

    def file(self, name: str) -> Path:
        """Path of a file of this CA."""
        return self.directory / name

    def issue(self, name: str, *, units: str | None = None, valid_s: float = 86_400.0, host: str = "localhost") -> None:
        """Write ``NAME.pem``, ``NAME.key`` and ``NAME.p12``, in place of those that exist. ``units``: the OU.

        The certificate is good for ``valid_s`` from now on, as a server and as a client, for localhost and 127.0.0.1,
        or for another ``host`` alone.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        attributes = [x509.NameAttribute(NameOID.COMMON_NAME, name)]
        if units is not None:
            attributes.append(x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, units))
        now = datetime.datetime.now(datetime.UTC)
        end = now + datetime.timedelta(seconds=valid_s)
        names: list[x509.GeneralName] = [x509.DNSName(host)]
        if host == "localhost":
            names.append(x509.IPAddress(ipaddress.ip_address(LOOPBACK)))
        certificate = (
            _builder(x509.Name(attributes), self._name, key, now - _DAY, end)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        encryption = serialization.BestAvailableEncryption(STORE_PASSWORD.encode())
        store = pkcs12.serialize_key_and_certificates(name.encode(), key, certificate, [self._certificate], encryption)
        self._replace(f"{name}.p12", store)
        self._replace(f"{name}.key", _private_pem(key))
        self._replace(f"{name}.pem", _pem(certificate) + _pem(self._certificate))

    def _replace(self, name: str, content: bytes) -> None:
        self.file(f"{name}.new").write_bytes(content)
        os.replace(self.file(f"{name}.new"), self.file(name))


_KEY_USAGE_OF_A_CA = x509.KeyUsage(
    digital_signature=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    begin: datetime.datetime,
    end: datetime.datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
