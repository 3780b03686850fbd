"""Rounds of a soak run: processes are killed or halted while a dead bookie is recovered, or a live one is drained.

What happens follows from the seed, except when it happens: that depends on how fast the machine is.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

from tests.orphans import OrphanKiller
from tests.processes import LOOPBACK, BkctlProcess, Cluster, free_port, start_bkctl
from tests.soak.ledgers import Book
from tests.zookeeper_servers import ZooKeeperServer

BOOKIES = 6
LEDGERS_KEPT = 20
DISTURBED_RUNS_MAX = 3
RUN_TIMEOUT_S = 300.0
RATES = (15, 40, 150)
"""Requests to ZooKeeper per second of a disturbed command: it must last long enough to be met in the middle."""


class RoundError(Exception):
    """A round found something wrong."""


class Soak:
    """One cluster for all rounds. Use as a context manager: it ends every process."""

    def __init__(self, folder: Path, seed: int, say: Callable[[str], None]) -> None:
        self.seed = seed
        self._say = say
        self._log_path = folder / "commands.log"
        port = free_port()
        self._zookeeper = ZooKeeperServer(
            folder / "zookeeper", {"clientPortAddress": LOOPBACK, "clientPort": str(port)}, {}, port
        )
        self._cluster = Cluster(str(folder / "bookies"), f"zk+hierarchical://{LOOPBACK}:{port}/ledgers")
        self._book = Book(self._cluster.metadata_uri)
        self._variables = {
            "BKCTL_METADATA_URI": self._cluster.metadata_uri,
            "BKCTL_STATE_DIR": str(folder / "state"),
        }
        self._orphans = OrphanKiller()

    def __enter__(self) -> Self:
        self._start_zookeeper()
        self._cluster.up(BOOKIES)
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.stop()
        self._zookeeper.kill()
        self._orphans.close()

    def run_round(self, number: int) -> None:
        """One round; RoundError says what is wrong."""
        source = random.Random(f"{self.seed}-{number}")
        self._book.forget(LEDGERS_KEPT)
        self._book.write(source)
        some = source.sample([each.id for each in self._cluster.bookies], 3)
        victim = max(some, key=self._book.count_referencing)
        is_drain = source.random() < 0.4
        self._say(f"round {number}: bookie {victim} {'is drained' if is_drain else 'dies'}")
        if is_drain:
            self._repair(source, victim, ("bookie", "drain", victim, "--yes", "--wait", "1m"))
        else:
            self._cluster.kill_bookie(victim)
            if source.random() < 0.8:  # else the first strike meets a command that waits for the end of its session
                self._wait_until(lambda: victim not in self._writable())
            self._repair(source, victim, ("recover", "failed-bookie", victim, "--yes"))
        problems = self._book.problems({victim})
        if problems:
            raise RoundError(f"{len(problems)} problems, the first: {problems[0]}")
        if is_drain:
            undrained = self._cluster.run("bookie", "undrain", victim)
            if undrained.exit_code != 0:
                raise RoundError(f"bookie undrain: {undrained.stderr}")
        else:
            self._cluster.start_bookie(victim)
        self._wait_until(lambda: {each.id for each in self._cluster.bookies} <= self._writable())

    def _repair(self, source: random.Random, victim: str, command: tuple[str, ...]) -> None:
        """Run the command, disturbed, then until it says that it is done."""
        for _ in range(source.randint(1, DISTURBED_RUNS_MAX)):
            if self._book.count_referencing(victim) == 0:
                break
            with self._started(*command, "--rate", str(source.choice(RATES))) as process:
                for _ in range(source.choice((1, 1, 2))):
                    self._disturb(process, source, victim)
                self._end_of(process)
        self._wait_until(lambda: {each.id for each in self._cluster.bookies} - {victim} <= self._writable())
        with self._started(*command) as process:
            exit_code = self._end_of(process)
        if exit_code != 0:
            raise RoundError(f"undisturbed, bkctl {' '.join(command)} exited with {exit_code}: see {self._log_path}")

    @contextlib.contextmanager
    def _started(self, *command: str) -> Iterator[BkctlProcess]:
        with open(self._log_path, "ab") as log:
            log.write(f"\n$ bkctl {' '.join(command)}\n".encode())
            log.flush()
            process = start_bkctl(*command, stdout=log, stderr=log, variables=self._variables)
        self._orphans.watch(process.pid)
        try:
            yield process
        finally:
            process.kill()

    def _end_of(self, process: BkctlProcess) -> int:
        try:
            return process.wait(RUN_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise RoundError(f"the command does not end: see {self._log_path}") from None

    def _disturb(self, process: BkctlProcess, source: random.Random, victim: str) -> None:
        """Strike once when some ledgers have been repaired, and some have not."""
        fault = source.choice((self._kill_tool, self._kill_bookie, self._halt_bookie, self._kill_zookeeper))
        other = source.choice([each.id for each in self._cluster.bookies if each.id != victim])
        lasts_s = source.choice((source.uniform(0, 2), source.uniform(0, 8)))
        part, pause_s = source.uniform(0, 1), source.uniform(0, 0.2)
        left = begin = self._book.count_referencing(victim)
        while left > part * begin and process.poll() is None:
            left = self._book.count_referencing(victim)
        if _ended_within(process, pause_s):
            return  # it was faster
        self._say(f"  {left} of {begin} ledgers left: {fault.__name__.strip('_')} ({other}) for {lasts_s:.1f} s")
        with fault(process, other):
            _ended_within(process, lasts_s)

    @contextlib.contextmanager
    def _kill_tool(self, process: BkctlProcess, _other: str) -> Iterator[None]:
        process.kill()
        yield

    @contextlib.contextmanager
    def _kill_bookie(self, _process: BkctlProcess, other: str) -> Iterator[None]:
        """A source or a target of the copies."""
        self._cluster.kill_bookie(other)
        yield
        self._cluster.start_bookie(other)

    @contextlib.contextmanager
    def _halt_bookie(self, _process: BkctlProcess, other: str) -> Iterator[None]:
        pid = self._cluster.bookie(other).pid
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    @contextlib.contextmanager
    def _kill_zookeeper(self, _process: BkctlProcess, _other: str) -> Iterator[None]:
        self._zookeeper.kill()
        yield
        self._start_zookeeper()

    def _start_zookeeper(self) -> None:
        self._zookeeper.start()
        self._orphans.watch(self._zookeeper.pid)
        self._zookeeper.wait_for_mode("standalone")

    def _writable(self) -> set[str]:
        return set(self._cluster.run("bookie", "list", "--state", "writable", "-o", "name").stdout.split())

    def _wait_until(self, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + RUN_TIMEOUT_S
        while not is_so():
            if time.monotonic() > deadline:
                raise RoundError("the bookies do not get there")
            time.sleep(0.1)


def _ended_within(process: BkctlProcess, seconds: float) -> bool:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True
