"""Client side of START_TLS and of a login, before the first request of a connection. Source: wire section 12.

It runs on a protocol of its own, so that connections without TLS and login do no extra work. Never falls back to clear
text: every step that does not succeed ends the connection.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import ssl
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Self, TypeVar

from bkctl.runtime.errors import AuthenticationError, ProtocolError
from bkctl.runtime.net.tls_failures import alert_sentence, handshake_sentence
from bkctl.runtime.protocol.framing import FrameSplitter
from bkctl.runtime.protocol.messages import AuthAnswer
from bkctl.runtime.protocol.status import Status
from bkctl.runtime.protocol.v3_handshake import (
    NO_PLUGIN,
    HandshakeAnswer,
    StartTlsAnswer,
    decode_handshake_answer,
    encode_auth_request,
    encode_start_tls_request,
)
from bkctl.runtime.security.exchange import PLUGIN, ClientExchange
from bkctl.runtime.security_config import BookieClientConfig, LoginMechanism

if TYPE_CHECKING:
    from bkctl.runtime.security.tls_contexts import TlsContexts

AnswerT = TypeVar("AnswerT", StartTlsAnswer, AuthAnswer)

NO_TLS: Final = "it does not use TLS: enable TLS on it, or remove bookie_client.tls"
"""The answer of a bookie to START_TLS means this."""

_TABLE: Final = "bookie_client.tls."
_ANSWERS_MAX: Final = 32
"""Maximum messages of a bookie before the first request: no login has as many steps."""


@dataclasses.dataclass(frozen=True)
class ClientSecurity:
    """How the connections of a client are protected."""

    config: BookieClientConfig
    contexts: TlsContexts | None
    """None: without TLS."""
    new_login: Callable[[str], ClientExchange] | None
    """None: no login."""

    @classmethod
    def of(cls, config: BookieClientConfig) -> Self | None:
        """Read the files of the settings; None for clear text without a login. ConfigurationError."""
        if config.tls is None and config.sasl is None:
            return None
        # Slow to import, and most commands need neither.
        from bkctl.runtime.security.login import client_logins  # noqa: PLC0415
        from bkctl.runtime.security.tls_contexts import client_contexts  # noqa: PLC0415

        contexts = None if config.tls is None else client_contexts(config.tls, os.environ)
        return cls(config, contexts, None if config.sasl is None else client_logins(config.sasl, os.environ))

    @property
    def is_expired(self) -> bool:
        """Whether this client's certificate has expired."""
        return self.contexts is not None and self.contexts.is_expired


def refusal_sentence(config: BookieClientConfig) -> str:
    """Why a bookie answers EUA to a request, without more knowledge than this client's settings."""
    if config.tls is None and config.sasl is None:
        return f"it serves only clients that use TLS or log in: set {config.name_of('tls')} or {config.name_of('sasl')}"
    if config.tls is None:
        return f"it accepted the login, but serves only clients with TLS: set {config.name_of('tls')}"
    if config.sasl is not None:
        return "it does not accept the identity of this client: see authorizedRoles and saslJaasClientAllowedIds there"
    if config.tls.certificate_file is None and config.tls.key_file is None:
        setting = config.tls.name_of("certificate", _TABLE)
        return f"it serves only clients with a certificate or a login: set {setting} or {config.name_of('sasl')}"
    setting = config.tls.name_of("certificate" if config.tls.certificate_file else "key", _TABLE)
    return (
        f"it does not accept the role of this client's certificate (first role in the OU, {setting}), or requires a "
        "login (bookie_client.sasl)"
    )


class ClientHandshake(asyncio.BufferedProtocol):
    """The messages before the first request. ``splitter`` is that of the connection, which takes over afterwards."""

    def __init__(self, splitter: FrameSplitter, security: ClientSecurity) -> None:
        self._splitter = splitter
        self._security = security
        self._answers: deque[HandshakeAnswer] = deque()
        self._answers_left = _ANSWERS_MAX
        self._end: Exception | None = None
        self._changed = asyncio.Event()
        self.is_in_tls = False
        """Whether the bookie has agreed to use TLS."""
        self.begun_login: LoginMechanism | None = None
        """The mechanism of a login whose first message the bookie has answered."""
        self.is_verdict_pending = False
        """Whether the last token is sent, which a bookie that refuses this client answers, and Java's others do not."""

    async def run(self, transport: asyncio.Transport, host: str) -> asyncio.Transport:
        """The transport for the requests, which may be a new one. AuthenticationError, OSError, ProtocolError."""
        if self._security.contexts is not None:
            transport = await self._start_tls(transport, self._security.contexts, host)
        if self._security.new_login is not None:
            await self._log_in(transport, self._security.new_login, host)
        elif self._answers:  # Java's late answer to START_TLS: no role of this client is allowed (wire 12.3)
            raise AuthenticationError(refusal_sentence(self._security.config))
        while transport.is_closing():  # the next protocol would not learn why
            if self._end is not None:
                raise self._end
            self._changed.clear()
            await self._changed.wait()
        return transport

    async def _start_tls(self, transport: asyncio.Transport, contexts: TlsContexts, host: str) -> asyncio.Transport:
        context = contexts.current()
        _write(transport, encode_start_tls_request())
        answer = await self._next(StartTlsAnswer)
        if answer.status is Status.BAD_REQUEST:
            raise AuthenticationError(NO_TLS)
        if answer.status is not Status.OK:
            raise AuthenticationError(f"it refuses TLS (bookie_client.tls): {answer.status.name}")
        if self._answers or self._splitter.has_waiting or self._splitter.unfinished_bytes:
            raise AuthenticationError("it sent unencrypted bytes where a TLS handshake is expected")
        self.is_in_tls = True
        loop = asyncio.get_running_loop()
        try:
            secured = await loop.start_tls(transport, self, context, server_hostname=host)
        except ssl.SSLError as error:
            sentence = handshake_sentence(error, self._security.config.tls, host, is_expired=self._security.is_expired)
            raise AuthenticationError(sentence) from error
        assert secured is not None
        return secured

    async def _log_in(
        self, transport: asyncio.Transport, new_login: Callable[[str], ClientExchange], host: str
    ) -> None:
        exchange = new_login(host)
        token = await asyncio.to_thread(exchange.first_token)  # GSSAPI may ask a server for a ticket
        answer = await self._auth(transport, token)
        while answer.plugin_name != NO_PLUGIN:
            self.begun_login = exchange.mechanism
            token = await asyncio.to_thread(exchange.answer, answer.payload)
            if exchange.is_complete:
                if token:  # the last one of GSSAPI, which a Java bookie does not answer; requests may follow at once
                    _write(transport, encode_auth_request(PLUGIN, token))
                    self.is_verdict_pending = True
                return
            answer = await self._auth(transport, token)

    async def _auth(self, transport: asyncio.Transport, token: bytes) -> AuthAnswer:
        """One step of a login; AuthenticationError if the bookie refuses it."""
        _write(transport, encode_auth_request(PLUGIN, token))
        answer = await self._next(AuthAnswer)
        if answer.status is not Status.OK:
            raise AuthenticationError(self._refused_login())
        if answer.plugin_name not in {PLUGIN, NO_PLUGIN}:
            raise AuthenticationError(f"it expects a login of the kind {answer.plugin_name}, not SASL")
        return answer

    def _refused_login(self) -> str:
        if self.begun_login is not None:
            return refused_login(self._security.config, self.begun_login)
        if self._security.contexts is None:
            return (
                f"it accepts no SASL login without TLS: set {self._security.config.name_of('tls')}, or remove "
                "bookie_client.sasl if it requires no login"
            )
        return "it accepts no SASL login: remove bookie_client.sasl"

    async def _next(self, expected: type[AnswerT]) -> AnswerT:
        """The next answer of this type; others belong to earlier messages, such as Java's late EIO (wire 12.3)."""
        while True:
            while self._answers:
                answer = self._answers.popleft()
                if isinstance(answer, expected):
                    return answer
            if self._end is not None:
                raise self._end
            self._changed.clear()
            await self._changed.wait()

    # Called by the transport.

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  the splitter knows how much it needs
        """Buffer for the next bytes."""
        return self._splitter.free_space()

    def buffer_updated(self, nbytes: int) -> None:
        """Keep the answers."""
        self._splitter.advance(nbytes)
        try:
            while self._end is None and (payloads := self._splitter.payloads(self._answers_left + 1)):
                self._answers_left -= len(payloads)
                if self._answers_left < 0:
                    self._answers.clear()
                    self._end = ProtocolError("it sends messages without end before the first request")
                else:
                    answers = map(decode_handshake_answer, payloads)
                    self._answers.extend(answer for answer in answers if answer is not None)
        except ProtocolError as error:
            self._end = error
        if self._end is not None:
            self._splitter.drop()
        self._changed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wake the handshake."""
        if isinstance(exc, ssl.SSLError):
            sentence = alert_sentence(exc, self._security.config.tls, is_expired=self._security.is_expired)
            self._end = AuthenticationError(sentence)
        else:
            self._end = exc or ConnectionResetError("the bookie closed the connection")
        self._changed.set()


def _write(transport: asyncio.Transport, frame: bytes) -> None:
    """Write a message, unless the connection is lost: uvloop raises RuntimeError then. The wait for its answer ends."""
    if not transport.is_closing():
        transport.write(frame)


def refused_login(config: BookieClientConfig, mechanism: LoginMechanism) -> str:
    """The sentence for a login that a bookie refuses."""
    return f"it refuses the login{login_settings(config, mechanism)}"


def login_settings(config: BookieClientConfig, mechanism: LoginMechanism) -> str:
    """What to check after a refused login, for the end of a sentence. ``mechanism``: a JAAS file may determine it."""
    login = config.sasl
    assert login is not None
    allowed = "saslJaasClientAllowedIds of the bookie"
    is_kerberos = mechanism is LoginMechanism.GSSAPI
    if login.jaas_file is not None:
        what = "ticket or keytab" if is_kerberos else "user and password"
        return (
            f": check the {what} of section {login.jaas_section} in {login.jaas_file} (bookie_client.sasl.jaas_file), "
            f"and {allowed}"
        )
    if is_kerberos:
        key = "the ticket (klist)" if login.keytab is None else f"the keytab (klist -k {login.keytab})"
        return f": check {key}, and {allowed}"
    return f" of {login.username}: check bookie_client.sasl.username and bookie_client.sasl.password, and {allowed}"
