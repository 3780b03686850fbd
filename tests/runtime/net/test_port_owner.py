"""The process that listens on a port is named, as far as this user may see it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.net.port_owner import describe_owner
from tests.processes import free_port

LISTEN = "import socket, sys; s = socket.create_server(('::1', 0), family=socket.AF_INET6); print(s.getsockname()[1])"


def own_name() -> str:
    return Path("/proc/self/comm").read_text(encoding="utf-8").strip()


def test_this_process_is_found_by_its_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert describe_owner(server.getsockname()[1]) == f"process {os.getpid()} ({own_name()})"


def test_a_port_of_ipv6_is_found_in_another_process() -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 on this machine")
    command = [sys.executable, "-u", "-c", f"{LISTEN}; sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        assert describe_owner(port).startswith(f"process {process.pid} (")


def test_a_connection_is_no_listener_and_an_unknown_owner_is_another_process() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        assert describe_owner(client.getsockname()[1]) == "another process"
    assert describe_owner(free_port()) == "another process"
