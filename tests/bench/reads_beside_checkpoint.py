"""Random reads of a bookie's index and entry logs: alone, and while a checkpoint of a million rows is written.

    python -m tests.bench.reads_beside_checkpoint

One process with the bookie's own lanes: a loop that asks, the reads lane that answers from LevelDB and entry logs, the
checkpoint lane beside it. Every read is of a random entry that no cache holds. Each round fills the write cache with as
many entries as the checkpoint is to have, measures the reads alone, from the checkpoint's begin to its end, and alone
again. The memory of the process is taken when each round has ended; what the settings allow it is printed beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import random
import shutil
import statistics
import struct
import sys
import tempfile
import time

import msgspec
import uvloop

from bkctl.runtime.bookie.boot.process import SWITCH_INTERVAL_S
from bkctl.runtime.bookie.serving.checkpoints import CHECKPOINT_LANE, CheckpointPace
from bkctl.runtime.bookie.serving.reads import READS_LANE, ReadBatcher, new_read
from bkctl.runtime.net.loop import LaneWorkers
from bkctl.runtime.protocol.status import Status
from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.adapters.index_store import WRITE_BUFFER_BYTES, open_plyvel
from bkctl.storage.config import EngineConfig
from bkctl.storage.engine.checkpoint import CheckpointDone, DirectoryCheckpoint
from bkctl.storage.engine.engine import LedgerDirectoryEngine
from bkctl.storage.engine.memtable import ENTRY_OVERHEAD_BYTES
from bkctl.storage.engine.replay import checkpoint_now
from bkctl.storage.setting import MEBIBYTE

KEY = b"k" * 20
LEDGER_COUNT = 1000
PAYLOAD_BYTES = 64
READERS = 64
"""Questions under way at once: one turn of the reads lane."""

READ_CACHE_BYTES = 32 * MEBIBYTE

PROCESS_MEBIBYTES = 100
"""The interpreter with all modules, before anything is opened, and some room for the allocator."""

_HEADER = struct.Struct(">qqqq")


class Round(msgspec.Struct, frozen=True):
    """One checkpoint, and the reads before and beside it."""

    idle_reads_per_s: float
    loaded_reads_per_s: float
    checkpoint_s: float
    memory_mebibytes: float

    @property
    def kept(self) -> float:
        """Share of the idle rate that is left beside the checkpoint."""
        return self.loaded_reads_per_s / self.idle_reads_per_s


class Workload:
    """An engine with rows of many ledgers on disk, and who reads them."""

    def __init__(self, engine: LedgerDirectoryEngine, workers: LaneWorkers, row_count: int) -> None:
        self.engine = engine
        self.workers = workers
        self._row_count = row_count
        self._reads = ReadBatcher(workers, READS_LANE)
        self._random = random.Random(1)
        self._next_entry_id = 0

    @property
    def _entry_count(self) -> int:
        return self._row_count // LEDGER_COUNT

    async def fill(self) -> None:
        """Add the rows of one checkpoint to the write cache."""
        payload = os.urandom(PAYLOAD_BYTES)
        first = self._next_entry_id
        self._next_entry_id += self._entry_count
        for ledger_id in range(LEDGER_COUNT):
            for entry_id in range(first, self._next_entry_id):
                self.engine.add(ledger_id, entry_id, _HEADER.pack(ledger_id, entry_id, -1, 0) + payload)
            await asyncio.sleep(0)

    async def read_until(self, stop: asyncio.Event, stored_entry_count: int) -> float:
        """Read random entries of those first stored until ``stop``; returns reads per second."""
        began = time.monotonic()
        counts = await asyncio.gather(*(self._read_on(stop, stored_entry_count) for _ in range(READERS)))
        return sum(counts) / (time.monotonic() - began)

    async def _read_on(self, stop: asyncio.Event, stored_entry_count: int) -> int:
        for count in itertools.count():
            if stop.is_set():
                return count
            ledger_id = self._random.randrange(LEDGER_COUNT)
            entry_id = self._random.randrange(1, stored_entry_count)
            outcome = await self._reads.read(new_read(self.engine, ledger_id, entry_id, needs_last_entry=False))
            assert outcome.status is Status.OK
        raise AssertionError("count never ends")

    async def round(self, idle_s: float) -> Round:
        """Fill, read alone, read beside the checkpoint."""
        stored_entry_count = self._next_entry_id
        await self.fill()
        before = await self._read_alone(idle_s, stored_entry_count)
        stop = asyncio.Event()
        began = time.monotonic()
        job = self.engine.begin_checkpoint()
        reading = asyncio.ensure_future(self.read_until(stop, stored_entry_count))
        done = await self.workers.run(CHECKPOINT_LANE, self._write, job)
        checkpoint_s = time.monotonic() - began
        stop.set()
        loaded = await reading
        self.engine.end_checkpoint(job, done)
        await self.workers.run(CHECKPOINT_LANE, job.memtable.release)
        after = await self._read_alone(idle_s, stored_entry_count)
        return Round((before + after) / 2, loaded, checkpoint_s, memory_mebibytes())

    async def _read_alone(self, seconds: float, stored_entry_count: int) -> float:
        stop = asyncio.Event()
        asyncio.get_running_loop().call_later(seconds, stop.set)
        return await self.read_until(stop, stored_entry_count)

    def _write(self, job: DirectoryCheckpoint) -> CheckpointDone:
        pace = CheckpointPace(time.monotonic, time.sleep)
        pace.begin()
        return self.engine.write_checkpoint(job, pace.pause)


def memtable_bytes(row_count: int) -> int:
    """Both halves of a write cache that holds so many rows in one."""
    return 2 * row_count * (_HEADER.size + PAYLOAD_BYTES + ENTRY_OVERHEAD_BYTES)


def allowed_mebibytes(row_count: int) -> float:
    """Caches, and what the two databases buffer: each a table being filled and one being written."""
    return (memtable_bytes(row_count) + READ_CACHE_BYTES + 4 * WRITE_BUFFER_BYTES) / MEBIBYTE


def memory_mebibytes() -> float:
    """Memory that this process has for itself; not the files that LevelDB maps, which the kernel takes back at will."""
    with open("/proc/self/status", encoding="ascii") as status:
        [kibibytes] = [line.split()[1] for line in status if line.startswith("RssAnon:")]
    return int(kibibytes) / 1024


async def _run(arguments: argparse.Namespace, directory: str) -> list[Round]:
    config = EngineConfig(memtable_bytes_max=memtable_bytes(arguments.rows), read_cache_bytes_max=READ_CACHE_BYTES)
    engine = LedgerDirectoryEngine.open(OsFileSystem(), open_plyvel, directory, directory, config)
    workers = LaneWorkers()
    workload = Workload(engine, workers, arguments.rows)
    for ledger_id in range(LEDGER_COUNT):
        engine.rows.set_master_key(ledger_id, KEY)
    await workload.fill()
    checkpoint_now(engine)
    rounds = []
    for number in range(arguments.rounds):
        rounds.append(await workload.round(arguments.idle_s))
        _print_round(number, rounds[-1])
    await workers.close()
    engine.close()
    return rounds


def _print_round(number: int, one: Round) -> None:
    sys.stdout.write(
        f"round {number}: {one.idle_reads_per_s:,.0f} reads/s alone, {one.loaded_reads_per_s:,.0f} beside a checkpoint "
        f"of {one.checkpoint_s:.1f} s ({one.kept:.2f}); {one.memory_mebibytes:,.0f} MiB resident\n"
    )
    sys.stdout.flush()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.reads_beside_checkpoint", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of each checkpoint")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--idle-s", type=float, default=5.0, help="how long the reads are measured alone, twice")
    parser.add_argument(
        "--directory", default=".cache", help="directory on the disk to measure (a subdirectory is used)"
    )
    arguments = parser.parse_args()
    os.makedirs(arguments.directory, exist_ok=True)
    directory = tempfile.mkdtemp(prefix="bench-", dir=arguments.directory)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        rounds = uvloop.run(_run(arguments, directory))
    finally:
        shutil.rmtree(directory)
    allowed = PROCESS_MEBIBYTES + allowed_mebibytes(arguments.rows)
    highest = max(one.memory_mebibytes for one in rounds)
    sys.stdout.write(f"resident memory, highest: {highest:,.0f} MiB (allowed by the settings: {allowed:,.0f})\n")
    kept = statistics.median(one.kept for one in rounds)
    sys.stdout.write(f"kept beside the checkpoint, median of {len(rounds)} rounds: {kept:.2f} (promise: 0.5)\n")


if __name__ == "__main__":
    main()
