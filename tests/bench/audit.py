"""``bkctl audit`` of a snapshot file and of a live ZooKeeper, plain and on Spark.

``snapshot``: a file with many ledgers, read by one process and by Spark with one and with two cores.
``live``: a real ZooKeeper with many ledgers: bare pipelined reads of all of them by kazoo alone, the plain audit, and
the audit on Spark. The start of Spark is measured by an audit of a cluster with almost no ledgers.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

import msgspec

from bkctl.runtime.metadata.zookeeper.embedded import EmbeddedZooKeeper
from tests.bench.ledger_listing import JVM_OPTIONS, Run, run
from tests.snapshot_files import SampleCluster, cluster_nodes, write_for_server, write_snapshot

_TINY_LEDGERS = 10
_SESSION_TIMEOUT_MS = 24 * 3_600_000
"""The bookies of the file must stay registered while the benchmark runs."""


def audit(ledgers: int, *arguments: str) -> Run:
    """One audit, which has to find all ledgers; it exits with 10, because bookies are lost."""
    done, output = run(["bkctl", "audit", "-o", "json", "--zk-rate", "0", *arguments], exit_codes=(0, 10))
    assert msgspec.json.decode(output)["ledgers"] == ledgers
    return done


def show(name: str, runs: list[Run], ledgers: int) -> None:
    """One line: the median, the rate, the most memory of a single process."""
    seconds = statistics.median(each.seconds for each in runs)
    memory = max(each.resident_mebibytes for each in runs)
    cpu = statistics.median(each.cpu_seconds for each in runs)
    sys.stdout.write(
        f"{name:28} {seconds:8.1f} s {ledgers / seconds:10,.0f} ledgers/s {cpu:8.1f} CPU s, at most {memory:.0f} MiB\n"
    )
    sys.stdout.flush()


def measure_snapshot(directory: Path, arguments: argparse.Namespace) -> None:
    """From one file."""
    path = directory / "snapshot.1"
    cluster = SampleCluster(ledgers=arguments.ledgers, isolation_groups=arguments.groups)
    with open(path, "wb") as file:
        write_snapshot(file, cluster_nodes(cluster), cluster.sessions)
    ways: dict[str, tuple[str, ...]] = {"plain": ()}
    ways |= {f"Spark, {cores} cores": ("--spark", "--cores", str(cores)) for cores in arguments.cores}
    for name, way in ways.items():
        runs = [audit(arguments.ledgers, "--from", str(path), *way) for _ in range(arguments.rounds)]
        show(name, runs, arguments.ledgers)


async def measure_live(directory: Path, arguments: argparse.Namespace) -> None:
    """From two servers: one with the ledgers, one with almost none."""
    os.environ["_JAVA_OPTIONS"] = JVM_OPTIONS
    sizes = {"large": arguments.ledgers, "tiny": _TINY_LEDGERS}
    for name, ledgers in sizes.items():
        cluster = SampleCluster(ledgers=ledgers, session_timeout_ms=_SESSION_TIMEOUT_MS)
        await asyncio.to_thread(write_for_server, directory / name, cluster)
    async with (
        await EmbeddedZooKeeper.start(str(directory / "large")) as large,
        await EmbeddedZooKeeper.start(str(directory / "tiny")) as tiny,
    ):
        del os.environ["_JAVA_OPTIONS"]
        bare = ["tests.bench.bare_reads", large.connect_string, "/ledgers"]
        uri = ("--metadata-uri", f"zk://{large.connect_string}/ledgers")
        spark = ("--spark", "--cores", str(arguments.cores[-1]))
        found: dict[str, list[Run]] = {}
        for _ in range(arguments.rounds):
            for name, job in {
                "bare reads": lambda: run(bare)[0],
                "plain": lambda: audit(arguments.ledgers, *uri),
                f"Spark, {arguments.cores[-1]} cores": lambda: audit(arguments.ledgers, *uri, *spark),
                "start of Spark": lambda: audit(
                    _TINY_LEDGERS, "--metadata-uri", f"zk://{tiny.connect_string}/ledgers", *spark
                ),
            }.items():
                found.setdefault(name, []).append(await asyncio.to_thread(job))
        for name, runs in found.items():
            show(name, runs, arguments.ledgers)


def main() -> None:
    """Write what is read, measure, print, and delete it."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.audit", description=__doc__)
    parser.add_argument("what", choices=["snapshot", "live"])
    parser.add_argument("--ledgers", type=int, default=200_000)
    parser.add_argument("--groups", type=int, default=0, help="isolation groups that the ledgers of the file demand")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--cores", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--directory", default=".cache", help="directory for the files (a subdirectory is used)")
    arguments = parser.parse_args()
    os.makedirs(arguments.directory, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="bench-", dir=arguments.directory)).absolute()
    try:
        if arguments.what == "snapshot":
            measure_snapshot(directory, arguments)
        else:
            asyncio.run(measure_live(directory, arguments))
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
