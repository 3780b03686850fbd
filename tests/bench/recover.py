"""``make bench-recover``: recovery of a dead bookie by bkctl and by Java's shell, on the same Java bookies and data.

Three data sets, each on its own bookies (Apache BookKeeper 4.18, DbLedgerStorage). Java's client writes the ledgers
while only three bookies run, so every ledger references the one that is then killed (ensemble 3, write quorum 2, ack
quorum 2: two thirds of the entries have a copy on it). Two more bookies start afterwards: the targets.

Each tool is a process, timed from its start to its end: ``bkctl recover failed-bookie ID --yes``, and
``bookkeeper shell recover -f ID`` as ``BookieShell`` with a JVM's usual compilers. The time that each tool needs to
start, connect and list the bookies is measured too. Java's shell has no limit for ZooKeeper; ``--rate 0`` takes bkctl's
away.

After each run the metadata of every ledger must no longer reference the dead bookie. Each run recovers a set of ledgers
of its own, as large as the others: the targets have no entry of it.

One run of each tool warms the bookies up and does not count; bkctl's modules are compiled from then on, as those of an
installed one. Afterwards the tools alternate, and the first one changes from round to round. Large entries are
compared with this machine too, by bytes per second: a file written in sequence with an fsync at its end, and a copy
over the loopback interface.

``--hold SET`` only prepares a data set, for a profile: it prints what to run, and Enter shows the next set of ledgers.
Needs ``make interop`` once.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from kazoo.client import KazooClient
from rich import box
from rich.console import Console
from rich.table import Table

from bkctl.runtime.metadata.zookeeper.embedded import EmbeddedZooKeeper
from tests.bench.java_ledgers import BOOKIE_FLAGS, BOOKIE_SETTINGS, TOOL_FLAGS, DataSet, LedgerSets
from tests.interop.java import is_built, shell_command, write_server_conf
from tests.interop.java_cluster import JavaCluster
from tests.processes import bkctl_command, bkctl_environment

_MEBIBYTE = 2**20
HELD_SETS = 8


DATA_SETS = {
    "middle": DataSet(300, 256, 1024),
    "tiny": DataSet(2000, 2, 1024),
    "large": DataSet(64, 128, 64 * 1024),
}


class Round(msgspec.Struct, frozen=True):
    """Seconds of one run of each tool."""

    bkctl_s: float
    java_s: float


class MachineRates(msgspec.Struct, frozen=True):
    """What the disk and the loopback interface allow, in bytes per second."""

    disk_per_s: float
    loopback_per_s: float


class Result(msgspec.Struct, frozen=True):
    """All rounds on one data set."""

    name: str
    data_set: DataSet
    rounds: list[Round]
    bkctl_start_s: float
    java_start_s: float
    machine: MachineRates

    @property
    def bkctl_s(self) -> float:
        """Median."""
        return statistics.median(each.bkctl_s for each in self.rounds)

    @property
    def java_s(self) -> float:
        """Median."""
        return statistics.median(each.java_s for each in self.rounds)


class DeadBookie:
    """A Java cluster whose ledgers all reference a bookie that was killed."""

    def __init__(self, cluster: JavaCluster, zookeeper: KazooClient, data_set: DataSet, runs: int) -> None:
        self._cluster = cluster
        self._conf_path = os.path.join(cluster.directory, "shell.conf")
        write_server_conf(self._conf_path, cluster.metadata_uri, cluster.directory)
        writers = cluster.start_bookies(3, **BOOKIE_SETTINGS)
        self._sets = LedgerSets(cluster, zookeeper, data_set, runs)
        cluster.start_bookies(2, **BOOKIE_SETTINGS)
        self.bookie_id = writers[0]
        cluster.kill(self.bookie_id)
        cluster.wait_until(lambda: self.bookie_id not in cluster.registered("writable"))
        assert len(self.ledgers_left()) == data_set.ledgers, "some ledgers do not reference the dead bookie"

    def ledgers_left(self) -> list[str]:
        """Nodes of the ledgers that still reference the dead bookie."""
        return self._sets.naming(self.bookie_id)

    def show_next(self) -> None:
        """Let the next set of ledgers exist."""
        self._sets.show_next()

    def bkctl(self, *arguments: str) -> list[str]:
        """Command line of bkctl."""
        return bkctl_command("-u", self._cluster.metadata_uri, *arguments)

    def shell(self, *arguments: str) -> list[str]:
        """Command line of Java's shell."""
        return shell_command(self._conf_path, *arguments, jvm_flags=TOOL_FLAGS)

    def recover_by_bkctl(self, rate: str | None) -> float:
        """Seconds."""
        limit = [] if rate is None else ["--zk-rate", rate]
        return self._recover(self.bkctl("recover", "failed-bookie", self.bookie_id, "--yes", *limit))

    def recover_by_java(self) -> float:
        """Seconds."""
        return self._recover(self.shell("recover", "-f", self.bookie_id))

    def _recover(self, command: list[str]) -> float:
        seconds = self.seconds_of(command)
        left = self.ledgers_left()
        assert not left, f"{len(left)} ledgers still reference bookie {self.bookie_id} after {command}"
        self.show_next()
        return seconds

    def seconds_of(self, command: list[str]) -> float:
        """Time from the start of the process to its end."""
        environment = bkctl_environment()
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        with open(os.path.join(self._cluster.directory, "tool.log"), "ab") as log:
            begin = time.perf_counter()
            ended = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, check=False
            )
            seconds = time.perf_counter() - begin
        assert ended.returncode == 0, f"exit code {ended.returncode}: see {log.name}"
        return seconds


@contextlib.contextmanager
def dead_bookie(directory: str, zookeeper: EmbeddedZooKeeper, name: str, runs: int) -> Iterator[DeadBookie]:
    """The start of all rounds on one data set, with ledgers for so many runs."""
    client = KazooClient(zookeeper.connect_string, timeout=30)
    client.start()
    uri = f"zk+hierarchical://{zookeeper.connect_string}/{name}"
    try:
        with JavaCluster(os.path.join(directory, name), uri, jvm_flags=BOOKIE_FLAGS) as cluster:
            yield DeadBookie(cluster, client, DATA_SETS[name], runs + 1)
    finally:
        client.stop()
        client.close()


def measure(directory: str, zookeeper: EmbeddedZooKeeper, name: str, rounds: int, rate: str | None) -> Result:
    """All rounds on one data set; ``rate`` limits bkctl's operations on ZooKeeper per second (None: as by default)."""
    with dead_bookie(directory, zookeeper, name, 2 + 2 * rounds) as dead:
        bkctl_start_s = statistics.median(dead.seconds_of(dead.bkctl("bookie", "list")) for _ in range(3))
        java_start_s = statistics.median(dead.seconds_of(dead.shell("listbookies", "-a")) for _ in range(3))
        dead.recover_by_java()
        dead.recover_by_bkctl(rate)
        measured = []
        for number in range(rounds):
            bkctl_s = dead.recover_by_bkctl(rate) if number % 2 == 0 else 0.0
            java_s = dead.recover_by_java()
            measured.append(Round(bkctl_s or dead.recover_by_bkctl(rate), java_s))
        machine = MachineRates(*(statistics.median(probe(directory) for _ in range(3)) for probe in (_disk, _loopback)))
        return Result(name, DATA_SETS[name], measured, bkctl_start_s, java_start_s, machine)


def _disk(directory: str) -> float:
    """Bytes per second of a file written in sequence, with an fsync at its end."""
    path = os.path.join(directory, "disk-probe")
    part, count = os.urandom(_MEBIBYTE), 1024
    with open(path, "wb", buffering=0) as file:
        begin = time.perf_counter()
        file.writelines(part for _ in range(count))
        os.fsync(file.fileno())
        seconds = time.perf_counter() - begin
    os.remove(path)
    return len(part) * count / seconds


def _loopback(_directory: str) -> float:
    """Bytes per second over one connection to a process that throws them away."""
    count, part = 1024, bytes(_MEBIBYTE)
    receiver = (
        "import socket\n"
        "listener = socket.create_server(('127.0.0.1', 0))\n"
        "print(listener.getsockname()[1], flush=True)\n"
        "connection, room = listener.accept()[0], bytearray(2**20)\n"
        "while connection.recv_into(room): pass\n"
        "connection.sendall(b'.')\n"
    )
    process = subprocess.Popen([sys.executable, "-c", receiver], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        with socket.create_connection(("127.0.0.1", int(process.stdout.readline()))) as connection:
            begin = time.perf_counter()
            for _ in range(count):
                connection.sendall(part)
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(1) == b"."
            return count * len(part) / (time.perf_counter() - begin)
    finally:
        process.kill()
        process.communicate()


def hold(directory: str, zookeeper: EmbeddedZooKeeper, name: str) -> None:
    """Prepare a data set, and show another set of ledgers whenever Enter is pressed."""
    with dead_bookie(directory, zookeeper, name, HELD_SETS) as dead:
        sys.stdout.write(f"{' '.join(dead.bkctl('recover', 'failed-bookie', dead.bookie_id, '--yes'))}\n")
        sys.stdout.write("Enter shows the next set of ledgers; the end of input stops the bookies.\n")
        sys.stdout.flush()
        for number, _ in zip(range(2, HELD_SETS + 1), sys.stdin, strict=False):
            left = len(dead.ledgers_left())
            dead.show_next()
            sys.stdout.write(
                f"set {number} of {HELD_SETS}; {left} ledgers of the last one referenced the dead bookie\n"
            )
            sys.stdout.flush()


def _table(results: list[Result]) -> Table:
    table = Table(title=f"recovery of a dead bookie; {os.cpu_count()} cores, medians", box=box.SIMPLE)
    for heading in ("", *(str(each.data_set) for each in results)):
        table.add_column(heading, justify="right" if heading else "left")

    def row(title: str, value: Callable[[Result], str]) -> None:
        table.add_row(title, *(value(each) for each in results))

    def spread(seconds: list[float]) -> str:
        return f"{statistics.median(seconds):.2f} s ({min(seconds):.2f} to {max(seconds):.2f})"

    row("bkctl", lambda each: spread([one.bkctl_s for one in each.rounds]))
    row("Java's shell", lambda each: spread([one.java_s for one in each.rounds]))
    row("as fast as Java", lambda each: f"{each.java_s / each.bkctl_s:.2f} x")
    row("start of bkctl, included above", lambda each: f"{each.bkctl_start_s:.2f} s")
    row("start of Java, included above", lambda each: f"{each.java_start_s:.2f} s")
    row("as fast, both without their start", lambda each: f"{_bare_ratio(each):.2f} x")
    row("bkctl", lambda each: _rate(each.data_set.bytes_to_copy / each.bkctl_s))
    row("Java's shell", lambda each: _rate(each.data_set.bytes_to_copy / each.java_s))
    row("disk, write and fsync", lambda each: _rate(each.machine.disk_per_s))
    row("loopback", lambda each: _rate(each.machine.loopback_per_s))
    row("bkctl's part of the slower one", lambda each: f"{_part_of_limit(each):.0%}")
    return table


def _rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s / _MEBIBYTE:,.1f} MiB/s"


def _bare_ratio(result: Result) -> float:
    return (result.java_s - result.java_start_s) / max(0.001, result.bkctl_s - result.bkctl_start_s)


def _part_of_limit(result: Result) -> float:
    limit = min(result.machine.disk_per_s, result.machine.loopback_per_s)
    return result.data_set.bytes_to_copy / result.bkctl_s / limit


async def _with_zookeeper(directory: str, work: Callable[[EmbeddedZooKeeper], Any]) -> Any:
    zookeeper = await EmbeddedZooKeeper.start(os.path.join(directory, "zookeeper"))
    try:
        return await asyncio.to_thread(work, zookeeper)
    finally:
        await zookeeper.stop()


def main() -> None:
    """Measure the data sets one after another, print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.recover", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="rounds, each with both tools")
    parser.add_argument("--only", choices=DATA_SETS, action="append", help="this data set; may be repeated")
    parser.add_argument(
        "--rate", help="for bkctl: see bkctl recover --zk-rate; 0: no limit, as Java (default: bkctl's)"
    )
    parser.add_argument("--hold", choices=DATA_SETS, help="prepare this data set and wait")
    parser.add_argument(
        "--directory", default=".cache", help="directory on the disk to measure (a subdirectory is used)"
    )
    parser.add_argument("--json", action="store_true", help="all rounds as JSON on stdout")
    arguments = parser.parse_args()
    if not is_built():
        sys.exit("the Java side is not built: make interop")
    os.makedirs(arguments.directory, exist_ok=True)
    directory = tempfile.mkdtemp(prefix="bench-", dir=os.path.abspath(arguments.directory))
    try:
        if arguments.hold:
            asyncio.run(_with_zookeeper(directory, lambda zookeeper: hold(directory, zookeeper, arguments.hold)))
            return
        names = arguments.only or list(DATA_SETS)
        results = asyncio.run(
            _with_zookeeper(
                directory,
                lambda zookeeper: [
                    measure(directory, zookeeper, name, arguments.rounds, arguments.rate) for name in names
                ],
            )
        )
    finally:
        shutil.rmtree(directory)
    if arguments.json:
        sys.stdout.write(msgspec.json.encode(results).decode() + "\n")
    else:
        Console(width=160).print(_table(results))


if __name__ == "__main__":
    main()
