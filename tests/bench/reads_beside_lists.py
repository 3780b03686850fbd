"""Latency of one client's reads while another client asks for lists of the entries of a large ledger.

    python -m tests.bench.reads_beside_lists --against REV

The bookies, which run all the time, take turns within each round: that of another commit (git worktree), that of this
tree, and a Java bookie with SortedLedgerStorage (DbLedgerStorage does not answer lists) if ``make interop`` has built
it. The reads are of random entries, one in flight. They are measured alone, then with 32 requests for a list in flight
on another connection, which are repeated as soon as they are answered.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import shutil
import statistics
import sys
import tempfile
import time

import msgspec
import uvloop

from bkctl.runtime.client import LedgerClient
from bkctl.runtime.client.ports import ClientPorts
from bkctl.runtime.config import ClientConfig
from tests.bench.fairness import Target, start_bookies

LISTS_IN_FLIGHT = 32
PATIENT = ClientConfig(read_timeout_s=60)


class Latencies(msgspec.Struct, frozen=True):
    """Of one series of reads, in milliseconds."""

    reads: int
    median_ms: float
    highest_ms: float


async def fill(client: LedgerClient, bookie_id: str, entries: int) -> int:
    """A closed ledger with so many entries on this bookie."""
    while True:
        writer = await client.create(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)
        if writer.metadata.last_segment.ensemble == (bookie_id,):
            break
        await writer.close()
    async with writer:
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


class TurnTakingBookie(msgspec.Struct, frozen=True):
    """A bookie that takes turns, and the two clients of it."""

    name: str
    bookie_id: str
    ledger_id: int
    reader: LedgerClient
    lister: LedgerClient


async def _turn(turn_taking: TurnTakingBookie, arguments: argparse.Namespace) -> tuple[Latencies, Latencies]:
    ledger_id = turn_taking.ledger_id
    place = (turn_taking.reader.ports, turn_taking.bookie_id, ledger_id, arguments.entries, arguments.seconds)
    alone = await measure(*place)
    answered: list[int] = []
    lists = [
        asyncio.ensure_future(list_on(turn_taking.lister.ports, turn_taking.bookie_id, ledger_id, answered))
        for _ in range(LISTS_IN_FLIGHT)
    ]
    await asyncio.sleep(1)
    loaded = await measure(*place)
    for each in lists:
        each.cancel()
    await asyncio.wait(lists)
    await asyncio.sleep(arguments.seconds)  # the bookie still makes those that were asked for
    sys.stdout.write(
        f"{turn_taking.name}: alone {alone.median_ms:.2f} ms (highest {alone.highest_ms:.1f}, {alone.reads} reads); "
        f"during lists {loaded.median_ms:.2f} ms (highest {loaded.highest_ms:.1f}, {loaded.reads} reads, "
        f"{len(answered)} lists)\n"
    )
    sys.stdout.flush()
    return alone, loaded


async def _run(targets: dict[str, Target], arguments: argparse.Namespace) -> None:
    async with contextlib.AsyncExitStack() as at_end:
        bookies = []
        for name, (uri, bookie_id) in targets.items():
            reader, lister = [
                await at_end.enter_async_context(await LedgerClient.connect(uri, config=PATIENT)) for _ in range(2)
            ]
            ledger_id = await fill(reader, bookie_id, arguments.entries)
            bookies.append(TurnTakingBookie(name, bookie_id, ledger_id, reader, lister))
        turns: dict[str, list[tuple[Latencies, Latencies]]] = {}
        for _ in range(arguments.rounds):
            for turn_taking in bookies:
                turns.setdefault(turn_taking.name, []).append(await _turn(turn_taking, arguments))
    for name, measured in turns.items():
        alone, loaded = (statistics.median(each.median_ms for each in series) for series in zip(*measured, strict=True))
        sys.stdout.write(f"{name}: medians {alone:.2f} ms alone, {loaded:.2f} ms during lists: {loaded / alone:.1f}\n")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.reads_beside_lists", description=__doc__)
    parser.add_argument("--entries", type=int, default=100_000, help="entries of the ledger that is listed")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="how long each series of reads takes")
    parser.add_argument("--against", metavar="REV", help="commit to compare with")
    arguments = parser.parse_args()
    os.makedirs(".cache", exist_ok=True)
    directory = os.path.abspath(tempfile.mkdtemp(prefix="bench-", dir=".cache"))
    with contextlib.ExitStack() as undo:
        undo.callback(shutil.rmtree, directory)
        targets = start_bookies(
            undo, directory, arguments.against, ledgerStorageClass="org.apache.bookkeeper.bookie.SortedLedgerStorage"
        )
        uvloop.run(_run(targets, arguments))


if __name__ == "__main__":
    main()
