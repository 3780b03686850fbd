"""``python -m tests.bench.replay``: how fast a boot replays a journal, compared with a Java bookie on the same files.

bkctl's writer makes a journal with entries of several ledgers. Each round gives a copy of it to a bkctl storage and to
a Java bookie (4.18.0, DbLedgerStorage, same write cache and journal settings), one after the other. Both start with
empty ledger directories, so every entry goes to an entry log and the index. The time runs from the first record to the
end of the flush after the last one, when the mark has moved: for bkctl the duration of ``replay``; for Java the
duration of the replay that it logs, and the time from there to its line that the journal is read. Needs ``make
interop``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import shutil
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Final

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

from bkctl.runtime.metadata.zookeeper.embedded import EmbeddedZooKeeper
from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.adapters.index_store import open_plyvel
from bkctl.storage.config import EngineConfig, StorageConfig
from bkctl.storage.engine.ledger_storage import LedgerStorage
from bkctl.storage.filenames import current_directory, parse_journal_file_name
from bkctl.storage.journal.format import encode_ledger_key_record
from bkctl.storage.setting import MEBIBYTE
from tests.interop.java import JavaBookie, is_built, write_server_conf
from tests.processes import free_port, run_bkctl

ENTRY_BYTES: Final = 1024
ENTRY_BYTES_MIN: Final = 32
"""The header alone: ledger id, entry id, last add confirmed, ledger length."""
LEDGER_COUNT: Final = 10
GROUP_RECORD_COUNT: Final = 200
CACHE_MEBIBYTES: Final = 128
JAVA_TIMEOUT_S: Final = 300.0
_FIRST_ID: Final = 1
_JVM_FLAGS: Final = ("-Xmx2g", "-XX:MaxDirectMemorySize=1g", "-XX:TieredStopAtLevel=4")
_REPLAYED: Final = re.compile(r"^(\S+) .*Finished replaying journal \{elapsedMs=(\d+)\}")
_FLUSHED: Final = re.compile(r"^(\S+) .*Finished reading journal, starting bookie")
_STARTED: Final = re.compile(r"^(\S+) .*Started component \{component=bookie-server\}")


class Round(msgspec.Struct, frozen=True):
    """Entries replayed per second, by the same journal."""

    bkctl_per_s: float
    java_per_s: float
    java_without_flush_per_s: float

    @property
    def ratio(self) -> float:
        """How many times as fast as Java."""
        return self.bkctl_per_s / self.java_per_s


def storage_config(directory: str) -> StorageConfig:
    """Directories below ``directory``, with the write cache that the Java bookie is given."""
    return StorageConfig(
        journal_directories=(os.path.join(directory, "journal"),),
        ledger_directories=(os.path.join(directory, "ledgers"),),
        engine=EngineConfig(memtable_bytes_max=CACHE_MEBIBYTES * MEBIBYTE),
    )


def write_journal(directory: str, entry_count: int, entry_bytes: int) -> None:
    """A journal as a killed bkctl bookie leaves it: nothing of it is in the ledger directories."""
    storage = open_storage(directory)
    storage.replay()
    journal = storage.journals[0]
    ledger_ids = range(1, LEDGER_COUNT + 1)
    journal.write_group([encode_ledger_key_record(ledger_id, b"k" * 20) for ledger_id in ledger_ids])
    for first in range(0, entry_count, GROUP_RECORD_COUNT):
        numbers = range(first, min(first + GROUP_RECORD_COUNT, entry_count))
        journal.write_group([_entry(number, entry_bytes) for number in numbers])
    storage.close()


def open_storage(directory: str) -> LedgerStorage:
    """A bkctl storage over the directories of ``directory``."""
    return LedgerStorage.open(OsFileSystem(), open_plyvel, storage_config(directory), _FIRST_ID)


def _entry(number: int, entry_bytes: int) -> bytes:
    entry_id, ledger_index = divmod(number, LEDGER_COUNT)
    return struct.pack(">qqqq", ledger_index + 1, entry_id, entry_id - 1, 0) + os.urandom(entry_bytes - ENTRY_BYTES_MIN)


def replay_here(source: str, directory: str, entry_count: int) -> float:
    """Seconds that bkctl takes."""
    shutil.copytree(source, directory)
    os.sync()  # else the disk would still be writing the copy
    storage = open_storage(directory)
    begin = time.perf_counter()
    report = storage.replay()
    elapsed_s = time.perf_counter() - begin
    storage.close()
    assert report.entry_count == entry_count
    return elapsed_s


class JavaReplayer:
    """Starts Java bookies on copies of a journal."""

    def __init__(self, zookeeper: EmbeddedZooKeeper) -> None:
        self._uri = f"zk+hierarchical://{zookeeper.connect_string}/bench"
        result = run_bkctl("cluster", "init", "--metadata-uri", self._uri)
        assert result.exit_code == 0, result.stderr

    def replay(self, source: str, directory: str) -> tuple[float, float]:
        """Seconds that a Java bookie takes, with and without the flush at the end."""
        os.makedirs(directory)
        conf_path, log_path = os.path.join(directory, "conf"), os.path.join(directory, "log")
        write_server_conf(
            conf_path,
            self._uri,
            directory,
            free_port(),
            ledgerStorageClass="org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage",
            dbStorage_writeCacheMaxSizeMb=str(CACHE_MEBIBYTES),
        )
        # The first start stamps the directories; only a bookie that has been here before takes a journal that is there.
        with self._running(conf_path, log_path):
            pass
        journal = current_directory(os.path.join(directory, "journal"))
        for name in os.listdir(journal):
            if name.endswith(".txn"):
                os.remove(os.path.join(journal, name))
        for name in os.listdir(current_directory(os.path.join(directory, "ledgers"))):
            if name.startswith("lastMark"):
                os.remove(os.path.join(directory, "ledgers", "current", name))
        written = current_directory(os.path.join(source, "journal"))
        for name in os.listdir(written):
            if parse_journal_file_name(name) is not None:
                shutil.copy(os.path.join(written, name), journal)
        os.remove(log_path)
        os.sync()
        with self._running(conf_path, log_path):
            return _java_times(log_path)

    @contextlib.contextmanager
    def _running(self, conf_path: str, log_path: str) -> Iterator[None]:
        bookie = JavaBookie(conf_path, log_path, jvm_flags=_JVM_FLAGS)
        try:
            deadline_s = time.monotonic() + JAVA_TIMEOUT_S
            while not _find(log_path, _STARTED):
                assert bookie.is_running, f"the Java bookie ended: see {log_path}"
                assert time.monotonic() < deadline_s, f"the Java bookie did not start: see {log_path}"
                time.sleep(0.1)
            yield
        finally:
            bookie.stop()


def _find(log_path: str, line: re.Pattern[str]) -> re.Match[str] | None:
    with open(log_path, encoding="utf-8") as log:
        return next((match for text in log if (match := line.search(text))), None)


def _java_times(log_path: str) -> tuple[float, float]:
    replayed, flushed = _find(log_path, _REPLAYED), _find(log_path, _FLUSHED)
    assert replayed is not None, log_path
    assert flushed is not None, log_path
    replay_s = int(replayed[2]) / 1000
    return replay_s + (_seconds(flushed[1]) - _seconds(replayed[1])), replay_s


def _seconds(stamp: str) -> float:
    return datetime.strptime(stamp, "%Y-%m-%dT%H:%M:%S,%f").astimezone().timestamp()


def measure(directory: str, replayer: JavaReplayer, entry_count: int, entry_bytes: int, rounds: int) -> list[Round]:
    """All rounds on one journal; who goes first changes from round to round."""
    source = os.path.join(directory, "source")
    write_journal(source, entry_count, entry_bytes)
    measured = []
    for number in range(rounds):
        ours, theirs = os.path.join(directory, f"bkctl-{number}"), os.path.join(directory, f"java-{number}")
        here_s = replay_here(source, ours, entry_count) if number % 2 == 0 else 0.0
        java_s, java_without_flush_s = replayer.replay(source, theirs)
        here_s = here_s or replay_here(source, ours, entry_count)
        measured.append(Round(entry_count / here_s, entry_count / java_s, entry_count / java_without_flush_s))
        shutil.rmtree(ours)
        shutil.rmtree(theirs)
    return measured


async def _run(directory: str, entry_count: int, entry_bytes: int, rounds: int) -> list[Round]:
    zookeeper = await EmbeddedZooKeeper.start(os.path.join(directory, "zookeeper"))
    try:
        replayer = await asyncio.to_thread(JavaReplayer, zookeeper)
        return await asyncio.to_thread(measure, directory, replayer, entry_count, entry_bytes, rounds)
    finally:
        await zookeeper.stop()


def _table(rounds: list[Round], entry_count: int, entry_bytes: int) -> Table:
    title = f"replay of {entry_count:,} entries of {entry_bytes:,} bytes; {os.cpu_count()} cores, {len(rounds)} rounds"
    table = Table(title=title, box=box.SIMPLE)
    for heading in ("entries/s", "median", "lowest", "highest"):
        table.add_column(heading, justify="right")
    for name, values in (
        ("bkctl, flush included", [one.bkctl_per_s for one in rounds]),
        ("Java, flush included", [one.java_per_s for one in rounds]),
        ("Java, without its last flush", [one.java_without_flush_per_s for one in rounds]),
    ):
        table.add_row(name, *(f"{value:,.0f}" for value in (statistics.median(values), min(values), max(values))))
    ratios = [one.ratio for one in rounds]
    table.add_row(
        "as fast as Java", *(f"{value:.2f} x" for value in (statistics.median(ratios), min(ratios), max(ratios)))
    )
    return table


def main() -> None:
    """Write the journal, replay it on both sides, print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.replay", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="rounds, each with both sides")
    parser.add_argument("--entries", type=int, default=500_000, help="entries in the journal")
    parser.add_argument(
        "--entry-bytes",
        type=int,
        default=ENTRY_BYTES,
        help=f"size of an entry, {ENTRY_BYTES_MIN} bytes of header included",
    )
    parser.add_argument(
        "--directory", default=".cache", help="directory on the disk to measure (a subdirectory is used)"
    )
    parser.add_argument("--json", action="store_true", help="all rounds as JSON on stdout")
    arguments = parser.parse_args()
    if arguments.entry_bytes < ENTRY_BYTES_MIN:
        parser.error(f"--entry-bytes: an entry has at least {ENTRY_BYTES_MIN} bytes, its header")
    if not is_built():
        sys.exit("the Java side is not built: make interop")
    os.makedirs(arguments.directory, exist_ok=True)
    directory = tempfile.mkdtemp(prefix="bench-", dir=os.path.abspath(arguments.directory))
    try:
        rounds = asyncio.run(_run(directory, arguments.entries, arguments.entry_bytes, arguments.rounds))
    finally:
        shutil.rmtree(directory)
    if arguments.json:
        sys.stdout.write(msgspec.json.encode(rounds).decode() + "\n")
    else:
        Console().print(_table(rounds, arguments.entries, arguments.entry_bytes))


if __name__ == "__main__":
    main()
