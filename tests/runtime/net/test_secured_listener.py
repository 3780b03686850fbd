"""Connections that start TLS or log in, asked by clients that may send any bytes in any order."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import struct
from pathlib import Path

import pytest

from bkctl.runtime.net.bookie_security import AUTH_MESSAGES_MAX, HANDSHAKES_MAX, BookieSecurity, ProtectionFailure
from bkctl.runtime.net.server_connection import ListenerLimits
from bkctl.runtime.protocol.bookkeeper_wire_pb2 import (
    AUTH,
    READ_ENTRY,
    START_TLS,
    Response,
)
from bkctl.runtime.protocol.framing import encode_frame
from bkctl.runtime.protocol.v3_handshake import NO_PLUGIN, encode_auth_request, encode_start_tls_request
from bkctl.runtime.security.login import client_logins
from bkctl.runtime.security_config import ClientLoginConfig
from tests.runtime.net.memory_bookie import LOOPBACK
from tests.runtime.net.secured_peers import (
    EBADREQ,
    ENOLEDGER,
    EUA,
    OK,
    Server,
    log_in,
    peer_of,
    read,
    request,
    required,
    served,
    tls_only,
    with_login,
    with_roles,
)
from tests.until import until


async def test_clients_with_and_without_tls_are_served_on_one_port(server: Server) -> None:
    async with served(server, tls_only(server)), peer_of(server) as plain, peer_of(server) as secured:
        await secured.start_tls()
        for peer in (plain, secured, plain):
            peer.send(read())
            assert (await peer.answer()).status == ENOLEDGER
        plain.send(encode_auth_request("sasl", b"token"))
        assert (await plain.answer()).authResponse.authPluginName == NO_PLUGIN


async def test_a_frame_in_the_same_read_as_start_tls_is_answered_inside_tls(server: Server) -> None:
    async with served(server, tls_only(server)), peer_of(server) as peer:
        peer.send(encode_start_tls_request(), read(3), read(4))
        assert (await peer.answer()).status == OK
        peer.writer.write(peer.hello(server.client_context()))
        await peer.shake_hands()
        answers = [await peer.answer() for _ in range(2)]
        assert [(each.header.txnId, each.status) for each in answers] == [(3, ENOLEDGER), (4, ENOLEDGER)]


async def test_a_hello_in_the_same_read_as_start_tls_is_not_lost(server: Server) -> None:
    async with served(server, tls_only(server)), peer_of(server) as peer:
        hello = peer.hello(server.client_context())
        peer.writer.write(encode_start_tls_request() + read(3) + hello)
        tls, peer.tls = peer.tls, None
        head = await peer.reader.readexactly(4)
        first = Response.FromString(await peer.reader.readexactly(struct.unpack(">I", head)[0]))
        assert (first.header.operation, first.status) == (START_TLS, OK)
        peer.tls = tls
        await peer.shake_hands()
        assert (await peer.answer()).header.txnId == 3


async def test_a_request_in_clear_text_after_start_tls_ends_the_connection(server: Server) -> None:
    async with served(server, tls_only(server)), peer_of(server) as peer:
        peer.send(encode_start_tls_request())
        assert (await peer.answer()).status == OK
        peer.send(read())
        assert await peer.is_closed()
        assert server.security.measures.failed_handshakes == {ProtectionFailure.CLEAR_TEXT: 1}


@pytest.mark.parametrize("has_alert", [True, False])
async def test_the_log_says_that_a_client_rejects_the_certificate(
    server: Server, caplog: pytest.LogCaptureFixture, *, has_alert: bool
) -> None:
    """Also if the client only closes the connection, as event loops of Python do."""
    async with served(server, tls_only(server)), peer_of(server) as peer:
        peer.send(encode_start_tls_request())
        assert (await peer.answer()).status == OK
        peer.writer.write(peer.hello(ssl.create_default_context()))
        with pytest.raises(ssl.SSLCertVerificationError):
            await peer.shake_hands()
        if has_alert:
            peer.writer.write(peer._outgoing.read())
        peer.writer.close()
        await until(lambda: "TLS handshake with " in caplog.text)
    cause = (
        "the client rejects the certificate of this server: unknown ca"
        if has_alert
        else "the client closed the connection in the handshake; perhaps it rejects the certificate of this server"
    )
    assert f" failed: {cause}" in caplog.text


async def test_a_second_start_tls_ends_the_connection(server: Server) -> None:
    async with served(server, tls_only(server)), peer_of(server) as peer:
        await peer.start_tls()
        peer.send(encode_start_tls_request())
        assert await peer.is_closed()


async def test_a_bookie_without_tls_refuses_start_tls_and_goes_on(server: Server) -> None:
    security = BookieSecurity(None, server.logins())  # type: ignore[arg-type]
    async with served(server, security), peer_of(server) as peer:
        peer.send(encode_start_tls_request())
        assert (await peer.answer()).status == EBADREQ
        assert (await log_in(peer)).status == OK
        peer.send(read())
        assert (await peer.answer()).status == ENOLEDGER


async def test_where_tls_is_required_clients_in_clear_text_get_eua(server: Server) -> None:
    async with served(server, required(server)), peer_of(server) as peer:
        peer.send(read(5))
        refused = await peer.answer()
        assert (refused.header.txnId, refused.header.operation, refused.status) == (5, READ_ENTRY, EUA)
        assert not refused.HasField("readResponse")
        await peer.start_tls()
        peer.send(read(6))
        assert (await peer.answer()).status == ENOLEDGER
        assert server.security.measures.refused_requests_count == 1


@pytest.mark.parametrize("is_in_tls", [False, True])
async def test_requests_before_a_login_get_eua_and_those_after_it_are_served(
    server: Server, *, is_in_tls: bool
) -> None:
    async with served(server, with_login(server)), peer_of(server) as peer:
        if is_in_tls:
            await peer.start_tls()
        peer.send(read())
        assert (await peer.answer()).status == EUA
        peer.send(encode_auth_request("other", b""))
        other = await peer.answer()
        assert (other.status, other.HasField("authResponse")) == (EUA, False)
        peer.send(encode_frame(request(AUTH).SerializeToString()))
        assert (await peer.answer()).status == EUA
        peer.send(encode_frame(request(START_TLS).SerializeToString()))
        assert (await peer.answer()).status == EUA
        assert (await log_in(peer)).status == OK
        peer.send(read())
        assert (await peer.answer()).status == ENOLEDGER
        peer.send(encode_auth_request("sasl", b""))
        assert (await peer.answer()).authResponse.authPluginName == NO_PLUGIN
        assert server.security.measures.logins_count == 1


async def test_the_end_of_a_login_and_a_request_may_come_in_one_read(server: Server) -> None:
    async with served(server, with_login(server)), peer_of(server) as peer:
        exchange = client_logins(ClientLoginConfig(username="bookkeeper", password="env:P"), {"P": "one"})(LOOPBACK)
        peer.send(encode_auth_request("sasl", b""))
        token = exchange.answer((await peer.answer()).authResponse.payload)
        peer.send(encode_auth_request("sasl", token), read(8), read(9))
        answers = [await peer.answer() for _ in range(3)]
        assert [each.status for each in answers] == [OK, ENOLEDGER, ENOLEDGER]


@pytest.mark.parametrize("is_in_tls", [False, True])
async def test_a_wrong_password_gets_eua_and_the_end_of_the_connection(server: Server, *, is_in_tls: bool) -> None:
    async with served(server, with_login(server)), peer_of(server) as peer:
        if is_in_tls:
            await peer.start_tls()
        refused = await log_in(peer, "another")
        assert (refused.status, refused.HasField("authResponse")) == (EUA, False)
        assert await peer.is_closed()
        assert server.security.measures.failed_logins == {ProtectionFailure.REFUSED: 1}


async def test_where_tls_is_required_an_auth_before_start_tls_waits_for_the_handshake(server: Server) -> None:
    """Java's client sends both at once, from two threads, and now and then AUTH is the first."""
    async with served(server, with_login(server, is_tls_required=True)):
        async with peer_of(server) as peer:
            peer.send(encode_auth_request("sasl", b""))
            await asyncio.sleep(0.05)
            await peer.start_tls()
            assert (await peer.answer()).authResponse.authPluginName == "sasl"
        async with peer_of(server) as peer:  # a client that never starts TLS
            peer.send(encode_auth_request("sasl", b""))
            assert (await peer.answer()).status == EUA


async def test_an_early_auth_in_clear_text_is_taken_wherever_it_is_cut(server: Server) -> None:
    """Java clients send their first AUTH directly after START_TLS, in one read or in another one."""
    early = encode_start_tls_request() + encode_auth_request("sasl", b"")
    start_bytes = len(encode_start_tls_request())
    async with served(server, with_login(server)):
        for cut in range(start_bytes, len(early)):
            async with peer_of(server) as peer:
                peer.send(early[:cut])
                assert (await peer.answer()).status == OK
                peer.send(early[cut:])
                await asyncio.sleep(0)
                peer.writer.write(peer.hello(server.client_context()))
                await peer.shake_hands()
                challenge = await peer.answer()
                assert challenge.authResponse.authPluginName == "sasl", cut
                exchange = client_logins(ClientLoginConfig(username="bookkeeper", password="env:P"), {"P": "one"})(
                    LOOPBACK
                )
                peer.send(encode_auth_request("sasl", exchange.answer(challenge.authResponse.payload)))
                assert (await peer.answer()).status == OK
                peer.send(read())
                assert (await peer.answer()).status == ENOLEDGER


@pytest.mark.parametrize(("name", "status"), [("writer", ENOLEDGER), ("reader", EUA), ("plain", EUA), (None, EUA)])
async def test_only_the_first_role_of_a_certificate_counts(server: Server, name: str | None, status: int) -> None:
    async with served(server, with_roles(server)), peer_of(server) as peer:
        await peer.start_tls(name)
        peer.send(read())
        assert (await peer.answer()).status == status
        failed = server.security.measures.failed_logins
        assert failed == ({} if status == ENOLEDGER else {ProtectionFailure.ROLE: 1})


async def test_a_certificate_of_another_ca_is_refused(server: Server, tmp_path: Path) -> None:
    other = Server(tmp_path / "other")
    async with served(server, tls_only(server, is_client_certificate_required=True)), peer_of(server) as peer:
        context = server.client_context()
        context.load_cert_chain(other.authority.file("writer.pem"), other.authority.file("writer.key"))
        peer.send(encode_start_tls_request())
        assert (await peer.answer()).status == OK
        peer.writer.write(peer.hello(context))
        await peer.shake_hands()  # in TLS 1.3 a client has finished before its certificate is examined
        assert await peer.is_closed()
        assert server.security.measures.failed_handshakes == {ProtectionFailure.CERTIFICATE: 1}


async def test_a_client_whose_certificate_is_refused_gets_the_alert_and_no_other_client_does(server: Server) -> None:
    """Several handshakes at once: an alert in another connection would end that one."""
    async with served(server, tls_only(server, is_client_certificate_required=True)):

        async def ask(name: str | None) -> str:
            async with peer_of(server) as peer:
                try:
                    await peer.start_tls(name)
                    for _ in range(20):
                        peer.send(read())
                        assert (await peer.answer()).status == ENOLEDGER
                        await asyncio.sleep(0.001)
                except ssl.SSLError as error:
                    return str(error.reason)
                return "served"

        names = ["writer", None] * 20
        ends = await asyncio.gather(*map(ask, names))
        assert ends == ["served", "TLSV13_ALERT_CERTIFICATE_REQUIRED"] * 20


async def test_connections_use_the_certificate_that_is_in_the_file_when_they_start(server: Server) -> None:
    async with served(server, tls_only(server)), peer_of(server) as first:
        await first.start_tls()
        server.authority.issue("bookie")
        async with peer_of(server) as second:
            await second.start_tls()
            assert first.tls is not None
            assert second.tls is not None
            assert first.tls.getpeercert(binary_form=True) != second.tls.getpeercert(binary_form=True)
            for peer in (first, second):
                peer.send(read())
                assert (await peer.answer()).status == ENOLEDGER


async def test_a_login_has_a_limit_of_messages_and_of_bytes(server: Server) -> None:
    async with served(server, with_login(server)):
        async with peer_of(server) as peer:
            peer.send(*[encode_auth_request("other", b"")] * AUTH_MESSAGES_MAX)
            for _ in range(AUTH_MESSAGES_MAX):
                assert (await peer.answer()).status == EUA
            peer.send(encode_auth_request("other", b""))
            assert await peer.is_closed()
        async with peer_of(server) as peer:
            peer.send(encode_auth_request("sasl", bytes(1024 * 1024)))
            assert (await peer.answer()).status == EUA
            assert await peer.is_closed()
        async with peer_of(server) as peer:
            peer.send(struct.pack(">I", 16 * 1024 * 1024 + 30))  # the length word of the frame is enough
            assert await peer.is_closed()
        measures = server.security.measures
        assert measures.failed_logins == {ProtectionFailure.LIMIT: 1, ProtectionFailure.REFUSED: 1}


async def test_a_connection_without_the_login_tls_or_role_that_is_required_is_ended(server: Server) -> None:
    limits = ListenerLimits(stall_s_max=2)
    async with served(server, with_login(server), limits), peer_of(server) as good:
        assert (await log_in(good)).status == OK
        async with peer_of(server) as idle, peer_of(server) as in_tls, peer_of(server) as asking:
            await in_tls.start_tls()
            asking.send(read())
            assert (await asking.answer()).status == EUA
            for peer in (idle, in_tls, asking):
                assert await peer.is_closed()
        good.send(read())
        assert (await good.answer()).status == ENOLEDGER
    async with served(server, required(server), limits), peer_of(server) as plain:
        assert await plain.is_closed()
    async with served(server, with_roles(server), limits), peer_of(server) as reader, peer_of(server) as writer:
        await writer.start_tls("writer")
        await reader.start_tls("reader")
        assert await reader.is_closed()
        writer.send(read())
        assert (await writer.answer()).status == ENOLEDGER


@pytest.mark.parametrize("addresses", [1, 200])
async def test_clients_that_only_begin_handshakes_take_no_place_from_others(server: Server, addresses: int) -> None:
    async with served(server, tls_only(server)), contextlib.AsyncExitStack() as open_peers:
        peers = []
        for number in range(HANDSHAKES_MAX + 100):
            peer = await open_peers.enter_async_context(peer_of(server, f"127.0.1.{1 + number % addresses}"))
            peer.send(encode_start_tls_request())
            assert (await peer.answer()).status == OK
            peers.append(peer)
        async with peer_of(server) as other:
            await other.start_tls()
            other.send(read())
            assert (await other.answer()).status == ENOLEDGER
        for peer in peers[:101]:
            assert await peer.is_closed()
        measures = server.security.measures
        assert measures.failed_handshakes == {ProtectionFailure.LIMIT: 101}
        assert measures.handshakes_count == 1


async def test_a_handshake_that_is_cut_at_any_byte_leaves_nothing_behind(server: Server) -> None:
    async with served(server, tls_only(server)):
        async with peer_of(server) as peer:
            hello = peer.hello(server.client_context())
        start = encode_start_tls_request()
        for cut in range(0, len(start) + len(hello), 7):
            async with peer_of(server) as peer:
                peer.writer.write((start + hello)[:cut])
                if cut >= len(start):
                    await peer.reader.readexactly(4)
        assert server.listener is not None
        await until(lambda: server.listener is not None and server.listener.connection_count == 0, "all are closed")
        assert server.listener.budget.used_bytes == 0


@pytest.mark.parametrize("bad", [b"\x00\x00\x00\x05hello", b"\x17\x03\x03\x00\x10" + bytes(16), b"\xff" * 4096])
async def test_plain_bytes_in_the_middle_of_a_handshake_end_it(server: Server, bad: bytes) -> None:
    async with served(server, tls_only(server)), peer_of(server) as peer:
        peer.send(encode_start_tls_request())
        assert (await peer.answer()).status == OK
        hello = peer.hello(server.client_context())
        peer.writer.write(hello[:100] + bad + hello[100:])
        assert await peer.is_closed()
        assert server.security.measures.failed_handshakes.total() == 1
