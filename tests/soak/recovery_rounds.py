"""Rounds of ``make soak-autorecovery``: two daemons repair the ledgers of a dead bookie while processes are struck.

What happens follows from the seed, except when it happens: that depends on how fast the machine is.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from bkctl.runtime.metadata.paths import Paths
from bkctl.runtime.metadata.replication.recovery_notes import notes_path
from bkctl.runtime.metadata.uri import parse_metadata_uri
from tests.recovery_daemons import RecoveryDaemon
from tests.soak.soak_cluster import (
    HALT_BOOKIE,
    KILL_BOOKIE,
    KILL_ZOOKEEPER,
    LEDGERS_KEPT,
    SETTINGS,
    Act,
    RoundError,
    SoakCluster,
)
from tests.zookeeper_log import RepairWatch

DAEMONS = 2
STRIKES_MAX = 3
HALT_S_MAX = 7.0
"""More than two sessions: a halted daemon wakes up without its locks."""
KILL_AUDITOR, KILL_WORKER = "kill auditor", "kill the other daemon"
HALT_AUDITOR, HALT_WORKER = "halt auditor", "halt the other daemon"
FAULTS = (KILL_AUDITOR, KILL_WORKER, HALT_AUDITOR, HALT_WORKER, KILL_BOOKIE, HALT_BOOKIE, KILL_ZOOKEEPER)
_VOTER = re.compile(rb"-(\d+)\"")


class RecoverySoak(SoakCluster):
    """Two autorecovery daemons, each auditor and worker, without a recovery delay."""

    def __init__(self, directory: Path, seed: int, say: Callable[[str], None]) -> None:
        super().__init__(directory, seed, say)
        settings = SETTINGS | {
            "BKCTL_AUTORECOVERY_FAILED_LEDGER_PAUSE_FIRST_S": "1",
            "BKCTL_AUTORECOVERY_FAILED_LEDGER_PAUSE_MAX_S": "4",
        }
        self._daemons = [
            RecoveryDaemon(self._uri, directory / f"daemon-{number}", **settings) for number in range(DAEMONS)
        ]
        root = parse_metadata_uri(self._uri).root
        self._paths = Paths(root)
        self._notes_path = notes_path(root)
        self._repairs = RepairWatch(directory / "zookeeper" / "data", root)

    def __enter__(self) -> Self:
        super().__enter__()
        delay = self._cluster.run("autorecovery", "delay", "set", "0")
        assert delay.exit_code == 0, delay.stderr
        for daemon in self._daemons:
            self._start(daemon)
        return self

    def __exit__(self, *exception: object) -> None:
        try:
            for daemon in self._daemons:
                daemon.kill()
        finally:
            super().__exit__(*exception)

    def run_round(self, number: int) -> None:
        """One round; RoundError says what is wrong."""
        begin = time.monotonic()
        source = random.Random(f"{self.seed}-{number}")
        self._book.write(source)
        victim = max(source.sample([each.id for each in self._cluster.bookies], 3), key=self._book.count_referencing)
        how = source.choice(("stopped", "killed"))
        self.counts[f"victim {how}"] += 1
        self._say(f"round {number}: bookie {victim} is {how}; {self._book.count_referencing(victim)} ledgers")
        if how == "stopped":
            self._cluster.stop_bookie(victim)
        else:
            self._cluster.kill_bookie(victim)
        for _ in range(source.randint(1, STRIKES_MAX)):
            self._strike(source, victim)
        self._wait_until_writable(victim)
        self._wait_until(lambda: not self._left(victim), lambda: f"not repaired: {'; '.join(self._left(victim))}")
        problems = self._book.problems(victim, may_fence=True, may_stay_open=False) + self._own_problems()
        if problems:
            raise RoundError(f"{len(problems)} problems, the first: {problems[0]}")
        self._cluster.start_bookie(victim)
        self._wait_until_writable()
        self._book.end_writers(LEDGERS_KEPT)
        self._say(f"  passed in {time.monotonic() - begin:.1f} s")

    def _strike(self, source: random.Random, victim: str) -> None:
        """Wait for some moment, strike, and undo it."""
        fault = source.choice(FAULTS)
        other = source.choice([each.id for each in self._cluster.bookies if each.id != victim])
        lasts_s = source.choice((source.uniform(0, 1), source.uniform(0, HALT_S_MAX)))
        part, pause_s = source.choice(((1, source.uniform(0, 4)), (source.uniform(0.1, 1), source.uniform(0, 0.2))))
        left = begin = self._book.count_referencing(victim)
        deadline = time.monotonic() + 4.0  # what is left may wait for a bookie that was struck before
        while left > part * begin and time.monotonic() < deadline:
            left = self._book.count_referencing(victim)
        time.sleep(pause_s)
        self.counts[fault] += 1
        self._say(f"  {left} of {begin} ledgers left: {fault} (bookie {other}) for {lasts_s:.1f} s")
        strike, end = self._fault(fault, other)
        strike()
        time.sleep(lasts_s)
        end()

    def _fault(self, name: str, other: str) -> tuple[Act, Act]:
        if name in {KILL_AUDITOR, HALT_AUDITOR}:
            daemon = self._auditor()
        elif name in {KILL_WORKER, HALT_WORKER}:
            auditor = self._auditor()
            daemon = next(each for each in self._daemons if each is not auditor)
        else:
            return super()._fault(name, other)
        if name in {KILL_AUDITOR, KILL_WORKER}:
            return daemon.kill, lambda: self._start(daemon)
        return daemon.halt, daemon.go_on

    def _start(self, daemon: RecoveryDaemon) -> None:
        daemon.start()
        self._orphans.watch(daemon.pid)

    def _auditor(self) -> RecoveryDaemon:
        """The daemon with the first vote; any daemon while none has one."""
        votes = self._book.nodes_below(f"{self._paths.under_replication}/auditorelection")
        by_pid = {each.pid: each for each in self._daemons}
        for path in sorted(votes, key=lambda each: each[-10:]):
            voter = _VOTER.search(votes[path])
            if voter and int(voter[1]) in by_pid:
                return by_pid[int(voter[1])]
        return self._daemons[0]

    def _left(self, victim: str) -> Sequence[str]:
        """What is not yet as it must be at the end of a round."""
        left = [f"the daemon in {each.directory} has ended" for each in self._daemons if not each.is_running]
        if count := self._book.count_referencing(victim):
            left.append(f"{count} ledgers reference {victim}")
        left += [path for path in self._book.nodes_below(self._paths.under_replicated_ledgers) if "urL" in path]
        left += self._book.nodes_below(self._paths.replication_locks)
        for kind in ("losses", "failures"):
            left += [f"{path}: {data!r}" for path, data in self._book.nodes_below(f"{self._notes_path}/{kind}").items()]
        return left

    def _own_problems(self) -> list[str]:
        self._repairs.read()
        self.counts["repairs of ledgers"] = self._repairs.repairs.total()
        problems = list(self._repairs.problems)
        problems += [f"a traceback in {each.directory}" for each in self._daemons if "Traceback" in each.log]
        return problems
