"""A bookie as a process of its own, which a test may trace, limit and kill."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from bkctl.runtime.config import ClientConfig
from bkctl.runtime.errors import NoNodeError
from bkctl.runtime.metadata.bookies.registration import RegistrationClient
from bkctl.runtime.metadata.paths import Paths
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from bkctl.runtime.net.loop import LoopClock
from bkctl.runtime.net.pool import BookiePool
from tests.processes import BkctlProcess, bkctl_command, bkctl_environment, free_port, start_bkctl
from tests.runtime.bookie.conftest import Peer
from tests.until import until


def open_files(soft: int, hard: int) -> list[str]:
    """Prefix of a command that may have so many files open."""
    code = f"import os, resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))"
    return [sys.executable, "-c", f"{code}; os.execvp(sys.argv[1], sys.argv[1:])"]


RunningBookie = BkctlProcess | subprocess.Popen[bytes]

_ZOOKEEPER_TIMEOUT_MS = 2000
"""So that a bookie that was killed can register again soon. A shorter session does not outlive a busy machine."""

_PATIENT = ClientConfig(add_timeout_s=60, read_timeout_s=60)
"""A bookie answers late on a busy machine, and when its disk has been full."""


class BookieUnderTest:
    """A bookie process with its directories, started under a prefix command, reached over its socket."""

    def __init__(
        self,
        directory: Path,
        metadata_uri: str,
        store: ZooKeeperStore,
        *settings: str,
        bookie_id: str = "traced",
        **environment: str,
    ) -> None:
        self._directory = directory
        self._bookie_id = bookie_id
        self.port = free_port()
        self._uri = metadata_uri
        self._settings = settings
        self._environment = environment
        self._log_start = 0
        self._store = store
        self._paths = Paths(parse_metadata_uri(metadata_uri).root)
        self.registrations = RegistrationClient(store, self._paths.root)

    @contextlib.asynccontextmanager
    async def running(self, prefix: Sequence[str] = ()) -> AsyncIterator[tuple[RunningBookie, Peer]]:
        """The bookie, killed at the end of the block unless it has ended by itself."""
        await self._end_registration()
        process = self._spawn(prefix)
        pool = BookiePool(self.registrations.address, _PATIENT, LoopClock())
        try:
            await self._wait_registered(process)
            yield process, Peer(pool, self._bookie_id)
        finally:
            await pool.close()
            process.kill()
            await asyncio.to_thread(process.wait)

    async def _end_registration(self) -> None:
        """Of a process that was killed: the server would delete it at the end of its session, and a start waits for
        that, as ``tests/runtime/metadata/bookies/test_registration.py`` shows."""
        for path in (self._paths.writable_bookie(self._bookie_id), self._paths.read_only_bookie(self._bookie_id)):
            with contextlib.suppress(NoNodeError):
                await self._store.delete(path)

    async def refused(self, prefix: Sequence[str]) -> int:
        """Start a bookie that cannot boot; its exit code."""
        process = self._spawn(prefix)
        try:
            return await asyncio.to_thread(process.wait, 60)
        finally:
            process.kill()

    def said(self) -> str:
        """What the last process started has logged."""
        return (self._directory / "bookie.log").read_text()[self._log_start :]

    def _arguments(self) -> list[str]:
        arguments = ("--metadata-uri", self._uri, "--port", str(self.port), "--bookie-id", self._bookie_id)
        directories = (
            "--journal-dir",
            str(self._directory / "journal"),
            "--ledger-dir",
            str(self._directory / "ledgers"),
        )
        keys = ("allowLoopback=true", f"zkTimeout={_ZOOKEEPER_TIMEOUT_MS}", "journalPreAllocSizeMB=1")
        settings = ("--advertised-address", "127.0.0.1", *(word for key in keys for word in ("--set", key)))
        return ["bookie", "start", *arguments, *directories, *settings, *self._settings]

    def _spawn(self, prefix: Sequence[str]) -> RunningBookie:
        """A new interpreter only under a prefix: a fork costs a quarter of the CPU time."""
        with (self._directory / "bookie.log").open("ab") as log:
            self._log_start = log.tell()
            if not prefix:
                return start_bkctl(*self._arguments(), stdout=log, stderr=log, variables=self._environment)
            return subprocess.Popen(
                [*prefix, *bkctl_command(*self._arguments())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=bkctl_environment(**self._environment),
            )

    async def _wait_registered(self, process: RunningBookie) -> None:
        """Registered by this very process: a bookie that was killed stays registered until its session expires."""
        await until(lambda: "listening on port" in self.said(), process=process, tell=self.said)
