"""The HTTP server of the admin interface against slow, broken and hostile clients, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bkctl.runtime.admin.connections import AdminLimits
from bkctl.runtime.admin.messages import AdminAnswer, AdminRequest, Route, json_answer, text_answer
from bkctl.runtime.admin.server import AdminServer, is_known_host
from bkctl.runtime.net.host import listen_tcp
from bkctl.runtime.net.local_socket import listen_unix
from bkctl.runtime.net.secret_file import read_secret
from tests.until import until

TOKEN = "s3cret-token"
USUAL = AdminLimits()
LARGE = 16_000_000
"""More than the buffers of a connection."""


class Client:
    """A raw connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: str | bytes) -> None:
        self.writer.write(data.encode("latin-1") if isinstance(data, str) else data)
        with contextlib.suppress(ConnectionError):
            await self.writer.drain()

    async def answer(self, *, has_body: bool = True) -> tuple[int, dict[str, str], bytes]:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
        body = await self.reader.readexactly(int(headers["content-length"]) if has_body else 0)
        return int(head[0].split()[1]), headers, body

    async def ended(self) -> bytes:
        """What arrives until the server ends the connection."""
        try:
            return await self.reader.read()
        except ConnectionError:
            return b""


class Served:
    """A server with a few routes on a TCP port."""

    def __init__(self, port: int, token_file: Path, server: AdminServer) -> None:
        self.port = port
        self.token_file = token_file
        self.server = server
        self.changes = 0
        self.writers: list[asyncio.StreamWriter] = []

    async def connect(self) -> Client:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.writers.append(writer)
        return Client(reader, writer)

    def disconnect(self) -> None:
        for writer in self.writers:
            writer.close()

    async def ask(self, text: str) -> tuple[int, dict[str, str], bytes]:
        client = await self.connect()
        await client.send(text)
        return await client.answer(has_body=not text.startswith("HEAD"))

    def put(self, *headers: str, body: str = "") -> str:
        return "\r\n".join(["PUT /change HTTP/1.1", "Host: b", f"Content-Length: {len(body)}", *headers, "", body])


@pytest.fixture
async def make_served(tmp_path: Path) -> AsyncIterator[type]:
    """Opens servers with the given limits."""
    async with contextlib.AsyncExitStack() as at_end:

        async def serve(limits: AdminLimits = USUAL, *, has_token: bool = True) -> Served:
            async def get(_: AdminRequest) -> AdminAnswer:
                return text_answer("OK")

            async def show_id(request: AdminRequest) -> AdminAnswer:
                return text_answer(request.places["id"])

            async def large(_: AdminRequest) -> AdminAnswer:
                return text_answer("x" * LARGE)

            async def change(request: AdminRequest) -> AdminAnswer:
                request.json()
                served.changes += 1
                return json_answer({"bytes": len(request.body)})

            async def never(_: AdminRequest) -> AdminAnswer:
                await asyncio.get_running_loop().create_future()
                raise AssertionError

            async def fail(_: AdminRequest) -> AdminAnswer:
                raise KeyError("of the handler")

            async def read_token() -> bytes | None:
                return read_secret(str(token_file)) if has_token else None

            routes = [
                Route("GET", "/get", get),
                Route("GET", "/large", large),
                Route("GET", "/never", never),
                Route("GET", "/fail", fail),
                Route("PUT", "/change", change, changes=True),
                Route("GET", "/things/{id}", show_id),
                Route("DELETE", "/things/{id}", change, changes=True),
            ]
            token_file = tmp_path / "token"
            token_file.touch(0o600)
            token_file.write_text(f"{TOKEN}\n")
            server = AdminServer(routes, limits)
            at_end.push_async_callback(server.close)
            port = await server.open_tcp(listen_tcp, "127.0.0.1", 0, read_token, names=["b"])
            served = Served(port, token_file, server)
            at_end.callback(served.disconnect)
            return served

        yield serve  # type: ignore[misc]


async def is_served(served: Served) -> bool:
    return (await served.ask("GET /get HTTP/1.1\r\nHost: b\r\n\r\n"))[0] == 200


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        ("GET /get HTTP/1.1\r\nHost: b\r\n\r\n", 200),
        ("GET /get/ HTTP/1.1\r\nHost: b\r\n\r\n", 200),
        ("GET /get HTTP/1.0\r\n\r\n", 200),
        ("GET /get HTTP/1.1\r\nHost: b\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\r\n", 200),
        ("GET /get?a=%00&b=%zz HTTP/1.1\r\nHost: b\r\n\r\n", 200),
        ("GET /things/5 HTTP/1.1\r\nHost: b\r\n\r\n", 200),
        ("GET /things/5/ HTTP/1.1\r\nHost: b\r\n\r\n", 200),
        ("GET /things/ HTTP/1.1\r\nHost: b\r\n\r\n", 404),
        ("GET /things/5/6 HTTP/1.1\r\nHost: b\r\n\r\n", 404),
        ("GET /things/%35 HTTP/1.1\r\nHost: b\r\n\r\n", 404),
        ("GET / HTTP/1.1\r\nHost: b\r\n\r\n", 404),
        ("GET /get#5 HTTP/1.1\r\nHost: b\r\n\r\n", 404),
        ("GET //get HTTP/1.1\r\nHost: b\r\n\r\n", 404),
        ("GET /get// HTTP/1.1\r\nHost: b\r\n\r\n", 404),
        ("GET /x/../get HTTP/1.1\r\nHost: b\r\n\r\n", 404),
        ("GET /./get HTTP/1.1\r\nHost: b\r\n\r\n", 404),
        ("GET /%67et HTTP/1.1\r\nHost: b\r\n\r\n", 404),
        ("GET /%2e%2e/get HTTP/1.1\r\nHost: b\r\n\r\n", 404),
        ("GET /get%00 HTTP/1.1\r\nHost: b\r\n\r\n", 404),
        ("GET //b/get HTTP/1.1\r\nHost: b\r\n\r\n", 404),
        ("GET http://b/get HTTP/1.1\r\nHost: b\r\n\r\n", 400),
        ("OPTIONS * HTTP/1.1\r\nHost: b\r\n\r\n", 400),
        ("CONNECT b:80 HTTP/1.1\r\nHost: b\r\n\r\n", 400),
        ("HEAD /get HTTP/1.1\r\nHost: b\r\n\r\n", 405),
        ("OPTIONS /get HTTP/1.1\r\nHost: b\r\n\r\n", 405),
        ("TRACE /get HTTP/1.1\r\nHost: b\r\n\r\n", 405),
        ("POST /change HTTP/1.1\r\nHost: b\r\n\r\n", 405),
        ("PUT /things/5 HTTP/1.1\r\nHost: b\r\n\r\n", 405),
        ("GET /get HTTP/1.1\r\nHost: b\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", 417),
        ("PUT /change HTTP/1.1\r\nHost: b\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n", 417),
        ("GET /nothing HTTP/1.1\r\nHost: b\r\nExpect: another\r\n\r\n", 417),
        ("PUT /change HTTP/1.1\r\nHost: b\r\n\r\n", 401),
        ("GET /fail HTTP/1.1\r\nHost: b\r\n\r\n", 500),
        ("GET /get HTTP/1.1\r\nHost: b\r\nX: " + "x" * 10_000 + "\r\n\r\n", 400),
        ("GET /get HTTP/1.1\r\nHost: b\r\n" + "X: y\r\n" * 100 + "\r\n", 400),
        ("GET /" + "x" * 10_000 + " HTTP/1.1\r\nHost: b\r\n\r\n", 400),
        ("GET /get HTTP/1.1\r\nHost: b\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        ("GET /get\x00 HTTP/1.1\r\nHost: b\r\n\r\n", 400),
        ("GET /get HTTP/9.9\r\nHost: b\r\n\r\n", 400),
        ("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    ],
)
async def test_what_is_served_and_what_is_refused(make_served: type, request_text: str, status: int) -> None:
    served: Served = await make_served()
    found, headers, body = await served.ask(request_text)
    assert found == status
    assert headers["server"] == "bkctl"
    if status >= 400 and not request_text.startswith("HEAD"):
        assert set(json.loads(body)) == {"error", "problem"}
    assert ("allow" in headers) == (status == 405)
    assert served.changes == 0
    assert await is_served(served)


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (f"Authorization: Bearer {TOKEN}", 200),
        (f"authorization: bearer  {TOKEN} ", 200),
        ("Authorization: Bearer wrong", 401),
        ("Authorization: Bearer ", 401),
        ("Authorization: Bearer", 401),
        ("Authorization: Bearer \xff\xfe", 401),
        (f"Authorization: Basic {TOKEN}", 401),
        (f"Authorization: Bearer {TOKEN}x", 401),
        (f"Authorization: {TOKEN}", 401),
        (f"X-Token: {TOKEN}", 401),
    ],
)
async def test_a_change_over_tcp_needs_the_token(make_served: type, header: str, status: int) -> None:
    served: Served = await make_served()
    found, _, _ = await served.ask(served.put(header))
    assert (found, served.changes) == (status, int(status == 200))


async def test_the_token_is_read_at_each_use(make_served: type, caplog: pytest.LogCaptureFixture) -> None:
    served: Served = await make_served()
    bearer = f"Authorization: Bearer {TOKEN}"
    served.token_file.write_text("another")
    assert (await served.ask(served.put(bearer)))[0] == 401
    assert (await served.ask(served.put("Authorization: Bearer another")))[0] == 200
    served.token_file.chmod(0o644)
    assert (await served.ask(served.put("Authorization: Bearer another")))[0] == 500
    assert "chmod o=" in caplog.text
    served.token_file.unlink()
    status, _, body = await served.ask(served.put("Authorization: Bearer another"))
    assert status == 500
    assert str(served.token_file).encode() not in body


async def test_without_a_token_file_changes_over_tcp_are_refused(make_served: type) -> None:
    served: Served = await make_served(has_token=False)
    assert (await served.ask(served.put(f"Authorization: Bearer {TOKEN}")))[0] == 403
    assert served.changes == 0


async def test_the_log_has_no_secrets_and_no_control_characters(
    make_served: type, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    served: Served = await make_served()
    for text in (
        served.put("Authorization: Bearer wr0ng-t0ken", body='{"password":"b0dy"}'),
        "GET /nothing?query=qu3ry#fr4gment HTTP/1.1\r\nHost: b\r\nX: he4der\r\n\r\n",
        "GET /\x1b[31mred\x7f HTTP/1.1\r\nHost: b\r\n\r\n",
        "GET /\xe4 HTTP/1.1\r\nHost: b\r\n\r\n",
        "br0ken he4der\r\n\r\n",
    ):
        client = await served.connect()
        await client.send(text)
        assert 400 <= (await client.answer())[0] < 500
    found = caplog.text
    assert "/change: 401" in found
    assert "/nothing: 404" in found
    for secret in ("wr0ng", TOKEN, "b0dy", "qu3ry", "fr4gment", "he4der", "br0ken", "\x1b", "\x7f", "\xe4"):
        assert secret not in found
    assert "Traceback" not in found


async def test_many_refusals_are_a_few_lines_in_the_log(make_served: type, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    served: Served = await make_served()
    client = await served.connect()
    for number in range(200):
        await client.send(f"GET /missing{number}x HTTP/1.1\r\nHost: b\r\n\r\n")
        assert (await client.answer())[0] == 404
    assert len(caplog.records) == 1
    await served.server.close()
    assert "199 more" in caplog.text


async def test_a_client_cannot_choose_the_causes_in_the_log(
    make_served: type, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    served: Served = await make_served()
    for number in range(20):
        bearer = f"Authorization: Bearer {TOKEN}"
        assert (await served.ask(served.put(bearer, body="x" * (number + 1))))[0] == 400  # with its own sentence each
    served.token_file.chmod(0o644)
    for _ in range(20):
        assert (await served.ask(served.put()))[0] == 500
    levels = [record.levelname for record in caplog.records]
    assert sorted(levels) == ["ERROR", "INFO", "INFO"]


async def test_bodies(make_served: type) -> None:
    served: Served = await make_served()
    bearer = f"Authorization: Bearer {TOKEN}"
    chunked = f"PUT /change HTTP/1.1\r\nHost: b\r\n{bearer}\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert (await served.ask(f"{chunked}2\r\n{{}}\r\n0\r\n\r\n"))[0] == 200
    assert (await served.ask(f"{chunked}zz\r\n{{}}\r\n0\r\n\r\n"))[0] == 400
    assert (await served.ask(served.put(bearer, body="[" * 60_000)))[0] == 400
    huge = f"PUT /change HTTP/1.1\r\nHost: b\r\n{bearer}\r\nContent-Length: 99999999999\r\n\r\n"
    assert (await served.ask(huge))[0] == 413
    client = await served.connect()
    await client.send(chunked + "10000\r\n" + "x" * 0x10000 + "\r\n1\r\nx\r\n")
    assert (await client.answer())[0] == 413
    zipped = f"PUT /change HTTP/1.1\r\nHost: b\r\n{bearer}\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{{}}"
    assert (await served.ask(zipped))[0] == 200, "nothing is decompressed"
    assert served.changes == 2
    client = await served.connect()
    await client.send(f"{chunked}5\r\n{{")
    client.writer.close()
    assert await is_served(served)


async def test_a_part_of_the_path_and_the_methods_of_a_path(make_served: type) -> None:
    served: Served = await make_served()
    for path in ("/things/5", "/things/5/"):
        assert (await served.ask(f"GET {path} HTTP/1.1\r\nHost: b\r\n\r\n"))[2] == b"5"
    _, headers, body = await served.ask("PUT /things/5 HTTP/1.1\r\nHost: b\r\n\r\n")
    assert headers["allow"] == "DELETE, GET"
    assert json.loads(body)["error"] == "the methods of this path are DELETE, GET"


async def test_pipelined_requests_are_answered_in_order(make_served: type) -> None:
    served: Served = await make_served()
    client = await served.connect()
    await client.send("GET /get HTTP/1.1\r\nHost: b\r\n\r\nGET /no HTTP/1.1\r\nHost: b\r\n\r\n" * 50)
    assert [(await client.answer())[0] for _ in range(100)] == [200, 404] * 50


async def test_slow_requests_bodies_and_answers_end(make_served: type) -> None:
    limits = AdminLimits(request_s_max=0.3, body_s_max=0.3, answer_s_max=2)
    served: Served = await make_served(limits)
    silent = await served.connect()
    head = await served.connect()
    await head.send("GET /get HTTP/1.1\r\nX: ")
    second = await served.connect()
    await second.send("GET /get HTTP/1.1\r\nHost: b\r\n\r\n")
    assert (await second.answer())[0] == 200
    await second.send("GET /get HT")
    assert await head.ended() == b""
    assert await second.ended() == b""
    assert (await served.ask("GET /never HTTP/1.1\r\nHost: b\r\n\r\n"))[0] == 503
    body = f"PUT /change HTTP/1.1\r\nHost: b\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 5\r\n\r\n{{"
    assert (await served.ask(body))[0] == 408
    await silent.send("GET /get HTTP/1.1\r\nHost: b\r\n\r\n")
    assert (await silent.answer())[0] == 200, "a connection may be idle for longer than that"


async def test_an_idle_connection_ends_later(make_served: type) -> None:
    served: Served = await make_served(AdminLimits(idle_s_max=0.2))
    client = await served.connect()
    assert await client.ended() == b""


async def test_headers_without_an_end_are_cut_off(make_served: type) -> None:
    served: Served = await make_served(AdminLimits(head_bytes_max=20_000))
    client = await served.connect()
    await client.send("GET /get HTTP/1.1\r\n")
    for number in range(60):
        await client.send(f"X{number}: {'x' * 1000}\r\n")
        await asyncio.sleep(0)
    assert await client.ended() == b""
    assert await is_served(served)


async def test_a_new_connection_replaces_the_longest_idle_one(make_served: type) -> None:
    served: Served = await make_served(AdminLimits(connections_max=3))
    busy = await served.connect()
    await busy.send("GET /never HTTP/1.1\r\nHost: b\r\n\r\n")
    first = await served.connect()
    await first.send("GET /get HTTP/1.1\r\nHost: b\r\n\r\n")
    await first.answer()
    second = await served.connect()
    await second.send("GET /get HTTP/1.1\r\nHost: b\r\n\r\n")
    await second.answer()
    assert await is_served(served)
    assert await first.ended() == b""
    await second.send("GET /never HTTP/1.1\r\nHost: b\r\n\r\n")
    third = await served.connect()
    await third.send("GET /never HTTP/1.1\r\nHost: b\r\n\r\n")
    refused = await served.connect()
    await refused.send("GET /get HTTP/1.1\r\nHost: b\r\n\r\n")
    assert (await refused.ended() == b"") or third.reader.at_eof()


async def ask_without_reading(served: Served) -> Client:
    client = await served.connect()
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    await client.send("GET /large HTTP/1.1\r\nHost: b\r\n\r\n")
    return client


async def read_at_last(client: Client) -> int:
    client.writer.transport.resume_reading()  # type: ignore[attr-defined]
    return len(await client.ended())


async def test_a_client_that_does_not_read_is_cut_off(make_served: type, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    served: Served = await make_served(AdminLimits(write_s_max=0.3))
    client = await ask_without_reading(served)
    await until(lambda: "does not read its answer" in caplog.text)
    assert await read_at_last(client) < LARGE
    assert await is_served(served)


async def test_answers_that_are_not_read_have_a_limit_together(
    make_served: type, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    served: Served = await make_served(AdminLimits(unread_bytes_max=2 * LARGE + 1000))
    slowest = await ask_without_reading(served)
    others = [await ask_without_reading(served) for _ in range(2)]
    await until(lambda: "does not read its answer" in caplog.text)
    lengths = [await read_at_last(slowest)]
    for client in others:
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        lengths.append(len((await client.answer())[2]))
    assert lengths[0] < LARGE
    assert lengths[1:] == [LARGE, LARGE]


async def test_a_socket_needs_no_token(tmp_path: Path) -> None:
    async def change(_: AdminRequest) -> AdminAnswer:
        return text_answer("done")

    server = AdminServer([Route("PUT", "/change", change, changes=True)])
    path = str(tmp_path / "s")
    await server.open_local(listen_unix, path)
    assert os.stat(path).st_mode & 0o777 == 0o600
    reader, writer = await asyncio.open_unix_connection(path)
    client = Client(reader, writer)
    await client.send("PUT /change HTTP/1.1\r\nHost: b\r\n\r\n")
    assert (await client.answer())[2] == b"done"
    writer.close()
    await server.close()
    assert not os.path.lexists(path)


@pytest.mark.parametrize("chunk_bytes", [100, 10_000, 8 << 20])
@pytest.mark.parametrize(("token", "status"), [(TOKEN, 413), ("wrong", 401)])
async def test_a_long_chunked_body_gets_an_answer(make_served: type, chunk_bytes: int, token: str, status: int) -> None:
    served: Served = await make_served()
    chunks = b"%x\r\n%s\r\n" % (chunk_bytes, b"x" * chunk_bytes) * (1 + (1 << 20) // chunk_bytes)
    head = f"PUT /change HTTP/1.1\r\nHost: b\r\nAuthorization: Bearer {token}\r\nTransfer-Encoding: chunked\r\n\r\n"
    client = await served.connect()
    sending = asyncio.ensure_future(client.send(head.encode() + chunks + b"0\r\n\r\n"))
    assert (await client.answer())[0] == status
    await sending
    await client.send("GET /get HTTP/1.1\r\nHost: b\r\n\r\n")
    assert (await client.answer())[0] == 200, "the rest of the body is not a request"
    assert served.changes == 0


@pytest.mark.parametrize(
    ("header", "is_known"),
    [
        *((None, True), ("127.0.0.1:8080", True), ("10.1.2.3", True), ("[::1]:80", True), ("::1", True)),
        *(
            ("localhost:8080", True),
            ("B1.Example.com.:1", True),
            ("b1", False),
            ("", False),
            ("127.0.0.1.evil.com", False),
        ),
        *(("evil.com", False), ("b1.example.com.evil.com", False), ("[b1.example.com]x", True), ("0x7f.1", False)),
    ],
)
def test_names_of_this_machine(header: str | None, is_known: bool) -> None:
    assert is_known_host(header, frozenset({"b1.example.com"})) is is_known
    assert is_known_host(header, frozenset({"*"}))


async def test_a_page_in_a_browser_cannot_read_over_a_name_of_its_own(make_served: type) -> None:
    """DNS rebinding: the name of the page resolves to the address of the bookie, and the browser sends that name."""
    served: Served = await make_served()
    for text in ("GET /get HTTP/1.1\r\nHost: evil.example:1\r\n\r\n", served.put("Host: evil.example")):
        status, _, body = await served.ask(text.replace("Host: b\r\n", ""))
        assert (status, json.loads(body)["problem"]) == (403, "refused")
        assert b"set adminHostNames" in body
        assert b"evil" not in body
    assert await is_served(served)
