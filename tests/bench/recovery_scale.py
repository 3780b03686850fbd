"""An autorecovery daemon in a large cluster: very many marks at once, and one pass of the auditor over all ledgers.

``marks``: 100,000 closed ledgers without entries, all marked, each with a bookie that is gone: each is repaired by
metadata alone. A worker clears the marks. Shown: how many per second, what it wrote to ZooKeeper, and how much memory
it had meanwhile.

``scan``: 200,000 ledgers. One pass of the auditor next to ``bkctl ledger list`` with the same budget of requests; the
promise is at most 1.3 times as long. The start of the command is part of its time, that of the daemon is not. The first
auditor in a cluster also counts copies and checks the placement, within the same budget; its pass does not count.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from kazoo.client import KazooClient

from bkctl.runtime.ledger.changes import new_ledger
from bkctl.runtime.ledger.metadata import DigestType, LedgerState
from bkctl.runtime.ledger.metadata_format import encode_ledger_metadata
from bkctl.runtime.metadata.paths import Paths
from bkctl.runtime.metadata.replication.marks import UnderReplicationMarks
from bkctl.runtime.metadata.replication.recovery_notes import LaneStatus
from bkctl.runtime.metadata.zookeeper.embedded import EmbeddedZooKeeper
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from bkctl.runtime.net.loop import LoopClock
from tests.bench.ledger_listing import JVM_OPTIONS, load
from tests.processes import Cluster, bkctl_command, bkctl_environment
from tests.recovery_daemons import RecoveryDaemon, daemon_notes
from tests.until import wait_until
from tests.zookeeper_log import ZooKeeperLog

ROOT = "/ledgers"
DEAD = "10.0.0.1:3181"
MARKS_AT_ONCE = 500
SAMPLE_S = 0.5
SILENCE_MAX_S = 120.0
PASSES_MAX_S = 1800.0
"""Three passes over 200,000 ledgers at once take two minutes by the budget alone."""
_DAILY = ("replicas", "placement")
RATE_VARIABLE = "BKCTL_ZOOKEEPER_SCAN_OPERATIONS_PER_S_MAX"


def closed_ledger(ensemble: Sequence[str]) -> bytes:
    """Node of a closed ledger without entries."""
    metadata = new_ledger(tuple(ensemble), 2, 2, DigestType.CRC32C, b"")
    return encode_ledger_metadata(
        msgspec.structs.replace(metadata, state=LedgerState.CLOSED, last_entry_id=-1, length=0)
    )


async def mark_all(hosts: str, count: int) -> None:
    """Mark all ledgers."""
    async with await ZooKeeperStore.connect(hosts) as store:
        marks = UnderReplicationMarks(store, ROOT, LoopClock())
        for first in range(0, count, MARKS_AT_ONCE):
            numbers = range(first, min(count, first + MARKS_AT_ONCE))
            await asyncio.gather(*(marks.mark(each, [DEAD]) for each in numbers))


def resident_mebibytes(pid: int) -> float:
    """Memory of a process now."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


class ClearedMarks:
    """Reads ZooKeeper's log: which marks were deleted, and how many writes there were."""

    def __init__(self, directory: Path) -> None:
        self._log = ZooKeeperLog(directory)
        self._directory = Paths(ROOT).under_replicated_ledgers
        self.count = 0
        self.writes = 0
        self.by_second: dict[int, int] = {}
        for _ in self._log.new_changes():
            pass  # what was before does not count

    def read(self) -> int:
        """Number of marks that were deleted so far."""
        for change in self._log.new_changes():
            self.writes += 1
            second = change.time_ms // 1000
            self.by_second[second] = self.by_second.get(second, 0) + 1
            if change.kind == "delete" and change.path.startswith(self._directory) and "/urL" in change.path:
                self.count += 1
        return self.count


def clear_marks(cluster: Cluster, directory: Path, log_directory: Path, count: int, rate: str) -> None:
    """Let a worker clear all marks, and print how it went."""
    cleared = ClearedMarks(log_directory)
    daemon = RecoveryDaemon(cluster.metadata_uri, directory, "--role", "worker", **{RATE_VARIABLE: rate})
    daemon.start()
    begin = first = time.perf_counter()
    memory: list[float] = []
    last_progress, before = begin, 0
    try:
        while (done := cleared.read()) < count:
            now = time.perf_counter()
            if done != before:
                first = now if not before else first
                last_progress, before = now, done
            assert daemon.is_running, daemon.log
            assert now - last_progress < SILENCE_MAX_S, (
                f"{done} of {count} marks cleared, then nothing:\n{daemon.log[-3000:]}"
            )
            memory.append(resident_mebibytes(daemon.pid))
            time.sleep(SAMPLE_S)
        end = time.perf_counter()
    finally:
        daemon.stop()
    quarter = max(1, len(memory) // 4)
    sys.stdout.write(
        f"{count} marks cleared in {end - begin:.1f} s, the first {first - begin:.1f} s after the start: "
        f"{count / (end - first):.0f} per second\n"
        f"  {cleared.writes} writes, at most {max(cleared.by_second.values())} in one second\n"
        f"  memory: median {statistics.median(memory[:quarter]):.0f} MiB in the first quarter, "
        f"{statistics.median(memory[-quarter:]):.0f} MiB in the last, at most {max(memory):.0f} MiB\n"
    )


def scan(cluster: Cluster, directory: Path, zookeeper: KazooClient, rounds: int, rate: str) -> None:
    """Compare passes of the auditor with runs of the command."""
    passes, listings, counts = [], [], []
    for number in range(rounds + 1):  # the first auditor also has to count copies and to check the placement
        daemon = RecoveryDaemon(
            cluster.metadata_uri, directory / f"{number}", "--role", "auditor", **{RATE_VARIABLE: rate}
        )
        daemon.start()
        try:
            wait_until(lambda: _are_checks_over(zookeeper, cluster), "the daily checks", deadline_s=PASSES_MAX_S)
            seconds = _first_pass_s(zookeeper, cluster, daemon)
        finally:
            daemon.stop()
        if not number:
            continue
        passes.append(seconds)
        listings.append(_seconds_of(cluster, "ledger", "list", "-o", "json", "--zk-rate", rate))
        counts.append(_seconds_of(cluster, "ledger", "list", "--state", "closed", "--count", "--zk-rate", rate))
    audit_s, listing_s, count_s = (statistics.median(each) for each in (passes, listings, counts))
    sys.stdout.write(
        f"auditor {audit_s:.1f} s, ledger list {listing_s:.1f} s, with --state closed --count {count_s:.1f} s: "
        f"{audit_s / listing_s:.2f} and {audit_s / count_s:.2f} times as long (limit {rate} requests per second)\n"
    )


def _are_checks_over(zookeeper: KazooClient, cluster: Cluster) -> bool:
    """Whether the daily checks have ended, or are not due."""
    lanes = [lane for note in daemon_notes(zookeeper, cluster.metadata_uri).values() for lane in note.lanes]
    daily = [lane for lane in lanes if lane.name in _DAILY]
    return bool(daily) and not any(lane.is_running for lane in daily)


def _first_pass_s(zookeeper: KazooClient, cluster: Cluster, daemon: RecoveryDaemon) -> float:
    """How long the auditor's first pass over the ledgers took."""

    def passes() -> list[LaneStatus]:
        assert daemon.is_running, daemon.log
        note = daemon_notes(zookeeper, cluster.metadata_uri).get(daemon.pid)
        lanes = note.lanes if note else ()
        return [each for each in lanes if each.name == "audit" and each.succeeded_ms and " ledgers" in each.result]

    wait_until(lambda: bool(passes()), "the first pass of the auditor", deadline_s=PASSES_MAX_S)
    [audit] = passes()
    sys.stderr.write(f"{audit.result}\n")
    assert audit.started_ms is not None
    assert audit.ended_ms is not None
    return (audit.ended_ms - audit.started_ms) / 1000


def _seconds_of(cluster: Cluster, *arguments: str) -> float:
    begin = time.perf_counter()
    subprocess.run(
        bkctl_command("-u", cluster.metadata_uri, *arguments),
        env=bkctl_environment(),
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return time.perf_counter() - begin


def _measure(arguments: argparse.Namespace, cluster: Cluster, directory: Path, hosts: str) -> None:
    cluster.up(3)
    live = [each.id for each in cluster.bookies]
    data = [closed_ledger((*live[:2], DEAD) if arguments.mode == "marks" else live)]
    loader = multiprocessing.get_context("spawn").Process(target=load, args=(hosts, ROOT, 1, arguments.ledgers, data))
    loader.start()
    loader.join()
    assert loader.exitcode == 0
    if arguments.mode == "marks":
        asyncio.run(mark_all(hosts, arguments.ledgers))
        clear_marks(cluster, directory / "daemon", directory / "zookeeper" / "data", arguments.ledgers, arguments.rate)
        return
    client = KazooClient(hosts, timeout=30)
    client.start()
    try:
        scan(cluster, directory / "daemons", client, arguments.rounds, arguments.rate)
    finally:
        client.stop()
        client.close()


async def _run(arguments: argparse.Namespace, directory: Path) -> None:
    os.environ["_JAVA_OPTIONS"] = JVM_OPTIONS
    server = await EmbeddedZooKeeper.start(str(directory / "zookeeper"))
    cluster = Cluster(str(directory), f"zk+hierarchical://{server.connect_string}{ROOT}")
    try:
        await asyncio.to_thread(_measure, arguments, cluster, directory, server.connect_string)
    finally:
        await asyncio.to_thread(cluster.stop)
        await server.stop()


def main() -> None:
    """Load, measure, print, and delete what was loaded."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.recovery_scale", description=__doc__)
    parser.add_argument("mode", choices=("marks", "scan"))
    parser.add_argument("--ledgers", type=int, help="100,000 marks or 200,000 ledgers by default")
    parser.add_argument("--rounds", type=int, default=2, help="passes over the ledgers")
    parser.add_argument("--rate", default="5000", help="limit of requests to ZooKeeper per second, on both sides")
    parser.add_argument("--directory", default=".cache", help="directory for the data (a subdirectory is used)")
    arguments = parser.parse_args()
    arguments.ledgers = arguments.ledgers or (100_000 if arguments.mode == "marks" else 200_000)
    os.makedirs(arguments.directory, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="bench-", dir=os.path.abspath(arguments.directory)))
    try:
        asyncio.run(_run(arguments, directory))
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
