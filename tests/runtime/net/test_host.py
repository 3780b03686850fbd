"""Ports of this machine: which process listens on one, as far as this user may see it; accepted connections."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from bkctl.runtime.net.host import OsHost, listen_tcp
from tests.processes import free_port

LISTEN = "import socket, sys; s = socket.create_server(('::1', 0), family=socket.AF_INET6); print(s.getsockname()[1])"


def own_name() -> str:
    return Path("/proc/self/comm").read_text(encoding="utf-8").strip()


def test_this_process_is_found_by_its_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert OsHost().describe_owner(server.getsockname()[1]) == f"process {os.getpid()} ({own_name()})"


def test_a_port_of_ipv6_is_found_in_another_process() -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 on this machine")
    command = [sys.executable, "-u", "-c", f"{LISTEN}; sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        assert OsHost().describe_owner(port).startswith(f"process {process.pid} (")


def test_a_connection_is_no_listener_and_an_unknown_owner_is_another_process() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        assert OsHost().describe_owner(client.getsockname()[1]) == "another process"
    assert OsHost().describe_owner(free_port()) == "another process"


class Noted(asyncio.BufferedProtocol):
    """A connection whose transport a test looks at."""

    def __init__(self, made: asyncio.Future[asyncio.BaseTransport]) -> None:
        self._made = made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._made.set_result(transport)


async def test_accepted_connections_are_kept_alive() -> None:
    """The kernel notices a client whose machine is gone."""
    made: asyncio.Future[asyncio.BaseTransport] = asyncio.get_running_loop().create_future()
    port = await listen_tcp(lambda: Noted(made), "127.0.0.1", 0)
    _, writer = await asyncio.open_connection("127.0.0.1", port.port)
    transport = await made
    assert transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    transport.close()
    writer.close()
    port.close()
    port.close()
