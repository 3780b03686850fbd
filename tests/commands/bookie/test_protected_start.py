"""``bookie start`` with TLS, logins and a list of users that may start it."""

from __future__ import annotations

import asyncio
import getpass
from collections.abc import Iterator
from pathlib import Path

import pytest

from bkctl.runtime.client import LedgerClient
from bkctl.runtime.config import ClientConfig
from bkctl.runtime.security_config import BookieClientConfig, ClientLoginConfig, ClientTlsConfig
from tests.interop.security_files import TestAuthority
from tests.processes import LOOPBACK, BkctlProcess, free_port, run_bkctl, start_bkctl
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

    def arguments(self, text: str) -> list[str]:
        config = self.directory / "config.toml"
        config.write_text(text)
        return [
            *("bookie", "start", "--config", str(config), "-u", self.metadata_uri, "--advertised-address", LOOPBACK),
            *("--port", self.id.partition(":")[2], "--set", "allowLoopback=true", "--set", "diskUsageThreshold=0.99"),
            *("--journal-dir", str(self.directory / "j"), "--ledger-dir", str(self.directory / "l")),
        ]

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


async def write_and_read(metadata_uri: str, security: BookieClientConfig) -> None:
    config = ClientConfig(security=security)
    async with await LedgerClient.connect(metadata_uri, config=config) as client:
        writer = await client.create(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)
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
    assert registered.exit_code == 0, registered.stderr
    written = run_bkctl("ledger", "write-test", "-E", "1", "-W", "1", "-A", "1", "-u", start.metadata_uri)
    assert written.exit_code == 11, written.stderr
    assert run_bkctl("ledger", "list", "-o", "name", "-u", start.metadata_uri).stdout == ""
    tls = ClientTlsConfig(ca_file=str(files.file("ca.pem")))
    files.file("password-file").write_text(PASSWORD)
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


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (('bookie.pem"', 'absent.pem"'), "No such file or directory"),
        (('bookie.key"', 'client.key"'), "client.key"),
        (
            (
                "[bookie.tls]",
                "[bookie.tls]\nauthorized_roles = ['writer']\n[bookie.sasl]\njaas_file = 'x'\n[bookie.tls2]",
            ),
            "",
        ),
    ],
)
def test_files_that_cannot_be_used_refuse_the_start(
    start: Start, files: TestAuthority, change: tuple[str, str], sentence: str
) -> None:
    refused = run_bkctl(*start.arguments(tables(files).replace(*change)))
    assert refused.exit_code == 1, refused.stderr
    assert sentence in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not (start.directory / "j").exists()


def test_only_permitted_users_start_a_bookie(start: Start) -> None:
    refused = run_bkctl(*start.arguments("[bookie]\npermitted_startup_users = ['other-user', 'third-user']"))
    assert refused.exit_code == 1, refused.stderr
    assert f"user {getpass.getuser()} may not start this bookie" in refused.stderr
    assert not (start.directory / "j").exists()
    refused = run_bkctl(*start.arguments(""), "--set", "permittedStartupUsers=other-user,third-user")
    assert "may not start this bookie" in refused.stderr
    start.run(f"[bookie]\npermitted_startup_users = ['other-user', '{getpass.getuser()}']")
    assert start.end() == 0
