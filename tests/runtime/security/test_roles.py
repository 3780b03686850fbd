"""Roles in certificates, as Java reads them."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from bkctl.runtime.security.roles import first_role
from tests.interop.security_files import TestAuthority


@pytest.mark.parametrize(
    ("units", "role"),
    [
        ("0:operators", "operators"),
        ("0:operators,readers;1:cluster", "operators"),
        ("1:cluster;0:operators", "operators"),
        ("1:cluster", None),
        ("operators", None),
        ("0:", None),
        ("", None),
        (None, None),
    ],
)
def test_the_first_role_counts(tmp_path: Path, units: str | None, role: str | None) -> None:
    authority = TestAuthority(tmp_path)
    authority.issue("operator", units=units)
    certificates = authority.file("operator.pem").read_text().partition("-----END CERTIFICATE-----")
    assert first_role(ssl.PEM_cert_to_DER_cert("".join(certificates[:2]))) == role


def test_bytes_that_are_no_certificate_have_no_role() -> None:
    assert first_role(b"0\x03junk") is None
