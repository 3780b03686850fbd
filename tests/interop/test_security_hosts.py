"""The name that a bookie's certificate must have, where its id or its address is not the name of its host."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from bkctl.runtime.client import LedgerClient
from bkctl.runtime.config import ClientConfig
from bkctl.runtime.errors import AuthenticationRequiredError
from bkctl.runtime.security_config import BookieClientConfig, ClientTlsConfig
from tests.interop.java import JavaBookie, JavaClient, JavaError, write_server_conf
from tests.interop.security_files import TestAuthority
from tests.processes import LOOPBACK, free_port, run_bkctl
from tests.until import wait_until

pytestmark = pytest.mark.battery  # of `make interop-full`

FACTORY = {"tlsProviderFactoryClass": "org.apache.bookkeeper.tls.TLSContextFactory", "tlsProvider": "JDK"}


@pytest.mark.parametrize(
    ("bookie_id", "address", "certified", "is_accepted"),
    [
        ("bookie-one", "localhost", "localhost", True),
        ("bookie-one", "localhost", "bookie-one", False),
        ("one.example.com:3181", LOOPBACK, LOOPBACK, True),
        ("one.example.com:3181", LOOPBACK, "localhost", False),
        ("one.example.com:3181", "localhost", "one.example.com", False),
    ],
)
async def test_both_clients_check_the_registered_address_and_not_the_id(
    new_metadata_uri: Callable[[], str], tmp_path: Path, bookie_id: str, address: str, certified: str, is_accepted: bool
) -> None:
    authority = TestAuthority(tmp_path / "tls")
    authority.issue("bookie", hosts=[certified])
    uri = new_metadata_uri()
    with running_bookie(tmp_path, uri, authority, bookieId=bookie_id, advertisedAddress=address):
        security = BookieClientConfig(tls=ClientTlsConfig(ca_file=str(authority.file("ca.pem"))))
        async with await LedgerClient.connect(uri, config=ClientConfig(security=security)) as client:
            expected: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
            if not is_accepted:
                expected = pytest.raises(
                    AuthenticationRequiredError, match=f"its certificate is not for the host {address}"
                )
            with expected:
                await client.ports.bookies.info(bookie_id)
        async with java_client(tmp_path, uri, authority) as java:
            ledger_id = await java.create(ensemble=(1, 1, 1))
            with contextlib.nullcontext() if is_accepted else pytest.raises(JavaError):
                await java.append(ledger_id, [b"one"])


@contextlib.contextmanager
def running_bookie(directory: Path, uri: str, authority: TestAuthority, **settings: str) -> Iterator[None]:
    """A Java bookie that is registered."""
    made = run_bkctl("cluster", "init", BKCTL_METADATA_URI=uri)
    assert made.exit_code == 0, made.stderr
    conf, log = directory / "bookie.conf", directory / "bookie.log"
    keys = {
        "tlsKeyStoreType": "PEM",
        "tlsKeyStore": str(authority.file("bookie.key")),
        "tlsCertificatePath": str(authority.file("bookie.pem")),
    }
    usage = {"diskUsageThreshold": "0.99", "diskUsageWarnThreshold": "0.98"}
    write_server_conf(str(conf), uri, str(directory), free_port(), **FACTORY, **keys, **usage, **settings)
    bookie = JavaBookie(str(conf), str(log))
    try:

        def is_writable() -> bool:
            assert bookie.is_running, log.read_text()
            rows = run_bkctl("bookie", "list", "-o", "json", BKCTL_METADATA_URI=uri).json()["items"]
            return [row["state"] for row in rows] == ["writable"]

        wait_until(is_writable)
        yield
    finally:
        bookie.stop()


@contextlib.asynccontextmanager
async def java_client(directory: Path, uri: str, authority: TestAuthority) -> AsyncIterator[JavaClient]:
    trust = {"tlsTrustStoreType": "PEM", "tlsTrustStore": str(authority.file("ca.pem"))}
    checked = {"tlsHostnameVerificationEnabled": "true", "useV2WireProtocol": "false"}
    java = JavaClient(uri, str(directory / "client.log"), **FACTORY, **trust, **checked)
    try:
        yield java
    finally:
        java.stop()
