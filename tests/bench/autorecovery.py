"""``make bench-autorecovery``: from kill -9 of a bookie to full replication, by Java's autorecovery and by ours.

Four Java bookies (Apache BookKeeper 4.18, DbLedgerStorage) with 721 ledgers, 256 MiB in all, that Java's client wrote
(ensemble 3, write quorum 2, ack quorum 2: three of four ledgers reference the bookie that is killed). The recovery
delay is 0. The daemons of one side run, are elected and have ended their first checks; then the bookie is killed. What
follows is seen from outside, in ZooKeeper: the registration is gone, the first mark, no mark left and no ledger that
references the bookie. Then the daemons stop, the nodes of other ledgers of the same size take the place of these, and
the bookie starts again.

The sides alternate on the same bookies, and the first one changes from round to round; one round of each warms the
bookies up and does not count. Needs ``make interop`` once.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from rich import box
from rich.console import Console
from rich.table import Table

from bkctl.runtime.metadata.paths import Paths
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.runtime.metadata.zookeeper.embedded import EmbeddedZooKeeper
from tests.bench.java_ledgers import BOOKIE_FLAGS, BOOKIE_SETTINGS, TOOL_FLAGS, DataSet, LedgerSets
from tests.interop.java import is_built
from tests.interop.java_cluster import JavaCluster
from tests.recovery_daemons import RecoveryDaemon, daemon_notes
from tests.until import wait_until

BOOKIES = 4
LEDGERS = 721
TOTAL_BYTES = 256 * 2**20
POLL_S = 0.005
RECOVERY_MAX_S = 600.0
JAVA, BKCTL = "Java", "bkctl"


class Round(msgspec.Struct, frozen=True):
    """Times of one recovery, in seconds; CPU time is that of the daemons."""

    session_s: float
    """From the kill to the end of the registration."""
    first_mark_s: float
    """From the end of the registration to the first mark."""
    copying_s: float
    """From the first mark until no mark was left."""
    cpu_s: float
    marks_max: int
    """Marks seen at once."""


class Recovery:
    """Java bookies with ledgers, one of which is killed in each round."""

    def __init__(
        self, cluster: JavaCluster, zookeeper: KazooClient, data_set: DataSet, daemons: int, runs: int
    ) -> None:
        self._cluster = cluster
        self._zookeeper = zookeeper
        self._daemons = daemons
        self._paths = Paths(parse_metadata_uri(cluster.metadata_uri).root)
        self._victim = cluster.start_bookies(BOOKIES, **BOOKIE_SETTINGS)[0]
        self._sets = LedgerSets(cluster, zookeeper, data_set, runs)
        self.ledgers = len(self._sets.naming(self._victim))
        set_delay = cluster.run("autorecovery", "delay", "set", "0")
        assert set_delay.exit_code == 0, set_delay.stderr

    def by_java(self) -> Round:
        """One round."""
        workers = [
            self._cluster.start_replication_worker(
                jvm_flags=TOOL_FLAGS, is_auditor=number == 0, lostBookieRecoveryDelay="0"
            )
            for number in range(self._daemons)
        ]
        try:
            return self._recover([each.pid for each in workers])
        finally:
            self._cluster.stop_replication_workers()
            self._undo()

    def by_bkctl(self) -> Round:
        """One round."""
        directory = Path(self._cluster.directory)
        uri = self._cluster.metadata_uri
        daemons = [RecoveryDaemon(uri, directory / f"daemon-{number}") for number in range(self._daemons)]
        try:
            for each in daemons:
                each.start()
            wait_until(lambda: self._are_ready(daemons), "daemons that have ended their first checks")
            return self._recover([each.pid for each in daemons])
        finally:
            for each in daemons:
                each.stop()
            self._undo()

    def _are_ready(self, daemons: list[RecoveryDaemon]) -> bool:
        assert all(each.is_running for each in daemons), daemons[0].log
        notes = daemon_notes(self._zookeeper, self._cluster.metadata_uri)
        auditors = [note for note in notes.values() if note.is_auditor]
        return {each.pid for each in daemons} <= set(notes) and any(
            lane.name == "liveness" and lane.succeeded_ms for note in auditors for lane in note.lanes
        )

    def _undo(self) -> None:
        self._sets.show_next()
        self._cluster.restart(self._victim)

    def _recover(self, pids: list[int]) -> Round:
        cpu_before = sum(map(_cpu_seconds, pids))
        killed = time.perf_counter()
        self._cluster.kill(self._victim)
        while self._victim in self._zookeeper.get_children(self._paths.available):
            time.sleep(POLL_S)
        gone = time.perf_counter()
        while not self._count_marks():
            assert time.perf_counter() - gone < RECOVERY_MAX_S, "no ledger is marked"
            time.sleep(POLL_S)
        marked = ended = time.perf_counter()
        marks_max = 0
        while self._sets.naming(self._victim):  # if so, the auditor was slower than the workers
            while count := self._count_marks():
                marks_max = max(marks_max, count)
                assert time.perf_counter() - marked < RECOVERY_MAX_S, f"{count} marks are left"
                time.sleep(POLL_S)
            ended = time.perf_counter()
        cpu_s = sum(map(_cpu_seconds, pids)) - cpu_before
        return Round(gone - killed, marked - gone, ended - marked, cpu_s, marks_max)

    def _count_marks(self) -> int:
        """Marks of ledgers with ids of at most 16 bits."""
        try:
            return len(self._zookeeper.get_children(f"{self._paths.under_replicated_ledgers}/0000/0000/0000"))
        except NoNodeError:
            return 0


def _cpu_seconds(pid: int) -> float:
    """CPU time of a process and of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def measure(directory: str, zookeeper: EmbeddedZooKeeper, arguments: argparse.Namespace) -> dict[str, list[Round]]:
    """All rounds."""
    entries = max(1, round(TOTAL_BYTES / LEDGERS / arguments.entry_bytes))
    client = KazooClient(zookeeper.connect_string, timeout=30)
    client.start()
    uri = f"zk+hierarchical://{zookeeper.connect_string}/ledgers"
    found: dict[str, list[Round]] = {side: [] for side in arguments.only or (JAVA, BKCTL)}
    try:
        with JavaCluster(os.path.join(directory, "java"), uri, jvm_flags=BOOKIE_FLAGS) as cluster:
            data_set = DataSet(LEDGERS, entries, arguments.entry_bytes)
            runs = len(found) * (arguments.rounds + arguments.warm_up)
            recovery = Recovery(cluster, client, data_set, arguments.daemons, runs + 1)
            run = {JAVA: recovery.by_java, BKCTL: recovery.by_bkctl}
            for number in range(-1 if arguments.warm_up else 0, arguments.rounds):
                for side in list(found) if number % 2 == 0 else reversed(list(found)):
                    measured = run[side]()
                    sys.stderr.write(f"{side}: {measured}\n")
                    if number >= 0:
                        found[side].append(measured)
    finally:
        client.stop()
        client.close()
    return found


def _table(found: dict[str, list[Round]], title: str) -> Table:
    table = Table(title=f"{title}; {os.cpu_count()} cores, medians", box=box.SIMPLE)
    for heading in ("", *found):
        table.add_column(heading, justify="right" if heading else "left")

    def row(title: str, value: Callable[[Round], float]) -> None:
        cells = [[value(each) for each in rounds] for rounds in found.values()]
        table.add_row(
            title, *(f"{statistics.median(each):.2f} s ({min(each):.2f} to {max(each):.2f})" for each in cells)
        )

    row("kill to the end of the registration", lambda each: each.session_s)
    row("then to the first mark", lambda each: each.first_mark_s)
    row("then until no mark was left", lambda each: each.copying_s)
    row("CPU time of the daemons", lambda each: each.cpu_s)
    table.add_row("marks seen at once, at most", *(f"{max(x.marks_max for x in each)}" for each in found.values()))
    return table


async def _run(directory: str, arguments: argparse.Namespace) -> dict[str, list[Round]]:
    zookeeper = await EmbeddedZooKeeper.start(os.path.join(directory, "zookeeper"))
    try:
        return await asyncio.to_thread(measure, directory, zookeeper, arguments)
    finally:
        await zookeeper.stop()


def main() -> None:
    """Measure, print, and delete the data."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.autorecovery", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="rounds, each with both sides")
    parser.add_argument("--daemons", type=int, default=1, help="daemons of each side, all auditor and worker")
    parser.add_argument("--entry-bytes", type=int, default=1024, help="size of an entry; the total stays 256 MiB")
    parser.add_argument("--only", choices=(JAVA, BKCTL), action="append", help="this side")
    parser.add_argument("--no-warm-up", dest="warm_up", action="store_false", help="count the first round too")
    parser.add_argument("--directory", default=".cache", help="directory for the data (a subdirectory is used)")
    arguments = parser.parse_args()
    if not is_built():
        sys.exit("the Java side is not built: make interop")
    os.makedirs(arguments.directory, exist_ok=True)
    directory = tempfile.mkdtemp(prefix="bench-", dir=os.path.abspath(arguments.directory))
    found = asyncio.run(_run(directory, arguments))  # after an error the logs stay
    shutil.rmtree(directory)
    Console(width=160).print(_table(found, f"kill -9 to full replication, {arguments.daemons} daemons a side"))


if __name__ == "__main__":
    main()
