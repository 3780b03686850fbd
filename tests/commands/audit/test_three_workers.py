"""``bkctl audit --spark`` on a Spark cluster of three hosts with networks of their own."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.commands.audit.audits import CLUSTER, RATE, REQUESTS, TIMES, AuditedServer, auditing, executors_of
from tests.hosts import Network, network_of
from tests.orphans import OrphanKiller
from tests.processes import COMMAND_TIMEOUT_S, free_port, spawn_bkctl
from tests.snapshot_files import write_for_server
from tests.spark_cluster import SparkCluster, spark_cluster
from tests.zookeeper_servers import ZooKeeperServer

pytestmark = [pytest.mark.cluster, pytest.mark.battery]


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    with network_of(3) as hosts:
        yield hosts


@pytest.fixture(scope="module")
def three_workers(network: Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with spark_cluster(tmp_path_factory.mktemp("three-workers"), network=network) as running:
        yield running


@pytest.fixture
def audited(network: Network, tmp_path: Path) -> Iterator[AuditedServer]:
    """Every host reaches its ZooKeeper, but not by a loopback address."""
    write_for_server(tmp_path, CLUSTER)
    port = free_port()
    server = ZooKeeperServer(tmp_path, {"clientPort": str(port)}, {}, port)
    with OrphanKiller() as orphans:
        server.start()
        orphans.watch(server.pid)
        try:
            server.wait_for_mode("standalone")
            yield AuditedServer(server, tmp_path, network.address)
        finally:
            server.kill()


@contextlib.contextmanager
def reads_by_time(
    audited: AuditedServer, workers: SparkCluster
) -> Iterator[tuple[list[tuple[float, int, float]], set[int]]]:
    """What the server has received of others, ten times a second, while the block runs: before its question, the count,
    after its answer. And how many cores an application had; once it has ended, the master counts those that are left.
    """
    found: list[tuple[float, int, float]] = []
    cores: set[int] = set()
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(0.1):
            found.append((time.monotonic(), audited.reads() - len(found), time.monotonic()))
            cores.update(each["cores"] for each in workers.state()["activeapps"])

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield found, cores
    finally:
        is_over.set()
        watcher.join()


def test_three_workers_together_keep_the_budget(
    audited: AuditedServer, three_workers: SparkCluster, network: Network
) -> None:
    assert sorted(each["host"] for each in three_workers.state()["workers"]) == [each.address for each in network.hosts]
    with reads_by_time(audited, three_workers) as (found, cores):
        done = spawn_bkctl(
            *("audit", "-o", "json", "--metadata-uri", audited.uri, "--zk-rate", RATE),
            *("--spark", "--master", three_workers.url),
            timeout_s=COMMAND_TIMEOUT_S,
            **three_workers.variables,
        )
    assert done.exit_code == 10, done.stderr + three_workers.logs
    assert max(cores) == 3
    end = found[-1][1]
    begin_s, begin, _ = next(each for each in reversed(found) if each[1] < end - REQUESTS)
    end_s = next(seconds for _, requests, seconds in found if requests >= end - REQUESTS // 10)
    # A slow machine only takes longer, also for an answer. Three executors that do not share would read three times as
    # fast.
    assert end - REQUESTS // 10 - begin <= 1.1 * int(RATE) * (end_s - begin_s)


def test_of_three_workers_one_is_killed_and_one_is_slow(
    audited: AuditedServer, three_workers: SparkCluster, tmp_path: Path
) -> None:
    expected = spawn_bkctl("audit", "-o", "json", "--metadata-uri", audited.uri)
    out = tmp_path / "report"
    where = ("--spark", "--master", three_workers.url, "--out", str(out))
    with auditing(audited, *where, variables=three_workers.variables) as running:
        _, slow, _ = executors_of(three_workers)
        os.kill(three_workers.worker_pids[0], signal.SIGKILL)
        os.kill(slow, signal.SIGSTOP)
        time.sleep(6)
        os.kill(slow, signal.SIGCONT)
        exit_code, report, messages = running.end()
    assert exit_code == 10, messages + three_workers.logs
    different = TIMES | {"out": None}
    assert report | different == expected.json() | different
    assert all(each.name.endswith(".parquet") for each in (out / "write_sets").iterdir())
