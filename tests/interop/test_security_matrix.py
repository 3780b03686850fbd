"""Each mode of security, on Java's bookies of each release and on bkctl's: Java's client and bkctl's commands.

One cluster serves a whole row of docs/reference/security-matrix.md: a cell that fails does not stop the others. The
page is made from what this test records (scripts/security_matrix_page.py).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest
from kazoo.client import KazooClient

from bkctl.runtime.metadata.uri import parse_metadata_uri
from tests.interop.copy_watch import ClosedLedgers, WrittenLedgers
from tests.interop.java import NEWEST, RELEASES, JavaClient
from tests.interop.secured_clusters import OURS, SecuredCluster, secured_cluster
from tests.interop.security_modes import Mode, sides_of
from tests.kerberos import Realm
from tests.orphans import OrphanKiller
from tests.processes import BkctlResult
from tests.recovery_daemons import RecoveryDaemon
from tests.until import wait_until

LEDGERS, ENTRIES = 6, 20
IN_EVERY_RUN = {(NEWEST, Mode.ROLE), (OURS, Mode.TLS_AND_LOGIN)}
"""Rows of `make interop`, which has two or three minutes for them; `make interop-full` has all."""

FAILS_IN_JAVA = {("4.14", Mode.TLS_AND_LOGIN)}
"""Rows whose bookies reset most connections of Java's clients, of any release (wire 12.4): bkctl writes the ledgers."""


class Ledgers(Protocol):
    """What the cells ask of the ledgers of a row."""

    ids: list[int]

    def referencing(self, bookie_id: str) -> list[int]: ...
    def require_all_copies(self) -> None: ...


class OwnLedgers(ClosedLedgers):
    """Closed ledgers that bkctl wrote, and whose copies it reads."""

    def __init__(self, row: Row, znodes: KazooClient, root: str) -> None:
        self._row = row
        sizes = ("--ledgers", str(LEDGERS), "--entries", str(ENTRIES), "-E", "3", "-W", "2", "-A", "2")
        written = row.succeed("ledger", "write-test", "--yes", *sizes).json()["items"]
        super().__init__([int(each["ledger_id"]) for each in written], znodes, root)

    def require_all_copies(self) -> None:
        """Every member of every write set has its entries."""
        self._row.succeed("ledger", "verify", *map(str, self.ids))


class Row:
    """The cells of one cluster."""

    def __init__(self, record: Callable[[str, object], None], cluster: SecuredCluster) -> None:
        self._record = record
        self._cluster = cluster
        self.failures: dict[str, str] = {}

    @contextlib.contextmanager
    def cell(self, name: str) -> Iterator[None]:
        """What happens in the block is the cell's result."""
        try:
            yield
        except Exception as error:
            self.failures[name] = f"{type(error).__name__}: {error}"
        self._record(name, "failed" if name in self.failures else "passed")

    def leave_out(self, *names: str) -> None:
        """Cells that this row does not have."""
        for name in names:
            self._record(name, "-")

    def succeed(self, *arguments: str) -> BkctlResult:
        """Run a command that must succeed."""
        result = self._cluster.run(*arguments, "-o", "json")
        assert result.exit_code == 0, f"{arguments}: exit code {result.exit_code}\n{result.stdout}{result.stderr}"
        return result


def rows() -> Iterator[object]:
    for server in (*RELEASES, OURS):
        for mode in Mode:
            name = f"{server}-{mode.name.lower().replace('_', '-')}"
            marks = () if (server, mode) in IN_EVERY_RUN else pytest.mark.battery
            yield pytest.param(server, mode, id=name, marks=marks)


@pytest.fixture(autouse=True)
def recorded_row(record_property: Callable[[str, object], None], server: str, mode: Mode) -> None:
    """Also a row that is skipped is on the page."""
    record_property("server", server)
    record_property("mode", mode.value)


@pytest.mark.parametrize(("server", "mode"), [*rows()])
def test_row(
    server: str,
    mode: Mode,
    realm_of_mode: Realm | None,
    new_metadata_uri: Callable[[], str],
    znodes: KazooClient,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    sides = sides_of(mode, tmp_path / "files", realm_of_mode)
    with secured_cluster(server, sides, tmp_path / "cluster", new_metadata_uri) as cluster:
        row = Row(record_property, cluster)
        root = parse_metadata_uri(cluster.metadata_uri).root
        with contextlib.ExitStack() as stack:
            ledgers: Ledgers
            if (server, mode) in FAILS_IN_JAVA:
                record_property("Java client", "fails in Java")
                ledgers = OwnLedgers(row, znodes, root)
            else:
                with row.cell("Java client"):
                    client = JavaClient(
                        cluster.metadata_uri,
                        str(tmp_path / "client.log"),
                        jvm_flags=sides.client_flags,
                        release=cluster.release,
                        **sides.java_client,
                    )
                    stack.callback(client.stop)
                    attempts = 1 if (server, mode) == (OURS, Mode.TLS_AND_LOGIN) else sides.attempts
                    ledgers = WrittenLedgers(client, znodes, root, count=LEDGERS, entries=ENTRIES, attempts=attempts)
                    ledgers.require_all_copies()
            if not row.failures:  # all others need the ledgers
                _try_all(row, cluster, ledgers, tmp_path)
    assert not row.failures, "\n".join(f"{name}: {failure}" for name, failure in row.failures.items())


def _try_all(row: Row, cluster: SecuredCluster, ledgers: Ledgers, directory: Path) -> None:
    _read_and_write(row, cluster, ledgers.ids)
    with row.cell("recover"):
        dead = _most_used(ledgers, cluster)
        cluster.kill(dead)
        wait_until(lambda: dead not in _writable(cluster), f"the session of {dead} ends")
        row.succeed("recover", dead, "--yes")
        assert ledgers.referencing(dead) == []
        ledgers.require_all_copies()
    cluster.add()
    with row.cell("drain"):
        leaving = _most_used(ledgers, cluster)
        row.succeed("bookie", "drain", leaving, "--yes")
        assert ledgers.referencing(leaving) == []
        ledgers.require_all_copies()
    with row.cell("decommission"):
        cluster.stop(leaving)
        removed = row.succeed("decommission", leaving, "--yes")
        assert removed.json()["is_cookie_deleted"]
    cluster.add()
    with row.cell("autorecovery"):
        row.succeed("autorecovery", "delay", "set", "0")
        _autorecover(cluster, ledgers, directory)
    # The last: a bookie that does not come back would be a further lost one for all of the others.
    with row.cell("index rebuild"):
        cluster.rebuild_index(cluster.running[0])
        row.succeed("ledger", "verify", *map(str, ledgers.ids))


def _read_and_write(row: Row, cluster: SecuredCluster, ledger_ids: list[int]) -> None:
    with row.cell("list"):
        wait_until(lambda: len(_writable(cluster)) == len(cluster.running), tell=lambda: _writable(cluster))
    with row.cell("info"):
        found = row.succeed("bookie", "info").json()["items"]
        assert {each["id"] for each in found} == set(cluster.running)
    with row.cell("sanity"):
        row.succeed("bookie", "sanity", cluster.running[0])
    with row.cell("write"):
        row.succeed("ledger", "write-test", "--entries", "50")
    with row.cell("read"):
        read = cluster.run("ledger", "read", str(ledger_ids[0]), "-o", "jsonl")
        assert (read.exit_code, len(read.stdout.splitlines())) == (0, ENTRIES), read
    with row.cell("verify"):
        row.succeed("ledger", "verify", *map(str, ledger_ids))
    with row.cell("audit --spark"):
        reading = ("--inventory", "--read", "--all-entries", "--fail-on", "critical,unknown_copies,bad_copies")
        audit = row.succeed("audit", "--spark", "--cores", "1", *reading).json()
        assert audit["read_copies"] == audit["expected_copies"] >= LEDGERS * ENTRIES, "an executor did not read them"


def _autorecover(cluster: SecuredCluster, ledgers: Ledgers, directory: Path) -> None:
    daemon = RecoveryDaemon(cluster.metadata_uri, directory / "daemon", **cluster.sides.variables)
    with OrphanKiller() as orphans:
        try:
            daemon.start()
            orphans.watch(daemon.pid)
            dead = _most_used(ledgers, cluster)
            cluster.kill(dead)
            wait_until(lambda: not ledgers.referencing(dead), "autorecovery", tell=lambda: daemon.log[-4000:])
            ledgers.require_all_copies()
        finally:
            assert daemon.stop() == 0, daemon.log
    assert not re.search("Traceback", daemon.log), daemon.log


def _writable(cluster: SecuredCluster) -> list[str]:
    return cluster.run("bookie", "list", "--state", "writable", "-o", "name").stdout.split()


def _most_used(ledgers: Ledgers, cluster: SecuredCluster) -> str:
    """The bookie in most of the ledgers; not the first one, whose index is rebuilt at the end."""
    return max(cluster.running[1:], key=lambda bookie_id: len(ledgers.referencing(bookie_id)))
