"""A client of the admin interface of one server, on its unix socket or over TCP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from socket import SO_PEERCRED, SOL_SOCKET
from types import TracebackType
from typing import Any, Final, Self

import aiohttp
import msgspec

from runtime.admin.calls import (
    CREDENTIALS_BYTES,
    AdminAddress,
    connection_error,
    error_of_answer,
    lost_error,
    require_listener,
    timeout_error,
)
from runtime.admin.messages import AdminAnswer, AdminError, Problem

_LOOKS: Final = frozenset({"GET", "HEAD"})


class AdminClient:
    """Asks one bookie; ``name`` says in errors which one. Use it as a context manager."""

    def __init__(self, name: str, address: AdminAddress, *, token: str | None, timeout_s: float) -> None:
        self.name = name
        self.address = address
        self._timeout_s = timeout_s
        # A socket needs no token, and who listens there is not to learn it.
        self._headers = {} if token is None or address.socket_path else {"Authorization": f"Bearer {token}"}
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        path = self.address.socket_path
        connector = _CheckedConnector(path, self._require_listener) if path else None
        self._session = aiohttp.ClientSession(connector=connector)
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def get(self, path: str, **query: str) -> Any:
        """The JSON answer to a GET; errors as ``request``, AdminError if it is not JSON."""
        return self._json(await self.request("GET", path, query=query))

    async def put(self, path: str, body: object = None, **query: str) -> Any:
        """The JSON answer to a PUT with a JSON body, if any; errors as ``get``."""
        return self._json(await self.request("PUT", path, query=query, body=body))

    async def post(self, path: str) -> Any:
        """The JSON answer to a POST; errors as ``get``."""
        return self._json(await self.request("POST", path))

    async def delete(self, path: str) -> Any:
        """The JSON answer to a DELETE; errors as ``get``."""
        return self._json(await self.request("DELETE", path))

    async def text(self, path: str) -> str:
        """The text that a GET answers; errors as ``request``."""
        return (await self.request("GET", path)).body.decode(errors="replace")

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
        timeout_s: float | None = None,
    ) -> AdminAnswer:
        """The answer to a request, which may take ``timeout_s`` (None: that of the client).

        BookieUnavailableError, BookieTimeoutError without an answer; AdminAccessError, RefusedError, ConflictError,
        AdminError for an answer of 400 or more.
        """
        wait_s = self._timeout_s if timeout_s is None else timeout_s
        is_change = method not in _LOOKS
        try:
            async with asyncio.timeout(wait_s):
                status, data = await self._exchange(method, path, query or {}, body)
        except TimeoutError as error:
            raise timeout_error(self.name, self.address, wait_s, is_change=is_change) from error
        except aiohttp.ClientConnectorError as error:
            raise connection_error(self.name, self.address, error.os_error) from error
        except (aiohttp.ClientError, OSError) as error:
            raise lost_error(self.name, self.address, is_change=is_change) from error
        if status >= 400:
            raise error_of_answer(self.name, status, data)
        return AdminAnswer(data, status)

    async def _exchange(self, method: str, path: str, query: Mapping[str, str], body: object) -> tuple[int, bytes]:
        assert self._session is not None, "not entered"
        host, port = (self.address.host, self.address.port) if self.address.host else ("localhost", 80)
        url = f"http://{f'[{host}]' if ':' in host else host}:{port}{path}"
        data = None if body is None else msgspec.json.encode(body)
        headers = self._headers if data is None else self._headers | {"Content-Type": "application/json"}
        async with self._session.request(
            method, url, params=query, data=data, headers=headers, allow_redirects=False, timeout=_NO_LIMIT
        ) as response:
            return response.status, await response.read()

    def _require_listener(self, credentials: bytes) -> None:
        require_listener(self.name, self.address, credentials)

    def _json(self, answer: AdminAnswer) -> Any:
        try:
            return msgspec.json.decode(answer.body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise AdminError(Problem.INTERNAL, f"bookie {self.name}: its answer is not JSON") from error


class _CheckedConnector(aiohttp.UnixConnector):
    """Checks who listens on the socket, before a request is sent."""

    def __init__(self, path: str, check: Callable[[bytes], None]) -> None:
        super().__init__(path)
        self._check = check

    async def connect(
        self, req: aiohttp.ClientRequest, traces: list[Any], timeout: aiohttp.ClientTimeout
    ) -> aiohttp.connector.Connection:
        connection = await super().connect(req, traces, timeout)
        try:
            assert connection.transport is not None, "connected"
            connected = connection.transport.get_extra_info("socket")
            self._check(connected.getsockopt(SOL_SOCKET, SO_PEERCRED, CREDENTIALS_BYTES))
        except BaseException:
            connection.close()
            raise
        return connection


_NO_LIMIT: Final = aiohttp.ClientTimeout(total=None)
"""``request`` has its own limit."""
