"""``python -m tests.bench.add_cost --against REV``: CPU time of the bookie for each add, next to another commit.

The other commit is checked out into a temporary directory (git worktree). Both bookies run at the same time, each with
its own ZooKeeper, and take turns: other load on the machine meets both. The client is one raw connection that keeps so
many adds of 1 KiB in flight; the journal is on. What counts is CPU time per add, from the CPU clock of the process:
adds per second depend on what else the machine does. The table shows medians of the rounds; a ratio is the median of
the ratios of the two turns of a round, so that many short rounds (``--rounds 40 --adds 5000``) tell a few percent
apart.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Final

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

from bkctl.runtime.protocol import v3
from tests.processes import LOOPBACK, DevCluster

ENTRY_BYTES: Final = 1024
PROMISED_RATIO: Final = 0.6
IN_FLIGHT: Final = (16, 256, 2048)
_KEY: Final = bytes(20)
_OK: Final = bytes.fromhex("1000aa06")
"""Status 0 and the beginning of an answer to an add: what follows the header of a positive one."""
ROOT: Final = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Turn(msgspec.Struct, frozen=True):
    """What one bookie did in one turn."""

    cpu_us: float
    adds_per_s: float


class Side:
    """A bookie of one commit, with the connection of its client."""

    def __init__(self, name: str, tree: str, directory: str) -> None:
        self.name = name
        self.turns: dict[int, list[Turn]] = {in_flight: [] for in_flight in IN_FLIGHT}
        self._cluster = DevCluster(directory)
        with environment("PYTHONPATH", tree):
            self._cluster.up(1)
        bookie = self._cluster.bookies[0]
        self._pid = bookie.pid
        self._socket = socket.create_connection((LOOPBACK, bookie.port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._rest = b""

    def measure(self, frames: list[bytes], in_flight: int) -> Turn:
        """Send all frames, so many in flight at a time, and wait for all answers."""
        before_s, begin = cpu_s(self._pid), time.perf_counter()
        sent = answered = 0
        while answered < len(frames):
            room = min(in_flight - (sent - answered), len(frames) - sent)
            if room:
                self._socket.sendall(b"".join(frames[sent : sent + room]))
                sent += room
            answered += self._take_answers()
        elapsed_s = time.perf_counter() - begin
        return Turn((cpu_s(self._pid) - before_s) / len(frames) * 1e6, len(frames) / elapsed_s)

    def stop(self) -> None:
        """End the processes."""
        self._socket.close()
        self._cluster.stop()

    def _take_answers(self) -> int:
        data = self._socket.recv(1 << 16)
        assert data, f"the bookie of {self.name} closed the connection"
        data = self._rest + data
        start = count = 0
        while len(data) - start >= 4:
            stop = start + 4 + int.from_bytes(data[start : start + 4], "big")
            if stop > len(data):
                break
            assert _OK in data[start:stop], f"the bookie of {self.name} refused an add"
            start = stop
            count += 1
        self._rest = data[start:]
        return count


def cpu_s(pid: int) -> float:
    """CPU time of a process so far, with all its threads: clock_getcpuclockid(3)."""
    return time.clock_gettime(~pid << 3 | 2)


@contextlib.contextmanager
def environment(name: str, value: str) -> Iterator[None]:
    former = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]
        if former is not None:
            os.environ[name] = former


@contextlib.contextmanager
def checked_out(revision: str, directory: str) -> Iterator[str]:
    """A directory with the files of a commit."""
    tree = os.path.join(directory, "tree")
    subprocess.run(["git", "-C", ROOT, "worktree", "add", "--quiet", "--detach", tree, revision], check=True)
    try:
        yield tree
    finally:
        subprocess.run(["git", "-C", ROOT, "worktree", "remove", "--force", tree], check=True)


def _frames(ledger_id: int, count: int) -> list[bytes]:
    payload = os.urandom(ENTRY_BYTES - 32)
    return [
        v3.encode_add_request(
            entry_id + 1,
            ledger_id,
            entry_id,
            _KEY,
            struct.pack(">qqqq", ledger_id, entry_id, entry_id - 1, 0) + payload,
            False,
            False,
        )
        for entry_id in range(count)
    ]


def _run(sides: list[Side], rounds: int, count: int) -> None:
    for number in range(rounds + 1):  # the first round only warms up
        for in_flight in IN_FLIGHT:
            frames = _frames(number * len(IN_FLIGHT) + IN_FLIGHT.index(in_flight) + 1, count)
            for side in sides if number % 2 else reversed(sides):
                turn = side.measure(frames, in_flight)
                if number:
                    side.turns[in_flight].append(turn)


def _table(sides: list[Side], rounds: int, count: int) -> Table:
    title = f"one bookie, one raw connection, 1 KiB, journal on; {rounds} rounds of {count:,} adds"
    table = Table(title=title, box=box.SIMPLE_HEAD)
    table.add_column("commit", no_wrap=True)
    for heading in ("in flight", "CPU us/add", "lowest", "highest", "ratio", "adds/s"):
        table.add_column(heading, justify="right")
    for in_flight in IN_FLIGHT:
        reference = sides[0].turns[in_flight]
        for side in sides:
            costs = [turn.cpu_us for turn in side.turns[in_flight]]
            ratios = [cost / turn.cpu_us for cost, turn in zip(costs, reference, strict=True)]
            table.add_row(
                side.name,
                f"{in_flight:,}",
                f"{statistics.median(costs):.1f}",
                f"{min(costs):.1f}",
                f"{max(costs):.1f}",
                f"{statistics.median(ratios):.3f}",
                f"{statistics.median(turn.adds_per_s for turn in side.turns[in_flight]):,.0f}",
            )
    return table


def main() -> None:
    """Check out, start both bookies, measure, print, and end what was started."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.add_cost", description=__doc__)
    parser.add_argument("--against", metavar="REV", required=True, help="commit to compare with")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--adds", type=int, default=60_000, help="adds in each turn")
    parser.add_argument(
        "--directory", default=".cache", help="directory on the disk to measure (a subdirectory is used)"
    )
    parser.add_argument("--json", action="store_true", help="all turns as JSON on stdout")
    arguments = parser.parse_args()
    os.makedirs(arguments.directory, exist_ok=True)
    directory = os.path.abspath(tempfile.mkdtemp(prefix="bench-", dir=arguments.directory))
    with contextlib.ExitStack() as undo:
        undo.callback(shutil.rmtree, directory)
        tree = undo.enter_context(checked_out(arguments.against, directory))
        sides: list[Side] = []
        for name, path in ((arguments.against, tree), ("this tree", ROOT)):
            sides.append(Side(name, path, os.path.join(directory, f"cluster-{len(sides)}")))
            undo.callback(sides[-1].stop)
        _run(sides, arguments.rounds, arguments.adds)
    if arguments.json:
        found = {side.name: {str(in_flight): turns for in_flight, turns in side.turns.items()} for side in sides}
        sys.stdout.write(msgspec.json.encode(found).decode() + "\n")
    else:
        Console().print(_table(sides, arguments.rounds, arguments.adds))


if __name__ == "__main__":
    main()
