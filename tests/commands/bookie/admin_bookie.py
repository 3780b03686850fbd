"""A bookie process with an admin interface, for tests of the commands that use it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.processes import LOOPBACK, BkctlProcess, BkctlResult, free_port, kill_and_wait, run_bkctl, start_bkctl
from tests.until import wait_until

DEADLINE_S = 60.0
TOKEN = "correct horse"


class AdminBookie(NamedTuple):
    """A running bookie. ``directory``: its ledger directory."""

    bookie_id: str
    metadata_uri: str
    directory: Path
    log: Path
    http_port: int
    words: tuple[str, ...]
    process: BkctlProcess

    def run(self, *arguments: str) -> BkctlResult:
        """``bkctl bookie ...`` over the socket."""
        return run_bkctl("bookie", *arguments, "--ledger-dir", str(self.directory))

    def run_over_tcp(self, *arguments: str, token_file: Path | str = "") -> BkctlResult:
        """``bkctl bookie ... ID``, with this bookie's socket out of sight."""
        with self.without_socket():
            return run_bkctl(
                "bookie",
                *arguments,
                self.bookie_id,
                BKCTL_METADATA_URI=self.metadata_uri,
                BKCTL_ADMIN_TOKEN_FILE=str(token_file),
                BKCTL_ADMIN_TOKEN_HOSTS=f"{LOOPBACK}:{self.http_port}",
            )

    @contextlib.contextmanager
    def without_socket(self) -> Iterator[None]:
        """Inside, the socket of this bookie is out of sight, as on another machine."""
        socket = self.directory / "bkctl.admin.sock"
        away = socket.with_name("away")
        socket.rename(away)
        try:
            yield
        finally:
            away.rename(socket)


@contextlib.contextmanager
def running_bookie(
    metadata_uri: str,
    directory: Path,
    *settings: str,
    has_token: bool = True,
    variables: Mapping[str, str] | None = None,
) -> Iterator[AdminBookie]:
    """A new bookie that serves; killed at the end of the block. ``variables`` are added to its environment."""
    made = run_bkctl("cluster", "init", "--if-not-exists", BKCTL_METADATA_URI=metadata_uri)
    assert made.exit_code == 0, made.stderr
    directory.mkdir(parents=True, exist_ok=True)
    port, http_port, token = free_port(), free_port(), directory / "token"
    token.touch(0o600)
    token.write_text(f"{TOKEN}\n")
    given = [
        *("allowLoopback=true", "diskUsageThreshold=0.99", "httpServerEnabled=true", f"httpServerPort={http_port}"),
        *([f"adminTokenFile={token}"] if has_token else []),
        *settings,
    ]
    words = (
        *("bookie", "start", "--metadata-uri", metadata_uri, "--port", str(port)),
        *("--bookie-id", f"{LOOPBACK}:{port}", "--advertised-address", LOOPBACK),
        *("--journal-dir", str(directory / "journal"), "--ledger-dir", str(directory / "ledgers")),
        *(word for each in given for word in ("--set", each)),
    )
    bookie_id, log = f"{LOOPBACK}:{port}", directory / "bookie.log"
    with _started(words, log, variables) as process:
        wait_said(log, f"listening on port {port}", process)
        yield AdminBookie(bookie_id, metadata_uri, directory / "ledgers", log, http_port, words, process)


@contextlib.contextmanager
def start_again(bookie: AdminBookie) -> Iterator[AdminBookie]:
    """The same bookie in a new process that may not serve yet; killed at the end of the block."""
    with _started(bookie.words, bookie.log) as process:
        yield bookie._replace(process=process)


def wait_said(log: Path, sentence: str, process: BkctlProcess | subprocess.Popen[bytes]) -> None:
    """Return once the log has the sentence."""
    wait_until(lambda: sentence in log.read_text(), process=process, tell=log.read_text)


@contextlib.contextmanager
def _started(words: tuple[str, ...], log: Path, variables: Mapping[str, str] | None = None) -> Iterator[BkctlProcess]:
    with log.open("wb") as output:
        process = start_bkctl(*words, stderr=output, variables=variables)
    try:
        yield process
    finally:
        kill_and_wait(process.pid)
        process.wait()


def halt_builder(bookie_pid: int) -> int:
    """Wait for the child process that builds a new index, and halt it; its id. SIGCONT lets it go on."""

    def halted() -> int:
        for task in Path(f"/proc/{bookie_pid}/task").iterdir():
            with contextlib.suppress(OSError):
                for child in map(int, (task / "children").read_text().split()):
                    if b"bkctl.storage.rebuild.online_child" in Path(f"/proc/{child}/cmdline").read_bytes():
                        os.kill(child, signal.SIGSTOP)
                        return child
        return 0

    return wait_until(halted, "the child that builds an index")
