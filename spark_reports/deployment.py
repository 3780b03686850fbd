"""Where a report runs, and the settings of Spark that follow from it. Pure."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from bkctl.runtime.errors import ConfigurationError

LARGE_LEDGERS = 1_000_000
"""From this many ledgers on, Spark's own speed counts for more than the time of its start."""

LOOPBACK = "127.0.0.1"
_LOCAL_MASTER = re.compile(r"local(\[(?P<cores>\*|\d+)(,\d+)?\])?")
_CONNECT = "sc://"
_STANDALONE = "spark://"
_GATEWAY_VARIABLE = "PYSPARK_GATEWAY_PORT"


class SparkSettings(Protocol):
    """Settings of a session: ``SparkConf``."""

    def get(self, key: str, default: str, /) -> str | None:
        """One of them."""


class SparkDeployment(msgspec.Struct, frozen=True):
    """Where a report runs. ``master`` None: on this machine, or where spark-submit started this process.

    ``cores`` None: all that the master has. ``ledgers``: about how many are read; None: unknown.
    """

    master: str | None = None
    cores: int | None = None
    ledgers: int | None = None
    is_submitted: bool = False

    @property
    def is_local(self) -> bool:
        """Whether the executors are in this process's JVM, where they need no copy of the code."""
        return not self.is_submitted and (self.master is None or _LOCAL_MASTER.fullmatch(self.master) is not None)

    @property
    def master_url(self) -> str:
        """The master for a new session."""
        return self.master or f"local[{self.cores or os.cpu_count() or 1}]"

    @property
    def description(self) -> str:
        """Where this is, in the words of a message."""
        if self.is_submitted:
            return "in the session of spark-submit"
        return "on this machine" if self.is_local else f"on {self.master}"

    @property
    def is_large(self) -> bool:
        """Whether the job takes so long that its start does not count. A job of unknown size may be large."""
        return self.ledgers is not None and self.ledgers >= LARGE_LEDGERS

    @property
    def standalone_addresses(self) -> list[str]:
        """``host:port`` of each master of a standalone cluster; empty for any other kind."""
        if self.master is None or not self.master.startswith(_STANDALONE):
            return []
        return [each for each in self.master.removeprefix(_STANDALONE).split(",") if each]


def choose_deployment(master: str | None, cores: int | None, environment: Mapping[str, str]) -> SparkDeployment:
    """Check the options against each other; ConfigurationError says which one has no effect."""
    deployment = SparkDeployment(master, cores, is_submitted=_GATEWAY_VARIABLE in environment)
    if master is not None and master.startswith(_CONNECT):
        raise ConfigurationError(
            f"{master} is a Spark Connect server, which takes no data source of bkctl: name a master"
        )
    if deployment.is_submitted and (master is not None or cores is not None):
        raise ConfigurationError("spark-submit chooses the master and the cores: leave out --master and --cores")
    if master is not None and cores is not None:
        if deployment.is_local:
            raise ConfigurationError(f"--cores has no effect with --master {master}: use --master 'local[{cores}]'")
        if not deployment.standalone_addresses:
            raise ConfigurationError(
                f"--cores limits local and standalone Spark only, not {master}: set the number of executors in "
                "spark-defaults.conf"
            )
    return deployment


def is_growing(settings: SparkSettings) -> bool:
    """Whether Spark asks for more executors while tasks wait: then all of them may run at once."""
    return settings.get("spark.dynamicAllocation.enabled", "false") == "true"


def start_settings(
    deployment: SparkDeployment, directory: str, log_configuration_path: str, more_java_options: Sequence[str] = ()
) -> dict[str, str]:
    """Settings that a new session starts with. ``directory``: for temporary files. ``more_java_options``: of the JVM on
    this machine.

    On a cluster there are few of them: it has its own ``spark-defaults.conf``, which these would override.
    """
    # A second copy of a slow task would ask bookies and ZooKeeper with a share of the budget that it does not have.
    settings = {"spark.ui.showConsoleProgress": "false", "spark.speculation": "false"}
    if not deployment.is_local:
        return settings | ({"spark.cores.max": str(deployment.cores)} if deployment.cores is not None else {})
    java_options = [
        f"-Dlog4j2.configurationFile=file:{log_configuration_path}",
        f"-Djava.io.tmpdir={directory}",
        f"-Duser.home={directory}",
        *more_java_options,
    ]
    # One compiler and one collector thread start soonest; they are the slowest ones for a job of minutes.
    java_options.append("-XX:+UseParallelGC" if deployment.is_large else "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    return settings | {
        "spark.authenticate": "true",  # any user of this machine can connect to its ports; Spark draws the secret
        "spark.driver.bindAddress": LOOPBACK,
        "spark.driver.host": LOOPBACK,
        "spark.driver.extraJavaOptions": " ".join(java_options),
        "spark.local.dir": directory,
        "spark.ui.enabled": "false",
    }
