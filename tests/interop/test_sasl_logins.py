"""Logins with DIGEST-MD5, with the JDK's own SASL on the other side."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path

import pytest

from bkctl.runtime.errors import AuthenticationError
from bkctl.runtime.security.exchange import BookieExchange, ClientExchange
from bkctl.runtime.security.login import bookie_logins, client_logins
from bkctl.runtime.security_config import BookieLoginConfig, ClientLoginConfig
from tests.interop.sasl_peer import JavaPeer, log_in_at_java

USERS = [
    ("bookkeeper-operator", "sesame"),
    ('bookkeeper "\\quoted\\", with=signs', 'pass"\\word,='),
    ("bookkeeper-é", "ÿ-in-latin-1"),
    ("bookkeeper-Ж", "пароль"),
    ("bookkeeper-mixed-é", "parol-Ж"),
]


def log_java_in(exchange: BookieExchange, peer: JavaPeer) -> str:
    """The whole login of Java's client; its last line."""
    line = peer.receive()
    while not line.startswith(("done", "failed")):
        if exchange.identity is None:
            peer.send(exchange.answer(base64.b64decode(line)))
        line = peer.receive()
    return line


def bookie_side(tmp_path: Path, users: list[tuple[str, str]]) -> Callable[[], BookieExchange]:
    options = "\n".join(
        '  "user_{}"="{}"'.format(*(text.replace("\\", "\\\\").replace('"', '\\"') for text in user)) for user in users
    )
    path = tmp_path / "jaas.conf"
    path.write_text(f"Bookie {{\n  org.example.DigestLoginModule required\n{options};\n}};\n")
    return bookie_logins(BookieLoginConfig(jaas_file=str(path)))


def client_side(username: str, password: str) -> ClientExchange:
    config = ClientLoginConfig(username=username, password="env:SECRET")
    return client_logins(config, {"SECRET": password})("bookie-1")


@pytest.mark.parametrize(("username", "password"), USERS)
def test_our_client_logs_in_at_java(username: str, password: str) -> None:
    with JavaPeer("server", "DIGEST-MD5", user=username, password=password) as peer:
        assert log_in_at_java(client_side(username, password), peer) == f"done {username}"


@pytest.mark.parametrize(("username", "password"), USERS)
@pytest.mark.parametrize("has_authorization", [False, True])
def test_java_logs_in_at_our_bookie(tmp_path: Path, username: str, password: str, has_authorization: bool) -> None:
    exchange = bookie_side(tmp_path, USERS)()
    authorization = username if has_authorization else ""
    with JavaPeer("client", "DIGEST-MD5", user=username, password=password, authorization=authorization) as peer:
        assert log_java_in(exchange, peer) == "done"
    assert exchange.identity == username


def test_java_refuses_our_wrong_password() -> None:
    with JavaPeer("server", "DIGEST-MD5", user="bookkeeper", password="right") as peer:
        exchange = client_side("bookkeeper", "wrong")
        peer.send(exchange.first_token())
        peer.send(exchange.answer(peer.token()))
        assert peer.receive().startswith("failed javax.security.sasl.SaslException: DIGEST-MD5: digest response")
    assert not exchange.is_complete


@pytest.mark.parametrize(
    ("username", "password", "authorization", "reason"),
    [
        ("bookkeeper", "wrong", "", "wrong password of the user 'bookkeeper'"),
        ("stranger", "right", "", "the user 'stranger' is unknown"),
        ("bookkeeper", "right", "root", "the user 'bookkeeper' asks to act as 'root'"),
        ("guest", "right", "", "the user 'guest' does not match saslJaasClientAllowedIds"),
    ],
)
def test_our_bookie_refuses_java(tmp_path: Path, username: str, password: str, authorization: str, reason: str) -> None:
    exchange = bookie_side(tmp_path, [("bookkeeper", "right"), ("guest", "right")])()
    with (
        JavaPeer("client", "DIGEST-MD5", user=username, password=password, authorization=authorization) as peer,
        pytest.raises(AuthenticationError, match=reason),
    ):
        log_java_in(exchange, peer)
    assert exchange.identity is None
