"""Clusters in which all who take part are configured for one mode: Java's bookies of a release, or bkctl's."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from tests.interop.java import NEWEST
from tests.interop.java_cluster import HTTP, JavaCluster
from tests.interop.security_modes import Sides
from tests.orphans import OrphanKiller
from tests.processes import BkctlResult, Cluster, start_bkctl
from tests.until import wait_until

OURS = "bkctl"
SESSION_MS = 12_000
"""Sessions of killed bookies end soon, but not those of bookies that a loaded machine halts for seconds."""
BOOKIES = 5


class SecuredCluster(Protocol):
    """What a test does to either kind."""

    metadata_uri: str
    sides: Sides
    release: str
    """Of the Java clients that belong to it."""

    @property
    def running(self) -> list[str]:
        """Bookies that run, the oldest first."""

    def pid_of(self, bookie_id: str) -> int:
        """Process of a bookie."""

    def run(self, *arguments: str) -> BkctlResult:
        """A bkctl command with the settings of the mode."""

    def kill(self, bookie_id: str) -> None:
        """kill -9."""

    def stop(self, bookie_id: str) -> None:
        """SIGTERM; its registration is gone."""

    def add(self) -> None:
        """One more bookie."""

    def rebuild_index(self, bookie_id: str) -> None:
        """A new index from the entry logs; then the bookie serves again."""


class OurCluster(Cluster):
    """bkctl's bookies."""

    def __init__(self, directory: Path, metadata_uri: str, sides: Sides) -> None:
        super().__init__(str(directory), metadata_uri, SESSION_MS, sides.variables)
        self.sides = sides
        self.release = NEWEST

    @property
    def running(self) -> list[str]:
        """Bookies that run, the oldest first."""
        return [bookie.id for bookie in self.bookies if self._is_running(bookie.id)]

    def pid_of(self, bookie_id: str) -> int:
        """Process of a bookie."""
        return self.bookie(bookie_id).pid

    def kill(self, bookie_id: str) -> None:
        """kill -9."""
        self.kill_bookie(bookie_id)
        self._processes[bookie_id].wait()

    def stop(self, bookie_id: str | None = None) -> None:
        """One bookie in order, or all of them at once."""
        if bookie_id is None:
            super().stop()
        else:
            self.stop_bookie(bookie_id)

    def add(self) -> None:
        """One more bookie."""
        self.add_bookie()

    def rebuild_index(self, bookie_id: str) -> None:
        """While it serves."""
        directory = f"{self.bookie(bookie_id).directory}/ledgers"
        rebuilt = self.run("bookie", "index", "rebuild", "--online", "--ledger-dir", directory, "--yes")
        assert rebuilt.exit_code == 0, rebuilt.stderr


class SecuredJavaCluster(JavaCluster):
    """Java's bookies; one whose index was rebuilt is bkctl's afterwards."""

    def __init__(self, directory: Path, metadata_uri: str, sides: Sides, release: str) -> None:
        super().__init__(
            str(directory), metadata_uri, release=release, jvm_flags=sides.jvm_flags, variables=sides.variables
        )
        self.sides = sides
        self.release = release
        self._ends = contextlib.ExitStack()
        self._settings = HTTP | {"persistBookieStatusEnabled": "true", "zkTimeout": str(SESSION_MS)}

    def __exit__(self, *raised: object) -> None:
        with self._ends:
            super().__exit__(*raised)

    def up(self, count: int) -> None:
        """Start so many bookies."""
        self.start_bookies(count, **self._settings | self.sides.java_bookie)

    def add(self) -> None:
        """One more bookie."""
        self.up(1)

    def rebuild_index(self, bookie_id: str) -> None:
        """bkctl builds its index from the files of the stopped bookie, and a bkctl bookie serves them."""
        self.stop(bookie_id)
        conf = f"{self.directory_of(bookie_id)}.conf"
        adopted = self.run("storage", "adopt", "--conf", conf, "--yes")
        assert adopted.exit_code == 0, adopted.stderr
        with open(f"{conf}.log", "ab") as log:
            variables = self.sides.variables
            process = start_bkctl("bookie", "start", "--conf", conf, stdout=log, stderr=log, variables=variables)
        orphans = self._ends.enter_context(OrphanKiller())
        orphans.watch(process.pid)
        self._ends.callback(process.wait)
        self._ends.callback(process.kill)

        def is_writable() -> bool:
            assert process.poll() is None, Path(f"{conf}.log").read_text()[-4000:]
            return bookie_id in self.registered("writable")

        wait_until(is_writable, f"{bookie_id} is writable as a bookie of bkctl")


@contextlib.contextmanager
def secured_cluster(
    server: str, sides: Sides, directory: Path, new_metadata_uri: Callable[[], str], count: int = BOOKIES
) -> Iterator[SecuredCluster]:
    """A cluster of bookies of ``server``, "bkctl" or a release of Java, in the mode of ``sides``."""
    if server == OURS:
        ours = OurCluster(directory, new_metadata_uri(), sides)
        try:
            ours.up(count)
            yield ours
        finally:
            ours.stop()
        return
    with SecuredJavaCluster(directory, new_metadata_uri(), sides, server) as java:
        java.up(count)
        yield java
