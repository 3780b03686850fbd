"""Connections of the admin interface: limits for what a slow, silent or hostile client may take.

aiohttp closes a silent connection; it has no limit for a request that never becomes complete, for the number of
connections, or for a client that does not read its answer.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Final

import msgspec
from aiohttp import StreamReader, web
from aiohttp.http_exceptions import HttpProcessingError

from bkctl.runtime.admin.messages import AdminError, Problem, error_answer
from bkctl.runtime.net.connection_room import ConnectionRoom

SERVER_NAME = "bkctl"
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


class AdminRoom(ConnectionRoom["AdminConnection"]):
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

    @contextlib.contextmanager
    def answering(self, request: web.BaseRequest) -> Iterator[None]:
        """The headers of a request are complete; within the block it is answered."""
        self._stop_timer()
        self.is_busy, self._head_bytes, self._body = True, 0, request.content
        try:
            yield
        finally:
            self.is_busy = bool(self._messages)
            self._room.note_activity(self)

    async def write(self, request: web.BaseRequest, response: web.Response, size_bytes: int) -> None:
        """Send an answer. The connection ends if the client does not read it.

        aiohttp does not wait until an answer is read: a client could ask for the next ones without reading any.
        """
        with self._room.unread(self, size_bytes):
            try:
                async with asyncio.timeout(self._room.limits.write_s_max):
                    await response.prepare(request)
                    await response.write_eof()
                    await request.writer.drain()
            except ConnectionError:
                pass  # the client has gone
            except TimeoutError:
                self._room.report(self.origin, "does not read its answer; closing the connection")
                self.abort()

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
        reason = "is not valid HTTP" if isinstance(exc, HttpProcessingError) else "failed"
        self._room.report(self.origin, f"a request {reason}")
        if request.writer.output_size > 0:
            raise ConnectionError("the answer to an earlier request is incomplete")
        problem = Problem.INVALID if status == Problem.INVALID.status else Problem.INTERNAL
        answer = error_answer(AdminError(problem, f"the request {reason}"))
        headers = {"Content-Type": answer.content_type, "Server": SERVER_NAME}
        response = web.Response(body=answer.body, status=answer.status, headers=headers)
        response.force_close()
        return response

    def _end_slow_request(self) -> None:
        self._timer = None
        self._room.report(self.origin, "its request does not become complete; closing the connection")
        self.abort()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
