"""Where an audit gets its ledgers, and where it runs: chosen once, from the options, before anything is read."""

from __future__ import annotations

import os
from typing import NamedTuple

from bkctl.commands.context import CommandContext
from bkctl.commands.errors import InvalidArgumentError
from bkctl.commands.session import require_metadata_uri
from bkctl.runtime.metadata.zookeeper.embedded import find_java
from bkctl.runtime.optional_packages import require_package
from bkctl.spark_reports.deployment import SparkDeployment, choose_deployment

_URI_MARK = "://"


class AuditPlace(NamedTuple):
    """``file`` None: the ledgers in ZooKeeper. ``deployment`` None: this process, without Spark."""

    file: str | None
    ledgers_root: str | None
    deployment: SparkDeployment | None

    @property
    def is_hadoop_file(self) -> bool:
        """Whether only Spark reads the file, such as hdfs://namenode/snapshot.1."""
        return self.file is not None and _URI_MARK in self.file


def choose_place(
    context: CommandContext, file: str | None, ledgers_root: str | None, spark: tuple[str | None, int | None] | None
) -> AuditPlace:
    """``spark``: master and cores; None: without Spark. InvalidArgumentError, ConfigurationError."""
    deployment = None
    if spark is not None:
        require_package("pyspark", "audit --spark needs PySpark")
        require_package("pyarrow", "audit --spark needs PyArrow")
        find_java("Spark")  # without Java, Spark fails after seconds with a long error
        deployment = choose_deployment(*spark, os.environ)
    place = AuditPlace(file, ledgers_root, deployment)
    if place.is_hadoop_file and deployment is None:
        raise InvalidArgumentError(f"{file} needs --spark: only Spark reads files of other file systems")
    if file is None:
        require_metadata_uri(context)
    return place
