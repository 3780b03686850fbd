"""The bookies of one fault: one of them, the victim, can be struck in many ways while it serves."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import pytest

from bkctl.storage.filenames import journal_file_name, parse_journal_file_name
from tests.orphans import OrphanKiller
from tests.processes import (
    LOOPBACK,
    BkctlProcess,
    BookieProcess,
    Cluster,
    bkctl_command,
    bkctl_environment,
    start_bkctl,
)
from tests.until import wait_until
from tests.zookeeper_servers import Ensemble

DISK_BYTES = 64 * 1024 * 1024
SESSION_MS = 3000
NEXT_JOURNALS, NEXT_LOGS, NEXT_TABLES = 40, 64, 200
"""Files that do not exist yet; a fault may strike them too."""
SETTINGS = (
    "allowLoopback=true", "diskUsageThreshold=0.95", "diskUsageWarnThreshold=0.94", f"zkTimeout={SESSION_MS}",
    "flushInterval=300", "journalMaxSizeMB=1", "journalPreAllocSizeMB=1", "logSizeLimit=1048576",
    "dbStorage_writeCacheMaxSizeMb=16", "gcWaitTime=1000", "journalMaxBackups=0", "diskCheckInterval=500",
)  # fmt: skip
"""Everything happens within seconds: checkpoints, next journals, next entry logs, collections."""
CLOCK = """\
import mmap, os, runpy, struct, sys, time
with open(sys.argv[1], "r+b") as file:
    offset = mmap.mmap(file.fileno(), 8)
real_ns = time.time_ns
time.time_ns = lambda: real_ns() + struct.unpack("<q", offset[:])[0] * 10**9
time.time = lambda: time.time_ns() / 1e9
del sys.argv[:2]
sys.argv.insert(0, "bkctl")
runpy.run_module("bkctl", run_name="__main__", alter_sys=True)
"""
"""A bookie whose wall clock can be set while it runs: ``time.time`` is all of it that the code of a bookie asks."""
MOUNT = 'mount -o loop,errors=remount-ro "$1" "$2" && shift 2 && exec "$@"'
"""A process with an ext4 file system that no other process sees, and that ends with it."""
MAY_FAIL = 'test -w "/sys/fs/ext4/$(basename "$(findmnt -no SOURCE "$1")")/trigger_fs_error"'
"""Whether an error of the file system can be reported to the kernel."""


class NotPossibleHereError(Exception):
    """This machine does not allow the fault."""


class Bookies(Cluster):
    """Three bookies; the next start of some of them is under a prefix, or with a clock of their own."""

    def __init__(self, directory: str, metadata_uri: str) -> None:
        super().__init__(directory, metadata_uri, SESSION_MS)
        self.prefix: dict[int, Sequence[str]] = {}
        """Number of the bookie: the program and its arguments before the ones of bkctl."""
        self.settings: Sequence[str] = ()
        """Instead of those of ``SETTINGS`` with the same names."""
        self.started: dict[int, BkctlProcess | subprocess.Popen[bytes]] = {}

    def _start_process(self, bookie: BookieProcess, log: IO[bytes]) -> Any:
        number = self.bookies.index(bookie)
        arguments = [
            *("bookie", "start", "--metadata-uri", self.metadata_uri, "--port", str(bookie.port)),
            *("--bookie-id", bookie.id, "--advertised-address", LOOPBACK),
            *("--journal-dir", f"{bookie.directory}/journal", "--ledger-dir", f"{bookie.directory}/ledgers"),
            *(word for each in (*SETTINGS, *self.settings) for word in ("--set", each)),
        ]
        prefix = self.prefix.get(number, ())
        process: BkctlProcess | subprocess.Popen[bytes]
        if prefix:
            command = [*prefix, *(arguments if CLOCK in prefix else bkctl_command(*arguments))]
            nothing = subprocess.DEVNULL
            process = subprocess.Popen(command, stdin=nothing, stdout=nothing, stderr=log, env=bkctl_environment())
        else:
            process = start_bkctl(*arguments, stderr=log)
        self.started[number] = process
        return process


class Faulty:
    """Bookies, and what can be done to the first of them. Use as a context manager: it ends and unmounts everything."""

    def __init__(self, directory: Path, metadata_uri: str, ensemble: Ensemble | None = None) -> None:
        directory.mkdir(parents=True)
        self.directory = directory
        self.ensemble = ensemble
        self.bookies = Bookies(str(directory / "bookies"), metadata_uri)
        self._orphans = OrphanKiller()
        self._tracer: subprocess.Popen[bytes] | None = None
        self._sockets: list[socket.socket] = []
        self._mounts: list[Path] = []
        self._clock = directory / "clock"
        self._offset_s = 0
        self._client_clock = pytest.MonkeyPatch()
        self._image = directory / "disk.img"
        self._own_disk: Sequence[str] = ()

    def __enter__(self) -> Faulty:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.end_fault()
            self.bookies.stop()
        finally:
            self._client_clock.undo()
            self._orphans.close()
            for mount in reversed(self._mounts):
                _run("umount", "--lazy", str(mount), may_fail=True)

    def start(self, prefix: Sequence[str] = (), disks: Sequence[str] = (), *, is_for_all: bool = False) -> None:
        """``disks``: "journal" and "ledgers" of the victim, if they are small file systems of their own.

        ``is_for_all``: the prefix is that of all bookies, not of the victim alone.
        """
        for each in disks:
            source, target = self.directory / f"disk-{each}", Path(self.bookies.directory) / "bookie-1" / each
            source.mkdir()
            target.mkdir(parents=True)
            _run("mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(source))
            self._mounts.append(source)
            self._bind(each)
        self.bookies.prefix = dict.fromkeys(range(3) if is_for_all else [0], prefix)
        self.bookies.up(3)
        for bookie in self.bookies.bookies:
            self._orphans.watch(bookie.pid)

    @property
    def victim(self) -> BookieProcess:
        return self.bookies.bookies[0]

    @property
    def exit_code(self) -> int | None:
        """Of the victim, if it has ended."""
        return self.bookies.started[0].poll()

    @property
    def said(self) -> str:
        return Path(self.victim.log_path).read_text(encoding="utf-8")

    def end_fault(self) -> None:
        """Ends with the victim, which must not live on: a disk does not heal under a running bookie."""
        if self._tracer is not None:
            self._tracer.kill()  # asked to end, it waits for threads that are gone
            self._tracer.wait()
        for each in self._sockets:
            each.close()

    def restart(self) -> None:
        """Kill -9 the victim, if it runs, and start it on a disk without faults."""
        self.bookies.kill_bookie(self.victim.id)
        self.end_fault()
        for each in ("journal", "ledgers"):
            source = self.directory / f"disk-{each}"
            if source in self._mounts:
                _run("mount", "-o", "remount,rw", str(source))
                (source / "ballast").unlink(missing_ok=True)
                if not os.path.ismount(self._disk(each)):
                    self._bind(each)
        if self._own_disk:
            self._wait_until_disk_is_free()
        self.bookies.prefix = {0: self._own_disk}
        self.bookies.start_bookie(self.victim.id)
        self._orphans.watch(self.victim.pid)

    # The faults.

    def inject(self, calls: str, what: str, files: str = "") -> None:
        """Let system calls of the victim fail from now on; ``files``: words of ``paths``, empty for all files."""
        command = ["strace", "-f", "-y", "-e", f"trace={calls}", "-e", f"inject={calls}:{what}"]
        for each in files.split():
            for path in self._paths(each):
                command += ["-P", path]
        log = self.directory / "strace.log"
        with (self.directory / "strace.err").open("wb") as said:
            self._tracer = subprocess.Popen([*command, "-o", str(log), "-p", str(self.victim.pid)], stderr=said)
        self._orphans.watch(self._tracer.pid)
        said_path = self.directory / "strace.err"
        wait_until(lambda: b"attached" in said_path.read_bytes(), process=self._tracer, tell=said_path.read_text)

    @property
    def injected(self) -> int:
        """System calls that were made to fail, or to wait."""
        log = (self.directory / "strace.log").read_text(encoding="utf-8")
        return log.count("(INJECTED)") + log.count("(DELAYED)")

    def limit(self, kind: int, value: int) -> None:
        _, hard = resource.prlimit(self.victim.pid, kind)
        resource.prlimit(self.victim.pid, kind, (value, hard))

    def fill(self, disk: str) -> None:
        """Use all the room that there is."""
        path = self._disk(disk) / "ballast"
        with path.open("wb") as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(65536))
                file.flush()

    def detach(self, disk: str) -> None:
        _run("umount", "--lazy", str(self._disk(disk)))

    def own_disk(self, part: str) -> Sequence[str]:
        """The prefix of a bookie whose directory ``part`` (empty: all) is an ext4 file system, for ``fail_disk``."""
        path = self._disk(part)
        path.mkdir(parents=True)
        if shutil.which("mkfs.ext4") is None:
            raise NotPossibleHereError("mkfs.ext4 is not installed")
        with self._image.open("wb") as file:
            file.truncate(DISK_BYTES)
        _run("mkfs.ext4", "-q", "-F", str(self._image))
        private = ("unshare", "--mount", "--propagation", "private")
        self._own_disk = (*private, "sh", "-c", MOUNT, "sh", str(self._image), str(path))
        probe = [*self._own_disk, "sh", "-c", MAY_FAIL, "sh", str(path)]
        tried = subprocess.run(probe, capture_output=True, text=True, check=False)
        if tried.returncode != 0:
            why = tried.stderr.strip() or "no access to /sys/fs/ext4"
            raise NotPossibleHereError(f"needs the right to mount ext4 and to report errors of it: {why}")
        self._wait_until_disk_is_free()
        return self._own_disk

    def fail_disk(self) -> None:
        """Report an error of its file system to the kernel, which makes it read-only at once.

        A remount would be refused, because files are open to be written.
        """
        mounts = Path(f"/proc/{self.victim.pid}/mountinfo").read_text(encoding="utf-8")
        (device,) = re.findall(rf" {self._own_disk[-1]} .* - ext4 /dev/(loop\d+) ", mounts)
        Path(f"/sys/fs/ext4/{device}/trigger_fs_error").write_text("a fault of bkctl's tests", encoding="utf-8")

    def connect(self, count: int) -> None:
        """Idle connections."""
        for _ in range(count):
            self._sockets.append(socket.create_connection((LOOPBACK, self.victim.port), 10.0))

    def start_again(self, prefix: Sequence[str]) -> None:
        """Kill -9, and a start under a prefix that may be refused."""
        self.bookies.kill_bookie(self.victim.id)
        self.bookies.prefix = {0: prefix}
        with contextlib.suppress(AssertionError):
            self.bookies.start_bookie(self.victim.id)
        self._orphans.watch(self.victim.pid)

    def halt(self, seconds: float) -> None:
        os.kill(self.victim.pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(self.victim.pid, signal.SIGCONT)

    def own_clock(self) -> list[str]:
        """The prefix of a bookie whose clock ``set_clock`` moves."""
        self.set_clock(0)
        return [sys.executable, "-P", "-c", CLOCK, str(self._clock)]

    def common_clock(self) -> list[str]:
        """The prefix of bookies that have one clock together with the clients, which are in this process."""
        real_ns = time.time_ns

        def now_ns() -> int:
            return real_ns() + self._offset_s * 10**9

        prefix = self.own_clock()
        self._client_clock.setattr(time, "time_ns", now_ns)
        self._client_clock.setattr(time, "time", lambda: now_ns() / 1e9)
        return prefix

    def set_clock(self, offset_s: int) -> None:
        self._offset_s = offset_s
        with self._clock.open("r+b" if self._clock.exists() else "wb") as file:
            file.write(struct.pack("<q", offset_s))

    def kill_leader(self) -> None:
        """Kill -9; it comes back once the other two have elected another."""
        ensemble = self.ensemble
        assert ensemble is not None
        ensemble.leader.kill()
        wait_until(lambda: any(each.mode == "leader" for each in ensemble.servers), "a new leader")
        ensemble.start()

    def _disk(self, name: str) -> Path:
        return Path(self.bookies.directory) / "bookie-1" / name

    def _bind(self, name: str) -> None:
        _run("mount", "--bind", str(self.directory / f"disk-{name}"), str(self._disk(name)))
        self._mounts.append(self._disk(name))

    def _wait_until_disk_is_free(self) -> None:
        """The kernel unmounts it a moment after its process has ended."""
        wait_until(lambda: not _run("losetup", "--associated", str(self._image)), "the file system is unmounted")

    def _paths(self, word: str) -> list[str]:
        """Files of the victim, those that will come next among them."""
        journals, current = self._disk("journal") / "current", self._disk("ledgers") / "current"
        if word == "journals":
            ids = [found for name in os.listdir(journals) if (found := parse_journal_file_name(name)) is not None]
            names = {journal_file_name(first + each) for first in ids for each in range(NEXT_JOURNALS)}
            return [str(journals / each) for each in sorted(names)]
        if word == "logs":
            return [str(current / f"{number:x}.log") for number in range(NEXT_LOGS)]
        if word == "index":
            return [
                str(current / directory / name)
                for directory in ("ldb-ledgers", "ldb-locations")
                for name in (
                    *(f"{number:06}.{kind}" for number in range(NEXT_TABLES) for kind in ("log", "ldb")),
                    *(f"MANIFEST-{number:06}" for number in range(NEXT_TABLES)),
                )
            ]
        places = {
            "marks": [
                current / f"{name}{end}" for name in ("lastMark", "lastId", "bkctl.mark") for end in ("", ".tmp")
            ],
            "directories": [journals, current],
        }
        return [str(each) for each in places[word]]


def _run(*command: str, may_fail: bool = False) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert may_fail or done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
    return done.stdout
