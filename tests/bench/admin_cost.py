"""``python -m tests.bench.admin_cost``: adds per second of a bookie with and without users of its admin interface.

The load is that of ``make bench``. The two turns of a pair come one after the other, in alternating order: a plain one,
and one with 1,000 idle connections to the admin port, a scrape of the metrics every second, and one garbage collection
with both compactions. Another process scrapes. The CPU time is that of the bookie; on a busy machine it is more
reliable than adds per second. With ``--garbage`` the ledgers of former turns are deleted, so that each collection
deletes as many entries as two turns add: then it is the cost of that work that shows.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec
import uvloop
from rich import box
from rich.console import Console
from rich.table import Table

from bkctl.runtime.bookie.admin.interface import socket_path
from bkctl.runtime.client import LedgerClient
from tests.bench.add_cost import Turn, cpu_s
from tests.bench.admin_load import Load
from tests.bench.measurements import measure_adds_per_s
from tests.processes import DevCluster, run_bkctl

PROMISED_RATIO: Final = 0.95


class Pair(msgspec.Struct, frozen=True):
    """Two turns, one after the other."""

    plain: Turn
    disturbed: Turn
    load: Load

    @property
    def adds_ratio(self) -> float:
        """Adds per second that are left."""
        return self.disturbed.adds_per_s / self.plain.adds_per_s

    @property
    def cpu_ratio(self) -> float:
        """CPU time per add, as a multiple of the undisturbed one."""
        return self.disturbed.cpu_us / self.plain.cpu_us


class Workload(NamedTuple):
    """What each turn does."""

    add_count: int
    makes_garbage: bool


class Disturber:
    """The process that uses the admin interface."""

    def __init__(self, admin_port: int, ledger_directory: str, connections: int) -> None:
        arguments = (str(admin_port), socket_path(ledger_directory), str(connections))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.admin_load", *arguments],
            stdout=subprocess.PIPE,
            stdin=subprocess.PIPE,
            text=True,
        )

    def begin(self) -> None:
        """Open the connections, then start to scrape and to collect."""
        self._ask("begin")

    def end(self) -> Load:
        """Stop that and close the connections."""
        return msgspec.json.decode(self._ask("end"), type=Load)

    def stop(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()

    def _ask(self, line: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the process that uses the admin interface has failed"
        return answer


async def _turn(client: LedgerClient, pid: int, workload: Workload) -> Turn:
    async with await client.create(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1) as writer:
        before_s = cpu_s(pid)
        adds_per_s = await measure_adds_per_s(writer, workload.add_count)
        cpu_us = (cpu_s(pid) - before_s) / workload.add_count * 1e6
    if workload.makes_garbage:
        await client.delete(writer.ledger_id)
    return Turn(cpu_us, adds_per_s)


async def _pair(
    client: LedgerClient, disturber: Disturber, pid: int, workload: Workload, *, is_plain_first: bool
) -> Pair:
    plain = await _turn(client, pid, workload) if is_plain_first else None
    disturber.begin()
    disturbed = await _turn(client, pid, workload)
    load = disturber.end()
    return Pair(plain or await _turn(client, pid, workload), disturbed, load)


async def _run(cluster: DevCluster, disturber: Disturber, pairs: int, workload: Workload) -> list[Pair]:
    logging.getLogger("bkctl.runtime.client").setLevel(logging.ERROR)  # one copy per entry is what is measured here
    pid = cluster.bookies[0].pid
    async with await LedgerClient.connect(cluster.metadata_uri) as client:
        found = [
            await _pair(client, disturber, pid, workload, is_plain_first=number % 2 == 0) for number in range(pairs + 1)
        ]
    return found[1:]  # the first pair only warms up


def _described(loads: Sequence[Load]) -> str:
    scrapes_ms = [each for load in loads for each in load.scrape_ms]
    return (
        f"Disturbed by {min(load.connections for load in loads):,} idle connections "
        f"({sum(load.reopened for load in loads):,} were closed and opened again), {len(scrapes_ms):,} scrapes of "
        f"{max(load.scrape_bytes for load in loads):,} bytes (median {statistics.median(scrapes_ms):.0f} ms) and "
        f"{sum(load.collections for load in loads)} garbage collections"
    )


def _table(pairs: Sequence[Pair], count: int) -> Table:
    title = f"one bookie, one client, 1 KiB, journal sync on; {len(pairs)} pairs of {count:,} adds each"
    table = Table(title=title, box=box.SIMPLE_HEAD)
    table.add_column("", no_wrap=True)
    for heading in ("plain", "disturbed", "median ratio", "lowest", "highest"):
        table.add_column(heading, justify="right")
    table.add_column("promise")
    for name, field, ratio, promise in (
        ("adds/s", "adds_per_s", "adds_ratio", f">= {PROMISED_RATIO}"),
        ("CPU us/add", "cpu_us", "cpu_ratio", ""),
    ):
        ratios = [getattr(pair, ratio) for pair in pairs]
        medians = [statistics.median(getattr(turn, field) for turn in turns) for turns in _turns(pairs)]
        shown = (f"{value:.3f}" for value in (statistics.median(ratios), min(ratios), max(ratios)))
        table.add_row(name, *(f"{value:,.1f}" for value in medians), *shown, promise)
    return table


def _turns(pairs: Sequence[Pair]) -> tuple[list[Turn], list[Turn]]:
    return [pair.plain for pair in pairs], [pair.disturbed for pair in pairs]


def main() -> None:
    """Start a bookie, measure, print, and end what was started."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.admin_cost", description=__doc__)
    parser.add_argument("--pairs", type=int, default=10, help="pairs; one more before them only warms up")
    parser.add_argument("--adds", type=int, default=150_000, help="adds in each turn")
    parser.add_argument("--connections", type=int, default=1000, help="idle connections to the admin port")
    parser.add_argument("--garbage", action="store_true", help="delete the ledger of each turn")
    parser.add_argument(
        "--directory", default=".cache", help="directory on the disk to measure (a subdirectory is used)"
    )
    parser.add_argument("--json", action="store_true", help="all pairs as JSON on stdout")
    arguments = parser.parse_args()
    os.makedirs(arguments.directory, exist_ok=True)
    directory = os.path.abspath(tempfile.mkdtemp(prefix="bench-", dir=arguments.directory))
    with contextlib.ExitStack() as undo:
        undo.callback(shutil.rmtree, directory)
        cluster = DevCluster(os.path.join(directory, "cluster"))
        undo.callback(cluster.stop)
        cluster.up(1)
        status = run_bkctl("dev", "cluster", "status", "--dir", cluster.directory, "-o", "json").json()["bookies"][0]
        disturber = Disturber(status["admin_port"], os.path.join(status["dir"], "ledgers"), arguments.connections)
        undo.callback(disturber.stop)
        workload = Workload(arguments.adds, arguments.garbage)
        pairs = uvloop.run(_run(cluster, disturber, arguments.pairs, workload))
    if arguments.json:
        sys.stdout.write(msgspec.json.encode(pairs).decode() + "\n")
    else:
        Console().print(_table(pairs, arguments.adds))
        Console().print(_described([pair.load for pair in pairs]))


if __name__ == "__main__":
    main()
