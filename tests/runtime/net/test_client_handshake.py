"""The client's side of START_TLS and of a login at a peer that misbehaves; real bookies: tests/interop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from bkctl.runtime.config import ClientConfig
from bkctl.runtime.errors import AuthenticationRequiredError, BookieError, BookieUnavailableError, ConfigurationError
from bkctl.runtime.net.client_handshake import refused_login
from bkctl.runtime.net.loop import LoopClock
from bkctl.runtime.net.pool import BookiePool
from bkctl.runtime.protocol.bookkeeper_wire_pb2 import AUTH, EBADREQ, EIO, EOK, EUA, START_TLS, Request, Response
from bkctl.runtime.protocol.framing import encode_frame
from bkctl.runtime.security_config import BookieClientConfig, ClientLoginConfig, ClientTlsConfig, LoginMechanism
from tests.interop.security_files import TestAuthority
from tests.processes import LOOPBACK

Script: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def pool_at(script: Script, security: BookieClientConfig) -> AsyncIterator[BookiePool]:
    """A pool whose only bookie is ``script``, which serves each connection."""
    served: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        served.add(task)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await script(reader, writer)
        writer.close()

    server = await asyncio.start_server(serve, LOOPBACK, 0)
    port = server.sockets[0].getsockname()[1]

    async def resolve(_: str) -> tuple[str, int]:
        return LOOPBACK, port

    pool = BookiePool(resolve, ClientConfig(security=security), LoopClock())
    try:
        yield pool
    finally:
        await pool.close()
        server.close()
        await asyncio.gather(*served)


async def request_of(reader: asyncio.StreamReader) -> Request:
    (size,) = struct.unpack(">I", await reader.readexactly(4))
    return Request.FromString(await reader.readexactly(size))


def answer_to(request: Request, status: int = EOK, *, plugin: str | None = None, token: bytes = b"") -> bytes:
    response = Response(status=status)  # type: ignore[arg-type]
    response.header.CopyFrom(request.header)
    if plugin is not None:
        response.authResponse.authPluginName = plugin
        response.authResponse.payload = token
    return encode_frame(response.SerializeToString())


@pytest.fixture
def tls(tmp_path: Path) -> BookieClientConfig:
    TestAuthority(tmp_path)
    return BookieClientConfig(tls=ClientTlsConfig(ca_file=str(tmp_path / "ca.pem")))


@pytest.fixture
def login(tmp_path: Path) -> BookieClientConfig:
    (tmp_path / "login").write_text("secret-7f3a")
    (tmp_path / "login").chmod(0o600)
    return BookieClientConfig(sasl=ClientLoginConfig(username="bookkeeper", password=f"file:{tmp_path}/login"))


async def failure(pool: BookiePool) -> BookieError:
    with pytest.raises(BookieError) as caught:
        await pool.info("bookie-1")
    return caught.value


async def test_unencrypted_bytes_after_the_answer_to_start_tls(tls: BookieClientConfig) -> None:
    """They could be the answer to a request that a client sends later inside TLS."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await request_of(reader)
        assert (request.header.operation, request.HasField("startTLSRequest")) == (START_TLS, True)
        writer.write(answer_to(request) + b"\0\0")
        await reader.read()

    async with pool_at(script, tls) as pool:
        error = await failure(pool)
    assert isinstance(error, AuthenticationRequiredError)
    assert str(error) == "bookie bookie-1: it sent unencrypted bytes where a TLS handshake is expected"


@pytest.mark.parametrize("status", [EBADREQ, EUA, EIO])
async def test_no_request_is_sent_in_clear_text(tls: BookieClientConfig, status: int) -> None:
    received: list[bytes] = []

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer_to(await request_of(reader), status))
        received.append(await reader.read())

    async with pool_at(script, tls) as pool:
        error = await failure(pool)
        assert isinstance(error, AuthenticationRequiredError)
        assert "bookie_client.tls" in str(error)
        batch = await pool.read_many("bookie-1", 1, [0, 1, 2], bytes_max=1000)
        assert str(pool.error_of(batch[0], "bookie-1")) == str(error)  # type: ignore[arg-type]
    assert set(received) == {b""}


async def test_a_bookie_that_agrees_to_tls_but_does_not_speak_it(tls: BookieClientConfig) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer_to(await request_of(reader)))
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await reader.read()

    async with pool_at(script, tls) as pool:
        assert "does not answer the TLS handshake" in str(await failure(pool))


async def test_a_bookie_that_closes_in_the_handshake_is_a_refusal_the_second_time(tls: BookieClientConfig) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer_to(await request_of(reader)))
        await reader.read(1)

    async with pool_at(script, tls) as pool:
        first, second = await failure(pool), await failure(pool)
    assert (type(first), type(second)) == (BookieUnavailableError, AuthenticationRequiredError)
    assert "at the TLS handshake; perhaps it requires a client certificate" in str(first)
    assert "at the TLS handshake; perhaps it requires a client certificate" in str(second)


async def test_answers_without_end(login: BookieClientConfig) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await request_of(reader)
        request.header.operation = START_TLS  # the client waits for the answer to its AUTH
        while True:
            writer.write(answer_to(request, EIO) * 10_000)
            await writer.drain()

    async with pool_at(script, login) as pool:
        assert "messages without end" in str(await failure(pool))


async def test_a_token_that_is_larger_than_a_frame(login: BookieClientConfig) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer_to(await request_of(reader), plugin="sasl", token=bytes(16 * 1024 * 1024)))
        await writer.drain()

    async with pool_at(script, login) as pool:
        assert "exceeds the limit" in str(await failure(pool))


async def test_a_late_error_of_start_tls_does_not_end_a_login(login: BookieClientConfig) -> None:
    """Java sends it once TLS is on, because the login is not complete yet (wire 12.3)."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await request_of(reader)
        assert (request.header.operation, request.authRequest.authPluginName) == (AUTH, "sasl")
        late = Request()
        late.CopyFrom(request)
        late.header.operation = START_TLS
        writer.write(answer_to(late, EIO) + answer_to(request, plugin="AuthDisabledPlugin"))
        writer.write(answer_to(await request_of(reader), EBADREQ))
        await reader.read()

    async with pool_at(script, login) as pool:
        assert "malformed" in str(await failure(pool)), "the answer to the request, which came after the login"


@pytest.mark.parametrize("answers", [0, 1])
async def test_a_bookie_that_refuses_the_login(login: BookieClientConfig, answers: int) -> None:
    error = await refusal_of_login(login, answers)
    assert isinstance(error, AuthenticationRequiredError)
    assert ("bookie_client.sasl.username and bookie_client.sasl.password" in str(error)) == bool(answers)


async def refusal_of_login(login: BookieClientConfig, answers: int = 1) -> BookieError:
    """Of a bookie that refuses a login with DIGEST-MD5 after so many answers."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await request_of(reader)
        if answers:
            challenge = b'realm="bookkeeper",nonce="n",qop="auth",charset=utf-8,algorithm=md5-sess'
            writer.write(answer_to(request, plugin="sasl", token=challenge))
            request = await request_of(reader)
        writer.write(answer_to(request, EUA))
        await reader.read()

    async with pool_at(script, login) as pool:
        return await failure(pool)


async def test_a_bookie_that_dies_while_the_client_computes_its_answer(login: BookieClientConfig) -> None:
    """uvloop raises RuntimeError for a write to a connection that is lost already."""
    raised: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context))

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        challenge = b'realm="bookkeeper",nonce="n",qop="auth",charset=utf-8,algorithm=md5-sess'
        writer.write(answer_to(await request_of(reader), plugin="sasl", token=challenge))
        await writer.drain()
        writer.transport.abort()

    async with pool_at(script, login) as pool:
        for _ in range(100):
            error = await failure(pool)
            assert isinstance(error, BookieUnavailableError)
            assert "cannot connect" in str(error) or "closed the connection" in str(error), error
    gc.collect()
    assert raised == []


async def test_the_refusal_of_a_jaas_files_user_has_no_word_about_kerberos(tmp_path: Path) -> None:
    path = tmp_path / "jaas.conf"
    path.write_text('BookKeeper { a.DigestLoginModule required username="u" password="secret-7f3a"; };')
    error = await refusal_of_login(BookieClientConfig(sasl=ClientLoginConfig(jaas_file=str(path))))
    assert str(error) == (
        f"bookie bookie-1: it refuses the login: check the user and password of section BookKeeper in {path} "
        "(bookie_client.sasl.jaas_file), and saslJaasClientAllowedIds of the bookie"
    )


async def test_files_are_read_before_the_first_connection(tmp_path: Path) -> None:
    missing = BookieClientConfig(tls=ClientTlsConfig(ca_file=str(tmp_path / "ca.pem")))
    with pytest.raises(ConfigurationError, match=r"ca\.pem"):
        BookiePool(_never, ClientConfig(security=missing), LoopClock())


async def _never(_: str) -> tuple[str, int]:
    raise AssertionError


@pytest.mark.parametrize(
    ("settings", "advice"),
    [
        (
            {"jaas_file": "/etc/jaas.conf"},
            "the ticket or keytab of section BookKeeper in /etc/jaas.conf (bookie_client.sasl.jaas_file)",
        ),
        ({"mechanism": LoginMechanism.GSSAPI}, "the ticket (klist)"),
        ({"mechanism": LoginMechanism.GSSAPI, "keytab": "/key"}, "the keytab (klist -k /key)"),
    ],
)
def test_a_refused_kerberos_login_names_the_place_of_the_login(settings: dict[str, object], advice: str) -> None:
    config = BookieClientConfig(sasl=ClientLoginConfig(**settings))  # type: ignore[arg-type]
    assert refused_login(config, LoginMechanism.GSSAPI) == (
        f"it refuses the login: check {advice}, and saslJaasClientAllowedIds of the bookie"
    )
