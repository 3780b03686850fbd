"""``bkctl audit`` while ZooKeeper stands still or is gone, and while processes of Spark are killed."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from bkctl.runtime.metadata.zookeeper.embedded import EmbeddedZooKeeper
from tests.commands.audit.audits import (
    CLUSTER,
    TIMES,
    AuditedServer,
    auditing,
    executors_of,
    processes_of,
)
from tests.hosts import Host, on_loopback
from tests.processes import run_bkctl
from tests.snapshot_files import write_for_server
from tests.spark_cluster import SparkCluster, spark_cluster

pytestmark = pytest.mark.cluster

ON_SPARK = ("--spark", "--cores", "1")
WAYS = [(), pytest.param(ON_SPARK, marks=pytest.mark.battery)]


@pytest.fixture
async def audited(tmp_path: Path) -> AsyncIterator[AuditedServer]:
    write_for_server(tmp_path, CLUSTER)
    async with await EmbeddedZooKeeper.start(str(tmp_path)) as server:
        yield AuditedServer(server, tmp_path)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.battery
def test_an_outage_only_delays_the_report(audited: AuditedServer, way: tuple[str, ...]) -> None:
    expected = run_bkctl("audit", "-o", "json", "--metadata-uri", audited.uri)
    with auditing(audited, *way) as running:
        os.kill(audited.server.pid, signal.SIGSTOP)
        time.sleep(6)
        os.kill(audited.server.pid, signal.SIGCONT)
        exit_code, report, messages = running.end()
    assert exit_code == expected.exit_code == 10, messages
    assert report | TIMES == expected.json() | TIMES
    assert report["ledgers"] == CLUSTER.ledgers
    assert way or "ZooKeeper answers again" in messages


@pytest.mark.parametrize("way", WAYS)
def test_without_zookeeper_there_is_no_report(audited: AuditedServer, way: tuple[str, ...], tmp_path: Path) -> None:
    out = tmp_path / "report"
    with auditing(audited, *way, "--out", str(out), outage_max_s=3) as running:
        os.kill(audited.server.pid, signal.SIGKILL)
        exit_code, report, messages = running.end()
    assert exit_code == 6
    assert report is None
    assert "ZooKeeper was unavailable for over 3 s" in messages
    assert "Traceback" not in messages
    assert not out.exists()


@pytest.mark.battery
def test_a_lost_python_process_on_this_machine_fails_the_audit(audited: AuditedServer) -> None:
    with auditing(audited, *ON_SPARK) as running:
        for pid in processes_of(running.process.pid, b"pyspark.daemon"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        exit_code, report, messages = running.end()
    assert exit_code not in {0, 10}
    assert report is None
    assert "a Python process of an executor ended in the middle" in messages
    assert "Traceback" not in messages


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with spark_cluster(tmp_path_factory.mktemp("spark-cluster")) as running:
        yield running


def kill_executor(cluster: SparkCluster) -> None:
    os.kill(executors_of(cluster)[0], signal.SIGKILL)


def kill_python(cluster: SparkCluster) -> None:
    daemons = [pid for worker in cluster.worker_pids for pid in processes_of(worker, b"pyspark.daemon")]
    for pid in daemons:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.battery
@pytest.mark.parametrize("strike", [kill_executor, kill_python])
def test_a_lost_executor_of_a_cluster_only_costs_time(
    audited: AuditedServer, cluster: SparkCluster, strike: Callable[[SparkCluster], None], tmp_path: Path
) -> None:
    expected = run_bkctl("audit", "-o", "json", "--metadata-uri", audited.uri)
    out = tmp_path / "report"
    where = ("--spark", "--master", cluster.url, "--out", str(out))
    with auditing(audited, *where, variables=cluster.variables) as running:
        strike(cluster)
        exit_code, report, messages = running.end()
    assert exit_code == 10, messages + cluster.logs
    different = TIMES | {"out": None}
    assert report | different == expected.json() | different
    assert all(each.name.endswith(".parquet") for each in (out / "write_sets").iterdir())


@pytest.mark.battery
def test_a_worker_that_comes_later_gets_no_share_of_the_budget(audited: AuditedServer, tmp_path: Path) -> None:
    with (
        spark_cluster(tmp_path / "growing", network=on_loopback("127.0.0.2")) as growing,
        auditing(
            audited, "--spark", "--master", growing.url, "--zk-rate", "30", variables=growing.variables
        ) as running,
    ):
        os.kill(audited.server.pid, signal.SIGSTOP)  # the audit is not over before the worker has started
        growing.add_worker(Host("127.0.0.3", ()))
        os.kill(audited.server.pid, signal.SIGCONT)
        audited.wait_for_reads(CLUSTER.ledgers // 100, running.process)
        (application,) = growing.state()["activeapps"]
        assert (application["cores"], growing.state()["cores"]) == (1, 2)
