"""Makes a certificate authority, and certificates of bookies and clients that Java accepts too.

Everything is PEM. Keys are elliptic (P-256), in PKCS8 without a password, as Java reads PEM keys. Source: operations 4.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_CLOCK_SKEW: Final = datetime.timedelta(minutes=5)
_ROLE_CODE: Final = "0:"
_CURVE: Final = ec.SECP256R1()
NAME_LENGTH_MAX: Final = 64
"""Longest common name and unit of a certificate (RFC 5280)."""


class Authority(NamedTuple):
    """A certificate authority that signs."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


class CertificateRequest(NamedTuple):
    """What a new certificate says. ``hosts``: names and addresses of a bookie; a client has none.

    ``role``: goes to the OU, where Java's BookieAuthZFactory looks for it.
    """

    name: str
    hosts: tuple[str, ...]
    role: str | None
    days: int


def new_key() -> ec.EllipticCurvePrivateKey:
    """A new private key."""
    return ec.generate_private_key(_CURVE)


def new_authority(name: str, days: int, now: datetime.datetime) -> Authority:
    """An authority that signs itself, and only certificates of others below it."""
    key = new_key()
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = _builder(subject, subject, key, days, now)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    return Authority(builder.sign(key, hashes.SHA256()), key)


def sign(
    authority: Authority, request: CertificateRequest, key: ec.EllipticCurvePrivateKey, now: datetime.datetime
) -> x509.Certificate:
    """A certificate for this key. A bookie's is also a client's, because bookies connect to each other."""
    attributes = [x509.NameAttribute(NameOID.COMMON_NAME, request.name[:NAME_LENGTH_MAX])]
    if request.role is not None:
        attributes.append(x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, role_unit(request.role)))
    builder = _builder(x509.Name(attributes), authority.certificate.subject, key, request.days, now)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
    uses = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if request.hosts:
        uses.insert(0, ExtendedKeyUsageOID.SERVER_AUTH)
        names = x509.SubjectAlternativeName([_general_name(host) for host in request.hosts])
        builder = builder.add_extension(names, critical=False)
    builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    return builder.add_extension(issuer, critical=False).sign(authority.key, hashes.SHA256())


def role_unit(role: str) -> str:
    """The OU of a certificate with one role."""
    return f"{_ROLE_CODE}{role}"


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """The key as a PEM file."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def certificate_pem(certificate: x509.Certificate) -> bytes:
    """The certificate as a PEM file."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def alternative_names(certificate: x509.Certificate) -> list[str]:
    """Host names and addresses of a certificate, in their order."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [str(each.value) for each in names if isinstance(each, x509.DNSName | x509.IPAddress)]


def matches_host(names: Sequence[str], host: str) -> bool:
    """Whether one of the names is this host; a ``*`` stands for the first label of a name, as in TLS."""
    host = host.lower().removesuffix(".")
    wildcard = f"*.{host.partition('.')[2]}" if "." in host and not is_address(host) else None
    return any(name.lower() in {host, wildcard} for name in names)


def is_address(host: str) -> bool:
    """Whether a host is an IP address."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _general_name(host: str) -> x509.GeneralName:
    return x509.IPAddress(ipaddress.ip_address(host)) if is_address(host) else x509.DNSName(host)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int, now: datetime.datetime
) -> x509.CertificateBuilder:
    public = key.public_key()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
