"""Rounds of a soak run: processes are killed or halted while the ledgers of a dead or a live bookie are moved away.

What happens follows from the seed, except when it happens: that depends on how fast the machine is.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self, TypeAlias

from runtime.errors import ConfigurationError
from runtime.replication.copy_processes import MODULE
from runtime.replication.job_file import read_job
from storage.adapters.filesystem import OsFileSystem
from tests.orphans import OrphanKiller
from tests.processes import LOOPBACK, BkctlProcess, Cluster, children_running, free_port, kill_and_wait, start_bkctl
from tests.soak.ledgers import PEER_TIMEOUT_S, Book
from tests.zookeeper_servers import ZooKeeperServer

BOOKIES = 6
LEDGERS_KEPT = 12
DISTURBED_RUNS_MAX = 2
RUN_TIMEOUT_S = 300.0
RATES = (30, 60, 150)
"""Requests to ZooKeeper per second of a disturbed command: it must last long enough to be met in the middle."""
SESSION_MS = 3000
SETTINGS = {
    "BKCTL_ZOOKEEPER_SESSION_TIMEOUT_MS": str(SESSION_MS),
    "BKCTL_CLIENT_READ_TIMEOUT_S": str(PEER_TIMEOUT_S),
    "BKCTL_CLIENT_ADD_TIMEOUT_S": str(PEER_TIMEOUT_S),
    "BKCTL_REPLICATION_SILENCE_PAUSE_S": "2",
    "BKCTL_REPLICATION_OPEN_LEDGER_WAIT_S": "1",
}
"""The waits of the commands, shorter than by default: a round waits out many of them."""
PARTIAL = 9
RECOVER, DRAIN = "recover failed-bookie", "decommission --drain-only"
REMOVE_LIVE, REMOVE_DEAD = "decommission", "decommission --if-exists"

_Act: TypeAlias = Callable[[], object]


class RoundError(Exception):
    """A round found something wrong."""


class Soak:
    """One cluster for all rounds. Use as a context manager: it ends every process."""

    def __init__(self, folder: Path, seed: int, say: Callable[[str], None]) -> None:
        self.seed = seed
        self.counts: Counter[str] = Counter()
        self._say = say
        self._log_path = folder / "commands.log"
        self._jobs = folder / "state" / "jobs"
        port = free_port()
        self._zookeeper = ZooKeeperServer(
            folder / "zookeeper", {"clientPortAddress": LOOPBACK, "clientPort": str(port)}, {}, port
        )
        uri = f"zk+hierarchical://{LOOPBACK}:{port}/ledgers"
        self._cluster = Cluster(str(folder / "bookies"), uri, SESSION_MS)
        self._book = Book(uri, self.counts)
        self._variables = {**SETTINGS, "BKCTL_METADATA_URI": uri, "BKCTL_STATE_DIR": str(folder / "state")}
        self._orphans = OrphanKiller()
        self._policy = ""

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
        begin = time.monotonic()
        source = random.Random(f"{self.seed}-{number}")
        self._book.write(source)
        victim = max(source.sample([each.id for each in self._cluster.bookies], 3), key=self._book.count_referencing)
        kind = source.choice((RECOVER, RECOVER, DRAIN, REMOVE_LIVE, REMOVE_DEAD))
        self._policy = source.choice(("wait", "fence", "skip") if kind in {RECOVER, DRAIN} else ("wait", "fence"))
        self.counts.update((kind, f"open ledgers: {self._policy}"))
        self._say(f"round {number}: {kind} of {victim}, open ledgers: {self._policy}")
        if kind in {RECOVER, REMOVE_DEAD}:
            self._stop(source, victim)
        is_partial = self._move_away(source, kind, victim)
        problems = self._book.problems(victim, may_fence=self._policy != "skip", may_stay_open=is_partial)
        if problems:
            raise RoundError(f"{len(problems)} problems, the first: {problems[0]}")
        self._bring_back(kind, victim)
        self._book.end_writers(LEDGERS_KEPT)
        for path in self._jobs.glob("*"):
            path.unlink()
        self._say(f"  passed in {time.monotonic() - begin:.1f} s")

    def _stop(self, source: random.Random, victim: str) -> None:
        how = source.choice(("stopped", "killed", "killed just now"))
        self.counts[f"victim {how}"] += 1
        if how == "stopped":
            self._cluster.stop_bookie(victim)
            return
        self._cluster.kill_bookie(victim)
        if how == "killed":  # else the first strike meets a command that waits for the end of its session
            self._wait_until(lambda: victim not in self._book.writable())

    def _bring_back(self, kind: str, victim: str) -> None:
        """Make all bookies writable again; one that was removed joins as a new one."""
        if kind != DRAIN:
            self._cluster.stop_bookie(victim)  # the stop command of a decommission does not wait for its end
            if kind != RECOVER:
                self._cluster.erase_bookie(victim)
            self._cluster.start_bookie(victim)
        else:
            undrained = self._cluster.run("bookie", "undrain", victim)
            if undrained.exit_code != 0:
                raise RoundError(f"bookie undrain: {undrained.stderr}")
        self._wait_until(lambda: {each.id for each in self._cluster.bookies} <= self._book.writable())

    def _move_away(self, source: random.Random, kind: str, victim: str) -> bool:
        """Run the command, disturbed, then until it says that it is done, or that only open ledgers are left."""
        for _ in range(source.randint(1, DISTURBED_RUNS_MAX)):
            if self._book.count_referencing(victim) == 0:
                break
            command = (*self._command(source, kind, victim), "--rate", str(source.choice(RATES)))
            self._run(command, lambda process: self._disturb(process, source, victim))
        self._wait_until(lambda: {each.id for each in self._cluster.bookies} - {victim} <= self._book.writable())
        command = self._command(source, kind, victim)
        exit_code = self._run(command)
        if exit_code == PARTIAL and self._policy == "skip":
            self._wait_until(lambda: not self._book.is_written_on(victim))  # what they leave can be repaired
            command = self._command(source, kind, victim)
            exit_code = self._run(command)
        is_partial = exit_code == PARTIAL and self._policy == "skip"
        if exit_code != 0 and not is_partial:
            raise RoundError(f"undisturbed, bkctl {' '.join(command)} exited with {exit_code}: see {self._log_path}")
        if "--resume" in command and not is_partial and os.path.exists(command[-1]):
            raise RoundError(f"the job is finished, and its file {command[-1]} is still there")
        return is_partial

    def _command(self, source: random.Random, kind: str, victim: str) -> tuple[str, ...]:
        if self._policy == "wait" and kind in {DRAIN, REMOVE_LIVE} and self._book.has_dead_writers:
            self._policy = "fence"  # a dead writer does not leave a bookie that serves
        processes = source.choice(("1", "2", "4"))
        self.counts[f"--processes {processes}"] += 1
        command = [*kind.split(), victim, "--yes", "--open-ledgers", self._policy, "--processes", processes]
        if kind != RECOVER:
            command += ["--wait", "1m"]
        if kind == REMOVE_LIVE:
            command += ["--if-exists", "--stop-command", f"kill {self._cluster.bookie(victim).pid}"]
        planned = []
        for path in sorted(self._jobs.glob("*.jsonl")):
            with contextlib.suppress(ConfigurationError):  # killed before its first line was written
                planned += [str(path)] if read_job(OsFileSystem(), str(path)).is_planned else []
        if planned and source.random() < 0.7:
            self.counts["--resume"] += 1
            command += ["--resume", source.choice(planned)]
        return tuple(command)

    def _run(self, command: Sequence[str], disturb: Callable[[BkctlProcess], None] = lambda _: None) -> int:
        """The exit code of a command that ``disturb`` is called with while it runs."""
        with open(self._log_path, "ab") as log:
            log.write(f"\n$ bkctl {' '.join(command)}\n".encode())
            log.flush()
            process = start_bkctl(*command, stdout=log, stderr=log, variables=self._variables)
        self._orphans.watch(process.pid)
        try:
            disturb(process)
            return process.wait(RUN_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise RoundError(f"the command does not end: see {self._log_path}") from None
        finally:
            process.kill()

    def _disturb(self, process: BkctlProcess, source: random.Random, victim: str) -> None:
        """Strike once or twice: at any moment, or when some ledgers have been repaired and some have not."""
        for _ in range(source.choice((1, 1, 2))):
            fault = source.choice(("kill command", "kill copy process", "kill bookie", "halt bookie", "kill ZooKeeper"))
            other = source.choice([each.id for each in self._cluster.bookies if each.id != victim])
            lasts_s = source.choice((source.uniform(0, 1), source.uniform(0, 4)))
            part, pause_s = source.choice(((1, source.uniform(0, 4)), (source.uniform(0, 1), source.uniform(0, 0.2))))
            left = begin = self._book.count_referencing(victim)
            while left > part * begin and not _ended_within(process, 0.01):
                left = self._book.count_referencing(victim)
            if _ended_within(process, pause_s):
                return  # it was faster
            left = self._book.count_referencing(victim)
            copiers = children_running(MODULE, process.pid)
            if fault == "kill copy process" and not copiers:
                fault = "kill command"
            self.counts[fault] += 1
            self._say(f"  {left} of {begin} ledgers left: {fault} ({other}) for {lasts_s:.1f} s")
            strike, end = self._fault(fault, process, copiers, other)
            strike()
            _ended_within(process, lasts_s)
            end()

    def _fault(self, name: str, process: BkctlProcess, copiers: Sequence[int], other: str) -> tuple[_Act, _Act]:
        """How it begins and ends. ``other`` is a source or a target of the copies."""
        pid = self._cluster.bookie(other).pid
        faults: dict[str, tuple[_Act, _Act]] = {
            "kill command": (process.kill, bool),
            "kill copy process": (lambda: kill_and_wait(copiers[0]), bool),
            "kill bookie": (lambda: kill_and_wait(pid), lambda: self._cluster.start_bookie(other)),
            "halt bookie": (lambda: os.kill(pid, signal.SIGSTOP), lambda: os.kill(pid, signal.SIGCONT)),
            "kill ZooKeeper": (self._zookeeper.kill, self._restart_zookeeper),
        }
        return faults[name]

    def _start_zookeeper(self) -> None:
        self._zookeeper.start()
        self._orphans.watch(self._zookeeper.pid)
        self._zookeeper.wait_for_mode("standalone")

    def _restart_zookeeper(self) -> None:
        self._start_zookeeper()
        self._book.reconnect()

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
