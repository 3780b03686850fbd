"""``bkctl storage index rebuild`` beside Java's rebuild-db-ledger-locations-index, on the same entry logs, in one run.

Writes entry logs of the format of Java, rolled, with small bodies: every ledger gets a stretch of entries in each
checkpoint, sorted as both bookies sort them. Each round runs both, one after the other, as the processes that an
operator starts; their CPU time stands beside the seconds, because that does not depend on what else the machine does.
Java needs the jars of ``make interop``; it gets a full JIT and as much memory as it asks for.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

import msgspec
import numpy as np

from bkctl.storage.entry_log.format import (
    HEADER_MAP_FIELDS_OFFSET,
    encode_header,
    encode_ledgers_map,
    encode_map_fields,
)
from bkctl.storage.filenames import LOCATIONS_DATABASE, entry_log_file_name, seal_file_name
from tests.interop.java import is_built, shell_command, write_server_conf

JVM_FLAGS = ("-Xmx2g", "-XX:MaxDirectMemorySize=2g", "-XX:TieredStopAtLevel=4")
_JAVA_TIME = re.compile(r"Rebuilding index is done \{totalTime=(\d+):(\d+):([\d.]+)\}")
_LEDGER_ENTRY_COUNT = 50
_JAVA_INDEX = "java-index"
"""A directory of its own: our rebuild refuses to work beside an index of Java."""
"""Entries of one ledger in one checkpoint."""


class Run(msgspec.Struct, frozen=True):
    """One process with its children."""

    seconds: float
    cpu_seconds: float
    own_seconds: float | None = None
    """What Java's tool says itself, without the start of the JVM."""


class Shape(msgspec.Struct, frozen=True):
    """What is in the logs."""

    entries: int
    ledgers: int
    body_bytes: int
    logs: int
    is_uniform: bool
    """Whether all bodies have one length; else half to one and a half times ``body_bytes``."""


def write_logs(directory: str, shape: Shape) -> None:
    """Rolled logs that hold every entry once, each log a part of every ledger."""
    numbers = np.random.default_rng(1)
    per_log = shape.entries // shape.logs
    next_entry = np.zeros(shape.ledgers, np.int64)
    for log_id in range(shape.logs):
        with open(os.path.join(directory, entry_log_file_name(log_id)), "wb") as file:
            file.write(encode_header())
            ledger_bytes: dict[int, int] = {}
            done, ledger_id = 0, 0
            while done < per_log:
                count = min(_LEDGER_ENTRY_COUNT, per_log - done)
                frames = _frames(ledger_id, int(next_entry[ledger_id]), count, shape, numbers)
                next_entry[ledger_id] += count
                ledger_bytes[ledger_id] = ledger_bytes.get(ledger_id, 0) + len(frames)
                file.write(frames)
                done += count
                ledger_id = (ledger_id + 1) % shape.ledgers
            map_offset = file.tell()
            file.write(encode_ledgers_map(ledger_bytes))
            file.seek(HEADER_MAP_FIELDS_OFFSET)
            file.write(encode_map_fields(map_offset, len(ledger_bytes)))


def _frames(ledger_id: int, first: int, count: int, shape: Shape, numbers: np.random.Generator) -> bytes:
    sizes = [shape.body_bytes] * count
    if not shape.is_uniform:
        sizes = numbers.integers(shape.body_bytes // 2, shape.body_bytes * 3 // 2, count).tolist()
    starts = ((size, ledger_id, entry_id) for entry_id, size in enumerate(sizes, first))
    return b"".join(
        size.to_bytes(4, "big") + ledger.to_bytes(8, "big") + entry.to_bytes(8, "big") + b"\x01" * (size - 16)
        for size, ledger, entry in starts
    )


def run(command: Sequence[str], **environment: str) -> tuple[Run, str]:
    """Run to the end, with all processes it starts; also what it printed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, check=False)
    seconds = time.perf_counter() - begin
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0 or "Error" in done.stderr:
        raise RuntimeError(f"{command[:4]} ended with {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    cpu_seconds = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return Run(seconds, cpu_seconds), done.stdout + done.stderr


def prepare_java(directory: str) -> str:
    """Give Java's tool the ledgers index that it starts from; returns the path of its settings."""
    for name in ("ledgers", "locations"):
        os.makedirs(os.path.join(directory, _JAVA_INDEX, "current", name))
    conf_path = os.path.join(directory, "java.conf")
    write_server_conf(
        conf_path,
        "zk+null://127.0.0.1:1/ledgers",
        directory,
        journalDirectories=os.path.join(directory, "journal"),
        ledgerDirectories=os.path.join(directory, "bookie"),
        indexDirectories=os.path.join(directory, _JAVA_INDEX),
        ledgerStorageClass="org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage",
    )
    run(shell_command(conf_path, "rebuild-db-ledgers-index", "-v", jvm_flags=JVM_FLAGS))
    return conf_path


def rebuild_java(conf_path: str) -> Run:
    """Java's locations index from the logs; it keeps the one before as a backup."""
    taken, printed = run(shell_command(conf_path, "rebuild-db-ledger-locations-index", jvm_flags=JVM_FLAGS))
    own_clock = _JAVA_TIME.search(printed)
    if own_clock is None:  # it ends with success whatever happened
        raise RuntimeError(f"Java's rebuild did not end: {printed[-2000:]}")
    current = os.path.join(os.path.dirname(conf_path), _JAVA_INDEX, "current")
    for name in os.listdir(current):
        if name.startswith("locations.BACKUP"):
            shutil.rmtree(os.path.join(current, name))
    hours, minutes, seconds = own_clock.groups()
    return msgspec.structs.replace(taken, own_seconds=int(hours) * 3600 + int(minutes) * 60 + float(seconds))


def rebuild_ours(directory: str, expected_rows: int) -> Run:
    """Our locations index from the logs, with the ledger rows kept, as Java keeps them."""
    lost = os.path.join(directory, "bookie", "current", LOCATIONS_DATABASE)
    if os.path.exists(lost):
        shutil.rmtree(lost)
        os.remove(seal_file_name(lost))
    command = [sys.executable, "-P", "-m", "bkctl", "storage", "index", "rebuild", "--yes", "-o", "json"]
    command += ["--ledger-dir", os.path.join(directory, "bookie"), "--journal-dir", os.path.join(directory, "journal")]
    taken, printed = run(command, BKCTL_STATE_DIR=os.path.join(directory, "state"))
    assert msgspec.json.decode(printed.partition("\n}")[0] + "}")["locations"] == expected_rows, printed
    return taken


def _told(name: str, entries: int, runs: Sequence[Run]) -> str:
    seconds = [each.seconds for each in runs]
    cpu_seconds = statistics.median(each.cpu_seconds for each in runs)
    rate = entries / statistics.median(seconds) / 1e6
    own_seconds = [each.own_seconds for each in runs if each.own_seconds is not None]
    own = f", {statistics.median(own_seconds):.2f} s by its own clock" if own_seconds else ""
    return (
        f"{name:6} {statistics.median(seconds):6.2f} s ({min(seconds):.2f} to {max(seconds):.2f}), "
        f"CPU {cpu_seconds:5.2f} s, {rate:.2f} M entries/s{own}\n"
    )


def main() -> None:
    """Write the logs, measure, print, and delete what was written."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.index_rebuild", description=__doc__)
    parser.add_argument("--entries", type=int, default=5_000_000)
    parser.add_argument("--ledgers", type=int, default=1000)
    parser.add_argument("--body-bytes", type=int, default=64)
    parser.add_argument("--logs", type=int, default=6)
    parser.add_argument("--varied", action="store_true", help="bodies of different lengths")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", default=".cache", help="directory for the logs (a subdirectory is used)")
    arguments = parser.parse_args()
    if not is_built():
        parser.error("Java's side is missing: make interop builds it")
    os.makedirs(arguments.directory, exist_ok=True)
    directory = os.path.abspath(tempfile.mkdtemp(prefix="bench-", dir=arguments.directory))
    try:
        for name in ("bookie", "journal"):
            os.makedirs(os.path.join(directory, name, "current"))
        shape = Shape(arguments.entries, arguments.ledgers, arguments.body_bytes, arguments.logs, not arguments.varied)
        write_logs(os.path.join(directory, "bookie", "current"), shape)
        conf_path = prepare_java(directory)
        stored = shape.entries // shape.logs * shape.logs
        rebuild_ours(directory, stored)  # makes the ledger rows, which the counted rounds keep
        found: dict[str, list[Run]] = {"java": [], "bkctl": []}
        for _ in range(arguments.rounds):
            found["java"].append(rebuild_java(conf_path))
            found["bkctl"].append(rebuild_ours(directory, stored))
        for name, runs in found.items():
            sys.stdout.write(_told(name, stored, runs))
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
