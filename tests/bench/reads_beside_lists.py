"""Latency of one client's reads while another client asks for lists of the entries of a large ledger.

    python -m tests.bench.reads_beside_lists

One bookie process of bkctl and one client process. The reads are of random entries, one in flight. In each round they
are measured alone, then with 32 requests for a list in flight on another connection, which are repeated as soon as they
are answered.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import statistics
import sys
import tempfile
import time

import msgspec
import uvloop

from runtime.client import LedgerClient
from runtime.client.ports import ClientPorts
from runtime.config import ClientConfig
from tests.processes import DevCluster

LISTS_IN_FLIGHT = 32
PATIENT = ClientConfig(read_timeout_s=60)


class Latencies(msgspec.Struct, frozen=True):
    """Of one series of reads, in milliseconds."""

    reads: int
    median_ms: float
    highest_ms: float


async def fill(client: LedgerClient, entries: int) -> int:
    """A closed ledger with so many entries."""
    async with await client.create(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1) as writer:
        for first in range(0, entries, 1000):
            await asyncio.gather(*(writer.append(bytes(16)) for _ in range(first, min(first + 1000, entries))))
        return writer.ledger_id


async def measure(ports: ClientPorts, bookie_id: str, ledger_id: int, entries: int, seconds: float) -> Latencies:
    """Read random entries, one after another."""
    times_ms = []
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        began = time.perf_counter_ns()
        await ports.bookies.read(bookie_id, ledger_id, random.randrange(entries))
        times_ms.append((time.perf_counter_ns() - began) / 1e6)
    return Latencies(len(times_ms), statistics.median(times_ms), max(times_ms))


async def list_on(ports: ClientPorts, bookie_id: str, ledger_id: int, answered: list[int]) -> None:
    """Ask for one list after another."""
    while True:
        answered.append(len(await ports.bookies.list_entries(bookie_id, ledger_id)))


async def _round(reader: LedgerClient, lister: LedgerClient, ledger_id: int, arguments: argparse.Namespace) -> float:
    (bookie_id,) = (await reader.ports.registrations.snapshot()).live
    place = (reader.ports, bookie_id, ledger_id, arguments.entries, arguments.seconds)
    alone = await measure(*place)
    answered: list[int] = []
    lists = [
        asyncio.ensure_future(list_on(lister.ports, bookie_id, ledger_id, answered)) for _ in range(LISTS_IN_FLIGHT)
    ]
    await asyncio.sleep(1)
    beside = await measure(*place)
    for each in lists:
        each.cancel()
    await asyncio.wait(lists)
    sys.stdout.write(
        f"alone {alone.median_ms:.2f} ms (highest {alone.highest_ms:.1f}, {alone.reads} reads); beside lists "
        f"{beside.median_ms:.2f} ms (highest {beside.highest_ms:.1f}, {beside.reads} reads, {len(answered)} lists); "
        f"ratio {beside.median_ms / alone.median_ms:.1f}\n"
    )
    sys.stdout.flush()
    return beside.median_ms / alone.median_ms


async def _run(metadata_uri: str, arguments: argparse.Namespace) -> None:
    async with (
        await LedgerClient.connect(metadata_uri, config=PATIENT) as reader,
        await LedgerClient.connect(metadata_uri, config=PATIENT) as lister,
    ):
        ledger_id = await fill(reader, arguments.entries)
        ratios = [await _round(reader, lister, ledger_id, arguments) for _ in range(arguments.rounds)]
    sys.stdout.write(f"ratio of the medians, median of {len(ratios)} rounds: {statistics.median(ratios):.1f}\n")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.reads_beside_lists", description=__doc__)
    parser.add_argument("--entries", type=int, default=100_000, help="entries of the ledger that is listed")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="how long each series of reads takes")
    arguments = parser.parse_args()
    os.makedirs(".cache", exist_ok=True)
    directory = tempfile.mkdtemp(prefix="bench-", dir=".cache")
    cluster = DevCluster(directory)
    try:
        cluster.up(1)
        uvloop.run(_run(cluster.metadata_uri, arguments))
    finally:
        cluster.stop()
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
