"""What scripts rely on, for every command: keys in snake_case, ids as text, nothing but the result on stdout."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from bkctl.app import build_app
from bkctl.storage.filenames import parse_journal_file_name
from tests.bkctl.test_main import leaves
from tests.processes import BkctlResult, DevCluster, is_alive, run_bkctl
from tests.until import wait_until

pytestmark = pytest.mark.cluster

DEADLINE_S = 60.0
SNAKE_CASE = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
ENVELOPE = {"apiVersion"}
"""The key of the output contract, spelled as in Kubernetes."""

MAPS = {"custom_metadata", "rules"}
"""Their keys are data: names that a user chose, ids of the doctor's rules."""

IDS = {"ledger_id", "entry_id", "first_entry_id", "last_entry_id", "last_add_confirmed", "ledger_ids"}
NOT_STRUCTURED = {
    "completion": "prints a script",
    "cookie generate": "prints the bytes of a cookie",
    "ledger export": "writes the file format",
    "dev zookeeper": "runs until it is stopped",
    "config use-context": "changes the file of the test's user",
    "dev cluster down": "ends the cluster of the test",
    "dev cluster start": "changes the cluster of the test",
    "dev cluster kill": "changes the cluster of the test",
}
NEEDS_ANOTHER_CLUSTER = {
    "cluster restore": "needs an empty cluster",
    "cluster format": "is refused while bookies are registered",
    "cluster nuke": "is refused while bookies are registered",
    "cookie create": "needs a bookie without a cookie",
    "cookie delete": "is refused while ledgers name the bookie",
    "autorecovery auditor": "needs an auditor",
    "autorecovery trigger": "needs an auditor",
    "cookie migrate": "needs a bookie whose address has changed",
    "cookie expand": "needs an empty bookie with new directories",
    "ledger rewrite-bookie": "needs a bookie under two ids",
    "ledger import": "needs an export",
    "storage adopt": "needs the directories of a Java bookie",
    "audit orphans": "needs metadata of Pulsar",
}
"""They have tests of their own."""

CSV_CALLS = (
    *("audit run", "bookie list", "cluster info", "cookie list", "ledger list", "ledger verify", "metadata doctor"),
    *("recover failed-bookie", "storage check", "storage files", "storage hand-back"),
)
"""A sample of all kinds of results."""


class Invocations:
    """A cluster of three bookies with one of them stopped, and a call of every command that can be made there."""

    def __init__(self, cluster: DevCluster, directory: Path) -> None:
        self.cluster = cluster
        *_, stopped = cluster.bookies
        live = cluster.bookies[0].id
        directories = (
            *("--journal-dir", f"{stopped.directory}/journal", "--ledger-dir", f"{stopped.directory}/ledgers"),
        )
        bookie = (
            *directories,
            *("--bookie-id", stopped.id, "--advertised-address", "127.0.0.1", "--set", "allowLoopback=true"),
        )
        names = os.listdir(f"{stopped.directory}/journal/current")
        journal = next(name for name in names if parse_journal_file_name(name) is not None)
        own = f"{stopped.directory}/ledgers/current/0.log"
        report = str(directory / "report")
        cluster.run("audit", "--out", report)
        lines = directory / "lines"
        lines.write_text("one\ntwo\n")
        cluster.run("log", "create", "events", "-E", "2", "-W", "2", "-A", "2")
        self.calls: dict[str, tuple[str, ...]] = {
            "audit run": (),
            "audit show": (report,),
            "autorecovery delay get": (),
            "autorecovery delay set": ("5", "-n"),
            "autorecovery disable": ("-n",),
            "autorecovery enable": ("-n",),
            "autorecovery maintenance end": (),
            "autorecovery maintenance list": (),
            "autorecovery maintenance start": (live, "--for", "1h", "-n"),
            "autorecovery pending": (),
            "autorecovery repair-marks": ("-y",),
            "autorecovery reset-checks": ("-n",),
            "autorecovery running": (),
            "autorecovery status": (),
            "bookie info": (),
            "bookie drain": (live, "-n"),
            "bookie undrain": (live,),
            "bookie format": ("--bookie-id", "new:1", "--port", "0", *self._new_directories(directory), "-n"),
            "bookie index rebuild": (live, "--online", "-n"),
            "bookie init": ("--bookie-id", "new:1", "--port", "0", *self._new_directories(directory), "-n"),
            "bookie list": (),
            "bookie sanity": (live,),
            "bookie show": (live,),
            "bookie gc confirm": (live, "--confirm", live),
            "bookie gc resume": (live,),
            "bookie gc run": (live, "--minor"),
            "bookie gc status": (live,),
            "bookie gc suspend": (live, "-n"),
            "bookie log-level": ("info", live),
            "bookie metrics": (live, "--grep", "ADD_ENTRY"),
            "bookie ready": (live,),
            "bookie restart-check": (live,),
            "bookie set-mode": ("read-only", live, "-n"),
            "bookie state": (live,),
            "bookie stop": (live, "-n"),
            "autorecovery start": ("-n",),
            "bookie start": (*bookie, "-n"),
            "cluster backup": (str(directory / "backup"),),
            "cluster health-check disable": ("-n",),
            "cluster health-check enable": ("-n",),
            "cluster health-check status": (),
            "cluster info": (),
            "cluster init": ("--if-not-exists", "-n"),
            "cluster instance-id": (),
            "config contexts": (),
            "config explain": ("zkTimeout",),
            "config show": (),
            "cookie list": (),
            "cookie show": (live,),
            "cookie update": (stopped.id, "--from-config", *bookie[:-6], *bookie[-4:], "-n"),
            "cookie verify": bookie,
            "decommission": (stopped.id, "-n"),
            "dev cluster status": ("--dir", cluster.directory),
            "dev cluster up": ("--dir", str(directory / "another"), "-n"),
            "ledger close": ("0",),
            "ledger delete": ("0", "-n"),
            "ledger explain": ("0",),
            "ledger list": (),
            "ledger read": ("0",),
            "ledger show": ("0",),
            "ledger verify": ("0", "1"),
            "ledger write-test": ("--entries", "2", "-E", "2", "-W", "2", "-A", "2"),
            "log append": ("events", "--from-file", str(lines)),
            "log create": ("others", "-n"),
            "log delete": ("events", "-n"),
            "log list": (),
            "log read": ("events",),
            "log show": ("events",),
            "log trim": ("events", "--before", "1", "-n"),
            "metadata doctor": (),
            "recover failed-bookie": (stopped.id, "-n"),
            "recover ledger": ("0", "-n"),
            "status": (),
            "tls check": (str(directory / "certificates" / "ca" / "ca.pem"),),
            "tls init": (str(directory / "certificates"), "--bookie", "b1"),
            "storage check": directories,
            "storage entrylog ledgers": (own,),
            "storage entrylog scan": (own,),
            "storage entrylog show": (own,),
            "storage files": directories,
            "storage hand-back": (*directories, "-n"),
            "storage index rebuild": (*directories, "-n"),
            "storage index show": directories,
            "storage journal replay": (*directories, "--from", journal, "-n"),
            "storage journal scan": directories,
            "storage limbo end": (*directories, "-n"),
            "storage limbo list": directories,
            "storage mark": directories,
        }

    @staticmethod
    def _new_directories(directory: Path) -> tuple[str, ...]:
        os.makedirs(directory / "new", exist_ok=True)
        words = ("--journal-dir", str(directory / "new"), "--ledger-dir", str(directory / "new"))
        return (*words, "--advertised-address", "127.0.0.1", "--set", "allowLoopback=true")

    def run(self, names: Collection[str], form: str) -> dict[str, BkctlResult]:
        """Make these calls. Those on the directories of the stopped bookie come one after another: they lock them."""
        storage = sorted((name for name in names if name.startswith(("storage", "cookie", "tls"))), reverse=True)
        others = [name for name in names if name not in storage]

        def run_each(names: list[str]) -> dict[str, BkctlResult]:
            return {name: self.cluster.run(*name.split(), *self.calls[name], "-o", form) for name in names}

        with ThreadPoolExecutor() as pool:
            first, second = pool.map(run_each, (storage, others))
        return first | second


@pytest.fixture(scope="module")
def invocations(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Invocations]:
    directory = tmp_path_factory.mktemp("structured")
    cluster = DevCluster(str(directory / "cluster"))
    try:
        cluster.up(3)
        for _ in range(2):
            written = cluster.run("ledger", "write-test", "--entries", "20", "-E", "3", "-W", "3", "-A", "2")
            assert written.exit_code == 0, written.stderr
        assert cluster.run("autorecovery", "delay", "set", "5").exit_code == 0
        stopped = cluster.bookies[-1]
        os.kill(stopped.pid, signal.SIGTERM)
        wait_until(lambda: not is_alive(stopped.pid))
        yield Invocations(cluster, directory)
    finally:
        cluster.stop()


def test_every_command_is_in_the_list(invocations: Invocations) -> None:
    """A new command gets a call, or a reason why it has none."""
    known = {*invocations.calls, *NOT_STRUCTURED, *NEEDS_ANOTHER_CLUSTER}
    assert {name.removeprefix("bkctl ") for name, _ in leaves(build_app())} == known


def test_json_has_keys_in_snake_case_and_ids_as_text(invocations: Invocations) -> None:
    results = invocations.run(invocations.calls, "json")
    found = [finding for name, result in results.items() for finding in findings(name, result)]
    assert not found, "\n".join(found)


def test_csv_is_a_table_and_nothing_else(invocations: Invocations) -> None:
    results = invocations.run(CSV_CALLS, "csv")
    for name, result in results.items():
        rows = list(csv.reader(io.StringIO(result.stdout)))
        assert {len(row) for row in rows} <= {len(rows[0])} if rows else not result.stdout, name
        assert not rows or all(map(SNAKE_CASE.fullmatch, ".".join(rows[0]).split("."))), (name, rows[0])
    audited = list(csv.DictReader(io.StringIO(results["audit run"].stdout)))
    stopped = invocations.cluster.bookies[-1].id
    assert [(row["ledger_id"], row["replication"], row["missing_bookies"]) for row in audited] == [
        (ledger_id, "under_replicated", stopped) for ledger_id in ("0", "1")
    ]
    verified = list(csv.DictReader(io.StringIO(results["ledger verify"].stdout)))
    assert [(row["ledger_id"], row["copies_good"], row["copies_unreachable"]) for row in verified] == [
        (ledger_id, "40", "20") for ledger_id in ("0", "1")
    ]
    planned = list(csv.DictReader(io.StringIO(results["recover failed-bookie"].stdout)))
    assert sorted(row["ledger_id"] for row in planned) == ["0", "1"]


def findings(name: str, result: BkctlResult) -> list[str]:
    """What is wrong with the JSON of one command."""
    if not result.stdout:
        return [f"{name}: exit code {result.exit_code} without a result: {result.stderr}"]
    try:
        return [f"{name}: {finding}" for finding in wrong_values("", json.loads(result.stdout))]
    except json.JSONDecodeError as error:
        return [f"{name}: not JSON: {error}"]


def wrong_values(path: str, value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for each in value:
            yield from wrong_values(path, each)
    elif isinstance(value, dict):
        for key, each in value.items():
            if key not in ENVELOPE and not SNAKE_CASE.fullmatch(key):
                yield f"key {path}.{key}"
            if key in IDS and any(isinstance(part, int) for part in (each if isinstance(each, list) else [each])):
                yield f"{path}.{key} is the number {each}"
            for part in each.values() if key in MAPS else [each]:
                yield from wrong_values(f"{path}.{key}", part)


def test_what_the_check_of_keys_finds() -> None:
    value = {"apiVersion": "x", "items": [{"camelCase": 1, "ledger_id": 7}], "custom_metadata": {"camelCase": ""}}
    assert list(wrong_values("", value)) == ["key .items.camelCase", ".items.ledger_id is the number 7"]
    assert run_bkctl("--version").exit_code == 0
