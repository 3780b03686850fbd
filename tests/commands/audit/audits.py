"""A large cluster in a ZooKeeper of its own, and audits that are met in their middle."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, NamedTuple

import msgspec

from bkctl.runtime.metadata.zookeeper.embedded import EmbeddedZooKeeper
from tests.processes import COMMAND_TIMEOUT_S, LOOPBACK, bkctl_command, bkctl_environment
from tests.snapshot_files import SampleCluster
from tests.spark_cluster import SparkCluster
from tests.until import wait_until
from tests.zookeeper_servers import ZooKeeperServer, packets_received

CLUSTER = SampleCluster(ledgers=3_000, session_timeout_ms=3_600_000)
RATE = "60"
"""Slow enough to be met in the middle: a request is for at most seven ledgers."""
REQUESTS = CLUSTER.ledgers // 7
"""At least as many are needed."""
TIMES = {"seconds": 0, "judged_at": 0}


class AuditedServer(NamedTuple):
    server: EmbeddedZooKeeper | ZooKeeperServer
    directory: Path
    host: str = LOOPBACK

    @property
    def uri(self) -> str:
        return f"zk://{self.host}:{self.server.port}/ledgers"

    def config(self, outage_max_s: float) -> str:
        path = self.directory / "config.toml"
        path.write_text(
            f"[zookeeper]\noperation_timeout_s = 2\nsession_timeout_ms = 4000\n"
            f"[replication]\nmetadata_outage_max_s = {outage_max_s}\n"
        )
        return str(path)

    def reads(self) -> int:
        """Requests that the server has received so far, this question included."""
        return packets_received(self.server.port)

    def wait_for_reads(self, count: int, audit: subprocess.Popen[bytes]) -> None:
        """Until the audit, which runs, has sent so many more."""
        enough, questions = self.reads() + count, itertools.count(1)  # questions count too
        wait_until(lambda: self.reads() - next(questions) >= enough, f"{count} more reads", process=audit)


class Running(NamedTuple):
    process: subprocess.Popen[bytes]
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
        process = subprocess.Popen(  # in the network of this thread
            bkctl_command("audit", "-o", "json", "--metadata-uri", audited.uri, "--zk-rate", RATE, *arguments),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env=bkctl_environment(**environment),
        )
        try:
            audited.wait_for_reads(REQUESTS // 4, process)
            yield Running(process, stdout, stderr)
        finally:
            process.kill()
            process.wait()


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


def executors_of(cluster: SparkCluster) -> list[int]:
    return [pid for worker in cluster.worker_pids for pid in processes_of(worker, b"CoarseGrainedExecutorBackend")]
