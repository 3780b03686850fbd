"""Servers that a registration names as the admin port of a bookie, and that are none: every user of ZooKeeper can write
such a registration. They must not learn the token, fill the memory of a command, or end it with a traceback.
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bkctl.runtime.admin.calls import ANSWER_BYTES_MAX
from tests.commands.bookie.registered_server import LoopbackServer, register_admin_port
from tests.processes import LOOPBACK, BkctlResult, run_bkctl

pytestmark = pytest.mark.cluster

VICTIM = "192.0.2.7:3181"  # an address for documentation: nothing ever listens there
TOKEN = "correct horse"
MODE = {"mode": "writable", "reasons": [], "registered": True, "operator": None}
STATE = {"bookie_id": VICTIM, "version": "bkctl 1", "running": True, "stopping": False, **MODE}
STATE |= {"accepts_recovery_writes": True}
ENDLESS_BYTES = 256 * 1024 * 1024
"""Where an endless answer of these tests ends."""

Answer = Callable[[socket.socket, str], None]


class Impostor(LoopbackServer):
    """An HTTP server on loopback. ``requests``: what it received; ``sent_bytes``: of endless answers."""

    def __init__(self, metadata_uri: str, bookie_id: str, answer: Answer) -> None:
        self.requests: list[str] = []
        self.sent_bytes = 0
        self.bookie_id = bookie_id
        self.answer = answer
        self._metadata_uri = metadata_uri
        super().__init__()

    def register(self) -> None:
        register_admin_port(self._metadata_uri, self.bookie_id, LOOPBACK, self.port)

    def run(self, *words: str, **variables: str) -> BkctlResult:
        variables["BKCTL_METADATA_URI"] = self._metadata_uri
        return run_bkctl("bookie", *words, self.bookie_id, "--timeout", "20s", timeout_s=60, **variables)

    def stream_endlessly(self, connection: socket.socket, _: str) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n[")
        block = b"0," * (1 << 19)
        with contextlib.suppress(OSError):
            while self.sent_bytes < ENDLESS_BYTES:
                self.sent_bytes += connection.send(block)

    def serve(self, connection: socket.socket) -> None:
        request = bytearray()
        while b"\r\n\r\n" not in request and (part := connection.recv(65536)):
            request += part
        self.requests.append(request.decode())
        self.answer(connection, request.decode().split(" ", 2)[1])


def says(value: object) -> Answer:
    """One answer for all requests."""
    body = value if isinstance(value, bytes) else json.dumps(value).encode()

    def answer(connection: socket.socket, _: str) -> None:
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        connection.sendall(head.encode() + body)

    return answer


@pytest.fixture
def impostor(metadata_uri: str) -> Iterator[Impostor]:
    server = Impostor(metadata_uri, VICTIM, says(STATE))
    try:
        server.register()
        yield server
    finally:
        server.close()


@pytest.fixture
def token_file(tmp_path: Path) -> str:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    return str(path)


def test_the_token_goes_to_no_address_that_only_a_registration_names(impostor: Impostor, token_file: str) -> None:
    looked = impostor.run("state", BKCTL_ADMIN_TOKEN_FILE=token_file)
    assert looked.exit_code == 0, looked.stderr
    for words, answer in (
        (("set-mode", "read-only", "--yes"), says(STATE)),
        (("gc", "run"), gc_answers),
        (("stop", "--yes"), says(STATE)),
    ):
        impostor.answer = answer
        refused = impostor.run(*words, "--token-file", token_file)
        assert (refused.exit_code, refused.stdout) == (11, ""), (words, refused)
        assert "the token is not sent in clear text to admin port" in refused.stderr
        assert f"set BKCTL_ADMIN_TOKEN_HOSTS={LOOPBACK}:{impostor.port}" in refused.stderr
    assert impostor.requests
    assert not any("authorization" in each.lower() or TOKEN in each for each in impostor.requests)


@pytest.mark.parametrize(("given", "is_sent"), [("a, 127.0.0.1:{}", True), ("127.0.0.1", True), ("127.0.0.1:1", False)])
def test_the_token_goes_to_an_address_that_the_operator_names_and_only_with_changes(
    impostor: Impostor, token_file: str, given: str, is_sent: bool
) -> None:
    hosts = given.format(impostor.port)
    impostor.run("set-mode", "read-only", "--yes", BKCTL_ADMIN_TOKEN_FILE=token_file, BKCTL_ADMIN_TOKEN_HOSTS=hosts)
    with_token = [each.split(" ", 1)[0] for each in impostor.requests if f"Bearer {TOKEN}" in each]
    assert with_token == (["PUT"] if is_sent else [])
    assert impostor.requests


@pytest.mark.parametrize("bookie_id", ["localhost:3181", "127.0.0.1:3181", "b1"])
def test_the_token_does_not_go_to_the_host_of_the_id_in_clear_text(
    metadata_uri: str, token_file: str, bookie_id: str
) -> None:
    """Every user of that host could listen on the port that the registration names."""
    with contextlib.closing(Impostor(metadata_uri, bookie_id, says(STATE | {"bookie_id": bookie_id}))) as server:
        server.register()
        refused = server.run("set-mode", "read-only", "--yes", "--token-file", token_file)
        assert refused.exit_code == 11
        assert server.requests
        assert not any(f"Bearer {TOKEN}" in each for each in server.requests)


def gc_answers(connection: socket.socket, path: str) -> None:
    says({"is_in_force_gc": "false"} if path == "/api/v1/bookie/gc" else STATE)(connection, path)


@pytest.mark.parametrize("words", [("state",), ("ready",), ("metrics",)])
def test_an_endless_answer_is_cut_off(impostor: Impostor, words: tuple[str, ...]) -> None:
    impostor.answer = impostor.stream_endlessly
    result = impostor.run(*words)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        f"error: bookie {VICTIM}: the answer from admin port {LOOPBACK}:{impostor.port} is longer than "
        f"{ANSWER_BYTES_MAX >> 20} MiB, so this is not the admin interface of a bookie\n"
    )
    assert impostor.sent_bytes < ENDLESS_BYTES / 4  # with what the kernel's buffers hold


STRANGE = {
    "empty": b"",
    "text": b"hello",
    "binary": bytes(range(256)),
    "number": 5,
    "list": [],
    "nested": b"[" * 500_000,
    "object": {},
    "wrong types": {**STATE, "bookie_id": 5},
    "huge numbers": {**STATE, "uptime_s": 10**400},
    "broken jobs": {**STATE, "jobs": [{"id": 1}]},
}


@pytest.mark.parametrize("name", sorted(STRANGE))
def test_strange_json_is_one_sentence(impostor: Impostor, name: str) -> None:
    impostor.answer = says(STRANGE[name])
    for words in (
        *(("state",), ("gc", "status"), ("gc", "run"), ("log-level", "debug"), ("set-mode", "read-only"), ("stop",)),
        ("index", "rebuild", "--online"),
    ):
        result = impostor.run(*words)
        assert (result.exit_code, result.stdout) == (1, ""), (words, result)
        said = result.stderr.splitlines()
        (line,) = (each for each in said if not each.startswith("waiting for ZooKeeper"))  # a busy machine
        assert line.startswith(f"error: bookie {VICTIM}: its answer is not that of a bookie's admin interface: "), words


@pytest.mark.parametrize("name", [*sorted(STRANGE), "OK"])
def test_what_is_no_bookie_is_not_ready(impostor: Impostor, name: str) -> None:
    """A web server may answer every path, and a check of another service with the word of a bookie."""
    impostor.answer = says(b"OK" if name == "OK" else STRANGE[name])
    for words in (("ready",), ("ready", "--started-within", "10m")):
        result = impostor.run(*words)
        assert (result.exit_code, result.stdout) == (1, ""), result
        not_a_bookie = f"error: bookie {VICTIM}: its answer is not that of a bookie's admin interface: "
        said = result.stderr.splitlines()[-1]  # on a busy machine it waits for ZooKeeper, and says so before
        assert said.startswith(not_a_bookie), result
    if name == "text":
        assert said == f"{not_a_bookie}it is not JSON, but begins with 'hello'"


def test_a_server_without_the_paths_of_a_bookie_is_not_ready(impostor: Impostor) -> None:
    def miss(connection: socket.socket, path: str) -> None:
        if path == "/api/v1/bookie/is_ready":
            says(b"OK")(connection, path)
        else:
            connection.sendall(b"HTTP/1.1 404 No\r\nConnection: close\r\n\r\n<html>")

    impostor.answer = miss
    result = impostor.run("ready")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        f"error: bookie {VICTIM}: the server at admin port {LOOPBACK}:{impostor.port} is not a bookie: it has no "
        "/api/v1/bookie/state\n"
    )


@pytest.mark.parametrize("body", [{}, "some words"])
def test_metrics_that_are_none_are_one_sentence(impostor: Impostor, body: object) -> None:
    impostor.answer = says(body)
    result = impostor.run("metrics", "--grep", "ADD")
    assert (result.exit_code, result.stdout) == (1, ""), result
    assert result.stderr.startswith(f"error: bookie {VICTIM}: its answer at admin port {LOOPBACK}:")
    assert result.stderr.endswith(" has no metrics\n")


def test_a_newer_server_may_answer_more(impostor: Impostor) -> None:
    impostor.answer = says({**STATE, "operator": {"since_ms": 1, "reason": "x", "by": "ann"}, "more": [1]})
    result = impostor.run("state")
    assert (result.exit_code, result.json()["set_reason"]) == (0, "x")


def test_strange_details_after_a_good_state(impostor: Impostor) -> None:
    for words in (("gc", "status"), ("gc", "suspend"), ("log-level", "debug")):
        result = impostor.run(*words)
        assert result.exit_code == 1, (words, result)
        assert "its answer is not that of a bookie's admin interface: Object missing required field" in result.stderr


def test_an_endless_token_file_is_refused(metadata_uri: str) -> None:
    refused = run_bkctl("bookie", "gc", "run", VICTIM, "--token-file", "/dev/zero", BKCTL_METADATA_URI=metadata_uri)
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
    assert "/dev/zero: it has more than 1 MiB" in refused.stderr


@pytest.mark.parametrize("body", [b"[" * 500_000, b'{"error": "%s"}' % (b"x" * 5_000_000)])
def test_errors_of_a_server_are_short_sentences(impostor: Impostor, body: bytes) -> None:
    def fail(connection: socket.socket, _: str) -> None:
        connection.sendall(b"HTTP/1.1 500 No\r\nConnection: close\r\n\r\n" + body)

    impostor.answer = fail
    result = impostor.run("state")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"error: bookie {VICTIM}: ")
    assert len(result.stderr) < 3000
