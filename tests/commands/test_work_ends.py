"""How recoveries and drains end, and what they say when a signal stops them: the verdict first, then the way on."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.commands.cluster.conftest import command_after
from tests.processes import BkctlResult, Cluster, run_bkctl, start_bkctl
from tests.until import wait_until

pytestmark = pytest.mark.cluster


class Operated:
    """A cluster, and an operator with a state directory who reads text."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self.cluster = cluster
        self.log = directory / "log"
        self.variables: dict[str, Any] = {
            "BKCTL_METADATA_URI": cluster.metadata_uri,
            "BKCTL_STATE_DIR": str(directory / "state"),
            "BKCTL_OUTPUT": "table",
        }

    def run(self, *words: str) -> BkctlResult:
        return run_bkctl(*words, **self.variables)

    def write(self, ledgers: int, entries: int, copies: int = 2) -> None:
        sizes = ("-E", str(copies), "-W", str(copies), "-A", str(copies), "--entry-size", "1024", "--no-read-back")
        written = self.run("ledger", "write-test", "--ledgers", str(ledgers), "--entries", str(entries), *sizes)
        assert written.exit_code == 0, written

    def ledgers_of(self, bookie_id: str) -> set[str]:
        return set(self.run("ledger", "list", "--bookie", bookie_id, "-o", "name").stdout.split())

    def wait_until_down(self, *bookie_ids: str) -> None:
        wait_until(
            lambda: set(bookie_ids) <= set(self.run("bookie", "list", "--state", "down", "-o", "name").stdout.split())
        )

    def stop_in_the_middle(self, number: signal.Signals, victim: str, *words: str) -> str:
        """Send a signal once a ledger has left the bookie; what the command said."""
        before = self.ledgers_of(victim)
        with self.log.open("wb") as log:
            process = start_bkctl(*words, stdout=log, stderr=log, variables=self.variables)
            wait_until(lambda: self.ledgers_of(victim) < before, process=process, tell=self.log.read_text)
            process.send_signal(number)
            assert process.wait(60) == 128 + number, self.log.read_text()
        return self.log.read_text()


@pytest.fixture
def operated(start_cluster: Callable[[int], Cluster], tmp_path: Path) -> Operated:
    return Operated(start_cluster(4), tmp_path)


def test_a_recovery_ends_with_what_to_start_and_the_command_that_continues(operated: Operated) -> None:
    operated.write(60, 5)  # some are on both, by chance
    first, second = (bookie.id for bookie in operated.cluster.bookies[:2])
    on_both = operated.ledgers_of(first) & operated.ledgers_of(second)
    moved = len(operated.ledgers_of(first)) - len(on_both)
    assert on_both
    assert moved
    for bookie_id in (first, second):
        operated.cluster.stop_bookie(bookie_id)
    operated.wait_until_down(first, second)

    ended = operated.run("recover", "failed-bookie", first, "--yes")

    assert ended.exit_code == 9, ended
    verdict, *rest = ended.stdout.splitlines()
    assert verdict.startswith(f"critical: {moved} ledger{'s' * (moved > 1)} moved ("), ended.stdout
    assert f"{len(on_both)} left: " in verdict
    end = f"entries without a live copy (start {second}); then continue with: bkctl recover failed-bookie {first} --yes"
    assert f"{end} --resume " in verdict
    assert rest[1] == "Findings"
    assert not any(line.startswith("mebibytes_per_second") for line in rest), "counters are for -o wide"

    operated.cluster.start_bookie(second)
    again = operated.run(*command_after("continue with: ", ended.stdout))
    assert again.exit_code == 0, again
    assert again.stdout.splitlines()[0].startswith(f"ok: {len(on_both)} ledger"), again.stdout
    assert ", none left" in again.stdout
    assert operated.ledgers_of(first) == set()


def test_a_recovery_of_two_bookies_continues_with_the_one_that_stays_away(operated: Operated) -> None:
    """A recovery of a bookie that serves is refused, so what is printed names only the others."""
    operated.write(60, 5)
    both = {bookie.id for bookie in operated.cluster.bookies[:2]}
    for bookie_id in both:
        operated.cluster.stop_bookie(bookie_id)
    operated.wait_until_down(*both)
    ended = operated.run("recover", *both, "--yes")
    assert ended.exit_code == 9, ended
    again = command_after("continue with: ", ended.stdout)
    (started,) = both.difference(again)
    assert f"once {started} serves, continue with: " in ended.stdout
    accepts = f"if the disks of {' and '.join(sorted(both))} are lost, this accepts the loss: bkctl ledger list "
    assert accepts in ended.stdout, "what they have is on both"

    operated.cluster.start_bookie(started)
    alone = operated.run(*again)
    assert alone.exit_code == 0, alone
    assert ", none left" in alone.stdout
    assert operated.run("audit", "--fail-on", "at_risk").exit_code == 0

    operated.write(12, 2, copies=1)
    operated.cluster.stop_bookie(started)
    operated.wait_until_down(started)
    lost = operated.run("recover", started, "--yes")
    report = operated.run("recover", started, "--yes", "-o", "json").json()
    assert (report["severity"], f"once {started} serves, nothing is left" in report["verdict"]) == ("critical", True)
    assert f"; once {started} serves, nothing is left to recover" in lost.stdout
    (step,) = [line for line in lost.stdout.splitlines() if "this accepts the loss: " in line]
    explained = operated.run("ledger", "explain", operated.ledgers_of(started).pop())
    found = operated.run("status", "-o", "json").json(), operated.run("audit", "-o", "json").json()
    commands = [each["command"] for status in found for each in status["findings"] if each["severity"] == "critical"]
    command = step.partition("this accepts the loss: ")[2]
    assert commands.count(command) == 2, (commands, command)
    assert command in explained.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.battery)])
def test_a_drain_that_is_stopped_names_the_bookie_that_stays_read_only(
    operated: Operated, number: signal.Signals
) -> None:
    operated.write(4, 2_000, copies=3)  # they would take minutes
    operated.write(12, 1, copies=3)  # the newest are moved first
    victim = operated.cluster.bookies[0].id
    said = operated.stop_in_the_middle(number, victim, "bookie", "drain", victim, "--yes", "--copy-rate", "50KiB/s")
    assert f"bookie {victim} stays read-only; bkctl bookie undrain {victim} makes it writable" in said
    assert " left; " in said
    again = command_after("to continue: ", said)
    assert again[:3] == ["bookie", "drain", victim]
    rates = Path(again[again.index("--resume") + 1] + ".rates")
    rates.write_text("copy-rate = none\n")
    drained = operated.run(*again)
    assert drained.exit_code == 0, drained
    assert f"none left on bookie {victim}" in drained.stdout.splitlines()[0]
    undone = operated.run(*command_after(f"bookie {victim} stays read-only; ", said.replace(" makes it", "\n")))
    assert undone.exit_code == 0, undone
    listed = json.loads(operated.run("bookie", "list", "-o", "json").stdout)["items"]
    assert {row["state"] for row in listed} == {"writable"}


def test_the_drain_of_a_bookie_that_is_killed_meanwhile_says_that_it_is_down(operated: Operated) -> None:
    """Its session may still last: nothing that needs it to serve is advised."""
    operated.write(12, 20, copies=3)
    victim = operated.cluster.bookies[0].id
    before = operated.ledgers_of(victim)
    with operated.log.open("wb") as log:
        words = ("bookie", "drain", victim, "--yes", "--copy-rate", "20KiB/s")
        process = start_bkctl(*words, stdout=log, stderr=log, variables=operated.variables)
        wait_until(lambda: operated.ledgers_of(victim) < before, process=process, tell=operated.log.read_text)
        operated.cluster.kill_bookie(victim)
        assert process.wait(60) == 0, operated.log.read_text()
    said = operated.log.read_text()
    assert f"none left on bookie {victim}" in said
    assert f"bookie {victim} is down, and all its ledgers were moved: to remove, run bkctl decommission " in said
    assert "read-only: to remove" not in said
    operated.cluster.start_bookie(victim)
    kept = operated.run("bookie", "undrain", victim)
    assert kept.exit_code == 0, kept


def test_a_plan_begins_with_what_it_does_and_ends_with_what_identifies_it(operated: Operated) -> None:
    operated.write(8, 20, copies=3)
    victim = operated.cluster.bookies[0].id
    operated.cluster.stop_bookie(victim)
    operated.wait_until_down(victim)
    planned = operated.run("recover", "failed-bookie", victim, "-n", "--copy-rate", "1k")
    assert planned.exit_code == 0, planned
    lines = planned.stdout.splitlines()
    assert lines[0].startswith("will recover "), planned.stdout
    assert lines[1].startswith("takes at least "), planned.stdout
    assert lines.index("Changes") < len(lines) - 4
    assert [line.split()[0] for line in lines[-3:]] == ["root", "instance_id", "plan_hash"]
    wide = operated.run("recover", "failed-bookie", victim, "-n", "-o", "wide")
    assert "ledgers_without_live_copy" in wide.stdout.partition("Changes")[2]


def test_an_end_without_bookies_to_copy_to_says_what_the_status_says(operated: Operated) -> None:
    operated.write(40, 2, copies=3)  # some are on the second and not on the first
    first, second = sorted(bookie.id for bookie in operated.cluster.bookies)[:2]
    for bookie_id in (first, second):
        operated.cluster.stop_bookie(bookie_id)
    operated.wait_until_down(first, second)
    remedy, command = f"start {first} or {second}, or add a bookie", f"bkctl bookie show {first} {second}"

    def are_the_same(*ends: BkctlResult) -> None:
        (down,) = [each for each in _findings(operated, "status") if each["part"] == "bookies_down"]
        assert (down["finding"].rpartition(": ")[2], down["command"]) == (remedy, command)
        assert down["severity"] == "critical", "two are down"
        commands = {each["finding"].rpartition("; ")[2]: each["command"] for each in _findings(operated, "audit")}
        assert commands.get(remedy) == command, commands
        for ended in ends:
            assert f"bookie to copy to ({remedy}); then continue with: bkctl " in ended.stdout, ended
            assert command in ended.stdout, ended
            assert ended.stdout.startswith("critical: "), ended

    recovered = operated.run("recover", second, "--yes")
    assert f"); {remedy}\n" in recovered.stderr, "the plan"
    are_the_same(recovered, operated.run("decommission", second, "--yes", "--accept-risk"))


def _findings(operated: Operated, command: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = operated.run(command, "-o", "json").json()["findings"]
    return found
