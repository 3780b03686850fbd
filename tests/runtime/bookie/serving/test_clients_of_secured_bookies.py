"""bkctl's client at a bkctl bookie with TLS, roles and logins: what it says when the bookie refuses it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from bkctl.runtime.bookie.boot.process import running_bookie
from bkctl.runtime.config import BookieConfig, ClientConfig
from bkctl.runtime.errors import BookieError
from bkctl.runtime.net.loop import LoopClock
from bkctl.runtime.net.pool import BookiePool
from bkctl.runtime.security_config import (
    BookieClientConfig,
    BookieLoginConfig,
    BookieTlsConfig,
    ClientLoginConfig,
    ClientTlsConfig,
)
from tests.interop.security_files import TestAuthority
from tests.processes import LOOPBACK

pytestmark = pytest.mark.cluster


@pytest.fixture
def authority(tmp_path: Path) -> TestAuthority:
    authority = TestAuthority(tmp_path / "tls")
    authority.issue("bookie")
    authority.issue("operator", units="0:operator;1:cluster")
    authority.issue("guest", units="0:guest,operator")
    authority.issue("expired", units="0:operator", valid_s=-60)
    return authority


def tls_of(authority: TestAuthority, name: str | None = None, *protocols: str) -> BookieClientConfig:
    return BookieClientConfig(
        tls=ClientTlsConfig(
            ca_file=str(authority.file("ca.pem")),
            certificate_file=None if name is None else str(authority.file(f"{name}.pem")),
            key_file=None if name is None else str(authority.file(f"{name}.key")),
            protocols=protocols,
        )
    )


async def answer(port: int, security: BookieClientConfig) -> str:
    """Why a bookie refuses a client, in the second answer; "" if it does not."""

    async def resolve(_: str) -> tuple[str, int]:
        return LOOPBACK, port

    pool = BookiePool(resolve, ClientConfig(security=security), LoopClock())
    try:
        for _ in range(2):
            try:
                await pool.info("bookie-1")
            except BookieError as error:
                found = f"{type(error).__name__}: {error}"
            else:
                return ""
        return found
    finally:
        await pool.close()


async def test_certificates_and_roles(bookie_config: BookieConfig, authority: TestAuthority) -> None:
    tls = BookieTlsConfig(
        ca_file=str(authority.file("ca.pem")),
        certificate_file=str(authority.file("bookie.pem")),
        key_file=str(authority.file("bookie.key")),
        is_client_certificate_required=True,
        authorized_roles=("operator",),
    )
    async with running_bookie(msgspec.structs.replace(bookie_config, tls=tls)) as bookie:
        for protocols in ((), ("TLSv1.2",)):
            assert await answer(bookie.port, tls_of(authority, "operator", *protocols)) == ""
            for name, part in (
                ("guest", "it does not accept the role of this client's certificate"),
                ("expired", f"{authority.file('expired.pem')} (bookie_client.tls.certificate_file)"),
                (None, "it requires a client certificate: set bookie_client.tls.certificate_file"),
            ):
                found = await answer(bookie.port, tls_of(authority, name, *protocols))
                assert found.startswith("AuthenticationRequiredError: bookie bookie-1: "), found
                assert part in found
        assert "set bookie_client.tls or bookie_client.sasl" in await answer(bookie.port, BookieClientConfig())


async def test_logins(bookie_config: BookieConfig, authority: TestAuthority, tmp_path: Path) -> None:
    (tmp_path / "jaas.conf").write_text(
        'Bookie { org.apache.zookeeper.server.auth.DigestLoginModule required user_bookkeeper="secret-7f3a" '
        'user_guest="secret-7f3a"; };\n'
    )
    for name, password in (("right", "secret-7f3a"), ("wrong", "other")):
        (tmp_path / name).write_text(password)
        (tmp_path / name).chmod(0o600)
    sasl = BookieLoginConfig(jaas_file=str(tmp_path / "jaas.conf"))
    tls = BookieTlsConfig(
        certificate_file=str(authority.file("bookie.pem")), key_file=str(authority.file("bookie.key"))
    )
    async with running_bookie(msgspec.structs.replace(bookie_config, tls=tls, sasl=sasl)) as bookie:
        for security in (BookieClientConfig(), tls_of(authority)):
            right, wrong = (
                msgspec.structs.replace(
                    security, sasl=ClientLoginConfig(username="bookkeeper", password=f"file:{tmp_path}/{name}")
                )
                for name in ("right", "wrong")
            )
            assert await answer(bookie.port, right) == ""
            assert "check bookie_client.sasl.username and bookie_client.sasl.password" in await answer(
                bookie.port, wrong
            )
            guest = ClientLoginConfig(username="guest", password=f"file:{tmp_path}/right")
            found = await answer(bookie.port, msgspec.structs.replace(security, sasl=guest))
            assert "bookie_client.sasl.password, and saslJaasClientAllowedIds of the bookie" in found
            assert "bookie_client.sasl" in await answer(bookie.port, security)
