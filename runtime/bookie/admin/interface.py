"""The admin interface of a bookie: which routes it has, and on which sockets."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import Final

from runtime.admin.messages import Route
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

_ALL_ADDRESSES: Final = ("0.0.0.0", "::", "")  # noqa: S104


def socket_path(ledger_directory: str) -> str:
    """The unix socket of the bookie whose first ledger directory this is."""
    return os.path.join(ledger_directory, filenames.ADMIN_SOCKET)


async def open_interface(view: BookieView) -> AdminServer:
    """Open it on the unix socket, and on TCP if configured; ConfigurationError.

    Call this once the directories are locked: the socket of an earlier process is replaced.
    """
    java = JavaRoutes(view)
    parts = (
        java,
        ModeRoutes(view),
        StateRoute(view),
        JobRoutes(view),
        GarbageCollectionRoutes(view),
        ClusterRoutes(view),
    )
    server = AdminServer([route for part in parts for route in part.routes()])
    try:
        await _open(server, view, java.probe_routes())
    except BaseException:
        await server.close()
        raise
    return server


def published_address(view: BookieView, host: str) -> BookieAddress | None:
    """Address of the admin port in the registration; ``host`` of the bookie where all its addresses are open."""
    if view.http_port is None:
        return None
    configured = view.config.admin.http_host
    return BookieAddress(host if configured in _ALL_ADDRESSES else configured, view.http_port)


async def _open(server: AdminServer, view: BookieView, probe_routes: Sequence[Route]) -> None:
    config, ports = view.config.admin, view.ports
    path = socket_path(view.config.storage.ledger_directories[0])
    try:
        await server.open_local(ports.listen_local, path)
    except OSError as error:
        raise ConfigurationError(f"cannot open the admin socket {path}: {error.strerror}") from error

    async def read_token() -> bytes | None:
        if config.token_file is None:
            return None
        return await ports.workers.run(ADMIN_LANE, ports.read_secret, config.token_file)

    if config.is_http_enabled:
        try:
            view.http_port = await server.open_tcp(ports.listen, config.http_host, config.http_port, read_token)
        except OSError as error:
            raise admin_port_error(error, config, ports.host) from error
    elif config.has_scrape_port:
        host, port = config.scrape_host, config.scrape_port
        try:
            view.scrape_port = await server.open_tcp(ports.listen, host, port, read_token, probe_routes)
        except OSError as error:
            raise scrape_port_error(error, config, ports.host) from error


async def require_token_file(config: AdminConfig, ports: BookiePorts) -> None:
    """ConfigurationError if the admin port has a token file that cannot be used."""
    if config.token_file is None or not config.is_http_enabled:
        return
    try:
        await ports.workers.run(ADMIN_LANE, ports.read_secret, config.token_file)
    except (OSError, ConfigurationError) as error:
        reason = f"{config.token_file}: {error.strerror}" if isinstance(error, OSError) else str(error)
        raise ConfigurationError(
            f"cannot use the token file of the admin interface (adminTokenFile): {reason}"
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
