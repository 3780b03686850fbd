"""``bkctl metadata doctor``, and what other commands do where it finds something."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from kazoo.security import make_digest_acl

from bkctl.runtime.metadata.doctor.catalogue import RULES
from bkctl.storage.severity import Severity
from tests.commands.metadata.conftest import Planted
from tests.processes import COMMAND_TIMEOUT_S, bkctl_environment
from tests.recovery_daemons import RecoveryDaemon
from tests.runtime.metadata.bad_nodes import (
    BAD_NODES,
    FORBIDDEN,
    INFORMATION,
    BadNode,
    all_bad_nodes,
    sound_cluster,
    with_bad_node,
)
from tests.until import wait_until

MEASURED = """
import sys
from bkctl.main import main
code = main(sys.argv[1:])
with open("/proc/self/status") as status:
    sys.stderr.write(status.read())
sys.exit(code)
"""
"""bkctl, and what the system knows of the process at its end. What a parent is told counts the parent's memory too."""
READERS = (("ledger", "list"), ("bookie", "list"), ("audit",), ("cluster", "info"))
DOCTOR = ("metadata", "doctor")
OK, USAGE, REFUSED, NOT_FOUND, FINDINGS, AUTH, INTEGRITY = 0, 2, 3, 4, 10, 11, 12
WARNED_ABOUT = {
    "forbidden-ledger-id": ("ledger list", "audit"),
    "invalid-bookie-name": ("bookie list", "cluster info"),
    "unreadable-registration": ("bookie list",),
    "foreign-vote": ("cluster info",),
}
"""Commands that meet such a node and pass it over."""


def named(name: str) -> BadNode:
    return next(bad for bad in BAD_NODES + INFORMATION if bad.name == name)


def test_a_sound_cluster(planted: Planted) -> None:
    planted.put(sound_cluster())
    result = planted.run(*DOCTOR)
    assert (result.exit_code, result.stderr) == (OK, "")
    report = result.json()
    assert (report["apiVersion"], report["kind"]) == ("bkctl/v1", "MetadataDoctorReport")
    assert (report["findings"], report["truncated"]) == ([], False)
    assert report["findings_count"] == {"critical": 0, "warning": 0, "information": 0}
    assert sum(report["looked_at"].values()) == len(sound_cluster())
    assert report["looked_at"]["ledgers"] == 2
    assert report["layout"] == "hierarchical"


def test_a_finding_says_what_it_is_what_it_does_and_the_fix(planted: Planted) -> None:
    planted.put(with_bad_node(sound_cluster(), named("largest ledger id")))
    before = planted.tree()
    result = planted.run(*DOCTOR)
    assert result.exit_code == FINDINGS
    path = f"{planted.root}/{FORBIDDEN}"
    assert result.json()["findings"] == [
        {
            "severity": "critical",
            "rule": "forbidden-ledger-id",
            "path": path,
            "problem": "A ledger has the largest possible id, 9223372036854775807.",
            "consequence": RULES["forbidden-ledger-id"].consequence,
            "cure": f"Run zkCli: delete {path} immediately. If that is not possible, stop all Java bookies first.",
        }
    ]
    assert planted.tree() == before


def test_information_alone_is_no_reason_for_exit_code_10(planted: Planted) -> None:
    planted.put(with_bad_node(sound_cluster(), named("ack quorum of one")))
    result = planted.run(*DOCTOR)
    assert result.exit_code == OK
    assert [each["rule"] for each in result.json()["findings"]] == ["ledger-ack-quorum-one"]


def test_all_bad_nodes_at_once(planted: Planted) -> None:
    nodes, rules = all_bad_nodes()
    planted.put(nodes)
    before = planted.tree()
    result = planted.run(*DOCTOR)
    assert result.exit_code == FINDINGS
    findings = result.json()["findings"]
    assert findings[0]["rule"] == "forbidden-ledger-id"
    assert rules <= {each["rule"] for each in findings}
    assert len(rules) > 40
    severities = [Severity(each["severity"]) for each in findings]
    assert severities == sorted(severities, reverse=True)
    assert all(each["path"] in before for each in findings)
    assert result.json()["rules"] == {
        rule: sum(each["rule"] == rule for each in findings) for rule in {each["rule"] for each in findings}
    }
    for command in READERS:
        answer = planted.run(*command)
        assert answer.exit_code in {OK, FINDINGS}, (command, answer.stderr)
    assert planted.tree() == before


@pytest.mark.parametrize("bad", BAD_NODES + INFORMATION, ids=lambda bad: bad.name)
def test_reading_survives_every_bad_node(planted: Planted, bad: BadNode) -> None:
    planted.put(with_bad_node(sound_cluster(), bad))
    before = planted.tree()
    for command in READERS:
        result = planted.run(*command)
        if "layout-unreadable" in bad.rules and command != ("bookie", "list"):
            assert result.exit_code == INTEGRITY
            assert f"error: {planted.root}/LAYOUT: " in result.stderr
            continue
        assert result.exit_code in ({OK, FINDINGS} if command == ("audit",) else {OK}), (command, result.stderr)
        told = result.stderr.splitlines()
        if "restore-unfinished" in bad.rules:
            assert told.pop(0).startswith(f"warning: a restore into {planted.root} is unfinished")
        assert all(line.startswith(f"warning: {planted.root}/") for line in told)
        for rule_id in bad.rules:
            if " ".join(command) in WARNED_ABOUT.get(rule_id, ()) and "cookies" not in bad.path:
                assert f"warning: {planted.root}/{bad.path} " in result.stderr
        if command == ("ledger", "list"):
            assert {each["ledger_id"] for each in result.json()["items"]} >= {"1", "2"}
    assert planted.tree() == before


def test_filters(planted: Planted) -> None:
    nodes = with_bad_node(sound_cluster(), named("garbage ledger"))
    nodes = with_bad_node(nodes, named("unknown child of the root"))
    planted.put(with_bad_node(nodes, named("empty bucket")))

    def rules(*arguments: str) -> tuple[int, list[str]]:
        result = planted.run(*DOCTOR, *arguments)
        return result.exit_code, [each["rule"] for each in result.json()["findings"]]

    every = ["unreadable-ledger", "stray-at-root", "empty-ledger-directory"]
    assert rules() == (FINDINGS, every)
    assert rules("--severity", "warning") == (FINDINGS, every[:2])
    assert rules("--severity", "critical") == (FINDINGS, every[:1])
    assert rules("--rule", "stray-at-root", "--rule", "empty-ledger-directory") == (FINDINGS, every[1:])
    assert rules("--rule", "empty-ledger-directory") == (OK, every[2:])
    assert rules("--rule", "empty-ledger-directory", "--severity", "warning") == (OK, [])
    assert rules("--limit", "1") == (FINDINGS, every[:1])
    cut = planted.run(*DOCTOR, "--limit", "0").json()
    assert (cut["findings"], cut["truncated"]) == ([], True)
    assert cut["findings_count"] == {"critical": 1, "warning": 1, "information": 1}
    wrong = planted.run(*DOCTOR, "--rule", "stray-at-rot")
    assert wrong.exit_code == USAGE
    said = "unknown rule 'stray-at-rot': did you mean stray-at-root? bkctl help metadata-doctor lists all"
    assert said in wrong.stderr
    nonsense = planted.run(*DOCTOR, "--rule", "nonsense")
    assert nonsense.exit_code == USAGE
    assert "unknown rule 'nonsense': bkctl help metadata-doctor lists all" in nonsense.stderr


def test_forms(planted: Planted) -> None:
    planted.put(with_bad_node(sound_cluster(), named("garbage ledger")))
    finding = planted.run(*DOCTOR).json()["findings"][0]
    lines = planted.run(*DOCTOR, "-o", "jsonl")
    assert (lines.exit_code, [json.loads(line) for line in lines.stdout.splitlines()]) == (FINDINGS, [finding])
    assert "checked " in lines.stderr
    assert "2 ledgers" in lines.stderr
    table = list(csv.DictReader(io.StringIO(planted.run(*DOCTOR, "-o", "csv").stdout)))
    assert table == [finding]
    assert planted.run(*DOCTOR, "-o", "name").stdout == f"{finding['path']}\n"
    shown = planted.run(*DOCTOR, "-o", "table")
    assert shown.exit_code == FINDINGS
    for text in (
        finding["path"],
        finding["problem"],
        "CRITICAL unreadable-ledger: 1 finding",
        f"critical: {finding['path']}: {finding['problem'].removesuffix('.')}",
        f"Fix: {finding['cure'].split(',')[0]}",
    ):
        assert text in shown.stdout


def test_the_verdict_comes_first(planted: Planted) -> None:
    planted.put(sound_cluster())
    shown = planted.run(*DOCTOR, "-o", "table")
    assert (shown.exit_code, shown.stdout.splitlines()[0]) == (
        OK,
        f"ok: no problem was found in {len(sound_cluster())} nodes",
    )


def test_bkctls_auditor_needs_no_recovery_delay(planted: Planted, tmp_path: Path) -> None:
    """Unlike Java's, it does not create one at its start."""
    planted.put(with_bad_node(sound_cluster(), named("no delay")))
    assert [each["rule"] for each in planted.run(*DOCTOR).json()["findings"]] == ["delay-missing"]
    votes = f"{planted.root}/underreplication/auditorelection"
    for name in planted.client.get_children(votes):
        planted.client.delete(f"{votes}/{name}")
    daemon = RecoveryDaemon(planted.metadata_uri, tmp_path / "daemon")
    daemon.start()
    try:
        wait_until(lambda: planted.client.get_children(votes), "the daemon is the auditor")
        wait_until(lambda: planted.run(*DOCTOR).json()["findings"] == [], "the doctor knows whose auditor it is")
    finally:
        daemon.stop()


def test_no_cluster(planted: Planted) -> None:
    result = planted.run(*DOCTOR)
    assert (result.exit_code, result.stdout) == (NOT_FOUND, "")
    assert f"there is no BookKeeper cluster at {planted.root}" in result.stderr


def test_another_layout_than_the_uri_says_is_read_as_recorded(planted: Planted) -> None:
    planted.put(sound_cluster())
    result = planted.run(*DOCTOR, "--metadata-uri", planted.metadata_uri.replace("zk+hierarchical", "zk+flat"))
    assert result.exit_code == FINDINGS
    assert [each["rule"] for each in result.json()["findings"]] == ["layout-differs-from-uri"]
    assert result.json()["looked_at"]["ledgers"] == 2


def test_what_may_not_be_read_is_told(planted: Planted) -> None:
    planted.put(sound_cluster())
    closed = [make_digest_acl("admin", "secret", all=True)]
    planted.client.set_acls(f"{planted.root}/00/0000/L0001", closed)
    planted.client.set_acls(f"{planted.root}/cookies", closed)
    result = planted.run(*DOCTOR)
    assert result.exit_code == AUTH
    assert {(each["rule"], each["path"]) for each in result.json()["findings"]} == {
        ("node-without-permission", f"{planted.root}/00/0000/L0001"),
        ("node-without-permission", f"{planted.root}/cookies"),
    }
    planted.client.set_acls(planted.root, closed)
    assert planted.run(*DOCTOR).exit_code == AUTH


def test_memory_does_not_grow_with_the_tree(planted: Planted) -> None:
    """10,000 ledgers, each fifth of them bad. Findings, of which at most 1,000 are kept, take 4 MiB."""
    nodes = sound_cluster()
    sound, bad = nodes["00/0000/L0001"], (b"junk", False)
    planted.put(nodes)
    small = peak_kibibytes(planted)
    many = {f"00/0001/L{number:04d}": bad if number % 5 == 0 else sound for number in range(10_000)}
    planted.put({"00/0001": (b"", False), **many})
    assert peak_kibibytes(planted, findings_count=2000) - small < 7 * 1024


def peak_kibibytes(planted: Planted, findings_count: int = 0) -> int:
    """Peak resident memory of the command in a process of its own."""
    finished = subprocess.run(
        [sys.executable, "-P", "-c", MEASURED, *DOCTOR, "-o", "json", "--severity", "warning", "--zk-rate", "0"],
        capture_output=True,
        text=True,
        env=bkctl_environment(BKCTL_METADATA_URI=planted.metadata_uri),
        timeout=COMMAND_TIMEOUT_S,
        check=False,
    )
    assert finished.returncode == (FINDINGS if findings_count else OK)
    report = json.loads(finished.stdout)
    assert report["findings_count"]["critical"] == findings_count
    assert len(report["findings"]) == min(findings_count, 1000)
    found = re.search(r"VmHWM:\s+(\d+) kB", finished.stderr)
    assert found is not None
    return int(found[1])


def test_a_ledger_of_a_newer_release_is_kept(planted: Planted) -> None:
    planted.put(with_bad_node(sound_cluster(), named("ledger of a newer release")))
    before = planted.tree()
    [found] = planted.run(*DOCTOR).json()["findings"]
    assert "written by a newer release: format version 4, this release reads up to 3" in found["problem"]
    assert "delete --unreadable" not in found["cure"]
    for more in ([], ["--dry-run"], ["--force-open"]):
        refused = planted.run("ledger", "delete", "--unreadable", "1", "--confirm", "1", *more)
        assert refused.exit_code == REFUSED
        assert "newer release" in refused.stderr
    assert planted.tree() == before


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("garbage delay", "autorecovery delay set 0"),
        ("no delay", "autorecovery delay set 0"),
        ("garbage check time", "autorecovery reset-checks"),
        ("check time in the future", "autorecovery reset-checks"),
        ("no LAYOUT", "cluster init --if-not-exists"),
        ("no available", "cluster init --if-not-exists"),
        ("garbage ledger", "ledger delete --unreadable 1 --confirm 1"),
        ("closed without end", "ledger delete --unreadable 1 --confirm 1"),
        ("replication off", "autorecovery enable"),
        ("no quarantine", "cluster health-check enable"),
    ],
)
def test_the_way_out_leads_out(planted: Planted, name: str, command: str) -> None:
    bad = named(name)
    planted.put(with_bad_node(sound_cluster(), bad))
    assert planted.run(*command.split()).exit_code == OK
    left = {each["rule"] for each in planted.run(*DOCTOR).json()["findings"]}
    assert left.isdisjoint(bad.rules)
