"""The admin interface of a server process: HTTP on a unix socket, and on TCP ports if configured.

Every client of the unix socket may do everything, because only the user of the process can connect to it. On TCP a
request that changes something needs the token, or over HTTPS a client certificate with an authorized role. Every
request must name this machine: a web page could otherwise reach the port from the browser of a user who may, under a
name of the page whose address changes (DNS rebinding).

A request that is refused is logged without its query, headers and body, which may be secret.

Each socket has an aiohttp application. What its middlewares cannot limit, because it happens before they are called or
after they return, is in ``connections``.
"""

from __future__ import annotations

import asyncio
import functools
import hmac
import ipaddress
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final, NamedTuple

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from bkctl.runtime.admin.connections import (
    AdminConnection,
    AdminLimits,
    AdminRoom,
    HttpHandler,
    answer_within_limits,
    connection_of,
    response_of,
)
from bkctl.runtime.admin.messages import AdminError, AdminRequest, Problem, Route, error_answer
from bkctl.runtime.admin.tls_handshake import AdminTls, TlsHandshake, certificate_refusal
from bkctl.runtime.net.limited_log import LimitedLog
from bkctl.runtime.ports import Listen, ListeningSocket, ListenLocal
from bkctl.storage.advice import without_path
from bkctl.storage.errors import BkctlError

logger = logging.getLogger(__name__)

ReadToken = Callable[[], Awaitable[bytes | None]]
"""Reads the token that a change over TCP needs; None if none is configured. OSError, BkctlError."""

_LOG_INTERVAL_S: Final = 10.0
_SHOWN_LENGTH_MAX: Final = 100

ANY_NAME: Final = "*"


class TcpAccess(NamedTuple):
    """What a TCP port requires. ``names``: in lower case, those that requests may give this machine."""

    read_token: ReadToken
    names: frozenset[str]
    tls: AdminTls | None = None


_ACCESS: Final = web.AppKey("access", TcpAccess)


class AdminServer:
    """Serves routes on all its sockets; ``close`` ends them."""

    def __init__(self, routes: Sequence[Route], limits: AdminLimits | None = None) -> None:
        self._routes = routes
        self._limits = limits or AdminLimits()
        self._sockets: list[ListeningSocket] = []
        self._runners: list[web.AppRunner] = []
        self._rooms: list[AdminRoom] = []
        self._refusals = LimitedLog(logger, _LOG_INTERVAL_S, "refusals", logging.INFO)
        self._token_errors = LimitedLog(logger, _LOG_INTERVAL_S, "errors", logging.ERROR)

    async def open_local(self, listen: ListenLocal, path: str) -> None:
        """Serve on a unix socket, for this user; OSError, ConfigurationError."""
        self._sockets.append(await listen(await self._accepting(self._routes), path))

    async def open_tcp(
        self,
        listen: Listen,
        host: str,
        port: int,
        read_token: ReadToken,
        routes: Sequence[Route] | None = None,
        *,
        names: Collection[str] = (),
        tls: AdminTls | None = None,
    ) -> int:
        """Serve on a TCP port (0: any free one), and return the port; OSError.

        ``routes`` None: all. ``names``: of this machine, for requests by name; ANY_NAME: all names. ``tls``: for HTTPS.
        """
        access = TcpAccess(read_token, frozenset(map(_normal, names)), tls)
        accepting = await self._accepting(self._routes if routes is None else routes, access)
        opened = await listen(accepting, host, port)
        self._sockets.append(opened)
        return opened.port

    async def close(self) -> None:
        """Stop listening and end all connections. Safe to repeat."""
        for opened in self._sockets:
            opened.close()
        runners, self._runners = self._runners, []
        for runner in runners:
            await runner.cleanup()
        rooms, self._rooms = self._rooms, []
        for left in [each for room in rooms for each in room]:  # in their handshake
            left.abort()
        self._refusals.close()
        self._token_errors.close()

    async def _accepting(
        self, routes: Sequence[Route], access: TcpAccess | None = None
    ) -> Callable[[], AdminConnection | TlsHandshake]:
        """Creates the protocol of each connection of one socket."""
        app = web.Application(
            middlewares=[self._tell_errors, _check_target], client_max_size=self._limits.body_bytes_max
        )
        if access is not None:
            app[_ACCESS] = access
        for route in routes:
            for path in (route.path, f"{route.path}/"):  # one slash at the end is ignored, as in Java
                app.router.add_route(route.method, path, functools.partial(self._handle, route=route))
        runner = web.AppRunner(app, shutdown_timeout=1.0)
        await runner.setup()
        self._runners.append(runner)
        server, room = runner.server, AdminRoom(self._limits, self._refusals.report)
        self._rooms.append(room)
        assert server is not None
        # Around the middlewares: the application answers some requests without them.
        server.request_handler = functools.partial(answer_within_limits, server.request_handler)
        tls = None if access is None else access.tls

        def accept() -> AdminConnection | TlsHandshake:
            connection = AdminConnection(server, room, asyncio.get_running_loop())
            return connection if tls is None else TlsHandshake(room, tls, connection)

        return accept

    @web.middleware
    async def _tell_errors(self, request: web.Request, handler: HttpHandler) -> web.StreamResponse:
        """Answer a request that is refused, fails or takes too long with a sentence as JSON, and log it."""
        headers = {}
        try:
            async with asyncio.timeout(self._limits.answer_s_max):
                return await handler(request)
        except web.HTTPNotFound:
            error: BkctlError = AdminError(Problem.NOT_FOUND, "there is no such path")
        except web.HTTPMethodNotAllowed as refused:
            headers["Allow"] = ", ".join(sorted(refused.allowed_methods))
            error = AdminError(Problem.METHOD, f"the methods of this path are {headers['Allow']}")
        except BkctlError as caught:
            error = caught
        except TimeoutError:
            error = AdminError(Problem.UNAVAILABLE, f"no answer within {self._limits.answer_s_max:g} s")
        except Exception:
            logger.exception("admin request %s failed", _shown(request))
            error = AdminError(Problem.INTERNAL, "the request failed; the log of the server says why")
        response = response_of(error_answer(error))
        response.headers.update(headers)
        # One cause per status: a client chooses the words of many reasons.
        reason = f"{_shown(request)}: {response.status}: {str(error) or type(error).__name__}"
        self._refusals.report(connection_of(request).origin, reason, f"status {response.status}")
        return response

    async def _handle(self, request: web.Request, route: Route) -> web.StreamResponse:
        access = request.app.get(_ACCESS)
        if route.changes and access is not None:
            reason = "" if access.tls is None else certificate_refusal(request.transport, access.tls)
            if reason is not None:
                await self._require_token(request, access.read_token, reason)
        body = await self._body(request)
        asked = AdminRequest(query=dict(request.query), body=body, places=request.match_info)
        return response_of(await route.handle(asked))

    async def _require_token(self, request: web.Request, read_token: ReadToken, reason: str) -> None:
        """AdminError unless the request has the token. ``reason``: why its certificate is not enough, if it has one."""
        if reason and "Authorization" not in request.headers:
            raise AdminError(Problem.NOT_PERMITTED, reason)
        try:
            expected = await read_token()
        except (OSError, BkctlError) as error:
            self._token_errors.report("cannot read the token of the admin interface", without_path(error))
            raise AdminError(
                Problem.INTERNAL, "the token file cannot be used; the log of the server says why"
            ) from error
        if expected is None:
            raise AdminError(
                Problem.NOT_PERMITTED,
                reason
                or "changes over TCP need a token (adminTokenFile), or over HTTPS a client certificate with a role of "
                "adminAuthorizedRoles; use the socket on its machine",
            )
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        token = given.strip().encode("utf-8", "surrogateescape")
        if scheme.lower() != "bearer" or not hmac.compare_digest(token, expected):
            raise AdminError(Problem.UNAUTHORIZED, "give the token of this server: Authorization: Bearer TOKEN")

    async def _body(self, request: web.Request) -> bytes:
        limits = self._limits
        too_large = AdminError(Problem.TOO_LARGE, f"the body is longer than {limits.body_bytes_max} bytes")
        if (request.content_length or 0) > limits.body_bytes_max:
            raise too_large
        try:
            async with asyncio.timeout(limits.body_s_max):
                return await request.read()
        except web.HTTPRequestEntityTooLarge as error:
            raise too_large from error
        except TimeoutError as error:
            raise AdminError(Problem.TOO_SLOW, f"the body did not arrive within {limits.body_s_max:g} s") from error
        except (HttpProcessingError, web.RequestPayloadError, OSError) as error:
            raise AdminError(Problem.INVALID, "the body is not complete, or its chunks are not valid") from error


@web.middleware
async def _check_target(request: web.Request, handler: HttpHandler) -> web.StreamResponse:
    """AdminError if the request names another machine, or its target is not a path."""
    path = request.raw_path.partition("?")[0]
    if not path.startswith("/"):
        raise AdminError(Problem.INVALID, "the target of the request is not a path")
    access = request.app.get(_ACCESS)
    if access is not None and not is_known_host(request.headers.get("Host"), access.names):
        raise AdminError(
            Problem.REFUSED, "the request names another host: use the address of this one, or set adminHostNames"
        )
    if path != request.path:  # the router compares what it has decoded; no path of ours needs that
        raise web.HTTPNotFound
    return await handler(request)


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


def _shown(request: web.Request) -> str:
    """Method and path for the log: short, without query, in ASCII without control characters."""
    path = request.raw_path.partition("?")[0].partition("#")[0]
    text = f"{request.method[:_SHOWN_LENGTH_MAX]} {path[:_SHOWN_LENGTH_MAX]}"
    return text.encode("unicode_escape").decode("ascii")
