"""Client side of a connection to a bookie: connects once, sends frames, receives frames. Source: wire section 1."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import socket
import ssl
from abc import abstractmethod
from collections.abc import Awaitable, Callable
from typing import TypeAlias, cast

from bkctl.runtime.errors import AuthenticationError, ConfigurationError, ProtocolError
from bkctl.runtime.net.client_handshake import (
    ClientHandshake,
    ClientSecurity,
    login_settings,
    refusal_sentence,
    refused_login,
)
from bkctl.runtime.net.tls_failures import alert_sentence, closed_sentence
from bkctl.runtime.protocol.framing import FrameSplitter
from bkctl.runtime.protocol.status import Status
from bkctl.runtime.protocol.v3_handshake import StartTlsAnswer, decode_handshake_answer
from bkctl.runtime.security_config import BookieClientConfig, LoginMechanism
from bkctl.storage.errors import BkctlError

logger = logging.getLogger(__name__)

Resolver: TypeAlias = Callable[[str], Awaitable[tuple[str, int]]]
"""Returns host and port of a bookie id; raises BookieNotFoundError and similar if it has none."""

_WRITE_BYTES = 64 * 1024
"""Requests of a loop tick are sent in writes of this size, so the bookie can start on the first ones early."""

_WRITE_BUFFER_BYTES_MAX = 32 * 1024
"""Smaller than a write: uvloop sends immediately above this limit, otherwise at the end of the tick."""

_UNSENT_BYTES_ALWAYS = 4 * 1024 * 1024
"""Every bookie may have this much unsent, whatever is unsent to others: slow bookies must not affect fast ones.
"""


class UnsentBytes:
    """Counts the unsent bytes to all bookies of a client."""

    def __init__(self, per_bookie_max: int, total_max: int) -> None:
        self.per_bookie_max = per_bookie_max
        self.total_max = total_max
        self.total = 0

    def has_room(self, waiting_bytes: int, frame_bytes: int) -> bool:
        """Whether a frame may be queued after ``waiting_bytes`` of the same bookie; the first one always may."""
        if waiting_bytes == 0:
            return True
        wanted_bytes = waiting_bytes + frame_bytes
        return wanted_bytes <= self.per_bookie_max and (
            self.total + frame_bytes <= self.total_max or wanted_bytes <= _UNSENT_BYTES_ALWAYS
        )


@dataclasses.dataclass(frozen=True)
class SharedByConnections:
    """What all connections of a client share."""

    frame_bytes_max: int
    unsent: UnsentBytes
    read_buffer: memoryview
    client: BookieClientConfig
    security: ClientSecurity | None
    """None: clear text, no login."""
    refusals: dict[str, str] = dataclasses.field(default_factory=dict)
    """Why bookies did not accept the last connection or request, for those that did not."""
    closed_in_tls: set[str] = dataclasses.field(default_factory=set)
    """Bookies that closed the last connection before the first answer in TLS: they may reject the certificate."""

    @property
    def is_expired(self) -> bool:
        """Whether this client's certificate has expired."""
        return self.security is not None and self.security.is_expired


class FrameConnection(asyncio.BufferedProtocol):
    """Sends frames to one bookie. Frames sent before the connection is established are queued.

    It connects once. If it fails or is lost, it calls ``on_lost``, then all pending requests end; the owner creates a
    new one. Frames of a loop tick are sent in one write.
    """

    _is_close_a_sign = True
    """Whether a bookie that closes the connection before its first answer in TLS may reject the certificate."""

    def __init__(
        self,
        bookie_id: str,
        shared: SharedByConnections,
        on_lost: Callable[[FrameConnection], None],
    ) -> None:
        self.bookie_id = bookie_id
        self._frame_bytes_max = shared.frame_bytes_max
        self._unsent_in_all = shared.unsent
        self._shared = shared
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._splitter = FrameSplitter(shared.frame_bytes_max, shared.read_buffer)
        self._transport: asyncio.Transport | None = None
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0
        self._is_flush_scheduled = False
        self._is_writing_paused = False
        self._lost_reason: str | None = None
        self._lost_status = Status.UNAVAILABLE
        self._has_received = False
        self._is_login_pending = False
        self._may_answer_handshake = False
        self._connecting: asyncio.Task[None] | None = None
        self._transport_closed: asyncio.Future[None] = self._loop.create_future()

    @property
    @abstractmethod
    def has_pending(self) -> bool:
        """Whether any request is unanswered."""

    @property
    def is_client_refused(self) -> bool:
        """Whether it ended because the bookie and this client do not accept each other."""
        return self._lost_status is Status.AUTHENTICATION_REQUIRED

    @abstractmethod
    def _expire(self, adds_below: int, others_below: int) -> None:
        """Time out adds, and other requests, with smaller transaction ids."""

    @abstractmethod
    def _take(self, payloads: list[bytes]) -> None:
        """Deliver answers; ProtocolError ends the connection."""

    @abstractmethod
    def _end_pending(self, reason: str) -> None:
        """The connection is lost: end all pending requests with ``_lost_status``."""

    def refuse(self, reason: str) -> None:
        """Do not connect: every request ends with UNAVAILABLE."""
        self._lose(reason)

    def connect(self, resolve: Resolver, timeout_s: float) -> None:
        """Start connecting."""
        self._connecting = self._loop.create_task(self._connect(resolve, timeout_s))

    def expire(self, adds_below: int, others_below: int) -> None:
        """Time out all requests with smaller transaction ids; ids ascend in the order of sending."""
        self._expire(adds_below, others_below)
        if self._unsent and not self.has_pending:
            self._drop_unsent()  # their requests have timed out

    async def close(self) -> None:
        """Fail all pending requests, close, and wait until the socket is closed."""
        self._lose("the client was closed")
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait([self._connecting])
        if self._transport is not None:
            await self._transport_closed

    # Called by the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the queued requests."""
        self._transport = cast("asyncio.Transport", transport)
        if self._lost_reason is not None:
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES_MAX)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail all pending requests."""
        self._note_closed()
        security = self._shared.security
        if self._has_received:
            self._shared.closed_in_tls.discard(self.bookie_id)
        elif security is not None and security.config.tls is not None:
            if isinstance(exc, ssl.SSLError):
                self._refuse(alert_sentence(exc, security.config.tls, is_expired=security.is_expired))
            elif self._is_close_a_sign:
                self._note_close_in_tls(closed_sentence(security.config.tls, is_expired=security.is_expired))
        self._lose(f"the connection was lost: {exc}" if exc is not None else "the bookie closed the connection")

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  the splitter knows how much it needs
        """Buffer for the next bytes."""
        return self._splitter.free_space()

    def buffer_updated(self, nbytes: int) -> None:
        """Deliver all complete answers."""
        self._has_received = True
        self._splitter.advance(nbytes)
        try:
            while payloads := self._splitter.payloads():
                if self._may_answer_handshake:
                    payloads = self._without_handshake(payloads)
                self._take(payloads)
                if self._shared.refusals and self._lost_reason is None:
                    self._shared.refusals.pop(self.bookie_id, None)
        except ProtocolError as error:
            logger.warning("connection to bookie %s closed: %s", self.bookie_id, error)
            self._lose(str(error))

    def _without_handshake(self, payloads: list[bytes]) -> list[bytes]:
        """The payloads after those that belong to the handshake, which may end the connection."""
        while payloads and self._ends_handshake(payloads[0]):
            payloads = payloads[1:]
        self._may_answer_handshake = not payloads
        return payloads

    def _ends_handshake(self, payload: bytes) -> bool:
        """Whether it answers the last token of a login, which only GSSAPI has, or is Java's late answer to START_TLS:
        the client is not authenticated, or not yet (wire 12.3)."""
        try:
            answer = decode_handshake_answer(payload)
        except ProtocolError:
            return False  # an answer in v2
        if answer is None:
            return False
        security = self._shared.security
        if security is not None and answer.status is not Status.OK:
            if not isinstance(answer, StartTlsAnswer) and self._is_login_pending:
                self._refuse(refused_login(security.config, LoginMechanism.GSSAPI))
            elif isinstance(answer, StartTlsAnswer) and security.new_login is None:
                self._refuse_request()
        return True

    def pause_writing(self) -> None:
        """Queue frames until the bookie reads again."""
        self._is_writing_paused = True

    def resume_writing(self) -> None:
        """Send the queued frames."""
        self._is_writing_paused = False
        while self._unsent and not self._is_writing_paused and self._transport is not None:
            self._transport.write(self._next_piece())

    def _next_piece(self) -> bytes:
        """The first queued frames, enough for one write. More would be copied again by each attempt."""
        count = piece_bytes = 0
        while count < len(self._unsent) and piece_bytes < _WRITE_BYTES:
            piece_bytes += len(self._unsent[count])
            count += 1
        piece = b"".join(self._unsent[:count])
        del self._unsent[:count]
        self._count_unsent(-piece_bytes)
        return piece

    def _drop_unsent(self) -> None:
        self._unsent.clear()
        self._count_unsent(-self._unsent_bytes)

    def _count_unsent(self, change_bytes: int) -> None:
        self._unsent_bytes += change_bytes
        self._unsent_in_all.total += change_bytes

    async def _connect(self, resolve: Resolver, timeout_s: float) -> None:
        where = self.bookie_id
        try:
            async with asyncio.timeout(timeout_s):
                host, port = await resolve(self.bookie_id)
                where = f"{host}:{port}"
                if self._shared.security is None:
                    await self._open(host, port)
                else:
                    await self._connect_securely(host, port, self._shared.security)
        except TimeoutError:
            self._lose(f"no connection to {where} within {timeout_s:g} s")
        except (OSError, ValueError, OverflowError) as error:  # the last two: an invalid host or port
            self._lose(f"cannot connect to {where}: {reason_of_failure(error)}")
        except (AuthenticationError, ConfigurationError) as error:
            self._refuse(str(error))
        except BkctlError as error:
            self._lose(str(error))
        finally:
            if self._transport is None:
                self._lose("connecting ended without a connection")  # for any other reason: leave no request pending

    async def _open(self, host: str, port: int) -> None:
        try:
            await self._loop.create_connection(lambda: self, host, port)
        except BaseException:  # also a cancellation after connection_made: uvloop then closes without connection_lost
            self._note_closed()
            raise

    def _note_closed(self) -> None:
        if not self._transport_closed.done():
            self._transport_closed.set_result(None)

    async def _connect_securely(self, host: str, port: int, security: ClientSecurity) -> None:
        """Connect, start TLS and log in before any request is sent."""
        handshake = ClientHandshake(self._splitter, security)
        transport: asyncio.Transport
        transport, _ = await self._loop.create_connection(lambda: handshake, host, port)
        try:
            secured = await handshake.run(transport, host)
        except BaseException as error:
            transport.abort()
            if isinstance(error, ConnectionError) and security.config.tls is not None and handshake.is_in_tls:
                self._note_close_in_tls(closed_sentence(security.config.tls, is_expired=security.is_expired))
            if isinstance(error, asyncio.CancelledError) and handshake.begun_login is not None:
                # A Java bookie does not answer a login that it refuses (wire 12.2).
                self._refuse(f"it does not answer the login{login_settings(security.config, handshake.begun_login)}")
            raise
        self._is_login_pending = handshake.is_verdict_pending
        self._may_answer_handshake = True
        secured.set_protocol(self)
        self.connection_made(secured)

    def _send(self, frame: bytes) -> tuple[Status, str] | None:
        """Queue a frame, or return the reason why not."""
        if self._lost_reason is not None:
            return self._lost_status, self._lost_reason
        if len(frame) > self._frame_bytes_max:
            return Status.BAD_REQUEST, f"a request of {len(frame)} bytes does not fit into a frame"
        if not self._unsent_in_all.has_room(self._unsent_bytes, len(frame)):
            return Status.TOO_MANY_REQUESTS, f"{self._unsent_bytes} bytes wait to be sent"
        self._queue([frame], len(frame))
        return None

    def _send_all(self, frames: list[bytes]) -> bool:
        """Queue frames, all or none."""
        size_bytes = sum(map(len, frames))
        if (
            self._lost_reason is not None
            or max(map(len, frames)) > self._frame_bytes_max
            or not self._unsent_in_all.has_room(self._unsent_bytes, size_bytes)
        ):
            return False
        self._queue(frames, size_bytes)
        return True

    def _queue(self, frames: list[bytes], size_bytes: int) -> None:
        if not self._is_flush_scheduled:
            self._is_flush_scheduled = True
            self._loop.call_soon(self._flush)
        self._unsent += frames
        self._count_unsent(size_bytes)
        if self._unsent_bytes >= _WRITE_BYTES:
            self._flush()

    def _flush(self) -> None:
        self._is_flush_scheduled = False
        if self._unsent and self._transport is not None and not self._is_writing_paused:
            frames, self._unsent = self._unsent, []
            self._count_unsent(-self._unsent_bytes)
            self._transport.write(b"".join(frames))

    def _refuse(self, sentence: str) -> None:
        """End this connection, because the bookie and this client do not accept each other."""
        if self._lost_reason is None and self._shared.refusals.get(self.bookie_id) != sentence:
            self._shared.refusals[self.bookie_id] = sentence
            logger.warning("bookie %s: %s", self.bookie_id, sentence)
        self._lose(sentence, Status.AUTHENTICATION_REQUIRED)

    def _refuse_request(self) -> None:
        """The bookie accepted the connection, and refuses what is asked on it.

        It would do so for ever: roles are examined once, in the handshake. A new connection shows the present files.
        """
        self._refuse(refusal_sentence(self._shared.client))

    def _note_close_in_tls(self, sentence: str) -> None:
        """The first time this may be a bookie that ends; the second time in succession it is a refusal."""
        if self._lost_reason is not None:
            return
        if self.bookie_id in self._shared.closed_in_tls:
            self._refuse(sentence)
        self._shared.closed_in_tls.add(self.bookie_id)
        self._lose(sentence)

    def _lose(self, reason: str, status: Status = Status.UNAVAILABLE) -> None:
        """End this connection and its requests; does nothing the second time."""
        if self._lost_reason is not None:
            return
        self._lost_reason, self._lost_status = reason, status
        self._on_lost(self)
        if self._transport is not None:
            self._transport.abort()
        self._drop_unsent()
        self._end_pending(reason)


def reason_of_failure(error: Exception) -> str:
    """Why a connection failed, in the words of the system, without its number."""
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return str(error)
