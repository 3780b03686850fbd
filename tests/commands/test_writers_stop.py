"""Too few writable bookies for the usual ensemble: critical everywhere, with the command that helps writers now."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.commands.test_advice import audit_findings, findings, run_printed, succeed, write
from tests.processes import Cluster
from tests.until import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.battery]


def of_writers(found: dict[str, dict[str, Any]]) -> tuple[str, ...] | None:
    stop = found.get("writers_stop")
    return None if stop is None else (stop["severity"], stop["finding"], stop["command"])


def assert_stopped(cluster: Cluster, writable: int, help_now: str, command: str) -> None:
    """The status, an audit, its page and the metadata doctor say it; the command that is printed is run."""
    which = f"{writable} bookie is" if writable == 1 else f"{writable} bookies are"
    sentence = f"writers stop: {which} writable, and ledgers with 3, like many here, cannot be created; {help_now}"
    expected = ("critical", sentence, command)
    wait_until(lambda: of_writers(findings(cluster)) == expected)
    assert cluster.run("status").exit_code == 14
    assert of_writers(audit_findings(cluster)) == expected
    doctor = cluster.run("metadata", "doctor", "--rule", "writers-stop", "-o", "json").json()
    step, *more = f"{help_now[0].upper()}{help_now[1:]}".split("; then ", 1)
    cure = "; then ".join([f"{step}: {command}", *more])
    assert [(each["severity"], each["cure"]) for each in doctor["findings"]] == [("critical", f"{cure}.")]
    assert cluster.run("ledger", "write-test", "--yes", "-E", "3", "-W", "3", "-A", "2").exit_code == 7


def assert_goes_on(cluster: Cluster) -> None:
    wait_until(lambda: "writers_stop" not in findings(cluster))
    assert "writers_stop" not in audit_findings(cluster)
    succeed(cluster, "ledger", "write-test", "--yes", "-E", "3", "-W", "3", "-A", "2")


def test_writers_that_stop_are_critical_and_the_printed_command_lets_them_go_on(
    start_cluster: Callable[[int], Cluster],
) -> None:
    cluster = start_cluster(4)
    write(cluster, 3, ledgers=10)
    write(cluster, 2, ledgers=10)
    leaving, paused, stopped, _ = (each.id for each in cluster.bookies)
    succeed(cluster, "bookie", "drain", leaving, "--yes")
    assert "writers_stop" not in findings(cluster)
    succeed(cluster, "bookie", "set-mode", "read-only", paused, "--yes")
    undrain = f"bkctl bookie undrain {leaving}"
    assert_stopped(cluster, 2, f"keep {leaving}, which a drain made read-only and no command empties now", undrain)
    run_printed(cluster, undrain)
    assert_goes_on(cluster)

    cluster.stop_bookie(stopped)
    writable = f"bkctl bookie set-mode writable {paused}"
    assert_stopped(cluster, 2, f"make {paused} writable, which an operator set read-only", writable)
    run_printed(cluster, writable)
    assert_goes_on(cluster)

    cluster.stop_bookie(paused)
    cluster.bookie_settings |= {"diskUsageThreshold": "0.0001", "diskUsageWarnThreshold": "0.0001"}
    cluster.start_bookie(paused)
    assert_stopped(cluster, 2, f"free space on {paused}, or give it a disk", "bkctl help full-disk")
    cluster.stop_bookie(paused)
    first, second = sorted((paused, stopped))
    assert_stopped(cluster, 2, f"start {first} or {second}", f"bkctl bookie show {first} {second}")
    cluster.bookie_settings["diskUsageThreshold"] = "0.99"
    cluster.start_bookie(stopped)
    assert_goes_on(cluster)


def test_two_missing_bookies_are_both_named(cluster: Cluster) -> None:
    write(cluster, 3, ledgers=4)
    first, second = sorted(each.id for each in cluster.bookies[1:])
    cluster.stop_bookie(first)
    cluster.stop_bookie(second)
    how = f"start {first} and {second} (2 more bookies are needed)"
    assert_stopped(cluster, 1, how, f"bkctl bookie show {first} {second}")
    cluster.start_bookie(first)
    assert_stopped(cluster, 2, f"start {second}", f"bkctl bookie show {second}")
    cluster.start_bookie(second)
    assert_goes_on(cluster)
    modes = ("bookie", "set-mode", "read-only", first, second, "--yes")
    succeed(cluster, *modes)
    command = f"bkctl bookie set-mode writable {first} {second}"
    how = f"make {first} and {second} writable, which an operator set read-only (2 more bookies are needed)"
    assert_stopped(cluster, 1, how, command)
    cluster.stop_bookie(second)
    command = f"bkctl bookie set-mode writable {first}"
    step = f"make {first} writable, which an operator set read-only (2 more bookies are needed)"
    assert_stopped(cluster, 1, f"{step}; then start {second}: bkctl bookie show {second}", command)
    run_printed(cluster, command)
    cluster.start_bookie(second)
    again = f"bkctl bookie set-mode writable {second}"
    assert_stopped(cluster, 2, f"make {second} writable, which an operator set read-only", again)
    run_printed(cluster, again)
    assert_goes_on(cluster)


def test_one_ledger_of_an_unusual_size_does_not_count(cluster: Cluster) -> None:
    ids = [each.id for each in cluster.bookies]
    write(cluster, 1, ledgers=10)
    write(cluster, len(ids))
    for each in ids[1:]:
        succeed(cluster, "bookie", "set-mode", "read-only", each, "--yes")
    wait_until(lambda: "bookies_read_only" in findings(cluster))
    assert "writers_stop" not in findings(cluster).keys() | audit_findings(cluster).keys()
    assert "writers-stop" not in cluster.run("metadata", "doctor", "-o", "json").json()["rules"]
