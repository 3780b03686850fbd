"""``python -m tests.bench.tailing``: how soon an entry reaches a follower; what a thousand followers cost the writer.

Three bkctl bookies and three of Java (4.18), ledgers with three copies, entries of 100 B. The writer is bkctl's.

- Latency: the writer sends entries in pairs, the second as soon as the first is acknowledged, because it tells the
  bookies that the first is confirmed. The time runs from that acknowledgement to the arrival at a follower in another
  process: ours (``LedgerReader.follow``), and Java's (``readLastAddConfirmedAndEntry``). In each round they take turns.
- Cost: adds per second, 256 in flight, and the time of an add every 50 ms, without followers, with 1,000 followers of
  a ledger that is not written, and with 1,000 followers of the same ledger. The followers are one process: once with
  the priority of the writer on all cores, and once on a core of their own, while writer and bookies keep to the other
  cores, with and without followers: there the writer loses only what followers cost the bookies, as if they ran on
  another machine. The CPU time of the bookies per add shows this cost even on a busy machine; the entries that reach
  the followers show whether they follow.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from typing import Final

import msgspec
import uvloop
from rich import box
from rich.console import Console
from rich.table import Table

from bkctl.runtime.client import LedgerClient
from bkctl.runtime.client.writer import LedgerWriter
from tests.bench.add_cost import ROOT, cpu_s
from tests.interop.java import JavaClient, is_built
from tests.interop.java_cluster import JavaCluster
from tests.processes import DevCluster

FOLLOWERS: Final = 1_000
_PAIRS: Final = 200
_PAUSE_S: Final = 0.005
_PAYLOAD: Final = bytes(100)
_RATE_S: Final = 3.0
_SINGLE_ADDS: Final = 60
_APART: Final = "; a core for followers alone"
_NO_FOLLOWERS: Final = "no followers"
_JVM_FLAGS: Final = ("-Xmx1g", "-XX:MaxDirectMemorySize=1g", "-XX:TieredStopAtLevel=4")


class Target(msgspec.Struct, frozen=True):
    """A cluster, with the processes of its bookies."""

    metadata_uri: str
    pids: list[int]


class Cost(msgspec.Struct, frozen=True):
    """What the writer reached."""

    adds_per_s: float
    add_ms: float
    bookies_us: float
    """CPU time of all bookies per add."""
    followed_per_s: float
    """Entries that reached the followers, all together."""


async def create(client: LedgerClient) -> LedgerWriter:
    return await client.create(ensemble_size=3, write_quorum_size=3, ack_quorum_size=2)


# -- followers, in a process of their own -----------------------------------------------------------------------------


async def follow_one(metadata_uri: str, ledger_id: int, count: int) -> None:
    """Print a line when it waits, then when each entry arrived: nanoseconds of the monotonic clock."""
    async with await LedgerClient.connect(metadata_uri) as client:
        reader = await client.open(ledger_id)
        print("waiting", flush=True)
        arrived_ns: list[int] = []
        async with contextlib.aclosing(reader.follow()) as entries:
            async for _ in entries:
                arrived_ns.append(time.monotonic_ns())
                if len(arrived_ns) == count:
                    break
        print(msgspec.json.encode(arrived_ns).decode(), flush=True)


async def follow_many(metadata_uri: str, ledger_id: int) -> None:
    """Follow to the end of the ledger; print a line when all have the first entry, then for each line of the input how
    many entries have arrived."""
    async with await LedgerClient.connect(metadata_uri) as client:
        started = asyncio.Semaphore(0)
        count = 0

        async def follow() -> None:
            nonlocal count
            reader = await client.open(ledger_id)
            async with contextlib.aclosing(reader.follow()) as entries:
                async for entry in entries:
                    count += 1
                    if entry.entry_id == 0:
                        started.release()

        followers = [asyncio.create_task(follow()) for _ in range(FOLLOWERS)]
        for _ in followers:
            await started.acquire()
        print("waiting", flush=True)

        def report() -> None:
            sys.stdin.readline()
            print(count, flush=True)

        asyncio.get_running_loop().add_reader(sys.stdin, report)
        await asyncio.gather(*followers)


@contextlib.contextmanager
def followers_of(kind: str, metadata_uri: str, ledger_id: int) -> Iterator[subprocess.Popen[bytes]]:
    """A process that runs ``follow_one`` or ``follow_many``, once it waits."""
    command = [sys.executable, "-m", "tests.bench.tailing", kind, metadata_uri, str(ledger_id)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"waiting\n", "the followers have ended"
            yield process
        finally:
            process.kill()


# -- latency ----------------------------------------------------------------------------------------------------------


async def write_pairs(writer: LedgerWriter) -> tuple[dict[int, int], list[int]]:
    """When the first entry of each pair was acknowledged, and how long each add took, in nanoseconds."""
    acknowledged_ns, took_ns = {}, []
    for _ in range(_PAIRS):
        for is_first in (True, False):
            begin_ns = time.monotonic_ns()
            entry_id = await writer.append(_PAYLOAD)
            end_ns = time.monotonic_ns()
            took_ns.append(end_ns - begin_ns)
            if is_first:
                acknowledged_ns[entry_id] = end_ns
        await asyncio.sleep(_PAUSE_S)
    await writer.append(_PAYLOAD)
    return acknowledged_ns, took_ns


async def latencies(client: LedgerClient, metadata_uri: str, java: JavaClient | None) -> tuple[list[float], float]:
    """Milliseconds from acknowledgement to arrival, and of the median add. ``java`` None: our follower."""
    writer = await create(client)
    for _ in range(2):  # a bookie without an entry of a ledger refuses Java's polls
        await writer.append(_PAYLOAD)
    count = 2 + 2 * _PAIRS
    if java is None:
        with followers_of("--one", metadata_uri, writer.ledger_id) as process:
            acknowledged_ns, took_ns = await write_pairs(writer)
            assert process.stdout is not None
            arrived_ns = msgspec.json.decode(await asyncio.to_thread(process.stdout.readline), type=list[int])
    else:
        following = asyncio.create_task(
            java.call(
                "follow",
                ledger_id=writer.ledger_id,
                count=count,
                timeout_ms=5_000,
                digest_type="CRC32C",
                password="",
            )
        )
        await asyncio.sleep(1)
        acknowledged_ns, took_ns = await write_pairs(writer)
        arrived_ns = (await following)["arrived_ns"]
    await writer.close()
    assert len(arrived_ns) == count
    found = [(arrived_ns[entry_id] - at_ns) / 1e6 for entry_id, at_ns in acknowledged_ns.items()]
    return found, statistics.median(took_ns) / 1e6


async def measure_latency(targets: dict[str, Target], java: dict[str, JavaClient], rounds: int) -> Table:
    found: dict[tuple[str, str], list[float]] = {}
    adds: dict[str, list[float]] = {}
    for number in range(rounds + 1):  # the first round only warms up
        for target, cluster in targets.items():
            uri = cluster.metadata_uri
            async with await LedgerClient.connect(uri) as client:
                turns: list[tuple[str, JavaClient | None]] = [("bkctl", None)]
                if java:
                    turns.append(("Java", java[target]))
                for name, follower in turns if number % 2 else reversed(turns):
                    latency, add_ms = await latencies(client, uri, follower)
                    if number:
                        found.setdefault((target, name), []).extend(latency)
                        adds.setdefault(target, []).append(add_ms)
    table = Table(title="from acknowledgement to arrival", box=box.SIMPLE_HEAD)
    for heading in ("bookies", "follower", "median, ms", "99 %, ms", "an add, ms"):
        table.add_column(heading)
    for (target, name), each in found.items():
        each.sort()
        p99 = each[int(len(each) * 0.99)]
        add_ms = statistics.median(adds[target])
        table.add_row(target, name, f"{statistics.median(each):.2f}", f"{p99:.2f}", f"{add_ms:.2f}")
    return table


# -- what followers cost ----------------------------------------------------------------------------------------------


def count_of(process: subprocess.Popen[bytes] | None) -> int:
    """How many entries have reached the followers."""
    if process is None:
        return 0
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"\n")
    process.stdin.flush()
    return int(process.stdout.readline())


@contextlib.asynccontextmanager
async def followed(
    client: LedgerClient, metadata_uri: str, kind: str
) -> AsyncIterator[tuple[LedgerWriter, subprocess.Popen[bytes] | None]]:
    """The writer of a new ledger, and the followers of this kind."""
    writer = await create(client)
    await writer.append(_PAYLOAD)
    await writer.append(_PAYLOAD)
    if kind.startswith(_NO_FOLLOWERS):
        yield writer, None
    else:
        paused = await create(client)
        await paused.append(_PAYLOAD)
        await paused.append(_PAYLOAD)
        ledger_id = paused.ledger_id if kind == "of another ledger" else writer.ledger_id
        with followers_of("--many", metadata_uri, ledger_id) as process:
            if kind.endswith(_APART):
                keep_to(process.pid, {max(os.sched_getaffinity(process.pid))})
            yield writer, process


def keep_to(pid: int, cores: set[int]) -> None:
    """Let all threads of a process run on these cores alone."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        os.sched_setaffinity(int(thread), cores)


@contextlib.contextmanager
def cores_of(kind: str, pids: list[int]) -> Iterator[None]:
    """Writer (this process) and bookies leave the last core to the followers, if these are to have one."""
    cores = os.sched_getaffinity(0)
    for pid in (os.getpid(), *pids):
        keep_to(pid, cores - {max(cores)} if kind.endswith(_APART) else cores)
    yield
    for pid in (os.getpid(), *pids):
        keep_to(pid, cores)


async def cost(client: LedgerClient, target: Target, kind: str) -> Cost:
    async with followed(client, target.metadata_uri, kind) as (writer, process):
        with cores_of(kind, target.pids):
            took_s = []
            for _ in range(_SINGLE_ADDS):
                begin = time.perf_counter()
                await writer.append(_PAYLOAD)
                took_s.append(time.perf_counter() - begin)
                await asyncio.sleep(0.05)
            followed_count, used_s = count_of(process), sum(map(cpu_s, target.pids))
            begin, count = time.perf_counter(), 0
            window = asyncio.Semaphore(256)
            while time.perf_counter() < begin + _RATE_S:
                await window.acquire()
                writer.append_nowait(_PAYLOAD).add_done_callback(lambda _: window.release())
                count += 1
            for _ in range(256):
                await window.acquire()
            elapsed_s, used_s = time.perf_counter() - begin, sum(map(cpu_s, target.pids)) - used_s
            followed_count = count_of(process) - followed_count
    return Cost(count / elapsed_s, statistics.median(took_s) * 1e3, used_s / count * 1e6, followed_count / elapsed_s)


async def measure_cost(targets: dict[str, Target], rounds: int) -> Table:
    same = "of the same ledger"
    kinds = (_NO_FOLLOWERS, "of another ledger", same, _NO_FOLLOWERS + _APART, same + _APART)
    found: dict[tuple[str, str], list[Cost]] = {}
    for number in range(rounds):
        for name, target in targets.items():
            async with await LedgerClient.connect(target.metadata_uri) as client:
                for kind in kinds if number % 2 else reversed(kinds):
                    found.setdefault((name, kind), []).append(await cost(client, target, kind))
    table = Table(title=f"the writer, and {FOLLOWERS:,} followers", box=box.SIMPLE_HEAD)
    for heading in ("bookies", "followers", "adds/s", "ratio", "CPU us/add", "followed/s", "one add every 50 ms, ms"):
        table.add_column(heading)
    for (name, kind), costs in found.items():
        base = found[name, _NO_FOLLOWERS + (_APART if kind.endswith(_APART) else "")]
        ratio = statistics.median(one.adds_per_s / first.adds_per_s for one, first in zip(costs, base, strict=True))
        table.add_row(
            name,
            kind,
            f"{statistics.median(one.adds_per_s for one in costs):,.0f}",
            f"{ratio:.2f}",
            f"{statistics.median(one.bookies_us for one in costs):.1f}",
            f"{statistics.median(one.followed_per_s for one in costs):,.0f}",
            f"{statistics.median(one.add_ms for one in costs):.2f}",
        )
    return table


async def measure(targets: dict[str, Target], java: dict[str, JavaClient], options: argparse.Namespace) -> None:
    console = Console()
    if not options.only_cost:
        console.print(await measure_latency(targets, java, options.rounds))
    if not options.only_latency:
        console.print(await measure_cost(targets, options.rounds))


def main() -> None:
    """Start the bookies, measure, print, and end what was started."""
    if sys.argv[1:2] == ["--one"]:
        uvloop.run(follow_one(sys.argv[2], int(sys.argv[3]), 2 + 2 * _PAIRS))
        return
    if sys.argv[1:2] == ["--many"]:
        uvloop.run(follow_many(sys.argv[2], int(sys.argv[3])))
        return
    parser = argparse.ArgumentParser(prog="python -m tests.bench.tailing", description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--only-latency", action="store_true")
    parser.add_argument("--only-cost", action="store_true")
    parser.add_argument("--without-java", action="store_true", help="measure bkctl bookies and followers alone")
    parser.add_argument("--directory", default=".cache", help="directory on the disk to use (a subdirectory is made)")
    options = parser.parse_args()
    os.makedirs(options.directory, exist_ok=True)
    directory = os.path.abspath(tempfile.mkdtemp(prefix="bench-", dir=options.directory))
    with contextlib.ExitStack() as undo:
        undo.callback(shutil.rmtree, directory)
        cluster = DevCluster(os.path.join(directory, "cluster"))
        undo.callback(cluster.stop)
        cluster.up(3)
        targets, java = {"bkctl": Target(cluster.metadata_uri, [bookie.pid for bookie in cluster.bookies])}, {}
        if not options.without_java and is_built():
            java_uri = cluster.metadata_uri.rpartition("/")[0] + "/java"
            bookies = JavaCluster(os.path.join(directory, "java"), java_uri, jvm_flags=_JVM_FLAGS)
            ids = undo.enter_context(bookies).start_bookies(3)
            targets["Java"] = Target(java_uri, list(map(bookies.pid_of, ids)))
            for name, target in targets.items():
                log_path = os.path.join(directory, f"follower-{name}.log")
                java[name] = JavaClient(target.metadata_uri, log_path, jvm_flags=_JVM_FLAGS)
                undo.callback(java[name].stop)
        elif not options.without_java:
            print("no Java bookies: run make interop", file=sys.stderr)
        uvloop.run(measure(targets, java, options))


if __name__ == "__main__":
    main()
