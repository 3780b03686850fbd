"""``bookie start`` with TLS, logins and a list of users that may start it."""

from __future__ import annotations

import asyncio
import getpass
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bkctl.runtime.client import LedgerClient
from bkctl.runtime.config import ClientConfig
from bkctl.runtime.security_config import BookieClientConfig, ClientLoginConfig, ClientTlsConfig
from tests.interop.security_files import TestAuthority
from tests.kerberos import Realm, require_kerberos
from tests.processes import LOOPBACK, BkctlProcess, Cluster, free_port, run_bkctl, start_bkctl
from tests.until import wait_until

PASSWORD = "a-password-that-no-output-shows"
JAAS = f'Bookie {{ org.example.DigestLoginModule required user_bookkeeper="{PASSWORD}"; }};'


@pytest.fixture
def files(tmp_path: Path) -> TestAuthority:
    authority = TestAuthority(tmp_path / "tls")
    authority.issue("bookie", valid_s=10 * 24 * 3600)
    authority.issue("client", units="0:writer")
    authority.file("jaas.conf").write_text(JAAS)
    return authority


class Start:
    """The arguments of one bookie, and its process."""

    def __init__(self, directory: Path, metadata_uri: str) -> None:
        self.directory, self.metadata_uri = directory, metadata_uri
        self.id = f"{LOOPBACK}:{free_port()}"
        self.log = directory / "bookie.log"
        self.process: BkctlProcess | None = None

    def arguments(self, text: str, *words: str) -> list[str]:
        config = self.directory / "config.toml"
        config.write_text(text)
        return [
            *(
                "bookie",
                *(words or ("start",)),
                "--config",
                str(config),
                "-u",
                self.metadata_uri,
                "--advertised-address",
                LOOPBACK,
            ),
            *("--port", self.id.partition(":")[2], "--set", "allowLoopback=true", "--set", "diskUsageThreshold=0.99"),
            *("--journal-dir", str(self.directory / "j"), "--ledger-dir", str(self.directory / "l")),
        ]

    def refused(self, text: str, check: str, *more: str) -> str:
        """What a start says that is refused; the check has said the same before."""
        checked = run_bkctl(*self.arguments(text, "init", "--check"), *more)
        assert checked.exit_code == 13, checked
        results = {row["name"]: row["result"] for row in checked.json()["checks"]}
        assert [name for name, result in results.items() if result == "failed"] == [check]
        refused = run_bkctl(*self.arguments(text), *more)
        assert refused.exit_code == 1, refused.stderr
        if check in {"TLS and logins", "connections to bookies", "user"}:
            rehearsed = run_bkctl(*self.arguments(text), "--dry-run", *more)
            assert (rehearsed.exit_code, rehearsed.stdout) == (1, "")
            assert rehearsed.stderr.splitlines() == refused.stderr.splitlines()[-1:]
        assert refused.stderr.splitlines()[-1] == checked.stderr.splitlines()[-1]
        return refused.stderr

    def has_files(self) -> bool:
        return (self.directory / "j").exists()

    def run(self, text: str) -> None:
        with self.log.open("wb") as log:
            self.process = start_bkctl(*self.arguments(text), stderr=log)
        wait_until(lambda: "listening on port" in self.log.read_text(), process=self.process, tell=self.log.read_text)

    def end(self) -> int:
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(300)


@pytest.fixture
def start(tmp_path: Path, metadata_uri: str) -> Iterator[Start]:
    assert run_bkctl("cluster", "init", "-u", metadata_uri).exit_code == 0
    started = Start(tmp_path, metadata_uri)
    yield started
    if started.process is not None:
        started.end()


def tables(files: TestAuthority, *more: str) -> str:
    names = {"certificate_file": "bookie.pem", "key_file": "bookie.key", "ca_file": "ca.pem"}
    return "\n".join(["[bookie.tls]", *(f'{key} = "{files.file(name)}"' for key, name in names.items()), *more])


async def write_and_read(metadata_uri: str, security: BookieClientConfig, copies: int = 1) -> None:
    config = ClientConfig(security=security)
    async with await LedgerClient.connect(metadata_uri, config=config) as client:
        writer = await client.create(ensemble_size=copies, write_quorum_size=copies, ack_quorum_size=copies)
        payloads = [bytes([number]) * 100_000 for number in range(30)]
        for payload in payloads:
            await writer.append(payload)
        await writer.close()
        reader = await client.open(writer.ledger_id)
        assert [entry.payload for entry in await reader.read(0, 29)] == payloads


def test_a_bookie_with_tls_and_logins_serves_clients_that_have_both(start: Start, files: TestAuthority) -> None:
    start.run(tables(files, "is_required = true", "[bookie.sasl]", f'jaas_file = "{files.file("jaas.conf")}"'))
    listed = run_bkctl("bookie", "list", "-u", start.metadata_uri, BKCTL_OUTPUT="")
    assert "it serves only clients that use TLS or log in: set bookie_client.tls" in listed.stdout
    registered = run_bkctl("bookie", "list", "-o", "json", "-u", start.metadata_uri)
    assert registered.exit_code == 11, registered.stderr
    written = run_bkctl("ledger", "write-test", "-E", "1", "-W", "1", "-A", "1", "-u", start.metadata_uri)
    assert written.exit_code == 11, written.stderr
    assert run_bkctl("ledger", "list", "-o", "name", "-u", start.metadata_uri).stdout == ""
    tls = ClientTlsConfig(ca_file=str(files.file("ca.pem")))
    files.file("password-file").write_text(PASSWORD)
    files.file("password-file").chmod(0o644)
    client = start.directory / "client.toml"
    client.write_text(f"[bookie_client.sasl]\nusername='bookkeeper'\npassword='file:{files.file('password-file')}'\n")
    warned = run_bkctl("bookie", "list", "-u", start.metadata_uri, "--config", str(client))
    assert warned.stderr.count(f"warning: {files.file('password-file')} contains bookie_client.sasl.password") == 1
    files.file("password-file").chmod(0o600)
    login = ClientLoginConfig(username="bookkeeper", password=f"file:{files.file('password-file')}")
    asyncio.run(write_and_read(start.metadata_uri, BookieClientConfig(tls=tls, sasl=login)))
    for security in (BookieClientConfig(), BookieClientConfig(tls=tls), BookieClientConfig(sasl=login)):
        with pytest.raises(Exception, match="bookie 127"):
            asyncio.run(write_and_read(start.metadata_uri, security))
    assert start.end() == 0
    log = start.log.read_text()
    assert "this bookie requires TLS" in log
    assert "this bookie requires a login" in log
    assert "The bookie's certificate expires in 10.0 days" in log
    assert PASSWORD not in log


def test_roles_of_certificates_decide_who_is_served(start: Start, files: TestAuthority) -> None:
    start.run(tables(files, 'authorized_roles = ["writer"]'))
    own = {"certificate_file": str(files.file("client.pem")), "key_file": str(files.file("client.key"))}
    tls = ClientTlsConfig(ca_file=str(files.file("ca.pem")), **own)  # type: ignore[arg-type]
    asyncio.run(write_and_read(start.metadata_uri, BookieClientConfig(tls=tls)))
    files.issue("client", units="0:reader")
    with pytest.raises(Exception, match="bookie 127"):
        asyncio.run(write_and_read(start.metadata_uri, BookieClientConfig(tls=tls)))
    assert "the role 'reader' of its certificate is not in authorized_roles" in start.log.read_text()
    client = start.directory / "client.toml"
    client.write_text("[bookie_client.tls]\nis_hostname_checked = false")
    refused = run_bkctl("bookie", "sanity", start.id, "-u", start.metadata_uri, "--config", str(client))
    said = "its certificate is not signed by a CA that this machine trusts: set bookie_client.tls.ca_file"
    assert (refused.exit_code, said in refused.stderr) == (11, True), refused
    client = start.directory / "client.conf"
    password = f"PasswordPath={files.file('password')}\n"
    client.write_text(
        "tlsProviderFactoryClass=org.apache.bookkeeper.tls.TLSContextFactory\ntlsClientAuthentication=true\n"
        f"clientKeyStoreType=PKCS12\nclientKeyStore={files.file('client.p12')}\nclientKeyStore{password}"
        f"clientTrustStoreType=PKCS12\nclientTrustStore={files.file('ca.p12')}\nclientTrustStore{password}"
    )
    refused = run_bkctl("bookie", "sanity", start.id, "-u", start.metadata_uri, "--conf", str(client))
    assert (refused.exit_code, "(first role in the OU, clientKeyStore)" in refused.stderr) == (11, True), refused


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (('bookie.pem"', 'absent.pem"'), "No such file or directory"),
        (('bookie.key"', 'client.key"'), "client.key"),
        (('bookie.key"', 'keys.jks"'), "keytool"),
        (("[bookie.tls]", "[bookie.sasl]\njaas_file = '/none'\n[bookie.tls]"), "/none"),
    ],
)
def test_files_that_cannot_be_used_refuse_the_start(
    start: Start, files: TestAuthority, change: tuple[str, str], sentence: str
) -> None:
    files.file("keys.jks").write_bytes(bytes.fromhex("feedfeed") + bytes(8))
    refused = start.refused(tables(files).replace(*change), "TLS and logins")
    assert sentence in refused
    assert "Traceback" not in refused
    assert not start.has_files()


def test_a_table_that_does_not_exist_refuses_the_start(start: Start, files: TestAuthority) -> None:
    text = tables(files).replace("[bookie.tls]", "[bookie.tls]\nauthorized_roles = ['writer']\n[bookie.tls2]")
    assert run_bkctl(*start.arguments(text)).exit_code == 1


def test_files_of_the_client_and_of_https_that_cannot_be_used_refuse_the_start(
    start: Start, files: TestAuthority
) -> None:
    of_client = "[bookie_client.tls]\nca_file = '/none'"
    assert "/none" in start.refused(of_client, "connections to bookies")
    of_admin = f"[bookie.admin]\nis_http_enabled = true\nhttp_port = {free_port()}\nis_tls_enabled = true"
    assert "has no files" in start.refused(of_admin, "admin HTTPS")


def test_a_check_says_what_protects_the_bookie(start: Start, files: TestAuthority) -> None:
    text = tables(files, "[bookie.sasl]", f'jaas_file = "{files.file("jaas.conf")}"')
    checked = run_bkctl(*start.arguments(text, "init", "--check"))
    (row,) = (row for row in checked.json()["checks"] if row["name"] == "TLS and logins")
    assert (row["result"], row["detail"]) == ("ok", "TLS, logins, the certificate expires in 10.0 days")


def test_only_permitted_users_start_a_bookie(start: Start) -> None:
    refused = start.refused("[bookie]\npermitted_startup_users = ['other-user', 'third-user']", "user")
    assert f"user {getpass.getuser()} may not start this bookie" in refused
    refused = start.refused("", "user", "--set", "permittedStartupUsers=other-user,third-user")
    assert "may not start this bookie: --set permittedStartupUsers has other-user, third-user" in refused
    assert not start.has_files()
    start.run(f"[bookie]\npermitted_startup_users = ['other-user', '{getpass.getuser()}']")
    assert start.end() == 0


def test_copies_on_a_bookie_that_refuses_this_client_are_unknown_and_apart_from_bad_ones(
    start_cluster: Callable[[int], Cluster], tmp_path: Path
) -> None:
    cluster = start_cluster(2)
    protected = Start(tmp_path, cluster.metadata_uri)
    (tmp_path / "jaas.conf").write_text(JAAS)
    try:
        protected.run(f"[bookie.sasl]\njaas_file = '{tmp_path}/jaas.conf'")
        (tmp_path / "password").write_text(PASSWORD)
        (tmp_path / "password").chmod(0o600)
        login = ClientLoginConfig(username="bookkeeper", password=f"file:{tmp_path}/password")
        asyncio.run(write_and_read(cluster.metadata_uri, BookieClientConfig(sasl=login), copies=3))
        sentence = "it serves only clients that use TLS or log in: set bookie_client.tls or bookie_client.sasl"
        bad = tmp_path / "bad.jsonl"
        verified = cluster.run("ledger", "verify", "0", "--out", str(bad))
        assert (verified.exit_code, verified.json()["defects"]) == (10, [])
        (unread,) = verified.json()["unread"]
        assert (unread["bookie_id"], unread["copies"], unread["reason"]) == (protected.id, 30, sentence)
        assert '"findings":0' in bad.read_text()
        recovered = cluster.run("recover", "ledger", "0", "--yes", "-o", "table")
        assert recovered.exit_code == 11
        assert f"30 copies are unknown, not read: 30 ({protected.id}: {sentence})" in recovered.stdout
        assert "bad copies" not in recovered.stdout + recovered.stderr
        assert "will leave 30 unread copies in 1 ledger: the bookie refuses this client" in recovered.stderr
        for how in (("--read",), ("--read", "--all-entries")):
            audited = cluster.run("audit", "--inventory", *how)
            found = {each["part"]: each["finding"] for each in audited.json()["findings"]}
            assert f"unknown: bookie {protected.id} cannot be read: {sentence}" in found["unread_copies"]
            assert not {"no_lists", "unknown_copies", "bad_copies"} & found.keys()
    finally:
        if protected.process is not None:
            protected.end()


@pytest.fixture
def realm(tmp_path: Path) -> Iterator[Realm]:
    require_kerberos()
    with Realm(tmp_path / "realm") as started:
        yield started


def test_a_principal_that_is_not_allowed_is_a_refused_login(
    start: Start, realm: Realm, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in realm.variables.items():
        monkeypatch.setenv(name, value)
    (start.directory / "jaas.conf").write_text(
        "Bookie { com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true "
        f'keyTab="{realm.bookie_keytab}" principal="{realm.bookie_principal}"; }};'
    )
    lines = ("[bookie.sasl]", f"jaas_file = '{start.directory}/jaas.conf'", "allowed_ids = 'another@BKCTL.TEST'")
    start.run("\n".join(lines))
    client = start.directory / "client.toml"
    client.write_text("[bookie_client.sasl]\nmechanism = 'GSSAPI'\n")
    for words in (("sanity", start.id), ("list", "-o", "json"), ("info",)):
        for _ in range(3):  # the refusal and the next request cross
            shown = run_bkctl("bookie", *words, "-u", start.metadata_uri, "--config", str(client))
            assert "it refuses the login" in shown.stdout + shown.stderr, (words, shown.stdout, shown.stderr)
            assert "saslJaasClientAllowedIds" in shown.stdout + shown.stderr
            assert shown.exit_code == 11
    assert "does not match saslJaasClientAllowedIds" in start.log.read_text()
