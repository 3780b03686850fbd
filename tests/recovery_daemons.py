"""``bkctl autorecovery start`` as a process, and what daemons say of themselves in ZooKeeper."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import msgspec
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from bkctl.runtime.metadata.replication.recovery_notes import DaemonNote, notes_path
from bkctl.runtime.metadata.uri import parse_metadata_uri
from tests.processes import BkctlProcess, kill_and_wait, start_bkctl

WAIT_MAX_S = 120.0
"""Far above any honest wait: it only keeps a hung process from hanging the test run."""


class RecoveryDaemon:
    """A daemon that can be stopped, killed, halted and started again. ``variables`` are settings."""

    def __init__(self, metadata_uri: str, directory: Path, *arguments: str, **variables: str) -> None:
        self.directory = directory
        self._arguments = ("autorecovery", "start", *arguments)
        self._variables = {"BKCTL_METADATA_URI": metadata_uri, "XDG_RUNTIME_DIR": str(directory), **variables}
        self._process: BkctlProcess | None = None
        directory.mkdir(parents=True, exist_ok=True)

    @property
    def pid(self) -> int:
        """Of the process that was started last."""
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """What it wrote, in all runs."""
        return (self.directory / "daemon.log").read_text()

    def metrics(self) -> dict[str, float]:
        """What it reports now, by name and labels. The path of its socket has a limit: give it a short directory."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self.directory / "bkctl" / f"autorecovery-{self.pid}.admin.sock"))
            connection.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            with connection.makefile(encoding="utf-8") as answer:
                lines = answer.read().partition("\n\n")[2].splitlines()
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[:1] != "#")}

    def start(self) -> None:
        """Start the process; it is not ready yet."""
        with open(self.directory / "daemon.log", "ab") as log:
            self._process = start_bkctl(*self._arguments, stdout=log, stderr=log, variables=self._variables)

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)
        self._process.terminate()
        return self._process.wait(WAIT_MAX_S)

    def kill(self) -> None:
        """SIGKILL; fine if it does not run."""
        if self._process is not None and self.is_running:
            kill_and_wait(self.pid)
            self._process.wait(WAIT_MAX_S)  # closes the connection over which its exit code comes

    def halt(self) -> None:
        """SIGSTOP."""
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)


def daemon_notes(zookeeper: KazooClient, metadata_uri: str) -> dict[int, DaemonNote]:
    """What the running daemons of a cluster do, by process id."""
    directory = f"{notes_path(parse_metadata_uri(metadata_uri).root)}/daemons"
    found = []
    try:
        for name in zookeeper.get_children(directory):
            found.append(msgspec.json.decode(zookeeper.get(f"{directory}/{name}")[0], type=DaemonNote))
    except NoNodeError:
        pass  # none yet, or one ended meanwhile
    return {each.pid: each for each in found}
