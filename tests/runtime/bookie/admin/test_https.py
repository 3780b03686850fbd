"""The admin port of a bookie over HTTPS: certificates of both sides, new files, clients that disturb."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import gc
import logging
import ssl
import tracemalloc
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import aiohttp
import msgspec
import pytest

from bkctl.runtime.bookie.boot.process import running_bookie
from bkctl.runtime.config import AdminConfig, BookieConfig
from bkctl.runtime.errors import ConfigurationError
from bkctl.runtime.metadata.bookies.registration import RegistrationClient
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from bkctl.runtime.security.certificates import Authority, new_authority
from bkctl.runtime.security_config import AdminTlsConfig, BookieTlsConfig
from tests.certificate_files import CertificateFiles, write_certificate
from tests.runtime.bookie.admin.asking import Asker
from tests.until import until

READ_ONLY = "/api/v1/bookie/state/readonly"
IS_READY = "/api/v1/bookie/is_ready"
CHANGE = {"readOnly": False}


@pytest.fixture(scope="module")
def authority() -> Authority:
    return new_authority("test", 10, datetime.datetime.now(datetime.UTC))


@pytest.fixture
def files(authority: Authority, tmp_path: Path) -> CertificateFiles:
    return write_certificate(authority, tmp_path / "bookie", hosts=("127.0.0.1",))


def with_https(config: BookieConfig, files: CertificateFiles, roles: Sequence[str] = ()) -> BookieConfig:
    tls = AdminTlsConfig(
        ca_file=files.ca, key_file=files.key, certificate_file=files.certificate, authorized_roles=tuple(roles)
    )
    return msgspec.structs.replace(
        config, admin=AdminConfig(is_http_enabled=True, http_port=0, is_tls_enabled=True, tls=tls)
    )


@contextlib.asynccontextmanager
async def asking(
    port: int | None, trusted: CertificateFiles, own: CertificateFiles | None = None
) -> AsyncIterator[Asker]:
    context = ssl.create_default_context(cafile=trusted.ca)
    if own is not None:
        context.load_cert_chain(own.certificate, own.key)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session:
        yield Asker(session, f"https://127.0.0.1:{port}")


async def test_a_client_certificate_replaces_the_token(
    bookie_config: BookieConfig, files: CertificateFiles, authority: Authority, tmp_path: Path, store: ZooKeeperStore
) -> None:
    operator = write_certificate(authority, tmp_path / "operator", role="admin")
    async with running_bookie(with_https(bookie_config, files, roles=["admin"])) as server:
        async with (
            asking(server.view.http_port, files) as nameless,
            asking(server.view.http_port, files, operator) as known,
        ):
            assert (await nameless.get(IS_READY)).status == 200
            refused = await nameless.put(READ_ONLY, CHANGE)
            assert (refused.status, "client certificate with a role" in refused.text) == (403, True)
            assert (await known.put(READ_ONLY, CHANGE)).json == CHANGE
        registrations = RegistrationClient(store, parse_metadata_uri(bookie_config.metadata_uri).root)
        assert (await registrations.service_info(server.bookie_id)).is_https


async def test_only_certificates_of_the_ca_and_with_the_role_may_change_something(
    bookie_config: BookieConfig, files: CertificateFiles, authority: Authority, tmp_path: Path
) -> None:
    stranger = write_certificate(new_authority("other", 10, datetime.datetime.now(datetime.UTC)), tmp_path / "stranger")
    async with running_bookie(with_https(bookie_config, files, roles=["admin"])) as server:
        for role, reason in (("admin", None), ("reader", "has the role 'reader', and"), (None, "has no role, and")):
            own = write_certificate(authority, tmp_path / f"role-{role}", role=role)
            async with asking(server.view.http_port, files, own) as client:
                answer = await client.put(READ_ONLY, CHANGE)
                assert (answer.status, (reason or "") in answer.text) == (200 if reason is None else 403, True), role
        async with asking(server.view.http_port, files, stranger) as client:
            with pytest.raises((aiohttp.ClientError, ssl.SSLError)):
                await client.get(IS_READY)


async def what_comes_first(port: int | None, context: ssl.SSLContext) -> bytes:
    reader, _ = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    return await reader.read()


@pytest.mark.parametrize("is_expired", [True, False])
async def test_a_client_whose_certificate_is_not_accepted_learns_why(
    bookie_config: BookieConfig, files: CertificateFiles, authority: Authority, tmp_path: Path, is_expired: bool
) -> None:
    now = datetime.datetime.now(datetime.UTC)
    if is_expired:
        own = write_certificate(authority, tmp_path / "own", days=1, now=now - datetime.timedelta(days=2))
    else:
        own = write_certificate(new_authority("other", 10, now), tmp_path / "own")
    reason = "EXPIRED" if is_expired else "UNKNOWN_CA"
    context = ssl.create_default_context(cafile=files.ca)
    context.load_cert_chain(own.certificate, own.key)
    async with running_bookie(with_https(bookie_config, files)) as server:
        for version in (ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_2):
            context.maximum_version = version
            with pytest.raises(ssl.SSLError, match=f"ALERT_.*{reason}"):
                await what_comes_first(server.view.http_port, context)


async def test_new_files_are_used_without_a_restart(
    bookie_config: BookieConfig, files: CertificateFiles, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with running_bookie(with_https(bookie_config, files)) as server:
        other = new_authority("next", 10, datetime.datetime.now(datetime.UTC))
        renewed = write_certificate(other, tmp_path / "renewed", hosts=("127.0.0.1",))
        async with asking(server.view.http_port, renewed) as client:
            with pytest.raises(aiohttp.ClientConnectorCertificateError):
                await client.get(IS_READY)
        await until(lambda: "in the handshake; perhaps it rejects the certificate of this server" in caplog.text)
        for new, old in zip(renewed, files, strict=True):
            Path(new).replace(old)
        async with asking(server.view.http_port, files) as client:
            assert (await client.get(IS_READY)).status == 200


async def test_a_refused_handshake_holds_nothing_though_no_collection_runs(
    bookie_config: BookieConfig, files: CertificateFiles
) -> None:
    async def refused_handshake(port: int | None) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: b\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()

    async with running_bookie(with_https(bookie_config, files)) as server:
        await refused_handshake(server.view.http_port)
        gc.disable()
        tracemalloc.start()
        try:
            for _ in range(20):
                await refused_handshake(server.view.http_port)
            assert tracemalloc.get_traced_memory()[0] < 2 * 1024 * 1024
        finally:
            tracemalloc.stop()
            gc.enable()


async def test_clear_text_and_silent_clients_stop_no_other(
    bookie_config: BookieConfig, files: CertificateFiles
) -> None:
    async with running_bookie(with_https(bookie_config, files)) as server, contextlib.AsyncExitStack() as at_end:
        for data in (b"", b"\x16\x03\x01", b"GET /metrics HTTP/1.1\r\nHost: b\r\n\r\n", bytes(70_000)) * 50:
            _, writer = await asyncio.open_connection("127.0.0.1", server.view.http_port)
            at_end.callback(writer.close)
            writer.write(data)
        async with asking(server.view.http_port, files) as client:
            assert (await client.get(IS_READY)).status == 200


@pytest.mark.parametrize(
    ("own_roles", "of_bookie", "status"),
    [(None, (), 403), ((), (), 403), (None, ("admin",), 200), (("admin",), (), 200), (("other",), ("admin",), 403)],
)
async def test_the_files_of_the_bookie_s_port_serve_too_and_no_change_without_an_authorized_role(
    bookie_config: BookieConfig,
    files: CertificateFiles,
    authority: Authority,
    tmp_path: Path,
    own_roles: tuple[str, ...] | None,
    of_bookie: tuple[str, ...],
    status: int,
) -> None:
    tls = BookieTlsConfig(
        ca_file=files.ca, key_file=files.key, certificate_file=files.certificate, authorized_roles=of_bookie
    )
    own = None if own_roles is None else AdminTlsConfig(authorized_roles=own_roles)
    admin = AdminConfig(is_http_enabled=True, http_port=0, is_tls_enabled=True, tls=own)
    config = msgspec.structs.replace(bookie_config, admin=admin, tls=tls)
    operator = write_certificate(authority, tmp_path / "operator", role="admin")
    async with running_bookie(config) as server, asking(server.view.http_port, files, operator) as client:
        assert (await client.get(IS_READY)).status == 200
        answer = await client.put(READ_ONLY, CHANGE)
        assert answer.status == status
        if status == 403:
            assert "changes need one of the server's authorized_roles (adminAuthorizedRoles)" in answer.text
            assert ("which is not set" in answer.text) is (not own_roles)


async def test_https_without_files_is_refused(bookie_config: BookieConfig) -> None:
    admin = AdminConfig(is_http_enabled=True, http_port=0, is_tls_enabled=True)
    with pytest.raises(ConfigurationError, match=r"httpServerTlsEnable.*key_file in \[bookie.tls\]"):
        async with running_bookie(msgspec.structs.replace(bookie_config, admin=admin)):
            pass
