"""Every command against real processes: one cluster, one story, in the order an operator would live it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.spark_reports.output import DATASETS, REPORT_JSON, REPORT_PAGE
from tests.processes import (
    BkctlResult,
    Cluster,
    DevCluster,
    TerminalSession,
    bkctl_command,
    bkctl_environment,
    is_alive,
    processes_below,
    run_bkctl,
    run_bkctl_on_terminal,
)
from tests.until import wait_until

pytestmark = pytest.mark.cluster

DEADLINE_S = 60.0
HEADER_AND_DIGEST_BYTES = 36
"""In front of the payload in an entry's body, with the CRC32C digest; the ledger id comes first."""


def succeed(cluster: Cluster, *arguments: str) -> BkctlResult:
    result = cluster.run(*arguments)
    assert result.exit_code == 0, f"bkctl {' '.join(arguments)}: {result.exit_code}\n{result.stdout}{result.stderr}"
    return result


def states(cluster: Cluster) -> dict[str, str]:
    items = succeed(cluster, "bookie", "list").json()["items"]
    return {item["id"]: item["state"] for item in items}


def test_look_and_write_and_verify(cluster: Cluster) -> None:
    ids = sorted(bookie.id for bookie in cluster.bookies)
    assert states(cluster) == dict.fromkeys(ids, "writable")
    assert succeed(cluster, "bookie", "list", "-o", "name").stdout.split() == ids
    assert succeed(cluster, "bookie", "list", "--state", "down").json()["items"] == []
    info = succeed(cluster, "bookie", "info").json()["items"]
    assert sorted(item["id"] for item in info) == ids
    assert all(0 < item["free_bytes"] <= item["total_bytes"] and item["problem"] is None for item in info)
    overview = succeed(cluster, "cluster", "info").json()
    assert succeed(cluster, "cluster", "info", "-o", "name").stdout == f"{overview['bkctl']['metadata_uri']}\n"
    assert [overview[key] for key in list(overview)[2:10]] == [False, None, None, None, 3, 3, 0, 0], "no auditor looks"
    assert overview["bkctl"]["metadata_uri"] == cluster.metadata_uri

    written = succeed(cluster, "ledger", "write-test", "--ledgers", "2", "--entries", "50", "-E", "3", "-W", "3")
    items = written.json()["items"]
    assert [(item["entries"], item["entries_read_back"], item["last_entry_id"]) for item in items] == [
        (50, 50, "49")
    ] * 2
    first, second = (item["ledger_id"] for item in items)
    assert sorted(succeed(cluster, "ledger", "list", "-o", "name").stdout.split()) == sorted([first, second])
    assert succeed(cluster, "ledger", "list", "--count").json()["count"] == 2
    assert succeed(cluster, "ledger", "list", "--state", "open").json()["items"] == []
    assert len(succeed(cluster, "ledger", "list", "--bookie", ids[0]).json()["items"]) == 2
    assert succeed(cluster, "ledger", "list", "--limit", "1").json()["truncated"]
    shown = succeed(cluster, "ledger", "show", first).json()
    assert (shown["state"], shown["entries"], shown["has_password"]) == ("closed", 50, False)
    assert sorted(shown["ensembles"][0]["ensemble"]) == ids
    listed = succeed(cluster, "ledger", "list").json()["items"]
    assert shown["created"] in [item["created"] for item in listed]
    assert None not in [item["created"] for item in listed]
    read = succeed(cluster, "ledger", "read", f"0x{int(first):x}", "48-").json()["items"]
    assert [item["entry_id"] for item in read] == ["48", "49"]
    assert read[0]["payload"].startswith("bkctl write-test, entry 48 ")
    raw = succeed(cluster, "ledger", "read", first, "7", "--format", "raw").stdout
    assert raw.startswith("bkctl write-test, entry 7 ")
    assert len(raw) == 1024

    for arguments in (("--all",), (first, second)):
        totals = succeed(cluster, "ledger", "verify", *arguments).json()
        assert (totals["ledgers_clean"], totals["copies_good"], totals["copies_expected"]) == (2, 300, 300)
    assert succeed(cluster, "ledger", "verify", first).json()["items"][0]["is_clean"]
    for variables, is_shown in (({}, True), ({"BKCTL_NO_PROGRESS": "1"}, False)):
        variables["BKCTL_METADATA_URI"] = cluster.metadata_uri
        code, screen = run_bkctl_on_terminal("ledger", "verify", "--all", **variables)
        assert code == 0
        assert ("verifying" in screen) is is_shown


@pytest.mark.battery
def test_audit_counts_live_copies_the_same_with_and_without_spark(cluster: Cluster, tmp_path: Path) -> None:
    succeed(cluster, "ledger", "write-test", "--ledgers", "3", "--entries", "6", "-E", "3", "-W", "2")
    clean = succeed(cluster, "audit", "--fail-on", "critical").json()
    assert (clean["ledgers"], clean["replicated"], clean["under_replicated"], clean["out"]) == (3, 3, 0, None)
    victim = cluster.bookies[2].id
    cluster.stop_bookie(victim)
    wait_until(lambda: states(cluster)[victim] == "down")

    results = []
    for arguments in ((), ("--spark", "--cores", "1")):
        out = str(tmp_path / f"report{len(arguments)}")
        found = cluster.run("audit", *arguments, "--out", out)
        assert found.exit_code == 10, found.stderr
        assert sorted(os.listdir(out)) == sorted((*DATASETS, REPORT_JSON, REPORT_PAGE))
        bookies = [{**row, "disk_free_bytes": 0} for row in found.json()["bookies"]]
        results.append(found.json() | dict.fromkeys(("seconds", "judged_at", "out")) | {"bookies": bookies})
    plain, spark = results
    assert plain == spark
    assert [row["ledger_id"] for row in plain["under_replicated_ledgers"]] == ["0", "1", "2"]
    assert {tuple(row["missing_bookies"]) for row in plain["under_replicated_ledgers"]} == {(victim,)}
    assert [row["mode"] for row in plain["bookies"] if row["bookie_id"] == victim] == ["unregistered"]
    assert (plain["bookies_writable"], plain["bookies_named_unregistered"]) == (2, 1)
    assert cluster.run("audit", "-o", "name").stdout.split() == ["0", "1", "2"]
    failed = run_bkctl(
        *("audit", "--spark", "--out", str(tmp_path / "new")),
        JAVA_HOME=str(tmp_path),
        BKCTL_METADATA_URI=cluster.metadata_uri,
    )
    assert (failed.exit_code, failed.stderr.count("\n")) == (13, 1)
    assert failed.stderr.startswith("error: Spark needs Java 17 or newer: install it")
    assert not (tmp_path / "new").exists()
    refused = cluster.run("audit", "--out", str(tmp_path / "report0"))
    assert (refused.exit_code, "is not empty" in refused.stderr) == (3, True)


@pytest.mark.battery
@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_spark_audit_that_is_stopped_leaves_nothing(
    start_cluster: Callable[[int], Cluster], tmp_path: Path, number: signal.Signals, exit_code: int
) -> None:
    cluster = start_cluster(1)
    directory = tmp_path / "spark"
    directory.mkdir()
    environment = bkctl_environment(BKCTL_METADATA_URI=cluster.metadata_uri, TMPDIR=str(directory))
    command = bkctl_command("audit", "--spark", "--cores", "1", "--out", str(tmp_path / "out"))
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stderr is not None
        assert process.stderr.readline() == "starting Spark on this machine\n"
        wait_until(lambda: processes_below(directory) != [])  # the Java that starts: the worst moment
        process.send_signal(number)
        _, talk = process.communicate(timeout=DEADLINE_S)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, talk) == (exit_code, "error: interrupted\n")
    assert not (tmp_path / "out").exists()
    wait_until(lambda: processes_below(directory) == [])
    assert list(directory.glob("bkctl-*")) == []


def test_wrong_input_has_its_own_exit_code_and_changes_nothing(cluster: Cluster) -> None:
    succeed(cluster, "ledger", "write-test", "--entries", "3")
    before = succeed(cluster, "ledger", "list").stdout
    first = cluster.bookies[0].id
    to_move = f"to move its ledgers: bkctl bookie drain {first}"
    for code, sentence, arguments in (
        (4, "no such ledger", ("ledger", "show", "77")),
        (4, "no such ledger", ("ledger", "read", "77")),
        (4, "no such ledger", ("ledger", "verify", "77")),
        (4, "has no entry 5: its last entry is 2", ("ledger", "read", "0", "5")),
        (4, "no bookie unknown:1 in this cluster", ("bookie", "info", "unknown:1")),
        (4, "bookie unknown:1 is unknown", ("recover", "failed-bookie", "unknown:1", "--yes")),
        (4, "bookie unknown:1 is unknown", ("decommission", "unknown:1", "--yes")),
        (3, f"{first} is up and serving; {to_move}", ("recover", "failed-bookie", first, "--yes")),
        (3, f"{first} is up and serving; {to_move}", ("recover", "failed-bookie", first, "--dry-run")),
        (3, f"bookie {first} should not leave now: new ledgers: E=3, Qw=2", ("decommission", first, "--yes")),
        (4, "? To create a new one there: bkctl -u ", ("cluster", "info", "-u", cluster.metadata_uri + "-other")),
        (5, f"a cluster already exists at {parse_metadata_uri(cluster.metadata_uri).root}", ("cluster", "init")),
        (
            7,
            "4 writable bookies are needed for an ensemble, only 3 are registered",
            ("ledger", "write-test", "-E", "4"),
        ),
        (13, "was created as hierarchical", ("ledger", "list", "-u", cluster.metadata_uri.replace("hier", "longhier"))),
    ):
        result = cluster.run(*arguments)
        assert (result.exit_code, sentence in result.stderr) == (code, True), f"{arguments}: {result}"
        assert "Traceback" not in result.stderr
    assert succeed(cluster, "ledger", "list").stdout == before
    assert not succeed(cluster, "cluster", "init", "--if-not-exists").json()["created"]


@pytest.mark.battery
def test_a_bookie_dies_is_recovered_and_decommissioned(start_dev_cluster: Callable[[int], DevCluster]) -> None:
    cluster = start_dev_cluster(4)
    victim = cluster.bookies[1].id
    succeed(cluster, "ledger", "write-test", "--ledgers", "5", "--entries", "40", "-E", "4", "-W", "3", "-A", "2")
    cluster.up(5)
    succeed(cluster, "dev", "cluster", "kill", victim, "--dir", cluster.directory)

    found = cluster.run("ledger", "verify", "--all")
    assert found.exit_code == 10
    assert found.json()["copies_unreachable"] == 5 * 30
    plan = succeed(cluster, "recover", "failed-bookie", victim, "--dry-run").json()
    assert (plan["ledgers"], plan["entries"]) == (5, 150)
    refused = cluster.run("recover", "failed-bookie", victim)
    assert refused.exit_code == 3
    assert "stdin is not a terminal: use --yes" in refused.stderr
    assert cluster.run("ledger", "verify", "--all").json()["copies_unreachable"] == 5 * 30

    report = succeed(cluster, "recover", "failed-bookie", victim, "--yes").json()
    assert (report["ledgers_repaired"], report["fragments"], report["entries"]) == (5, 5, 150)
    assert report["failures"] == []
    assert succeed(cluster, "ledger", "verify", "--all").json()["copies_good"] == 5 * 40 * 3
    assert states(cluster)[victim] == "down"

    gone = succeed(cluster, "decommission", victim, "--yes").json()
    assert gone["is_cookie_deleted"]
    assert victim not in states(cluster)
    start = cluster.run("dev", "cluster", "start", victim, "--dir", cluster.directory)
    assert start.exit_code == 1
    assert "when the bookie was decommissioned" in start.stderr
    again = succeed(cluster, "dev", "cluster", "up", "--dir", cluster.directory)
    assert "was decommissioned and is not started" in again.stderr


@pytest.mark.battery
def test_damage_on_a_disk_is_told_from_a_bookie_that_is_down(cluster: Cluster) -> None:
    succeed(cluster, "ledger", "write-test", "--entries", "9", "-E", "3", "-W", "3")
    cluster.down()
    damaged, dead = cluster.bookies[0], cluster.bookies[1]
    logs = Path(damaged.directory, "ledgers", "current").glob("*.log")
    log = max(logs, key=lambda each: each.stat().st_size)  # the next one stands there too, with its header alone
    data = bytearray(log.read_bytes())
    for entry_id, offset in ((4, -HEADER_AND_DIGEST_BYTES), (6, 0)):  # the ledger id of its record; its payload
        data[data.index(b"bkctl write-test, entry %d " % entry_id) + offset] ^= 0x55
    log.write_bytes(data)
    cluster.up(3)
    cluster.stop_bookie(dead.id)
    wait_until(lambda: states(cluster)[dead.id] == "down")

    result = cluster.run("ledger", "verify", "--all")

    assert result.exit_code == 10
    found = result.json()
    counts = ("good", "missing", "corrupt", "failed", "unreachable", "different")
    assert [found[f"copies_{name}"] for name in counts] == [16, 0, 1, 1, 9, 0]
    assert [(row["bookie_id"], row["state"], row["entries"], row["reason"]) for row in found["defects"]] == sorted(
        [
            (damaged.id, "corrupt", "6", "ledger 0: the digest of entry 6 does not match"),
            (damaged.id, "failed", "4", "it answered: input/output error"),
        ]
    )
    assert [(row["bookie_id"], row["entries"], row["reason"]) for row in found["unread"]] == [
        (dead.id, "0-8", "not registered")
    ]
    for arguments, sentence in (((), "specify ledger IDs or --all"), (("--all", "3"), "omit 3 or --all")):
        refused = cluster.run("ledger", "verify", *arguments)
        assert (refused.exit_code, sentence in refused.stderr) == (2, True)


@pytest.mark.parametrize(
    "command", [("decommission",), pytest.param(("recover", "failed-bookie"), marks=pytest.mark.battery)]
)
def test_a_question_is_left_at_once_and_nothing_was_changed(cluster: Cluster, command: tuple[str, ...]) -> None:
    succeed(cluster, "ledger", "write-test", "--entries", "3", "-E", "3", "-W", "3")
    victim = cluster.bookies[0].id
    cluster.stop_bookie(victim)
    wait_until(lambda: states(cluster)[victim] == "down")
    before = succeed(cluster, "ledger", "show", "0").stdout
    for exit_code, key, number in ((130, "\x03", None), (143, None, signal.SIGTERM), (130, None, signal.SIGINT)):
        with TerminalSession(*command, victim, BKCTL_METADATA_URI=cluster.metadata_uri) as session:
            session.wait_for("[y/N] ")
            if key is not None:
                session.type(key)
            if number is not None:
                session.process.send_signal(number)
            assert session.exit_code() == exit_code, session.screen
            assert session.screen.endswith("\nerror: interrupted\n")
    with TerminalSession(*command, victim, BKCTL_METADATA_URI=cluster.metadata_uri) as session:
        session.wait_for("[y/N] ")
        session.type("\x04")
        assert session.exit_code() == 3, session.screen
    assert succeed(cluster, "ledger", "show", "0").stdout == before
    assert states(cluster)[victim] == "down"


def servers_of(state: dict[str, Any]) -> list[dict[str, Any]]:
    return [state["zookeeper"], *state["bookies"], state["autorecovery"]]


@pytest.mark.battery
def test_processes_live_and_die_as_told(start_dev_cluster: Callable[[int], DevCluster]) -> None:
    cluster = start_dev_cluster(2)
    directory = ("--dir", cluster.directory)
    before = succeed(cluster, "dev", "cluster", "status", *directory).json()
    assert set(before) == {"apiVersion", "kind", "metadata_uri", "zookeeper", "bookies", "autorecovery"}
    assert set(before["bookies"][0]) == {"id", "name", "state", "pid", "port", "admin_port", "dir", "log"}
    up = succeed(cluster, "dev", "cluster", "up", *directory).json()
    assert up | {"autorecovery": before["autorecovery"]} == before, "only the daemon did not run"
    assert succeed(cluster, "dev", "cluster", "up", *directory).json() == up, "up is harmless twice"
    assert succeed(cluster, "status").json()["severity"] == "ok"
    for bookie in before["bookies"]:
        with urllib.request.urlopen(f"http://127.0.0.1:{bookie['admin_port']}/api/v1/bookie/is_ready") as answer:
            assert answer.read() == b"OK"
    succeed(cluster, "ledger", "write-test", "--entries", "20", "-E", "2")

    first = before["bookies"][0]
    killed = succeed(cluster, "dev", "cluster", "kill", "bookie-1", *directory).json()["items"]
    assert (killed[0]["id"], killed[0]["state"], killed[0]["pid"]) == (first["id"], "stopped", None)
    assert not is_alive(first["pid"])
    assert cluster.run("dev", "cluster", "kill", "bookie-1", *directory).exit_code == 3
    cluster.start_bookie(first["id"])
    assert cluster.bookie(first["id"]).pid != first["pid"]
    daemon = up["autorecovery"]
    assert succeed(cluster, "dev", "cluster", "kill", "autorecovery", *directory).json()["items"][0]["pid"] is None
    assert not is_alive(daemon["pid"])
    started = succeed(cluster, "dev", "cluster", "start", "autorecovery", *directory).json()["autorecovery"]
    assert (started["state"], started["pid"] == daemon["pid"]) == ("running", False)
    assert succeed(cluster, "ledger", "verify", "--all").json()["copies_good"] == 40

    down = succeed(cluster, "dev", "cluster", "down", *directory).json()
    assert {server["state"] for server in servers_of(down)} == {"stopped"}
    assert not is_alive(started["pid"])
    assert not any(is_alive(bookie.pid) for bookie in cluster.bookies)
    with open(down["bookies"][1]["log"], encoding="utf-8") as log:
        assert "shut down cleanly" in log.read()
    assert cluster.run("bookie", "list", "--timeout", "1s").exit_code == 6

    cluster.up(3)
    assert cluster.metadata_uri == before["metadata_uri"]
    assert [bookie.id for bookie in cluster.bookies][:2] == [bookie["id"] for bookie in before["bookies"]]
    assert succeed(cluster, "ledger", "verify", "--all").json()["copies_good"] == 40
    with open(os.path.join(cluster.directory, "mine.txt"), "w", encoding="utf-8") as file:
        file.write("not bkctl's")
    gone = succeed(cluster, "dev", "cluster", "down", "--delete", *directory).json()
    for server in servers_of(gone):
        assert [server[key] for key in ("state", "pid", "dir", "log")] == ["deleted", None, None, None]
    assert os.listdir(cluster.directory) == ["mine.txt"]


def test_a_port_that_is_taken_stops_everything_again(start_dev_cluster: Callable[[int], DevCluster]) -> None:
    cluster = start_dev_cluster(2)
    bookie = succeed(cluster, "dev", "cluster", "down", "--dir", cluster.directory).json()["bookies"][1]
    for port, title in ((bookie["port"], "bookie"), (bookie["admin_port"], "the admin interface of bookie")):
        with socket.socket() as other:
            other.bind(("127.0.0.1", port))
            other.listen()
            result = cluster.run("dev", "cluster", "up", "--dir", cluster.directory)
        assert result.exit_code == 5
        assert f"port {port} is in use: {title} {bookie['id']} cannot listen on it" in result.stderr
    status = succeed(cluster, "dev", "cluster", "status", "--dir", cluster.directory).json()
    assert {server["state"] for server in (status["zookeeper"], *status["bookies"])} == {"stopped"}


@pytest.mark.battery
def test_a_bookie_that_cannot_start_does_not_stop_the_others(start_dev_cluster: Callable[[int], DevCluster]) -> None:
    """Without ZooKeeper the cookie of a wiped bookie could not be removed."""
    cluster = start_dev_cluster(2)
    wiped, other = cluster.bookies
    directory = ("--dir", cluster.directory)
    succeed(cluster, "dev", "cluster", "down", *directory)
    cluster.erase_bookie(wiped.id)
    up = cluster.run("dev", "cluster", "up", *directory)
    assert (up.exit_code, f"bookie {wiped.id} did not start: " in up.stderr) == (1, True), up
    assert up.stderr.strip().endswith("; ZooKeeper and the other servers run")
    status = succeed(cluster, "dev", "cluster", "status", *directory).json()
    found = {each["id"]: each["state"] for each in servers_of(status)}
    assert [found.pop(wiped.id), *set(found.values())] == ["stopped", "running"]
    assert other.id in found
    succeed(cluster, "decommission", wiped.id, "--yes", "--accept-risk")
    succeed(cluster, "dev", "cluster", "up", *directory)


def test_a_bookie_that_cannot_be_recorded_does_not_stay(start_dev_cluster: Callable[[int], DevCluster]) -> None:
    cluster = start_dev_cluster(1)
    bookie = cluster.bookies[0]
    cluster.kill_bookie(bookie.id)
    os.mkdir(os.path.join(bookie.directory, "process.json.tmp"))  # as on a full disk: the pid file cannot be written
    result = cluster.run("dev", "cluster", "start", bookie.id, "--dir", cluster.directory)
    assert result.exit_code == 1
    assert "process.json.tmp" in result.stderr
    assert processes_below(Path(bookie.directory)) == []


def test_interrupting_a_write_ends_with_130_and_leaves_what_was_acknowledged(cluster: Cluster) -> None:
    environment = bkctl_environment(BKCTL_METADATA_URI=cluster.metadata_uri)
    command = bkctl_command("ledger", "write-test", "--max-per-second", "100", "--entries", "100000")
    writer = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        wait_until(lambda: len(json.loads(cluster.run("ledger", "list", "--state", "open").stdout)["items"]) == 1)
        writer.send_signal(signal.SIGINT)
        stdout, stderr = writer.communicate(timeout=DEADLINE_S)
    finally:
        writer.kill()
        writer.wait()
    assert writer.returncode == 130
    assert stdout == b""
    assert stderr.endswith(b"\nerror: interrupted\n"), stderr
    assert cluster.run("ledger", "verify", "--all").exit_code == 0
