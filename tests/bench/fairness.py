"""``python -m tests.bench.fairness --against REV``: latency of a client while another one floods the bookie.

The flood is one connection that sends one kind of small request as fast as the bookie takes them, and reads the
answers; another process does it. Meanwhile a client reads an entry from the bookie's memory, one read in flight. The
bookies, which run all the time, take turns within each round: that of another commit (git worktree), that of this tree,
and a Java bookie (4.18.0) if ``make interop`` has built it. A turn without a flood comes first. The table shows
milliseconds: the median of the rounds for the median and the 99th percentile of a turn, and the longest read of all.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import selectors
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

from bkctl.runtime.protocol import v3
from tests.bench.add_cost import ROOT, checked_out, environment
from tests.interop.java import is_built
from tests.interop.java_cluster import JavaCluster
from tests.processes import LOOPBACK, DevCluster

_KEY: Final = bytes(20)
_JVM_FLAGS: Final = ("-Xmx1g", "-XX:MaxDirectMemorySize=1g", "-XX:TieredStopAtLevel=4")
_FRAME_COUNT: Final = 4096
PROBED_LEDGER, FLOODED_LEDGER = 1, 2


def _add(ledger_id: int, entry_id: int, txn_id: int) -> bytes:
    body = struct.pack(">qqqq", ledger_id, entry_id, entry_id - 1, 0) + b"x"
    return v3.encode_add_request(txn_id, ledger_id, entry_id, _KEY, body, False, False)


def _read(ledger_id: int, txn_id: int) -> bytes:
    return v3.encode_read_request(txn_id, ledger_id, 0, None, False)


FLOODS: Final[dict[str, Callable[[int], bytes]]] = {
    "bookie info": v3.encode_bookie_info_request,
    "read": lambda txn_id: _read(PROBED_LEDGER, txn_id),
    "add": lambda txn_id: _add(FLOODED_LEDGER, txn_id, txn_id),
}


class Turn(msgspec.Struct, frozen=True):
    """Latencies of the reads of one turn, in milliseconds."""

    median_ms: float
    p99_ms: float
    longest_ms: float


def flood(port: int, kind: str) -> None:
    """Send requests without an end, and drop the answers; connect again whenever the bookie closes the connection."""
    frames = b"".join(FLOODS[kind](number) for number in range(_FRAME_COUNT))
    while True:
        try:
            _flood_once(port, frames)
        except ConnectionError:
            print(f"port {port} closed the connection of a flood: {kind}", file=sys.stderr, flush=True)


def _flood_once(port: int, frames: bytes) -> None:
    """Flood over one connection; prints a line once the bookie has answered. ConnectionError."""
    with socket.create_connection((LOOPBACK, port)) as connection, selectors.DefaultSelector() as selector:
        connection.setblocking(False)
        selector.register(connection, selectors.EVENT_READ | selectors.EVENT_WRITE)
        rest, has_answer = memoryview(frames), False
        while True:
            for _, events in selector.select():
                if events & selectors.EVENT_READ:
                    if not connection.recv(1 << 18):
                        raise ConnectionResetError
                    if not has_answer:
                        print("flooding", flush=True)
                        has_answer = True
                if events & selectors.EVENT_WRITE:
                    rest = rest[connection.send(rest) :] or memoryview(frames)


@contextlib.contextmanager
def _flooded(port: int, kind: str) -> Iterator[None]:
    if not kind:
        yield
        return
    command = [sys.executable, "-m", "tests.bench.fairness", "--flood", kind, "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline(), "the flood has ended"
            yield
            assert process.poll() is None, "the flood has ended"
        finally:
            process.kill()


def _ask(connection: socket.socket, frame: bytes) -> None:
    connection.sendall(frame)
    (size_bytes,) = struct.unpack(">I", connection.recv(4, socket.MSG_WAITALL))
    connection.recv(size_bytes, socket.MSG_WAITALL)


def _turn(port: int, kind: str, seconds: float) -> Turn:
    latencies_ms = []
    with socket.create_connection((LOOPBACK, port)) as probe:
        probe.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _ask(probe, _add(PROBED_LEDGER, 0, 1))
        with _flooded(port, kind):
            end = time.perf_counter() + seconds
            while (begin := time.perf_counter()) < end:
                _ask(probe, _read(PROBED_LEDGER, 2))
                latencies_ms.append((time.perf_counter() - begin) * 1000)
                time.sleep(0.001)
    latencies_ms.sort()
    return Turn(statistics.median(latencies_ms), latencies_ms[int(len(latencies_ms) * 0.99)], latencies_ms[-1])


def _table(turns: dict[tuple[str, str], list[Turn]], title: str) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD)
    table.add_column("flood", no_wrap=True)
    table.add_column("bookie", no_wrap=True)
    for heading in ("median, ms", "99 %, ms", "longest, ms"):
        table.add_column(heading, justify="right")
    for (kind, name), measured in turns.items():
        numbers = (
            statistics.median(turn.median_ms for turn in measured),
            statistics.median(turn.p99_ms for turn in measured),
            max(turn.longest_ms for turn in measured),
        )
        table.add_row(kind or "none", name, *(f"{number:,.2f}" for number in numbers))
    return table


def _measure(ports: dict[str, int], rounds: int, seconds: float) -> dict[tuple[str, str], list[Turn]]:
    turns: dict[tuple[str, str], list[Turn]] = {}
    for number in range(rounds):
        for kind in ("", *FLOODS):
            for name in sorted(ports, reverse=number % 2 == 1):
                turns.setdefault((kind, name), []).append(_turn(ports[name], kind, seconds))
    return turns


class Target(NamedTuple):
    """A bookie to measure; that of Java is in the cluster of this tree's."""

    metadata_uri: str
    bookie_id: str

    @property
    def port(self) -> int:
        """Its TCP port."""
        return int(self.bookie_id.rpartition(":")[2])


def start_bookies(
    undo: contextlib.ExitStack, directory: str, revision: str | None, **java_settings: str
) -> dict[str, Target]:
    """Start a bookie of ``revision``, if any, one of this tree, and one of Java, if ``make interop`` has built it."""
    trees = {"this tree": ROOT}
    if revision is not None:
        trees = {revision: undo.enter_context(checked_out(revision, directory)), **trees}
    found = {}
    for number, (name, tree) in enumerate(trees.items()):
        cluster = DevCluster(os.path.join(directory, f"cluster-{number}"))
        undo.callback(cluster.stop)
        with environment("PYTHONPATH", tree):
            cluster.up(1)
        found[name] = Target(cluster.metadata_uri, cluster.bookies[0].id)
    if is_built():
        java = JavaCluster(os.path.join(directory, "java"), cluster.metadata_uri, jvm_flags=_JVM_FLAGS)
        (java_id,) = undo.enter_context(java).start_bookies(1, **java_settings)
        found["Java"] = Target(cluster.metadata_uri, java_id)
    else:
        print("no Java bookie: run make interop", file=sys.stderr)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Start the bookies, measure, print, and end what was started."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.fairness", description=__doc__)
    parser.add_argument("--against", metavar="REV", help="commit to compare with")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each turn")
    parser.add_argument("--directory", default=".cache", help="directory on the disk to use (a subdirectory is made)")
    parser.add_argument("--flood", choices=FLOODS, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.flood is not None:
        flood(options.port, options.flood)
        return
    os.makedirs(options.directory, exist_ok=True)
    directory = os.path.abspath(tempfile.mkdtemp(prefix="bench-", dir=options.directory))
    with contextlib.ExitStack() as undo:
        undo.callback(shutil.rmtree, directory)
        ports = {name: each.port for name, each in start_bookies(undo, directory, options.against).items()}
        print(f"ports: {ports}", file=sys.stderr)
        turns = _measure(ports, options.rounds, options.seconds)
    Console().print(_table(turns, f"{options.rounds} rounds, {options.seconds:g} s for each"))


if __name__ == "__main__":
    main()
