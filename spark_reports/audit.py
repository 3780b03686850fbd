"""`bkctl audit`: the same report by Spark or by one plain pass over the metadata.

Both judge by one snapshot of the bookies, which the caller takes (``AuditFacts``), and both write the same Parquet
below ``out_directory``: ``write_sets``, with a row per write set, and the tables of the report. Neither Spark nor
Arrow is imported until it is needed: they take half a second.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol, TypeAlias

import msgspec

from bkctl.runtime.config import ZooKeeperConfig
from bkctl.runtime.metadata.ledgers.ledgers import FoundLedgers
from bkctl.runtime.metadata.snapshot.cluster import ClusterFile
from bkctl.runtime.optional_packages import has_package
from bkctl.runtime.replication.cluster_audit.facts import AuditFacts
from bkctl.runtime.replication.cluster_audit.inventory import InventoryTotals, InventoryWay, with_inventory
from bkctl.runtime.replication.cluster_audit.result import report_of
from bkctl.runtime.replication.cluster_audit.tables import AuditReport
from bkctl.runtime.replication.cluster_audit.totals import AuditTotals
from bkctl.runtime.replication.config import ReplicationConfig
from bkctl.spark_reports.counting import count_ledgers
from bkctl.spark_reports.deployment import SparkDeployment, is_growing
from bkctl.spark_reports.errors import SparkReportError
from bkctl.spark_reports.failures import failure_of
from bkctl.spark_reports.hadoop_files import fetch_file
from bkctl.spark_reports.job_progress import PartsProgress, watched_job
from bkctl.spark_reports.live import LiveLookup
from bkctl.spark_reports.output import BAD_COPIES_FILE, finish_write_sets, new_report
from bkctl.spark_reports.secrets import Secrets, take_bookie_secrets, take_secrets

if TYPE_CHECKING:
    from pyspark import SparkContext

    from bkctl.runtime.replication.survey.inventory import InventoryJob
    from bkctl.spark_reports.write_set_source import LedgersPartition, SourceSettings


_GROWING_PARTS = 64
"""Parts of a job on a cluster that gives more executors while tasks wait. All may run at once."""
_LEDGERS_PER_PART = 100_000
"""A part takes seconds: so much is read again when an executor is lost, and progress is shown after each."""
_LEDGERS_PER_PART_MIN = 1000
"""Fewer take less time than the start of one more Python process."""
_PARTS_AT_ONCE = 16
"""So many totals the driver can hold at once."""


async def audit_plainly(
    groups: Iterable[FoundLedgers],
    facts: AuditFacts,
    *,
    out_directory: str | None = None,
    lookup: LiveLookup | None = None,
    on_progress: Callable[[int], None] | None = None,
    inventory: tuple[InventoryWay, Callable[[], Awaitable[InventoryTotals]]] | None = None,
) -> AuditReport:
    """Audit by one pass in this process; ``on_progress`` gets the number of ledgers seen, after every hundred.

    ``groups``: all ledgers; of a file, one for each piece. ``lookup``: looks those with findings up in ZooKeeper.
    ``inventory``: takes one afterwards, in this way.
    RefusedError when ``out_directory`` is not empty; MetadataUnavailableError. Unreadable ledgers are in the report.
    Without PyArrow there are no Parquet files.
    """
    with new_report(out_directory):
        tables = out_directory if has_package("pyarrow") else None
        totals = await count_ledgers(groups, facts, out_directory=tables, lookup=lookup, on_progress=on_progress)
        held = None if inventory is None else (inventory[0], await inventory[1]())
        return _finish(totals, facts, out_directory, held)


Prepare: TypeAlias = "Callable[[SparkContext], AbstractContextManager[tuple[ClusterFile | None, AuditFacts]]]"
"""Finds what is to be audited, with a Spark that can fetch files: a cluster in a file, or None: that in ZooKeeper."""


def audit_with_spark(
    metadata_uri: str | None,
    prepare: Prepare,
    *,
    zookeeper: ZooKeeperConfig | None = None,
    out_directory: str | None = None,
    deployment: SparkDeployment,
    on_starting: Callable[[], None] = lambda: None,
    on_waiting: Callable[[], None] = lambda: None,
    on_parts: PartsProgress | None = None,
    outage_max_s: float | None = None,
    inventory: InventoryJob | None = None,
) -> AuditReport:
    """Audit with Spark as ``deployment`` says; the executors read their own ledgers.

    Blocks for the whole job. ``on_starting`` is called when all arguments have been checked and Spark starts,
    ``on_waiting`` when a cluster gives no executor for a while, ``on_parts`` with the progress of the job.
    ``outage_max_s``: how long the executors wait for ZooKeeper in the middle; None: as long as the default setting.

    ConfigurationError when SPARK_HOME is wrong; RefusedError when ``out_directory`` is not empty; SparkReportError when
    Spark does not start or a task fails. What Spark itself reported is then logged, for debugging.
    """
    from bkctl.spark_reports.session import spark_context  # noqa: PLC0415

    with (
        new_report(out_directory),
        spark_context(deployment, on_starting=on_starting, on_waiting=on_waiting) as spark,
        prepare(spark) as (cluster, facts),
    ):
        return audit_in_context(
            spark,
            metadata_uri,
            facts,
            None if is_growing(spark.getConf()) else spark.defaultParallelism,
            cluster=cluster,
            zookeeper=zookeeper,
            out_directory=out_directory,
            on_parts=on_parts,
            outage_max_s=outage_max_s,
            ledgers=deployment.ledgers,
            inventory=inventory,
        )


def _on_executors(spark: SparkContext, cluster: ClusterFile | None) -> ClusterFile | None:
    """The file under the name that executors on other machines have it, if there are any."""
    from pyspark import SparkFiles  # noqa: PLC0415

    if cluster is None or spark.master.startswith("local"):
        return cluster
    name = os.path.basename(cluster.path)
    if SparkFiles.get(name) != cluster.path:  # otherwise it was fetched from elsewhere, and all have it
        fetch_file(spark, cluster.path)
    return msgspec.structs.replace(cluster, path=name)


def audit_in_context(
    spark: SparkContext,
    metadata_uri: str | None,
    facts: AuditFacts,
    running_partitions: int | None,
    *,
    cluster: ClusterFile | None = None,
    zookeeper: ZooKeeperConfig | None = None,
    out_directory: str | None = None,
    on_parts: PartsProgress | None = None,
    outage_max_s: float | None = None,
    ledgers: int | None = None,
    inventory: InventoryJob | None = None,
) -> AuditReport:
    """Audit with a Spark that runs already, of any master.

    SparkReportError; MetadataOutageError, MetadataAuthError or MetadataFormatError if a task failed with it.
    ``running_partitions``: how many tasks run at once, which divides the request budget; None: any number.
    ``ledgers``: about how many there are; the more, the more parts.
    Reads the ledgers of ``cluster`` if it is given; its findings are looked up in ZooKeeper if there is a metadata URI.
    ``inventory``: executors take it afterwards.
    """
    from bkctl.spark_reports.write_set_source import AuditReader, SourceSettings  # noqa: PLC0415

    config, secrets = take_secrets(zookeeper or ZooKeeperConfig(), os.environ)
    parts = _parts_max(running_partitions, ledgers, has_inventory=inventory is not None)
    settings = SourceSettings(
        metadata_uri=metadata_uri,
        zookeeper=config,
        running_partitions=running_partitions or parts,
        partitions_max=parts,
        facts=facts,
        out_directory=os.path.abspath(out_directory) if out_directory else None,
        outage_max_s=ReplicationConfig().metadata_outage_max_s if outage_max_s is None else outage_max_s,
        cluster=_on_executors(spark, cluster),
    )
    # Java does not say which disk is full.
    purpose = "" if out_directory is None else f" (the report was for {out_directory})"
    totals, held = AuditTotals(), None
    parts_read = 0
    for part in _parts(spark, AuditReader(settings, secrets), on_parts, purpose):
        totals.merge(msgspec.json.decode(part, type=AuditTotals))
        parts_read += 1
    if inventory is not None:
        held = inventory.request.way, _take_inventory(spark, inventory, secrets, settings, on_parts, purpose)
    if out_directory is not None:
        finish_write_sets(out_directory, parts_read)
    return _finish(totals, facts, out_directory, held)


def _parts_max(running_partitions: int | None, ledgers: int | None, *, has_inventory: bool) -> int:
    """In at most how many parts the ledgers are read. Of an inventory, a few ledgers may have a lot of entries."""
    parts = 4 * running_partitions if running_partitions else _GROWING_PARTS
    if ledgers is None or has_inventory:
        return parts
    return max(min(parts, 1 + ledgers // _LEDGERS_PER_PART_MIN), ledgers // _LEDGERS_PER_PART)


def _take_inventory(
    spark: SparkContext,
    job: InventoryJob,
    secrets: Secrets,
    settings: SourceSettings,
    on_parts: PartsProgress | None,
    purpose: str,
) -> InventoryTotals:
    """Let the executors take an inventory of the ledgers in ZooKeeper."""
    from bkctl.spark_reports.inventory_source import InventoryReader  # noqa: PLC0415

    security, more = take_bookie_secrets(job.client.security, os.environ)
    job = msgspec.structs.replace(job, client=msgspec.structs.replace(job.client, security=security))
    totals = InventoryTotals()
    for part in _parts(spark, InventoryReader(settings, Secrets(secrets | more), job), on_parts, purpose):
        totals.merge(msgspec.json.decode(part, type=InventoryTotals))
    return totals


class TotalsReader(Protocol):
    """What executors do, each for some partitions. It is pickled."""

    name: str

    def partitions(self) -> Sequence[LedgersPartition]:
        """Planned by the driver."""

    def totals(self, partition: LedgersPartition) -> bytes:
        """The sums of the ledgers of one, as JSON."""


def _parts(spark: SparkContext, reader: TotalsReader, on_parts: PartsProgress | None, purpose: str) -> Iterator[bytes]:
    """The totals of each partition. ``purpose``: what the job was for, in errors.

    No data frame, which needs a session, and two Python processes to plan it.
    """
    from py4j.protocol import Py4JError  # noqa: PLC0415
    from pyspark import StorageLevel  # noqa: PLC0415
    from pyspark.errors import PySparkException  # noqa: PLC0415

    partitions, parts_merged = reader.partitions(), 0
    try:
        found = spark.parallelize(partitions, len(partitions)).map(reader.totals).setName(reader.name)
        if len(partitions) <= _PARTS_AT_ONCE:
            with watched_job(spark, on_parts):
                yield from found.collect()
            return
        # Kept, so that the totals of one partition after the other come to the driver, which never holds all of them.
        found.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            with watched_job(spark, on_parts):
                found.count()
            for part in found.toLocalIterator():
                yield part
                parts_merged += 1
        finally:
            found.unpersist()
    except (PySparkException, Py4JError) as error:
        # Py4JError: the JVM failed outside of Python, as on a full disk.
        raise failure_of(str(error), purpose) from error
    if parts_merged != len(partitions):
        raise SparkReportError(
            f"the Spark job returned {parts_merged} of {len(partitions)} parts: run the command again"
        )


def _finish(
    totals: AuditTotals,
    facts: AuditFacts,
    out_directory: str | None,
    held: tuple[InventoryWay, InventoryTotals] | None = None,
) -> AuditReport:
    report = report_of(totals, facts)
    if held is not None:
        way, holdings = held
        path = None if out_directory is None else os.path.join(os.path.abspath(out_directory), BAD_COPIES_FILE)
        report = with_inventory(report, holdings, way, path)
    if out_directory is not None:
        from bkctl.spark_reports.audit_files import write_report_files  # noqa: PLC0415

        if has_package("pyarrow"):
            from bkctl.spark_reports.rows import write_report  # noqa: PLC0415

            write_report(out_directory, report)
        write_report_files(out_directory, report)
    return report
