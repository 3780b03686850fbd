"""``bkctl ledger list --count`` over many ledgers, beside the same calls by kazoo alone.

Loads a real ZooKeeper with ledgers of the hierarchical layout: dense, as ids are given out, and sparse, one in every
bucket, the worst there can be. Each round runs both in processes of their own, one after the other.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Sequence
from typing import Any

import msgspec
from kazoo.client import KazooClient

from bkctl.runtime.ledger.changes import new_ledger
from bkctl.runtime.ledger.metadata import DigestType
from bkctl.runtime.ledger.metadata_format import encode_ledger_metadata
from bkctl.runtime.metadata.ledgers.layout import LedgerLayout, LedgerTree, encode_layout
from bkctl.runtime.metadata.zookeeper.embedded import EmbeddedZooKeeper

IN_FLIGHT = 512
STEPS = {"dense": 1, "sparse": 10_000}
"""Distance of two ledger ids."""

JVM_OPTIONS = "-Xmx1500m -XX:TieredStopAtLevel=4"
"""The server of the tests has 256 MiB, which 600,000 nodes do not fit into."""


class Run(msgspec.Struct, frozen=True):
    """One process: seconds of the whole, of kazoo's calls alone, the most memory it ever had, and its CPU time."""

    seconds: float
    calls_seconds: float
    resident_mebibytes: float
    cpu_seconds: float


def load(hosts: str, root: str, step: int, count: int, data: Sequence[bytes] = ()) -> None:
    """Create the ledgers level by level, pipelined. ``data``: their nodes' bytes, in turn; by default all are open."""
    client = KazooClient(hosts, timeout=30)
    client.start()
    room = threading.Semaphore(IN_FLIGHT)

    def create_all(paths: list[str], contents: Sequence[bytes] = (b"",)) -> None:
        def answered(_: Any) -> None:
            room.release()

        answers = []
        for path, content in zip(paths, itertools.cycle(contents), strict=False):
            room.acquire()
            answers.append(client.create_async(path, content))
            answers[-1].rawlink(answered)
        for answer in answers:
            answer.get()

    digits = [f"{index * step:010d}" for index in range(count)]
    client.ensure_path(f"{root}/available/readonly")
    if not client.exists(f"{root}/LAYOUT"):
        client.create(f"{root}/LAYOUT", encode_layout(LedgerLayout(LedgerTree.HIERARCHICAL)))
    create_all([f"{root}/{top}" for top in sorted({each[:2] for each in digits})])
    create_all([f"{root}/{each[:2]}/{each[2:]}" for each in sorted({each[:6] for each in digits})])
    metadata = new_ledger(("10.0.0.1:3181", "10.0.0.2:3181", "10.0.0.3:3181"), 2, 2, DigestType.CRC32C, b"secret")
    create_all(
        [f"{root}/{each[:2]}/{each[2:6]}/L{each[6:]}" for each in digits], data or [encode_ledger_metadata(metadata)]
    )
    client.stop()
    client.close()


def run(arguments: list[str], exit_codes: Collection[int] = (0,)) -> tuple[Run, str]:
    """Run to the end; its resources by its own account, not that of all children."""
    begin = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", *arguments], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode in exit_codes, f"{arguments} ended with {process.returncode}"
    seconds = time.perf_counter() - begin
    calls_seconds = float(output.split()[2]) if "bare" in arguments[0] else seconds
    return Run(seconds, calls_seconds, usage.ru_maxrss / 1024, usage.ru_utime + usage.ru_stime), output


def measure(hosts: str, root: str, count: int, rounds: int, rate: str) -> dict[str, list[Run]]:
    """Both, ``rounds`` times in turn."""
    found: dict[str, list[Run]] = {"bare": [], "bkctl": []}
    uri = f"zk+hierarchical://{hosts}{root}"
    for _ in range(rounds):
        bare, output = run(["tests.bench.bare_listing", hosts, root])
        assert int(output.split()[0]) == count
        found["bare"].append(bare)
        ours, output = run(
            ["bkctl", "ledger", "list", "--count", "-o", "json", "--metadata-uri", uri, "--zk-rate", rate]
        )
        assert msgspec.json.decode(output)["count"] == count
        found["bkctl"].append(ours)
    return found


def _summary(runs: list[Run]) -> str:
    seconds = [each.seconds for each in runs]
    calls_seconds = statistics.median(each.calls_seconds for each in runs)
    peak_mebibytes = max(each.resident_mebibytes for each in runs)
    return (
        f"{statistics.median(seconds):8.2f} s ({min(seconds):.2f} to {max(seconds):.2f}), "
        f"calls alone {calls_seconds:.2f} s, at most {peak_mebibytes:.0f} MiB"
    )


async def _run(arguments: argparse.Namespace, directory: str) -> None:
    os.environ["_JAVA_OPTIONS"] = JVM_OPTIONS
    server = await EmbeddedZooKeeper.start(directory)
    try:
        for kind, step in STEPS.items():
            # A child's peak of memory begins with that of the process it was forked from: this one must stay small.
            loader = multiprocessing.get_context("spawn").Process(
                target=load, args=(server.connect_string, f"/{kind}", step, arguments.ledgers)
            )
            loader.start()
            await asyncio.to_thread(loader.join)
            assert loader.exitcode == 0
            found = await asyncio.to_thread(
                measure, server.connect_string, f"/{kind}", arguments.ledgers, arguments.rounds, arguments.rate
            )
            for name, runs in found.items():
                sys.stdout.write(f"{kind:7} {name:6} {_summary(runs)}\n")
                sys.stdout.flush()
    finally:
        await server.stop()


def main() -> None:
    """Load, measure, print, and delete what was loaded."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.ledger_listing", description=__doc__)
    parser.add_argument("--ledgers", type=int, default=200_000, help="how many; below 214,749 for the sparse tree")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", default=".cache", help="directory for ZooKeeper's data (a subdirectory is used)")
    parser.add_argument("--rate", default="0", help="operations a second for bkctl; 0: no limit, as kazoo has none")
    arguments = parser.parse_args()
    os.makedirs(arguments.directory, exist_ok=True)
    directory = tempfile.mkdtemp(prefix="bench-", dir=arguments.directory)
    try:
        asyncio.run(_run(arguments, directory))
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
