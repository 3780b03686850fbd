"""Certificates of a test's own CA, as PEM and as PKCS12: what operators give to bookies and clients."""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import NameOID

from bkctl.runtime.security.certificates import certificate_pem, key_pem, new_authority, new_key
from tests.processes import LOOPBACK

STORE_PASSWORD = "store-password-7f3a"
_DAY = datetime.timedelta(days=1)


class TestAuthority:
    """A CA whose files are in one directory: ``ca.pem``, ``ca.p12``, ``password`` (of all PKCS12 files)."""

    __test__ = False

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        now = datetime.datetime.now(datetime.UTC)
        self._certificate, self._key = new_authority("CA of a test", 366, now - _DAY)
        directory.mkdir(parents=True, exist_ok=True)
        self.file("ca.pem").write_bytes(certificate_pem(self._certificate))
        self.file("password").write_text(STORE_PASSWORD)
        trusted = [pkcs12.PKCS12Certificate(self._certificate, b"ca")]
        encryption = serialization.BestAvailableEncryption(STORE_PASSWORD.encode())
        self.file("ca.p12").write_bytes(pkcs12.serialize_java_truststore(trusted, encryption))

    def file(self, name: str) -> Path:
        """Path of a file of this CA."""
        return self.directory / name

    def issue(
        self,
        name: str,
        *,
        units: str | None = None,
        valid_s: float = 86_400.0,
        hosts: Sequence[str] = ("localhost", LOOPBACK),
    ) -> None:
        """Write ``NAME.pem``, ``NAME.key`` and ``NAME.p12``, in place of those that exist. ``units``: the OU.

        The certificate is good for ``valid_s`` from now on, as a server and as a client, for these names and addresses.
        """
        key = new_key()
        attributes = [x509.NameAttribute(NameOID.COMMON_NAME, name)]
        if units is not None:
            attributes.append(x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, units))
        now = datetime.datetime.now(datetime.UTC)
        end = now + datetime.timedelta(seconds=valid_s)
        names = [
            x509.IPAddress(ipaddress.ip_address(host)) if host == LOOPBACK else x509.DNSName(host) for host in hosts
        ]
        certificate = (
            x509.CertificateBuilder()
            .subject_name(x509.Name(attributes))
            .issuer_name(self._certificate.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _DAY)
            .not_valid_after(end)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        encryption = serialization.BestAvailableEncryption(STORE_PASSWORD.encode())
        store = pkcs12.serialize_key_and_certificates(name.encode(), key, certificate, [self._certificate], encryption)
        self._replace(f"{name}.p12", store)
        self._replace(f"{name}.key", key_pem(key))
        self._replace(f"{name}.pem", certificate_pem(certificate) + certificate_pem(self._certificate))

    def _replace(self, name: str, content: bytes) -> None:
        self.file(f"{name}.new").write_bytes(content)
        os.replace(self.file(f"{name}.new"), self.file(name))
