"""TLS contexts from files as operators have them, broken files, and files that change."""

from __future__ import annotations

import logging
import os
import re
import shlex
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509 import load_pem_x509_certificate

from bkctl.runtime.errors import ConfigurationError
from bkctl.runtime.metadata.zookeeper.embedded import find_java
from bkctl.runtime.security.roles import first_role
from bkctl.runtime.security.tls_contexts import TlsContexts, bookie_contexts, client_contexts
from bkctl.runtime.security_config import BookieTlsConfig, ClientTlsConfig, StoreType
from tests.interop.security_files import STORE_PASSWORD, TestAuthority

SECRETS = {"STORE": STORE_PASSWORD, "WRONG": "wrong", "KEY": "key-password"}
P12 = StoreType.PKCS12


@pytest.fixture
def authority(tmp_path: Path) -> TestAuthority:
    """A CA with the files of a bookie and of an operator who has roles."""
    made = TestAuthority(tmp_path / "tls")
    made.issue("bookie")
    made.issue("operator", units="0:operators,readers;1:cluster")
    return made


def bookie(authority: TestAuthority, **settings: Any) -> TlsContexts:
    """A bookie's contexts; by default from PEM files, for clients with a certificate."""
    files = {name: str(authority.file(file)) for name, file in PEM_OF_A_BOOKIE.items()}
    if settings.get("key_type") is P12:
        files = {"ca_file": files["ca_file"], "key_file": str(authority.file("bookie.p12"))}
    return bookie_contexts(BookieTlsConfig(**({"is_client_certificate_required": True} | files | settings)), SECRETS)


PEM_OF_A_BOOKIE = {"ca_file": "ca.pem", "key_file": "bookie.key", "certificate_file": "bookie.pem"}


def client(authority: TestAuthority, name: str | None = "operator", **settings: Any) -> TlsContexts:
    files: dict[str, Any] = {"ca_file": str(authority.file("ca.pem"))}
    if name is not None:
        files |= {
            "key_file": str(authority.file(f"{name}.key")),
            "certificate_file": str(authority.file(f"{name}.pem")),
        }
    return client_contexts(ClientTlsConfig(**(files | settings)), SECRETS)


def handshake(client_side: TlsContexts, bookie_side: TlsContexts, host: str = "localhost") -> ssl.SSLObject:
    """The bookie's side of an established connection; ssl.SSLError of the side that refuses."""
    to_bookie, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client_side.current().wrap_bio(to_client, to_bookie, server_hostname=host),
        bookie_side.current().wrap_bio(to_bookie, to_client, server_side=True),
    )
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return ends[1]


def test_both_sides_from_pem_files(authority: TestAuthority) -> None:
    connection = handshake(client(authority), bookie(authority))
    assert connection.version() == "TLSv1.3"
    certificate = connection.getpeercert(binary_form=True)
    assert certificate is not None
    assert first_role(certificate) == "operators"


def test_both_sides_from_pkcs12_files(authority: TestAuthority) -> None:
    stores: dict[str, Any] = {"ca_file": str(authority.file("ca.p12")), "ca_type": P12, "ca_password": "env:STORE"}
    own: dict[str, Any] = {"key_type": P12, "key_password": "env:STORE"}
    connection = handshake(
        client(authority, None, key_file=str(authority.file("operator.p12")), **own, **stores),
        bookie(authority, **own, **(stores | {"key_file": str(authority.file("bookie.p12"))})),
    )
    assert connection.getpeercert() is not None


def test_an_encrypted_pem_key(authority: TestAuthority) -> None:
    key = load_pem_private_key(authority.file("bookie.key").read_bytes(), None)
    for layout in (PrivateFormat.PKCS8, PrivateFormat.TraditionalOpenSSL):
        encrypted = key.private_bytes(Encoding.PEM, layout, BestAvailableEncryption(b"key-password"))
        authority.file("bookie.key").write_bytes(encrypted)
        handshake(client(authority), bookie(authority, key_password="env:KEY"))
        with pytest.raises(ConfigurationError, match=r"bookie.key is encrypted: set key_password"):
            bookie(authority)
        with pytest.raises(ConfigurationError, match=r"bookie.key cannot be decrypted: check key_password"):
            bookie(authority, key_password="env:WRONG")


def test_no_key_is_written_to_a_file(authority: TestAuthority, tmp_path: Path) -> None:
    """Nor is a file descriptor left open."""
    descriptors = set(os.listdir("/proc/self/fd"))
    files = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    bookie(authority, key_type=P12, key_password="env:STORE")
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == files
    assert set(os.listdir("/proc/self/fd")) == descriptors


def test_a_bookie_asks_for_certificates_only_if_its_settings_do(authority: TestAuthority) -> None:
    without = client(authority, None)
    handshake(without, bookie(authority, is_client_certificate_required=False))
    handshake(without, bookie(authority, is_client_certificate_required=False, authorized_roles=("operators",)))
    with pytest.raises(ssl.SSLError, match="PEER_DID_NOT_RETURN_A_CERTIFICATE"):
        handshake(without, bookie(authority))


def test_a_foreign_ca_and_a_wrong_host(authority: TestAuthority, tmp_path: Path) -> None:
    foreign = TestAuthority(tmp_path / "foreign")
    foreign.issue("operator")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(client(foreign), bookie(authority))
    with pytest.raises(ssl.SSLError, match="CERTIFICATE_VERIFY_FAILED"):
        handshake(client(foreign, ca_file=str(authority.file("ca.pem"))), bookie(authority))
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(client(authority), bookie(authority), "other.example")
    handshake(client(authority, is_hostname_checked=False), bookie(authority), "other.example")


def test_a_certificate_that_is_no_ca_can_be_trusted(authority: TestAuthority) -> None:
    """As in Java, whose trust stores often have the bookies' own certificates."""
    first = authority.file("bookie.pem").read_text().partition("-----END CERTIFICATE-----")
    authority.file("only.pem").write_text("".join(first[:2]) + "\n")
    handshake(client(authority, ca_file=str(authority.file("only.pem"))), bookie(authority))


def test_a_bundle_of_a_system(authority: TestAuthority) -> None:
    """It has comments in other alphabets, and old roots with serial numbers that standards forbid."""
    certificate = load_pem_x509_certificate(authority.file("ca.pem").read_bytes())
    size = (certificate.serial_number.bit_length() + 8) // 8
    serial = certificate.serial_number.to_bytes(size, "big")
    encoded = certificate.public_bytes(Encoding.DER)
    assert encoded.count(serial) == 1
    old = ssl.DER_cert_to_PEM_cert(encoded.replace(serial, b"\x80" + serial[1:]))
    authority.file("bundle.pem").write_text(f"# Főtanúsítvány\n{old}\n{authority.file('ca.pem').read_text()}")
    handshake(client(authority, ca_file=str(authority.file("bundle.pem"))), bookie(authority))


def test_protocols_and_ciphers(authority: TestAuthority) -> None:
    cipher = "ECDHE-ECDSA-AES256-GCM-SHA384"
    old = client(authority, protocols=("TLSv1.2",), ciphers=(cipher,))
    assert handshake(old, bookie(authority)).cipher() == (cipher, "TLSv1.2", 256)
    with pytest.raises(ssl.SSLError, match="PROTOCOL"):
        handshake(old, bookie(authority, protocols=("TLSv1.3",)))


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"protocols": ("TLSv1.2", "TLSv1.1")}, "TLSv1.1 is not a supported TLS version: protocols may"),
        ({"ciphers": ("AES256", "NO-SUCH")}, "NO-SUCH in ciphers is not a cipher suite of TLS 1.2: use OpenSSL"),
        ({"ciphers": ("TLS_AES_128_GCM_SHA256",)}, "those of TLS 1.3 are always enabled, remove it"),
        ({"key_file": "{tls}/none"}, r"cannot read .*/none \(key_file\): No such file"),
        ({"ca_file": "{tls}"}, r"cannot read .* \(ca_file\): Is a directory"),
        ({"ca_file": "{tls}/empty"}, "/empty is empty"),
        ({"ca_file": "{tls}/bookie.key"}, "the certificate in .*bookie.key is missing"),
        ({"ca_file": "{tls}/cut"}, "a certificate in .*/cut is damaged"),
        ({"key_file": "{tls}/ca.pem"}, "the key in .*ca.pem is missing"),
        ({"key_file": "{tls}/operator.key"}, r"operator.key does not belong to .* certificate in .*bookie.pem"),
        ({"key_file": "{tls}/bookie.p12"}, "bookie.p12 is not a PEM file but a binary one: set key_type to PKCS12"),
        ({"certificate_file": "{tls}/bookie.p12"}, "a binary one: certificate_file must be PEM"),
        ({"certificate_file": None}, "bookie.key contains a key without a certificate: set certificate_file"),
        ({"key_file": None}, r"certificate_file \(.*bookie.pem\) has no effect without key_file"),
        ({"key_file": None, "certificate_file": None}, "a bookie cannot use TLS without a certificate: set key_file"),
        ({"ca_file": None}, "certificates of clients cannot be verified without the CA that signs them: set ca_file"),
        ({"key_type": P12, "certificate_file": "{tls}/bookie.pem"}, "has no effect: .* is PKCS12"),
        ({"key_type": P12}, r"cannot open .*bookie.p12: it needs a password \(set key_password\), or it is not PKCS12"),
        ({"key_type": P12, "key_password": "env:WRONG"}, r"bookie.p12: its password is wrong \(check key_password\)"),
        ({"key_type": P12, "key_password": STORE_PASSWORD}, "give its location as file:PATH, env:VARIABLE or fd"),
        ({"key_type": P12, "key_file": "{tls}/bookie.key"}, "bookie.key is a PEM file: set key_type to PEM"),
        (
            {"key_type": P12, "key_file": "{tls}/bookie.key", "certificate_file": "{tls}/bookie.pem"},
            "bookie.key is a PEM file: set key_type to PEM",
        ),
        ({"key_type": P12, "key_file": "{tls}/ca.p12", "key_password": "env:STORE"}, "no private key .*trust store"),
    ],
)  # fmt: skip
def test_settings_and_files_that_are_refused(authority: TestAuthority, settings: dict[str, Any], reason: str) -> None:
    authority.file("empty").touch()
    authority.file("cut").write_bytes(authority.file("ca.pem").read_bytes()[:300] + b"\n-----END CERTIFICATE-----\n")
    filled = {
        name: value.format(tls=authority.directory) if isinstance(value, str) else value
        for name, value in settings.items()
    }
    with pytest.raises(ConfigurationError, match=reason) as refusal:
        bookie(authority, **filled)
    assert STORE_PASSWORD not in str(refusal.value)


def test_the_command_for_a_jks_file_converts_it(authority: TestAuthority) -> None:
    keytool = os.path.join(os.path.dirname(os.path.realpath(find_java())), "keytool")
    passwords = ("-srcstorepass", STORE_PASSWORD, "-deststorepass", STORE_PASSWORD)
    old = str(authority.file("old.jks"))
    source = ("-srckeystore", str(authority.file("bookie.p12")), "-destkeystore", old, "-deststoretype", "JKS")
    subprocess.run([keytool, "-importkeystore", *source, *passwords], check=True, capture_output=True)
    for key_type in (StoreType.PEM, P12):  # of PEM files that the store has replaced
        left = {"key_type": key_type, "certificate_file": str(authority.file("bookie.pem"))}
        with pytest.raises(ConfigurationError, match=r"JKS file.* key_type to PKCS12, and remove certificate_file$"):
            bookie(authority, key_file=old, key_password="env:STORE", **left)
    with pytest.raises(ConfigurationError, match=r"is a JKS file.*Convert it: .* key_type to PKCS12$") as refusal:
        bookie(authority, key_type=P12, key_file=old, key_password="env:STORE")
    command = re.search(r"keytool (-importkeystore .*); then set key_file to (\S+) and key_type", str(refusal.value))
    assert command is not None
    subprocess.run([keytool, *shlex.split(command[1]), *passwords], check=True, capture_output=True)
    converted = bookie(authority, key_type=P12, key_file=command[2], key_password="env:STORE")
    handshake(client(authority), converted)


# -- files that change ------------------------------------------------------------------------------------------------


def served(contexts: TlsContexts, authority: TestAuthority) -> bytes | None:
    """The certificate that a bookie shows."""
    to_bookie, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    end = client(authority).current().wrap_bio(to_client, to_bookie, server_hostname="localhost")
    other = contexts.current().wrap_bio(to_bookie, to_client, server_side=True)
    for step in (end, other, end, other):
        try:
            step.do_handshake()
        except ssl.SSLWantReadError:
            continue
    return end.getpeercert(binary_form=True)


@pytest.mark.parametrize("settings", [{}, {"key_type": P12, "key_password": "env:STORE"}])
def test_new_files_are_used_by_the_next_connection(authority: TestAuthority, settings: dict[str, Any]) -> None:
    contexts = bookie(authority, **settings)
    context, shown, expires = contexts.current(), served(contexts, authority), contexts.expires_at()
    assert contexts.current() is context
    authority.issue("bookie", valid_s=999_999)
    assert contexts.current() is not context
    assert served(contexts, authority) not in {shown, None}
    after = contexts.expires_at()
    assert expires is not None
    assert after is not None
    assert 900_000 < after - expires < 999_999


def test_a_pair_that_is_half_written_is_used_when_it_is_whole(
    authority: TestAuthority, caplog: pytest.LogCaptureFixture
) -> None:
    contexts = bookie(authority)
    context = contexts.current()
    old_key = authority.file("bookie.key").read_bytes()
    authority.issue("bookie")
    new_key = authority.file("bookie.key").read_bytes()
    authority.file("bookie.key").write_bytes(old_key)
    for _ in range(3):
        assert contexts.current() is context
    assert [each.levelno for each in caplog.records] == [logging.WARNING]
    assert "does not belong to the (first) certificate" in caplog.text
    authority.file("bookie.key").unlink()
    for _ in range(3):
        assert contexts.current() is context
    assert len(caplog.records) == 2
    assert "cannot read" in caplog.records[1].getMessage()
    authority.file("bookie.key").write_bytes(new_key)
    assert contexts.current() is not context
    assert len(caplog.records) == 2


def test_a_password_file_that_changes(authority: TestAuthority, tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_text(STORE_PASSWORD)
    path.chmod(0o600)
    contexts = bookie(authority, key_type=P12, key_password=f"file:{path}")
    context = contexts.current()
    path.write_text("wrong")
    assert contexts.current() is context
    path.write_text(STORE_PASSWORD)
    assert contexts.current() is not context


@pytest.mark.parametrize("side", [bookie, client])
def test_an_expired_certificate_is_loaded_with_a_warning(
    authority: TestAuthority, caplog: pytest.LogCaptureFixture, side: Callable[[TestAuthority], TlsContexts]
) -> None:
    for name in ("bookie", "operator"):
        authority.issue(name, valid_s=-60)
    assert side(authority).current() is not None
    assert re.search(r"The certificate in .*\.pem expired at .*; others refuse it: replace it", caplog.text)


def test_a_client_without_a_certificate_has_no_expiry(authority: TestAuthority) -> None:
    assert client(authority, None).expires_at() is None
