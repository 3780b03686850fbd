"""A development cluster on this machine: ZooKeeper, bookies and an autorecovery daemon, which outlive the shell."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

import javaproperties
import msgspec

from bkctl.commands.dev.cluster_state import (
    AUTORECOVERY,
    LOOPBACK,
    STATE_FILE,
    ZOOKEEPER,
    BookieRecord,
    ClusterState,
    ClusterStatus,
    ServerStatus,
    read_state,
    require_unused,
    write_state,
)
from bkctl.commands.dev.readiness import DevRegistrations, wait_elected, wait_ready
from bkctl.commands.errors import InvalidArgumentError, NotFoundError
from bkctl.commands.processes import (
    ProcessIdentity,
    identify,
    read_pid_file,
    send_signal,
    spawn_detached,
    wait_ended,
    write_pid_file,
)
from bkctl.runtime.bookie.cookies.check import require_cookie_path
from bkctl.runtime.errors import MetadataUnavailableError, RefusedError
from bkctl.runtime.metadata.zookeeper.embedded import (
    EmbeddedZooKeeper,
    choose_server_ports,
    find_java,
    find_zookeeper_jars,
    require_free,
)
from bkctl.storage import filenames
from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.errors import BkctlError
from bkctl.storage.words import counted

BOOKIES_DEFAULT = 3
_STOP_TIMEOUT_S = 30.0
_PID_FILE = "process.json"
_CONF_FILE = "bookie.conf"


class LocalCluster:
    """The cluster below one directory. ``say`` receives a message for each step; every method can be repeated."""

    def __init__(self, directory: str, say: Callable[[str], None]) -> None:
        self._directory = os.path.abspath(directory)
        self._say = say

    # --- state -------------------------------------------------------------------------------------------------

    def status(self) -> ClusterStatus:
        """State of every server; NotFoundError when there is no cluster in the directory."""
        state = self._require_state()
        zookeeper = self._status(ZOOKEEPER, f"{LOOPBACK}:{state.zookeeper_port}", state.zookeeper_port)
        bookies = tuple(map(self._bookie_status, state.bookies))
        return ClusterStatus(state.metadata_uri, zookeeper, bookies, self._daemon_status())

    def plan(self, bookie_count: int | None, base_port: int | None) -> ClusterState:
        """State that ``up`` would create in the directory; changes nothing.

        InvalidArgumentError, RefusedError; ConfigurationError for a directory name that is not possible in a cookie.
        """
        state = read_state(self._directory)
        if state is None:
            require_unused(self._directory)
            require_cookie_path(self._directory)
            count = BOOKIES_DEFAULT if bookie_count is None else bookie_count
            ports = choose_ports(base_port, 0, count + 1)
            bookies = tuple(_bookie(number, port) for number, port in enumerate(ports[1:], 1))
            return self._with_admin_ports(ClusterState(ports[0], bookies))
        existing_count = len(state.bookies)
        if bookie_count is not None and bookie_count < existing_count:
            raise InvalidArgumentError(
                f"the cluster in {self._directory} has {counted(existing_count, 'bookie')}; "
                "omit --bookies to start them, or remove some with bkctl decommission"
            )
        if base_port is not None and base_port != state.zookeeper_port:
            raise InvalidArgumentError(
                f"the cluster in {self._directory} already uses ports from "
                f"{state.zookeeper_port} on; --base-port is only for new clusters"
            )
        added_count = (bookie_count or existing_count) - existing_count
        ports = choose_ports(base_port, existing_count + 1, added_count)
        added = tuple(_bookie(number, port) for number, port in enumerate(ports, existing_count + 1))
        return self._with_admin_ports(msgspec.structs.replace(state, bookies=state.bookies + added))

    def server(self, server_id: str) -> ServerStatus:
        """State of one bookie, or of the autorecovery daemon; BookieNotFoundError."""
        state = self._require_state()
        return self._daemon_status() if server_id == AUTORECOVERY else self._bookie_status(state.bookie(server_id))

    def running_server(self, server_id: str) -> ServerStatus:
        """As ``server``; RefusedError when it does not run."""
        server = self.server(server_id)
        if server.pid is None:
            raise RefusedError(f"{server.title} is not running")
        return server

    # --- changes -----------------------------------------------------------------------------------------------

    async def up(self, bookie_count: int | None, base_port: int | None, *, has_daemon: bool) -> ClusterStatus:
        """Start every server that does not run; on failure, stop those started by this call.

        Of a cluster that was there before, what serves stays: a bookie that cannot start is repaired while it runs.
        """
        self._require_startable(self.plan(bookie_count, base_port))
        OsFileSystem().make_directories(self._directory)
        with self._locked():
            is_new = read_state(self._directory) is None
            state = self.plan(bookie_count, base_port)
            write_state(self._directory, state)
            await self._start_all(state, state.bookies, has_daemon=has_daemon, is_skipping_removed=True, is_new=is_new)
        return self.status()

    async def start(self, server_ids: Sequence[str]) -> ClusterStatus:
        """Start bookies or the daemon (and ZooKeeper, if it is down); BookieNotFoundError."""
        names = {self.server(each).name for each in server_ids}
        with self._locked():
            state = self.plan(None, None)
            write_state(self._directory, state)
            bookies = [each for each in state.bookies if each.name in names]
            await self._start_all(state, bookies, has_daemon=AUTORECOVERY in names, is_skipping_removed=False)
        return self.status()

    async def kill(self, server_id: str) -> ServerStatus:
        """kill -9 one server; returns when it is dead. BookieNotFoundError; RefusedError when it does not run."""
        server = self.server(server_id)
        with self._locked():
            process = self._process(server.name)
            if process is None or not send_signal(process, signal.SIGKILL):
                raise RefusedError(f"{server.title} is not running")
            await self._require_ended(process, server.title)
        return self.server(server_id)

    async def down(self, *, is_deleting: bool) -> ClusterStatus:
        """Stop the daemon, all bookies, then ZooKeeper; ``is_deleting`` removes only what ``up`` created."""
        self._require_state()
        with self._locked():
            state = self._require_state()
            await self._stop(AUTORECOVERY, AUTORECOVERY)
            await asyncio.gather(*(self._stop(bookie.name, f"bookie {bookie.id}") for bookie in state.bookies))
            await self._stop(ZOOKEEPER, ZOOKEEPER)
            status = self.status()
            if is_deleting:
                self._delete(state)
                status = status.deleted()
        return status

    def _require_startable(self, state: ClusterState) -> None:
        """Raise errors that can be predicted before anything is written."""
        if self._process(ZOOKEEPER) is None:
            find_java()
            find_zookeeper_jars()
            require_free(state.zookeeper_port, "ZooKeeper")
        for bookie in state.bookies:
            if self._process(bookie.name) is None:
                require_free(bookie.port, f"bookie {bookie.id}")
                require_free(bookie.admin_port, f"the admin interface of bookie {bookie.id}")

    # --- steps -------------------------------------------------------------------------------------------------

    async def _start_all(
        self,
        state: ClusterState,
        bookies: Sequence[BookieRecord],
        *,
        has_daemon: bool,
        is_skipping_removed: bool,
        is_new: bool = False,
    ) -> None:
        started: list[tuple[str, ProcessIdentity]] = []
        failures: list[str] = []
        try:
            await self._start_zookeeper(state, started)
            idle = [bookie for bookie in bookies if self._process(bookie.name) is None]
            has_daemon = has_daemon and self._process(AUTORECOVERY) is None
            if not idle and not has_daemon:
                return
            async with DevRegistrations.connect(state.metadata_uri) as live:
                if is_skipping_removed:
                    idle = [bookie for bookie in idle if not await self._is_removed(live, bookie)]
                failures = await self._start_bookies(state, idle, live, started, is_new=is_new)
                if has_daemon:
                    await self._start_daemon(state, live, started)
        except BaseException:
            await self._end(reversed(started))
            raise
        if failures:
            raise BkctlError(f"{'; '.join(failures)}; ZooKeeper and the other servers run")

    async def _end(self, started: Iterable[tuple[str, ProcessIdentity]]) -> None:
        for name, process in started:
            send_signal(process, signal.SIGTERM)
            if not await wait_ended(process, _STOP_TIMEOUT_S):
                self._say(f"{name} (pid {process.pid}) does not stop")

    async def _start_zookeeper(self, state: ClusterState, started: list[tuple[str, ProcessIdentity]]) -> None:
        if self._process(ZOOKEEPER) is not None:
            return
        server = await EmbeddedZooKeeper.start(
            self._directory_of(ZOOKEEPER),
            port=state.zookeeper_port,
            log_path=self._log(ZOOKEEPER),
            is_detached=True,
            on_spawned=self._remember_zookeeper,
        )
        process = identify(server.detach())
        if process is None:
            raise MetadataUnavailableError(f"ZooKeeper stopped right after its start: see {self._log(ZOOKEEPER)}")
        started.append((ZOOKEEPER, process))
        self._say(f"ZooKeeper listening on port {state.zookeeper_port} (pid {process.pid})")

    def _remember_zookeeper(self, pid: int) -> None:
        """Record the server before it serves, so that ``down`` finds it even if this command is killed meanwhile."""
        if (process := identify(pid)) is not None:
            write_pid_file(os.path.join(self._directory_of(ZOOKEEPER), _PID_FILE), process)

    async def _is_removed(self, live: DevRegistrations, bookie: BookieRecord) -> bool:
        """Whether the bookie was decommissioned: its directories have a cookie, the cluster has none."""
        if not self._has_cookie_file(bookie.name) or await live.is_member(bookie.id):
            return False
        self._say(f"bookie {bookie.id} was decommissioned and is not started")
        return True

    async def _start_bookies(
        self,
        state: ClusterState,
        idle: Sequence[BookieRecord],
        live: DevRegistrations,
        started: list[tuple[str, ProcessIdentity]],
        *,
        is_new: bool,
    ) -> list[str]:
        """Why some did not start; these have ended. BkctlError for the first one of a new cluster."""
        before = {bookie.id: await live.registration(bookie.id) for bookie in idle}
        processes: dict[str, ProcessIdentity] = {}
        log_sizes = {bookie.id: self._log_size(bookie.name) for bookie in idle}
        for bookie in idle:
            process = self._spawn(state, bookie)
            started.append((bookie.name, process))  # before its pid file: if the disk is full, only this list ends it
            write_pid_file(os.path.join(self._directory_of(bookie.name), _PID_FILE), process)
            processes[bookie.id] = process
        failures = []
        for bookie in idle:
            process = processes[bookie.id]
            ledgers = os.path.join(self._directory_of(bookie.name), "ledgers")
            if not await wait_ready(live, bookie.id, before[bookie.id], process, ledgers):
                await self._end([(bookie.name, process)])
                last_lines = self._last_log_lines(bookie.name, log_sizes[bookie.id])
                failures.append(f"bookie {bookie.id} did not start: {last_lines}")
                if is_new:
                    raise BkctlError(failures[0])
            else:
                self._say(f"bookie {bookie.id} is running (pid {process.pid})")
        return failures

    def _spawn(self, state: ClusterState, bookie: BookieRecord) -> ProcessIdentity:
        own_directory = self._directory_of(bookie.name)
        OsFileSystem().make_directories(own_directory)
        conf = os.path.join(own_directory, _CONF_FILE)
        # A file, so that the commands which the bookie's messages print work as they are: they name it.
        OsFileSystem().write_file_atomically(conf, _bookie_conf(state, bookie, own_directory))
        command = [sys.executable, "-P", "-m", "bkctl", "bookie", "start", "--conf", conf]
        return self._spawn_command(command, bookie.name, f"bookie {bookie.id}")

    async def _start_daemon(
        self, state: ClusterState, live: DevRegistrations, started: list[tuple[str, ProcessIdentity]]
    ) -> None:
        """Start the autorecovery daemon; it is the auditor when this returns, unless another process is."""
        OsFileSystem().make_directories(self._directory_of(AUTORECOVERY))
        log_size = self._log_size(AUTORECOVERY)
        words = ("autorecovery", "start", "--metadata-uri", state.metadata_uri)
        process = self._spawn_command([sys.executable, "-P", "-m", "bkctl", *words], AUTORECOVERY, AUTORECOVERY)
        started.append((AUTORECOVERY, process))
        write_pid_file(os.path.join(self._directory_of(AUTORECOVERY), _PID_FILE), process)
        if not await wait_elected(live, process):
            raise BkctlError(f"{AUTORECOVERY} did not start: {self._last_log_lines(AUTORECOVERY, log_size)}")
        self._say(f"{AUTORECOVERY} is running (pid {process.pid})")

    def _spawn_command(self, command: Sequence[str], name: str, title: str) -> ProcessIdentity:
        """A development cluster is the same for every user: ignore the user's environment and files."""
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("BKCTL_", "BOOKIE_"))}
        process = spawn_detached(command, self._log(name), inherited | {"BKCTL_CONFIG": os.devnull})
        if process is None:
            raise BkctlError(f"{title} did not start: see {self._log(name)}")
        return process

    async def _stop(self, name: str, title: str) -> None:
        process = self._process(name)
        if process is None or not send_signal(process, signal.SIGTERM):
            return
        if not await wait_ended(process, _STOP_TIMEOUT_S):
            self._say(f"{title} (pid {process.pid}) did not stop within {_STOP_TIMEOUT_S:g} s: killing it")
            send_signal(process, signal.SIGKILL)
            await self._require_ended(process, title)
        self._say(f"{title} stopped")

    async def _require_ended(self, process: ProcessIdentity, title: str) -> None:
        if not await wait_ended(process, _STOP_TIMEOUT_S):
            raise BkctlError(f"{title} (pid {process.pid}) did not end after SIGKILL: it hangs in the kernel")

    def _delete(self, state: ClusterState) -> None:
        for name in (*(bookie.name for bookie in state.bookies), AUTORECOVERY, ZOOKEEPER):
            with suppress(FileNotFoundError):
                shutil.rmtree(self._directory_of(name))
        for name in (STATE_FILE, filenames.LOCK):
            os.unlink(os.path.join(self._directory, name))
        if not os.listdir(self._directory):
            os.rmdir(self._directory)
        self._say(f"deleted the data below {self._directory}")

    # --- paths -------------------------------------------------------------------------------------------------

    @contextmanager
    def _locked(self) -> Iterator[None]:
        lock = OsFileSystem().lock_directory(self._directory)
        try:
            yield
        finally:
            lock.release()

    def _require_state(self) -> ClusterState:
        state = read_state(self._directory)
        if state is None:
            raise NotFoundError(
                f"no development cluster in {self._directory}: "
                f"start one with bkctl dev cluster up --dir {shlex.quote(self._directory)}"
            )
        return state

    def _directory_of(self, name: str) -> str:
        return os.path.join(self._directory, name)

    def _log(self, name: str) -> str:
        return os.path.join(self._directory, name, f"{name if name in {ZOOKEEPER, AUTORECOVERY} else 'bookie'}.log")

    def _process(self, name: str) -> ProcessIdentity | None:
        return read_pid_file(os.path.join(self._directory_of(name), _PID_FILE))

    def _with_admin_ports(self, state: ClusterState) -> ClusterState:
        """A port for each bookie without one. A running bookie gets it when it starts again."""
        lacking = [each.id for each in state.bookies if not each.admin_port and self._process(each.name) is None]
        taken = {state.zookeeper_port, *(port for each in state.bookies for port in (each.port, each.admin_port))}
        free = [port for port in choose_server_ports(len(lacking) + len(taken)) if port not in taken]
        ports = dict(zip(lacking, free, strict=False))
        changed = (msgspec.structs.replace(e, admin_port=ports.get(e.id, e.admin_port)) for e in state.bookies)
        return msgspec.structs.replace(state, bookies=tuple(changed))

    def _bookie_status(self, bookie: BookieRecord) -> ServerStatus:
        return self._status(bookie.name, bookie.id, bookie.port, bookie.admin_port or None)

    def _daemon_status(self) -> ServerStatus:
        return self._status(AUTORECOVERY, AUTORECOVERY, None)

    def _status(self, name: str, server_id: str, port: int | None, admin_port: int | None = None) -> ServerStatus:
        process = self._process(name)
        return ServerStatus(
            id=server_id,
            name=name,
            state="stopped" if process is None else "running",
            pid=None if process is None else process.pid,
            port=port,
            admin_port=admin_port,
            dir=self._directory_of(name),
            log=self._log(name),
        )

    def _has_cookie_file(self, name: str) -> bool:
        journal = os.path.join(self._directory_of(name), "journal")
        return os.path.exists(os.path.join(filenames.current_directory(journal), filenames.VERSION))

    def _log_size(self, name: str) -> int:
        try:
            return os.stat(self._log(name)).st_size
        except FileNotFoundError:
            return 0

    def _last_log_lines(self, name: str, offset: int) -> str:
        """Last error line of a log from ``offset`` on, or the path of the log."""
        with open(self._log(name), encoding="utf-8", errors="replace") as file:
            file.seek(offset)
            errors = [line.partition("error: ")[2].strip() for line in file if line.startswith("error: ")]
        return f"{errors[-1]} (log: {self._log(name)})" if errors else f"see {self._log(name)}"


def _bookie(number: int, port: int) -> BookieRecord:
    return BookieRecord(name=f"bookie-{number}", id=f"{LOOPBACK}:{port}", port=port)


def _bookie_conf(state: ClusterState, bookie: BookieRecord, directory: str) -> bytes:
    settings = {
        "metadataServiceUri": state.metadata_uri,
        "bookiePort": str(bookie.port),
        "bookieId": bookie.id,
        "advertisedAddress": LOOPBACK,
        "allowLoopback": "true",
        "journalDirectories": os.path.join(directory, "journal"),
        "ledgerDirectories": os.path.join(directory, "ledgers"),
        "httpServerEnabled": "true",
        "httpServerPort": str(bookie.admin_port),
        "diskUsageThreshold": "0.99",  # 5 % of a developer's disk is more than a trial needs
    }
    comment = "bkctl dev cluster writes this file whenever it starts the bookie"
    text: str = javaproperties.dumps(settings, comments=comment, timestamp=False)
    return text.encode()


def choose_ports(base_port: int | None, offset: int, count: int) -> list[int]:
    """Consecutive ports from the base on, or free ones that stay reserved while a server is down.

    InvalidArgumentError if there are not enough ports after the base.
    """
    if base_port is None:
        return choose_server_ports(count)
    if base_port + offset + count > 65536:
        raise InvalidArgumentError(f"--base-port {base_port} leaves no room for {count} ports below 65536")
    return list(range(base_port + offset, base_port + offset + count))
