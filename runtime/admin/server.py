"""The admin interface of a server process: HTTP on a unix socket, and on TCP ports if configured.

Every client of the unix socket may do everything, because only the user of the process can connect to it. On TCP a
request that changes something needs the token, and every request must name this machine: a web page could otherwise
reach the port from the browser of a user who may, under a name of the page whose address changes (DNS rebinding).

A request that is refused is logged without its query, headers and body, which may be secret.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final, NamedTuple

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from bkctl.runtime.admin.connections import SERVER_NAME, AdminConnection, AdminLimits, AdminRoom
from bkctl.runtime.admin.messages import AdminAnswer, AdminError, AdminRequest, Problem, Route, RouteTable, error_answer
from bkctl.runtime.net.limited_log import LimitedLog
from bkctl.runtime.ports import Listen, ListeningSocket, ListenLocal
from bkctl.storage.advice import without_path
from bkctl.storage.errors import BkctlError

logger = logging.getLogger(__name__)

ReadToken = Callable[[], Awaitable[bytes | None]]
"""Reads the token that a change over TCP needs; None if none is configured. OSError, BkctlError."""

_LOG_INTERVAL_S: Final = 10.0
_SHOWN_LENGTH_MAX: Final = 100
_UPGRADES: Final = frozenset({"websocket", "tcp"})
"""Protocols to which aiohttp would switch. Others are ignored, as the standard allows."""


ANY_NAME: Final = "*"


class TcpAccess(NamedTuple):
    """What a TCP port requires. ``names``: in lower case, those that requests may give this machine."""

    read_token: ReadToken
    names: frozenset[str]


class AdminServer:
    """Serves routes on all its sockets; ``close`` ends them."""

    def __init__(self, routes: Sequence[Route], limits: AdminLimits | None = None) -> None:
        self._routes = RouteTable(routes)
        self._limits = limits or AdminLimits()
        self._sockets: list[ListeningSocket] = []
        self._servers: list[web.Server] = []
        self._refusals = LimitedLog(logger, _LOG_INTERVAL_S, "refusals", logging.INFO)
        self._token_errors = LimitedLog(logger, _LOG_INTERVAL_S, "errors", logging.ERROR)

    async def open_local(self, listen: ListenLocal, path: str) -> None:
        """Serve on a unix socket, for this user; OSError, ConfigurationError."""
        self._sockets.append(await listen(self._accepting(self._routes, None), path))

    async def open_tcp(
        self,
        listen: Listen,
        host: str,
        port: int,
        read_token: ReadToken,
        routes: Sequence[Route] | None = None,
        *,
        names: Collection[str] = (),
    ) -> int:
        """Serve on a TCP port (0: any free one), and return the port; OSError.

        ``routes`` None: all. ``names``: of this machine, for requests by name; ANY_NAME: all names.
        """
        table = self._routes if routes is None else RouteTable(routes)
        access = TcpAccess(read_token, frozenset(map(_normal, names)))
        opened = await listen(self._accepting(table, access), host, port)
        self._sockets.append(opened)
        return opened.port

    async def close(self) -> None:
        """Stop listening and end all connections. Safe to repeat."""
        for opened in self._sockets:
            opened.close()
        servers, self._servers = self._servers, []
        for server in servers:
            await server.shutdown(timeout=1.0)
        self._refusals.close()
        self._token_errors.close()

    def _accepting(self, routes: RouteTable, access: TcpAccess | None) -> Callable[[], AdminConnection]:
        """Creates the protocol of each connection of one socket."""
        room = AdminRoom(self._limits, self._refusals.report)

        async def handle(request: web.BaseRequest) -> web.StreamResponse:
            connection = request.protocol
            assert isinstance(connection, AdminConnection)
            with connection.answering(request):
                answer = await self._answer_or_error(request, connection, routes, access)
                response = _response(answer)
                await connection.write(request, response, len(answer.body))
            return response

        server = web.Server(handle)
        self._servers.append(server)
        return lambda: AdminConnection(server, room, asyncio.get_running_loop())

    async def _answer_or_error(
        self,
        request: web.BaseRequest,
        connection: AdminConnection,
        routes: RouteTable,
        access: TcpAccess | None,
    ) -> AdminAnswer:
        try:
            async with asyncio.timeout(self._limits.answer_s_max):
                return await self._answer(request, routes, access)
        except BkctlError as error:
            answer, reason = error_answer(error), str(error) or type(error).__name__
        except TimeoutError:
            reason = f"no answer within {self._limits.answer_s_max:g} s"
            answer = error_answer(AdminError(Problem.UNAVAILABLE, reason))
        except Exception:
            logger.exception("admin request %s failed", _shown(request))
            reason = "the request failed; the log of the server says why"
            answer = error_answer(AdminError(Problem.INTERNAL, reason))
        # One cause per status: a client chooses the words of many reasons.
        self._refusals.report(
            connection.origin, f"{_shown(request)}: {answer.status}: {reason}", f"status {answer.status}"
        )
        return answer

    async def _answer(self, request: web.BaseRequest, routes: RouteTable, access: TcpAccess | None) -> AdminAnswer:
        path = request.raw_path.partition("?")[0]
        if not path.startswith("/"):
            raise AdminError(Problem.INVALID, "the target of the request is not a path")
        if access is not None and not is_known_host(request.headers.get("Host"), access.names):
            raise AdminError(
                Problem.REFUSED, "the request names another host: use the address of this one, or set adminHostNames"
            )
        route, places = routes.find(request.method, path)
        if "Expect" in request.headers or request.headers.get("Upgrade", "").lower() in _UPGRADES:
            raise AdminError(Problem.EXPECTATION, "neither Expect nor another protocol is supported")
        if route.changes and access is not None:
            await self._require_token(request, access.read_token)
        return await route.handle(
            AdminRequest(query=dict(request.query), body=await self._body(request), places=places)
        )

    async def _require_token(self, request: web.BaseRequest, read_token: ReadToken) -> None:
        try:
            expected = await read_token()
        except (OSError, BkctlError) as error:
            self._token_errors.report("cannot read the token of the admin interface", without_path(error))
            raise AdminError(
                Problem.INTERNAL, "the token file cannot be used; the log of the server says why"
            ) from error
        if expected is None:
            raise AdminError(
                Problem.REFUSED,
                "changes over TCP need a token (adminTokenFile); use the socket on its machine",
            )
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        token = given.strip().encode("utf-8", "surrogateescape")
        if scheme.lower() != "bearer" or not hmac.compare_digest(token, expected):
            raise AdminError(Problem.UNAUTHORIZED, "give the token of this server: Authorization: Bearer TOKEN")

    async def _body(self, request: web.BaseRequest) -> bytes:
        limits, body = self._limits, bytearray()
        too_large = AdminError(Problem.TOO_LARGE, f"the body is longer than {limits.body_bytes_max} bytes")
        if (request.content_length or 0) > limits.body_bytes_max:
            raise too_large
        try:
            async with asyncio.timeout(limits.body_s_max):
                while part := await request.content.readany():
                    body += part
                    if len(body) > limits.body_bytes_max:
                        raise too_large
        except TimeoutError as error:
            raise AdminError(Problem.TOO_SLOW, f"the body did not arrive within {limits.body_s_max:g} s") from error
        except (HttpProcessingError, web.RequestPayloadError, OSError) as error:
            raise AdminError(Problem.INVALID, "the body is not complete, or its chunks are not valid") from error
        return bytes(body)


def is_known_host(header: str | None, names: Collection[str]) -> bool:
    """Whether a header ``Host`` has an address, a name of this machine, or is missing: every browser sends it."""
    if header is None or ANY_NAME in names:
        return True
    host = header.strip()
    if host.startswith("["):
        host = host[1:].partition("]")[0]
    elif host.count(":") <= 1:
        host = host.partition(":")[0]
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return _normal(host) in names or _normal(host) == "localhost"
    return True


def _normal(name: str) -> str:
    return name.lower().removesuffix(".")


def _response(answer: AdminAnswer) -> web.Response:
    headers = {"Content-Type": answer.content_type, "Server": SERVER_NAME, **answer.headers}
    return web.Response(body=answer.body, status=answer.status, headers=headers)


def _shown(request: web.BaseRequest) -> str:
    """Method and path for the log: short, without query, in ASCII without control characters."""
    path = request.raw_path.partition("?")[0].partition("#")[0]
    text = f"{request.method[:_SHOWN_LENGTH_MAX]} {path[:_SHOWN_LENGTH_MAX]}"
    return text.encode("unicode_escape").decode("ascii")
