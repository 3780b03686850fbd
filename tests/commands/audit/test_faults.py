"""``bkctl audit`` while ZooKeeper stands still or is gone, and while processes of Spark are killed."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, NamedTuple

import msgspec
import pytest

from bkctl.runtime.metadata.zookeeper.embedded import EmbeddedZooKeeper
from tests.processes import COMMAND_TIMEOUT_S, BkctlProcess, run_bkctl, start_bkctl
from tests.snapshot_files import SampleCluster, write_for_server
from tests.spark_cluster import SparkCluster, spark_cluster
from tests.zookeeper_servers import four_letters

pytestmark = pytest.mark.cluster

CLUSTER = SampleCluster(ledgers=3_000, session_timeout_ms=3_600_000)
RATE = "60"
"""Slow enough to be met in the middle: a request is for at most seven ledgers."""
REQUESTS = CLUSTER.ledgers // 7
"""At least as many are needed."""
ON_SPARK = ("--spark", "--cores", "1")
WAYS = [(), pytest.param(ON_SPARK, marks=pytest.mark.battery)]
TIMES = {"seconds": 0, "judged_at": 0}


class AuditedServer(NamedTuple):
    server: EmbeddedZooKeeper
    directory: Path

    @property
    def uri(self) -> str:
        return f"zk://{self.server.connect_string}/ledgers"

    def config(self, outage_max_s: float) -> str:
        path = self.directory / "config.toml"
        path.write_text(
            f"[zookeeper]\noperation_timeout_s = 2\nsession_timeout_ms = 4000\n"
            f"[replication]\nmetadata_outage_max_s = {outage_max_s}\n"
        )
        return str(path)

    def reads(self) -> int:
        """Requests that the server has received so far, this question included."""
        text = four_letters(self.server.port, b"srvr").decode()
        return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("Received: ")), 0)

    def wait_for_reads(self, count: int) -> None:
        deadline = time.monotonic() + COMMAND_TIMEOUT_S
        enough = self.reads() + count
        while self.reads() <= enough:
            enough += 1  # questions count too, and there are many of them while Spark starts
            assert time.monotonic() < deadline
            time.sleep(0.05)


@pytest.fixture
async def audited(tmp_path: Path) -> AsyncIterator[AuditedServer]:
    write_for_server(tmp_path, CLUSTER)
    async with await EmbeddedZooKeeper.start(str(tmp_path)) as server:
        yield AuditedServer(server, tmp_path)


class Running(NamedTuple):
    process: BkctlProcess
    stdout: IO[bytes]
    stderr: IO[bytes]

    def end(self) -> tuple[int, Any, str]:
        exit_code = self.process.wait(COMMAND_TIMEOUT_S)
        self.stdout.seek(0)
        self.stderr.seek(0)
        output = self.stdout.read()
        return exit_code, msgspec.json.decode(output) if output else None, self.stderr.read().decode()


@contextlib.contextmanager
def auditing(
    audited: AuditedServer,
    *arguments: str,
    outage_max_s: float = 600,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Running]:
    """An audit that has read some ledgers and has not read others."""
    environment = {"BKCTL_CONFIG": audited.config(outage_max_s), **variables}
    with open(os.memfd_create("stdout"), "w+b") as stdout, open(os.memfd_create("stderr"), "w+b") as stderr:
        process = start_bkctl(
            *("audit", "-o", "json", "--metadata-uri", audited.uri, "--zk-rate", RATE, *arguments),
            stdout=stdout,
            stderr=stderr,
            variables=environment,
        )
        try:
            audited.wait_for_reads(REQUESTS // 4)
            yield Running(process, stdout, stderr)
        finally:
            process.kill()
            process.wait()


@pytest.mark.parametrize("way", WAYS)
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


def descendants(pid: int) -> list[int]:
    """Processes below this one, the nearest first."""
    children: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            children += [int(each) for each in (task / "children").read_text().split()]
    return children + [each for child in children for each in descendants(child)]


def processes_of(pid: int, word: bytes) -> list[int]:
    found = []
    for each in descendants(pid):
        with contextlib.suppress(OSError):
            if word in Path(f"/proc/{each}/cmdline").read_bytes():
                found.append(each)
    return found


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


def executors_of(cluster: SparkCluster) -> list[int]:
    return [pid for worker in cluster.worker_pids for pid in processes_of(worker, b"CoarseGrainedExecutorBackend")]


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
        spark_cluster(tmp_path / "growing", hosts=("127.0.0.2",)) as growing,
        auditing(audited, "--spark", "--master", growing.url, "--zk-rate", "30", variables=growing.variables),
    ):
        growing.add_worker("127.0.0.3")
        audited.wait_for_reads(CLUSTER.ledgers // 100)
        (application,) = growing.state()["activeapps"]
        assert (application["cores"], growing.state()["cores"]) == (1, 2)


@pytest.fixture(scope="module")
def three_workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    hosts = ("127.0.0.2", "127.0.0.3", "127.0.0.4")
    with spark_cluster(tmp_path_factory.mktemp("three-workers"), hosts=hosts) as running:
        yield running


@contextlib.contextmanager
def reads_by_time(audited: AuditedServer) -> Iterator[list[tuple[float, int]]]:
    """What the server has received of others, ten times a second, while the block runs."""
    found: list[tuple[float, int]] = []
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(0.1):
            found.append((time.monotonic(), audited.reads() - len(found)))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield found
    finally:
        is_over.set()
        watcher.join()


@pytest.mark.battery
def test_three_workers_together_keep_the_budget(audited: AuditedServer, three_workers: SparkCluster) -> None:
    with reads_by_time(audited) as found:
        done = run_bkctl(
            *("audit", "-o", "json", "--metadata-uri", audited.uri, "--zk-rate", RATE),
            *("--spark", "--master", three_workers.url),
            timeout_s=COMMAND_TIMEOUT_S,
            **three_workers.variables,
        )
    assert done.exit_code == 10, done.stderr + three_workers.logs
    assert three_workers.state()["completedapps"][0]["cores"] == 3
    end = found[-1][1]
    begin_s, begin = next(each for each in reversed(found) if each[1] < end - REQUESTS)
    end_s = next(seconds for seconds, requests in found if requests >= end - REQUESTS // 10)
    # A slow machine only takes longer. Three executors that do not share would read three times as fast.
    assert end - REQUESTS // 10 - begin <= 1.1 * int(RATE) * (end_s - begin_s)


@pytest.mark.battery
def test_of_three_workers_one_is_killed_and_one_is_slow(
    audited: AuditedServer, three_workers: SparkCluster, tmp_path: Path
) -> None:
    expected = run_bkctl("audit", "-o", "json", "--metadata-uri", audited.uri)
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
