"""Admin sockets of other users on this machine, who may pretend to be a bookie."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from bkctl.commands.bookie.local_sockets import list_local
from bkctl.commands.bookie.probe import probe
from bkctl.runtime.admin.calls import AdminAddress, AdminCredentials
from bkctl.runtime.admin.client import AdminClient
from bkctl.runtime.errors import AdminAccessError, BookieUnavailableError
from tests.commands.bookie.admin_bookie import TOKEN, running_bookie
from tests.processes import run_bkctl

OTHER_USER = 54321
ONLY_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="files are given to another user")


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    path = str(tmp_path / "bkctl.admin.sock")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        server.settimeout(30)
        yield server, path


def ask(address: AdminAddress) -> None:
    async def change() -> None:
        async with AdminClient("b1", address, credentials=AdminCredentials(TOKEN), timeout_s=30) as client:
            await client.post("/api/v1/bkctl/stop", object)

    asyncio.run(change())


def received(server: socket.socket) -> bytes:
    connection, _ = server.accept()
    with connection:
        return connection.recv(65536)


async def test_a_socket_never_gets_the_token(listening: tuple[socket.socket, str]) -> None:
    server, path = listening
    asked = asyncio.create_task(asyncio.to_thread(ask, AdminAddress(path)))
    request = await asyncio.to_thread(received, server)
    assert request.startswith(b"POST /api/v1/bkctl/stop ")
    assert b"authorization" not in request.lower()
    with pytest.raises(BookieUnavailableError, match="closed before the answer"):
        await asked


def test_nothing_is_sent_if_another_user_listens(listening: tuple[socket.socket, str]) -> None:
    server, path = listening
    address = AdminAddress(path, user_id=os.geteuid() + 1)
    with pytest.raises(AdminAccessError, match="a process of another user"):
        ask(address)
    assert received(server) == b""
    with pytest.raises(AdminAccessError, match="a process of another user"):
        probe("b1", address, "/", 30)
    assert received(server) == b""


@ONLY_ROOT
@pytest.mark.cluster
def test_a_socket_of_another_user_is_used_only_with_its_directory(metadata_uri: str, tmp_path: Path) -> None:
    with running_bookie(metadata_uri, tmp_path) as bookie:
        os.chown(bookie.directory, OTHER_USER, -1)
        for _ in range(2):  # the directory is another user's, then also the socket
            by_id = run_bkctl("bookie", "state", bookie.bookie_id, "-o", "json", BKCTL_METADATA_URI=metadata_uri)
            assert by_id.exit_code == 0, by_id.stderr
            assert by_id.json()["answered_by"] == f"admin port 127.0.0.1:{bookie.http_port}"
            (found,) = (each for each in list_local() if each.directory == str(bookie.directory))
            assert not found.is_trusted
            os.chown(bookie.directory / "bkctl.admin.sock", OTHER_USER, -1)
        assert bookie.run("state").exit_code == 0


@ONLY_ROOT
@pytest.mark.cluster
def test_a_socket_of_another_user_and_no_admin_port(metadata_uri: str, tmp_path: Path) -> None:
    with running_bookie(metadata_uri, tmp_path, "httpServerEnabled=false") as bookie:
        os.chown(bookie.directory / "bkctl.admin.sock", OTHER_USER, -1)
        result = run_bkctl("bookie", "ready", bookie.bookie_id, BKCTL_METADATA_URI=metadata_uri)
        assert (result.exit_code, result.stdout) == (11, "")
        assert f"(--ledger-dir {bookie.directory})" in result.stderr
        assert "set httpServerEnabled=true" in result.stderr
