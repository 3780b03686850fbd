"""One bookie's directories under both programs: Java's tools on our files, each bookie on what the other has
written."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bkctl.runtime.client import LedgerClient
from bkctl.storage.filenames import JAVA_BLOCK
from tests.interop.exchange import append_all, payloads
from tests.interop.java import JavaBookie, run_shell, write_server_conf
from tests.processes import BkctlResult, bkctl_command, bkctl_environment, free_port, run_bkctl
from tests.until import wait_until

DATABASES = "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage"
SORTED = "org.apache.bookkeeper.bookie.SortedLedgerStorage"
INTERLEAVED = "org.apache.bookkeeper.bookie.InterleavedLedgerStorage"
ENTRY_COUNT = 60
LEDGER_COUNT = 6


class SharedDirectories:
    """The directories of the bookie ``shared``, two of each kind, and the two programs that may run on them."""

    def __init__(self, root: Path, metadata_uri: str) -> None:
        self.root = root
        self.uri = metadata_uri
        self.conf = str(root / "bookie.conf")
        self.log = str(root / "bookie.log")
        self.written: dict[int, list[bytes]] = {}
        result = run_bkctl("cluster", "init", "--metadata-uri", metadata_uri)
        assert result.exit_code == 0, result.stderr
        self.configure(SORTED)

    def directories(self, letter: str) -> str:
        return ",".join(str(self.root / f"{letter}{number}") for number in range(2))

    def configure(self, storage: str) -> None:
        """Write the bk_server.conf that both programs read."""
        settings = {"journalDirectories": self.directories("j"), "ledgerDirectories": self.directories("l")}
        settings |= {"indexDirectories": self.directories("i"), "ledgerStorageClass": storage, "bookieId": "shared"}
        settings |= {"journalMaxSizeMB": "1", "journalPreAllocSizeMB": "1", "logSizeLimit": "65536"}
        settings |= {"flushInterval": "500", "dbStorage_writeCacheMaxSizeMb": "16"}
        settings |= {"dbStorage_readAheadCacheMaxSizeMb": "16", "diskUsageThreshold": "0.99"}
        settings |= {"diskUsageWarnThreshold": "0.98"}
        write_server_conf(self.conf, self.uri, str(self.root), free_port(), **settings)
        for letter in "jli":
            for path in self.directories(letter).split(","):
                os.makedirs(path, exist_ok=True)

    def storage(self, *words: str) -> BkctlResult:
        """``bkctl storage WORDS`` with the bookie's settings."""
        return run_bkctl("storage", *words, "--conf", self.conf, BKCTL_STATE_DIR=str(self.root / "state"))

    def succeed(self, *words: str) -> BkctlResult:
        result = self.storage(*words)
        assert result.exit_code == 0, f"{words}: {result.exit_code}\n{result.stdout}{result.stderr}"
        return result

    def shell(self, *words: str) -> str:
        """What the Java shell tells."""
        done = run_shell(self.conf, *words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    @contextlib.contextmanager
    def java(self, storage: str) -> Iterator[None]:
        """The Java bookie with this storage class, shut down cleanly at the end."""
        self.configure(storage)
        bookie = JavaBookie(self.conf, self.log)
        try:
            self._wait(lambda: bookie.is_running)
            yield
        finally:
            bookie.stop()

    def require_java_stays_out(self, storage: str, reason: str) -> None:
        """The Java bookie does not start, for this reason, and deletes no entry log."""
        logs, log = self._entry_logs(), Path(self.log)
        before = log.stat().st_size
        self.configure(storage)
        bookie = JavaBookie(self.conf, self.log)

        def said() -> str:
            return log.read_bytes()[before:].decode()

        try:
            # Some of its threads may keep the process after that: it ends only if its main thread is fast enough.
            wait_until(lambda: not bookie.is_running or "Closed component in shutdown hook" in said(), tell=said)
        finally:
            bookie.kill()
        assert reason in said()
        assert logs
        assert self._entry_logs() == logs

    def _entry_logs(self) -> dict[Path, int]:
        return {path: path.stat().st_size for path in self.root.glob("l?/current/*.log")}

    @contextlib.contextmanager
    def bkctl(self, *, is_killed: bool = False) -> Iterator[None]:
        """Our bookie; ``is_killed``: without any warning at the end."""
        with open(self.log, "ab") as log:
            process = subprocess.Popen(
                bkctl_command("bookie", "start", "--conf", self.conf),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=bkctl_environment(),
            )
        try:
            self._wait(lambda: process.poll() is None)
            yield
        finally:
            process.send_signal(signal.SIGKILL if is_killed else signal.SIGTERM)
            process.wait(60)

    def _wait(self, is_running: Callable[[], bool]) -> None:
        def is_writable() -> bool:
            assert is_running(), Path(self.log).read_text()[-4000:]
            listing = run_bkctl("bookie", "list", "--state", "writable", "--metadata-uri", self.uri, "-o", "name")
            return listing.stdout.split() == ["shared"]

        wait_until(is_writable)

    def write(self) -> None:
        """Some more ledgers of this bookie alone."""

        async def write() -> None:
            async with await LedgerClient.connect(self.uri) as client:
                for _ in range(LEDGER_COUNT):
                    entries = payloads(ENTRY_COUNT)
                    async with await client.create(
                        ensemble_size=1, write_quorum_size=1, ack_quorum_size=1, password=b"secret"
                    ) as writer:
                        await append_all(writer, entries)
                    self.written[writer.ledger_id] = entries

        asyncio.run(write())

    def require_all(self) -> None:
        """Every entry of every ledger is served."""

        async def read() -> None:
            async with await LedgerClient.connect(self.uri) as client:
                for ledger_id, entries in self.written.items():
                    reader = await client.open(ledger_id, password=b"secret")
                    assert [entry.payload async for entry in reader.entries(0, None)] == entries

        asyncio.run(read())

    def require_same_journals(self, number: int) -> None:
        """Java's readjournal finds in a directory what we find there."""
        directory = self.root / f"j{number}"
        self._name_one("journalDirectories", directory)
        names = sorted(path.name for path in (directory / "current").glob("*[0-9a-f].txn"))
        told = "".join(run_shell(self.one_conf, "readjournal", name).stderr for name in names)
        ours = self.succeed("journal", "scan", "--entries-only", "--journal-dir", str(directory), "-o", "json").json()[
            "items"
        ]
        assert ours
        assert {(item["ledger_id"], item["entry_id"]) for item in ours} == _entries(told)

    def require_same_logs(self, number: int) -> None:
        """Java's readlog and readlogmetadata find in a directory's logs what we find there."""
        directory = self.root / f"l{number}"
        self._name_one("ledgerDirectories", directory)
        logs = sorted(path.name for path in (directory / "current").glob("*.log") if path.stat().st_size > 1024)
        assert logs
        for name in logs:
            options = (str(directory / "current" / name), "-o", "json")
            ours = self.succeed("entrylog", "scan", *options).json()["items"]
            told = run_shell(self.one_conf, "readlog", name).stderr
            assert {(item["ledger_id"], item["entry_id"]) for item in ours} == _entries(told)
            told = run_shell(self.one_conf, "readlogmetadata", name.removesuffix(".log")).stderr
            for item in self.succeed("entrylog", "ledgers", *options).json()["items"]:
                assert re.search(rf"\b{item['ledger_id']}\b.*\b{item['bytes']}\b", told), told

    def _name_one(self, key: str, directory: Path) -> None:
        self.one_conf = str(self.root / "one.conf")
        write_server_conf(self.one_conf, self.uri, str(self.root), 3181, **{key: str(directory)})


def _entries(text: str) -> set[tuple[str, str]]:
    """Ledger and entry ids that lines of Java's shell name together."""
    found = re.findall(r"ledgerId=(\d+)[^\n]*?entryId=(\d+)|entryId=(\d+)[^\n]*?ledgerId=(\d+)", text)
    return {(first or last, second or third) for first, second, third, last in found}


@pytest.fixture
def shared(tmp_path: Path, metadata_uri: str) -> SharedDirectories:
    return SharedDirectories(tmp_path, metadata_uri)


@pytest.mark.parametrize("storage", [SORTED, INTERLEAVED])
def test_there_and_back(shared: SharedDirectories, storage: str) -> None:
    """Java writes .idx files; we adopt, serve and write; Java rebuilds, serves and writes."""
    with shared.java(storage):
        shared.write()
    adopted = shared.succeed("adopt", "--yes", "-o", "json").json()
    assert (adopted["ledgers"], adopted["entries"]) == (LEDGER_COUNT, LEDGER_COUNT * ENTRY_COUNT)
    with shared.bkctl():
        shared.require_all()
        shared.write()
    if storage == SORTED:
        shared.require_java_stays_out(storage, JAVA_BLOCK.partition(".")[0])
    with shared.bkctl():
        shared.require_all()
    handed = shared.succeed("hand-back", "--yes", "-o", "json").json()
    shared.configure(DATABASES)
    for step in handed["next_steps"][:2]:
        shared.shell(*step.split()[2:])
    with shared.java(DATABASES):
        shared.require_all()
        shared.write()
        shared.require_all()
    shared.succeed("adopt", "--yes")
    with shared.bkctl():
        shared.require_all()


def test_there_and_back_with_databases(shared: SharedDirectories) -> None:
    """Of DbLedgerStorage the logs and journals are enough; and what was handed back is adopted once more."""
    with shared.java(DATABASES):
        shared.write()
    adopted = shared.succeed("adopt", "--yes", "-o", "json").json()
    assert adopted["ledgers"] == LEDGER_COUNT
    with shared.bkctl():
        shared.require_all()
        shared.write()
    shared.require_java_stays_out(DATABASES, JAVA_BLOCK.partition(".")[0])
    handed = shared.succeed("hand-back", "--yes", "-o", "json").json()
    shared.require_java_stays_out(DATABASES, "current/ledgers' exists but is not a directory")
    for step in handed["next_steps"][:2]:
        shared.shell(*step.split()[2:])
    with shared.java(DATABASES):
        shared.require_all()
        shared.write()
    shared.succeed("adopt", "--yes")
    with shared.bkctl():
        shared.require_all()


def test_java_tools_read_our_files(shared: SharedDirectories) -> None:
    shared.configure(DATABASES)
    with shared.bkctl():
        shared.write()
    told = shared.shell("lastmark")
    for mark in shared.succeed("mark", "-o", "json").json()["items"]:
        assert mark["source"] != "lastMark" or mark["journal_id"] in told, told
    listed = shared.shell("listfilesondisc", "-txn", "-log", "-idx")
    for number in range(2):
        shared.require_same_journals(number)
        directory = shared.root / f"l{number}" / "current"
        assert f"{directory}/0.log" in listed
        shared.require_same_logs(number)
