"""The admin interface of a bookie: which routes it has, and on which sockets."""

from __future__ import annotations

import errno
import os

from runtime.admin.calls import ALL_ADDRESSES
from runtime.admin.server import AdminServer
from runtime.bookie.admin.cluster_routes import ClusterRoutes
from runtime.bookie.admin.gc_routes import GarbageCollectionRoutes
from runtime.bookie.admin.java_routes import ADMIN_LANE, JavaRoutes
from runtime.bookie.admin.job_routes import JobRoutes
from runtime.bookie.admin.mode_routes import ModeRoutes
from runtime.bookie.admin.state_route import StateRoute
from runtime.bookie.ports import BookiePorts
from runtime.bookie.view import BookieView
from runtime.config import AdminConfig
from runtime.errors import ConfigurationError, PortInUseError
from runtime.metadata.bookies.service_info import BookieAddress
from runtime.ports import Host
from storage import filenames
from storage.advice import with_path


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
            StateRoute(view),
            JobRoutes(view),
            GarbageCollectionRoutes(view),
            ClusterRoutes(view),
        )
        self._server = AdminServer([route for part in parts for route in part.routes()])

    async def open_port(self) -> None:
        """Open the TCP port for everything or for scrapes alone, if configured; ConfigurationError."""
        view, config, ports = self._view, self._view.config.admin, self._view.ports
        if config.is_http_enabled:
            host, port = config.http_host, config.http_port
            try:
                view.http_port = await self._server.open_tcp(ports.listen, host, port, self._read_token)
            except OSError as error:
                raise admin_port_error(error, config, ports.host) from error
        elif config.has_scrape_port:
            host, port, routes = config.scrape_host, config.scrape_port, self._java.probe_routes()
            try:
                view.scrape_port = await self._server.open_tcp(ports.listen, host, port, self._read_token, routes)
            except OSError as error:
                raise scrape_port_error(error, config, ports.host) from error

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
        path, ports = self._view.config.admin.token_file, self._view.ports
        return None if path is None else await ports.workers.run(ADMIN_LANE, ports.read_secret, path)


def published_address(view: BookieView, host: str) -> BookieAddress | None:
    """Address of the admin port in the registration; ``host`` of the bookie where all its addresses are open."""
    if view.http_port is None:
        return None
    configured = view.config.admin.http_host
    return BookieAddress(host if configured in ALL_ADDRESSES else configured, view.http_port)


async def require_token_file(config: AdminConfig, ports: BookiePorts) -> None:
    """ConfigurationError if the admin port has a token file that cannot be used."""
    if config.token_file is None or not config.is_http_enabled:
        return
    try:
        await ports.workers.run(ADMIN_LANE, ports.read_secret, config.token_file)
    except (OSError, ConfigurationError) as error:
        raise ConfigurationError(
            f"cannot use the token file of the admin interface (adminTokenFile): {with_path(error)}"
        ) from error


def admin_port_error(error: OSError, config: AdminConfig, host: Host) -> ConfigurationError:
    """The error to raise when the admin port cannot be opened."""
    return _port_error(error, f"admin port {config.http_host}", config.http_port, "httpServerPort", host)


def scrape_port_error(error: OSError, config: AdminConfig, host: Host) -> ConfigurationError:
    """The error to raise when the scrape port cannot be opened."""
    key = "prometheusStatsHttpPort, or none with prometheusStatsHttpEnable=false"
    return _port_error(error, f"scrape port {config.scrape_host}", config.scrape_port, key, host)


def _port_error(error: OSError, where: str, port: int, key: str, host: Host) -> ConfigurationError:
    if error.errno == errno.EADDRINUSE:
        owner = host.describe_owner(port)
        return PortInUseError(f"the {where}:{port} is in use by {owner}: choose another one with {key}")
    return ConfigurationError(f"cannot open the {where}:{port}: {os.strerror(error.errno or 0)}")
