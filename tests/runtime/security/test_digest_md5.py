"""DIGEST-MD5: the example of RFC 2831, refusals, and hostile tokens."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bkctl.runtime.errors import AuthenticationError
from bkctl.runtime.security.digest_md5 import DigestMd5Bookie, DigestMd5Client, proof

USER, PASSWORD = "bookkeeper", "sesame"
CHALLENGE = b'realm="bookkeeper",nonce="n1",qop="auth",charset=utf-8,algorithm=md5-sess'
TEXT = st.text(min_size=1, max_size=40)


def bookie(passwords: dict[str, str] | None = None) -> DigestMd5Bookie:
    return DigestMd5Bookie({USER: PASSWORD} if passwords is None else passwords, lambda _: True, "bookie-nonce")


def response(username: str = USER, password: str = PASSWORD) -> bytes:
    """A client's answer to a new login at ``bookie()``."""
    return DigestMd5Client(username, password, "client-nonce").answer(bookie().answer(b""))


def waiting_bookie() -> DigestMd5Bookie:
    """A bookie that has sent its challenge."""
    waiting = bookie()
    waiting.answer(b"")
    return waiting


def test_the_example_of_the_rfc() -> None:
    """RFC 2831, part 4."""
    terms = ("OA6MG9tEQGm2hh", "OA6MHXh6VqTrRk", "")
    user = ("chris", "elwood.innosoft.com", "secret")
    uri = "imap/elwood.innosoft.com"
    assert proof(user, terms, f"AUTHENTICATE:{uri}") == "d388dad90d4bbd760a152321f2143af7"
    assert proof(user, terms, f":{uri}") == "ea40f60335c427b5527b84dbabcdfffd"


def test_a_login_word_by_word() -> None:
    server, client = bookie(), DigestMd5Client(USER, PASSWORD, "client-nonce")
    challenge = server.answer(client.first_token())
    assert challenge == b'realm="bookkeeper",nonce="bookie-nonce",qop="auth",charset=utf-8,algorithm=md5-sess'
    answer = client.answer(challenge)
    assert answer == (
        b'charset=utf-8,username="bookkeeper",realm="bookkeeper",nonce="bookie-nonce",nc=00000001,'
        b'cnonce="client-nonce",digest-uri="bookkeeper/bookkeeper",'
        b"response=RESPONSE,qop=auth"
    ).replace(b"RESPONSE", answer.split(b"response=")[1][:32])
    assert (server.identity, client.is_complete) == (None, False)
    assert client.answer(server.answer(answer)) == b""
    assert (server.identity, client.is_complete) == (USER, True)


@given(TEXT, TEXT)
def test_every_user_and_password(username: str, password: str) -> None:
    server, client = bookie({username: password}), DigestMd5Client(username, password, "n")
    client.answer(server.answer(client.answer(server.answer(b""))))
    assert client.is_complete
    assert server.identity == username


@given(TEXT, TEXT)
def test_no_other_password(password: str, other: str) -> None:
    if password == other:
        other += "x"
    server, client = bookie({USER: password}), DigestMd5Client(USER, other, "n")
    answer = client.answer(server.answer(b""))
    with pytest.raises(AuthenticationError, match="wrong password of the user 'bookkeeper'"):
        server.answer(answer)
    assert server.identity is None


@pytest.mark.parametrize(
    ("find", "replacement", "reason"),
    [
        (b"nonce=", b"Nonce=", None),  # names are not case-sensitive
        (b"bookie-nonce", b"other-nonce", "answered the challenge of another login"),
        (b"nc=00000001", b"nc=00000002", "the nc of a client's login"),
        (b"qop=auth", b"qop=auth-conf", "the qop of a client's login"),
        (b'realm="bookkeeper"', b'realm="other"', "the realm of a client's login"),
        (b"bookkeeper/bookkeeper", b"zookeeper/bookkeeper", "the digest-uri of a client's login"),
        (b"qop=auth", b'qop=auth,username="root"', "username twice"),
        (b'cnonce="client-nonce",', b"", "without cnonce"),
        (b'username="bookkeeper",', b"", "without username"),
        (b'"bookkeeper",realm', b'"\xff",realm', "not UTF-8"),
        (b"charset=utf-8", b"charset=utf-16", "unknown charset"),
        (b"qop=auth", b'qop="auth', "is not DIGEST-MD5"),
        (b"qop=auth", b'authzid="\xff\xfe"', "wrong password"),
    ],
)
def test_a_changed_response(find: bytes, replacement: bytes, reason: str | None) -> None:
    server = waiting_bookie()
    token = response()
    assert find in token
    changed = token.replace(find, replacement)
    if reason is None:
        assert server.answer(changed).startswith(b"rspauth=")
        return
    with pytest.raises(AuthenticationError, match=reason):
        server.answer(changed)
    with pytest.raises(AuthenticationError, match="after the end of a login"):  # no second try on the same nonce
        server.answer(token)
    assert server.identity is None


@pytest.mark.parametrize(
    ("challenge", "reason"),
    [
        (CHALLENGE.replace(b"md5-sess", b"md5"), "another algorithm than md5-sess"),
        (CHALLENGE.replace(b",algorithm=md5-sess", b""), "without algorithm"),
        (CHALLENGE.replace(b'qop="auth"', b'qop="auth-int,auth-conf"'), "asks for encryption by SASL"),
        (CHALLENGE + b',nonce="n2"', "nonce twice"),
        (CHALLENGE.replace(b',nonce="n1"', b""), "without nonce"),
        (b"", "without nonce"),
    ],
)
def test_a_challenge_that_the_client_refuses(challenge: bytes, reason: str) -> None:
    with pytest.raises(AuthenticationError, match=reason):
        DigestMd5Client(USER, PASSWORD, "n").answer(challenge)


def test_the_first_realm_counts_and_one_is_optional() -> None:
    several = CHALLENGE.replace(b'realm="bookkeeper"', b'realm="bookkeeper" , realm="other",')
    assert b'realm="bookkeeper"' in DigestMd5Client(USER, PASSWORD, "n").answer(several)
    without = CHALLENGE.replace(b'realm="bookkeeper",', b"")
    assert b"realm=" not in DigestMd5Client(USER, PASSWORD, "n").answer(without)


def test_without_utf8_names_are_latin_1() -> None:
    challenge = CHALLENGE.replace(b"charset=utf-8,", b"")
    assert b'username="\xe9"' in DigestMd5Client("é", PASSWORD, "n").answer(challenge)
    with pytest.raises(AuthenticationError, match="outside of ISO 8859-1"):
        DigestMd5Client("Ж", PASSWORD, "n").answer(challenge)


@pytest.mark.parametrize("end", [b"rspauth=" + b"0" * 32, b"rspauth=", "rspauth=é".encode()])
def test_a_bookie_that_does_not_know_the_password(end: bytes) -> None:
    client = DigestMd5Client(USER, PASSWORD, "n")
    client.answer(CHALLENGE)
    with pytest.raises(AuthenticationError, match=r"may be an impostor|is not DIGEST-MD5"):
        client.answer(end)
    assert not client.is_complete


def test_a_first_token_of_another_mechanism() -> None:
    with pytest.raises(AuthenticationError, match="another mechanism than DIGEST-MD5"):
        bookie().answer(b"\x60\x82")


def test_a_user_who_is_not_allowed() -> None:
    server = DigestMd5Bookie({USER: PASSWORD}, lambda name: name != USER, "bookie-nonce")
    server.answer(b"")
    with pytest.raises(AuthenticationError, match="does not match saslJaasClientAllowedIds"):
        server.answer(response())
    assert server.identity is None


def test_a_huge_token_costs_no_memory() -> None:
    token = b"a=b," * (4 * 1024 * 1024)
    server, client = waiting_bookie(), DigestMd5Client(USER, PASSWORD, "n")
    tracemalloc.start()
    try:
        for side in (server, client):
            with pytest.raises(AuthenticationError, match="16777216 bytes; the limit is 4096"):
                side.answer(token)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@given(
    st.binary(max_size=200) | st.lists(st.sampled_from([b"a", b"=", b'"', b",", b"\\", b" ", b"\xff"])).map(b"".join)
)
def test_any_bytes_end_the_login_with_our_error(token: bytes) -> None:
    for side in (waiting_bookie(), DigestMd5Client(USER, PASSWORD, "n")):
        with pytest.raises(AuthenticationError):
            side.answer(token)


@given(st.data())
def test_no_changed_byte_is_accepted_as_another_user(data: st.DataObject) -> None:
    token = bytearray(response())
    token[data.draw(st.integers(0, len(token) - 1))] = data.draw(st.integers(0, 255))
    server = waiting_bookie()
    try:
        server.answer(bytes(token))
    except AuthenticationError:
        assert server.identity is None
    else:
        assert server.identity == USER
