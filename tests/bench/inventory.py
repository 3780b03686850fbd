"""What an inventory costs: seconds, requests to each bookie and their time, of lists and of reads.

    python -m tests.bench.inventory --ledgers 300 --entries 1000

Real bookies with so many closed ledgers of three copies: those of bkctl, and of Java's with InterleavedLedgerStorage
and with DbLedgerStorage, which never answers a request for a list. Each way is run as the command, and the table has
the median round. ``--spark`` adds the same on Spark, with its start. Java's bookies need ``make interop`` once.
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

import msgspec

from bkctl.runtime.client import LedgerClient
from bkctl.runtime.config import ClientConfig
from bkctl.runtime.metadata.zookeeper.embedded import EmbeddedZooKeeper
from tests.bench.java_ledgers import BOOKIE_FLAGS
from tests.interop.java_cluster import STORAGE, JavaCluster
from tests.processes import DevCluster

WAYS = {
    "metadata alone": (),
    "listed": ("--inventory",),
    "sampled": ("--inventory", "--read"),
    "all entries": ("--inventory", "--read", "--all-entries"),
}
STORAGES = {
    "interleaved": "org.apache.bookkeeper.bookie.InterleavedLedgerStorage",
    "db": STORAGE["ledgerStorageClass"],
}
LEDGERS_AT_ONCE = 20
_ADD_TIMEOUT_S = 120.0
"""The first adds of a cold JVM on a busy machine take some seconds."""


class Cost(msgspec.Struct, frozen=True):
    """Of one run. ``requests`` and ``ms_per_request``: of the bookie with the most of them."""

    seconds: float
    requests: float
    ms_per_request: float
    bytes_read: float


FIELDS = Cost.__struct_fields__


async def fill(uri: str, ledgers: int, entries: int, payload: bytes) -> None:
    """Write the ledgers."""
    config = ClientConfig(add_timeout_s=_ADD_TIMEOUT_S)
    async with await LedgerClient.connect(uri, config=config) as client:

        async def write_one() -> None:
            async with await client.create(ensemble_size=3, write_quorum_size=3, ack_quorum_size=2) as writer:
                await asyncio.gather(*(writer.append(payload) for _ in range(entries)))

        for first in range(0, ledgers, LEDGERS_AT_ONCE):
            await asyncio.gather(*(write_one() for _ in range(min(LEDGERS_AT_ONCE, ledgers - first))))


def measure(cluster: DevCluster | JavaCluster, *options: str) -> Cost:
    """Run the command once."""
    began = time.perf_counter()
    done = cluster.run("audit", *options)
    seconds = time.perf_counter() - began
    assert done.exit_code in {0, 10}, done.stderr  # 10: bookies that give no lists are a finding
    report = done.json()
    rows = report["holdings"]
    busiest = max(rows, key=lambda row: row["requests"], default={"requests": 0, "waited_us": 0})
    each_ms = busiest["waited_us"] / busiest["requests"] / 1000 if busiest["requests"] else 0.0
    return Cost(seconds, busiest["requests"], each_ms, report["bytes_read"] or 0)


def _run(arguments: argparse.Namespace, cluster: DevCluster | JavaCluster, bookies: str) -> None:
    asyncio.run(fill(cluster.metadata_uri, arguments.ledgers, arguments.entries, bytes(arguments.bytes)))
    for name, options in WAYS.items():
        for where in ((), ("--spark",)) if arguments.spark else ((),):
            costs = [measure(cluster, *options, *where) for _ in range(arguments.rounds)]
            middle = Cost(*(statistics.median(getattr(cost, field) for cost in costs) for field in FIELDS))
            sys.stdout.write(
                f"{bookies}, {name}{' on Spark' if where else ''}: {middle.seconds:.2f} s, requests to one bookie "
                f"{middle.requests:,.0f}, each {middle.ms_per_request:.2f} ms, {middle.bytes_read / 2**20:,.1f} MiB\n"
            )
            sys.stdout.flush()


def _run_on_bkctl(arguments: argparse.Namespace, directory: str) -> None:
    cluster = DevCluster(directory)
    try:
        cluster.up(3)
        _run(arguments, cluster, "bkctl")
    finally:
        cluster.stop()


def _run_on_java(arguments: argparse.Namespace, directory: str, storage: str) -> None:
    server = asyncio.run(EmbeddedZooKeeper.start(os.path.join(directory, "zookeeper")))
    try:
        uri = f"zk+hierarchical://{server.connect_string}/java"
        with JavaCluster(os.path.join(directory, "java"), uri, jvm_flags=BOOKIE_FLAGS) as cluster:
            cluster.start_bookies(3, ledgerStorageClass=STORAGES[storage])
            _run(arguments, cluster, f"Java, {storage}")
    finally:
        asyncio.run(server.stop())


def main() -> None:
    """Fill, measure, print, and delete what was written."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.inventory", description=__doc__)
    parser.add_argument("--ledgers", type=int, default=300)
    parser.add_argument("--entries", type=int, default=1000, help="of each ledger")
    parser.add_argument("--bytes", type=int, default=1024, help="of each entry")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bookies", nargs="+", choices=["bkctl", *STORAGES], default=["bkctl", *STORAGES])
    parser.add_argument("--spark", action="store_true", help="also on Spark")
    parser.add_argument("--directory", default=".cache", help="directory for the data (a subdirectory is used)")
    arguments = parser.parse_args()
    os.makedirs(arguments.directory, exist_ok=True)
    for bookies in arguments.bookies:
        directory = tempfile.mkdtemp(prefix="bench-", dir=os.path.abspath(arguments.directory))
        try:
            if bookies == "bkctl":
                _run_on_bkctl(arguments, directory)
            else:
                _run_on_java(arguments, directory, bookies)
        finally:
            shutil.rmtree(directory)


if __name__ == "__main__":
    main()
