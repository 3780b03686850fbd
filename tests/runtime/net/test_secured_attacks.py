"""Clients that waste what TLS and logins cost: others are served meanwhile, and memory stays flat."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import ssl
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from bkctl.runtime.net.bookie_security import ProtectionFailure
from bkctl.runtime.protocol.v3_handshake import encode_auth_request, encode_start_tls_request
from tests.interop.security_files import TestAuthority
from tests.runtime.net.memory_bookie import LOOPBACK
from tests.runtime.net.secured_peers import (
    ENOLEDGER,
    OK,
    Server,
    log_in,
    peer_of,
    read,
    served,
    tls_only,
    with_login,
)
from tests.until import until

pytestmark = pytest.mark.battery

_OTHER_ADDRESS = "127.0.0.2"
_GROWTH_BYTES_MAX = 24 * 1024 * 1024
_WARM_UP_COUNT = 1000
_FLIGHTS_BYTES = 2000
"""More than a client sends in a handshake."""


async def resident_bytes(server: Server) -> int:
    """What the attacks so far have cost: first their connections are closed, and garbage is collected."""
    await until(lambda: server.listener is not None and server.listener.connection_count == 1, "all are closed")
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@contextlib.asynccontextmanager
async def another_client(server: Server, name: str | None = None) -> AsyncIterator[None]:
    """A client that is served in TLS all the time."""
    async with peer_of(server, _OTHER_ADDRESS) as peer:
        await peer.start_tls(name)
        is_over, count = asyncio.Event(), 0

        async def ask() -> None:
            nonlocal count
            while not is_over.is_set():
                peer.send(read(count))
                assert (await peer.answer()).status == ENOLEDGER
                count += 1
                await asyncio.sleep(0.002)

        asking = asyncio.create_task(ask())
        try:
            yield
        finally:
            is_over.set()
            await asking
        assert count > 0


async def cut_handshake(server: Server, context: ssl.SSLContext, cut: int) -> None:
    """A handshake in which the client sends only so many bytes; TLS 1.2 has two flights of them."""
    async with peer_of(server) as peer:
        peer.send(encode_start_tls_request())
        assert (await peer.answer()).status == OK
        hello = peer.hello(context)
        peer.writer.write(hello[:cut])
        if cut > len(hello):
            await peer.shake_hands(bytes_max=cut - len(hello))


def bomb_context(server: Server) -> ssl.SSLContext:
    bomb_chain(server.authority, 400)
    context = server.client_context()
    context.load_cert_chain(server.authority.file("bomb.pem"), server.authority.file("bomb.key"))
    return context


async def refused_handshake(server: Server, context: ssl.SSLContext) -> None:
    async with peer_of(server) as peer:
        peer.send(encode_start_tls_request())
        assert (await peer.answer()).status == OK
        peer.writer.write(peer.hello(context))
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await peer.shake_hands()
        assert await peer.is_closed()


async def test_ten_thousand_handshakes_that_are_cut_at_every_byte(server: Server) -> None:
    context = server.client_context("writer")
    security = tls_only(server, is_client_certificate_required=True)
    async with served(server, security), another_client(server, "writer"):
        before = 0
        for number in range(10_000):
            if number == _WARM_UP_COUNT:
                before = await resident_bytes(server)
            await cut_handshake(server, context, number % _FLIGHTS_BYTES)
        assert await resident_bytes(server) - before < _GROWTH_BYTES_MAX
        assert server.security.measures.failed_handshakes[ProtectionFailure.LIMIT] == 0


async def test_a_chain_of_certificates_without_end_is_refused(server: Server) -> None:
    context = bomb_context(server)
    async with served(server, tls_only(server, is_client_certificate_required=True)), another_client(server, "writer"):
        before = 0
        for number in range(200):
            if number == 20:
                before = await resident_bytes(server)
            await refused_handshake(server, context)
        assert await resident_bytes(server) - before < _GROWTH_BYTES_MAX
        assert server.security.measures.failed_handshakes.total() == 200


async def test_a_refused_handshake_holds_nothing_though_no_collection_runs(server: Server) -> None:
    context = bomb_context(server)
    async with served(server, tls_only(server, is_client_certificate_required=True)):
        await refused_handshake(server, context)
        gc.disable()
        tracemalloc.start()
        try:
            for _ in range(20):
                await refused_handshake(server, context)
            await until(lambda: server.listener is not None and server.listener.connection_count == 0, "all are closed")
            assert tracemalloc.get_traced_memory()[0] < 2 * 1024 * 1024
        finally:
            tracemalloc.stop()
            gc.enable()


async def send_until_the_end(server: Server, sent: bytes) -> None:
    """Return when the server has closed the connection."""
    async with peer_of(server) as peer:
        peer.send(sent)
        with contextlib.suppress(ConnectionError):
            while True:
                await peer.answer()


async def test_tokens_of_16_mib_and_logins_without_end(server: Server) -> None:
    frame = encode_auth_request("sasl", bytes(16 * 1024 * 1024))
    limit = encode_auth_request("sasl", bytes(5 * 1024 * 1024 - 100))
    async with served(server, with_login(server)), contextlib.AsyncExitStack() as stack:
        other = await stack.enter_async_context(peer_of(server, _OTHER_ADDRESS))
        await other.start_tls()
        assert (await log_in(other)).status == OK
        before = 0
        for number in range(9):
            if number == 3:
                before = await resident_bytes(server)
            # Five at a time, because each takes a second: a refused client has that to read why.
            sent = 5 * (frame, limit, encode_auth_request("other", b"") * 1000)
            await asyncio.gather(*(send_until_the_end(server, each) for each in sent))
        assert await resident_bytes(server) - before < _GROWTH_BYTES_MAX
        other.send(read())
        assert (await other.answer()).status == ENOLEDGER


async def test_a_client_cannot_renegotiate(server: Server) -> None:
    async with served(server, tls_only(server)), another_client(server):
        proxy = await asyncio.start_server(lambda r, w: start_tls_and_forward(server, r, w), LOOPBACK, 0)
        port = proxy.sockets[0].getsockname()[1]
        client = await asyncio.create_subprocess_exec(
            *("openssl", "s_client", "-tls1_2", "-connect", f"{LOOPBACK}:{port}"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        assert client.stdin is not None
        assert client.stdout is not None
        shown = b""
        while b"Verify return code" not in shown:
            part = await client.stdout.read(4096)
            assert part, shown
            shown += part
        client.stdin.write(b"R\n")
        async with asyncio.timeout(120):
            rest = await client.stdout.read()
        await client.wait()
        proxy.close()
        assert b"RENEGOTIATING" in rest
        assert b"no renegotiation" in rest or b"unexpected eof" in rest


async def start_tls_and_forward(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    async with peer_of(server) as peer:
        peer.send(encode_start_tls_request())
        assert (await peer.answer()).status == OK
        await asyncio.wait(
            [asyncio.create_task(_pipe(reader, peer.writer)), asyncio.create_task(_pipe(peer.reader, writer))],
            return_when=asyncio.FIRST_COMPLETED,
        )
    writer.close()


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while part := await reader.read(65536):
            writer.write(part)


def bomb_chain(authority: TestAuthority, count: int) -> None:
    """Write ``bomb.pem`` and ``bomb.key``: a certificate and so many others that sign each other."""
    key = ec.generate_private_key(ec.SECP256R1())
    pem = [authority.file("writer.pem").read_bytes()]
    pem[0] = pem[0][: pem[0].index(b"-----END CERTIFICATE-----\n") + len(b"-----END CERTIFICATE-----\n")]
    first = x509.load_pem_x509_certificate(pem[0])
    for number in range(count):
        name, issuer = (
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"link {each} {'x' * 40}")])
            for each in (number, number + 1)
        )
        link = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(number + 1)
            .not_valid_before(first.not_valid_before_utc)
            .not_valid_after(first.not_valid_after_utc)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(key, hashes.SHA256())
        )
        pem.append(link.public_bytes(serialization.Encoding.PEM))
    authority.file("bomb.pem").write_bytes(b"".join(pem))
    authority.file("bomb.key").write_bytes(authority.file("writer.key").read_bytes())
