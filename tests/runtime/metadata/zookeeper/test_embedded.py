from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from bkctl.runtime.errors import ConfigurationError, ConflictError, MetadataUnavailableError
from bkctl.runtime.metadata.zookeeper.embedded import (
    EmbeddedZooKeeper,
    choose_server_ports,
    find_java,
    find_zookeeper_jars,
    is_serving,
)
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from tests.processes import LOOPBACK


async def test_data_outlives_the_server(tmp_path: Path) -> None:
    async with await EmbeddedZooKeeper.start(str(tmp_path / "a b\u00fc")) as server:
        async with await ZooKeeperStore.connect(server.connect_string) as store:
            await store.create("/kept", b"x")
        port = server.port
    assert not server.is_running
    assert not await is_serving(port)
    async with (
        await EmbeddedZooKeeper.start(str(tmp_path / "a b\u00fc"), port=port) as server,
        await ZooKeeperStore.connect(server.connect_string) as store,
    ):
        assert server.port == port
        assert (await store.get("/kept")).data == b"x"
    assert "Starting server" in Path(server.log_path).read_text()


async def test_one_server_per_directory_and_port(tmp_path: Path) -> None:
    async with await EmbeddedZooKeeper.start(str(tmp_path / "a")) as server:
        with pytest.raises(ConflictError, match="another ZooKeeper server runs in") as caught:
            await EmbeddedZooKeeper.start(str(tmp_path / "a"))
        named = re.search(r"stop process (\d+) first", str(caught.value))
        assert named is not None
        assert Path(f"/proc/{named[1]}/cwd").samefile(tmp_path / "a")
        with pytest.raises(ConfigurationError, match=f"port {server.port} is in use"):
            await EmbeddedZooKeeper.start(str(tmp_path / "b"), port=server.port)
        assert await is_serving(server.port)


async def test_a_server_that_cannot_start_says_where_to_look(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("no directory")
    with pytest.raises(MetadataUnavailableError, match=r"exited immediately: see .*zookeeper\.log"):
        await EmbeddedZooKeeper.start(str(tmp_path))


def test_a_detached_server_outlives_its_starter(tmp_path: Path) -> None:
    code = (
        "import asyncio, sys\n"
        "from bkctl.runtime.metadata.zookeeper.embedded import EmbeddedZooKeeper\n"
        "async def main():\n"
        "    server = await EmbeddedZooKeeper.start(sys.argv[1], is_detached=True)\n"
        "    print(server.port, server.detach())\n"
        "asyncio.run(main())\n"
    )
    command = [sys.executable, "-W", "error", "-c", code, str(tmp_path)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    assert answer.stderr == ""
    port, pid = (int(word) for word in answer.stdout.split())
    try:
        code = (
            "import asyncio, sys\nfrom bkctl.runtime.metadata.zookeeper.embedded import is_serving\n"
            f"sys.exit(not asyncio.run(is_serving({port})))"
        )
        subprocess.run([sys.executable, "-c", code], check=True)
        assert os.getsid(pid) == pid
    finally:
        os.kill(pid, signal.SIGKILL)


def test_no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match="needs Java 17 or newer: install it"):
        find_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigurationError, match=f"no java in {tmp_path}/bin"):
        find_java()


def test_old_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    java = tmp_path / "bin" / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_402\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigurationError, match="is version 8"):
        find_java()
    (tmp_path / "release").write_text('JAVA_VERSION="21.0.1"\n')
    assert find_java() == str(java)


def test_the_jars_are_found_without_importing_pyspark() -> None:
    code = (
        "import sys\nfrom bkctl.runtime.metadata.zookeeper.embedded import find_zookeeper_jars\n"
        "print(find_zookeeper_jars())\nassert not any(name.startswith('pyspark') for name in sys.modules)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == find_zookeeper_jars()
    assert all(os.path.isfile(path) for path in answer.stdout.strip().split(os.pathsep))


async def test_a_start_that_cannot_be_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with await EmbeddedZooKeeper.start(str(tmp_path / "other")) as server:
        with pytest.raises(ConfigurationError, match="is in use"):
            await EmbeddedZooKeeper.start(str(tmp_path / "data" / "zookeeper"), port=server.port)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "no-java"))
    with pytest.raises(ConfigurationError, match="needs Java"):
        await EmbeddedZooKeeper.start(str(tmp_path / "data" / "zookeeper"))
    assert not (tmp_path / "data").exists()


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
