"""A standalone Spark cluster from pyspark's own jars: a master, and workers of one core on loopback or other hosts.

Its executors run a Python that has the libraries bkctl depends on and not bkctl itself, as on a user's cluster.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import urllib.request
import venv
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import kazoo

from tests.hosts import Host, Network, on_loopback
from tests.orphans import OrphanKiller
from tests.processes import LOOPBACK, free_port
from tests.until import wait_until

_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"
_JVM_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
_TWO_WORKERS = on_loopback(LOOPBACK, LOOPBACK)


def spark_home() -> str:
    """Where pyspark and its jars are."""
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.submodule_search_locations
    return spec.submodule_search_locations[0]


class SparkCluster:
    """Processes that run; ``variables`` are what a driver needs in its environment."""

    def __init__(self, directory: Path, settings: Mapping[str, str], network: Network) -> None:
        self.directory = directory
        self._network = network
        master_port, self._page_port = free_port(), free_port()
        self.url = f"spark://{network.address}:{master_port}"
        self._master_port = master_port
        self._processes: list[subprocess.Popen[bytes]] = []
        self.python = python_without_bkctl(directory / "python")
        (directory / "conf").mkdir(parents=True)
        defaults = {
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": _JVM_OPTIONS,
            "spark.driver.extraJavaOptions": _JVM_OPTIONS,
            "spark.driver.host": network.address,
            "spark.driver.bindAddress": network.address,
        } | dict(settings)
        lines = [f"{name} {value}\n" for name, value in defaults.items()]
        (directory / "conf" / "spark-defaults.conf").write_text("".join(lines))

    @property
    def variables(self) -> dict[str, str]:
        """Environment of a driver."""
        return {
            "SPARK_HOME": spark_home(),
            "SPARK_CONF_DIR": str(self.directory / "conf"),
            "SPARK_LOCAL_IP": self._network.address,
            "PYSPARK_PYTHON": self.python,
        }

    def start(self) -> None:
        """Until all workers have registered."""
        page = ["--webui-port", str(self._page_port)]
        here = Host(self._network.address, ())
        self._spawn("master", here, _MASTER, "--port", str(self._master_port), *page)
        for host in self._network.hosts:
            self._spawn_worker(host)
        self._wait_for_workers()

    def add_worker(self, host: Host) -> None:
        """Start one more, which stays."""
        self._spawn_worker(host)
        self._wait_for_workers()

    def _spawn_worker(self, host: Host) -> None:
        number = len(self._processes) - 1
        where = ["--webui-port", str(free_port()), "--work-dir", str(self.directory / f"work-{number}")]
        self._spawn(f"worker-{number}", host, _WORKER, *where, "--cores", "1", "--memory", "512m", self.url)

    def _wait_for_workers(self) -> None:
        def have_registered() -> bool:
            assert all(process.poll() is None for process in self._processes), self.logs
            return self._workers_alive() == len(self.worker_pids)

        wait_until(have_registered, "the workers register", tell=lambda: self.logs)

    def stop(self) -> None:
        """Kill the processes and the executors, which are in the groups of their workers."""
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    @property
    def pids(self) -> list[int]:
        """The master and the workers."""
        return [process.pid for process in self._processes]

    @property
    def worker_pids(self) -> list[int]:
        """The parents of the executors."""
        return [process.pid for process in self._processes[1:]]

    @property
    def logs(self) -> str:
        """The ends of all logs."""
        return "\n".join(f"{path}:\n{path.read_text()[-3000:]}" for path in sorted(self.directory.glob("*.log")))

    def state(self) -> Any:
        """What the master says about workers and applications."""
        with urllib.request.urlopen(f"http://{self._network.address}:{self._page_port}/json/", timeout=60) as answer:
            return json.load(answer)

    def _workers_alive(self) -> int:
        try:
            return sum(worker["state"] == "ALIVE" for worker in self.state()["workers"])
        except (OSError, json.JSONDecodeError):  # its first answer can be a page that it shows while it starts
            return 0

    def _spawn(self, name: str, host: Host, program: str, *arguments: str) -> None:
        own = {"SPARK_DAEMON_JAVA_OPTS": _JVM_OPTIONS, "SPARK_LOCAL_IP": host.address}
        command = [os.path.join(spark_home(), "bin", "spark-class"), program, "--host", host.address, *arguments]
        with open(self.directory / f"{name}.log", "ab") as log:
            self._processes.append(
                subprocess.Popen(
                    [*host.enter, *command],
                    cwd=self.directory,
                    env={**os.environ, **self.variables, **own},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    process_group=0,
                )
            )


@contextlib.contextmanager
def spark_cluster(
    directory: Path, settings: Mapping[str, str] | None = None, network: Network = _TWO_WORKERS
) -> Iterator[SparkCluster]:
    """A cluster with these settings in its ``spark-defaults.conf``, ended with the block; a worker on each host."""
    cluster = SparkCluster(directory, settings or {}, network)
    with OrphanKiller() as orphans:
        try:
            cluster.start()
            for pid in cluster.pids:
                orphans.watch(pid)
            yield cluster
        finally:
            cluster.stop()


def python_without_bkctl(directory: Path) -> str:
    """Path of a Python with the libraries of this one. A ``.pth`` file is read in its own environment alone, so that of
    an installation in place has no effect."""
    venv.create(directory, symlinks=True)
    libraries = os.path.dirname(os.path.dirname(kazoo.__file__))
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    (directory / "lib" / version / "site-packages" / "libraries.pth").write_text(libraries + "\n")
    return str(directory / "bin" / "python")
