"""A client of the admin interface of one server, on its unix socket or over TCP."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from functools import partial
from socket import SO_PEERCRED, SOL_SOCKET
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import aiohttp
import msgspec

from bkctl.runtime.admin.calls import (
    CREDENTIALS_BYTES,
    AdminAddress,
    AdminCredentials,
    connection_error,
    decode_answer,
    error_of_answer,
    lost_error,
    no_ca_error,
    require_listener,
    require_short,
    timeout_error,
)
from bkctl.runtime.admin.messages import AdminAnswer
from bkctl.runtime.errors import AuthenticationError, BookieUnavailableError
from bkctl.runtime.net.tls_failures import closed_sentence, handshake_sentence

AnswerT = TypeVar("AnswerT")

_LOOKS: Final = frozenset({"GET", "HEAD"})


class AdminClient:
    """Asks one bookie; ``name`` says in errors which one. Use it as a context manager."""

    def __init__(
        self, name: str, address: AdminAddress, *, credentials: AdminCredentials | None = None, timeout_s: float
    ) -> None:
        self.name = name
        self.address = address
        self._timeout_s = timeout_s
        self._credentials = credentials or AdminCredentials()
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        path = self.address.socket_path
        connector = _CheckedConnector(path, partial(require_listener, self.name, self.address)) if path else None
        # A compressed answer could become a thousand times longer.
        self._session = aiohttp.ClientSession(
            connector=connector, headers={"Accept-Encoding": "identity"}, auto_decompress=False
        )
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def get(self, path: str, kind: type[AnswerT]) -> AnswerT:
        """The JSON answer to a GET; errors as ``request``, AdminError if it is not of this kind."""
        return decode_answer(self.name, (await self.request("GET", path)).body, kind)

    async def put(self, path: str, kind: type[AnswerT], body: object = None) -> AnswerT:
        """The JSON answer to a PUT with a JSON body, if any; errors as ``get``."""
        return decode_answer(self.name, (await self.request("PUT", path, body=body)).body, kind)

    async def post(self, path: str, kind: type[AnswerT]) -> AnswerT:
        """The JSON answer to a POST; errors as ``get``."""
        return decode_answer(self.name, (await self.request("POST", path)).body, kind)

    async def delete(self, path: str, kind: type[AnswerT]) -> AnswerT:
        """The JSON answer to a DELETE; errors as ``get``."""
        return decode_answer(self.name, (await self.request("DELETE", path)).body, kind)

    async def text(self, path: str) -> str:
        """The text that a GET answers; errors as ``request``."""
        return (await self.request("GET", path)).body.decode(errors="replace")

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: object = None,
        timeout_s: float | None = None,
    ) -> AdminAnswer:
        """The answer to a request, which may take ``timeout_s`` (None: that of the client).

        BookieUnavailableError, BookieTimeoutError without an answer; AdminAccessError, RefusedError, ConflictError,
        AdminError for an answer of 400 or more; AdminError for one that is too long; AdminAccessError for a change if
        the token must not go to this address; AuthenticationError if the certificate of either side is not accepted,
        or does not permit this.
        """
        wait_s = self._timeout_s if timeout_s is None else timeout_s
        is_change = method not in _LOOKS
        try:
            async with asyncio.timeout(wait_s):
                status, data = await self._exchange(method, path, body)
        except TimeoutError as error:
            raise timeout_error(self.name, self.address, wait_s, is_change=is_change) from error
        except aiohttp.ClientConnectorCertificateError as error:
            raise self._tls_error(error.certificate_error) from error
        except aiohttp.ClientConnectorError as error:
            if isinstance(error.os_error, ssl.SSLError):
                raise self._tls_error(error.os_error) from error
            raise connection_error(self.name, self.address, error.os_error) from error
        except (aiohttp.ClientError, OSError) as error:
            if isinstance(cause := error.__cause__ or error, ssl.SSLError):  # TLS 1.3 refuses after the handshake
                raise self._tls_error(cause) from error
            if self.address.is_https and not is_change:  # a refusal may be lost with the connection
                raise BookieUnavailableError(
                    self.name, f"{self.address}: {closed_sentence(self._credentials.tls_config)}"
                ) from error
            raise lost_error(self.name, self.address, is_change=is_change) from error
        if status >= 400:
            raise error_of_answer(self.name, status, data, has_token=self._credentials.token is not None)
        return AdminAnswer(data, status)

    async def _exchange(self, method: str, path: str, body: object) -> tuple[int, bytes]:
        assert self._session is not None, "not entered"
        address, credentials = self.address, self._credentials
        host, port = (address.host, address.port) if address.host else ("localhost", 80)
        scheme = "https" if address.is_https else "http"
        url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}{path}"
        data = None if body is None else msgspec.json.encode(body)
        headers = {} if data is None else {"Content-Type": "application/json"}
        if method not in _LOOKS and credentials.token is not None and not address.socket_path:
            credentials.require_may_get_token(self.name, address)
            headers["Authorization"] = f"Bearer {credentials.token}"
        tls: dict[str, Any] = {}
        if address.is_https:
            if credentials.tls_context is None:
                raise no_ca_error(self.name, address)
            verified = credentials.name_to_verify(self.name, address)
            tls = {"ssl": credentials.tls_context(), "server_hostname": verified}
        async with self._session.request(
            method, url, data=data, headers=headers, allow_redirects=False, timeout=_NO_LIMIT, **tls
        ) as response:
            received = bytearray()
            async for part in response.content.iter_any():
                received += part
                require_short(self.name, self.address, len(received))
            return response.status, bytes(received)

    def _tls_error(self, error: Exception) -> AuthenticationError:
        host = self._credentials.name_to_verify(self.name, self.address)
        assert isinstance(error, ssl.SSLError)
        or_else = ""  # the name is always checked
        if host != (own := self.address.host):
            trusted = f"set BKCTL_ADMIN_TOKEN_HOSTS={own}:{self.address.port} if this is the bookie's"
            or_else = f", or {trusted}: then the certificate must be for {own}"
        sentence = handshake_sentence(error, self._credentials.tls_config, host, or_else=or_else)
        return AuthenticationError(f"bookie {self.name}: {self.address}: {sentence}")


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
