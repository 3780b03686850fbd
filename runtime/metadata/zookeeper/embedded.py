"""A real ZooKeeper server on this machine, from the jars inside pyspark: for development, demos and tests.

It listens only on the loopback address, without the admin server. The server process holds a lock on the data
directory, so that a second server cannot use it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import importlib.util
import os
import re
import secrets
import shutil
import socket
import subprocess
from collections.abc import Callable, Sequence
from typing import Self

from bkctl.runtime.errors import ConfigurationError, ConflictError, MetadataUnavailableError, PortInUseError
from bkctl.runtime.new_file import write_whole
from bkctl.runtime.optional_packages import require_package
from bkctl.storage.adapters.filesystem import OsFileSystem, open_to_append

LOOPBACK = "127.0.0.1"
JAVA_VERSION_MIN = 17
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 10.0

_POLL_INTERVAL_S = 0.02
_PORT_ATTEMPTS_MAX = 3
_PORT_MIN = 15_000
"""Most ports of well-known servers are lower."""
_PORT_ROOM_MIN = 1000
_BIND_ATTEMPTS_MAX = 100
_PORT_RANGE_PATH = "/proc/sys/net/ipv4/ip_local_port_range"
_PORT_RANGE_START_DEFAULT = 32_768
_INSTALL_JAVA = (
    f"{{needed_by}} needs Java {JAVA_VERSION_MIN} or newer: "
    "install it (Debian, Ubuntu: apt install default-jre-headless) or set JAVA_HOME"
)
_PID_BYTES_MAX = 20
_JAR_PREFIXES = (
    "zookeeper-", "slf4j-api-", "log4j-api-", "log4j-core-", "log4j-slf4j2-impl-", "metrics-core-", "snappy-java-",
    "commons-io-", "netty-common-", "netty-buffer-", "netty-handler-4", "netty-transport-4", "netty-codec-4",
    "netty-codec-base-", "netty-resolver-4", "netty-transport-native-unix-common-",
)  # fmt: skip
_JVM_FLAGS = (
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",  # only the quick compiler: starts half a second faster
    "-Xshare:auto",
    "-XX:-UsePerfData",
    "-Dzookeeper.jmx.log4j.disable=true",
    "-Dlog4j2.disableJmx=true",
    "-Dzookeeper.preAllocSize=1024",  # KiB per step of the transaction log; 64 MiB by default
)
_SERVER_CONFIG = """\
dataDir=./data
clientPort={port}
clientPortAddress={address}
tickTime=500
minSessionTimeout=1000
maxSessionTimeout=60000
maxClientCnxns=0
admin.enableServer=false
4lw.commands.whitelist=srvr
autopurge.snapRetainCount=3
autopurge.purgeInterval=1
"""
_LOG_CONFIG = """\
status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{ISO8601} %-5p %c{1} %m%n
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
"""


def find_java(needed_by: str = "the embedded ZooKeeper") -> str:
    """Path of a java of version 17 or newer, from JAVA_HOME or PATH; ConfigurationError says what to install."""
    advice = _INSTALL_JAVA.format(needed_by=needed_by)
    java_home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=os.path.join(java_home, "bin")) if java_home else shutil.which("java")
    if java is None:
        raise ConfigurationError(advice + (f" (no java in {java_home}/bin)" if java_home else ""))
    version = java_version(java)
    if version < JAVA_VERSION_MIN:
        raise ConfigurationError(f"{advice} ({java} is version {version})")
    return java


def java_version(java: str) -> int:
    """Major version, from the release file of the runtime or by running it (which takes 50 ms)."""
    release_path = os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(java))), "release")
    try:
        with open(release_path, encoding="utf-8") as release:
            text = release.read()
    except OSError:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)  # noqa: S603
        text = answer.stderr
    found = re.search(r'(?:JAVA_VERSION=|version )"(?:1\.)?(\d+)', text)
    return int(found[1]) if found else 0


def find_zookeeper_jars() -> str:
    """Class path of the ZooKeeper server inside pyspark, found without importing it; ConfigurationError if absent."""
    require_package("pyspark", "the embedded ZooKeeper needs the jars in PySpark")
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.submodule_search_locations
    directory = os.path.join(spec.submodule_search_locations[0], "jars")
    try:
        names = sorted(name for name in os.listdir(directory) if name.startswith(_JAR_PREFIXES))
    except OSError:
        names = []
    if not any(re.match(r"zookeeper-\d", name) for name in names):
        raise ConfigurationError(f"no ZooKeeper jar in {directory}: reinstall pyspark (pip install --force pyspark)")
    return os.pathsep.join(os.path.join(directory, name) for name in names)


def require_free(port: int, title: str) -> None:
    """PortInUseError if another process listens there; ``title`` is the server that needs the port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            raise PortInUseError(f"port {port} is in use: {title} cannot listen on it") from error


def _prepare_directory(data_directory: str, log_path: str | None) -> tuple[str, str]:
    data_directory = os.path.abspath(data_directory)
    OsFileSystem().make_directories(data_directory)
    return data_directory, os.path.abspath(log_path or os.path.join(data_directory, "zookeeper.log"))


def _lock_directory(data_directory: str) -> int:
    """Descriptor that holds the directory's lock; the server inherits it and holds the lock until it ends."""
    descriptor = os.open(
        os.path.join(data_directory, "lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
    )
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        owner = os.pread(descriptor, _PID_BYTES_MAX, 0).decode("ascii", "replace").strip()
        os.close(descriptor)
        advice = f": stop process {owner} first" if owner.isdecimal() else ""
        raise ConflictError(f"another ZooKeeper server runs in {data_directory}{advice}") from error
    os.ftruncate(descriptor, 0)
    return descriptor


def server_command() -> list[str]:
    """Command line of the server, to run in its data directory; ConfigurationError says what to install."""
    return [
        find_java(),
        *_JVM_FLAGS,
        "-Dlog4j2.configurationFile=./log4j2.properties",
        "-cp",
        find_zookeeper_jars(),
        "org.apache.zookeeper.server.ZooKeeperServerMain",
        "./zookeeper.cfg",
    ]


def _spawn(
    command: Sequence[str], data_directory: str, port: int, log_path: str, *, is_detached: bool
) -> subprocess.Popen[bytes]:
    # Paths are relative to the working directory: the server reads its configuration as Latin-1 with escapes.
    config = _SERVER_CONFIG.format(port=port, address=LOOPBACK)
    write_whole(os.path.join(data_directory, "zookeeper.cfg"), config.encode("ascii"))
    write_whole(os.path.join(data_directory, "log4j2.properties"), _LOG_CONFIG.encode("ascii"))
    lock = _lock_directory(data_directory)
    try:
        with open(open_to_append(log_path), "ab") as log:
            process = subprocess.Popen(  # noqa: S603
                command,
                cwd=data_directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=(lock,),
                start_new_session=is_detached,
                # Ctrl-C must not stop an attached server: its owner still needs it to unregister.
                process_group=None if is_detached else 0,
            )
            # The pid identifies a server that still uses the directory after its owner was killed.
            os.pwrite(lock, b"%d\n" % process.pid, 0)
            return process
    finally:
        os.close(lock)


async def is_serving(port: int) -> bool:
    """Whether a ZooKeeper server answers the ``srvr`` command there."""
    try:
        async with asyncio.timeout(2.0):
            reader, writer = await asyncio.open_connection(LOOPBACK, port)
            try:
                writer.write(b"srvr")
                return b"Mode: " in await reader.read()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False


class EmbeddedZooKeeper:
    """A running server; obtain it from ``start``."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log_path: str) -> None:
        self._process = process
        self.port = port
        self.log_path = log_path

    @classmethod
    async def start(
        cls,
        data_directory: str,
        *,
        port: int = 0,
        log_path: str | None = None,
        is_detached: bool = False,
        on_spawned: Callable[[int], None] | None = None,
    ) -> Self:
        """Start a server and wait until it serves (about one second).

        ``port`` 0 takes a free one; ``log_path`` defaults to ``zookeeper.log`` in the data directory. A detached server
        outlives this process and its terminal. ``on_spawned`` gets its pid before it serves, so that the caller can
        record it and may be killed while it waits. ConfigurationError: no Java, no jars, port in use; ConflictError:
        the directory has a server; MetadataUnavailableError: it did not start: see the log.
        """
        # Check everything that can fail before creating anything: a failed start leaves no directory.
        command = server_command()
        if port:
            require_free(port, "ZooKeeper")
        data_directory, log_path = _prepare_directory(data_directory, log_path)
        for _ in range(1 if port else _PORT_ATTEMPTS_MAX):
            chosen_port = port or choose_server_ports(1)[0]
            process = _spawn(command, data_directory, chosen_port, log_path, is_detached=is_detached)
            server = cls(process, chosen_port, log_path)
            try:
                if on_spawned is not None:
                    on_spawned(server.pid)
                if await server._wait_ready():
                    return server
            except BaseException:
                await server.stop()
                raise
        raise MetadataUnavailableError(f"the embedded ZooKeeper exited immediately: see {log_path}")

    async def _wait_ready(self) -> bool:
        """True once it serves; False if it ended, for example because another process took the free port first."""
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                while self._process.poll() is None:
                    if await is_serving(self.port):
                        return True
                    await asyncio.sleep(_POLL_INTERVAL_S)
        except TimeoutError:
            raise MetadataUnavailableError(
                f"the embedded ZooKeeper is not ready after {START_TIMEOUT_S:g} s: see {self.log_path}"
            ) from None
        return False

    @property
    def pid(self) -> int:
        """Process id of the server."""
        return self._process.pid

    @property
    def connect_string(self) -> str:
        """Address for a ZooKeeper client, ``host:port``."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def is_running(self) -> bool:
        """Whether the server process is running."""
        return self._process.poll() is None

    def detach(self) -> int:
        """Give up ownership of a detached server and return its pid; the caller must then stop it."""
        # Popen would warn when it is destroyed that the child still runs, which is intended here.
        self._process.returncode = 0
        return self._process.pid

    async def wait_ended(self) -> int:
        """Wait until the server process ends by itself; return its exit status."""
        while (status := self._process.poll()) is None:  # noqa: ASYNC110  not a child of asyncio: poll
            await asyncio.sleep(0.2)
        return status

    async def stop(self) -> None:
        """Stop with SIGTERM, then SIGKILL if that takes too long. Acknowledged writes are on disk either way."""
        if self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                while self._process.poll() is None:  # noqa: ASYNC110  not a child of asyncio: poll
                    await asyncio.sleep(_POLL_INTERVAL_S)
        except TimeoutError:
            self._process.kill()
            self._process.wait()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


def choose_server_ports(count: int) -> list[int]:
    """Choose ``count`` different ports for servers that start now and restart later; no process listens on them now.

    The system assigns ports of one range to outgoing connections and to processes that bind port 0. A server with a
    port of that range may lose it whenever it is down. Below the range, a process gets a port only if it asks for it by
    number.

    All probes stay open until the last port is chosen, so that no port is chosen twice. If nearly all ports are in the
    system's range, the system chooses them. OSError when it has none left.
    """
    with contextlib.ExitStack() as probes:
        return [_bind_one(probes.enter_context(socket.socket())) for _ in range(count)]


def _bind_one(probe: socket.socket) -> int:
    room = _handed_out_from() - _PORT_MIN
    for _ in range(_BIND_ATTEMPTS_MAX if room >= _PORT_ROOM_MIN else 0):
        with contextlib.suppress(OSError):
            probe.bind((LOOPBACK, _PORT_MIN + secrets.randbelow(room)))
            break
    else:
        probe.bind((LOOPBACK, 0))
    port: int = probe.getsockname()[1]
    return port


def _handed_out_from() -> int:
    try:
        with open(_PORT_RANGE_PATH, encoding="ascii") as file:
            return int(file.read().split()[0])
    except FileNotFoundError:  # not Linux
        return _PORT_RANGE_START_DEFAULT
