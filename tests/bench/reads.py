"""``python -m tests.bench.reads --against REV``: a client that reads whole ledgers, next to that of another commit.

Three bookies of this tree, ledgers with three copies. In each round both clients read every ledger once, in a process
of their own; then one of the bookies is halted (SIGSTOP), and both read a ledger of 3,000 entries, with a new client.
The table shows medians of the rounds; a ratio is the median of the ratios of the two turns of a round.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from typing import Final

import msgspec
import uvloop
from rich import box
from rich.console import Console
from rich.table import Table

from bkctl.runtime.client import LedgerClient
from tests.bench.add_cost import ROOT, checked_out
from tests.processes import DevCluster

HALTED_ENTRIES: Final = 3_000
HALTED: Final = "one bookie halted"
_LEDGERS: Final = {"100 B": (100, 20_000), "1 KiB": (1024, 20_000), "64 KiB": (64 * 1024, 1_000)}


class Turn(msgspec.Struct, frozen=True):
    """One ledger, read by one client."""

    seconds: float
    cpu_s: float


async def read(metadata_uri: str, ledger_id: int) -> Turn:
    """Read a whole ledger with a new client."""
    async with await LedgerClient.connect(metadata_uri) as client:
        reader = await client.open(ledger_id)
        begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
        count = 0
        async for _ in reader:
            count += 1
        turn = Turn(time.perf_counter() - begin_s, time.process_time() - begin_cpu_s)
        assert count == reader.last_add_confirmed + 1
        return turn


def read_in_process(tree: str, metadata_uri: str, ledger_id: int) -> Turn:
    """As ``read``, by the client of the commit in the directory ``tree``."""
    command = [sys.executable, "-P", os.path.abspath(__file__), "--client", metadata_uri, str(ledger_id)]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": tree}, stdout=subprocess.PIPE, check=True)
    return msgspec.json.decode(done.stdout, type=Turn)


async def write(metadata_uri: str) -> dict[str, int]:
    """Write the ledgers; their ids by name."""
    async with await LedgerClient.connect(metadata_uri) as client:
        found = {}
        for name, (size, count) in {**_LEDGERS, HALTED: (1024, HALTED_ENTRIES)}.items():
            writer = await client.create(ensemble_size=3, write_quorum_size=3, ack_quorum_size=2)
            payload = os.urandom(size)
            appends: deque[asyncio.Future[int]] = deque()
            for _ in range(count):
                if len(appends) == 256:
                    await appends.popleft()
                appends.append(asyncio.ensure_future(writer.append(payload)))
            await asyncio.gather(*appends)
            await writer.close()
            found[name] = writer.ledger_id
        return found


def measure(cluster: DevCluster, trees: dict[str, str], rounds: int) -> dict[str, dict[str, list[Turn]]]:
    """Turns by ledger and commit."""
    ledgers = uvloop.run(write(cluster.metadata_uri))
    turns: dict[str, dict[str, list[Turn]]] = {name: {each: [] for each in trees} for name in ledgers}
    for number in range(rounds):
        order = list(trees.items())[:: 1 if number % 2 else -1]
        for name, ledger_id in ledgers.items():
            for commit, tree in order:
                with contextlib.ExitStack() as undo:
                    if name == HALTED:
                        pid = cluster.bookies[number % 3].pid
                        os.kill(pid, signal.SIGSTOP)
                        undo.callback(os.kill, pid, signal.SIGCONT)
                    turns[name][commit].append(read_in_process(tree, cluster.metadata_uri, ledger_id))
    return turns


def _table(turns: dict[str, dict[str, list[Turn]]], title: str) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD)
    for heading in ("ledger", "client"):
        table.add_column(heading, no_wrap=True)
    for heading in ("seconds", "longest", "CPU, s", "ratio", "ratio of CPU"):
        table.add_column(heading, justify="right")
    for name, by_commit in turns.items():
        base = next(iter(by_commit.values()))
        for commit, measured in by_commit.items():
            pairs = list(zip(measured, base, strict=True))
            table.add_row(
                name,
                commit,
                f"{statistics.median(turn.seconds for turn in measured):.3f}",
                f"{max(turn.seconds for turn in measured):.3f}",
                f"{statistics.median(turn.cpu_s for turn in measured):.3f}",
                f"{statistics.median(turn.seconds / first.seconds for turn, first in pairs):.2f}",
                f"{statistics.median(turn.cpu_s / first.cpu_s for turn, first in pairs):.2f}",
            )
    return table


def main() -> None:
    """Start the bookies, measure, print, and end what was started."""
    if sys.argv[1:2] == ["--client"]:
        turn = uvloop.run(read(sys.argv[2], int(sys.argv[3])))
        sys.stdout.write(msgspec.json.encode(turn).decode())
        return
    parser = argparse.ArgumentParser(prog="python -m tests.bench.reads", description=__doc__)
    parser.add_argument("--against", metavar="REV", required=True, help="commit to compare with")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--directory", default=".cache", help="directory on the disk to use (a subdirectory is made)")
    options = parser.parse_args()
    os.makedirs(options.directory, exist_ok=True)
    directory = os.path.abspath(tempfile.mkdtemp(prefix="bench-", dir=options.directory))
    with contextlib.ExitStack() as undo:
        undo.callback(shutil.rmtree, directory)
        trees = {options.against[:8]: undo.enter_context(checked_out(options.against, directory)), "this tree": ROOT}
        cluster = DevCluster(os.path.join(directory, "cluster"))
        undo.callback(cluster.stop)
        cluster.up(3)
        turns = measure(cluster, trees, options.rounds)
    Console().print(_table(turns, f"{options.rounds} rounds"))


if __name__ == "__main__":
    main()
