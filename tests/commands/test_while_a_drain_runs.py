"""What other commands say of a bookie that a drain or a decommission empties, or that waits to be stopped."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.commands.test_advice import abandon, audit_findings, ensemble_of, findings, run_printed, write
from tests.processes import COMMAND_TIMEOUT_S, BkctlResult, Cluster, start_bkctl
from tests.until import wait_until

pytestmark = pytest.mark.cluster


@contextlib.contextmanager
def running(cluster: Cluster, log: Path, *words: str) -> Iterator[None]:
    """A command that is stopped at the end, if it has not ended."""
    with log.open("wb") as file:
        variables = {"BKCTL_METADATA_URI": cluster.metadata_uri}
        process = start_bkctl(*words, "--yes", stdout=file, stderr=file, variables=variables)
    try:
        yield
    finally:
        process.terminate()
        process.wait(COMMAND_TIMEOUT_S)


def plans_of(cluster: Cluster, bookie_id: str) -> list[BkctlResult]:
    """What stops a bookie, or expects it to stop."""
    return [
        cluster.run("bookie", "stop", bookie_id, "-n", "-o", "table"),
        cluster.run("bookie", "restart-check", bookie_id, "-o", "table"),
        cluster.run("autorecovery", "maintenance", "start", bookie_id, "--for", "1h", "-n", "-o", "table"),
    ]


def leaving_finding(
    cluster: Cluster, look: Callable[[Cluster], dict[str, dict[str, Any]]] = findings
) -> dict[str, Any]:
    """What is found about bookies that leave, in a look in which they said in time why they are read-only."""
    return wait_until(lambda: look(cluster).get("bookies_leaving", {}))


def say_the_same(cluster: Cluster, bookie_id: str) -> None:
    """The audit and the doctor say what the status says of a bookie that leaves."""
    said, audited = (leaving_finding(cluster, look) for look in (findings, audit_findings))
    assert [audited[each] for each in ("severity", "finding", "command")] == [
        said[each] for each in ("severity", "finding", "command")
    ]
    words = ("metadata", "doctor", "--rule", "bookie-leaving", "-o", "json")
    doctor = wait_until(lambda: cluster.run(*words).json()["findings"])
    problem = f"{said['finding'][0].upper()}{said['finding'][1:]}."
    assert [(each["severity"], each["problem"], each["cure"]) for each in doctor] == [
        (said["severity"], problem, f"{said['command']}.")
    ]
    assert doctor[0]["path"].endswith(f"/available/readonly/{bookie_id}")


def test_what_stops_a_bookie_names_the_drain_that_empties_it(
    start_cluster: Callable[[int], Cluster], tmp_path: Path
) -> None:
    cluster = start_cluster(4)
    write(cluster, 2, ledgers=20)
    bookie_id = cluster.bookies[0].id
    for found in plans_of(cluster, bookie_id):
        assert "drain" not in found.stdout + found.stderr, found
    with running(cluster, tmp_path / "log", "bookie", "drain", bookie_id, "--copy-rate", "64"):
        wait_until(lambda: "a command is moving" in findings(cluster).get("bookies_leaving", {}).get("finding", ""))
        say_the_same(cluster, bookie_id)
        for found in plans_of(cluster, bookie_id):
            said = found.stdout + found.stderr
            assert "'bookie drain' by " in said, found
            assert f" works on bookie {bookie_id}: bkctl status --watch shows it" in said, found
            assert found.exit_code == 0, found
    say_the_same(cluster, bookie_id)
    (stop, *others) = plans_of(cluster, bookie_id)
    assert f"a drain has made bookie {bookie_id} read-only: bkctl status says what is left to do" in stop.stdout
    assert not any("'bookie drain' by " in found.stdout + found.stderr for found in others)


def test_the_advice_after_an_interrupted_drain_is_not_refused(
    start_cluster: Callable[[int], Cluster], tmp_path: Path
) -> None:
    cluster, log = start_cluster(4), tmp_path / "log"
    write(cluster, 2, ledgers=20)
    leaving, down = (cluster.bookies[index].id for index in (0, 3))
    drain = f"bkctl bookie drain {leaving} --accept-risk"

    def begin(command: str) -> None:
        with running(cluster, log, *command.split()[1:], "--copy-rate", "64"):
            wait_until(lambda: "a command is moving" in findings(cluster).get("bookies_leaving", {}).get("finding", ""))

    begin(without := drain.removesuffix(" --accept-risk"))
    assert leaving_finding(cluster)["command"] == without
    cluster.stop_bookie(down)
    assert cluster.run(*without.split()[1:], "-n").exit_code == 3
    begin(drain)
    assert f"to continue: {drain} " in log.read_text()
    for is_down in (True, False):
        if not is_down:
            cluster.start_bookie(down)
        assert leaving_finding(cluster)["command"] == drain
        assert ("bookies_down" in findings(cluster)) == is_down
        say_the_same(cluster, leaving)
    cluster.stop_bookie(down)
    run_printed(cluster, drain, "--yes")
    assert leaving_finding(cluster)["command"] == f"bkctl decommission {leaving} --accept-risk"


def test_a_bookie_that_a_drain_has_emptied_is_stopped_without_a_loss(start_cluster: Callable[[int], Cluster]) -> None:
    cluster = start_cluster(4)
    write(cluster, 2, ledgers=8)
    emptied, other, third = (each.id for each in cluster.bookies[:3])

    def planned(*bookie_ids: str) -> str:
        return cluster.run("bookie", "stop", *bookie_ids, "-n", "-o", "table").stdout

    one_less = "bookie {} will end; its ledgers have one copy less until it runs again\n"
    without_loss = f"bookie {emptied} will end; no ledger references it, so no ledger has fewer copies\n"
    assert planned(emptied).startswith(one_less.format(emptied))
    assert cluster.run("bookie", "drain", emptied, "--yes").exit_code == 0
    assert planned(emptied).startswith(without_loss)
    both = planned(emptied, other)
    assert both.startswith(without_loss + one_less.format(other)), both
    assert "restart-check" not in both, "only one of them has copies"
    assert f"restart-check {other} {third} tells" in planned(emptied, other, third)


def test_the_status_says_that_a_decommission_waits_for_the_stop(
    start_cluster: Callable[[int], Cluster], tmp_path: Path
) -> None:
    cluster = start_cluster(4)
    write(cluster, 2, ledgers=8)
    bookie_id = cluster.bookies[0].id
    with running(cluster, tmp_path / "log", "decommission", bookie_id):
        stop = f"bkctl bookie stop {bookie_id}"
        wait_until(lambda: findings(cluster).get("bookies_leaving", {}).get("command") == stop)
        assert "a decommission waits until it is stopped" in leaving_finding(cluster)["finding"]
        say_the_same(cluster, bookie_id)
        screen = cluster.run("status", "-o", "table").stdout
        assert "nothing to move; a decommission waits for the stop of a bookie" in screen, screen
        planned = cluster.run(*shlex.split(stop)[1:], "-n", "-o", "table").stdout
        awaited = f"bookie {bookie_id} will end: a decommission waits for this, and no ledger references the bookie\n"
        assert planned.startswith(awaited), planned
        stopped = cluster.run(*shlex.split(stop)[1:], "--yes")
        assert stopped.exit_code == 0, stopped
        wait_until(lambda: cluster.run("bookie", "show", bookie_id).exit_code == 4)


def test_the_status_says_that_a_drain_waits_for_writers(
    start_cluster: Callable[[int], Cluster], tmp_path: Path
) -> None:
    cluster = start_cluster(4)
    open_id = asyncio.run(abandon(cluster.metadata_uri))
    bookie_id = ensemble_of(cluster, open_id)[0]
    with running(cluster, tmp_path / "log", "bookie", "drain", bookie_id):
        close = f"bkctl ledger close {open_id}"
        wait_until(lambda: findings(cluster).get("bookies_leaving", {}).get("command") == close)
        said = leaving_finding(cluster)["finding"]
        assert (
            f"; a command waits for the writer of 1 ledger: open ledgers that have no writer are closed by {close}"
            in said
        )
        say_the_same(cluster, bookie_id)
        run_printed(cluster, close, "--yes", "--grace", "0s")
        wait_until(lambda: leaving_finding(cluster)["command"] == f"bkctl decommission {bookie_id}")
