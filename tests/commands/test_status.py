"""``bkctl status`` on real bookies: healthy, with faults, and where ZooKeeper does not answer."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bkctl.runtime.ledger.changes import new_ledger, to_closed
from bkctl.runtime.ledger.metadata import DigestType
from bkctl.runtime.ledger.metadata_format import encode_ledger_metadata
from bkctl.runtime.metadata.cluster.operation_lock import OperationHolder, lock_bookies
from bkctl.runtime.metadata.paths import Paths
from bkctl.runtime.metadata.replication.election import AuditorElection
from bkctl.runtime.metadata.replication.lock import ReplicationLocks
from bkctl.runtime.metadata.replication.marks import UnderReplicationMarks
from bkctl.runtime.metadata.replication.switches import ReplicationSwitches
from bkctl.runtime.metadata.store import MetadataStore
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from bkctl.runtime.net.loop import LoopClock
from tests.commands.test_advice import abandon, ensemble_of, run_printed
from tests.processes import HALTED_SESSION_MS, BkctlResult, Cluster, TerminalSession, run_bkctl
from tests.until import wait_until

ABSENT = "10.0.0.9:3181"


async def _plant(store: MetadataStore, root: str) -> AuditorElection:
    """Two marks, one of which is being repaired; autorecovery disabled; an auditor."""
    marks = UnderReplicationMarks(store, root, LoopClock())
    for ledger_id in (1, 2):
        await marks.mark(ledger_id, [ABSENT])
    assert await ReplicationLocks(store, root, "worker-host").acquire(2) is not None
    await ReplicationSwitches(store, root).disable(b'{"by":"ann","reason":"kernel update"}')
    await ReplicationSwitches(store, root).set_recovery_delay(7200)
    election = AuditorElection(store, root, ABSENT, lambda _: None)
    await election.campaign()
    return election


async def _clear(metadata_uri: str) -> None:
    uri = parse_metadata_uri(metadata_uri)
    async with await ZooKeeperStore.connect(uri.servers) as store:
        assert await UnderReplicationMarks(store, uri.root, LoopClock()).clear(1, 0)


def _look(cluster: Cluster, *arguments: str, shows: str = "") -> BkctlResult:
    """A look with this text whose time was enough to count everything, and for all answers: on a busy machine it may
    not be."""

    def complete() -> BkctlResult | None:
        result = cluster.run("status", *arguments)
        is_complete = not any(sign in result.stdout for sign in ("at least ", "unknown: "))
        return result if is_complete and shows in result.stdout else None

    result = wait_until(complete)
    assert result is not None
    return result


def _findings(cluster: Cluster, expected: str) -> dict[str, dict[str, Any]]:
    """The findings by their part, once this one is among them."""
    return {each["part"]: each for each in _look(cluster, shows=expected).json()["findings"]}


def _watch(cluster: Cluster, clear_one_mark: Callable[[], None]) -> None:
    """The screen is drawn again, and has an estimate once a mark was cleared."""
    variables = {"BKCTL_METADATA_URI": cluster.metadata_uri}
    with TerminalSession("status", "-w", "--interval", "50ms", "-o", "table", **variables) as session:
        session.wait_for("at risk       2 ledgers are marked")
        clear_one_mark()
        session.wait_for("at the pace of this watch")
        session.type("\x03")
        assert session.exit_code() == 130


def test_status_of_a_cluster_before_and_after_things_fail(start_cluster: Callable[..., Cluster]) -> None:
    cluster = start_cluster(2, session_ms=HALTED_SESSION_MS)
    result = _look(cluster)
    assert result.exit_code == 10, result
    body = result.json()
    assert (body["kind"], body["severity"], body["bookies_writable"]) == ("ClusterStatus", "warning", 2)
    assert [each["part"] for each in body["findings"]] == ["no_auditor"]
    assert "delay not set, last full check never" in cluster.run("status", "-o", "table").stdout
    assert (body["marks_at_least"], body["marks_at_most"], body["unknown"]) == (0, 0, [])
    assert body["total_bytes"] > body["free_bytes"] > 0

    uri = parse_metadata_uri(cluster.metadata_uri)
    silent = cluster.bookies[0]

    async def look() -> None:
        async with await ZooKeeperStore.connect(uri.servers) as store:
            await store.create(Paths(uri.root).cookie(ABSENT), b"")
            metadata = to_closed(new_ledger((ABSENT,), 1, 1, DigestType.CRC32C, b"secret"), 9, 100)
            await store.create(f"{uri.root}/00/0000/L0000", encode_ledger_metadata(metadata), make_parents=True)
            unmarked = await asyncio.to_thread(_look, cluster, "-o", "table")
            assert unmarked.exit_code == 14, unmarked
            assert unmarked.stdout.count(f"unknown (bookie {ABSENT} is down; bkctl audit counts)") == 2, unmarked
            assert f" --accept-loss {ABSENT} " in unmarked.stdout, "a recovery finds no live copy"
            assert "bkctl recover failed-bookie" not in unmarked.stdout
            recovery = OperationHolder("recover failed-bookie", "ann", "h1", 17, "2026-01-01T00:00:00Z")
            async with await lock_bookies(store, uri.root, recovery, [ABSENT]):
                repaired = await asyncio.to_thread(_look, cluster, "-o", "table")
            assert repaired.exit_code == 14, repaired
            assert f"1 ledger has no live copy; start {ABSENT}" in repaired.stdout, "no recovery moves it"
            assert f"process 17, since 2026-01-01T00:00:00Z, on bookie {ABSENT}\n" in repaired.stdout
            assert "time left     unknown (the command that moves the ledgers shows it)" in repaired.stdout
            await _plant(store, uri.root)
            os.kill(silent.pid, signal.SIGSTOP)
            try:
                result = await asyncio.to_thread(_look, cluster, shows="worker-host 1")
            finally:
                os.kill(silent.pid, signal.SIGCONT)
            assert result.exit_code == 14, result
            body = result.json()
            parts = {each["part"]: each["severity"] for each in body["findings"]}
            assert parts == {
                "no_live_copy": "critical",
                "bookies_down": "critical",
                "bookies_silent": "critical",
                "autorecovery_disabled": "warning",
                "recovery_delay": "warning",
                "marks": "warning",
            }
            assert all(each["command"].startswith("bkctl ") for each in body["findings"])
            states = {each["id"]: (each["state"], each["problem"] is None) for each in body["bookies"]}
            assert states == {
                ABSENT: ("down", True),
                silent.id: ("writable", False),
                cluster.bookies[1].id: ("writable", True),
            }
            assert (body["marks_at_least"], body["marks_at_most"]) == (2, 2)
            assert (body["repairs"], body["repair_holders"]) == (1, ["worker-host 1"])
            assert (body["auditor_elected"], body["auditor"]) == (True, ABSENT)
            assert (body["autorecovery_enabled"], body["lost_bookie_recovery_delay_s"]) == (False, 7200)
            screen = await asyncio.to_thread(_look, cluster, "-o", "table", shows="worker-host 1")
            assert "in repair     1 ledger locked (worker-host 1, longest" in screen.stdout
            assert "by ann for" in screen.stdout
            await asyncio.to_thread(_watch, cluster, lambda: asyncio.run(_clear(cluster.metadata_uri)))

    asyncio.run(look())


@pytest.mark.battery
def test_an_audit_knows_what_the_status_knows_about_bookies_that_hang(start_cluster: Callable[..., Cluster]) -> None:
    cluster = start_cluster(3, session_ms=120_000)
    assert cluster.run("ledger", "write-test", "--ledgers", "2", "-E", "3", "-W", "3").exit_code == 0
    silent, down = cluster.bookies[:2]

    def findings(command: str) -> dict[str, dict[str, object]]:
        return {each["part"]: each for each in cluster.run(command, "-o", "json").json()["findings"]}

    def agree(severity: str) -> None:
        """The audit also counts the ledgers."""
        by_status, by_audit = findings("status"), findings("audit")
        for key in ("severity", "finding", "command"):
            assert by_audit["bookies_silent"][key] == by_status["bookies_silent"][key]
        assert by_audit["bookies_silent"]["severity"] == severity

    out = f"{cluster.directory}/report"
    os.kill(silent.pid, signal.SIGSTOP)
    try:
        agree("warning")
        audited = cluster.run("audit", "--out", out, "-o", "table")
        cluster.stop_bookie(down.id)
        agree("critical")
        assert findings("audit")["under_replicated"]["severity"] == findings("status")["bookies_down"]["severity"]
    finally:
        os.kill(silent.pid, signal.SIGCONT)
    sentence = f"warning: bookie {silent.id} is registered, but did not answer"
    assert (audited.exit_code, audited.stdout.splitlines()[0]) == (10, sentence)
    assert "bookies   3 writable; 1 did not answer\n" in audited.stdout, audited
    shown = cluster.run("audit", "show", out, "-o", "table")
    assert (shown.exit_code, shown.stdout.splitlines()[0]) == (10, sentence)
    assert f"{silent.id}, does not answer" in (Path(out) / "report.html").read_text()
    cluster.start_bookie(down.id)
    again = cluster.run("audit", "-o", "table")
    sentence = "warning: no auditor is elected, so lost bookies are not noticed"
    assert (again.exit_code, again.stdout.splitlines()[0]) == (10, sentence), "as in the status"


def test_after_a_complete_recovery_the_bookie_is_only_noted(start_cluster: Callable[..., Cluster]) -> None:
    cluster = start_cluster(3)
    assert cluster.run("ledger", "write-test", "--ledgers", "2", "-E", "3", "-W", "3").exit_code == 0
    cluster.up(4)
    dead = cluster.bookies[0].id
    cluster.stop_bookie(dead)
    before = _look(cluster, shows="bookies_down")
    assert before.exit_code == 14, before
    assert f"nothing repairs ledgers that still reference {dead}" in before.stdout
    assert before.json()["bookies_unreferenced"] == []
    assert cluster.run("recover", dead, "--yes").exit_code == 0
    after = _look(cluster)
    assert after.exit_code == 10, after
    findings = {each["part"]: each for each in after.json()["findings"]}
    assert findings.keys() == {"no_auditor", "bookies_unreferenced"}
    assert after.json()["bookies_unreferenced"] == [dead]
    assert "at risk       no ledger is marked" in cluster.run("status", "-o", "table").stdout
    _, *advised = findings["bookies_unreferenced"]["command"].split()
    assert cluster.run(*advised, "--yes").exit_code == 0
    assert {each["part"] for each in _look(cluster).json()["findings"]} == {"no_auditor"}


@pytest.mark.parametrize(
    "is_accepting", [pytest.param(False, id="refused"), pytest.param(True, id="silent", marks=pytest.mark.battery)]
)
def test_a_zookeeper_that_does_not_answer_is_a_finding(is_accepting: bool) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if is_accepting:
            server.listen()
        port = server.getsockname()[1]
        result = run_bkctl("status", BKCTL_METADATA_URI=f"zk://127.0.0.1:{port}/ledgers")
    assert result.exit_code == 6, result
    reason = f"waiting for ZooKeeper: 127.0.0.1:{port} connection refused\n"
    assert result.stderr == reason or is_accepting, "while it waits, and not only at the end"
    body = result.json()
    assert (body["severity"], body["zookeeper_reachable"], body["bookies_writable"]) == ("critical", False, None)
    (finding,) = body["findings"]
    assert finding["part"] == "zookeeper"
    assert "no ZooKeeper server responds" in finding["finding"]
    assert "; restart no bookie before ZooKeeper is repaired" in finding["finding"]
    assert ("does not answer (is the server halted, or is it a TLS port?)" in finding["finding"]) == is_accepting
    _, *advised = finding["command"].split()
    shown = run_bkctl(*advised, "-o", "json", BKCTL_METADATA_URI="zk://nowhere:1/ledgers")
    assert (shown.exit_code, "zk://nowhere:1/ledgers" in shown.stdout) == (0, True), "it needs no ZooKeeper"


def test_a_cluster_that_does_not_exist_is_an_error(metadata_uri: str) -> None:
    assert run_bkctl("status", BKCTL_METADATA_URI=metadata_uri).exit_code == 4
    assert run_bkctl("status", "--interval", "1s", BKCTL_METADATA_URI=metadata_uri).exit_code == 2
    assert run_bkctl("status", "--watch", "-o", "json", BKCTL_METADATA_URI=metadata_uri).exit_code == 2


def test_a_read_only_bookie_says_why(start_cluster: Callable[..., Cluster]) -> None:
    cluster = start_cluster(3)
    leaving, full = (bookie.id for bookie in cluster.bookies[:2])
    assert cluster.run("bookie", "drain", leaving, "--yes").exit_code == 0
    found = _findings(cluster, "bookies_leaving")
    assert found.keys() == {"no_auditor", "bookies_leaving"}, found
    assert found["bookies_leaving"]["command"] == f"bkctl decommission {leaving}", "it is empty: the drain is over"
    assert f"bkctl bookie undrain {leaving}" in found["bookies_leaving"]["finding"]

    cluster.stop_bookie(full)
    cluster.bookie_settings |= {"diskUsageThreshold": "0.0001", "diskUsageWarnThreshold": "0.0001"}
    cluster.start_bookie(full)
    found = _findings(cluster, "bookies_out_of_space")
    out_of_space = found["bookies_out_of_space"]
    assert out_of_space["finding"] == f"bookie {full} is read-only: a disk is full"
    assert (out_of_space["severity"], out_of_space["command"]) == ("warning", "bkctl help full-disk")
    listed = {each["id"]: each["problem"] for each in cluster.run("bookie", "list", "-o", "json").json()["items"]}
    assert (listed[full], listed[leaving]) == ("a disk is full", None)


def test_a_drain_and_the_status_name_the_ledgers_to_close_first(
    start_cluster: Callable[..., Cluster],
) -> None:
    cluster = start_cluster(4)
    open_id = asyncio.run(abandon(cluster.metadata_uri))
    leaving = ensemble_of(cluster, open_id)[0]
    drained = cluster.run("bookie", "drain", leaving, "--yes", "--wait", "1s", "-o", "table")
    assert drained.exit_code == 9, drained
    step = f"open ledgers that have no writer are closed by bkctl ledger close {open_id}"
    assert step in drained.stdout
    assert "explain" not in drained.stdout
    leaves = _findings(cluster, "bookies_leaving")["bookies_leaving"]
    assert leaves["command"] == f"bkctl ledger close {open_id}"
    assert f"1 ledger waits for its writer: {step}; then bkctl bookie drain {leaving} moves" in leaves["finding"]
    run_printed(cluster, leaves["command"], "--yes", "--grace", "0s")
    leaves = _findings(cluster, "bookies_leaving")["bookies_leaving"]
    assert leaves["command"] == f"bkctl bookie drain {leaving}"
    run_printed(cluster, leaves["command"], "--yes")
    leaves = _findings(cluster, "bookies_leaving")["bookies_leaving"]
    assert leaves["command"] == f"bkctl decommission {leaving}"
