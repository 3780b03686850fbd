"""Registrations that name another server as the admin port of a bookie, and such servers: every user of ZooKeeper can
write one.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from abc import ABC, abstractmethod

from bkctl.runtime.metadata.bookies.service_info import BookieAddress, encode_service_info, rpc_service_info
from bkctl.runtime.metadata.paths import Paths
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from tests.processes import LOOPBACK, run_bkctl


def register_admin_port(metadata_uri: str, bookie_id: str, host: str, port: int, *, is_https: bool = False) -> None:
    """Register a bookie with this admin port in a cluster, which is created if it is absent."""
    uri = parse_metadata_uri(metadata_uri)
    made = run_bkctl("cluster", "init", "--if-not-exists", BKCTL_METADATA_URI=metadata_uri)
    assert made.exit_code == 0, made.stderr
    info = rpc_service_info(host, 1, http=BookieAddress(host, port), is_https=is_https)

    async def write() -> None:
        async with await ZooKeeperStore.connect(uri.servers) as store:
            path = Paths(uri.root).writable_bookie(bookie_id)
            await store.create(path, encode_service_info(info), make_parents=True)

    asyncio.run(write())


class LoopbackServer(ABC):
    """A server on loopback, with one thread; it serves one connection after another until it is closed."""

    def __init__(self) -> None:
        self._listening = socket.create_server((LOOPBACK, 0))
        self.port = int(self._listening.getsockname()[1])
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        """Accept no more connections, and wait for the last one."""
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join()

    @abstractmethod
    def serve(self, connection: socket.socket) -> None:
        """Serve a connection; an OSError ends it."""

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            with contextlib.suppress(OSError), connection:
                connection.settimeout(30)
                self.serve(connection)
