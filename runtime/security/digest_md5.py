"""SASL DIGEST-MD5 (RFC 2831), both sides, for authentication only (qop ``auth``). Source: wire section 12.2."""

from __future__ import annotations

import enum
import hashlib
import hmac
import re
from collections.abc import Callable, Mapping
from typing import ClassVar, Final

from bkctl.runtime.errors import AuthenticationError
from bkctl.runtime.security_config import LoginMechanism

REALM: Final = "bookkeeper"
"""Realm of a bookie's users; Java uses the same word as service and server name."""
_DIGEST_URI: Final = "bookkeeper/bookkeeper"
_FIRST_COUNT: Final = "00000001"
_QOP: Final = "auth"
_ALGORITHM: Final = "md5-sess"
_TOKEN_BYTES_MAX: Final = 4096
"""RFC 2831, 2.1.2. It bounds what a hostile token costs."""

_DIRECTIVE: Final = re.compile(
    rb"""[\s,]*([!#-'*+.0-9A-Z^-z|~-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s",]+))[\s]*(?:,[\s,]*|\Z)""", re.DOTALL
)
_ESCAPED: Final = re.compile(rb"\\(.)", re.DOTALL)
_TO_ESCAPE: Final = re.compile(r'(["\\])')


class DigestMd5Client:
    """The client's side. ``nonce``: random text that no other login uses."""

    mechanism: ClassVar = LoginMechanism.DIGEST_MD5

    def __init__(self, username: str, password: str, nonce: str) -> None:
        self._username = username
        self._password = password
        self._cnonce = nonce
        self._expected: str | None = None
        self._is_complete = False

    @property
    def is_complete(self) -> bool:
        """Whether the bookie has proven that it knows the password, too."""
        return self._is_complete

    def first_token(self) -> bytes:
        """Empty: the bookie begins."""
        return b""

    def answer(self, token: bytes) -> bytes:
        """The response to the challenge; nothing to the bookie's proof."""
        directives = _directives(token, "the bookie", repeatable="realm")
        if self._expected is None:
            return self._respond(directives)
        if self._is_complete or not hmac.compare_digest(_one(directives, "rspauth").encode(), self._expected.encode()):
            raise AuthenticationError("the bookie does not know the password of this user: it may be an impostor")
        self._is_complete = True
        return b""

    def _respond(self, directives: Mapping[str, list[bytes]]) -> bytes:
        is_utf8 = _has_utf8(directives)
        nonce = _one(directives, "nonce")
        if _one(directives, "algorithm") != _ALGORITHM:
            raise AuthenticationError(f"the bookie asks for another algorithm than {_ALGORITHM}")
        offered = _optional(directives, "qop", _QOP).split(",")
        if _QOP not in {each.strip() for each in offered}:
            raise AuthenticationError("the bookie asks for encryption by SASL, which is not supported: use TLS")
        realm = _decoded(directives.get("realm", [b""])[0], is_utf8=is_utf8)
        user = (self._username, realm, self._password)
        exchange = (nonce, self._cnonce, "")
        self._expected = proof(user, exchange, f":{_DIGEST_URI}")
        fields = [
            f"username={_quoted(self._username)}",
            *([f"realm={_quoted(realm)}"] if "realm" in directives else []),
            f"nonce={_quoted(nonce)}",
            f"nc={_FIRST_COUNT}",
            f'cnonce="{self._cnonce}"',
            f'digest-uri="{_DIGEST_URI}"',
            f"response={proof(user, exchange, f'AUTHENTICATE:{_DIGEST_URI}')}",
            f"qop={_QOP}",
        ]
        if is_utf8:
            return ",".join(["charset=utf-8", *fields]).encode()
        try:
            return ",".join(fields).encode("latin-1")
        except UnicodeEncodeError as error:
            raise AuthenticationError("the bookie does not accept user names outside of ISO 8859-1") from error


class _Stage(enum.Enum):
    CHALLENGE = enum.auto()
    RESPONSE = enum.auto()
    END = enum.auto()


class DigestMd5Bookie:
    """The bookie's side. ``is_allowed``: whether a user may use the bookie at all; ``nonce``: see the client."""

    def __init__(self, passwords: Mapping[str, str], is_allowed: Callable[[str], bool], nonce: str) -> None:
        self._passwords = passwords
        self._is_allowed = is_allowed
        self._nonce = nonce
        self._step = _Stage.CHALLENGE
        self._identity: str | None = None

    @property
    def identity(self) -> str | None:
        """The user, once it has proven itself."""
        return self._identity

    def answer(self, token: bytes) -> bytes:
        """The challenge, then the proof that this bookie knows the password."""
        step, self._step = self._step, _Stage.END  # an error ends the login
        if step is _Stage.CHALLENGE:
            if token:
                raise AuthenticationError("a client began a login with a token of another mechanism than DIGEST-MD5")
            self._step = _Stage.RESPONSE
            challenge = f'realm="{REALM}",nonce="{self._nonce}",qop="{_QOP}",charset=utf-8,algorithm={_ALGORITHM}'
            return challenge.encode()
        if step is _Stage.END:
            raise AuthenticationError("a client went on after the end of a login")
        return self._verify(_directives(token, "a client"))

    def _verify(self, directives: Mapping[str, list[bytes]]) -> bytes:
        is_utf8 = _has_utf8(directives)
        username = _decoded(_only(directives, "username"), is_utf8=is_utf8)
        realm = _decoded(directives.get("realm", [b""])[0], is_utf8=is_utf8)
        authorization = directives.get("authzid", [b""])[0].decode(errors="replace")
        self._check_terms(directives, realm)
        # An unknown user costs as much time as a wrong password.
        user = (username, realm, self._passwords.get(username, self._nonce))
        exchange = (self._nonce, _one(directives, "cnonce"), authorization)
        uri = _one(directives, "digest-uri")
        expected = proof(user, exchange, f"AUTHENTICATE:{uri}")
        is_right = hmac.compare_digest(_one(directives, "response").encode(), expected.encode())
        shown = ascii(username[:64])
        if username not in self._passwords:
            raise AuthenticationError(f"the user {shown} is unknown: add user_NAME to the JAAS section")
        if not is_right:
            raise AuthenticationError(f"wrong password of the user {shown}")
        if authorization not in {"", username}:
            raise AuthenticationError(f"the user {shown} asks to act as {authorization[:64]!a}")
        if not self._is_allowed(username):
            raise AuthenticationError(f"the user {shown} does not match saslJaasClientAllowedIds")
        self._identity = username
        return f"rspauth={proof(user, exchange, f':{uri}')}".encode()

    def _check_terms(self, directives: Mapping[str, list[bytes]], realm: str) -> None:
        if not hmac.compare_digest(_only(directives, "nonce"), self._nonce.encode()):
            raise AuthenticationError("a client answered the challenge of another login")
        wanted = {"nc": _FIRST_COUNT, "qop": _QOP, "digest-uri": _DIGEST_URI}
        found = {"nc": _one(directives, "nc"), "qop": _optional(directives, "qop", _QOP)}
        found["digest-uri"] = _one(directives, "digest-uri").lower()
        wrong = [name for name, value in wanted.items() if found[name] != value] + (["realm"] if realm != REALM else [])
        if wrong:
            raise AuthenticationError(f"the {' and '.join(wrong)} of a client's login is not what this bookie expects")


def _directives(token: bytes, sender: str, repeatable: str | None = None) -> dict[str, list[bytes]]:
    """The values of a token by name; AuthenticationError."""
    if len(token) > _TOKEN_BYTES_MAX:
        raise AuthenticationError(f"{sender} sent a login token of {len(token)} bytes; the limit is {_TOKEN_BYTES_MAX}")
    found: dict[str, list[bytes]] = {}
    at = 0
    while at < len(token):
        match = _DIRECTIVE.match(token, at)
        if match is None:
            raise AuthenticationError(f"{sender} sent a login token that is not DIGEST-MD5")
        name = match[1].decode().lower()
        if name in found and name != repeatable:
            raise AuthenticationError(f"{sender} sent a login token with {name} twice")
        value = match[3] if match[2] is None else _ESCAPED.sub(rb"\1", match[2])
        found.setdefault(name, []).append(value)
        at = match.end()
    return found


def _only(directives: Mapping[str, list[bytes]], name: str) -> bytes:
    values = directives.get(name)
    if values is None:
        raise AuthenticationError(f"a login token without {name} was received")
    return values[0]


def _one(directives: Mapping[str, list[bytes]], name: str) -> str:
    """A value that is ASCII by definition, or only compared."""
    return _only(directives, name).decode("latin-1")


def _optional(directives: Mapping[str, list[bytes]], name: str, default: str) -> str:
    return _one(directives, name) if name in directives else default


def _has_utf8(directives: Mapping[str, list[bytes]]) -> bool:
    charset = _optional(directives, "charset", "")
    if charset.lower() not in {"", "utf-8"}:
        raise AuthenticationError("a login token with an unknown charset was received")
    return charset != ""


def _decoded(value: bytes, *, is_utf8: bool) -> str:
    try:
        return value.decode("utf-8" if is_utf8 else "latin-1")
    except UnicodeDecodeError as error:
        raise AuthenticationError("a login token that is not UTF-8 was received") from error


def _quoted(text: str) -> str:
    return '"' + _TO_ESCAPE.sub(r"\\\1", text) + '"'


def proof(user: tuple[str, str, str], exchange: tuple[str, str, str], action: str) -> str:
    """What only one who knows the password can compute: 32 hexadecimal digits (RFC 2831, 2.1.2.1).

    ``user``: name, realm and password; ``exchange``: nonce, cnonce and authorization id; ``action``: differs by side.
    """
    nonce, cnonce, authorization = exchange
    secret = _md5(b":".join(map(_hashed_text, user)))
    a1 = b":".join([secret, nonce.encode("latin-1"), cnonce.encode("latin-1")])
    if authorization:
        a1 += b":" + authorization.encode()
    parts = [_md5(a1).hex(), nonce, _FIRST_COUNT, cnonce, _QOP, _md5(action.encode("latin-1")).hex()]
    return _md5(":".join(parts).encode("latin-1")).hex()


def _hashed_text(text: str) -> bytes:
    """ISO 8859-1 where that is possible, also if the token itself is UTF-8."""
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        return text.encode()


def _md5(data: bytes) -> bytes:
    return hashlib.md5(data, usedforsecurity=False).digest()
