"""One situation is as bad in the status, an audit, the metadata doctor and the explanation of a ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.commands.test_advice import ensemble_of, findings, succeed, write
from tests.processes import COMMAND_TIMEOUT_S, Cluster, start_bkctl
from tests.until import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.battery]

ALL = ("status", "audit", "metadata doctor")


@pytest.fixture
def repaired(start_cluster: Callable[[int], Cluster]) -> Iterator[Cluster]:
    """Of five bookies, with a daemon that waits for lost ones."""
    cluster = start_cluster(5)
    succeed(cluster, "autorecovery", "delay", "set", "3600")
    daemon = start_bkctl("autorecovery", "start", "-u", cluster.metadata_uri)
    try:
        wait_until(lambda: not findings(cluster))
        yield cluster
    finally:
        daemon.terminate()
        daemon.wait(COMMAND_TIMEOUT_S)


def severities(cluster: Cluster) -> dict[str, str]:
    """The first words of what the commands print."""
    found = {each: cluster.run(*each.split(), "-o", "table").stdout for each in ALL}
    assert all(found.values()), [cluster.run(*each.split(), "-o", "table") for each in ALL]
    return {each: text.splitlines()[0].partition(":")[0] for each, text in found.items()}


def are_all(severity: str) -> dict[str, str]:
    return dict.fromkeys(ALL, severity)


def explained(cluster: Cluster, ledger_id: str) -> tuple[int, str]:
    """The exit code, and the verdict with all problems and steps."""
    found = cluster.run("ledger", "explain", ledger_id, "-o", "table")
    return found.exit_code, found.stdout


def stop(cluster: Cluster, *bookie_ids: str) -> None:
    for each in bookie_ids:
        cluster.stop_bookie(each)
        wait_until(lambda: each in cluster.run("bookie", "list", "--state", "down", "-o", "name").stdout)  # noqa: B023


def test_a_switch_and_maintenance_and_a_dead_bookie_without_ledgers(repaired: Cluster) -> None:
    cluster = repaired
    ledger_id = write(cluster, 3)
    succeed(cluster, "autorecovery", "disable", "--yes")
    assert severities(cluster) == are_all("warning")
    succeed(cluster, "autorecovery", "enable", "--yes")
    dead = ensemble_of(cluster, ledger_id)[0]

    succeed(cluster, "autorecovery", "maintenance", "start", dead, "--for", "2h")
    stop(cluster, dead)
    assert severities(cluster) == are_all("information")
    exit_code, text = explained(cluster, ledger_id)
    assert (exit_code, f"bookie {dead} is in maintenance until" in text) == (0, True), text

    succeed(cluster, "autorecovery", "maintenance", "end", dead, "--accept-risk")
    assert severities(cluster) == are_all("warning")
    assert explained(cluster, ledger_id)[0] == 10

    succeed(cluster, "recover", "failed-bookie", dead, "--yes")
    assert severities(cluster) == are_all("information")
    assert explained(cluster, ledger_id)[0] == 0
    part = next(each for each in cluster.run("audit", "-o", "json").json()["findings"])
    assert part == findings(cluster)["bookies_unreferenced"] | {key: part[key] for key in part.keys() - {"part"}}


def test_an_accepted_loss_is_information(repaired: Cluster, tmp_path: Path) -> None:
    cluster = repaired
    write(cluster, 2, ledgers=20)
    striped = ("-E", "3", "-W", "2", "-A", "2", "--ledgers", "20", "--entries", "5")
    succeed(cluster, "ledger", "write-test", *striped)
    first, second = dead = [bookie.id for bookie in cluster.bookies[:2]]
    stop(cluster, *dead)
    assert severities(cluster) == are_all("critical")
    assert cluster.run("recover", "failed-bookie", *dead, "--yes").exit_code == 9
    left = succeed(cluster, "ledger", "list", "--bookie", first, "-o", "name").stdout.split()
    assert left
    (tmp_path / "left").write_text("\n".join(left))
    assert severities(cluster) == are_all("critical")
    assert f"start {min(dead)} or {max(dead)}" in explained(cluster, left[0])[1]

    alone = cluster.run("decommission", first, "--accept-loss", first, "--from-file", str(tmp_path / "left"), "-n")
    assert alone.exit_code == 3
    names = f"{min(dead)} {max(dead)} --accept-loss {min(dead)} --accept-loss {max(dead)}"
    both = f"bkctl decommission {names} --from-file {tmp_path / 'left'}"
    sentence = f"; bookie {second} is down too: if its disks are lost as well, name all: {both}"
    assert sentence in alone.stderr, alone.stderr
    accepted = [word for each in dead for word in ("--accept-loss", each)]
    words = ("decommission", *dead, *accepted, "--from-file", str(tmp_path / "left"))
    planned = succeed(cluster, *words, "-n", "-o", "table").stdout
    assert planned.startswith(f"will give up what only bookies {min(dead)} and {max(dead)} had of {len(left)} ledger")
    done = succeed(cluster, *words, "--yes", "-o", "table")
    assert f", bookies {min(dead)} and {max(dead)} are removed from the cluster" in done.stdout
    again = cluster.run("decommission", first, "--if-exists", "--yes")
    assert (again.exit_code, "nothing is left to do" in again.stderr) == (0, True), again

    shown = cluster.run("status", "-o", "json")
    (finding,) = shown.json()["findings"]
    assert (shown.exit_code, finding["part"], finding["severity"]) == (0, "loss_accepted", "information")
    assert "loss accepted on 20" in finding["finding"]
    audited = cluster.run("audit", "-o", "json")
    assert audited.exit_code == 0, audited
    assert [(each["part"], each["finding"]) for each in audited.json()["findings"]] == [
        (finding["part"], finding["finding"])
    ]
    assert f"{len(left)} given-up" in cluster.run("audit", "-o", "table").stdout
    assert severities(cluster) == are_all("information") | {"metadata doctor": "ok"}
    for each in left[0], left[-1]:
        exit_code, text = explained(cluster, each)
        assert exit_code == 0, text
        assert text.startswith(f"ledger {each} is given-up: nothing is left to do: loss accepted on 20")
        assert "given_up" not in text, "for people as everywhere"
        assert "start " not in text
    gone = cluster.run("autorecovery", "status", "-o", "json").json()
    assert (gone["bookies_gone"], gone["ledgers_with_losses"]) == ([], 0)
    succeed(cluster, "autorecovery", "trigger")
    wait_until(
        lambda: [
            each
            for each in cluster.run("autorecovery", "status", "-o", "json").json()["tasks"]
            if each["task"] == "audit" and each["result"].startswith("40 ledgers, 0 marks written")
        ]
    )
    assert severities(cluster) == are_all("information") | {"metadata doctor": "ok"}
    assert second in text
