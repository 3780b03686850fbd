"""Ports that stay with their servers while these are down."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

from runtime.metadata.zookeeper.server_ports import choose_server_ports
from tests.processes import LOOPBACK


def test_ports_are_different_free_and_not_of_those_that_the_system_hands_out() -> None:
    first_handed_out = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = choose_server_ports(50)
    assert len(set(ports)) == 50
    with contextlib.ExitStack() as servers:
        for port in ports:
            servers.enter_context(socket.create_server((LOOPBACK, port)))
        if first_handed_out >= 16_000:
            assert max(ports) < first_handed_out
        assert not set(choose_server_ports(50)) & set(ports)
