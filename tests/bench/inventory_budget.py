"""How long an inventory of a large cluster takes, and at which load per bookie, by a simulation of its budget.

In virtual time, executors take what each request costs from their share of the budget, by the rules of the command
(``InventoryRequest.share``, ``SharedPacer``, ``Windows``). Bookies answer after a fixed time, and never slow down. A
slice of the ledgers is examined, and the result is scaled to all of them. What the processors of the executors need is
no part of it, but the CPU time of comparing an entry with a list is measured separately.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections import Counter

import msgspec

from bkctl.runtime.ledger.changes import new_ledger, to_closed
from bkctl.runtime.ledger.metadata import DigestType
from bkctl.runtime.protocol.entry_list import ENTRY_GROUP_BYTES, EntryGroup, EntryList
from bkctl.runtime.replication.cluster_audit.inventory import InventoryWay
from bkctl.runtime.replication.config import CopyPace
from bkctl.runtime.replication.copy.limits import SharedPacer, Windows
from bkctl.runtime.replication.copy.reader import BATCH_ENTRIES, REQUEST_COST_BYTES
from bkctl.runtime.replication.judge.fragments import stored_entries
from bkctl.runtime.replication.survey.inventory import InventoryRequest
from tests.sim.loop import VirtualClock, run_simulated

_COPIES = 3
_MEBIBYTE = 1 << 20


class Result(msgspec.Struct, frozen=True):
    """Of the slice: virtual seconds; what all bookies were asked for, and what the busiest one was."""

    seconds: float
    requests: int
    size_bytes: int
    most_bytes: int


async def _examine_slice(arguments: argparse.Namespace, way: InventoryWay) -> Result:
    clock, source = VirtualClock(), random.Random(1)
    pace = CopyPace(
        bytes_per_s=arguments.mebibytes * _MEBIBYTE, bytes_per_s_per_bookie=arguments.mebibytes_per_bookie * _MEBIBYTE
    )
    share = InventoryRequest(way=way, pace=pace).share(arguments.executors)
    asked, requests = Counter[str](), 0
    ensembles = [
        [str(bookie) for bookie in source.sample(range(arguments.bookies), _COPIES)] for _ in range(arguments.ledgers)
    ]
    is_listed = way is InventoryWay.LISTED
    request_bytes = REQUEST_COST_BYTES + ENTRY_GROUP_BYTES if is_listed else BATCH_ENTRIES * arguments.entry_bytes

    async def executor(number: int) -> None:
        pacer = SharedPacer(clock)
        pacer.change(share.pace.bytes_per_s, share.pace.bytes_per_s_per_bookie)
        # As in LedgerChecker: at most so many batches of a run are in flight. Lists have no such limit.
        config = share.config
        batches_max = config.ledgers_in_parallel if is_listed else config.entries_in_flight_max // BATCH_ENTRIES
        windows = Windows(config.bytes_in_flight_max, items_max=batches_max)
        rest = iter(ensembles[number :: arguments.executors])

        async def examine_ledgers() -> None:
            nonlocal requests
            for ensemble in rest:
                for _ in range(1 if is_listed else arguments.batches):
                    await pacer.take_reads(dict.fromkeys(ensemble, request_bytes))
                    async with windows.items.lease(0 if is_listed else _COPIES * request_bytes):
                        await clock.sleep(arguments.answer_ms / 1000)
                    asked.update(dict.fromkeys(ensemble, request_bytes))
                    requests += _COPIES * (1 if is_listed else BATCH_ENTRIES)

        await asyncio.gather(*(examine_ledgers() for _ in range(config.ledgers_in_parallel)))

    begin_ns = clock.monotonic_ns()
    await asyncio.gather(*map(executor, range(arguments.executors)))
    seconds = (clock.monotonic_ns() - begin_ns) / 1e9
    return Result(seconds, requests, asked.total(), max(asked.values()))


def _comparison_us() -> float:
    """CPU time of looking for one entry in a list, in microseconds."""
    metadata = to_closed(new_ledger(("a:1", "b:1", "c:1"), 3, 2, DigestType.CRC32C, b""), 99_999, 1)
    listed = EntryList([EntryGroup(0, 99_999, 2, 3)])
    begin = time.process_time()
    count = sum(entry_id in listed for entry_id in stored_entries(metadata, "a:1", -1))
    return (time.process_time() - begin) / count * 1e6


def main() -> None:
    """Simulate both ways, and print what the whole cluster takes."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.inventory_budget", description=__doc__)
    parser.add_argument("--bookies", type=int, default=1000)
    parser.add_argument("--entries", type=int, default=100_000_000, help="of each bookie")
    parser.add_argument("--entry-bytes", type=int, default=1024)
    parser.add_argument("--ledger-entries", type=int, default=50_000, help="entries of one ledger (Pulsar's default)")
    parser.add_argument("--executors", type=int, default=64)
    parser.add_argument("--mebibytes-per-bookie", type=int, default=10, help="per second: --copy-rate-per-bookie")
    parser.add_argument("--mebibytes", type=int, default=10_000, help="per second, in all: --copy-rate")
    parser.add_argument("--answer-ms", type=float, default=5.0, help="until a bookie answers")
    parser.add_argument("--ledgers", type=int, default=40_000, help="in the slice that is simulated")
    parser.add_argument("--batches", type=int, default=8, help="of entries of each of these ledgers that are read")
    arguments = parser.parse_args()
    copies = arguments.bookies * arguments.entries
    ledgers = copies // (_COPIES * arguments.ledger_entries)
    for way in (InventoryWay.LISTED, InventoryWay.ALL_ENTRIES):
        found = run_simulated(_examine_slice(arguments, way))
        whole = ledgers * _COPIES if way is InventoryWay.LISTED else copies
        seconds = found.seconds * whole / found.requests
        per_bookie = found.size_bytes / arguments.bookies / found.seconds / _MEBIBYTE
        rate = found.requests / arguments.bookies / found.seconds
        sys.stdout.write(
            f"{way.value}: {seconds:,.0f} s, {whole:,} requests; per bookie {rate:,.1f} requests/s, "
            f"{per_bookie:.2f} MiB/s of the budget (busiest: {found.most_bytes / found.seconds / _MEBIBYTE:.2f})\n"
        )
    sys.stdout.write(
        f"lists: {copies * _comparison_us() / 3.6e9:.0f} hours of one core to look for the entries in them\n"
    )
    sys.stdout.write(f"metadata of {ledgers:,} ledgers at 5,000 requests/s: {ledgers / 5000:.0f} s\n")


if __name__ == "__main__":
    main()
