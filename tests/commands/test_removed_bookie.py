"""A bookie that was removed with a loss that was accepted is not in the cluster, for every command."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from bkctl.runtime.client import LedgerClient
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.storage.words import counted
from tests.commands.test_advice import audit_findings, ensemble_of, findings, run_pipeline, run_printed, succeed, write
from tests.commands.test_one_severity import stop
from tests.processes import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.battery]


def delete_node(cluster: Cluster, below_root: str) -> None:
    uri = parse_metadata_uri(cluster.metadata_uri)
    client = KazooClient(uri.servers)
    client.start()
    client.delete(f"{uri.root}/{below_root}")
    client.stop()
    client.close()


def test_a_removed_bookie_is_in_the_way_of_nothing(start_cluster: Callable[[int], Cluster], tmp_path: Path) -> None:
    cluster = start_cluster(3)
    write(cluster, 1, ledgers=30)
    gone = cluster.bookies[0].id
    stop(cluster, gone)
    lost = succeed(cluster, "ledger", "list", "--bookie", gone, "-o", "name").stdout.split()
    (tmp_path / "lost").write_text("\n".join(lost))
    accept = ("decommission", gone, "--accept-loss", gone, "--from-file", str(tmp_path / "lost"))
    succeed(cluster, *accept, "--yes")

    ledgers = "1 ledger still names" if len(lost) == 1 else f"{len(lost)} ledgers still name"
    sentence = f"error: bookie {gone} is not in the cluster: {ledgers} it, whose loss was accepted with it"
    for words in (
        ("decommission", gone, "--yes"),
        ("decommission", gone, "-n"),
        ("decommission", gone, "--by-retention", "--yes"),
        (*accept, "--yes"),
        ("bookie", "drain", gone, "-n"),
        ("bookie", "drain", gone, "--yes"),
        ("recover", gone, "-n"),
        ("recover", gone, "--yes"),
        ("recover", gone, "--ledger", lost[0], "--yes"),
        ("autorecovery", "maintenance", "start", gone, "--for", "20m"),
        ("bookie", "restart-check", gone),
    ):
        refused = cluster.run(*words)
        assert (refused.exit_code, sentence in refused.stderr) == (4, True), (words, refused)
    assert cluster.run("decommission", gone, "--if-exists", "--yes").exit_code == 0
    unknown = cluster.run("decommission", "127.0.0.1:1", "--yes")
    assert (unknown.exit_code, "is unknown" in unknown.stderr) == (4, True), unknown

    cluster.erase_bookie(gone)
    bookie = cluster.bookie(gone)
    settings = ("--journal-dir", f"{bookie.directory}/journal", "--ledger-dir", f"{bookie.directory}/ledgers")
    verify = ("cookie", "verify", *settings, "--bookie-id", gone, "--set", "allowLoopback=true", "-o", "json")
    found = cluster.run(*verify)
    assert found.exit_code == 10, found
    assert f"{ledgers} it, whose loss was accepted" in found.json()["sentence"]
    for each in run_printed(cluster, found.json()["command"], "-o", "name").stdout.split():
        succeed(cluster, "ledger", "delete", each, "--confirm", each)
    started = cluster.run(*verify)
    assert started.exit_code == 0, started.stdout
    assert started.json()["is_new"]
    cluster.start_bookie(gone)


def test_a_ledger_that_has_a_copy_again_keeps_its_bookies_known(
    start_cluster: Callable[[int], Cluster], tmp_path: Path
) -> None:
    cluster = start_cluster(3)
    ledger_id = write(cluster, 2)
    first, second = succeed(cluster, "ledger", "show", ledger_id, "-o", "json").json()["ensembles"][0]["ensemble"]
    stop(cluster, first, second)
    (tmp_path / "lost").write_text(ledger_id)
    accepted = [word for each in (first, second) for word in ("--accept-loss", each)]
    succeed(cluster, "decommission", first, second, *accepted, "--from-file", str(tmp_path / "lost"), "--yes")
    assert cluster.run("recover", first, "-n").exit_code == 4

    bookie = cluster.bookie(second)
    settings = ("--journal-dir", f"{bookie.directory}/journal", "--ledger-dir", f"{bookie.directory}/ledgers")
    found = cluster.run("cookie", "verify", *settings, "--bookie-id", second, "-o", "json").json()
    run_printed(cluster, found["command"], "--yes")
    cluster.start_bookie(second)
    succeed(cluster, "recover", first, "--yes")
    assert cluster.run("recover", first, "-n").exit_code == 4
    assert succeed(cluster, "ledger", "verify", ledger_id, "-o", "json").json()["copies_good"] == 10


def test_a_loss_is_accepted_only_with_the_cookie(start_cluster: Callable[[int], Cluster], tmp_path: Path) -> None:
    cluster = start_cluster(3)
    kept = [write(cluster, 3) for _ in range(2)]  # no other bookie can take their copies
    write(cluster, 1, ledgers=30)
    gone = cluster.bookies[0].id
    stop(cluster, gone)
    left = cluster.run("decommission", gone, "--yes", "-o", "table")
    match = re.search("this accepts the loss: (.* && bkctl decommission [^;\n]*)", left.stdout + left.stderr)
    assert (left.exit_code, match is not None) == (1, True), left
    assert "2 others" in left.stdout + left.stderr, left
    assert match is not None
    assert audit_findings(cluster)["no_live_copy"]["severity"] == "critical"

    accepted = run_pipeline(cluster, tmp_path, match[1] + " --yes -o table")
    assert accepted.returncode == 1, accepted
    said = accepted.stdout + accepted.stderr
    lost = (tmp_path / "lost-ledgers").read_text().split()
    assert (
        f"the loss of entries of {counted(len(lost), 'ledger')} will be accepted when bookie {gone} is removed" in said
    )
    for found in (findings(cluster), audit_findings(cluster)):
        assert found["no_live_copy"]["severity"] == "critical"
        assert "loss_accepted" not in found
    cluster.start_bookie(gone)  # it can come back as long as it has its cookie
    assert cluster.run("ledger", "read", lost[0]).exit_code == 0
    stop(cluster, gone)
    assert findings(cluster)["no_live_copy"]["severity"] == "critical"

    for each in kept:
        succeed(cluster, "ledger", "delete", each, "--confirm", each)
    accepted = run_pipeline(cluster, tmp_path, match[1] + " --yes -o table")
    assert accepted.returncode == 0, accepted
    assert " is accepted, whose metadata still names" in accepted.stdout + accepted.stderr, accepted
    for found in (findings(cluster), audit_findings(cluster)):
        assert "no_live_copy" not in found
        assert found["loss_accepted"]["finding"].startswith(f"{len(lost)} ledger")
    assert cluster.run("ledger", "explain", lost[0]).exit_code == 0


def test_the_printed_pipeline_lists_only_what_is_lost(start_cluster: Callable[[int], Cluster], tmp_path: Path) -> None:
    cluster = start_cluster(3)
    write(cluster, 3, ledgers=2)
    write(cluster, 1, ledgers=240)
    gone = cluster.bookies[0].id
    stop(cluster, gone)
    lost = succeed(cluster, "ledger", "list", "--bookie", gone, "--state", "lost", "-o", "name").stdout.split()
    assert len(lost) > 50
    assert set(lost) < set(succeed(cluster, "ledger", "list", "--bookie", gone, "-o", "name").stdout.split())
    other = cluster.bookies[1].id
    assert succeed(cluster, "ledger", "list", "--bookie", other, "--state", "lost", "-o", "name").stdout == ""
    assert cluster.run("ledger", "list", "--state", "lost").exit_code == 2
    left = cluster.run("decommission", gone, "--yes", "-o", "table")
    match = re.search("this accepts the loss: (.* && bkctl decommission [^;\n]*)", left.stdout + left.stderr)
    assert match is not None, left
    accepted = run_pipeline(cluster, tmp_path, match[1] + " --yes -o table")
    assert accepted.returncode == 1, accepted
    assert sorted((tmp_path / "lost-ledgers").read_text().split()) == sorted(lost)


def test_open_and_closed_ledgers_without_a_live_copy(start_cluster: Callable[[int], Cluster], tmp_path: Path) -> None:
    """The loss of the open ones is accepted when they are closed: before that, their bookie cannot be removed."""
    cluster = start_cluster(3)
    write(cluster, 1, ledgers=30)  # on all of the bookies
    holders: dict[str, list[str]] = {}
    for each in asyncio.run(leave_open(cluster.metadata_uri, 9)):
        holders.setdefault(ensemble_of(cluster, each)[0], []).append(each)
    gone, opened = min(holders.items(), key=lambda each: len(each[1]))
    stop(cluster, gone)
    found = findings(cluster)
    assert found["no_live_copy"]["finding"].endswith(f"; start {gone}")
    cluster.erase_bookie(gone)
    answer = opened[0] if len(opened) == 1 else len(opened)
    for consent in (f"--confirm {answer} --grace 0s", "--yes"):
        last = findings(cluster)["bookies_down"]
        assert "if its disks are lost, accept the loss" in last["finding"]
        assert last["command"] in [each["command"] for each in audit_findings(cluster).values()]
        result = run_pipeline(cluster, tmp_path, f"{last['command']} {consent} -o table")
        assert result.returncode == 0, result
    assert findings(cluster).keys() == {"no_auditor", "loss_accepted"}


async def leave_open(metadata_uri: str, ledgers: int) -> list[str]:
    """Open ledgers of one copy, whose writers are gone."""
    async with await LedgerClient.connect(metadata_uri) as client:
        one_copy = partial(client.create, ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)
        writers = [await one_copy() for _ in range(ledgers)]
        for writer in writers:
            await writer.append(b"entry")
        return [str(writer.ledger_id) for writer in writers]


def test_a_bookie_that_lost_its_cookie_and_then_its_process_is_down_for_every_screen(
    start_cluster: Callable[[int], Cluster],
) -> None:
    """Only ledgers name it. Java's ``cookie_delete`` does not ask them."""
    cluster = start_cluster(4)
    write(cluster, 2, ledgers=8)
    gone = ensemble_of(cluster, "0")[0]
    delete_node(cluster, f"cookies/{gone}")
    for all_found in (findings(cluster), audit_findings(cluster)):
        sentence = all_found["bookies_without_cookie"]["finding"]
        assert sentence.startswith(f"bookie {gone} is registered without a cookie")
    cluster.stop_bookie(gone)
    for found in (findings(cluster)["bookies_down"], audit_findings(cluster)["at_risk"]):
        assert found["command"] == f"bkctl recover failed-bookie {gone}"
    shown = succeed(cluster, "bookie", "show", gone, "-o", "json").json()
    assert (shown["state"], "bkctl cookie create --from-config" in shown["cookie_problem"]) == ("down", True)
    run_printed(cluster, found["command"], "--yes")
    assert "bookies_down" not in findings(cluster)
    assert cluster.run("bookie", "show", gone).exit_code == 4


def test_a_removal_that_lacks_targets_does_not_ask_for_the_start_of_what_is_lost(
    start_cluster: Callable[[int], Cluster], tmp_path: Path
) -> None:
    cluster = start_cluster(3)
    write(cluster, 3)
    write(cluster, 1, ledgers=40)
    gone = cluster.bookies[0].id
    stop(cluster, gone)
    lost = succeed(cluster, "ledger", "list", "--bookie", gone, "--state", "lost", "-o", "name").stdout
    (tmp_path / "lost").write_text(lost)
    accept = ("decommission", gone, "--accept-loss", gone, "--from-file", str(tmp_path / "lost"))
    left = cluster.run(*accept, "--yes", "-o", "json")
    assert left.exit_code == 1, "nothing was moved"
    assert "1 has no bookie to copy to (add a bookie)" in left.json()["verdict"]
    planned = cluster.run(*accept, "-n", "-o", "json")
    assert "; add a bookie" in str(planned.json()["findings"])
    assert "start " not in str(planned.json()["findings"])


def test_copies_without_a_target_get_the_same_way_out_from_every_command(
    start_cluster: Callable[[int], Cluster],
) -> None:
    """A bookie that an operator set read-only is there at once; the start of the lost one may be impossible."""
    cluster = start_cluster(4)
    resting, gone = (each.id for each in cluster.bookies[:2])
    succeed(cluster, "bookie", "set-mode", "read-only", resting, "--yes")
    write(cluster, 3, ledgers=2)
    stop(cluster, gone)
    words = f"make {resting} writable, which an operator set read-only"
    command = f"bkctl bookie set-mode writable {resting}"
    recover = ("recover", "failed-bookie", gone)
    assert words in str(cluster.run(*recover, "-n", "-o", "json").json()["findings"])
    assert words in cluster.run(*recover, "--yes", "-o", "json").json()["verdict"]
    assert words in findings(cluster)["bookies_down"]["finding"]
    assert command in {each["command"] for each in audit_findings(cluster).values()}
    run_printed(cluster, command, "--yes")
    succeed(cluster, *recover, "--yes")
