"""Sessions with GSSAPI: a real KDC, and a real ZooKeeper server with Java's Krb5LoginModule."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from bkctl.runtime.config import ZooKeeperConfig, ZooKeeperSaslConfig
from bkctl.runtime.errors import MetadataAuthError, MetadataUnavailableError
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from bkctl.runtime.security_config import LoginMechanism
from tests.kerberos import REALM, Realm, require_kerberos
from tests.processes import LOOPBACK
from tests.runtime.metadata.link import TcpLink
from tests.until import until
from tests.zookeeper_servers import ZooKeeperServer, secured_server

SASL_PROVIDER = {"authProvider.sasl": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"}
TICKET = ZooKeeperSaslConfig(mechanism=LoginMechanism.GSSAPI)


@pytest.fixture(scope="module")
def started_realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Realm]:
    require_kerberos()
    with Realm(tmp_path_factory.mktemp("realm")) as started:
        yield started


@pytest.fixture
def realm(started_realm: Realm, monkeypatch: pytest.MonkeyPatch) -> Realm:
    """The realm that the Kerberos library of this process uses, with a client's ticket."""
    for name, value in started_realm.variables.items():
        monkeypatch.setenv(name, value)
    started_realm.get_ticket()
    return started_realm


@pytest.fixture(scope="module")
def server(started_realm: Realm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    directory = tmp_path_factory.mktemp("server")
    principal, keytab = f"zookeeper/{LOOPBACK}@{REALM}", directory / "zookeeper.keytab"
    started_realm.add(principal, keytab)
    (directory / "jaas.conf").write_text(
        "Server { com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true "
        f'keyTab="{keytab}" principal="{principal}"; }};\n'
    )
    properties = {
        "java.security.auth.login.config": "./jaas.conf",
        "java.security.krb5.conf": str(started_realm.configuration),
    }
    with secured_server(directory, SASL_PROVIDER, properties) as started:
        yield started


def kerberos_section(tmp_path: Path, options: str) -> ZooKeeperSaslConfig:
    path = tmp_path / "jaas.conf"
    path.write_text(f"Client {{ com.sun.security.auth.module.Krb5LoginModule required {options}; }};\n")
    return ZooKeeperSaslConfig(jaas_file=str(path))


async def test_nodes_of_a_principal(realm: Realm, server: ZooKeeperServer) -> None:
    config = ZooKeeperConfig(sasl=TICKET, has_secure_acl=True, operation_timeout_s=60.0)
    async with await ZooKeeperStore.connect(server.address, config) as store:
        await store.create("/kerberos", b"mine")
        acls, _ = await asyncio.to_thread(store._client.get_acls, "/kerberos")
        assert [(acl.id.scheme, acl.id.id) for acl in acls] == [("sasl", realm.client_principal)]
        results = await asyncio.gather(*(store.get("/kerberos") for _ in range(200)))
        assert {node.data for node in results} == {b"mine"}
    async with await ZooKeeperStore.connect(server.address) as plain:
        with pytest.raises(MetadataAuthError):
            await plain.get("/kerberos")


async def test_a_keytab_needs_no_ticket(realm: Realm, server: ZooKeeperServer, tmp_path: Path) -> None:
    realm.drop_ticket()
    by_jaas = kerberos_section(
        tmp_path, f'useKeyTab=true keyTab="{realm.client_keytab}" principal="{realm.client_principal}"'
    )
    by_settings = ZooKeeperSaslConfig(mechanism=LoginMechanism.GSSAPI, keytab=str(realm.client_keytab))
    for sasl in (by_jaas, by_settings):
        config = ZooKeeperConfig(sasl=sasl, has_secure_acl=True, operation_timeout_s=60.0)
        async with await ZooKeeperStore.connect(server.address, config) as store:
            path = await store.create("/keytab-", b"mine", is_sequential=True, is_ephemeral=True)
            assert (await store.get(path)).data == b"mine"
    assert not (realm.directory / "tickets").exists()


async def test_a_section_for_the_ticket_of_kinit(realm: Realm, server: ZooKeeperServer, tmp_path: Path) -> None:
    sasl = kerberos_section(tmp_path, "useTicketCache=true")
    config = ZooKeeperConfig(sasl=sasl, has_secure_acl=True, operation_timeout_s=60.0)
    async with await ZooKeeperStore.connect(server.address, config) as store:
        assert await store.create("/ticket-", is_sequential=True, is_ephemeral=True)


async def refusal(server: ZooKeeperServer, sasl: ZooKeeperSaslConfig) -> str:
    with pytest.raises(MetadataAuthError) as caught:
        await ZooKeeperStore.connect(server.address, ZooKeeperConfig(sasl=sasl, operation_timeout_s=60.0))
    return str(caught.value)


async def test_what_is_missing_is_named(realm: Realm, server: ZooKeeperServer, tmp_path: Path) -> None:
    start = f"no session with ZooKeeper: no Kerberos login at zookeeper@{LOOPBACK}: "
    other = await refusal(server, ZooKeeperSaslConfig(mechanism=LoginMechanism.GSSAPI, service="other"))
    assert f"Server other/{LOOPBACK}@{REALM} not found in Kerberos database" in other
    realm.drop_ticket()
    without = await refusal(server, TICKET)
    assert without.startswith(start)
    assert without.endswith("; check klist")
    missing = ZooKeeperSaslConfig(mechanism=LoginMechanism.GSSAPI, keytab=str(tmp_path / "none"))
    assert (await refusal(server, missing)).endswith(f"; check klist -k {tmp_path}/none")


async def test_a_session_opens_again_with_a_new_ticket(realm: Realm, server: ZooKeeperServer) -> None:
    """Until then operations fail with the reason, and the session opens by itself afterwards."""
    link = await TcpLink.open(server.port)
    config = ZooKeeperConfig(sasl=TICKET, session_timeout_ms=60_000, operation_timeout_s=6.0)
    async with await ZooKeeperStore.connect(link.address, config) as store:
        realm.drop_ticket()
        link.cut()
        link.restore()
        await until(lambda: "check klist" in store._failures.sentence)
        with pytest.raises(MetadataUnavailableError, match=f"no Kerberos login at zookeeper@{LOOPBACK}"):
            await store.exists("/")
        realm.get_ticket()
        await until(lambda: store._failures.login_failure is None)
        assert await store.exists("/") is not None
    await link.close()
