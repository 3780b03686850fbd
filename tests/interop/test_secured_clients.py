"""bkctl's client at Java bookies that require TLS, certificates, roles or a login: what it says when they refuse it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from bkctl.runtime.client import LedgerClient
from bkctl.runtime.config import ClientConfig
from bkctl.runtime.errors import AuthenticationRequiredError
from bkctl.runtime.protocol.status import Status
from bkctl.runtime.security_config import BookieClientConfig, ClientLoginConfig, ClientTlsConfig
from tests.interop.java_cluster import JavaCluster
from tests.interop.security_files import TestAuthority
from tests.until import until

PASSWORD = "login-password-91bc"
LOGIN = "org.apache.zookeeper.server.auth.DigestLoginModule required"
SASL = {"bookieAuthProviderFactoryClass": "org.apache.bookkeeper.sasl.SASLBookieAuthProviderFactory"}
ROLES = {
    "bookieAuthProviderFactoryClass": "org.apache.bookkeeper.tls.BookieAuthZFactory",
    "authorizedRoles": "operator",
}


class Secured:
    """A Java bookie and files for it."""

    def __init__(self, cluster: JavaCluster, authority: TestAuthority, bookie_id: str) -> None:
        self.cluster = cluster
        self.authority = authority
        self.bookie_id = bookie_id

    def tls(
        self,
        name: str | None = None,
        *,
        ca: TestAuthority | None = None,
        protocols: tuple[str, ...] = (),
        is_hostname_checked: bool = True,
    ) -> ClientTlsConfig:
        return files_of(self.authority, name, ca=ca, protocols=protocols, is_hostname_checked=is_hostname_checked)

    @contextlib.asynccontextmanager
    async def client(self, security: BookieClientConfig) -> AsyncIterator[LedgerClient]:
        async with await LedgerClient.connect(
            self.cluster.metadata_uri, config=ClientConfig(security=security)
        ) as client:
            yield client

    async def refusal(self, security: BookieClientConfig) -> str:
        """Why the bookie does not answer a client with these settings."""
        async with self.client(security) as client:
            with pytest.raises(AuthenticationRequiredError) as caught:
                await client.ports.bookies.info(self.bookie_id)
        return str(caught.value).removeprefix(f"bookie {self.bookie_id}: ")


def files_of(
    authority: TestAuthority,
    name: str | None,
    *,
    ca: TestAuthority | None = None,
    protocols: tuple[str, ...] = (),
    is_hostname_checked: bool = True,
) -> ClientTlsConfig:
    return ClientTlsConfig(
        ca_file=str((ca or authority).file("ca.pem")),
        certificate_file=None if name is None else str(authority.file(f"{name}.pem")),
        key_file=None if name is None else str(authority.file(f"{name}.key")),
        protocols=protocols,
        is_hostname_checked=is_hostname_checked,
    )


@contextlib.contextmanager
def secured_bookie(
    directory: Path,
    metadata_uri: str,
    settings: Mapping[str, str] = MappingProxyType({}),
    *,
    has_tls: bool = False,
    is_mutual: bool = False,
) -> Iterator[Secured]:
    authority = TestAuthority(directory / "tls")
    authority.issue("bookie")
    (directory / "jaas.conf").write_text(f'Bookie {{ {LOGIN} user_bookkeeper="{PASSWORD}"; }};\n')
    if has_tls:
        settings = {
            **settings,
            "tlsProvider": "JDK",
            "tlsProviderFactoryClass": "org.apache.bookkeeper.tls.TLSContextFactory",
            "tlsClientAuthentication": str(is_mutual).lower(),
            "tlsKeyStoreType": "PEM",
            "tlsKeyStore": str(authority.file("bookie.key")),
            "tlsCertificatePath": str(authority.file("bookie.pem")),
            "tlsTrustStoreType": "PEM",
            "tlsTrustStore": str(authority.file("ca.pem")),
        }
    flags = (f"-Djava.security.auth.login.config={directory}/jaas.conf", "-Dzookeeper.sasl.client=false")
    with JavaCluster(str(directory / "cluster"), metadata_uri, jvm_flags=flags) as cluster:
        (bookie_id,) = cluster.start_bookies(1, **settings)
        yield Secured(cluster, authority, bookie_id)


async def write_and_read(client: LedgerClient) -> None:
    writer = await client.create(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)
    payloads = [bytes([number]) * 1000 for number in range(20)]
    for payload in payloads:
        await writer.append(payload)
    await writer.close()
    reader = await client.open(writer.ledger_id)
    assert [entry.payload for entry in await reader.read(0, 19)] == payloads
    bookie_id = reader.metadata.last_segment.ensemble[0]
    bodies = await client.ports.bookies.read_many(bookie_id, writer.ledger_id, list(range(20)), bytes_max=1 << 20)
    assert all(isinstance(body, bytes) for body in bodies)


NO_CERTIFICATE = (
    "it requires a client certificate: set bookie_client.tls.certificate_file and bookie_client.tls.key_file"
)
ROLE = (
    "it does not accept the role of this client's certificate (first role in the OU, bookie_client.tls."
    "certificate_file), or requires a login (bookie_client.sasl)"
)
WRONG_PASSWORD = (
    "it does not answer the login of bookkeeper: check bookie_client.sasl.username and bookie_client.sasl.password, "
    "and saslJaasClientAllowedIds of the bookie"
)
NEITHER = "it serves only clients that use TLS or log in: set bookie_client.tls or bookie_client.sasl"


async def is_accepted(client: LedgerClient, bookie_id: str) -> bool:
    """Whether the bookie accepts the client."""
    try:
        await client.ports.bookies.info(bookie_id)
    except AuthenticationRequiredError:
        return False
    return True


async def test_mutual_tls_with_roles(
    new_metadata_uri: Callable[[], str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with secured_bookie(tmp_path, new_metadata_uri(), ROLES, has_tls=True, is_mutual=True) as secured:
        secured.authority.issue("operator", units="0:operator;1:cluster")
        secured.authority.issue("guest", units="0:guest,operator;1:cluster")
        secured.authority.issue("expired", units="0:operator", valid_s=-60)
        other = TestAuthority(tmp_path / "other")
        other.issue("stranger", units="0:operator")
        async with secured.client(BookieClientConfig(tls=secured.tls("operator"))) as client:
            await write_and_read(client)
        secured.authority.issue("renewed", units="0:guest")
        async with secured.client(BookieClientConfig(tls=secured.tls("renewed"))) as client:
            with pytest.raises(AuthenticationRequiredError):
                await client.ports.bookies.info(secured.bookie_id)
            batch = await client.ports.bookies.read_many(secured.bookie_id, 1, range(3), bytes_max=1000)
            assert batch == [Status.AUTHENTICATION_REQUIRED] * 3
            secured.authority.issue("renewed", units="0:operator")
            await until(lambda: is_accepted(client, secured.bookie_id))  # no restart: Java keeps the old connection
            await write_and_read(client)
        assert [each.message for each in caplog.records if each.name.endswith("frame_connection")] == [
            f"bookie {secured.bookie_id}: {ROLE}"
        ]
        for tls, sentence in (
            (None, NEITHER),
            (secured.tls("guest"), ROLE),
            (secured.tls("operator", ca=other), "its certificate is not signed by a CA in bookie_client.tls.ca_file"),
            (
                secured.tls("operator", protocols=("TLSv1.2",), ca=other),
                "its certificate is not signed by a CA in bookie_client.tls.ca_file",
            ),
            (secured.tls(), NO_CERTIFICATE),
            (secured.tls(protocols=("TLSv1.2",)), NO_CERTIFICATE),
        ):
            assert await secured.refusal(BookieClientConfig(tls=tls)) == sentence
        for tls in (secured.tls("expired"), secured.tls("expired", protocols=("TLSv1.2",))):
            found = await secured.refusal(BookieClientConfig(tls=tls))
            assert found == f"it rejects {own_certificate(tls)}: expired"
        stranger = files_of(other, "stranger", ca=secured.authority)
        found = await secured.refusal(BookieClientConfig(tls=stranger))
        assert found.startswith(f"it rejects {own_certificate(stranger)}: ")


async def test_a_login(new_metadata_uri: Callable[[], str], tmp_path: Path) -> None:
    (tmp_path / "password").write_text(PASSWORD)
    (tmp_path / "wrong").write_text("wrong")
    right = ClientLoginConfig(username="bookkeeper", password=f"file:{tmp_path}/password")
    wrong = ClientLoginConfig(username="bookkeeper", password=f"file:{tmp_path}/wrong")
    with secured_bookie(tmp_path, new_metadata_uri(), SASL, has_tls=True) as secured:
        for tls in (None, secured.tls()):
            async with secured.client(BookieClientConfig(tls=tls, sasl=right)) as client:
                await write_and_read(client)
            assert await secured.refusal(BookieClientConfig(tls=tls, sasl=wrong)) == WRONG_PASSWORD
        assert await secured.refusal(BookieClientConfig()) == NEITHER
        assert await secured.refusal(BookieClientConfig(tls=secured.tls())) == (
            "it serves only clients with a certificate or a login: set bookie_client.tls.certificate_file or "
            "bookie_client.sasl"
        )


async def test_certificates_of_bookies(new_metadata_uri: Callable[[], str], tmp_path: Path) -> None:
    """A bookie with TLS, whose files are replaced while it and a client run; and one that has no login."""
    (tmp_path / "password").write_text(PASSWORD)
    login = ClientLoginConfig(username="bookkeeper", password=f"file:{tmp_path}/password")
    with secured_bookie(
        tmp_path, new_metadata_uri(), {"tlsCertFilesRefreshDurationSeconds": "1"}, has_tls=True
    ) as secured:
        async with secured.client(BookieClientConfig(tls=secured.tls(), sasl=login)) as client:
            await write_and_read(client)  # a bookie without logins accepts everyone
        secured.authority.issue("bookie", hosts=["bookie-7.example.com"])
        expected = (
            "its certificate is not for the host 127.0.0.1: use one with this name, or set "
            "bookie_client.tls.is_hostname_checked to false"
        )
        await until_refused(secured, expected)
        unchecked = BookieClientConfig(tls=secured.tls(is_hostname_checked=False))
        async with secured.client(unchecked) as client:
            await write_and_read(client)
        secured.authority.issue("bookie", valid_s=-60)
        await until_refused(
            secured, "its certificate has expired: renew it (on the bookie: key_file and certificate_file)"
        )


def own_certificate(tls: ClientTlsConfig) -> str:
    return f"the certificate of this client, {tls.certificate_file} (bookie_client.tls.certificate_file)"


async def until_refused(secured: Secured, sentence: str) -> None:
    """Java reads its files again a second after the last time."""
    found = ""
    async with asyncio.timeout(60):
        while found != sentence:
            with contextlib.suppress(pytest.fail.Exception):
                found = await secured.refusal(BookieClientConfig(tls=secured.tls()))
            await asyncio.sleep(0.2)


async def test_tls_is_never_left_out(new_metadata_uri: Callable[[], str], tmp_path: Path) -> None:
    with secured_bookie(tmp_path, new_metadata_uri()) as secured:
        config = BookieClientConfig(tls=secured.tls())
        assert await secured.refusal(config) == ("it does not use TLS: enable TLS on it, or remove bookie_client.tls")
