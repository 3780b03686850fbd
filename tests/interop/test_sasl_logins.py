"""Logins with the JDK's own SASL on the other side: DIGEST-MD5, and GSSAPI with a real KDC."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path

import pytest

from bkctl.runtime.errors import AuthenticationError, ConfigurationError
from bkctl.runtime.optional_packages import has_package
from bkctl.runtime.security.exchange import BookieExchange, ClientExchange
from bkctl.runtime.security.login import bookie_logins, client_logins
from bkctl.runtime.security_config import BookieLoginConfig, ClientLoginConfig, LoginMechanism
from tests.interop.sasl_peer import JavaPeer
from tests.kerberos import REALM, Realm, missing_programs

USERS = [
    ("bookkeeper-operator", "sesame"),
    ('bookkeeper "\\quoted\\", with=signs', 'pass"\\word,='),
    ("bookkeeper-é", "ÿ-in-latin-1"),
    ("bookkeeper-Ж", "пароль"),
    ("bookkeeper-mixed-é", "parol-Ж"),
]


def log_in_at_java(exchange: ClientExchange, peer: JavaPeer) -> str:
    """The whole login of our client; the last line of Java's bookie."""
    peer.send(exchange.first_token())
    while not exchange.is_complete:
        answer = exchange.answer(peer.token())
        if answer or not exchange.is_complete:
            peer.send(answer)
    line = peer.receive()
    return peer.receive() if line == "" else line


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


# -- GSSAPI -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def kerberos(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Realm:
    """A realm that the libraries of this process use, with a client's ticket."""
    if missing := missing_programs():
        pytest.skip(f"not installed: {', '.join(missing)} (Debian: krb5-kdc krb5-admin-server krb5-user)")
    if not has_package("gssapi"):
        pytest.skip("not installed: gssapi (pip install 'bkctl[kerberos]')")
    started: Realm = request.getfixturevalue("realm")
    for name, value in started.variables.items():
        monkeypatch.setenv(name, value)
    return started


def kerberos_bookie(kerberos: Realm, tmp_path: Path, **settings: str) -> BookieExchange:
    path = tmp_path / "jaas.conf"
    path.write_text(
        "Bookie {\n  com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true\n"
        f'  keyTab="{kerberos.bookie_keytab}" principal="{kerberos.bookie_principal}";\n}};\n'
    )
    return bookie_logins(BookieLoginConfig(jaas_file=str(path), **settings))()


def kerberos_client(host: str = "localhost", **settings: str) -> ClientExchange:
    return client_logins(ClientLoginConfig(mechanism=LoginMechanism.GSSAPI, **settings), {})(host)


def java_flags(kerberos: Realm, tmp_path: Path, keytab: Path, principal: str, *, is_initiator: bool) -> tuple[str, ...]:
    path = tmp_path / "peer.conf"
    path.write_text(
        "Peer {\n  com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true\n"
        f'  isInitiator={str(is_initiator).lower()} keyTab="{keytab}" principal="{principal}";\n}};\n'
    )
    return (f"-Djava.security.auth.login.config={path}", f"-Djava.security.krb5.conf={kerberos.configuration}")


def test_our_client_logs_in_at_our_bookie_with_kerberos(kerberos: Realm, tmp_path: Path) -> None:
    bookie, client = kerberos_bookie(kerberos, tmp_path), kerberos_client()
    token = client.first_token()
    for _ in range(2):
        token = client.answer(bookie.answer(token))
    assert client.is_complete
    assert bookie.identity is None
    assert bookie.answer(token) == b""
    assert bookie.identity == kerberos.client_principal


def test_our_client_logs_in_at_java_with_kerberos(kerberos: Realm, tmp_path: Path) -> None:
    flags = java_flags(kerberos, tmp_path, kerberos.bookie_keytab, kerberos.bookie_principal, is_initiator=False)
    with JavaPeer("server", "GSSAPI", host="localhost", jvm_flags=flags) as peer:
        client = kerberos_client(principal=kerberos.client_principal)
        assert log_in_at_java(client, peer) == f"done {kerberos.client_principal}"


@pytest.mark.parametrize("has_authorization", [False, True])
def test_java_logs_in_at_our_bookie_with_kerberos(kerberos: Realm, tmp_path: Path, has_authorization: bool) -> None:
    exchange = kerberos_bookie(kerberos, tmp_path)
    flags = java_flags(kerberos, tmp_path, kerberos.client_keytab, kerberos.client_principal, is_initiator=True)
    authorization = kerberos.client_principal if has_authorization else ""
    with JavaPeer("client", "GSSAPI", host="localhost", authorization=authorization, jvm_flags=flags) as peer:
        while exchange.identity is None:
            peer.send(exchange.answer(peer.token()))
    assert exchange.identity == kerberos.client_principal


def test_a_kerberos_login_that_is_not_allowed(kerberos: Realm, tmp_path: Path) -> None:
    refusals = [
        ({"allowed_ids": "bookkeeper/.*"}, f"{kerberos.client_principal} does not match saslJaasClientAllowedIds"),
        ({"service": "hdfs"}, f"has a ticket for bookkeeper/localhost@{REALM}, not for the service hdfs"),
    ]
    for settings, reason in refusals:
        bookie, client = kerberos_bookie(kerberos, tmp_path, **settings), kerberos_client()
        token = client.first_token()
        for _ in range(2):
            token = client.answer(bookie.answer(token))
        with pytest.raises(AuthenticationError, match=reason):
            bookie.answer(token)
        assert bookie.identity is None


def test_a_client_without_a_ticket(kerberos: Realm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{tmp_path}/none")
    with pytest.raises(AuthenticationError, match=r"no Kerberos login at bookkeeper@localhost: .*; check klist"):
        kerberos_client().first_token()


def test_a_host_that_the_kdc_does_not_know(kerberos: Realm) -> None:
    with pytest.raises(AuthenticationError, match=r"no Kerberos login at bookkeeper@localhost\.invalid: "):
        kerberos_client("localhost.invalid").first_token()


def test_a_keytab_without_the_principal(kerberos: Realm, tmp_path: Path) -> None:
    path = tmp_path / "jaas.conf"
    path.write_text(
        "Bookie {\n  com.sun.security.auth.module.Krb5LoginModule required\n"
        f'  keyTab="{kerberos.client_keytab}" principal="{kerberos.bookie_principal}";\n}};\n'
    )
    with pytest.raises(ConfigurationError, match=f"{kerberos.client_keytab} has no usable key of bookkeeper/localhost"):
        bookie_logins(BookieLoginConfig(jaas_file=str(path)))
