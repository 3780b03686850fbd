"""Once bookies are removed with a loss that was accepted, no screen waits for them, even if their ledgers lose more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.commands.test_advice import audit_findings, findings, succeed
from tests.commands.test_one_severity import severities, stop
from tests.processes import COMMAND_TIMEOUT_S, Cluster, start_bkctl
from tests.until import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.battery]


@pytest.fixture
def removed(start_cluster: Callable[[int], Cluster], tmp_path: Path) -> Iterator[tuple[Cluster, list[str]]]:
    """Seven bookies with striped ledgers, of which two were removed with an accepted loss; a daemon runs."""
    cluster = start_cluster(7)
    succeed(cluster, "autorecovery", "delay", "set", "3600")
    daemon = start_bkctl("autorecovery", "start", "-u", cluster.metadata_uri)
    try:
        wait_until(lambda: not findings(cluster))
        striped = ("-E", "3", "-W", "2", "-A", "2", "--ledgers", "80", "--entries", "6")
        succeed(cluster, "ledger", "write-test", *striped)
        dead = [bookie.id for bookie in cluster.bookies[:2]]
        stop(cluster, *dead)
        assert cluster.run("recover", "failed-bookie", *dead, "--yes").exit_code == 9
        left = succeed(cluster, "ledger", "list", "--bookie", dead[0], "-o", "name").stdout.split()
        assert left
        (tmp_path / "left").write_text("\n".join(left))
        accepted = [word for each in dead for word in ("--accept-loss", each)]
        succeed(cluster, "decommission", *dead, *accepted, "--from-file", str(tmp_path / "left"), "--yes")
        yield cluster, dead
    finally:
        daemon.terminate()
        daemon.wait(COMMAND_TIMEOUT_S)


def test_no_screen_names_them(removed: tuple[Cluster, list[str]], tmp_path: Path) -> None:
    cluster, dead = removed
    named = succeed(cluster, "ledger", "list", "--bookie", dead[0], "-o", "name").stdout.split()
    accepted = findings(cluster)["loss_accepted"]["finding"]
    assert audit_findings(cluster)["loss_accepted"]["finding"] == accepted
    read = succeed(cluster, "audit", "--inventory", "--read", "-o", "json").json()
    assert "unread_copies" not in {each["part"] for each in read["findings"]}, read["findings"]
    verified = succeed(cluster, "ledger", "verify", "--all")
    assert f"copies whose loss was accepted are not expected: {accepted.split()[0]} ledgers, " in verified.stderr

    third = next(
        each
        for ledger_id in named
        for each in succeed(cluster, "ledger", "show", ledger_id, "-o", "json").json()["ensembles"][0]["ensemble"]
        if each not in dead
    )
    stop(cluster, third)
    found = findings(cluster)
    audited = audit_findings(cluster)
    assert len(set(severities(cluster).values())) == 1
    doctor = cluster.run("metadata", "doctor", "-o", "json").stdout
    cluster.run("audit", "--out", str(tmp_path / "report"))
    (page,) = (tmp_path / "report").glob("*.html")
    texts = (*found.values(), *audited.values(), gone(cluster), doctor)
    said, shown = "\n".join(map(str, texts)), page.read_text()
    assert not [each for each in dead if f"start {each}" in shown or f"failed-bookie {each}" in shown]
    assert not [each for each in dead if each in said], said
    for part in ("no_live_copy", "loss_accepted"):
        assert found[part]["finding"] == audited[part]["finding"], part
    assert found["no_live_copy"]["finding"].endswith(f"start {third}")
    stuck = [
        each
        for each in named
        if third in succeed(cluster, "ledger", "show", each, "-o", "json").json()["ensembles"][0]["ensemble"]
    ]
    for each in stuck:
        explained = cluster.run("ledger", "explain", each, "-o", "json").json()
        steps = "\n".join(explained["next_steps"])
        assert f"start {third} if its disks still exist" in steps, steps
        assert not [bookie_id for bookie_id in dead if bookie_id in steps + "".join(explained["problems"])], explained

    ended = cluster.run("recover", "failed-bookie", third, "--yes", "-o", "table")
    assert ended.exit_code == 9
    assert not [each for each in dead if each in ended.stdout + ended.stderr], ended


def test_the_auditor_marks_while_few_of_the_others_are_gone(removed: tuple[Cluster, list[str]]) -> None:
    cluster, _ = removed
    lost = [bookie.id for bookie in cluster.bookies[2:4]]
    stop(cluster, *lost)
    wait_until(lambda: set(gone(cluster)) == set(lost), tell=lambda: gone(cluster), deadline_s=60)
    assert "too_many_gone" not in findings(cluster)
    succeed(cluster, "autorecovery", "delay", "set", "0")
    wait_until(lambda: ", 0 marks" not in audit_result(cluster), tell=lambda: audit_result(cluster), deadline_s=60)
    assert severities(cluster)["status"] == severities(cluster)["audit"]
    assert set(gone(cluster)) <= set(lost), "also after the pass"


def gone(cluster: Cluster) -> list[str]:
    """The bookies that the auditor waits for."""
    found = cluster.run("autorecovery", "status", "-o", "json").json()["bookies_gone"]
    return [each["bookie_id"] for each in found]


def audit_result(cluster: Cluster) -> str:
    """What the last pass over the ledgers did."""
    tasks = cluster.run("autorecovery", "status", "-o", "json").json()["tasks"]
    return str(next(each["result"] for each in tasks if each["task"] == "audit"))
