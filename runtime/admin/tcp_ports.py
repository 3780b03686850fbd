"""The TCP ports of an admin interface: one for everything, or one for scrapes alone."""

from __future__ import annotations

import errno
import os
import ssl
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final, NamedTuple

from bkctl.runtime.admin.messages import Route
from bkctl.runtime.admin.server import AdminServer, ReadToken
from bkctl.runtime.admin.tls_handshake import AdminTls
from bkctl.runtime.config import AdminConfig
from bkctl.runtime.errors import ConfigurationError, PortInUseError
from bkctl.runtime.ports import Host, Listen, Workers
from bkctl.runtime.security.tls_contexts import TlsContexts
from bkctl.runtime.security_config import BookieTlsConfig, TlsFiles
from bkctl.storage.advice import with_path

ADMIN_LANE: Final = "admin"
"""A lane of its own for files and names of an admin interface: a slow disk or name server delays nothing else."""


class OpenPorts(NamedTuple):
    """Port numbers; None: not open."""

    http: int | None = None
    scrape: int | None = None


async def open_tcp_ports(
    server: AdminServer,
    config: AdminConfig,
    listen: Listen,
    host: Host,
    read_token: ReadToken,
    scrape_routes: Sequence[Route],
    names: Collection[str],
    workers: Workers,
    tls: AdminTls | None = None,
) -> OpenPorts:
    """Open the port for everything or for scrapes alone, if configured; ConfigurationError.

    ``names``: of this server in the cluster; requests may also use those of the machine.
    """
    if config.is_http_enabled:
        address, port = config.http_host, config.http_port
        known = await _all_names(config, host, address, names, workers)
        try:
            return OpenPorts(http=await server.open_tcp(listen, address, port, read_token, names=known, tls=tls))
        except OSError as error:
            raise admin_port_error(error, config, host) from error
    if config.has_scrape_port:
        address, port = config.scrape_host, config.scrape_port
        known = await _all_names(config, host, address, names, workers)
        try:
            return OpenPorts(
                scrape=await server.open_tcp(listen, address, port, read_token, scrape_routes, names=known)
            )
        except OSError as error:
            raise scrape_port_error(error, config, host) from error
    return OpenPorts()


async def admin_tls(
    config: AdminConfig,
    of_bookie: BookieTlsConfig | None,
    open_contexts: Callable[[BookieTlsConfig], TlsContexts],
    workers: Workers,
) -> AdminTls | None:
    """TLS of the admin port, with its own files or those of the bookie's port; None: clear text. ConfigurationError."""
    if not (config.is_http_enabled and config.is_tls_enabled):
        return None
    files: TlsFiles | None = config.tls
    roles = () if config.tls is None else config.tls.authorized_roles
    if config.tls is None or not config.tls.has_files:
        files = of_bookie
        roles = roles or (() if of_bookie is None else of_bookie.authorized_roles)
    if files is None:
        raise ConfigurationError(
            "HTTPS of the admin interface (httpServerTlsEnable) has no files: set key_file in [bookie.tls] or "
            "[bookie.admin.tls]; for an autorecovery daemon, in [autorecovery.admin.tls]"
        )
    own = BookieTlsConfig(**{name: getattr(files, name) for name in TlsFiles.__struct_fields__})
    contexts = open_contexts(own)

    def current() -> ssl.SSLContext:
        context = contexts.current()
        if own.ca_file is not None:
            context.verify_mode = ssl.CERT_OPTIONAL  # probes and scrapes have none
        return context

    async def next_context() -> ssl.SSLContext:
        return await workers.run(ADMIN_LANE, current)

    await next_context()
    return AdminTls(next_context, frozenset(roles))


async def _all_names(
    config: AdminConfig, host: Host, address: str, names: Collection[str], workers: Workers
) -> list[str]:
    canonical_name = await workers.run(ADMIN_LANE, host.canonical_name)
    return [address, host.name(), canonical_name, *names, *config.host_names]


async def require_token_file(config: AdminConfig, read_secret: Callable[[str], Awaitable[bytes]]) -> None:
    """ConfigurationError if the admin port has a token file that cannot be used."""
    if config.token_file is None or not config.is_http_enabled:
        return
    try:
        await read_secret(config.token_file)
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
