"""Rounds of a soak run: processes are killed or halted while the ledgers of a dead or a live bookie are moved away.

What happens follows from the seed, except when it happens: that depends on how fast the machine is.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bkctl.runtime.errors import ConflictError
from bkctl.runtime.replication.plan.store import JobFile
from bkctl.storage.adapters.sqlite import SqliteDatabase
from tests.processes import BkctlProcess, start_bkctl
from tests.soak.soak_cluster import (
    HALT_BOOKIE,
    KILL_BOOKIE,
    KILL_ZOOKEEPER,
    LEDGERS_KEPT,
    RUN_TIMEOUT_S,
    SETTINGS,
    Act,
    RoundError,
    SoakCluster,
)

DISTURBED_RUNS_MAX = 2
RATES = (30, 60, 150)
"""Requests to ZooKeeper per second of a disturbed command: it must last long enough to be met in the middle."""
LEDGERS_LEFT = {1, 9}
"""Of a command that left ledgers: it moved none (a disturbed run before it did all), or some."""
RECOVER, DRAIN = "recover failed-bookie", "decommission --drain-only"
REMOVE_LIVE, REMOVE_DEAD = "decommission", "decommission --if-exists"
KILL_COMMAND = "kill command"


class Soak(SoakCluster):
    """Commands that move the ledgers of a bookie away."""

    def __init__(self, directory: Path, seed: int, say: Callable[[str], None]) -> None:
        super().__init__(directory, seed, say)
        self._log_path = directory / "commands.log"
        self._jobs = directory / "state" / "jobs"
        self._variables = {**SETTINGS, "BKCTL_METADATA_URI": self._uri, "BKCTL_STATE_DIR": str(directory / "state")}
        self._policy = ""

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
        self._wait_until_writable()

    def _move_away(self, source: random.Random, kind: str, victim: str) -> bool:
        """Run the command, disturbed, then until it says that it is done, or that only open ledgers are left."""
        for _ in range(source.randint(1, DISTURBED_RUNS_MAX)):
            if self._book.count_referencing(victim) == 0:
                break
            command = (*self._command(source, kind, victim), "--zk-rate", str(source.choice(RATES)))
            self._run(command, lambda process: self._disturb(process, source, victim))
        self._wait_until_writable(victim)
        command = self._command(source, kind, victim)
        exit_code = self._run(command)
        if exit_code in LEDGERS_LEFT and self._policy == "skip":
            self._wait_until(lambda: not self._book.is_written_on(victim))  # what they leave can be repaired
            command = self._command(source, kind, victim)
            exit_code = self._run(command)
        is_partial = exit_code in LEDGERS_LEFT and self._policy == "skip"
        if exit_code != 0 and not is_partial:
            raise RoundError(f"undisturbed, bkctl {' '.join(command)} exited with {exit_code}: see {self._log_path}")
        if "--resume" in command and not is_partial and os.path.exists(command[-1]):
            raise RoundError(f"the job is finished, and its file {command[-1]} is still there")
        return is_partial

    def _command(self, source: random.Random, kind: str, victim: str) -> tuple[str, ...]:
        if self._policy == "wait" and kind in {DRAIN, REMOVE_LIVE} and self._book.has_dead_writers:
            self._policy = "fence"  # a dead writer does not leave a bookie that serves
        command = [*kind.split(), victim, "--yes", "--open-ledgers", self._policy]
        if kind != RECOVER:
            command += ["--wait", "1m"]
        if kind == REMOVE_LIVE:
            command += ["--if-exists", "--stop-command", f"kill {self._cluster.bookie(victim).pid}"]
        planned = []
        for path in sorted(self._jobs.glob("*.sqlite")):
            with contextlib.suppress(ConflictError):  # killed before its plan was complete
                JobFile(SqliteDatabase(str(path))).close()
                planned.append(str(path))
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
            fault = source.choice((KILL_COMMAND, KILL_BOOKIE, HALT_BOOKIE, KILL_ZOOKEEPER))
            other = source.choice([each.id for each in self._cluster.bookies if each.id != victim])
            lasts_s = source.choice((source.uniform(0, 1), source.uniform(0, 4)))
            part, pause_s = source.choice(((1, source.uniform(0, 4)), (source.uniform(0, 1), source.uniform(0, 0.2))))
            left = begin = self._book.count_referencing(victim)
            while left > part * begin and not _ended_within(process, 0.01):
                left = self._book.count_referencing(victim)
            if _ended_within(process, pause_s):
                return  # it was faster
            left = self._book.count_referencing(victim)
            self.counts[fault] += 1
            self._say(f"  {left} of {begin} ledgers left: {fault} ({other}) for {lasts_s:.1f} s")
            strike, end = self._strike(fault, process, other)
            strike()
            _ended_within(process, lasts_s)
            end()

    def _strike(self, fault: str, process: BkctlProcess, other: str) -> tuple[Act, Act]:
        """How a fault begins and ends. ``other`` is a source or a target of the copies."""
        if fault == KILL_COMMAND:
            return process.kill, bool
        return self._fault(fault, other)


def _ended_within(process: BkctlProcess, seconds: float) -> bool:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True
