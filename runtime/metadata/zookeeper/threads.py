"""Threads and connections of the ZooKeeper client library.

Part of the adapter ``store`` (decision 7). Why kazoo's own threads and sockets are not used: decision 28.
"""

from __future__ import annotations

import asyncio
import collections
import functools
import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Any

from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.hosts import collect_hosts

from bkctl.runtime.config import ZooKeeperConfig
from bkctl.runtime.errors import ConfigurationError
from bkctl.runtime.metadata.zookeeper.access import NotingSocket
from bkctl.runtime.metadata.zookeeper.buffered_socket import RequestSignal, ServerSocket, wait_for_room, wait_readable
from bkctl.runtime.metadata.zookeeper.connect_failures import Address, ConnectFailures

logger = logging.getLogger(__name__)


def server_addresses(servers: str) -> list[Address]:
    """Hosts and ports of ``host:port[,host:port...]``; ConfigurationError."""
    try:
        addresses: list[Address] = collect_hosts(servers)[0]
        for host, _ in addresses:
            host.encode("idna")  # as the resolver does on the connection thread, which an error there would end
    except ValueError as error:
        raise ConfigurationError(f"{servers!r} is not a list of ZooKeeper servers (host:port,...)") from error
    return addresses


class LoopHandler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo is untyped
    """Kazoo's threads without two: answers and watch events go directly from the connection thread to the loop.

    Kazoo runs callbacks in place while its own workers do not run. One wake-up of the loop handles many answers.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        failures: ConnectFailures,
        tls: Callable[[], ssl.SSLContext] | None,
        on_connect_failed: Callable[[], None],
        config: ZooKeeperConfig,
    ) -> None:
        """``tls``: the context for the next connection; None: clear text."""
        super().__init__()
        self._loop = loop
        self._failures = failures
        self._tls = tls
        self._on_connect_failed = on_connect_failed
        # Kazoo would wait for a server that is down, or that starts, until the session has ended. There must be time
        # for another; kazoo may try one twice in a row.
        tries_count, session_s = failures.servers_count + 1, config.session_timeout_ms / 1000
        self._connecting_s_max = min(session_s, config.operation_timeout_s) / tries_count
        self._opening_s_max = session_s / tries_count
        self._is_opening = True
        self._crossing: collections.deque[Callable[[], object]] = collections.deque()
        self._is_waking = False

    def start(self) -> None:
        """Start no workers, so that callbacks run in place."""

    def stop(self) -> None:
        """Do nothing: no worker was started."""

    def dispatch_callback(self, callback: Any) -> None:
        """Run a watcher on the loop."""
        self.call_on_loop(functools.partial(callback.func, *callback.args))

    def call_on_loop(self, function: Callable[[], object]) -> None:
        """Call from any thread; the order of calls is kept."""
        self._crossing.append(function)
        if not self._is_waking:  # checked after the append: if a drain cleared it earlier, that drain sees the new item
            self._is_waking = True
            try:
                self._loop.call_soon_threadsafe(self._drain)
            except RuntimeError:
                logger.debug("the event loop ended before the ZooKeeper session")

    def _drain(self) -> None:
        self._is_waking = False
        while self._crossing:
            function = self._crossing.popleft()
            try:
                function()
            except Exception as error:
                self._loop.call_exception_handler({"message": "ZooKeeper callback failed", "exception": error})

    def create_socket_pair(self) -> tuple[RequestSignal, RequestSignal]:
        """Where kazoo counts its requests."""
        signal = RequestSignal()
        return signal, signal

    def select(self, rlist: Sequence[Any], wlist: Sequence[Any], _xlist: Any, timeout: float | None = None) -> Any:
        """Like ``select.select``, as kazoo calls it: for a server, alone or with the signal for requests."""
        if wlist:
            return [], wlist if wait_for_room(wlist[0], timeout) else [], []
        if len(rlist) > 1:
            self._is_opening = False  # kazoo waits for requests
            return wait_readable(rlist[0], rlist[1], timeout), [], []
        return wait_readable(rlist[0], None, self._opening_s_max if self._is_opening else timeout), [], []

    def create_connection(self, address: tuple[str, int], hostname: str | None = None, **_: object) -> ServerSocket:
        """Connect, with TLS if configured, and note the result. ``hostname`` is the server's name in the settings.

        Kazoo's own function trusts the system's authorities even if the settings specify one.
        """
        server = (hostname or address[0], address[1])
        try:
            self._is_opening = True
            connection = socket.create_connection(address, self._connecting_s_max)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                connection = self._secure(connection, self._tls(), server)
        except OSError as error:
            self._note(server, error)
            raise
        self._failures.note_accepted(server)
        return ServerSocket(connection)

    def _secure(self, connection: socket.socket, tls: ssl.SSLContext, server: tuple[str, int]) -> ssl.SSLSocket:
        tls.sslsocket_class = NotingSocket
        try:
            secured = tls.wrap_socket(connection, server_hostname=server[0])
        except BaseException:
            connection.close()
            raise
        assert isinstance(secured, NotingSocket)
        secured.note = functools.partial(self._note, server)
        return secured

    def _note(self, server: tuple[str, int], error: Exception) -> None:
        self._failures.note_error(server, error)
        self.call_on_loop(self._on_connect_failed)
