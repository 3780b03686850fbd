"""A node of ZooKeeper that this user may not read: no permission, in one sentence with its subject and what helps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.commands.test_advice import ensemble_of, run_printed, write
from tests.processes import Cluster
from tests.recovery_daemons import RecoveryDaemon
from tests.until import wait_until
from tests.zookeeper_permissions import Permissions

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize("below", ["available", "cookies", "INSTANCEID"])
def test_status_doctor_and_audit_without_permission(cluster: Cluster, below: str) -> None:
    permissions = Permissions(cluster.metadata_uri)
    path = f"{permissions.root}/{below}"
    try:
        permissions.limit(path, write=True)
        status = cluster.run("status", "-o", "json")
        assert status.exit_code == 11, status
        (found,) = [each for each in status.json()["findings"] if f" unknown: {path}: no permission" in each["finding"]]
        assert found["finding"].endswith(
            "(zookeeper.sasl or zookeeper.digest), or let this user in (zkCli: getAcl, setAcl)"
        )
        for each in status.json()["findings"]:
            if each["part"] != "no_auditor":
                run_printed(cluster, each["command"])
        doctor = cluster.run("metadata", "doctor", "-o", "json")
        assert doctor.exit_code == 11, doctor
        assert (path, "warning") in {(each["path"], each["severity"]) for each in doctor.json()["findings"]}
        for words in (("--severity", "critical"), ("--rule", "bookie-down"), ("--rule", "bookie-down", "-o", "jsonl")):
            doctor = cluster.run("metadata", "doctor", *words)
            assert doctor.exit_code == 11, (words, doctor)
            assert path in doctor.stdout, "what could not be read is no reason to call the rest clean"
        for _ in range(4):
            audited = cluster.run("audit")
            assert audited.exit_code == 11, audited
            assert audited.stderr.startswith(f"error: {path}: no permission"), audited
            assert audited.stderr.count("\n") == 1, audited
    finally:
        permissions.lift(path)
        permissions.close()


@pytest.mark.parametrize("below", ["00", "LAYOUT"])
def test_ledgers_without_permission_while_a_bookie_is_down(cluster: Cluster, below: str) -> None:
    write(cluster, 2)
    cluster.stop_bookie(cluster.bookies[0].id)
    permissions = Permissions(cluster.metadata_uri)
    path = f"{permissions.root}/{below}"
    try:
        permissions.limit(path, write=True)
        status = cluster.run("status", "-o", "json")
        found = {each["part"]: each for each in status.json()["findings"]}
        assert found["ledgers"]["finding"].startswith(
            f"the ledgers of bookies that are down are unknown: {path}: no perm"
        )
        assert {found[part]["command"] for part in ("ledgers", "bookies_down")} == {"bkctl help exit-codes"}
        assert status.exit_code in {11, 14}, "14: without an auditor, a bookie that is down is critical"
    finally:
        permissions.lift(path)
        permissions.close()


def test_one_ledger_without_permission_does_not_hide_the_others_of_a_bookie_that_is_down(
    start_cluster: Callable[[int], Cluster],
) -> None:
    cluster = start_cluster(4)
    write(cluster, 2, ledgers=8)
    permissions = Permissions(cluster.metadata_uri)
    path = f"{permissions.root}/00/0000/L0000"
    down = ensemble_of(cluster, "1")[0]
    cluster.stop_bookie(down)
    permissions.limit(path)
    try:
        status = cluster.run("status", "-o", "json")
    finally:
        permissions.lift(path)
        permissions.close()
    found = {each["part"]: each for each in status.json()["findings"]}
    assert found["bookies_down"]["command"] == f"bkctl recover failed-bookie {down}"
    assert found["ledgers"]["finding"].startswith(f"the ledgers of bookies that are down are unknown: {path}: no perm")
    assert "no_live_copy_unknown" not in found, "that is why"
    assert status.exit_code in {11, 14}, status


def test_a_drain_leaves_a_ledger_that_this_user_may_not_read(start_cluster: Callable[[int], Cluster]) -> None:
    cluster = start_cluster(4)
    write(cluster, 3, ledgers=4)
    bookie = cluster.bookies[0].id
    permissions = Permissions(cluster.metadata_uri)
    *_, path = permissions.tree(f"{permissions.root}/00")
    permissions.limit(path)
    drain = ("bookie", "drain", bookie, "-o", "json")
    try:
        planned = cluster.run(*drain, "-n")
        assert (planned.exit_code, planned.json()["ledgers_unreadable"]) == (10, 1), planned
        left = cluster.run(*drain, "--yes")
        assert left.exit_code == 11, left
        assert [failure["count"] for failure in left.json()["failures"]] == [1]
        assert f"{path}: no permission" in left.json()["verdict"]
        assert left.json()["ledgers_repaired"] == planned.json()["ledgers"]
        assert cluster.run(*drain, "-n").json()["ledgers"] == 0
    finally:
        permissions.lift(path)
        permissions.close()
    assert cluster.run(*drain, "--yes").json()["remaining_ledgers"] == []


def test_ledgers_that_this_user_may_not_change_are_left_with_the_reason(
    start_cluster: Callable[[int], Cluster],
) -> None:
    cluster = start_cluster(4)
    write(cluster, 3, ledgers=4)
    bookie = cluster.bookies[0].id
    permissions = Permissions(cluster.metadata_uri)
    nodes = list(permissions.tree(f"{permissions.root}/00"))
    for each in nodes:
        permissions.limit(each, read=True)
    drain = ("bookie", "drain", bookie, "--yes", "--accept-risk")
    refused = cluster.run(*drain)
    assert refused.exit_code == 11, refused
    assert " may not be changed by this user (ZooKeeper refuses the change: " in refused.json()["verdict"]
    assert f"{permissions.root}/00/" in refused.json()["verdict"]
    assert ": no permission: the node's ACL is for other users; log in as one of them" in refused.json()["verdict"]
    (failures,) = refused.json()["failures"]
    assert (failures["reason"], failures["count"]) == ("ZooKeeper refuses the change", len(failures["ledger_ids"]))
    for each in nodes:
        permissions.lift(each)
    permissions.close()
    assert cluster.run(*drain).exit_code == 0


def test_one_ledger_without_permission_stops_no_check_of_the_others(
    start_cluster: Callable[[int], Cluster], tmp_path: Path
) -> None:
    """Neither ``ledger verify`` nor an auditor: else a lost bookie would be noticed, and no ledger of it marked."""
    cluster = start_cluster(4)
    write(cluster, 3, ledgers=4)
    dead = ensemble_of(cluster, "1")[0]
    permissions = Permissions(cluster.metadata_uri)
    *_, path = permissions.tree(f"{permissions.root}/00")
    refused = path[-1]
    permissions.limit(path)
    daemon = RecoveryDaemon(cluster.metadata_uri, tmp_path / "daemon", BKCTL_AUTORECOVERY_LOST_BOOKIE_DELAY_S="0")

    def references() -> set[str]:
        return set(cluster.run("ledger", "list", "--bookie", dead, "-o", "name").stdout.split())

    try:
        verified = cluster.run("ledger", "verify", "--all", "-o", "json")
        assert verified.exit_code == 11, verified
        assert (verified.json()["ledgers"], verified.json()["ledgers_clean"]) == (4, 3)
        (bad,) = verified.json()["items"]
        assert (bad["ledger_id"], bad["problem"].partition(": ")[0]) == (refused, path)
        assert verified.stderr.startswith(f"error: {path}: no permission"), verified
        assert references() - {refused}
        cluster.stop_bookie(dead)
        deleted = cluster.run("cookie", "delete", dead, "--yes")
        assert (deleted.exit_code, f"{path}: no permission" in deleted.stderr) == (11, True)
        assert "--unreadable" not in deleted.stderr, "the ledger may be in order"
        daemon.start()
        wait_until(lambda: references() <= {refused}, "autorecovery replaces the bookie in all other ledgers")
    finally:
        daemon.stop()
        permissions.lift(path)
        permissions.close()
