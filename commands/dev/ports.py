"""TCP ports for the servers of a development cluster."""

from __future__ import annotations

import socket

from commands.dev.cluster_state import LOOPBACK
from commands.errors import InvalidArgumentError
from runtime.errors import PortInUseError


def choose_ports(base_port: int | None, offset: int, count: int) -> list[int]:
    """Ports from the base on, or free ones; all probes stay open until the last one is chosen, so none comes twice.

    InvalidArgumentError when they do not all fit behind the base.
    """
    if base_port is not None:
        if base_port + offset + count > 65536:
            raise InvalidArgumentError(f"--base-port {base_port} leaves no room for {count} ports below 65536")
        return list(range(base_port + offset, base_port + offset + count))
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind((LOOPBACK, 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def require_free(port: int, title: str) -> None:
    """PortInUseError when somebody listens there; ``title`` says who was going to."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            raise PortInUseError(f"port {port} is in use: {title} cannot listen on it") from None
