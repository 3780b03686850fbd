"""Advice on a real cluster: each situation, the command that is printed in it, and what it changes."""

from __future__ import annotations

import asyncio
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bkctl.runtime.client import LedgerClient
from tests.processes import COMMAND_TIMEOUT_S, BkctlResult, Cluster, bkctl_command, bkctl_environment, start_bkctl
from tests.until import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.battery]

DRAIN = re.compile("to move its ledgers: (bkctl bookie drain [^ \n]+)")
CLOSE = re.compile("(bkctl ledger close [0-9]+) closes it now")
ACCEPTS = re.compile("if the disks of [^ ]+ are lost, this accepts the loss: (.*)")
TRIGGER = re.compile("(bkctl autorecovery trigger) starts a check now")


def succeed(cluster: Cluster, *arguments: str) -> BkctlResult:
    result = cluster.run(*arguments)
    assert result.exit_code == 0, (arguments, result)
    return result


def run_printed(cluster: Cluster, command: str | None, *more: str) -> BkctlResult:
    """Run a command as it was printed; ``more``: the consent that a terminal would ask for."""
    assert command is not None
    program, *words = shlex.split(command)
    assert program == "bkctl"
    return succeed(cluster, *words, *more)


def run_pipeline(cluster: Cluster, directory: Path, pipeline: str) -> subprocess.CompletedProcess[str]:
    """Run what was printed in a shell."""
    words = shlex.join(bkctl_command())
    script = f'bkctl() {{ {words} "$@"; }}\n{pipeline}'
    environment = bkctl_environment(BKCTL_METADATA_URI=cluster.metadata_uri)
    return subprocess.run(
        ["bash", "-c", script], cwd=directory, env=environment, capture_output=True, text=True, check=False
    )


def findings(cluster: Cluster) -> dict[str, dict[str, Any]]:
    """What the status finds, by part, of a look that had the time to read all."""

    def look() -> list[dict[str, Any]] | None:
        found = cluster.run("status", "-o", "json").json()
        texts = [each["finding"] for each in found["findings"]]
        is_complete = not any(sign in text for sign in ("unknown: ", "at least ") for text in texts)
        return [found] if is_complete else None

    result = wait_until(look)
    assert result is not None
    return {each["part"]: each for each in result[0]["findings"]}


def audit_findings(cluster: Cluster) -> dict[str, dict[str, Any]]:
    """What an audit finds, by part."""
    return {each["part"]: each for each in cluster.run("audit", "-o", "json").json()["findings"]}


def next_step(cluster: Cluster, ledger_id: str, pattern: re.Pattern[str]) -> str:
    """The command of a step that ``ledger explain`` prints."""
    steps = cluster.run("ledger", "explain", ledger_id, "-o", "json").json()["next_steps"]
    match = pattern.search("\n".join(steps))
    assert match is not None, steps
    return match[1]


def ensemble_of(cluster: Cluster, ledger_id: str) -> list[str]:
    (segment,) = succeed(cluster, "ledger", "show", ledger_id, "-o", "json").json()["ensembles"]
    return list(segment["ensemble"])


def write(cluster: Cluster, copies: int, ledgers: int = 1) -> str:
    sizes = ("-E", str(copies), "-W", str(copies), "-A", str(copies))
    words = (*sizes, "--ledgers", str(ledgers), "--entries", "5", "-o", "name")
    return succeed(cluster, "ledger", "write-test", *words).stdout.strip()


async def abandon(metadata_uri: str) -> str:
    """An open ledger whose writer is gone."""
    async with await LedgerClient.connect(metadata_uri) as client:
        writer = await client.create(ensemble_size=2, write_quorum_size=2, ack_quorum_size=2)
        await writer.append(b"entry")
        return str(writer.ledger_id)


def test_every_printed_command_leads_to_the_next_step(start_cluster: Callable[[int], Cluster], tmp_path: Path) -> None:
    cluster = start_cluster(4)
    write(cluster, 2, ledgers=30)  # no bookie is without one
    single = write(cluster, 1)
    holder = ensemble_of(cluster, single)[0]
    other, *rest = (each.id for each in cluster.bookies if each.id != holder)
    serves_and_is_given_to_recover(cluster, holder)
    has_the_only_copy(cluster, holder, single)
    is_in_maintenance_then_lost(cluster, other)
    down = leaves_a_ledger_open(cluster, rest)
    was_the_last_writable_one(cluster, [holder, *(each for each in rest if each != down)], down)
    is_lost_with_the_only_copy(cluster, holder, single, tmp_path)


def serves_and_is_given_to_recover(cluster: Cluster, bookie_id: str) -> None:
    refused = cluster.run("recover", "failed-bookie", bookie_id, "-n")
    assert refused.exit_code == 3, refused
    match = DRAIN.search(refused.stderr)
    assert match is not None, refused
    run_printed(cluster, match[1], "-n")


def has_the_only_copy(cluster: Cluster, bookie_id: str, ledger_id: str) -> None:
    """Started first: a recovery could only leave that ledger."""
    cluster.stop_bookie(bookie_id)
    first, second, *_ = findings(cluster).values()
    assert (first["part"], first["finding"]) == ("no_live_copy", f"1 ledger has no live copy; start {bookie_id}")
    assert (second["part"], second["command"]) == ("bookies_down", f"bkctl recover failed-bookie {bookie_id}")
    assert cluster.bookie(bookie_id).directory in run_printed(cluster, first["command"]).stdout
    explained = cluster.run("ledger", "explain", ledger_id, "-o", "table").stdout.splitlines()[0]
    assert explained.startswith(f"ledger {ledger_id} is unavailable: start {bookie_id} if its disks still exist")
    shown = cluster.run("status", "-o", "table").stdout.splitlines()[0]
    assert shown == f"critical: 1 ledger has no live copy; start {bookie_id}"
    assert cluster.run("audit", "-o", "table").stdout.splitlines()[0] == shown
    steps = cluster.run("ledger", "explain", ledger_id, "-o", "json").json()["next_steps"]
    assert steps[0].startswith(f"start {bookie_id} if its disks still exist")
    cluster.start_bookie(bookie_id)
    assert findings(cluster).keys() == {"no_auditor"}


def is_in_maintenance_then_lost(cluster: Cluster, bookie_id: str) -> None:
    """Nothing to do while it is expected to be away; then recovered, then removed from the cluster."""
    succeed(cluster, "autorecovery", "maintenance", "start", bookie_id, "--for", "48h")
    cluster.stop_bookie(bookie_id)
    found = findings(cluster)
    assert found.keys() == {"no_auditor", "bookies_in_maintenance"}
    away = found["bookies_in_maintenance"]
    assert re.search(rf"^bookie {bookie_id} is in maintenance until 20..-..-.. ..:.. UTC \(by .+\)$", away["finding"])
    assert bookie_id in run_printed(cluster, away["command"]).stdout
    for verb in ("recover", "decommission"):
        plan = cluster.run(verb, bookie_id, "-n", "-o", "json").json()
        assert {"severity": "warning", "finding": away["finding"]} in plan["findings"]
    checked = cluster.run("bookie", "restart-check", next(each.id for each in cluster.bookies if each.id != bookie_id))
    assert "is in maintenance until" in checked.stderr + checked.stdout
    succeed(cluster, "autorecovery", "maintenance", "end", bookie_id, "--accept-risk")
    run_printed(cluster, findings(cluster)["bookies_down"]["command"], "--yes")
    found = findings(cluster)
    assert found.keys() == {"no_auditor", "bookies_unreferenced"}
    run_printed(cluster, found["bookies_unreferenced"]["command"], "--yes")
    assert findings(cluster).keys() == {"no_auditor"}


def leaves_a_ledger_open(cluster: Cluster, bookie_ids: list[str]) -> str:
    """The writer is gone, so no process replaces the bookie that is down, which is returned."""
    ledger_id = asyncio.run(abandon(cluster.metadata_uri))
    down = next(each for each in ensemble_of(cluster, ledger_id) if each in bookie_ids)
    cluster.stop_bookie(down)
    run_printed(cluster, next_step(cluster, ledger_id, CLOSE), "--yes", "--grace", "0s")
    assert succeed(cluster, "ledger", "show", ledger_id, "-o", "json").json()["state"] == "closed"
    return down


def was_the_last_writable_one(cluster: Cluster, others: list[str], down_id: str) -> None:
    for each in others:
        succeed(cluster, "bookie", "set-mode", "read-only", each, "--yes")
    first, second = sorted(others)
    how = f"make {first} and {second} writable, which an operator set read-only (2 more bookies are needed)"
    stop = wait_until(lambda: findings(cluster).get("no_writable_bookie"))
    assert stop is not None
    assert stop["finding"] == f"no bookie is writable: {how}"
    assert "read-only" in run_printed(cluster, findings(cluster)["bookies_read_only"]["command"]).stdout
    run_printed(cluster, stop["command"])
    wait_until(lambda: findings(cluster).keys().isdisjoint({"no_writable_bookie", "writers_stop"}))
    cluster.start_bookie(down_id)
    assert findings(cluster).keys() == {"no_auditor"}


def is_lost_with_the_only_copy(cluster: Cluster, bookie_id: str, ledger_id: str, directory: Path) -> None:
    """The disks are empty: what still has copies is moved, and the loss is accepted last, by what all print."""
    cluster.stop_bookie(bookie_id)
    cluster.erase_bookie(bookie_id)
    _, *words = shlex.split(findings(cluster)["bookies_down"]["command"])
    partial = cluster.run(*words, "--yes", "-o", "json")
    assert (partial.exit_code, partial.json()["ledgers_failed"]) == (9, 1), partial
    found = findings(cluster)
    assert {"no_live_copy", "bookies_down"} <= found.keys(), "there is one step left"
    command = found["bookies_down"]["command"]
    assert found["bookies_down"].items() <= {**audit_findings(cluster)["bookies_down"], "part": "bookies_down"}.items()
    assert next_step(cluster, ledger_id, ACCEPTS) == command
    for ended in (cluster.run(*words, "--yes", "-o", "table"), cluster.run("decommission", bookie_id, "--yes")):
        assert f"this accepts the loss: {command}" in ended.stdout + ended.stderr, ended
    accepted = run_pipeline(cluster, directory, f"{command} --yes")
    assert accepted.returncode == 0, accepted
    assert findings(cluster).keys() == {"no_auditor", "loss_accepted"}


def without_age(finding: dict[str, Any]) -> tuple[str, str, str]:
    """Severity, sentence and command, without how long it has been so."""
    return finding["severity"], re.sub(r" for \d[^(;]*", "", finding["finding"]), finding["command"]


def only_in_maintenance_is_no_failure(cluster: Cluster, bookie_id: str) -> None:
    """The exit codes are those of the status; ``--fail-on`` may ask for more."""
    succeed(cluster, "autorecovery", "maintenance", "start", bookie_id, "--for", "48h")
    cluster.stop_bookie(bookie_id)
    assert succeed(cluster, "status", "-o", "json").json()["severity"] == "information"
    audited = succeed(cluster, "audit", "-o", "table").stdout.splitlines()[0]
    assert audited.startswith("information: 1 ledger has ")
    assert "is in maintenance until" in audited
    assert cluster.run("audit", "--fail-on", "at_risk").exit_code == 10
    succeed(cluster, "audit", "--fail-on", "critical,unavailable")
    cluster.start_bookie(bookie_id)
    succeed(cluster, "autorecovery", "maintenance", "end", bookie_id)


def test_autorecovery_is_started_and_its_auditor_waited_for(cluster: Cluster) -> None:
    ledger_id = write(cluster, 2)
    lost = ensemble_of(cluster, ledger_id)[0]
    _, *words = shlex.split(findings(cluster)["no_auditor"]["command"])
    daemon = start_bkctl(*words, "-u", cluster.metadata_uri)
    try:
        wait_until(lambda: not findings(cluster))
        succeed(cluster, "autorecovery", "delay", "set", "3600")
        only_in_maintenance_is_no_failure(cluster, lost)
        cluster.stop_bookie(lost)
        found = wait_until(lambda: findings(cluster).get("deadlines"))
        assert found is not None
        assert re.match(
            rf"bookie {lost} is gone; the auditor .+ marks the ledgers at .*..:.. UTC, in ", found["finding"]
        )
        audited = audit_findings(cluster)
        marked = found["finding"].partition(", in ")[0].rpartition(" at ")
        assert audited["deadlines"]["finding"].startswith(marked[0])
        assert audited["deadlines"]["finding"].endswith(marked[2][-len("hh:mm UTC") :]), "with the day: it is kept"
        assert (audited["deadlines"]["severity"], audited["at_risk"]["severity"]) == (found["severity"], "warning")
        succeed(cluster, "autorecovery", "disable", "--yes")
        audited, shown = audit_findings(cluster), findings(cluster)
        assert audited["at_risk"]["severity"] == shown["bookies_down"]["severity"] == "critical"
        assert "deadlines" not in audited.keys() | shown.keys(), "nothing is marked then"
        assert cluster.run("autorecovery", "status", "-o", "json").json()["bookies_gone"] == []
        assert without_age(audited["autorecovery_disabled"]) == without_age(shown["autorecovery_disabled"])
        run_printed(cluster, audited["autorecovery_disabled"]["command"], "--yes")
        assert "autorecovery_disabled" not in audit_findings(cluster)
        run_printed(cluster, found["command"])
        run_printed(cluster, next_step(cluster, ledger_id, TRIGGER))
        wait_until(lambda: "bookies_unreferenced" in findings(cluster))
        run_printed(cluster, findings(cluster)["bookies_unreferenced"]["command"], "--yes")
        wait_until(lambda: not findings(cluster))
    finally:
        daemon.terminate()
        daemon.wait(COMMAND_TIMEOUT_S)
