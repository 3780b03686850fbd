"""ZooKeeper is set back to an older copy of its data: real servers, real bookies."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.processes import Cluster, DevCluster, kill_and_wait
from tests.until import wait_until
from tests.zookeeper_servers import Ensemble

LEDGERS = 10
DEADLINE_S = 60.0


def fill(cluster: Cluster) -> list[str]:
    """Ids of new closed ledgers that both bookies have."""
    wrote = cluster.run(
        *("ledger", "write-test", "--ledgers", str(LEDGERS), "--entries", "3", "-E", "2", "-W", "2", "-A", "2"),
        *("-o", "json"),
    )
    assert wrote.exit_code == 0, wrote.stderr
    return [each["ledger_id"] for each in wrote.json()["items"]]


def collect(cluster: Cluster) -> int:
    """Force a round on each bookie; how many ledgers all bookies have deleted since they were started."""
    deleted = 0
    for bookie in cluster.bookies:
        assert cluster.run("bookie", "gc", "run", bookie.id).exit_code == 0
        wait_until(lambda: not status(cluster, bookie.id)["forced"])  # noqa: B023  called at once
        metrics = cluster.run("bookie", "metrics", bookie.id, "--grep", "bookie_DELETED_LEDGER_TOTAL", "-o", "json")
        deleted += sum(int(each["value"]) for each in metrics.json()["items"])
    return deleted


def status(cluster: Cluster, bookie_id: str) -> dict[str, object]:
    """The answer of ``bookie gc status``."""
    shown = cluster.run("bookie", "gc", "status", bookie_id, "-o", "json")
    assert shown.exit_code == 0, shown.stderr
    answer: dict[str, object] = shown.json()
    return answer


def put(directory: Path, aside: Path) -> None:
    """Replace a directory by a copy of another."""
    shutil.rmtree(directory)
    shutil.copytree(aside, directory)


@pytest.mark.battery
@pytest.mark.parametrize("is_killed", [False, True])
def test_bookies_delete_nothing_when_zookeeper_is_set_back(
    start_dev_cluster: Callable[[int], DevCluster], tmp_path: Path, is_killed: bool
) -> None:
    """Without the confirmation of an operator. With the newer metadata, all ledgers can be read again."""
    cluster = start_dev_cluster(2)
    server = Path(cluster.directory) / "zookeeper"
    fill(cluster)
    cluster.down()
    shutil.copytree(server, tmp_path / "older")
    cluster.up(2)
    newer = fill(cluster)
    if is_killed:
        for bookie in cluster.bookies:
            kill_and_wait(bookie.pid)
    cluster.down()
    shutil.copytree(server, tmp_path / "newer")
    put(server, tmp_path / "older")
    cluster.up(2)
    assert collect(cluster) == 0
    require_stopped(cluster)
    cluster.down()
    put(server, tmp_path / "newer")
    cluster.up(2)
    assert collect(cluster) == 0
    verified = cluster.run("ledger", "verify", "--all", "-o", "json")
    assert (verified.exit_code, verified.json()["ledgers"]) == (0, 2 * LEDGERS), verified.stdout
    assert status(cluster, cluster.bookies[0].id)["deletion_stopped"] is None
    assert cluster.run("ledger", "delete", newer[0], "--confirm", newer[0]).exit_code == 0
    assert collect(cluster) == 2
    cluster.down()
    put(server, tmp_path / "older")
    cluster.up(2)
    require_stopped(cluster)
    confirm(cluster)
    cluster.down()
    cluster.up(2)
    assert collect(cluster) == 2 * (LEDGERS - 1)


def confirm(cluster: Cluster) -> None:
    """An operator lets each bookie delete again."""
    for bookie in cluster.bookies:
        plan = cluster.run("bookie", "gc", "confirm", bookie.id, "-n", "-o", "json").json()
        (item,) = plan["items"]
        assert "it also deletes its copies of closed ledgers" in plan["summary"][1]
        assert item["stopped_since_ms"] > 0  # what makes the plan that of this incident
        confirmed = cluster.run("bookie", "gc", "confirm", bookie.id, "--confirm", bookie.id, "-o", "json")
        assert (confirmed.exit_code, confirmed.json()["changed"]) == (0, True), confirmed.stderr


def require_stopped(cluster: Cluster) -> None:
    """Each bookie shows that it deletes nothing, and so do the checks of the cluster."""
    for bookie in cluster.bookies:
        assert "it is older than it was" in str(status(cluster, bookie.id)["deletion_stopped"])
    found = cluster.run("status", "-o", "json").json()["findings"]
    (finding,) = (each for each in found if each["part"] == "deletion_stopped")
    assert all(bookie.id in finding["finding"] for bookie in cluster.bookies)
    examined = cluster.run("metadata", "doctor", "-o", "json").json()["findings"]
    assert sum(each["rule"] == "deletion-stopped" for each in examined) == 2


@pytest.mark.battery
def test_bookies_delete_nothing_after_a_restore(start_cluster: Callable[[int], Cluster], tmp_path: Path) -> None:
    """The transactions of ZooKeeper go on, but the metadata is that of the backup."""
    cluster, backup = start_cluster(2), str(tmp_path / "backup.jsonl.gz")
    fill(cluster)
    assert cluster.run("cluster", "backup", backup).exit_code == 0
    fill(cluster)
    cluster.down()
    instance_id = cluster.run("cluster", "instance-id", "-o", "name").stdout.strip()
    assert cluster.run("cluster", "nuke", "--confirm", instance_id).exit_code == 0
    restored = cluster.run("cluster", "restore", backup, "--confirm", instance_id)
    assert restored.exit_code == 0, restored.stderr
    for _ in range(2):  # the second time, the bookies have been restarted
        cluster.up(2)
        assert collect(cluster) == 0
        assert "the backup of " in str(status(cluster, cluster.bookies[0].id)["deletion_stopped"])
        cluster.down()
    assert "bookies of bkctl delete no ledgers until bkctl bookie gc confirm is run" in restored.stderr
    assert "Java bookies delete" in restored.stderr
    cluster.up(2)
    confirm(cluster)
    for bookie in cluster.bookies:
        again = cluster.run("bookie", "gc", "confirm", bookie.id, "--confirm", bookie.id, "-o", "json")
        assert (again.exit_code, again.json()["changed"]) == (0, False), again.stderr
    assert collect(cluster) == 2 * LEDGERS


@pytest.mark.battery
def test_three_servers_that_are_set_back_elect_a_leader_whose_transactions_have_higher_ids(tmp_path: Path) -> None:
    """So only the notes of the bookies show that the metadata is older."""
    aside, servers = tmp_path / "older", tmp_path / "zookeeper"
    with Ensemble(servers) as ensemble:
        cluster = Cluster(str(tmp_path / "bookies"), ensemble.metadata_uri("/ledgers"))
        try:
            cluster.up(2)
            fill(cluster)
            cluster.down()
            for server in ensemble.servers:
                server.halt()
            shutil.copytree(servers, aside)
            for server in ensemble.servers:
                server.go_on()
            ensemble.start()
            cluster.up(2)
            fill(cluster)
            cluster.down()
            ensemble.kill()
            put(servers, aside)
            ensemble.start()
            cluster.up(2)
            assert collect(cluster) == 0
            assert "has note" in str(status(cluster, cluster.bookies[0].id)["deletion_stopped"])
            require_stopped(cluster)
            confirm(cluster)
            assert collect(cluster) == 2 * LEDGERS
        finally:
            cluster.stop()
