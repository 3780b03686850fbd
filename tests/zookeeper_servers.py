"""ZooKeeper servers as the embedded one is not: with users, with TLS, three in an ensemble. From pyspark's jars.

Everything listens on loopback, and is ended by its process id.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, Self

from bkctl.runtime.metadata.zookeeper.embedded import find_java, find_zookeeper_jars
from tests.processes import LOOPBACK, free_port
from tests.until import wait_until

_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_EPOLL = "netty-transport-classes-epoll"
_JVM_FLAGS = (
    "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-XX:-UsePerfData",
    "-Dzookeeper.jmx.log4j.disable=true", "-Dlog4j2.disableJmx=true", "-Dzookeeper.preAllocSize=1024",
)  # fmt: skip
_CONFIG = {
    "dataDir": "./data",
    "tickTime": "500",
    "minSessionTimeout": "1000",
    "maxSessionTimeout": "60000",
    "maxClientCnxns": "0",
    "admin.enableServer": "false",
    "4lw.commands.whitelist": "srvr,isro",
}


def _class_path() -> str:
    """What the embedded server takes, and what TLS needs besides."""
    jars = find_zookeeper_jars()
    directory = os.path.dirname(jars.split(os.pathsep)[0])
    return os.pathsep.join([jars, *(os.path.join(directory, name) for name in os.listdir(directory) if _EPOLL in name)])


def four_letters(port: int, word: bytes) -> bytes:
    """What a server answers to ``srvr`` or ``isro``; empty when it does not."""
    try:
        with socket.create_connection((LOOPBACK, port), 2.0) as connection:
            connection.sendall(word)
            return b"".join(iter(lambda: connection.recv(4096), b""))
    except OSError:
        return b""


def packets_received(port: int) -> int:
    """Packets that the server has ever received, by its own count; 0 when it does not answer."""
    lines = four_letters(port, b"srvr").decode().splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith("Received:")), 0)


class ZooKeeperServer:
    """One server process, which can be stopped, killed, halted and started again on its directory and port."""

    def __init__(self, directory: Path, config: Mapping[str, str], properties: Mapping[str, str], port: int) -> None:
        self.directory = directory
        self.port = port
        self._properties = dict(properties)
        self._process: subprocess.Popen[bytes] | None = None
        (directory / "data").mkdir(parents=True, exist_ok=True)
        lines = [f"{key}={value}" for key, value in {**_CONFIG, **config}.items()]
        (directory / "zoo.cfg").write_text("\n".join(lines) + "\n")

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the process; it does not serve yet."""
        properties = [f"-D{name}={value}" for name, value in self._properties.items()]
        command = [find_java(), *_JVM_FLAGS, *properties, "-cp", _class_path(), _MAIN, "./zoo.cfg"]
        with open(self.directory / "server.log", "ab") as log:
            self._process = subprocess.Popen(
                command, cwd=self.directory, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0
            )

    def kill(self) -> None:
        """SIGKILL, also while halted; fine if it is gone already."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def halt(self) -> None:
        """SIGSTOP."""
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    @property
    def mode(self) -> str:
        """``leader``, ``follower``, ``standalone``, ``read-only``, or empty while it serves nobody."""
        for line in four_letters(self.port, b"srvr").decode().splitlines():
            if line.startswith("Mode: "):
                return line.removeprefix("Mode: ")
        return ""

    def wait_for_port(self) -> None:
        """Until somebody listens; all there is to see of a server that takes TLS only."""

        def listens() -> bool:
            assert self.is_running, self._end_of_log()
            with contextlib.suppress(OSError), socket.create_connection((LOOPBACK, self.port), 2.0):
                return True
            return False

        wait_until(listens, f"ZooKeeper listens on {self.address}", tell=self._end_of_log)

    def wait_for_mode(self, *modes: str) -> None:
        """Until it is one of these."""

        def has_mode() -> bool:
            assert self.is_running, self._end_of_log()
            return self.mode in modes

        wait_until(has_mode, f"{self.address} is one of {modes}", tell=lambda: self.mode)

    def _end_of_log(self) -> str:
        return (self.directory / "server.log").read_text()[-3000:]


@contextlib.contextmanager
def secured_server(
    directory: Path, config: Mapping[str, str], properties: Mapping[str, str]
) -> Iterator[ZooKeeperServer]:
    """A single server with settings of its own, on a plain port unless they name an address for a secure one."""
    port = free_port()
    where = {"clientPortAddress": LOOPBACK, "clientPort": str(port)}
    if "secureClientPortAddress" in config:
        where = {"secureClientPort": str(port)}
    server = ZooKeeperServer(directory, {**where, **config}, properties, port)
    server.start()
    try:
        if "secureClientPort" in where:
            server.wait_for_port()
        else:
            server.wait_for_mode("standalone")  # its port is open a moment before it serves
        yield server
    finally:
        server.kill()


class _Ports(NamedTuple):
    client: int
    quorum: int
    election: int


class Ensemble:
    """Three servers that elect a leader; one cut off from the others serves reads only."""

    def __init__(self, directory: Path) -> None:
        chosen = [free_port() for _ in range(9)]
        ports = [_Ports(*chosen[start : start + 3]) for start in (0, 3, 6)]
        members = {
            f"server.{number}": f"{LOOPBACK}:{each.quorum}:{each.election}" for number, each in enumerate(ports, 1)
        }
        self.servers = []
        for number, each in enumerate(ports, 1):
            config = {
                "initLimit": "20",
                "syncLimit": "6",
                "clientPort": str(each.client),
                "clientPortAddress": LOOPBACK,
                **members,
            }
            server = ZooKeeperServer(directory / str(number), config, {"readonlymode.enabled": "true"}, each.client)
            (server.directory / "data" / "myid").write_text(str(number))
            self.servers.append(server)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def addresses(self) -> str:
        """Connect string of all three."""
        return ",".join(server.address for server in self.servers)

    def metadata_uri(self, root: str) -> str:
        return f"zk+hierarchical://{self.addresses.replace(',', ';')}{root}"

    @property
    def leader(self) -> ZooKeeperServer:
        return next(server for server in self.servers if server.mode == "leader")

    def start(self) -> None:
        """Start what does not run, and wait until all three serve."""
        for server in self.servers:
            if not server.is_running:
                server.start()
        for server in self.servers:
            server.wait_for_mode("leader", "follower")

    def kill(self) -> None:
        for server in self.servers:
            server.kill()
