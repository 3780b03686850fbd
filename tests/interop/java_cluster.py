"""Java bookies as processes on a ledgers root of their own; a Java replication worker can run next to them."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Self

from tests.interop.java import NEWEST, JavaBookie, JavaProcess, write_server_conf
from tests.processes import COMMAND_TIMEOUT_S, LOOPBACK, BkctlResult, free_port, run_bkctl
from tests.until import wait_until

STORAGE = {
    "ledgerStorageClass": "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage",
    "dbStorage_writeCacheMaxSizeMb": "64",
    "dbStorage_readAheadCacheMaxSizeMb": "64",
    "diskUsageThreshold": "0.99",
    "diskUsageWarnThreshold": "0.98",
    "zkTimeout": "5000",
}
"""DbLedgerStorage is what Pulsar uses. Sessions of killed bookies end after five seconds."""
HTTP = {
    "httpServerEnabled": "true",
    "httpServerClass": "org.apache.bookkeeper.http.vertx.VertxHttpServer",
    "httpServerHost": LOOPBACK,
}
"""With it, the mode of a bookie can be set."""


class JavaCluster:
    """Bookies of one release of Apache BookKeeper. Use as a context manager: it ends every process.

    ``variables`` are settings of the bkctl commands that are run against it.
    """

    def __init__(
        self,
        directory: str,
        metadata_uri: str,
        *,
        release: str = NEWEST,
        jvm_flags: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.directory = directory
        self.metadata_uri = metadata_uri
        self._variables = {"BKCTL_METADATA_URI": metadata_uri, **(variables or {})}
        self._release = release
        self._jvm_flags = jvm_flags
        self._bookies: dict[str, JavaBookie] = {}
        self._workers: list[JavaProcess] = []
        self._workers_started = 0
        self._ended: set[str] = set()

    def __enter__(self) -> Self:
        os.makedirs(self.directory, exist_ok=True)
        made = self.run("cluster", "init", "--if-not-exists")
        assert made.exit_code == 0, made.stderr
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.ExitStack() as all_of_them:  # each is ended, even if another cannot be
            for process in (*self._bookies.values(), *self._workers):
                all_of_them.callback(process.kill)

    @property
    def running(self) -> list[str]:
        """Bookies that were started and not killed, the oldest first."""
        return [bookie_id for bookie_id in self._bookies if bookie_id not in self._ended]

    def start_bookies(self, count: int, **settings: str) -> list[str]:
        """Start new bookies with ``settings`` in addition to ``STORAGE``, and wait until they are writable."""
        started = []
        for _ in range(count):
            port = free_port()
            name = os.path.join(self.directory, f"bookie-{port}")
            values = STORAGE | {"httpServerPort": str(free_port())} | settings
            write_server_conf(f"{name}.conf", self.metadata_uri, name, port, **values)
            os.mkdir(name)
            bookie_id = f"{LOOPBACK}:{port}"
            self._start(bookie_id)
            started.append(bookie_id)
        self.wait_until(lambda: set(started) <= set(self.registered("writable")))
        return started

    def start_replication_worker(
        self, part: str = "both", *, jvm_flags: Sequence[str] = (), is_auditor: bool = True, **settings: str
    ) -> JavaProcess:
        """Java's auditor and replication worker in a process of their own; ``part``: only "auditor" or "worker".

        If it becomes the auditor, this returns after its first checks. They ignore ``lostBookieRecoveryDelay``, so a
        later start of the auditor would have the worker repair what a test has killed.
        """
        self._workers_started += 1
        name = os.path.join(self.directory, f"autorecovery-{self._workers_started}")
        write_server_conf(f"{name}.conf", self.metadata_uri, name, free_port(), **STORAGE | settings)
        is_auditor = is_auditor and part != "worker"
        before = self._make_checks_due() if is_auditor else None
        whole = part == "both"
        worker = JavaProcess(
            "org.apache.bookkeeper.replication.AutoRecoveryMain" if whole else "bkctl.interop.RecoveryPart",
            *(("--conf", f"{name}.conf") if whole else (f"{name}.conf", part)),
            log_path=f"{name}.log",
            jvm_flags=jvm_flags,
            release=self._release,
        )
        self._workers.append(worker)
        if is_auditor:
            # The check of all ledgers comes after the check of the bookies.
            self.wait_until(lambda: self._last_check() != before)
        return worker

    def stop_replication_workers(self) -> None:
        """End them in order: their locks and votes are gone."""
        while self._workers:
            self._workers.pop().stop()

    def _make_checks_due(self) -> str | None:
        """What ``_last_check`` returns before the next auditor has started."""
        if self._last_check() is not None:
            reset = self.run("autorecovery", "reset-checks", "all-ledgers")
            assert reset.exit_code == 0, reset.stderr
        return self._last_check()

    def _last_check(self) -> str | None:
        status = self.run("autorecovery", "status", "-o", "json")
        assert status.exit_code == 0, status.stderr
        found: str | None = status.json()["last_checks"]["all_ledgers"]
        return found

    def stop(self, bookie_id: str) -> None:
        """End a bookie in order; all of its entries are flushed, and its registration is gone."""
        self._ended.add(bookie_id)
        self._bookies[bookie_id].stop()
        self.wait_until(lambda: bookie_id not in self.registered("writable"))

    def restart(self, bookie_id: str) -> None:
        """Start a stopped bookie again, and wait until it is writable."""
        self._ended.remove(bookie_id)
        self._start(bookie_id)
        self.wait_until(lambda: bookie_id in self.registered("writable"))

    def directory_of(self, bookie_id: str) -> str:
        """The directory with the bookie's ``journal`` and ``ledgers``."""
        return os.path.join(self.directory, f"bookie-{bookie_id.rpartition(':')[2]}")

    def _start(self, bookie_id: str) -> None:
        name = self.directory_of(bookie_id)
        self._bookies[bookie_id] = JavaBookie(
            f"{name}.conf", f"{name}.log", jvm_flags=self._jvm_flags, release=self._release
        )

    def pid_of(self, bookie_id: str) -> int:
        """Process of a bookie."""
        return self._bookies[bookie_id].pid

    def kill(self, bookie_id: str) -> None:
        """kill -9; the registration ends with its session."""
        self._ended.add(bookie_id)
        self._bookies[bookie_id].kill()

    def command_to_stop(self, bookie_id: str) -> str:
        """A command line that stops the bookie with SIGTERM. From now on it may end."""
        self._ended.add(bookie_id)
        return shlex.join([sys.executable, "-c", f"import os; os.kill({self._bookies[bookie_id].pid}, 15)"])

    def registered(self, state: str) -> list[str]:
        """Ids of the bookies in this state."""
        return self.run("bookie", "list", "--state", state, "-o", "name").stdout.split()

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        """Return when it is so; AssertionError if a process has ended meanwhile."""

        def is_so_while_all_run() -> bool:
            running = [self._bookies[bookie_id] for bookie_id in self.running]
            assert all(each.is_running for each in (*running, *self._workers)), f"see the logs in {self.directory}"
            return is_so()

        wait_until(is_so_while_all_run, f"the Java bookies get there: see the logs in {self.directory}")

    def run(self, *arguments: str) -> BkctlResult:
        """Run a bkctl command against this cluster."""
        return run_bkctl(*arguments, timeout_s=COMMAND_TIMEOUT_S, **self._variables)
