"""Connections of the admin interface: limits for what a slow, silent or hostile client may take.

aiohttp closes a silent connection; it has no limit for a request that never becomes complete, for the number of
connections, or for a client that does not read its answer. Without a middleware it answers a request that is not valid
HTTP or has a header ``Expect``, in words of its own that name its version.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final, TypeAlias

import msgspec
from aiohttp import StreamReader, web
from aiohttp.http_exceptions import HttpProcessingError

from bkctl.runtime.admin.messages import AdminAnswer, AdminError, Problem, error_answer
from bkctl.runtime.net.connection_room import ConnectionRoom, Replaceable

HttpHandler: TypeAlias = Callable[[Any], Awaitable[web.StreamResponse]]
"""Answers a request of aiohttp."""

_UPGRADES: Final = frozenset({"websocket", "tcp"})
"""Protocols to which aiohttp would switch. Others are ignored, as the standard allows."""

_SERVER_NAME = "bkctl"
"""Header of each answer; aiohttp's own would name versions."""


class AdminLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one listening socket."""

    connections_max: int = 1024
    """At this number a new connection replaces the one that has been idle for the longest time."""
    idle_s_max: float = 75.0
    """Between two requests."""
    request_s_max: float = 30.0
    """From the first byte of a request to the end of its headers."""
    body_s_max: float = 10.0
    answer_s_max: float = 120.0
    """Until the answer to a request is known."""
    write_s_max: float = 30.0
    """Until the client has read its answer."""
    head_bytes_max: int = 64 * 1024
    body_bytes_max: int = 64 * 1024
    unread_bytes_max: int = 32 * 1024 * 1024
    """Of all answers that clients have not read yet."""


_FILES_SHARE: Final = 16


def admin_limits(open_files_max: int | None) -> AdminLimits:
    """Limits of a process that may have so many files open (None: no limit): its other work needs most of them."""
    limits = AdminLimits()
    if open_files_max is None:
        return limits
    connections_max = max(1, min(limits.connections_max, open_files_max // _FILES_SHARE))
    return msgspec.structs.replace(limits, connections_max=connections_max)


class AdminRoom(ConnectionRoom[Replaceable]):
    """The connections of one listening socket, and the answers that their clients have not read yet."""

    def __init__(self, limits: AdminLimits, report: Callable[[str, str], None]) -> None:
        """``report`` logs the origin and the reason of a refusal."""
        super().__init__(limits.connections_max)
        self.limits = limits
        self.report = report
        self._unread: dict[AdminConnection, int] = {}

    @contextlib.contextmanager
    def unread(self, connection: AdminConnection, size_bytes: int) -> Iterator[None]:
        """An answer of this size is being written. Beyond the limit the slowest other readers are disconnected."""
        self._unread[connection] = size_bytes
        while sum(self._unread.values()) > self.limits.unread_bytes_max and len(self._unread) > 1:
            slowest = next(iter(self._unread))
            del self._unread[slowest]
            self.report(slowest.origin, "does not read its answer; closing the connection")
            slowest.abort()
        try:
            yield
        finally:
            self._unread.pop(connection, None)


class AdminConnection(web.RequestHandler):
    """One connection, with a limit for the time and size of what arrives before a request is complete."""

    def __init__(self, server: web.Server, room: AdminRoom, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(
            server,
            loop=loop,
            access_log=None,  # type: ignore[arg-type]
            keepalive_timeout=room.limits.idle_s_max,
            lingering_time=1.0,
            max_headers=64,
            auto_decompress=False,
        )
        self._room = room
        self._head_bytes = 0
        self.is_busy = False
        """Whether a request of it is complete and not answered yet."""
        self._body: StreamReader | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.origin = ""
        self.address = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The client has connected."""
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self.address, self.origin = peer[0], f"admin client {peer[0]}:{peer[1]}"
        else:
            self.origin = "admin client on the socket"
        super().connection_made(transport)
        if self._room.enter(self) is not None:
            self._room.report(self.origin, f"more than {self._room.connections_max} connections; closing one")

    def connection_lost(self, exc: BaseException | None) -> None:
        """The connection has ended."""
        self._stop_timer()
        self._room.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes of a request. The limit of its headers must not end a connection whose body has its own answer."""
        if data and not self.is_busy and (self._body is None or self._body.is_eof()):
            if self._timer is None:
                seconds = self._room.limits.request_s_max
                self._timer = asyncio.get_running_loop().call_later(seconds, self._end_slow_request)
            if self._head_bytes > self._room.limits.head_bytes_max:
                self._room.report(self.origin, "the headers of its request are too long; closing the connection")
                self.abort()
                return
            self._head_bytes += len(data)
        super().data_received(data)
        self.is_busy = self.is_busy or bool(self._messages)  # headers are complete; the handler starts later

    async def answer(self, request: web.BaseRequest, handler: HttpHandler) -> web.StreamResponse:
        """Answer a request whose headers are complete. The connection ends if the client does not read the answer.

        aiohttp does not wait until an answer is read: a client could ask for the next ones without reading any.
        """
        self._stop_timer()
        self.is_busy, self._head_bytes, self._body = True, 0, request.content
        try:
            if "Expect" in request.headers or request.headers.get("Upgrade", "").lower() in _UPGRADES:
                response: web.StreamResponse = self._refuse(
                    Problem.EXPECTATION, "neither Expect nor another protocol is supported"
                )
            else:
                response = await handler(request)
            with self._room.unread(self, response.content_length or 0):
                async with asyncio.timeout(self._room.limits.write_s_max):
                    await response.prepare(request)
                    await response.write_eof()
                    await request.writer.drain()
        except ConnectionError:
            pass  # the client has gone
        except TimeoutError:
            self._room.report(self.origin, "does not read its answer; closing the connection")
            self.abort()
        finally:
            self.is_busy = bool(self._messages)
            self._room.note_activity(self)
        return response

    def abort(self) -> None:
        """End the connection now; what it has not read is dropped."""
        transport = self.transport
        self.force_close()
        if isinstance(transport, asyncio.Transport):
            transport.abort()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002
    ) -> web.StreamResponse:
        """Answer a request that is not valid HTTP; what it contains is neither logged nor sent back."""
        reason = "the request " + ("is not valid HTTP" if isinstance(exc, HttpProcessingError) else "failed")
        if request.writer.output_size > 0:
            self._room.report(self.origin, reason)
            raise ConnectionError("the answer to an earlier request is incomplete")
        response = self._refuse(Problem.INVALID if status == Problem.INVALID.status else Problem.INTERNAL, reason)
        response.force_close()
        return response

    def _refuse(self, problem: Problem, sentence: str) -> web.Response:
        self._room.report(self.origin, sentence)
        return response_of(error_answer(AdminError(problem, sentence)))

    def _end_slow_request(self) -> None:
        self._timer = None
        self._room.report(self.origin, "its request does not become complete; closing the connection")
        self.abort()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def connection_of(request: web.BaseRequest) -> AdminConnection:
    """The connection on which a request came."""
    connection = request.protocol
    assert isinstance(connection, AdminConnection)
    return connection


async def answer_within_limits(handler: HttpHandler, request: web.BaseRequest) -> web.StreamResponse:
    """Answer a request; the connection ends if its client does not read the answer."""
    return await connection_of(request).answer(request, handler)


def response_of(answer: AdminAnswer) -> web.Response:
    """The answer as aiohttp sends it."""
    headers = {"Content-Type": answer.content_type, "Server": _SERVER_NAME}
    return web.Response(body=answer.body, status=answer.status, headers=headers)
