"""What every kind of soak run has: bookies, ZooKeeper, ledgers that are written, and faults that begin and end."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Self, TypeAlias

from tests.orphans import OrphanKiller
from tests.processes import LOOPBACK, Cluster, free_port, kill_and_wait
from tests.soak.ledgers import PEER_TIMEOUT_S, Book
from tests.zookeeper_servers import ZooKeeperServer

BOOKIES = 6
LEDGERS_KEPT = 12
RUN_TIMEOUT_S = 300.0
SESSION_MS = 3000
SETTINGS = {
    "BKCTL_ZOOKEEPER_SESSION_TIMEOUT_MS": str(SESSION_MS),
    "BKCTL_CLIENT_READ_TIMEOUT_S": str(PEER_TIMEOUT_S),
    "BKCTL_CLIENT_ADD_TIMEOUT_S": str(PEER_TIMEOUT_S),
    "BKCTL_REPLICATION_SILENCE_PAUSE_S": "2",
    "BKCTL_REPLICATION_OPEN_LEDGER_WAIT_S": "1",
}
"""Waits shorter than by default: a round waits out many of them."""
KILL_BOOKIE, HALT_BOOKIE, KILL_ZOOKEEPER = "kill bookie", "halt bookie", "kill ZooKeeper"

Act: TypeAlias = Callable[[], object]


class RoundError(Exception):
    """A round found something wrong."""


class SoakCluster:
    """One cluster for all rounds. Use as a context manager: it ends every process."""

    def __init__(self, directory: Path, seed: int, say: Callable[[str], None]) -> None:
        self.seed = seed
        self.counts: Counter[str] = Counter()
        self._say = say
        port = free_port()
        self._zookeeper = ZooKeeperServer(
            directory / "zookeeper", {"clientPortAddress": LOOPBACK, "clientPort": str(port)}, {}, port
        )
        self._uri = f"zk+hierarchical://{LOOPBACK}:{port}/ledgers"
        self._cluster = Cluster(str(directory / "bookies"), self._uri, SESSION_MS)
        self._book = Book(self._uri, self.counts)
        self._orphans = OrphanKiller()
        self._sessions_settled_s = 0.0

    def __enter__(self) -> Self:
        self._start_zookeeper()
        self._cluster.up(BOOKIES)
        self._book.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if self._zookeeper.is_running:
                self._book.__exit__()
        finally:
            self._cluster.stop()
            self._zookeeper.kill()
            self._orphans.close()

    def run_round(self, number: int) -> None:
        """One round; RoundError says what is wrong."""
        raise NotImplementedError

    def _fault(self, name: str, other: str) -> tuple[Act, Act]:
        """How it begins and ends. ``other`` is the bookie that it strikes, if it strikes one."""
        pid = self._cluster.bookie(other).pid
        faults: dict[str, tuple[Act, Act]] = {
            KILL_BOOKIE: (lambda: kill_and_wait(pid), lambda: self._cluster.start_bookie(other)),
            HALT_BOOKIE: (lambda: os.kill(pid, signal.SIGSTOP), lambda: self._continue_bookie(pid)),
            KILL_ZOOKEEPER: (self._zookeeper.kill, self._restart_zookeeper),
        }
        return faults[name]

    def _start_zookeeper(self) -> None:
        self._zookeeper.start()
        self._orphans.watch(self._zookeeper.pid)
        self._zookeeper.wait_for_mode("standalone")

    def _restart_zookeeper(self) -> None:
        self._start_zookeeper()
        self._sessions_may_end()
        self._book.reconnect()

    def _continue_bookie(self, pid: int) -> None:
        os.kill(pid, signal.SIGCONT)
        self._sessions_may_end()

    def _sessions_may_end(self) -> None:
        """A registration that is there may still vanish for a while, until its bookie has a new session."""
        self._sessions_settled_s = time.monotonic() + 2 * SESSION_MS / 1000

    def _wait_until(
        self, is_so: Callable[[], bool], what: Callable[[], str] = lambda: "the bookies do not get there"
    ) -> None:
        deadline = time.monotonic() + RUN_TIMEOUT_S
        while not is_so():
            if time.monotonic() > deadline:
                raise RoundError(what())
            time.sleep(0.1)

    def _wait_until_writable(self, without: str = "") -> None:
        expected = {each.id for each in self._cluster.bookies} - {without}
        self._wait_until(
            lambda: time.monotonic() >= self._sessions_settled_s and expected <= self._book.writable(),
        )
