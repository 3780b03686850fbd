"""A listener with TLS and logins, and clients of it that can send any bytes in any order."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import struct
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from bkctl.runtime.net.bookie_security import BookieSecurity
from bkctl.runtime.net.host import listen_tcp
from bkctl.runtime.net.listener import BookieListener
from bkctl.runtime.net.server_connection import ListenerLimits
from bkctl.runtime.ports import Responder
from bkctl.runtime.protocol.bookkeeper_wire_pb2 import (
    READ_ENTRY,
    VERSION_THREE,
    Request,
    Response,
    StatusCode,
)
from bkctl.runtime.protocol.framing import encode_frame
from bkctl.runtime.protocol.messages import BookieCall
from bkctl.runtime.protocol.status import Status
from bkctl.runtime.protocol.v3_handshake import encode_auth_request, encode_start_tls_request
from bkctl.runtime.security.login import bookie_logins, client_logins
from bkctl.runtime.security.tls_contexts import bookie_contexts
from bkctl.runtime.security_config import BookieLoginConfig, BookieTlsConfig, ClientLoginConfig
from tests.interop.security_files import TestAuthority
from tests.runtime.net.memory_bookie import LOOPBACK
from tests.until import until

OK, EUA, ENOLEDGER, EBADREQ = (StatusCode.Value(name) for name in ("EOK", "EUA", "ENOLEDGER", "EBADREQ"))
JAAS = 'Bookie { org.apache.zookeeper.server.auth.DigestLoginModule required user_bookkeeper="one"; };'

_DEFAULTS = ListenerLimits()


class EmptyBookie:
    """Has no ledger."""

    def handle(self, responder: Responder, call: BookieCall) -> None:
        responder.answer(call, Status.NO_SUCH_LEDGER)

    def find_in_memory(
        self, ledger_id: int, entry_ids: Sequence[int], *, wants_lac: bool
    ) -> tuple[list[bytes | None], None]:
        """All reads are answered by ``handle``."""
        return [None] * len(entry_ids), None

    def poll_memory(self, call: object) -> None:
        """As for other reads."""


class Server:
    """A listener with a CA of its own, and its clients."""

    def __init__(self, directory: Path) -> None:
        self.authority = TestAuthority(directory)
        self.authority.issue("bookie")
        self.authority.issue("writer", units="0:writer,reader;1:cluster")
        self.authority.issue("reader", units="0:reader,writer")
        self.authority.issue("plain")
        (directory / "jaas.conf").write_text(JAAS)
        self.listener: BookieListener | None = None
        self.port = 0

    def contexts(self, **settings: object) -> object:
        files = {"certificate_file": "bookie.pem", "key_file": "bookie.key", "ca_file": "ca.pem"}
        paths = {name: str(self.authority.file(value)) for name, value in files.items()}
        return bookie_contexts(BookieTlsConfig(**paths, **settings), {})  # type: ignore[arg-type]

    def logins(self) -> object:
        return bookie_logins(BookieLoginConfig(jaas_file=str(self.authority.file("jaas.conf"))))

    def client_context(self, name: str | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.authority.file("ca.pem")))
        if name is not None:
            context.load_cert_chain(self.authority.file(f"{name}.pem"), self.authority.file(f"{name}.key"))
        return context

    @property
    def security(self) -> BookieSecurity:
        assert self.listener is not None
        assert self.listener.security is not None
        return self.listener.security


@contextlib.asynccontextmanager
async def served(server: Server, security: BookieSecurity, limits: ListenerLimits = _DEFAULTS) -> AsyncIterator[None]:
    server.listener = BookieListener(limits, security=security)
    server.port = await server.listener.open(listen_tcp, LOOPBACK, 0)
    server.listener.serve(EmptyBookie())
    try:
        yield
    finally:
        await server.listener.close()
        await until(lambda: not server.listener or server.listener.budget.used_bytes == 0, "all memory is released")


class Peer:
    """A client; ``start_tls`` is by hand, so that bytes can be cut and mixed anywhere."""

    def __init__(self, server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._server = server
        self.reader, self.writer = reader, writer
        self.tls: ssl.SSLObject | None = None
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._received = b""

    def send(self, *frames: bytes) -> None:
        data = b"".join(frames)
        if self.tls is not None:
            self.tls.write(data)
            data = self._outgoing.read()
        self.writer.write(data)

    def hello(self, context: ssl.SSLContext) -> bytes:
        """The first bytes of a handshake."""
        self.tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=LOOPBACK)
        with contextlib.suppress(ssl.SSLWantReadError):
            self.tls.do_handshake()
        return self._outgoing.read()

    async def shake_hands(self, bytes_max: int = 2**31) -> None:
        """The rest of the handshake, or the part of it in which the client sends so many bytes."""
        assert self.tls is not None
        is_done = False
        while not is_done:
            try:
                self.tls.do_handshake()
                is_done = True
            except ssl.SSLWantReadError:
                pass
            flight = self._outgoing.read()[:bytes_max]
            bytes_max -= len(flight)
            self.writer.write(flight)
            if not bytes_max:
                return
            if not is_done:
                await self._receive()

    async def start_tls(self, name: str | None = None) -> None:
        self.send(encode_start_tls_request())
        assert (await self.answer()).status == OK
        self.writer.write(self.hello(self._server.client_context(name)))
        await self.shake_hands()

    async def answer(self) -> Response:
        """The next answer, inside TLS if it was started."""
        while len(self._received) < 4 or len(self._received) < 4 + struct.unpack_from(">I", self._received)[0]:
            await self._receive_plain()
        stop = 4 + struct.unpack_from(">I", self._received)[0]
        payload, self._received = self._received[4:stop], self._received[stop:]
        return Response.FromString(payload)

    async def is_closed(self) -> bool:
        """Whether the bookie closes the connection without a further answer."""
        try:
            while True:
                await self._receive_plain()
                assert not self._received
        except (ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
            return True

    async def _receive_plain(self) -> None:
        if self.tls is None:
            self._received += await self._read()
            return
        try:
            part = self.tls.read(65536)
            if not part:
                raise ConnectionResetError
            self._received += part
        except ssl.SSLWantReadError:
            await self._receive()

    async def _receive(self) -> None:
        self._incoming.write(await self._read())

    async def _read(self) -> bytes:
        async with asyncio.timeout(120):
            data = await self.reader.read(65536)
        if not data:
            raise ConnectionResetError
        return data


@contextlib.asynccontextmanager
async def peer_of(server: Server, address: str = LOOPBACK) -> AsyncIterator[Peer]:
    reader, writer = await asyncio.open_connection(LOOPBACK, server.port, local_addr=(address, 0))
    try:
        yield Peer(server, reader, writer)
    finally:
        writer.transport.abort()


def request(operation: int, txn_id: int = 7) -> Request:
    message = Request()
    message.header.version = VERSION_THREE
    message.header.operation = operation  # type: ignore[assignment]
    message.header.txnId = txn_id
    return message


def read(txn_id: int = 7) -> bytes:
    message = request(READ_ENTRY, txn_id)
    message.readRequest.ledgerId, message.readRequest.entryId = 1, 2
    return encode_frame(message.SerializeToString())


async def log_in(peer: Peer, password: str = "one") -> Response:
    """Log in with DIGEST-MD5; the last answer."""
    config = ClientLoginConfig(username="bookkeeper", password="env:P")
    exchange = client_logins(config, {"P": password})(LOOPBACK)
    peer.send(encode_auth_request("sasl", exchange.first_token()))
    challenge = await peer.answer()
    assert (challenge.status, challenge.authResponse.authPluginName) == (OK, "sasl")
    peer.send(encode_auth_request("sasl", exchange.answer(challenge.authResponse.payload)))
    last = await peer.answer()
    if last.status == OK:
        exchange.answer(last.authResponse.payload)
        assert exchange.is_complete
    return last


def tls_only(server: Server, **settings: object) -> BookieSecurity:
    return BookieSecurity(server.contexts(**settings), None)  # type: ignore[arg-type]


def with_login(server: Server, **settings: object) -> BookieSecurity:
    return BookieSecurity(server.contexts(), server.logins(), **settings)  # type: ignore[arg-type]


def required(server: Server) -> BookieSecurity:
    return BookieSecurity(server.contexts(), None, is_tls_required=True)  # type: ignore[arg-type]


def with_roles(server: Server) -> BookieSecurity:
    roles = frozenset({"writer"})
    contexts = server.contexts(authorized_roles=("writer",))
    return BookieSecurity(contexts, None, is_tls_required=True, authorized_roles=roles)  # type: ignore[arg-type]
