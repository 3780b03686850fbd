"""Commands over the HTTPS port of a bookie: certificates replace the token, which goes only to a verified name."""

from __future__ import annotations

import contextlib
import datetime
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, NoEncryption, pkcs12

from bkctl.commands.tls.init import read_key
from bkctl.runtime.security.certificates import Authority, new_authority
from tests.certificate_files import CertificateFiles, write_certificate
from tests.commands.bookie.admin_bookie import TOKEN, AdminBookie, running_bookie
from tests.commands.bookie.registered_server import LoopbackServer, register_admin_port
from tests.processes import LOOPBACK, BkctlResult, free_port, run_bkctl

pytestmark = pytest.mark.cluster

NOW = datetime.datetime.now(datetime.UTC)


@pytest.fixture(scope="module")
def authority() -> Authority:
    return new_authority("test", 10, NOW)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("https")


@pytest.fixture(scope="module")
def operator(authority: Authority, directory: Path) -> CertificateFiles:
    return write_certificate(authority, directory / "operator", role="admin")


def https(directory: Path, authority: Authority) -> list[str]:
    """Settings with files that are PKCS12 stores, named by Java's keys."""
    files = write_certificate(authority, directory / "bookie", hosts=(LOOPBACK,))
    certificate = x509.load_pem_x509_certificate(Path(files.certificate).read_bytes())
    key_store, trust_store, password = directory / "key.p12", directory / "trust.p12", directory / "password"
    password.touch(0o600)
    password.write_text("of the store\n")
    encryption = BestAvailableEncryption(b"of the store")
    key_store.write_bytes(
        pkcs12.serialize_key_and_certificates(b"b", read_key(files.key), certificate, None, encryption)
    )
    trust_store.write_bytes(
        pkcs12.serialize_key_and_certificates(None, None, None, [authority.certificate], NoEncryption())
    )
    return [
        "httpServerTlsEnable=true",
        f"httpServerKeyStorePath={key_store}",
        f"httpServerKeyStorePassword=file:{password}",
        f"httpServerTrustStorePath={trust_store}",
        "adminAuthorizedRoles=admin",
    ]


@pytest.fixture(scope="module")
def bookie(new_metadata_uri: Callable[[], str], authority: Authority, directory: Path) -> Iterator[AdminBookie]:
    with running_bookie(new_metadata_uri(), directory / "data", *https(directory, authority)) as started:
        yield started


def settings(path: Path, files: CertificateFiles, *, with_key: bool) -> str:
    text = f'[bookie_client.tls]\nca_file = "{files.ca}"\n'
    if with_key:
        text += f'key_file = "{files.key}"\ncertificate_file = "{files.certificate}"\n'
    path.write_text(text)
    return str(path)


@pytest.fixture
def token_file(tmp_path: Path) -> str:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    return str(path)


def set_mode(bookie: AdminBookie, *words: str) -> BkctlResult:
    """A change over TCP, without an address that the operator names."""
    with bookie.without_socket():
        return run_bkctl(
            *("bookie", "set-mode", "read-only", bookie.bookie_id, "-y", *words),
            BKCTL_METADATA_URI=bookie.metadata_uri,
        )


def test_a_client_certificate_or_the_token_and_a_verified_name(
    bookie: AdminBookie, authority: Authority, operator: CertificateFiles, tmp_path: Path, token_file: str
) -> None:
    unverified = set_mode(bookie, "--token-file", token_file)
    assert unverified.exit_code == 11
    assert "uses HTTPS: set ca_file in [bookie_client.tls]" in unverified.stderr
    only_ca = settings(tmp_path / "ca.toml", operator, with_key=False)
    unknown = set_mode(bookie, "--config", only_ca)
    assert (unknown.exit_code, "give the token of this bookie" in unknown.stderr) == (11, True)
    assert set_mode(bookie, "--config", only_ca, "--token-file", token_file).exit_code == 0
    assert bookie.run("set-mode", "writable").exit_code == 0
    reader = write_certificate(authority, tmp_path / "reader", role="reader")
    with_role = set_mode(bookie, "--config", settings(tmp_path / "reader.toml", reader, with_key=True))
    assert with_role.exit_code == 11, with_role.stderr
    assert "the certificate of this client has the role 'reader', and changes need one of" in with_role.stderr
    own = settings(tmp_path / "own.toml", operator, with_key=True)
    made = set_mode(bookie, "--config", own)
    assert (made.exit_code, made.json()["mode"]) == (0, "read-only"), made.stderr
    assert bookie.run("set-mode", "writable").exit_code == 0


def test_without_a_token_a_client_certificate_is_needed(
    metadata_uri: str, authority: Authority, operator: CertificateFiles, tmp_path: Path, token_file: str
) -> None:
    """The files of the bookie's port serve for both."""
    files = write_certificate(authority, tmp_path / "bookie", hosts=(LOOPBACK,))
    given = [
        *("httpServerTlsEnable=true", "adminAuthorizedRoles=admin", "tlsKeyStoreType=PEM", "tlsTrustStoreType=PEM"),
        "tlsProviderFactoryClass=org.apache.bookkeeper.tls.TLSContextFactory",
        *(f"tlsKeyStore={files.key}", f"tlsCertificatePath={files.certificate}", f"tlsTrustStore={files.ca}"),
    ]
    with running_bookie(metadata_uri, tmp_path / "data", *given, has_token=False) as bookie:
        only_ca = settings(tmp_path / "ca.toml", operator, with_key=False)
        for words in ((), ("--token-file", token_file)):
            refused = set_mode(bookie, "--config", only_ca, *words)
            assert (refused.exit_code, "or over HTTPS a client certificate with a role" in refused.stderr) == (11, True)
        reader = write_certificate(authority, tmp_path / "reader", role="reader")
        with bookie.without_socket():
            drained = run_bkctl(
                *("bookie", "drain", bookie.bookie_id, "-y", "--accept-risk"),
                *("--config", settings(tmp_path / "reader.toml", reader, with_key=True)),
                BKCTL_METADATA_URI=bookie.metadata_uri,
            )
        assert (drained.exit_code, "has the role 'reader', and changes need" in drained.stderr) == (11, True), drained
        assert "may be read-only" not in drained.stderr


def client_hello() -> bytes:
    outgoing = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=LOOPBACK).do_handshake()
    return outgoing.read()


def test_handshakes_that_are_cut_at_every_byte_hold_no_memory(bookie: AdminBookie) -> None:
    """The client is gone before the handshake begins: the TLS files are looked at first."""

    def resident_bytes() -> int:
        return int(Path(f"/proc/{bookie.process.pid}/statm").read_text().split()[1]) * 4096

    hello, before = client_hello(), 0
    for number in range(1500):
        if number == 500:
            before = resident_bytes()
        with socket.create_connection((LOOPBACK, bookie.http_port)) as client:
            client.sendall(hello[: number % len(hello)])
    assert resident_bytes() - before < 16 * 1024 * 1024


@pytest.mark.parametrize(
    ("since_days", "reason"),
    [(-2, "expired"), (2, "perhaps not valid yet, check its dates"), (None, "not signed by a CA that it trusts")],
)
def test_a_client_whose_certificate_is_not_accepted_is_refused_in_one_sentence(
    bookie: AdminBookie,
    authority: Authority,
    operator: CertificateFiles,
    tmp_path: Path,
    since_days: int | None,
    reason: str,
) -> None:
    if since_days is not None:
        begin = NOW + datetime.timedelta(days=since_days)
        files = write_certificate(authority, tmp_path / "own", days=1, now=begin)
    else:
        files = write_certificate(new_authority("other", 10, NOW), tmp_path / "stranger")._replace(ca=operator.ca)
    refused = set_mode(bookie, "--config", settings(tmp_path / "c.toml", files, with_key=True))
    assert (refused.exit_code, refused.stderr.count("\n")) == (11, 1), refused.stderr
    own = f"the certificate of this client, {files.certificate} (bookie_client.tls.certificate_file)"
    assert f"it rejects {own}: {reason}" in refused.stderr


def test_a_probe_over_https_checks_the_certificate(
    bookie: AdminBookie, operator: CertificateFiles, tmp_path: Path
) -> None:
    other_ca = write_certificate(new_authority("other", 10, NOW), tmp_path / "other")
    with bookie.without_socket():
        without_ca = run_bkctl("bookie", "ready", bookie.bookie_id, BKCTL_METADATA_URI=bookie.metadata_uri)
        results = [
            run_bkctl(
                *("bookie", "ready", bookie.bookie_id, "--started-within", "10m"),
                *("--config", settings(tmp_path / f"{number}.toml", files, with_key=False)),
                BKCTL_METADATA_URI=bookie.metadata_uri,
            )
            for number, files in enumerate((other_ca, operator))
        ]
    assert (without_ca.exit_code, without_ca.stderr.count("\n")) == (11, 1)
    assert "uses HTTPS: set ca_file in [bookie_client.tls]" in without_ca.stderr
    assert results[0].exit_code == 11
    assert "its certificate is not signed by a CA in bookie_client.tls.ca_file" in results[0].stderr
    assert (results[1].exit_code, results[1].json()["state"]) == (0, "running"), results[1].stderr


class TlsImpostor(LoopbackServer):
    """An HTTPS server that keeps what it receives, and answers nothing."""

    def __init__(self, files: CertificateFiles) -> None:
        self.received = bytearray()
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(files.certificate, files.key)
        self.connections = 0
        super().__init__()

    def serve(self, connection: socket.socket) -> None:
        self.connections += 1
        with self._context.wrap_socket(connection, server_side=True) as secured:
            self.received += secured.recv(65536)


@pytest.mark.parametrize(
    ("host", "reason"),
    [
        ("victim.example.com", ""),
        ("evil.example.com", "its certificate is not for the host victim.example.com"),
        (LOOPBACK, "its certificate is not for the host victim.example.com"),
        (None, "its certificate is not signed by a CA in bookie_client.tls.ca_file"),
    ],
)
def test_a_false_registration_gets_the_token_only_with_the_certificate_of_the_bookie_s_host(
    metadata_uri: str,
    authority: Authority,
    operator: CertificateFiles,
    tmp_path: Path,
    token_file: str,
    host: str | None,
    reason: str,
) -> None:
    signer = authority if host is not None else new_authority("other", 10, NOW)
    files = write_certificate(signer, tmp_path / "impostor", hosts=(host or "victim.example.com",))
    with contextlib.closing(TlsImpostor(files)) as server:
        register_admin_port(metadata_uri, "victim.example.com:3181", LOOPBACK, server.port, is_https=True)

        def run(hosts: str) -> BkctlResult:
            return run_bkctl(
                *("bookie", "log-level", "debug", "victim.example.com:3181", "--token-file", token_file),
                *("--config", settings(tmp_path / "c.toml", operator, with_key=True), "--timeout", "20s"),
                BKCTL_METADATA_URI=metadata_uri,
                BKCTL_ADMIN_TOKEN_HOSTS=hosts,
            )

        result = run("")
        assert result.exit_code == (11 if reason else 7)
        assert reason in result.stderr
        assert "is_hostname_checked" not in result.stderr, "the name is always checked here"
        assert server.connections
        assert bool(server.received) is not bool(reason)
        if "not for the host" in reason:
            named = f"{LOOPBACK}:{server.port}"
            advice = f"use one with this name, or set BKCTL_ADMIN_TOKEN_HOSTS={named} if this is the bookie's: then "
            assert f"{advice}the certificate must be for {LOOPBACK}\n" in result.stderr
            heeded = run(named)
            assert heeded.exit_code == (7 if host == LOOPBACK else 11)
            if host != LOOPBACK:
                assert heeded.stderr.endswith(f"is not for the host {LOOPBACK}: use one with this name\n")
    assert TOKEN.encode() not in server.received  # a command looks before it changes something


@pytest.mark.parametrize(
    ("content", "fix"),
    [
        (bytes.fromhex("feedfeed") + bytes(8), "; then set httpServerKeyStorePath to {store}.p12"),
        (b"-----BEGIN PRIVATE KEY-----\n", "{store} is a PEM file: httpServerKeyStorePath needs a PKCS12 file"),
        (b"\x30\x82", "it needs a password (set httpServerKeyStorePassword), or it is not PKCS12"),
        (b"", "{store} is empty"),
        (None, "cannot read {store} (httpServerKeyStorePath): No such file or directory"),
    ],
    ids=["jks", "pem", "no password", "empty", "missing"],
)
def test_a_store_that_cannot_be_used_is_named_by_the_key_of_the_file(
    new_metadata_uri: Callable[[], str], tmp_path: Path, content: bytes | None, fix: str
) -> None:
    store, conf, uri = tmp_path / "store", tmp_path / "bookie.conf", new_metadata_uri()
    if content is not None:
        store.write_bytes(content)
    conf.write_text(
        f"metadataServiceUri={uri}\nbookiePort={free_port()}\nallowLoopback=true\nadvertisedAddress={LOOPBACK}\n"
        f"journalDirectories={tmp_path}/j\nledgerDirectories={tmp_path}/l\n"
        f"httpServerEnabled=true\nhttpServerPort={free_port()}\nhttpServerTlsEnable=true\nhttpServerKeyStorePath={store}\n"
    )
    assert run_bkctl("cluster", "init", BKCTL_METADATA_URI=uri).exit_code == 0
    for command in ("bookie", "autorecovery"):
        refused = run_bkctl(command, "start", "--conf", str(conf))
        assert refused.exit_code == 1, refused.stderr
        sentence = refused.stderr.splitlines()[-1]
        assert fix.format(store=store) in sentence
        assert "_file" not in sentence
        assert "_type" not in sentence
