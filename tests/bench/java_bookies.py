"""``make bench-java``: adds and reads of one bookie, bkctl's and Apache BookKeeper's 4.18 side by side in one run.

Both bookies run all the time, with caches of the same size, and take turns within each round; the first round warms up
and is not counted. The client is one raw connection that keeps so many requests in flight, the same for both. Entries
are added to a new ledger, then its last ones are read again and again ("hot", from memory), then those of the ledger
of the round before, once each and in order ("cold": no cache of the bookie has them, the page cache may). Reads begin
when the bookie has nothing to do, so that no checkpoint of the adds before counts as theirs. The table has medians of
the rounds; a ratio is the median of the ratios of the two turns of a round. CPU time is that of the bookie, which other
load on the machine changes little; requests per second depend on that load. Needs ``make interop`` once.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import os
import select
import socket
import statistics
import struct
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

from bkctl.runtime.metadata.zookeeper.embedded import EmbeddedZooKeeper
from bkctl.runtime.protocol import v3
from bkctl.runtime.protocol.framing import LENGTH
from tests.bench.add_cost import cpu_s
from tests.bench.java_ledgers import BOOKIE_FLAGS, BOOKIE_SETTINGS
from tests.interop.java_cluster import JavaCluster
from tests.processes import LOOPBACK, Cluster

KINDS: Final = ("add", "hot read", "cold read")
PROTOCOLS: Final = ("v2", "v3")
SIZES: Final = (100, 1024, 64 * 1024)
IN_FLIGHT: Final = (1, 256, 2048)
JAVA_CACHES: Final = {"dbStorage_writeCacheMaxSizeMb": "128", "dbStorage_readAheadCacheMaxSizeMb": "32"}
"""bkctl's defaults."""

_KEY: Final = bytes(20)
_V2_ADD, _V2_READ = 2 << 24 | 1 << 16, 2 << 24 | 2 << 16
_HOT_BYTES: Final = 8 << 20
_SEND_BYTES: Final = 1 << 20
_IDLE_LOOK_S: Final = 0.1
_IDLE_LOOKS_MAX: Final = 50
_OK_V3: Final = (bytes.fromhex("1000aa06"), bytes.fromhex("1000a206"))
"""What follows the header of a positive answer: status 0 and the beginning of an add's or a read's."""
_OK_V2: Final = bytes(4)


class Cell(NamedTuple):
    """One row of the table."""

    kind: str
    protocol: str
    entry_bytes: int
    in_flight: int

    @property
    def request_count(self) -> int:
        """Requests in a turn."""
        is_large = self.entry_bytes > SIZES[1]
        if self.in_flight == 1:
            return 200 if is_large else 1000
        return self.in_flight * 3 // 2 if is_large else 60_000


class CellTurn(msgspec.Struct, frozen=True):
    """What one bookie did for one cell in one round."""

    requests_per_s: float
    p99_ms: float
    cpu_us: float


class RawClient:
    """A bookie's process, and a connection to it that counts answers."""

    def __init__(self, pid: int, port: int, protocol: str) -> None:
        self._pid = pid
        self._is_v2 = protocol == "v2"
        self._socket = socket.create_connection((LOOPBACK, port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setblocking(False)
        self._rest = b""

    def close(self) -> None:
        """End the connection."""
        self._socket.close()

    def wait_until_idle(self) -> None:
        """Until the bookie has used little CPU time for a while, in which a checkpoint would begin; a few seconds at
        most."""
        used_s, quiet_count = cpu_s(self._pid), 0
        for _ in range(_IDLE_LOOKS_MAX):
            time.sleep(_IDLE_LOOK_S)
            before_s, used_s = used_s, cpu_s(self._pid)
            quiet_count = quiet_count + 1 if used_s - before_s < _IDLE_LOOK_S / 10 else 0
            if quiet_count == 2:
                return

    def measure(self, frames: Sequence[bytes], in_flight: int) -> CellTurn:
        """Send all frames, so many in flight at a time, and wait for all answers.

        The k-th answer counts for the k-th request: a bookie may answer reads in another order, and that moves the
        latencies of single reads, not their sum.
        """
        sent_at: list[float] = []
        latencies: list[float] = []
        unsent = memoryview(b"")
        batch_max = max(1, _SEND_BYTES // len(frames[0]))
        before_s, begin = cpu_s(self._pid), time.perf_counter()
        while len(latencies) < len(frames):
            sent = len(sent_at)
            room = min(in_flight - (sent - len(latencies)), batch_max)
            if room and sent < len(frames) and not unsent:
                batch = frames[sent : sent + room]
                unsent = memoryview(b"".join(batch))
                sent_at += itertools.repeat(time.perf_counter(), len(batch))
            if unsent:
                with contextlib.suppress(BlockingIOError):
                    unsent = unsent[self._socket.send(unsent) :]
            # Also with nothing left of this batch: waiting for answers before the next one would keep fewer in flight.
            may_send = unsent or len(latencies) + in_flight > len(sent_at) < len(frames)
            readable, _, _ = select.select([self._socket], [self._socket] if may_send else [], [])
            if readable:
                count, now = self._take_answers(), time.perf_counter()
                latencies += [now - at for at in sent_at[len(latencies) : len(latencies) + count]]
        elapsed_s, used_s = time.perf_counter() - begin, cpu_s(self._pid) - before_s
        p99_s = statistics.quantiles(latencies, n=100)[-1]
        return CellTurn(len(frames) / elapsed_s, p99_s * 1e3, used_s / len(frames) * 1e6)

    def _take_answers(self) -> int:
        data = self._socket.recv(1 << 18)
        assert data, "the bookie closed the connection"
        data = self._rest + data
        start = count = 0
        while len(data) - start >= LENGTH.size:
            stop = start + LENGTH.size + LENGTH.unpack_from(data, start)[0]
            if stop > len(data):
                break
            self._require_ok(data[start : min(stop, start + 48)])
            start = stop
            count += 1
        self._rest = data[start:]
        return count

    def _require_ok(self, head: bytes) -> None:
        is_ok = head[8:12] == _OK_V2 if self._is_v2 else any(ok in head for ok in _OK_V3)
        assert is_ok, f"the bookie refused a request: {head.hex()}"


class Side(NamedTuple):
    """A bookie, with a connection for each protocol."""

    name: str
    pid: int
    clients: dict[str, RawClient]

    def resident_mebibytes(self) -> float:
        """Memory of the process."""
        with open(f"/proc/{self.pid}/status", encoding="ascii") as status:
            [kibibytes] = [line.split()[1] for line in status if line.startswith("VmRSS:")]
        return int(kibibytes) / 1024


def _side(name: str, pid: int, bookie_id: str, undo: contextlib.ExitStack) -> Side:
    port = int(bookie_id.rpartition(":")[2])
    clients = {protocol: RawClient(pid, port, protocol) for protocol in PROTOCOLS}
    for client in clients.values():
        undo.callback(client.close)
    return Side(name, pid, clients)


def frames_of(cell: Cell, ledger_id: int) -> list[bytes]:
    """Requests of one turn."""
    entry_ids: Sequence[int] = range(cell.request_count)
    if cell.kind == "add":
        payload = os.urandom(cell.entry_bytes)
        return [_add(cell.protocol, ledger_id, entry_id, payload) for entry_id in entry_ids]
    if cell.kind == "hot read":
        hot_count = min(cell.request_count, _HOT_BYTES // cell.entry_bytes)
        entry_ids = [cell.request_count - 1 - entry_id % hot_count for entry_id in entry_ids]
    return [_read(cell.protocol, ledger_id, entry_id, number) for number, entry_id in enumerate(entry_ids, 1)]


def _add(protocol: str, ledger_id: int, entry_id: int, payload: bytes) -> bytes:
    body = struct.pack(">qqqq", ledger_id, entry_id, entry_id - 1, 0) + payload
    if protocol == "v3":
        return v3.encode_add_request(entry_id + 1, ledger_id, entry_id, _KEY, body, False, False)
    return struct.pack(">II", 4 + len(_KEY) + len(body), _V2_ADD) + _KEY + body


def _read(protocol: str, ledger_id: int, entry_id: int, txn_id: int) -> bytes:
    if protocol == "v3":
        return v3.encode_read_request(txn_id, ledger_id, entry_id, None, False)
    return struct.pack(">IIqq", 20, _V2_READ, ledger_id, entry_id)


Measured = dict[str, dict[Cell, list[CellTurn]]]


def run(sides: Sequence[Side], rounds: int, kinds: Sequence[str]) -> Measured:
    """The turns of both sides, without those of the first round."""
    measured: Measured = {side.name: defaultdict(list) for side in sides}
    written: dict[tuple[str, int, int], int] = {}
    ledger_ids = itertools.count(1)
    for number in range(rounds + 1):
        for group in itertools.product(PROTOCOLS, SIZES, IN_FLIGHT):
            former, written[group] = written.get(group), next(ledger_ids)
            for kind in KINDS:
                cell = Cell(kind, *group)
                ledger_id = former if kind == "cold read" else written[group]
                if ledger_id is None or kind not in ("add", *kinds):
                    continue
                frames = frames_of(cell, ledger_id)
                for side in sides if number % 2 else reversed(sides):
                    client = side.clients[cell.protocol]
                    if kind != "add":
                        client.wait_until_idle()
                    turn = client.measure(frames, cell.in_flight)
                    if number:
                        measured[side.name][cell].append(turn)
    return measured


def table(measured: Measured, kinds: Sequence[str]) -> Table:
    """Ratios above 1 are in favour of bkctl in requests per second, against it in CPU time."""
    ours, java = measured.values()
    shown = Table(box=box.SIMPLE_HEAD)
    for heading in ("", "in flight", "bkctl /s", "Java /s", "ratio", "p99 ms", "Java", "CPU us", "Java", "ratio"):
        shown.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for cell in sorted(ours, key=lambda each: KINDS.index(each.kind)):
        if cell.kind not in kinds:
            continue
        pairs = list(zip(ours[cell], java[cell], strict=True))
        columns = [
            [statistics.median(getattr(turn, field) for turn in turns) for turns in (ours[cell], java[cell])]
            for field in CellTurn.__struct_fields__
        ]
        rates, p99s, costs = columns
        rate = statistics.median(one.requests_per_s / other.requests_per_s for one, other in pairs)
        cost = statistics.median(one.cpu_us / other.cpu_us for one, other in pairs)
        shown.add_row(
            f"{cell.kind}, {cell.protocol}, {cell.entry_bytes:,} B",
            f"{cell.in_flight:,}",
            *(f"{value:,.0f}" for value in rates),
            f"{rate:.2f}",
            *(f"{value:,.2f}" for value in p99s),
            *(f"{value:,.1f}" for value in costs),
            f"{cost:.2f}",
        )
    return shown


def _start(directory: str, undo: contextlib.ExitStack) -> list[Side]:
    server = asyncio.run(EmbeddedZooKeeper.start(os.path.join(directory, "zookeeper")))
    undo.callback(lambda: asyncio.run(server.stop()))
    uri = f"zk+hierarchical://{server.connect_string}"
    ours = Cluster(os.path.join(directory, "bkctl"), f"{uri}/ours")
    undo.callback(ours.stop)
    ours.up(1)
    java = undo.enter_context(JavaCluster(os.path.join(directory, "java"), f"{uri}/java", jvm_flags=BOOKIE_FLAGS))
    [java_id] = java.start_bookies(1, **JAVA_CACHES, **BOOKIE_SETTINGS)
    bookie = ours.bookies[0]
    return [_side("bkctl", bookie.pid, bookie.id, undo), _side("Java", java.pid_of(java_id), java_id, undo)]


def main() -> None:
    """Start both bookies, measure, print, and end what was started."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.java_bookies", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="rounds that count")
    parser.add_argument("--only", choices=KINDS, help="one kind of requests (all need the adds)")
    parser.add_argument(
        "--directory", default=".cache", help="directory on the disk to measure (a subdirectory is used)"
    )
    parser.add_argument("--json", action="store_true", help="all turns as JSON on stdout")
    arguments = parser.parse_args()
    kinds = (arguments.only,) if arguments.only else KINDS
    os.makedirs(arguments.directory, exist_ok=True)
    with contextlib.ExitStack() as undo:
        directory = undo.enter_context(tempfile.TemporaryDirectory(prefix="bench-", dir=arguments.directory))
        sides = _start(os.path.abspath(directory), undo)
        measured = run(sides, arguments.rounds, kinds)
        memory = ", ".join(f"{side.name} {side.resident_mebibytes():,.0f} MiB" for side in sides)
    if arguments.json:
        found = {
            name: [{**cell._asdict(), "turns": turns} for cell, turns in cells.items()]
            for name, cells in measured.items()
        }
        sys.stdout.write(msgspec.json.encode(found).decode() + "\n")
    else:
        Console(width=160).print(table(measured, kinds))
        Console().print(f"resident memory at the end: {memory}; {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
