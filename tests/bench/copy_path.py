"""``python -m tests.bench.copy_path``: CPU time of a client for each entry that it reads or adds, as copying does.

One bkctl bookie, and one Java bookie (4.18.0) if ``make interop`` has built it. Each round runs every kind of request
once on each bookie, so that other load on the machine meets all of them. What counts is CPU time of this process per
entry: entries per second depend on the bookie, the disk and what else the machine does. The table shows medians.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import os
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import Final, TypeAlias

import msgspec
import uvloop
from rich import box
from rich.console import Console
from rich.table import Table

from bkctl.runtime.config import ClientConfig
from bkctl.runtime.net.loop import LoopClock
from bkctl.runtime.net.pool import BookiePool
from bkctl.runtime.ports import ReadReply
from bkctl.runtime.protocol.digest import DigestType, master_key
from bkctl.runtime.protocol.entry_body import EntryCodec
from bkctl.runtime.protocol.status import Status
from tests.interop.java import is_built
from tests.interop.java_cluster import JavaCluster
from tests.processes import LOOPBACK, DevCluster

BATCH_COUNT_MAX: Final = 256
IN_FLIGHT_COUNT: Final = 4
BYTES_MAX: Final = 1 << 20
_KEY: Final = master_key(b"")
_JVM_FLAGS: Final = ("-Xmx1g", "-XX:MaxDirectMemorySize=1g", "-XX:TieredStopAtLevel=4")


class Turn(msgspec.Struct, frozen=True):
    """One kind of request on one bookie in one round."""

    cpu_us: float
    entries_per_s: float


class Job(msgspec.Struct, frozen=True):
    """The entries of a ledger on one bookie."""

    pool: BookiePool
    bookie_id: str
    ledger_id: int
    bodies: list[bytes]

    @property
    def batch_count(self) -> int:
        """Entries of a batch."""
        return max(1, min(BATCH_COUNT_MAX, BYTES_MAX // len(self.bodies[0])))


Way: TypeAlias = Callable[[Job], Awaitable[None]]


async def add_singly(job: Job) -> None:
    """One callback for each add, a window of them in flight."""
    window = asyncio.Semaphore(job.batch_count * IN_FLIGHT_COUNT)

    def done(status: Status) -> None:
        assert status is Status.OK
        window.release()

    for entry_id, body in enumerate(job.bodies):
        await window.acquire()
        job.pool.add(job.bookie_id, job.ledger_id, entry_id, _KEY, body, done, is_recovery_add=True)
    for _ in range(job.batch_count * IN_FLIGHT_COUNT):
        await window.acquire()


async def read_singly(job: Job) -> None:
    """One future for each read, a window of them in flight."""
    pending: deque[tuple[bytes, asyncio.Future[ReadReply]]] = deque()
    for entry_id, body in enumerate(job.bodies):
        if len(pending) == job.batch_count * IN_FLIGHT_COUNT:
            expected, reply = pending.popleft()
            assert (await reply).body == expected
        pending.append((body, job.pool.read(job.bookie_id, job.ledger_id, entry_id)))
    for expected, reply in pending:
        assert (await reply).body == expected


async def add_many(job: Job) -> None:
    """Batches, a few in flight."""
    pending: deque[asyncio.Future[list[Status]]] = deque()
    for batch in _batches(job):
        if len(pending) == IN_FLIGHT_COUNT:
            assert set(await pending.popleft()) == {Status.OK}
        pending.append(job.pool.add_many(job.bookie_id, job.ledger_id, _KEY, batch, is_recovery_add=True))
    for statuses in pending:
        assert set(await statuses) == {Status.OK}


async def read_many(job: Job) -> None:
    """Batches of consecutive entries, a few in flight: batch reads, if the bookie serves them."""
    await _read(job, lambda ids: ids)


async def read_many_singly(job: Job) -> None:
    """Batches in another order, which single reads serve."""
    await _read(job, lambda ids: ids[::-1])


async def _read(job: Job, order: Callable[[range], range]) -> None:
    starts = iter(range(0, len(job.bodies), job.batch_count))

    async def read() -> None:
        for start in starts:
            wanted = order(range(start, min(start + job.batch_count, len(job.bodies))))
            while wanted:
                found = await job.pool.read_many(job.bookie_id, job.ledger_id, wanted, bytes_max=BYTES_MAX)
                assert found == [job.bodies[entry_id] for entry_id in wanted[: len(found)]]
                wanted = wanted[len(found) :]

    await asyncio.gather(*(read() for _ in range(IN_FLIGHT_COUNT)))


def _batches(job: Job) -> Iterator[list[tuple[int, bytes]]]:
    entries = enumerate(job.bodies)
    while batch := list(itertools.islice(entries, job.batch_count)):
        yield batch


WAYS: Final[dict[str, Way]] = {
    "add, one by one": add_singly,
    "add_many": add_many,
    "read, one by one": read_singly,
    "read_many, single reads": read_many_singly,
    "read_many": read_many,
}


async def measure(ports: dict[str, int], entry_count: int, entry_bytes: int, rounds: int) -> dict[str, list[Turn]]:
    """Turns by bookie and kind of request."""

    async def resolve(bookie_id: str) -> tuple[str, int]:
        return LOOPBACK, ports[bookie_id]

    pool = BookiePool(resolve, ClientConfig(add_timeout_s=60, read_timeout_s=60), LoopClock())
    turns: dict[str, list[Turn]] = {}
    payload = os.urandom(entry_bytes)
    ledger_ids = itertools.count(1)
    for _ in range(rounds):
        for bookie_id in ports:
            for name, way in WAYS.items():
                if name.startswith("add"):
                    ledger_id = next(ledger_ids)
                    codec = EntryCodec(ledger_id, DigestType.CRC32C, b"")
                    bodies = [codec.encode(number, -1, number * entry_bytes, payload) for number in range(entry_count)]
                begin_cpu_s, begin_s = time.process_time(), time.perf_counter()
                await way(Job(pool, bookie_id, ledger_id, bodies))
                cpu_s, elapsed_s = time.process_time() - begin_cpu_s, time.perf_counter() - begin_s
                turn = Turn(cpu_s / entry_count * 1e6, entry_count / elapsed_s)
                turns.setdefault(f"{bookie_id}: {name}", []).append(turn)
    await pool.close()
    return turns


def _table(turns: dict[str, list[Turn]], title: str) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD)
    table.add_column("", no_wrap=True)
    for heading in ("CPU, us per entry", "lowest", "entries per s"):
        table.add_column(heading, justify="right")
    for name, measured in turns.items():
        cpu_us = [turn.cpu_us for turn in measured]
        speed = statistics.median(turn.entries_per_s for turn in measured)
        table.add_row(name, f"{statistics.median(cpu_us):.1f}", f"{min(cpu_us):.1f}", f"{speed:,.0f}")
    return table


def main() -> None:
    """Start the bookies, measure, print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.copy_path", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--entries", type=int, default=20_000)
    parser.add_argument("--entry-bytes", type=int, default=1024)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        cluster = DevCluster(os.path.join(directory, "cluster"))
        stack.callback(cluster.stop)
        cluster.up(1)
        ports = {"bkctl": cluster.bookies[0].port}
        if is_built():
            java = JavaCluster(os.path.join(directory, "java"), cluster.metadata_uri, jvm_flags=_JVM_FLAGS)
            (java_id,) = stack.enter_context(java).start_bookies(1)
            ports["Java"] = int(java_id.rpartition(":")[2])
        else:
            print("no Java bookie: run make interop", file=sys.stderr)
        turns = uvloop.run(measure(ports, arguments.entries, arguments.entry_bytes, arguments.rounds))
    title = f"{arguments.rounds} rounds of {arguments.entries:,} entries of {arguments.entry_bytes:,} bytes"
    Console().print(_table(turns, title))


if __name__ == "__main__":
    main()
