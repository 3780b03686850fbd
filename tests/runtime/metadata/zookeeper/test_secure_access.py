"""ACLs, digest, SASL and TLS against ZooKeeper servers that were started with them."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.security import ACL, make_digest_acl

from bkctl.runtime.config import ZooKeeperConfig, ZooKeeperSaslConfig, ZooKeeperTlsConfig
from bkctl.runtime.errors import ConfigurationError, MetadataAuthError, MetadataUnavailableError
from bkctl.runtime.metadata.ledgers.ids import LedgerIdGenerator
from bkctl.runtime.metadata.ledgers.layout import LedgerTree
from bkctl.runtime.metadata.zookeeper.access import tls_contexts
from bkctl.runtime.metadata.zookeeper.buffered_socket import ServerSocket
from bkctl.runtime.metadata.zookeeper.connect_failures import ConnectFailures
from bkctl.runtime.metadata.zookeeper.embedded import EmbeddedZooKeeper
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from bkctl.runtime.metadata.zookeeper.threads import LoopHandler
from bkctl.runtime.security_config import LoginMechanism, StoreType
from tests.processes import COMMAND_TIMEOUT_S, BkctlResult, run_bkctl
from tests.runtime.metadata.link import TcpLink
from tests.until import until
from tests.zookeeper_servers import ZooKeeperServer, packets_received, secured_server

PASSWORD = "sesame-7f3a"
LOOPBACK = "127.0.0.1"
SASL_PROVIDER = {"authProvider.sasl": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"}


def secret(tmp_path: Path, text: str = PASSWORD) -> str:
    """A reference to a file with the secret."""
    path = tmp_path / "secret"
    path.write_text(text + "\n")
    path.chmod(0o600)
    return f"file:{path}"


def acl_of(servers: str, path: str, *, auth: list[tuple[str, str]] | None = None) -> list[ACL]:
    client = KazooClient(servers, auth_data=auth or [])
    client.start()
    try:
        found: list[ACL] = client.get_acls(path)[0]
        return found
    finally:
        client.stop()
        client.close()


# -- digest, and ACLs -------------------------------------------------------------------------------------------------


async def test_nodes_of_a_secure_session_are_its_own(zookeeper: EmbeddedZooKeeper, tmp_path: Path, root: str) -> None:
    config = ZooKeeperConfig(digest=secret(tmp_path, f"bkctl:{PASSWORD}"), has_secure_acl=True)
    servers = zookeeper.connect_string
    async with (
        await ZooKeeperStore.connect(servers, config) as store,
        await ZooKeeperStore.connect(servers) as stranger,
    ):
        await store.create(f"{root}/a", b"mine", make_parents=True)
        own = [make_digest_acl("bkctl", PASSWORD, all=True)]
        for path in (root, f"{root}/a"):
            assert await asyncio.to_thread(acl_of, servers, path, auth=[("digest", f"bkctl:{PASSWORD}")]) == own
        for operation in (stranger.get(f"{root}/a"), stranger.create(f"{root}/b"), stranger.set(root, b"", -1)):
            with pytest.raises(MetadataAuthError, match="no permission: the node's ACL is for other users"):
                await operation
        await store.set(f"{root}/a", b"mine still", 0)


async def test_id_counters_stay_open_for_everybody(zookeeper: EmbeddedZooKeeper, tmp_path: Path, root: str) -> None:
    """As in Java: metadata section 2.1."""
    config = ZooKeeperConfig(digest=secret(tmp_path, f"bkctl:{PASSWORD}"), has_secure_acl=True)
    async with await ZooKeeperStore.connect(zookeeper.connect_string, config) as store:
        await store.create(f"{root}/idgen-long", make_parents=True, is_open_acl=True)
        assert await LedgerIdGenerator(store, root, LedgerTree.HIERARCHICAL).next_id() == 2**32
        for path in (f"{root}/idgen-long", f"{root}/idgen-long/HOB-0000000001"):
            [acl] = await asyncio.to_thread(acl_of, zookeeper.connect_string, path)
            assert (acl.perms, acl.id.scheme, acl.id.id) == (31, "world", "anyone")


async def test_secure_nodes_need_an_authentication(zookeeper: EmbeddedZooKeeper) -> None:
    with pytest.raises(ConfigurationError, match=r"need authentication: set zookeeper\.digest"):
        await ZooKeeperStore.connect(zookeeper.connect_string, ZooKeeperConfig(has_secure_acl=True))


@pytest.mark.parametrize(
    ("reference", "sentence"),
    [
        (f"bkctl:{PASSWORD}", "must not be in the settings: give its location as file:PATH, env:VARIABLE or fd:NUMBER"),
        ("file:/nowhere/secret", "from /nowhere/secret: No such file or directory"),
        ("env:BKCTL_TEST_NO_SUCH_SECRET", "is empty in the environment variable BKCTL_TEST_NO_SUCH_SECRET"),
    ],
)
async def test_a_secret_that_cannot_be_had(reference: str, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence) as caught:
        await ZooKeeperStore.connect("127.0.0.1:1", ZooKeeperConfig(digest=reference))
    assert PASSWORD not in str(caught.value)


async def test_a_secret_that_others_can_read_is_warned_of(
    zookeeper: EmbeddedZooKeeper, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reference = secret(tmp_path, "bkctl:x")
    (tmp_path / "secret").chmod(0o640)
    async with await ZooKeeperStore.connect(zookeeper.connect_string, ZooKeeperConfig(digest=reference)):
        pass
    assert f"chmod 600 {tmp_path}/secret" in caplog.text


async def test_no_secret_in_the_log(
    zookeeper: EmbeddedZooKeeper, tmp_path: Path, root: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Not the user's, not the session's, and not what nodes hold: ledger metadata has passwords in it."""
    caplog.set_level(logging.DEBUG)
    config = ZooKeeperConfig(digest=secret(tmp_path, f"bkctl:{PASSWORD}"))
    async with await ZooKeeperStore.connect(zookeeper.connect_string, config) as store:
        await store.create(f"{root}/a", b"ledger-password", make_parents=True)
        await store.get(f"{root}/a")
        session_password = store._client.client_id[1]
    assert f"GetData({root}/a)" in caplog.text
    for hidden in (PASSWORD, "ledger-password", repr(session_password), session_password.hex()):
        assert hidden not in caplog.text


# -- SASL -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sasl_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """Users of DIGEST-MD5; who does not log in is anonymous."""
    directory = tmp_path_factory.mktemp("sasl")
    users = f'user_bkctl="{PASSWORD}"'
    (directory / "jaas.conf").write_text(
        f"Server {{ org.apache.zookeeper.server.auth.DigestLoginModule required {users}; }};\n"
    )
    with secured_server(directory, SASL_PROVIDER, {"java.security.auth.login.config": "./jaas.conf"}) as server:
        yield server


def sasl(tmp_path: Path, password: str = PASSWORD) -> ZooKeeperSaslConfig:
    return ZooKeeperSaslConfig(username="bkctl", password=secret(tmp_path, password))


async def test_sasl_and_nodes_of_the_user(sasl_server: ZooKeeperServer, tmp_path: Path) -> None:
    config = ZooKeeperConfig(sasl=sasl(tmp_path), has_secure_acl=True)
    async with (
        await ZooKeeperStore.connect(sasl_server.address, config) as store,
        await ZooKeeperStore.connect(sasl_server.address) as stranger,
    ):
        await store.create("/sasl", b"mine")
        [acl] = await asyncio.to_thread(acl_of_open, sasl_server.address)
        assert (acl.id.scheme, acl.id.id, acl.perms) == ("sasl", "bkctl", 31)
        with pytest.raises(MetadataAuthError):
            await stranger.get("/sasl")
        results = await asyncio.gather(*(store.get("/sasl") for _ in range(200)))
        assert {node.data for node in results} == {b"mine"}


def acl_of_open(servers: str) -> list[ACL]:
    options = {"mechanism": "DIGEST-MD5", "username": "bkctl", "password": PASSWORD}
    client = KazooClient(servers, sasl_options=options)
    client.start()
    try:
        found: list[ACL] = client.get_acls("/sasl")[0]
        return found
    finally:
        client.stop()
        client.close()


async def test_a_wrong_sasl_password(sasl_server: ZooKeeperServer, tmp_path: Path) -> None:
    with pytest.raises(MetadataAuthError, match=r"the user or the password: check .*zookeeper\.sasl") as caught:
        await ZooKeeperStore.connect(sasl_server.address, ZooKeeperConfig(sasl=sasl(tmp_path, "wrong")))
    assert "wrong" not in str(caught.value)


async def test_a_sasl_session_outlives_its_connection(tmp_path: Path) -> None:
    """The password is presented again on every connection, and a server that dies is not one that refuses it."""
    directory = tmp_path / "server"
    directory.mkdir()
    (directory / "jaas.conf").write_text(
        f'Server {{ org.apache.zookeeper.server.auth.DigestLoginModule required user_bkctl="{PASSWORD}"; }};\n'
    )
    config = ZooKeeperConfig(
        sasl=sasl(tmp_path), has_secure_acl=True, session_timeout_ms=30_000, operation_timeout_s=30.0
    )
    with secured_server(directory, SASL_PROVIDER, {"java.security.auth.login.config": "./jaas.conf"}) as server:
        async with await ZooKeeperStore.connect(server.address, config) as store:
            await store.create("/e", b"mine", is_ephemeral=True)
            session_id = store.session_id
            server.kill()
            server.start()
            assert (await store.get("/e")).data == b"mine"
            assert store.session_id == session_id
            await store.set("/e", b"still mine", 0)


@pytest.mark.parametrize("has_jaas_file", [False, True])
async def test_a_password_that_changes_while_a_job_runs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, has_jaas_file: bool
) -> None:
    """The next connection uses the new one; an empty file is not used yet."""
    module = "org.apache.zookeeper.server.auth.DigestLoginModule required"
    directory, own = tmp_path / "server", tmp_path / "secret"
    directory.mkdir()
    login = sasl(tmp_path)

    def change(password: str) -> None:
        (directory / "jaas.conf").write_text(f'Server {{ {module} user_bkctl="{password}"; }};\n')
        own.write_text(
            f'Client {{ {module} username="bkctl" password="{password}"; }};\n' if has_jaas_file else f"{password}\n"
        )

    if has_jaas_file:
        login = ZooKeeperSaslConfig(jaas_file=str(own))
    change(PASSWORD)
    config = ZooKeeperConfig(sasl=login, has_secure_acl=True, session_timeout_ms=30_000, operation_timeout_s=30.0)
    with secured_server(directory, SASL_PROVIDER, {"java.security.auth.login.config": "./jaas.conf"}) as server:
        async with await ZooKeeperStore.connect(server.address, config) as store:
            await store.create("/e", b"mine", is_ephemeral=True)
            session_id = store.session_id
            server.kill()
            own.write_text("")
            server.start()
            assert (await store.get("/e")).data == b"mine"
            assert "Keeping the previous certificates and passwords" in caplog.text
            server.kill()
            change("another-9c1b")
            server.start()
            assert (await store.get("/e")).data == b"mine"
            assert store.session_id == session_id


@pytest.mark.parametrize("failures_max", [1, 2])
async def test_a_server_that_dies_during_a_login(
    sasl_server: ZooKeeperServer, tmp_path: Path, failures_max: int
) -> None:
    """It looks like one that rejects the password. Once that is believed of a server that dies, twice it is not."""
    link = await TcpLink.open(sasl_server.port)
    lost = asyncio.Event()
    config = ZooKeeperConfig(sasl=sasl(tmp_path), session_timeout_ms=20_000, operation_timeout_s=20.0)
    async with await ZooKeeperStore.connect(link.address, config) as store:
        store.on_session_lost(lost.set)
        link.break_after_first_answer()
        await lost.wait()
        if failures_max == 1:
            link.restore()
            assert await store.exists("/") is not None
        else:
            with pytest.raises(MetadataAuthError, match="rejected the user or the password"):
                await store.exists("/")
    await link.close()


async def test_sasl_that_the_server_does_not_know(zookeeper: EmbeddedZooKeeper, tmp_path: Path) -> None:
    """It answers each message of a login with an empty one."""
    before = packets_received(zookeeper.port)
    with pytest.raises(MetadataAuthError, match=r"a server answers no SASL login: check that SASL is on there, or rem"):
        await ZooKeeperStore.connect(zookeeper.connect_string, ZooKeeperConfig(sasl=sasl(tmp_path)))
    assert packets_received(zookeeper.port) - before < 20


def test_a_server_that_closes_sessions_without_a_login(tmp_path: Path) -> None:
    """It answers a wrong password with an error of its own instead of only closing the connection."""
    (tmp_path / "jaas.conf").write_text(
        f'Server {{ org.apache.zookeeper.server.auth.DigestLoginModule required user_bkctl="{PASSWORD}"; }};\n'
    )
    properties = {"java.security.auth.login.config": "./jaas.conf", "zookeeper.sessionRequireClientSASLAuth": "true"}
    with secured_server(tmp_path, SASL_PROVIDER, properties) as server:
        uri = f"zk+hierarchical://{server.address}/ledgers"

        def run(*words: str, password: str) -> BkctlResult:
            user = {"BKCTL_ZOOKEEPER_SASL_USERNAME": "bkctl", "BKCTL_ZOOKEEPER_SASL_PASSWORD": password}
            return run_bkctl(*words, "-u", uri, timeout_s=COMMAND_TIMEOUT_S, **user)

        for words in (("cluster", "info"), ("autorecovery", "status")):
            for refused, sentence in (
                (run(*words, password="wrong"), f"{server.address} rejected the user or the password: check"),
                (run_bkctl(*words, "-u", uri), "ZooKeeper accepts only users that log in: set zookeeper.sasl"),
            ):
                assert (refused.exit_code, refused.stderr.count("\n")) == (11, 1), refused.stderr
                assert sentence in refused.stderr
        made = run("cluster", "init", password=PASSWORD)
        assert made.exit_code == 0, made.stderr


async def test_sasl_without_a_user() -> None:
    with pytest.raises(ConfigurationError, match=r"needs zookeeper\.sasl\.username and zookeeper\.sasl\.password"):
        await ZooKeeperStore.connect("127.0.0.1:1", ZooKeeperConfig(sasl=ZooKeeperSaslConfig()))


async def test_kerberos_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    config = ZooKeeperConfig(sasl=ZooKeeperSaslConfig(mechanism=LoginMechanism.GSSAPI))
    with pytest.raises(ConfigurationError, match=r"the login of zookeeper\.sasl needs the package gssapi"):
        await ZooKeeperStore.connect("127.0.0.1:1", config)


# -- TLS --------------------------------------------------------------------------------------------------------------


class Certificates:
    """An authority, a server's and a client's certificate of it, and a client's of another authority."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        for authority in ("ca", "other-ca"):
            self._openssl(
                "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
                "-subj", f"/CN={authority}", "-keyout", f"{authority}.key", "-out", f"{authority}.pem",
            )  # fmt: skip
        self._sign("server", "ca", f"subjectAltName=IP:{LOOPBACK}")
        self._sign("elsewhere", "ca", "subjectAltName=DNS:zookeeper.example.com")
        self._sign("client", "ca", "extendedKeyUsage=clientAuth")
        self._sign("stranger", "other-ca", "extendedKeyUsage=clientAuth")
        self._openssl("pkey", "-in", "client.key", "-aes256", "-passout", f"pass:{PASSWORD}", "-out", "locked.key")
        self._openssl(
            "pkcs12", "-export", "-in", "client.pem", "-inkey", "client.key", "-passout", f"pass:{PASSWORD}",
            "-out", "client.p12",
        )  # fmt: skip
        for name in ("server", "elsewhere", "client"):
            both = (directory / f"{name}.key").read_text() + (directory / f"{name}.pem").read_text()
            (directory / f"{name}-store.pem").write_text(both)

    def _sign(self, name: str, authority: str, extension: str) -> None:
        self._openssl(
            "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}",
            "-keyout", f"{name}.key", "-out", f"{name}.csr",
        )  # fmt: skip
        (self.directory / f"{name}.ext").write_text(extension + "\n")
        self._openssl(
            "x509", "-req", "-in", f"{name}.csr", "-CA", f"{authority}.pem", "-CAkey", f"{authority}.key",
            "-CAcreateserial", "-days", "2", "-extfile", f"{name}.ext", "-out", f"{name}.pem",
        )  # fmt: skip

    def _openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self.directory, check=True, capture_output=True)

    def path(self, name: str) -> str:
        return str(self.directory / name)

    def client(self, name: str | None = "client", **changes: str | bool) -> ZooKeeperTlsConfig:
        """TLS with this client's certificate (None: without one)."""
        values: dict[str, str | bool | None] = {"ca_file": self.path("ca.pem")}
        if name is not None:
            values |= {"certificate_file": self.path(f"{name}.pem"), "key_file": self.path(f"{name}.key")}
        return ZooKeeperTlsConfig(**(values | changes))  # type: ignore[arg-type]

    def server_settings(self, store: str) -> tuple[dict[str, str], dict[str, str]]:
        """Configuration and properties of a server that takes TLS only and asks for clients' certificates."""
        config = {
            "secureClientPortAddress": LOOPBACK,
            "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
            "ssl.keyStore.location": self.path(f"{store}-store.pem"),
            "ssl.trustStore.location": self.path("ca.pem"),
            "ssl.clientAuth": "need",
        }
        return config, {}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def tls_server(certificates: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    with secured_server(tmp_path_factory.mktemp("tls"), *certificates.server_settings("server")) as server:
        yield server


async def test_tls_with_a_certificate_of_the_client(
    tls_server: ZooKeeperServer, certificates: Certificates, tmp_path: Path
) -> None:
    locked = certificates.client(key_file=certificates.path("locked.key"), key_password=secret(tmp_path))
    both = certificates.client(None, certificate_file=certificates.path("client-store.pem"))
    pkcs12 = certificates.client(
        None, key_file=certificates.path("client.p12"), key_type=StoreType.PKCS12, key_password=secret(tmp_path)
    )
    for tls in (certificates.client(), locked, both, pkcs12):
        config = ZooKeeperConfig(tls=tls, has_secure_acl=True, operation_timeout_s=30.0)
        async with await ZooKeeperStore.connect(tls_server.address, config) as store:
            path = await store.create("/tls-", b"x" * 5000, is_sequential=True, is_ephemeral=True)
            # Many answers in one piece: what is decrypted and not yet read must not wait for more from the network.
            nodes = await asyncio.gather(*(store.get(path) for _ in range(500)))
            assert {node.data for node in nodes} == {b"x" * 5000}


def test_what_tls_has_decrypted_already_is_ready(certificates: Certificates) -> None:
    """A server may put several answers into one record: the socket is silent then, though there is more to read."""
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.load_cert_chain(certificates.path("server.pem"), certificates.path("server.key"))
    client_side = tls_contexts(certificates.client(is_hostname_checked=False), {})()
    ours, theirs = socket.socketpair()

    def serve() -> None:
        with server_side.wrap_socket(theirs, server_side=True) as connection:
            connection.sendall(b"one answer, and another")
            connection.recv(1)

    server = threading.Thread(target=serve)
    server.start()
    loop = asyncio.new_event_loop()
    config = ZooKeeperConfig(session_timeout_ms=2000)  # so long does it wait for the first answer, also for none
    handler = LoopHandler(loop, ConnectFailures([]), None, lambda: None, config)
    with client_side.wrap_socket(ours, server_hostname="anything") as secured:
        connection = ServerSocket(secured)
        assert handler.select([connection], [], [], 20.0)[0] == [connection]
        assert connection.recv(10) == b"one answer"
        assert handler.select([connection], [], [], 0.0)[0] == [connection]
        assert connection.recv(100) == b", and another"
        assert handler.select([connection], [], [], 0.0)[0] == []
        assert handler.select([], [connection], [], 0.0)[1] == [connection]
        connection.send(b".")
        connection.flush()
        server.join()
    loop.close()


async def test_certificates_that_change_while_a_job_runs(
    tls_server: ZooKeeperServer, certificates: Certificates, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The next connection uses the new ones; what cannot be used yet is not used."""
    names = {each: tmp_path / each for each in ("client.pem", "client.key")}
    for name, path in names.items():
        path.write_bytes(Path(certificates.path(name)).read_bytes())
    tls = certificates.client(certificate_file=str(names["client.pem"]), key_file=str(names["client.key"]))
    link = await TcpLink.open(tls_server.port)
    config = ZooKeeperConfig(tls=tls, session_timeout_ms=60_000, operation_timeout_s=60.0)
    async with await ZooKeeperStore.connect(link.address, config) as store:
        names["client.pem"].write_bytes(Path(certificates.path("stranger.pem")).read_bytes())
        link.cut()
        link.restore()
        assert await store.exists("/") is not None
        assert "Keeping the previous certificates" in caplog.text
        names["client.key"].write_bytes(Path(certificates.path("stranger.key")).read_bytes())
        link.cut()
        link.restore()
        await until(lambda: "rejects this client's certificate" in store._failures.sentence)
        for name, path in names.items():
            path.write_bytes(Path(certificates.path(name)).read_bytes())
        assert await store.exists("/") is not None
    await link.close()


async def refusal(server: ZooKeeperServer, tls: ZooKeeperTlsConfig | None) -> MetadataAuthError:
    config = ZooKeeperConfig(tls=tls, operation_timeout_s=30.0)
    with pytest.raises(MetadataAuthError) as caught:
        await ZooKeeperStore.connect(server.address, config)
    return caught.value


async def test_who_is_refused_by_tls(tls_server: ZooKeeperServer, certificates: Certificates) -> None:
    stranger = await refusal(tls_server, certificates.client("stranger"))
    assert f"no session with ZooKeeper: {tls_server.address} TLS failed: the server rejects" in str(stranger)
    nobody = await refusal(tls_server, certificates.client(None))
    assert "the server rejects this client's certificate" in str(nobody)
    untrusted = await refusal(tls_server, certificates.client(ca_file=certificates.path("other-ca.pem")))
    assert "the server's certificate is not trusted" in str(untrusted)
    system = await refusal(tls_server, ZooKeeperTlsConfig())
    assert "the server's certificate is not trusted" in str(system)


async def test_a_certificate_of_another_host(certificates: Certificates, tmp_path: Path) -> None:
    with secured_server(tmp_path, *certificates.server_settings("elsewhere")) as server:
        error = await refusal(server, certificates.client())
        assert "IP address mismatch" in str(error)
        config = ZooKeeperConfig(tls=certificates.client(is_hostname_checked=False), operation_timeout_s=30.0)
        async with await ZooKeeperStore.connect(server.address, config) as store:
            assert await store.exists("/") is not None


async def test_a_plain_client_of_a_tls_server(tls_server: ZooKeeperServer) -> None:
    config = ZooKeeperConfig(operation_timeout_s=4.0)
    with pytest.raises(MetadataUnavailableError, match="accepts connections, but opens no session"):
        await ZooKeeperStore.connect(tls_server.address, config)


async def test_a_tls_client_of_a_plain_server(zookeeper: EmbeddedZooKeeper, certificates: Certificates) -> None:
    config = ZooKeeperConfig(tls=certificates.client(), operation_timeout_s=3.0)
    with pytest.raises(MetadataUnavailableError, match=f"{zookeeper.connect_string} "):
        await ZooKeeperStore.connect(zookeeper.connect_string, config)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"ca_file": "nowhere.pem"}, "cannot read nowhere.pem"),
        ({"ca_file": "server.key"}, "the certificate in server.key is missing"),
        ({"certificate_file": "nowhere.pem"}, "cannot read nowhere.pem"),
        ({"key_file": "stranger.key"}, "the key in stranger.key does not belong to"),
        ({"key_file": "locked.key"}, "the key in locked.key is encrypted: set key_password"),
    ],
)
async def test_files_that_cannot_be_used(
    certificates: Certificates, changes: dict[str, str], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(certificates.directory)
    with pytest.raises(ConfigurationError, match=sentence):
        await ZooKeeperStore.connect("127.0.0.1:1", ZooKeeperConfig(tls=certificates.client(**changes)))


# -- commands ---------------------------------------------------------------------------------------------------------


async def test_commands_on_a_protected_cluster(sasl_server: ZooKeeperServer, tmp_path: Path) -> None:
    uri = f"zk+hierarchical://{sasl_server.address}/ledgers"
    toml = tmp_path / "bkctl.toml"
    toml.write_text(
        f'[zookeeper]\nhas_secure_acl = true\n[zookeeper.sasl]\nusername = "bkctl"\npassword = "{secret(tmp_path)}"\n'
    )
    arguments = ("--config", str(toml), "-u", uri, "-o", "json")
    created = await asyncio.to_thread(run_bkctl, "cluster", "init", *arguments)
    assert created.exit_code == 0, created.stderr
    listed = await asyncio.to_thread(run_bkctl, "ledger", "list", *arguments)
    assert listed.exit_code == 0, listed.stderr

    stranger = await asyncio.to_thread(run_bkctl, "ledger", "list", "-u", uri)
    assert stranger.exit_code == 11
    assert stranger.stderr.count("\n") == 1
    assert "no permission" in stranger.stderr

    wrong = await asyncio.to_thread(
        run_bkctl, "ledger", "list", *arguments, "--debug", BKCTL_ZOOKEEPER_SASL_PASSWORD="wrong-secret-1"
    )
    assert wrong.exit_code == 11
    assert "rejected the user or the password" in wrong.stderr
    assert "wrong-secret-1" not in wrong.stderr
    assert PASSWORD not in wrong.stderr
