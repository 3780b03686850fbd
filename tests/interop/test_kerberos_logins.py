"""Logins with GSSAPI: a real KDC, and the JDK's own SASL on the other side."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bkctl.runtime.errors import AuthenticationError, ConfigurationError
from bkctl.runtime.security.exchange import BookieExchange, ClientExchange
from bkctl.runtime.security.login import bookie_logins, client_logins
from bkctl.runtime.security_config import BookieLoginConfig, ClientLoginConfig, LoginMechanism
from tests.interop.sasl_peer import JavaPeer, log_in_at_java
from tests.kerberos import REALM, Realm
from tests.processes import LOOPBACK


@pytest.fixture
def kerberos(realm: Realm, monkeypatch: pytest.MonkeyPatch) -> Realm:
    """A realm that the libraries of this process use, with a client's ticket."""
    for name, value in realm.variables.items():
        monkeypatch.setenv(name, value)
    return realm


def kerberos_bookie(kerberos: Realm, tmp_path: Path, **settings: str) -> BookieExchange:
    path = tmp_path / "jaas.conf"
    path.write_text(
        "Bookie {\n  com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true\n"
        f'  keyTab="{kerberos.bookie_keytab}" principal="{kerberos.bookie_principal}";\n}};\n'
    )
    return bookie_logins(BookieLoginConfig(jaas_file=str(path), **settings))()


def kerberos_client(host: str = LOOPBACK, **settings: str) -> ClientExchange:
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
    with JavaPeer("server", "GSSAPI", host=LOOPBACK, jvm_flags=flags) as peer:
        client = kerberos_client(principal=kerberos.client_principal)
        assert log_in_at_java(client, peer) == f"done {kerberos.client_principal}"


@pytest.mark.parametrize("has_authorization", [False, True])
def test_java_logs_in_at_our_bookie_with_kerberos(kerberos: Realm, tmp_path: Path, has_authorization: bool) -> None:
    exchange = kerberos_bookie(kerberos, tmp_path)
    flags = java_flags(kerberos, tmp_path, kerberos.client_keytab, kerberos.client_principal, is_initiator=True)
    authorization = kerberos.client_principal if has_authorization else ""
    with JavaPeer("client", "GSSAPI", host=LOOPBACK, authorization=authorization, jvm_flags=flags) as peer:
        while exchange.identity is None:
            peer.send(exchange.answer(peer.token()))
    assert exchange.identity == kerberos.client_principal


def test_a_kerberos_login_that_is_not_allowed(kerberos: Realm, tmp_path: Path) -> None:
    refusals = [
        ({"allowed_ids": "bookkeeper/.*"}, f"{kerberos.client_principal} does not match saslJaasClientAllowedIds"),
        ({"service": "hdfs"}, f"has a ticket for bookkeeper/{LOOPBACK}@{REALM}, not for the service hdfs"),
    ]
    for changed, reason in refusals:
        bookie, client = kerberos_bookie(kerberos, tmp_path, **changed), kerberos_client()
        token = client.first_token()
        for _ in range(2):
            token = client.answer(bookie.answer(token))
        with pytest.raises(AuthenticationError, match=reason):
            bookie.answer(token)
        assert bookie.identity is None


def test_a_client_without_a_ticket(kerberos: Realm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{tmp_path}/none")
    with pytest.raises(AuthenticationError, match=rf"no Kerberos login at bookkeeper@{LOOPBACK}: .*; check klist"):
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
    with pytest.raises(
        ConfigurationError, match=f"{kerberos.client_keytab} has no usable key of bookkeeper/{LOOPBACK}"
    ):
        bookie_logins(BookieLoginConfig(jaas_file=str(path)))


@pytest.mark.parametrize("token", [b"x", b"junk", b"\x60" + b"\xff" * 40])
def test_tokens_that_are_not_kerberos(kerberos: Realm, tmp_path: Path, token: bytes) -> None:
    with pytest.raises(AuthenticationError, match=r"a client's Kerberos login failed: \w+ \w+ \w+"):
        kerberos_bookie(kerberos, tmp_path).answer(token)
    client = kerberos_client()
    client.first_token()
    with pytest.raises(AuthenticationError, match=rf"bookkeeper@{LOOPBACK} failed to prove its principal: \w+ \w+"):
        client.answer(token)
    assert not client.is_complete


def test_a_client_of_the_other_mechanism(kerberos: Realm, tmp_path: Path) -> None:
    client = client_logins(ClientLoginConfig(username="a", password="env:SECRET"), {"SECRET": "b"})(LOOPBACK)
    with pytest.raises(AuthenticationError, match="began a login without a token; does it use DIGEST-MD5"):
        kerberos_bookie(kerberos, tmp_path).answer(client.first_token())


def test_a_token_that_is_sent_twice(kerberos: Realm, tmp_path: Path) -> None:
    token = kerberos_client().first_token()
    assert kerberos_bookie(kerberos, tmp_path).answer(token)
    with pytest.raises(AuthenticationError, match="Request is a replay"):
        kerberos_bookie(kerberos, tmp_path).answer(token)


def test_a_token_beyond_the_limit(kerberos: Realm, tmp_path: Path) -> None:
    client = kerberos_client()
    client.first_token()
    for side in (kerberos_bookie(kerberos, tmp_path), client):
        with pytest.raises(AuthenticationError, match="token of 16777216 bytes was received; the limit is 65536"):
            side.answer(b"x" * (1 << 24))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(place=st.integers(0, 9999), flip=st.integers(1, 255))
def test_a_changed_ticket_is_refused(kerberos: Realm, tmp_path: Path, place: int, flip: int) -> None:
    token = bytearray(kerberos_client().first_token())
    token[place % len(token)] ^= flip
    bookie = kerberos_bookie(kerberos, tmp_path)
    try:
        bookie.answer(bytes(token))  # some bytes, such as those of options, change nothing
    except AuthenticationError as error:
        assert "Kerberos login failed: " in str(error)  # noqa: PT017
    assert bookie.identity is None


def test_a_wrong_choice_after_the_ticket(kerberos: Realm, tmp_path: Path) -> None:
    bookie, client = kerberos_bookie(kerberos, tmp_path), kerberos_client()
    offer = bookie.answer(client.answer(bookie.answer(client.first_token())))
    with pytest.raises(AuthenticationError, match="Kerberos login failed"):
        bookie.answer(offer)  # its own token, sent back
    assert bookie.identity is None
