"""A bookie that refuses a client by its role: the client's new files count without a restart of either side."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bkctl.runtime.config import ClientConfig
from bkctl.runtime.errors import AuthenticationRequiredError
from bkctl.runtime.net.pool import BookiePool
from bkctl.runtime.protocol.status import Status
from bkctl.runtime.security_config import BookieClientConfig, ClientTlsConfig
from tests.runtime.net.memory_bookie import LOOPBACK
from tests.runtime.net.secured_peers import Server, served, with_roles
from tests.runtime.net.stepped_clock import SteppedClock
from tests.until import until

BOOKIE = "bookie-1"
PAUSE_S = 1.0
REFUSED = "it does not accept the role of this client's certificate"


class Client:
    """A pool whose certificate and key are those of ``NAME``, then those of another name."""

    def __init__(self, server: Server, name: str) -> None:
        self._server = server
        self.use(name)
        self.clock = SteppedClock()
        self.addresses_asked = 0
        file = server.authority.file
        ca, certificate, key = (str(file(name)) for name in ("ca.pem", "own.pem", "own.key"))
        tls = ClientTlsConfig(ca_file=ca, certificate_file=certificate, key_file=key)
        self.pool = BookiePool(self._resolve, ClientConfig(security=BookieClientConfig(tls=tls)), self.clock)

    def use(self, name: str) -> None:
        for kind in ("key", "pem"):
            path = self._server.authority.file(f"own.{kind}")
            Path(f"{path}.new").write_bytes(self._server.authority.file(f"{name}.{kind}").read_bytes())
            os.replace(f"{path}.new", path)

    async def outcomes(self) -> set[Status]:
        """Of a read, of reads in one batch, and of an add."""
        added: asyncio.Future[Status] = asyncio.get_running_loop().create_future()
        batch = self.pool.read_many(BOOKIE, 1, range(3), bytes_max=1000)
        single = self.pool.read_many(BOOKIE, 1, [7], bytes_max=1000)
        self.pool.add(BOOKIE, 1, 2, b"k" * 20, b"body", added.set_result)
        found = [*await batch, *await single, await added]
        assert all(isinstance(each, Status) for each in found)
        return {each for each in found if isinstance(each, Status)}

    async def _resolve(self, _: str) -> tuple[str, int]:
        self.addresses_asked += 1
        return LOOPBACK, self._server.port


@contextlib.asynccontextmanager
async def client_of(server: Server, name: str) -> AsyncIterator[Client]:
    client = Client(server, name)
    try:
        yield client
    finally:
        await client.pool.close()


async def test_the_next_request_after_new_files_is_served(server: Server) -> None:
    async with served(server, with_roles(server)), client_of(server, "reader") as client:
        assert await client.outcomes() == {Status.AUTHENTICATION_REQUIRED}
        with pytest.raises(AuthenticationRequiredError, match=REFUSED):
            await client.pool.info(BOOKIE)
        client.use("writer")
        client.clock.advance(PAUSE_S)
        assert await client.outcomes() == {Status.NO_SUCH_LEDGER}


async def test_a_bookie_that_refuses_is_not_asked_in_a_tight_loop(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """Each connection costs a handshake. The log has one line for all of them."""
    async with served(server, with_roles(server)), client_of(server, "reader") as client:
        for _ in range(20):
            assert await client.outcomes() == {Status.AUTHENTICATION_REQUIRED}
        assert client.addresses_asked == 2, "one for batch reads"
        for _ in range(3):
            client.clock.advance(PAUSE_S)
            assert await client.outcomes() == {Status.AUTHENTICATION_REQUIRED}
        assert client.addresses_asked == 8
        await until(lambda: server.security.measures.handshakes_count == 8)
    assert caplog.text.count(REFUSED) == 1
