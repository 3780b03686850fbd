"""Server side of a connection that may start TLS, and may have to log in before it is served. Source: wire section 12.

A connection without TLS and logins is a plain ``ServerConnection``, which does no work for any of this.
"""

from __future__ import annotations

import asyncio
import enum
import ssl
from typing import Final

from bkctl.runtime.errors import AuthenticationError
from bkctl.runtime.net.bookie_security import (
    AUTH_MESSAGES_MAX,
    HANDSHAKE_BYTES,
    HANDSHAKE_S_MAX,
    HANDSHAKES_MAX,
    TOKEN_BYTES_MAX,
    BookieSecurity,
    ProtectionFailure,
)
from bkctl.runtime.net.server_connection import ServerConnection, Shared
from bkctl.runtime.net.standstill import Standing
from bkctl.runtime.net.tls_failures import client_failure
from bkctl.runtime.net.tls_upgrade import pass_on
from bkctl.runtime.protocol.codec import handshake_answer
from bkctl.runtime.protocol.framing import READ_BYTES
from bkctl.runtime.protocol.messages import AuthAnswer, AuthCall, HandshakeCall, RefusedCall, StartTlsCall
from bkctl.runtime.protocol.status import Status
from bkctl.runtime.security.alerting_context import route_alert
from bkctl.runtime.security.exchange import PLUGIN, BookieExchange

_TLS_HANDSHAKE: Final = 0x16
"""First byte of a ClientHello. A frame begins with it only from 352 MiB on."""
_EARLY_AUTH_S: Final = 1.0
"""How long a first AUTH in clear text waits for START_TLS, if TLS is required: Java's client sends both at once, from
two threads, so either may come first."""
_REFUSED_S: Final = 1.0
"""How long a client that is refused may read the answer: it closes the connection itself."""
_SHUTDOWN_S: Final = 5.0
"""How long a peer may take to confirm the end of TLS."""


class _Step(enum.Enum):
    CLEAR = enum.auto()
    AGREED = enum.auto()
    """START_TLS is answered. Frames that came in the same read are served, their answers wait for TLS."""
    HELLO = enum.auto()
    """A further read must begin with the TLS handshake. Java clients may send their first AUTH before it."""
    UPGRADING = enum.auto()
    TLS = enum.auto()


_SHAKING: Final = frozenset({_Step.AGREED, _Step.HELLO, _Step.UPGRADING})


class SecuredConnection(ServerConnection):
    """Serves requests once the client has done what ``security`` requires; until then it answers them with EUA."""

    def __init__(self, shared: Shared, security: BookieSecurity) -> None:
        super().__init__(shared)
        self._security = security
        self._step = _Step.CLEAR
        self._login: BookieExchange | None = None
        self._auth_count = 0
        self._has_logged_in = security.begin_login is None
        self._is_admitted = self._has_logged_in and not security.is_tls_required
        self._is_refused = False
        self._is_refusal_logged = False
        self._has_handshake_memory = False
        self._early_auth: AuthCall | None = None
        self._early_wait: asyncio.TimerHandle | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._upgrade: asyncio.Task[None] | None = None

    # Called by the transport.

    def connection_lost(self, exc: Exception | None) -> None:
        """Also end a handshake or login in progress."""
        if self._step in _SHAKING:
            self._note_failed_handshake(ProtectionFailure.CLOSED, "the client closed the connection in a handshake")
        elif self._login is not None and not self._has_logged_in and not self._is_refused:
            self._note_failed_login(ProtectionFailure.CLOSED, "the client closed the connection during its login")
        self._stop_deadline()
        self._stop_early_wait()
        super().connection_lost(exc)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Buffer for the next bytes: a short one for clients that are not admitted yet, and for TLS handshakes."""
        if self._is_admitted and self._step not in _SHAKING:
            return super().get_buffer(sizehint)
        return self._splitter.free_space(READ_BYTES)

    def buffer_updated(self, nbytes: int) -> None:
        """Serve the complete requests."""
        if self._step is _Step.AGREED:
            self._step = _Step.HELLO
        super().buffer_updated(nbytes)

    def resume_writing(self) -> None:
        """The peer reads its answers again. Answers after START_TLS wait until they can travel inside TLS."""
        if self._step not in _SHAKING:
            super().resume_writing()

    # What a plain connection does, before a client is admitted.

    def _next_payloads(self) -> list[bytes]:
        is_tls_next = self._step is _Step.HELLO or self._step is _Step.AGREED
        if is_tls_next and self._splitter.next_byte == _TLS_HANDSHAKE:
            self._begin_upgrade()
            return []
        return super()._next_payloads()

    def _decode(self, payloads: list[bytes]) -> None:
        for index, payload in enumerate(payloads):
            if self._is_admitted and self._step is not _Step.HELLO:
                super()._decode(payloads[index:])
                return
            if self._is_refused:
                return
            self._turn_room -= 1
            self._take_early(payload)

    def _take_early(self, payload: bytes) -> None:
        """A message that comes before the client is admitted, or in clear text instead of a TLS handshake."""
        call = self._codec.decode_before_login(payload)
        if isinstance(call, AuthCall):
            self._take_auth(call)
        elif self._step is _Step.HELLO:
            self._end_handshake(ProtectionFailure.CLEAR_TEXT, "it sent a request where a TLS handshake must begin")
        elif isinstance(call, StartTlsCall):
            self._agree(call)
        else:
            if isinstance(call, RefusedCall):
                self._note_refused_request()
            self._dispatch(call)

    def _shake_hands(self, call: HandshakeCall) -> None:
        if isinstance(call, StartTlsCall):
            self._agree(call)
        else:
            super()._shake_hands(call)

    def _standing(self) -> Standing | None:
        if self._step in _SHAKING:
            return None  # a handshake has its own deadline
        if not self._is_admitted:
            return Standing("has not done what this bookie requires: TLS, a login or a certificate with a role", 0, 0)
        return super()._standing()

    def _may_read(self) -> bool:
        return self._step is not _Step.UPGRADING and super()._may_read()

    # TLS.

    def _agree(self, call: StartTlsCall) -> None:
        contexts, transport = self._security.contexts, self._transport
        if contexts is None:
            self._send_answer(call, Status.BAD_REQUEST)
            return
        if transport is None:
            return
        self._queue.flush()
        if self._step is not _Step.CLEAR:
            self._end_handshake(ProtectionFailure.PROTOCOL, "it sent START_TLS twice")
        elif self._queue.is_blocked:
            self._end_handshake(ProtectionFailure.PROTOCOL, "it sent START_TLS and does not read earlier responses")
        else:
            if (replaced := self._security.handshakes.enter(self)) is not None:
                replaced.give_way()
            self._has_handshake_memory = True
            self._stop_early_wait()
            self._begin_request(HANDSHAKE_BYTES)
            transport.write(self._codec.encode(call, Status.OK))
            self._queue.block()
            self._step = _Step.AGREED
            self._start_deadline()

    def _begin_upgrade(self) -> None:
        self._step = _Step.UPGRADING
        hello = self._splitter.take_rest()
        self.pause_reading()
        self._upgrade = self._loop.create_task(self._start_tls())
        # The task's first step passes reading to the TLS protocol, from the end of the next round of the loop on. What
        # was read so far must come before that.
        self._loop.call_soon(self._loop.call_soon, self._feed, hello)

    def _feed(self, hello: bytes) -> None:
        if self._transport is not None and self._transport.get_protocol() is not self:
            pass_on(self._transport, hello)

    async def _start_tls(self) -> None:
        contexts, transport = self._security.contexts, self._transport
        if transport is None or contexts is None:
            return
        context = contexts.current()
        route_alert(context, self._loop, transport.write)
        try:
            secured = await self._loop.start_tls(
                transport,
                self,
                context,
                server_side=True,
                ssl_handshake_timeout=HANDSHAKE_S_MAX,
                ssl_shutdown_timeout=_SHUTDOWN_S,
            )
            if secured is None or secured.is_closing():
                raise ConnectionResetError
        except OSError as error:
            # The frame that awaited the handshake keeps the error: a cycle with hundreds of KiB of buffers.
            error.__traceback__ = None
            self._end_handshake(_failure(error), client_failure(error))
            self.connection_lost(None)  # the transport calls it only after a handshake
            return
        self._leave_handshakes()
        self._stop_deadline()
        self._security.measures.handshakes_count += 1
        self._transport, self._step = secured, _Step.TLS
        self._queue.connect(secured)
        secured.pause_reading()  # as the transport before
        self._enter_tls(secured.get_extra_info("ssl_object"))

    def _enter_tls(self, ssl_object: ssl.SSLObject) -> None:
        reason = self._security.refused_role(ssl_object.getpeercert(binary_form=True))
        if reason is not None:
            self._note_failed_login(ProtectionFailure.ROLE, reason)
        elif self._has_logged_in:
            self._is_admitted = True
        elif self._early_auth is not None:
            self._continue_login(self._early_auth)
        elif self._login is not None:
            self._start_deadline()
        self.resume_writing()
        if self._is_refused:
            self._refuse()

    # Logins.

    def _take_auth(self, call: AuthCall) -> None:
        self._auth_count += 1
        if self._auth_count > AUTH_MESSAGES_MAX:
            self._note_failed_login(ProtectionFailure.LIMIT, f"more than {AUTH_MESSAGES_MAX} messages of a login")
            self.abort()
        elif self._has_logged_in:
            is_answered = not self._security.authorized_roles
            self._send_answer(call, handshake_answer(call) if is_answered else Status.UNAUTHORIZED)
        else:
            self._continue_login(call)

    def _continue_login(self, call: AuthCall) -> None:
        begin = self._security.begin_login
        assert begin is not None, "without logins, every client has logged in"
        login = self._login or begin()
        is_for_tls = self._security.is_tls_required and self._step is _Step.CLEAR
        if call.plugin_name == PLUGIN and is_for_tls and self._auth_count == 1:
            self._early_auth = call
            self._early_wait = self._loop.call_later(_EARLY_AUTH_S, self._refuse_auth, call)
            return
        if call.plugin_name != PLUGIN or is_for_tls:
            self._refuse_auth(call)
            return
        if self._login is None:
            self._login = login
            self._start_deadline()
        try:
            token = login.answer(_limited(call.token))
        except AuthenticationError as error:
            self._note_failed_login(ProtectionFailure.REFUSED, str(error))
            self._send_answer(call, Status.UNAUTHORIZED)
            self._refuse()
            return
        self._send_answer(call, AuthAnswer(call.txn_id, Status.OK, PLUGIN, token))
        if login.identity is not None:
            self._security.measures.logins_count += 1
            self._has_logged_in = True
            self._is_admitted = self._step is _Step.TLS or not self._security.is_tls_required
            if self._step not in _SHAKING:
                self._stop_deadline()

    def _refuse_auth(self, call: AuthCall) -> None:
        self._early_auth = None
        self._note_refused_request()
        self._send_answer(call, Status.UNAUTHORIZED)

    def _stop_early_wait(self) -> None:
        if self._early_wait is not None:
            self._early_wait.cancel()
            self._early_wait = None

    def _refuse(self) -> None:
        """Close the connection after its last answer, which may have to wait for TLS.

        Not at once: requests may follow the last token of a login, and unread ones would reset the connection before
        the client has read the answer.
        """
        self._is_refused = True
        self._splitter.drop()
        if self._step not in _SHAKING:
            self._stop_deadline()
            self._deadline = self._loop.call_later(_REFUSED_S, self.close)

    # Deadlines, limits, counts.

    def _start_deadline(self) -> None:
        if self._deadline is None:
            self._deadline = self._loop.call_later(HANDSHAKE_S_MAX, self._end_late)

    def _stop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _end_late(self) -> None:
        if self._step in _SHAKING:
            self._end_handshake(ProtectionFailure.TIMEOUT, f"no TLS handshake within {HANDSHAKE_S_MAX:g} s")
        else:
            self._note_failed_login(ProtectionFailure.TIMEOUT, f"no complete login within {HANDSHAKE_S_MAX:g} s")
            self._is_refused = True
            self.abort()

    def give_way(self) -> None:
        """End the handshake: another one takes its place."""
        self._end_handshake(ProtectionFailure.LIMIT, f"{HANDSHAKES_MAX} other handshakes are in progress, the maximum")

    def _end_handshake(self, failure: ProtectionFailure, reason: str) -> None:
        self._note_failed_handshake(failure, reason)
        self.abort()

    def _note_failed_handshake(self, failure: ProtectionFailure, reason: str) -> None:
        """Once per connection: what follows from the end of a handshake is no further failure."""
        if not self._is_refused:
            self._is_refused = True
            self._security.measures.failed_handshakes[failure] += 1
            self._shared.log.report(f"TLS handshake with {self.peer} failed", reason)
        self._leave_handshakes()

    def _note_failed_login(self, failure: ProtectionFailure, reason: str) -> None:
        self._security.measures.failed_logins[failure] += 1
        self._shared.log.report(f"login from {self.peer} refused", reason)

    def _note_refused_request(self) -> None:
        self._security.measures.refused_requests_count += 1
        if not self._is_refusal_logged:
            self._is_refusal_logged = True
            is_clear = self._security.is_tls_required and self._step is not _Step.TLS
            reason = "this bookie requires TLS" if is_clear else "this bookie requires a login"
            if self._security.authorized_roles and not is_clear:
                reason = "the role of its certificate is not in authorized_roles"
            self._shared.log.report(f"request from {self.peer} refused", reason)

    def _leave_handshakes(self) -> None:
        self._security.handshakes.leave(self)
        if self._has_handshake_memory:
            self._has_handshake_memory = False
            self._end_request(HANDSHAKE_BYTES)


def _limited(token: bytes) -> bytes:
    if len(token) > TOKEN_BYTES_MAX:
        raise AuthenticationError(f"a login token of {len(token)} bytes exceeds the limit")
    return token


def _failure(error: OSError) -> ProtectionFailure:
    if isinstance(error, ssl.SSLCertVerificationError):
        return ProtectionFailure.CERTIFICATE
    if not isinstance(error, ssl.SSLError):
        return ProtectionFailure.CLOSED
    is_of_certificate = "CERTIFICATE" in (error.reason or "") or "UNKNOWN_CA" in (error.reason or "")
    return ProtectionFailure.CERTIFICATE if is_of_certificate else ProtectionFailure.PROTOCOL
