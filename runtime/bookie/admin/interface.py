"""The admin interface of a bookie: which routes it has, and on which sockets."""

from __future__ import annotations

import errno
import os
from typing import Final

from runtime.admin.server import AdminServer
from runtime.bookie.admin.cluster_routes import ClusterRoutes
from runtime.bookie.admin.gc_routes import GarbageCollectionRoutes
from runtime.bookie.admin.java_routes import JavaRoutes
from runtime.bookie.admin.job_routes import JobRoutes
from runtime.bookie.admin.mode_routes import ModeRoutes
from runtime.bookie.admin.state_route import StateRoute
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
    server = AdminServer(
        [
            *JavaRoutes(view).routes(),
            *ModeRoutes(view).routes(),
            *StateRoute(view).routes(),
            *JobRoutes(view).routes(),
            *GarbageCollectionRoutes(view).routes(),
            *ClusterRoutes(view).routes(),
        ]
    )
    try:
        await _open(server, view)
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


async def _open(server: AdminServer, view: BookieView) -> None:
    config, ports = view.config.admin, view.ports
    path = socket_path(view.config.storage.ledger_directories[0])
    try:
        await server.open_local(ports.listen_local, path)
    except OSError as error:
        raise ConfigurationError(f"cannot open the admin socket {path}: {error.strerror}") from error
    if not config.is_http_enabled:
        return
    token_file = config.token_file

    def read_token() -> bytes | None:
        return None if token_file is None else ports.file_system.read_file(token_file).strip()

    try:
        view.http_port = await server.open_tcp(ports.listen, config.http_host, config.http_port, read_token)
    except OSError as error:
        raise admin_port_error(error, config, ports.host) from error


def admin_port_error(error: OSError, config: AdminConfig, host: Host) -> ConfigurationError:
    """The error to raise when the admin port cannot be opened."""
    where = f"{config.http_host}:{config.http_port}"
    if error.errno == errno.EADDRINUSE:
        owner = host.describe_owner(config.http_port)
        return PortInUseError(f"the admin port {where} is in use by {owner}: choose another one with httpServerPort")
    return ConfigurationError(f"cannot open the admin port {where}: {os.strerror(error.errno or 0)}")
