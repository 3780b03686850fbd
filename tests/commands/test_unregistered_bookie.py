"""A bookie that serves but may not register again: no command says to copy what it has, or to start it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.commands.test_advice import ensemble_of, findings, run_printed, write
from tests.processes import BookieProcess, Cluster
from tests.until import wait_until
from tests.zookeeper_permissions import Permissions

pytestmark = pytest.mark.cluster

ANSWERS = "is not registered, but a bookie answers at its address"


def end_registration(cluster: Cluster, permissions: Permissions, bookie_id: str) -> None:
    """Its session ends, and it may not register again; it goes on serving."""
    permissions.end_registration(bookie_id, cluster.bookie(bookie_id).pid)
    wait_until(lambda: "no permission" in cluster.run("bookie", "state", bookie_id).stdout)


def test_it_is_not_recovered(start_cluster: Callable[[int], Cluster]) -> None:
    cluster = start_cluster(4)
    single = write(cluster, 1)
    (bookie_id,) = ensemble_of(cluster, single)
    write(cluster, 2, ledgers=20)
    permissions = Permissions(cluster.metadata_uri)
    try:
        end_registration(cluster, permissions, bookie_id)
        for command in (("status",), ("audit",)):
            found = {each["part"]: each for each in cluster.run(*command, "-o", "json").json()["findings"]}
            assert found["bookies_unregistered"]["finding"].startswith(f"bookie {bookie_id} {ANSWERS}"), command
            assert "no permission" in run_printed(cluster, found["bookies_unregistered"]["command"]).stdout
            for each in found.values():
                assert "bkctl recover" not in json.dumps(each), each
                assert f"start {bookie_id}" not in each["finding"], each
            shown = cluster.run(*command, "-o", "table").stdout
            cause = f"critical: bookie {bookie_id} {ANSWERS}"
            assert shown.startswith(cause), "what else is wrong follows from it"
            assert "recover failed-bookie" not in shown, shown
        doctor = cluster.run("metadata", "doctor", "-o", "json").stdout
        assert f"Bookie {bookie_id} {ANSWERS}" in doctor
        assert "recover failed-bookie" not in doctor, doctor
        explained = cluster.run("ledger", "explain", single, "-o", "json").json()
        text = json.dumps(explained["next_steps"])
        assert f"bookie {bookie_id} {ANSWERS}" in text
        assert not any(word in text for word in ("recover failed-bookie", f"start {bookie_id}", "delete")), text
        for words in (("recover",), ("decommission",), ("bookie", "drain")):
            for consent in ("-n", "-y"):
                refused = cluster.run(*words, bookie_id, consent)
                assert refused.exit_code == 3, (words, refused)
                assert f"bookie {bookie_id} {ANSWERS}" in refused.stderr, words
                assert "no permission" in run_printed(cluster, f"bkctl bookie state {bookie_id}").stdout
                assert refused.stderr.rstrip().endswith(f"bkctl bookie state {bookie_id}"), refused
    finally:
        permissions.lift(permissions.available)
        permissions.close()
    wait_until(lambda: findings(cluster).keys() == {"no_auditor"})


def test_it_is_the_reason_why_writers_stop(start_cluster: Callable[[int], Cluster]) -> None:
    cluster = start_cluster(3)
    write(cluster, 3, ledgers=5)
    permissions = Permissions(cluster.metadata_uri)
    bookie_id = cluster.bookies[0].id
    try:
        end_registration(cluster, permissions, bookie_id)
        for command in ("status", "audit"):
            found = {each["part"]: each for each in cluster.run(command, "-o", "json").json()["findings"]}
            assert next(iter(found)) == "bookies_unregistered", command
            assert found["bookies_unregistered"]["severity"] == "critical", command
            assert f"find out why {bookie_id} is not writable" in found["writers_stop"]["finding"], command
            assert found["writers_stop"]["command"] == f"bkctl bookie state {bookie_id}", command
    finally:
        permissions.lift(permissions.available)
        permissions.close()


def test_a_bookie_whose_address_another_one_has_now_is_recovered(
    start_cluster: Callable[[int], Cluster], tmp_path: Path
) -> None:
    cluster = start_cluster(3)
    write(cluster, 2, ledgers=6)
    lost = cluster.bookies[0]
    cluster.stop_bookie(lost.id)
    newcomer = BookieProcess("newcomer", 0, lost.port, str(tmp_path), f"{tmp_path}/bookie.log")
    cluster.bookies.append(newcomer)
    cluster.start_bookie(newcomer.id)
    assert findings(cluster)["bookies_down"]["command"] == f"bkctl recover failed-bookie {lost.id}"
    recovered = cluster.run("recover", lost.id, "-y")
    assert recovered.exit_code == 0, recovered
