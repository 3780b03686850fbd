"""``make bench``: what one bookie does for one client, beside what its disk and the loopback allow.

One bookie process, one client process, 1 KiB entries, journal sync on. Every round measures everything; the table
shows the median of the rounds, and the lowest and highest round, since other load on the machine shows there first.
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import statistics
import sys
import tempfile

import msgspec
import uvloop
from rich import box
from rich.console import Console
from rich.table import Table

from bkctl.runtime.client import LedgerClient
from tests.bench.measurements import EchoServer, Round, Workload, measure_round
from tests.processes import DevCluster

ROWS = (
    ("adds, pipelined", "adds_per_s", "1/s", ">= 40,000"),
    ("add, one in flight", "one_in_flight_us", "us", "<= 400"),
    ("add, two in flight", "two_in_flight_us", "us", ""),
    ("disk, append and fdatasync", "sync_us", "us", ""),
    ("loopback, echo", "echo_us", "us", ""),
)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="rounds; the first one only warms up and is not counted")
    parser.add_argument(
        "--directory", default=".cache", help="directory on the disk to measure (a subdirectory is used)"
    )
    parser.add_argument("--json", action="store_true", help="all rounds as JSON on stdout")
    return parser.parse_args()


async def _run(directory: str, rounds: int, metadata_uri: str) -> list[Round]:
    logging.getLogger("bkctl.runtime.client").setLevel(logging.ERROR)  # one copy per entry is what is measured here
    echo = EchoServer()
    try:
        async with await LedgerClient.connect(metadata_uri) as client:
            measured = [await measure_round(client, echo.port, directory, Workload()) for _ in range(rounds + 1)]
        return measured[1:]
    finally:
        echo.stop()


def _table(rounds: list[Round]) -> Table:
    title = f"one bookie, one client, 1 KiB, journal sync on; {os.cpu_count()} cores, {len(rounds)} rounds"
    table = Table(title=title, box=box.SIMPLE_HEAD)
    table.add_column("", no_wrap=True)
    for heading in ("median", "lowest", "highest"):
        table.add_column(heading, justify="right")
    table.add_column("unit")
    table.add_column("promise")
    for title, field, unit, promise in ROWS:
        values = [getattr(one, field) for one in rounds]
        shown = (f"{value:,.0f}" for value in (statistics.median(values), min(values), max(values)))
        table.add_row(title, *shown, unit, promise)
    return table


def main() -> None:
    """Start the cluster, measure, print, and end what was started."""
    arguments = _arguments()
    os.makedirs(arguments.directory, exist_ok=True)
    directory = tempfile.mkdtemp(prefix="bench-", dir=arguments.directory)
    cluster = DevCluster(os.path.join(directory, "cluster"))
    try:
        cluster.up(1)
        rounds = uvloop.run(_run(directory, arguments.rounds, cluster.metadata_uri))
    finally:
        cluster.stop()
        shutil.rmtree(directory)
    if arguments.json:
        sys.stdout.write(msgspec.json.encode(rounds).decode() + "\n")
    else:
        Console().print(_table(rounds))


if __name__ == "__main__":
    main()
