"""A client of the admin interface that sends what a test asks for, whether it makes sense or not."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import aiohttp
from yarl import URL

from bkctl.runtime.bookie.admin.interface import socket_path
from bkctl.runtime.config import BookieConfig


class Answered(NamedTuple):
    """Status, body and headers of an answer."""

    status: int
    text: str
    headers: dict[str, str]

    @property
    def json(self) -> Any:
        return json.loads(self.text)


class Asker:
    """Requests over one session."""

    def __init__(self, session: aiohttp.ClientSession, base: str) -> None:
        self._session = session
        self._base = base

    async def ask(
        self, method: str, path: str, body: str | bytes | None = None, headers: dict[str, str] | None = None
    ) -> Answered:
        url = URL(self._base + path, encoded=True)
        async with self._session.request(method, url, data=body, headers=headers) as response:
            return Answered(response.status, await response.text(), dict(response.headers))

    async def get(self, path: str) -> Answered:
        return await self.ask("GET", path)

    async def put(self, path: str, body: object = None, token: str | None = None) -> Answered:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return await self.ask("PUT", path, None if body is None else json.dumps(body), headers)


@contextlib.asynccontextmanager
async def local_asker(config: BookieConfig) -> AsyncIterator[Asker]:
    """Over the unix socket."""
    connector = aiohttp.UnixConnector(socket_path(config.storage.ledger_directories[0]))
    async with aiohttp.ClientSession(connector=connector) as session:
        yield Asker(session, "http://bookie")


@contextlib.asynccontextmanager
async def tcp_asker(port: int) -> AsyncIterator[Asker]:
    """Over TCP."""
    async with aiohttp.ClientSession() as session:
        yield Asker(session, f"http://127.0.0.1:{port}")
