"""The admin interface of a server process: HTTP on a unix socket, and on TCP ports if configured.

Every client of the unix socket may do everything, because only the user of the process can connect to it. On TCP a
request that changes something needs the token.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from aiohttp import web

from runtime.admin.messages import AdminAnswer, AdminError, AdminRequest, Problem, Route, RouteTable, error_answer
from runtime.ports import Listen, ListeningSocket, ListenLocal
from storage.errors import BkctlError

logger = logging.getLogger(__name__)

BODY_BYTES_MAX: Final = 64 * 1024
BODY_S_MAX: Final = 10.0
IDLE_S_MAX: Final = 75.0

ReadToken = Callable[[], bytes | None]
"""Reads the token that a change over TCP needs; None if none is configured. OSError."""


class AdminServer:
    """Serves the same routes on all its sockets; ``close`` ends them."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._routes = RouteTable(routes)
        self._sockets: list[ListeningSocket] = []
        self._servers: list[web.Server] = []

    async def open_local(self, listen: ListenLocal, path: str) -> None:
        """Serve on a unix socket, for this user; OSError, ConfigurationError."""
        self._sockets.append(await listen(self._server(self._routes, None), path))

    async def open_tcp(self, listen: Listen, host: str, port: int, read_token: ReadToken) -> int:
        """Serve on a TCP port (0: any free one), and return the port; OSError."""
        opened = await listen(self._server(self._routes, read_token), host, port)
        self._sockets.append(opened)
        return opened.port

    async def close(self) -> None:
        """Stop listening and end all connections."""
        for opened in self._sockets:
            opened.close()
        for server in self._servers:
            await server.shutdown(timeout=1.0)

    def _server(self, routes: RouteTable, read_token: ReadToken | None) -> web.Server:
        async def handle(request: web.BaseRequest) -> web.StreamResponse:
            return await _respond(request, _answer(request, routes, read_token))

        server = web.Server(handle, access_log=None, keepalive_timeout=IDLE_S_MAX)
        self._servers.append(server)
        return server


async def _respond(request: web.BaseRequest, answering: Awaitable[AdminAnswer]) -> web.Response:
    try:
        answer = await answering
    except BkctlError as error:
        answer = error_answer(error)
        logger.info("admin request %s %s: %d: %s", request.method, request.path, answer.status, error)
    except Exception:
        logger.exception("admin request %s %s failed", request.method, request.path)
        answer = error_answer(AdminError(Problem.INTERNAL, "the request failed; the log of the server says why"))
    return web.Response(body=answer.body, status=answer.status, headers={"Content-Type": answer.content_type})


async def _answer(request: web.BaseRequest, routes: RouteTable, read_token: ReadToken | None) -> AdminAnswer:
    route, places = routes.find(request.method, request.rel_url.raw_path)
    if route.changes and read_token is not None:
        _require_token(request, read_token)
    return await route.handle(AdminRequest(query=dict(request.query), body=await _body(request), places=places))


def _require_token(request: web.BaseRequest, read_token: ReadToken) -> None:
    try:
        expected = read_token()
    except OSError as error:
        raise AdminError(Problem.INTERNAL, f"cannot read the token file: {error.strerror}") from error
    if expected is None:
        raise AdminError(
            Problem.REFUSED, "changes over TCP need a token (adminTokenFile); use the socket on the bookie's machine"
        )
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), expected):
        raise AdminError(Problem.UNAUTHORIZED, "give the token of this bookie: Authorization: Bearer TOKEN")


async def _body(request: web.BaseRequest) -> bytes:
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_S_MAX):
            while part := await request.content.readany():
                body += part
                if len(body) > BODY_BYTES_MAX:
                    raise AdminError(Problem.TOO_LARGE, f"the body is longer than {BODY_BYTES_MAX} bytes")
    except TimeoutError as error:
        raise AdminError(Problem.TOO_SLOW, f"the body did not arrive within {BODY_S_MAX:g} s") from error
    return bytes(body)
