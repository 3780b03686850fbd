"""Roles in a client's certificate, as Java's BookieAuthZFactory reads them. Source: wire section 12.2."""

from __future__ import annotations

from cryptography import x509
from cryptography.x509.oid import NameOID

_ROLE_CODE = "0"


def first_role(certificate_der: bytes) -> str | None:
    """The first role in the OU (``0:role1,role2;1:cluster``), the only one that counts; None if there is none."""
    try:
        units = x509.load_der_x509_certificate(certificate_der).subject.get_attributes_for_oid(
            NameOID.ORGANIZATIONAL_UNIT_NAME
        )
    except ValueError:  # a certificate that OpenSSL accepted but this library does not
        return None
    for unit in units:
        for part in str(unit.value).split(";"):
            code, colon, roles = part.partition(":")
            if colon and code.strip() == _ROLE_CODE:
                return roles.split(",")[0].strip() or None
    return None
