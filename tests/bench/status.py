"""``bkctl status`` on a cluster with many ledgers and marks: whole runs of the command, as a person waits for them.

Loads a real ZooKeeper, starts three bookies, and prints the median; the promise is less than a second with 100,000
ledgers and 10,000 marks.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import msgspec

from bkctl.runtime.ledger.changes import new_ledger
from bkctl.runtime.ledger.metadata import DigestType
from bkctl.runtime.ledger.metadata_format import encode_ledger_metadata
from bkctl.runtime.metadata.replication.marks import UnderReplicationMarks
from bkctl.runtime.metadata.zookeeper.embedded import EmbeddedZooKeeper
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from bkctl.runtime.net.loop import LoopClock
from tests.bench.ledger_listing import JVM_OPTIONS, load
from tests.processes import Cluster

ROOT = "/ledgers"
AT_ONCE = 200


async def mark(hosts: str, count: int, step: int) -> None:
    """Mark every ``step``-th ledger."""
    async with await ZooKeeperStore.connect(hosts) as store:
        marks = UnderReplicationMarks(store, ROOT, LoopClock())
        for first in range(0, count, AT_ONCE):
            numbers = range(first, min(count, first + AT_ONCE))
            await asyncio.gather(*(marks.mark(number * step, ["10.0.0.1:3181"]) for number in numbers))


def measure(uri: str, rounds: int) -> tuple[list[float], float, str]:
    """Seconds of each run, CPU seconds of one on average, and what the last one counted."""
    seconds = []
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    counted = ""
    for _ in range(rounds):
        began = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "bkctl", "status", "-o", "json", "--metadata-uri", uri],
            stdout=subprocess.PIPE,
            check=False,
        )
        seconds.append(time.perf_counter() - began)
        body = msgspec.json.decode(done.stdout)
        counted = f"{body['marks_at_least']} to {body['marks_at_most']} marks, unknown: {body['unknown'] or 'nothing'}"
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, cpu_seconds / rounds, counted


async def _run(arguments: argparse.Namespace, directory: str) -> None:
    os.environ["_JAVA_OPTIONS"] = JVM_OPTIONS
    server = await EmbeddedZooKeeper.start(f"{directory}/zookeeper")
    hosts = server.connect_string
    cluster = Cluster(directory, f"zk+hierarchical://{hosts}{ROOT}")
    try:
        await asyncio.to_thread(cluster.up, 3)
        metadata = new_ledger(tuple(each.id for each in cluster.bookies), 2, 2, DigestType.CRC32C, b"secret")
        what = (hosts, ROOT, 1, arguments.ledgers, [encode_ledger_metadata(metadata)])
        loader = multiprocessing.get_context("spawn").Process(target=load, args=what)
        loader.start()
        await asyncio.to_thread(loader.join)
        assert loader.exitcode == 0
        await mark(hosts, arguments.marks, max(1, arguments.ledgers // max(1, arguments.marks)))
        seconds, cpu_seconds, counted = await asyncio.to_thread(measure, cluster.metadata_uri, arguments.rounds)
        sys.stdout.write(
            f"bkctl status: median {statistics.median(seconds):.2f} s ({min(seconds):.2f} to {max(seconds):.2f}), "
            f"{cpu_seconds:.2f} s of CPU, {arguments.ledgers} ledgers, {counted}\n"
        )
    finally:
        await asyncio.to_thread(cluster.stop)
        await server.stop()


def main() -> None:
    """Load, measure, print, and delete what was loaded."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.status", description=__doc__)
    parser.add_argument("--ledgers", type=int, default=100_000)
    parser.add_argument("--marks", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--directory", default=".cache", help="directory for the data (a subdirectory is used)")
    arguments = parser.parse_args()
    os.makedirs(arguments.directory, exist_ok=True)
    directory = tempfile.mkdtemp(prefix="bench-", dir=os.path.abspath(arguments.directory))
    try:
        asyncio.run(_run(arguments, directory))
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
