"""TCP ports for the servers of a development cluster."""

from __future__ import annotations

import socket

from commands.dev.cluster_state import LOOPBACK
from commands.errors import InvalidArgumentError
from runtime.errors import PortInUseError
from runtime.metadata.zookeeper.embedded import choose_server_ports


def choose_ports(base_port: int | None, offset: int, count: int) -> list[int]:
    """Ports from the base on, or free ones that stay theirs while a server is down.

    InvalidArgumentError when they do not all fit behind the base.
    """
    if base_port is None:
        return choose_server_ports(count)
    if base_port + offset + count > 65536:
        raise InvalidArgumentError(f"--base-port {base_port} leaves no room for {count} ports below 65536")
    return list(range(base_port + offset, base_port + offset + count))


def require_free(port: int, title: str) -> None:
    """PortInUseError when somebody listens there; ``title`` says who was going to."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            raise PortInUseError(f"port {port} is in use: {title} cannot listen on it") from None
