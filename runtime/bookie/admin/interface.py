"""The admin interface of a bookie: which routes it has, and on which sockets."""

from __future__ import annotations

import os

from bkctl.runtime.admin.calls import ALL_ADDRESSES
from bkctl.runtime.admin.connections import admin_limits
from bkctl.runtime.admin.server import AdminServer
from bkctl.runtime.admin.tcp_ports import ADMIN_LANE, admin_tls, open_tcp_ports
from bkctl.runtime.bookie.admin.cluster_routes import ClusterRoutes
from bkctl.runtime.bookie.admin.gc_routes import GarbageCollectionRoutes
from bkctl.runtime.bookie.admin.java_routes import JavaRoutes
from bkctl.runtime.bookie.admin.job_routes import JobRoutes
from bkctl.runtime.bookie.admin.mode_routes import ModeRoutes
from bkctl.runtime.bookie.ports import BookiePorts
from bkctl.runtime.bookie.view import BookieView
from bkctl.runtime.errors import ConfigurationError
from bkctl.runtime.ledger.metadata import parse_host_and_port
from bkctl.runtime.metadata.bookies.service_info import BookieAddress
from bkctl.storage import filenames


def socket_path(ledger_directory: str) -> str:
    """The unix socket of the bookie whose first ledger directory this is."""
    return os.path.join(ledger_directory, filenames.ADMIN_SOCKET)


class AdminInterface:
    """Opened in two steps: a port in use must refuse the start before anything is written, but the unix socket replaces
    that of an earlier process, so the directories must be locked."""

    def __init__(self, view: BookieView) -> None:
        self._view = view
        self._java = JavaRoutes(view)
        parts = (
            self._java,
            ModeRoutes(view),
            JobRoutes(view),
            GarbageCollectionRoutes(view),
            ClusterRoutes(view),
        )
        limits = admin_limits(view.ports.host.open_files_max())
        self._server = AdminServer([route for part in parts for route in part.routes()], limits)

    async def open_port(self) -> None:
        """Open the TCP port for everything or for scrapes alone, if configured; ConfigurationError."""
        view, ports = self._view, self._view.ports
        own = parse_host_and_port(view.bookie_id)
        tls = await admin_tls(view.config.admin, view.config.tls, ports.tls_contexts, ports.workers)
        names = [name for name in (view.config.advertised_address, own and own[0]) if name]
        opened = await open_tcp_ports(
            self._server,
            view.config.admin,
            ports.listen,
            ports.host,
            self._read_token,
            self._java.probe_routes(),
            names,
            ports.workers,
            tls,
        )
        view.http_port, view.scrape_port = opened

    async def open_socket(self) -> None:
        """Open the unix socket; ConfigurationError. The directories must be locked."""
        path = socket_path(self._view.config.storage.ledger_directories[0])
        try:
            await self._server.open_local(self._view.ports.listen_local, path)
        except OSError as error:
            raise ConfigurationError(f"cannot open the admin socket {path}: {error.strerror}") from error

    async def close(self) -> None:
        """Close the socket and the port, and end all connections. Safe to repeat."""
        await self._server.close()

    async def _read_token(self) -> bytes | None:
        path = self._view.config.admin.token_file
        return None if path is None else await read_admin_secret(self._view.ports, path)


def published_address(view: BookieView, host: str) -> BookieAddress | None:
    """Address of the admin port in the registration; ``host`` of the bookie where all its addresses are open."""
    if view.http_port is None:
        return None
    configured = view.config.admin.http_host
    return BookieAddress(host if configured in ALL_ADDRESSES else configured, view.http_port)


async def read_admin_secret(ports: BookiePorts, path: str) -> bytes:
    """A secret of the admin interface; OSError, ConfigurationError."""
    return await ports.workers.run(ADMIN_LANE, ports.read_secret, path)
