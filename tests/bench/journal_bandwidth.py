"""``python -m tests.bench.journal_bandwidth``: what the journal makes of the disk's own synchronous writes.

For each group size a journal takes groups of entries of nearly 1 KiB, and beside it a bare file, just as sparse, takes
one ``pwrite`` and one ``fdatasync`` of as many bytes as the group has with lengths and padding. They take turns, group
by group, so that other load on the machine meets both alike; the medians of a round stand side by side, and the table
shows the median of the rounds.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.config import JournalConfig
from bkctl.storage.framing import LENGTH_BYTES
from bkctl.storage.journal.format import PADDING_HEADER_BYTES
from bkctl.storage.journal.group import CHECKSUM_BYTES
from bkctl.storage.journal.writer import JournalWriter
from bkctl.storage.setting import MEBIBYTE

GROUP_KIBIBYTES: Final = (4, 64, 256, 1024)
ENTRY_BYTES: Final = 1024
PROMISED_RATIO: Final = 0.6
GROUP_END_BYTES: Final = PADDING_HEADER_BYTES + CHECKSUM_BYTES
_BYTES_PER_ROUND: Final = 64 * MEBIBYTE
_GROUPS_MAX: Final = 400


class Measured(msgspec.Struct, frozen=True):
    """One round with one group size: medians of the time per group, in microseconds."""

    group_bytes: int
    journal_us: float
    bare_us: float

    @property
    def ratio(self) -> float:
        """Share of the bare bandwidth that the journal reaches."""
        return self.bare_us / self.journal_us


class BareFile:
    """What the disk can do: one write and one sync of as many bytes, in a file as sparse as a journal."""

    def __init__(self, path: str, step_bytes: int) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        self._step_bytes = step_bytes
        self._end = 0
        self._position = 0

    def write(self, data: bytes) -> None:
        """Append and make durable."""
        while self._position + len(data) > self._end:
            self._end += self._step_bytes
            os.pwrite(self._descriptor, bytes(512), self._end - 512)
            os.fdatasync(self._descriptor)
        os.pwrite(self._descriptor, data, self._position)
        os.fdatasync(self._descriptor)
        self._position += len(data)

    def close(self) -> None:
        """Close."""
        os.close(self._descriptor)


def measure(directory: str, group_bytes: int) -> Measured:
    """One round: both write about 64 MiB, taking turns."""
    config = JournalConfig()
    own_directory = tempfile.mkdtemp(dir=directory)
    writer = JournalWriter.open(OsFileSystem(), own_directory, config, now_ms=time.time_ns() // 1_000_000)
    bare = BareFile(os.path.join(own_directory, "bare"), config.preallocation_bytes)
    record_count = group_bytes // ENTRY_BYTES
    record_bytes = (group_bytes - GROUP_END_BYTES) // record_count - LENGTH_BYTES
    journal_ns: list[int] = []
    bare_ns: list[int] = []
    try:
        for number in range(min(_GROUPS_MAX, _BYTES_PER_ROUND // group_bytes)):
            group = [_entry(number * record_count + index, record_bytes) for index in range(record_count)]
            data = os.urandom(group_bytes)
            jobs: list[tuple[list[int], Callable[[], object]]] = [
                (journal_ns, partial(writer.write_group, group)),
                (bare_ns, partial(bare.write, data)),
            ]
            # Whoever goes first pays for the pause before: each does so in every other turn.
            for times_ns, job in jobs if number % 2 else reversed(jobs):
                begin = time.perf_counter_ns()
                job()
                times_ns.append(time.perf_counter_ns() - begin)
    finally:
        writer.close()
        bare.close()
        shutil.rmtree(own_directory)
    return Measured(group_bytes, statistics.median(journal_ns) / 1000, statistics.median(bare_ns) / 1000)


def _entry(entry_id: int, size_bytes: int) -> bytes:
    return struct.pack(">qqqq", 1, entry_id, entry_id - 1, 0) + os.urandom(size_bytes - 32)


def _table(rounds: dict[int, list[Measured]]) -> Table:
    count = len(next(iter(rounds.values())))
    table = Table(
        title=f"journal beside bare synchronous writes; {os.cpu_count()} cores, {count} rounds", box=box.SIMPLE
    )
    for heading in ("group", "journal", "bare", "MiB/s", "bare MiB/s", "share", "lowest", "promise"):
        table.add_column(heading, justify="right")
    for group_bytes, measured in rounds.items():
        journal_us = statistics.median(one.journal_us for one in measured)
        bare_us = statistics.median(one.bare_us for one in measured)
        ratio = statistics.median(one.ratio for one in measured)
        table.add_row(
            f"{group_bytes // 1024} KiB",
            f"{journal_us:,.0f} us",
            f"{bare_us:,.0f} us",
            f"{group_bytes / MEBIBYTE / journal_us * 1e6:,.0f}",
            f"{group_bytes / MEBIBYTE / bare_us * 1e6:,.0f}",
            f"{ratio:.0%}",
            f"{min(one.ratio for one in measured):.0%}",
            f">= {PROMISED_RATIO:.0%}",
        )
    return table


def main() -> None:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.journal_bandwidth", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="rounds for each group size")
    parser.add_argument(
        "--directory", default=".cache", help="directory on the disk to measure (a subdirectory is used)"
    )
    parser.add_argument("--json", action="store_true", help="all rounds as JSON on stdout")
    arguments = parser.parse_args()
    os.makedirs(arguments.directory, exist_ok=True)
    directory = tempfile.mkdtemp(prefix="bench-", dir=arguments.directory)
    try:
        rounds: dict[int, list[Measured]] = {kibibytes * 1024: [] for kibibytes in GROUP_KIBIBYTES}
        for _ in range(arguments.rounds):
            for group_bytes, measured in rounds.items():
                measured.append(measure(directory, group_bytes))
    finally:
        shutil.rmtree(directory)
    if arguments.json:
        sys.stdout.write(msgspec.json.encode(list(rounds.values())).decode() + "\n")
    else:
        Console().print(_table(rounds))


if __name__ == "__main__":
    main()
