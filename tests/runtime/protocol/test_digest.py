"""Keys and check values that Java computes."""

from __future__ import annotations

import pytest

from bkctl.runtime.protocol.digest import DigestType, digest_of, master_key
from tests.runtime.protocol.golden import vectors


@pytest.mark.parametrize("password", [b"", b"testPasswd", b"foobar"])
def test_master_key(password: bytes) -> None:
    assert master_key(password) == vectors()[f"master {password!r}"]


@pytest.mark.parametrize(
    ("digest_type", "expected"),
    [
        (DigestType.CRC32, "00000000cbf43926"),
        (DigestType.CRC32C, "e3069283"),
        (DigestType.DUMMY, ""),
    ],
)
def test_check_values_do_not_depend_on_the_cut(digest_type: DigestType, expected: str) -> None:
    digest = digest_of(digest_type, b"any")
    assert digest.compute(b"123456789", b"").hex() == expected
    assert digest.compute(b"1234", b"56789").hex() == expected
    assert digest.size_bytes == len(expected) // 2


def test_hmac_depends_on_the_password_and_keeps_no_state() -> None:
    digest = digest_of(DigestType.HMAC, b"one")
    first = digest.compute(b"12", b"34")
    assert first == digest.compute(b"1", b"234")
    assert len(first) == digest.size_bytes
    assert first != digest_of(DigestType.HMAC, b"two").compute(b"12", b"34")
