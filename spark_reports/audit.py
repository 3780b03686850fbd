"""`bkctl audit`: the same report by Spark or by one plain pass over the metadata.

Both judge by one snapshot of the bookies, which the caller takes (``AuditFacts``), and both write the same Parquet
below ``out_directory``: ``write_sets``, with a row per write set, and the tables of the report. Neither Spark nor
Arrow is imported until it is needed: they take half a second.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from bkctl.runtime.config import ZooKeeperConfig
from bkctl.runtime.metadata.ledgers.ledgers import FoundLedgers
from bkctl.runtime.metadata.snapshot.cluster import ClusterFile
from bkctl.runtime.optional_packages import has_package
from bkctl.runtime.replication.cluster_audit.facts import AuditFacts
from bkctl.runtime.replication.cluster_audit.inventory import InventoryTotals, InventoryWay, with_inventory
from bkctl.runtime.replication.cluster_audit.tables import AuditReport
from bkctl.runtime.replication.cluster_audit.totals import AuditTotals, report_of
from bkctl.runtime.replication.config import ReplicationConfig
from bkctl.spark_reports.audit_files import NO_EXTRAS, ReportExtras, write_report_files
from bkctl.spark_reports.counting import Examination, count_ledgers
from bkctl.spark_reports.deployment import is_growing
from bkctl.spark_reports.errors import SparkReportError, failure_of
from bkctl.spark_reports.hadoop_files import fetch_file
from bkctl.spark_reports.live import LiveLookup
from bkctl.spark_reports.output import BAD_COPIES_FILE, finish_write_sets, new_report
from bkctl.spark_reports.secrets import Secrets, take_bookie_secrets, take_secrets

if TYPE_CHECKING:
    from pyspark import SparkContext

    from bkctl.runtime.replication.survey.inventory import InventoryJob
    from bkctl.spark_reports.write_set_source import AuditReader, SourceSettings


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
    inventory: tuple[InventoryWay, Examination] | None = None,
    extras: ReportExtras = NO_EXTRAS,
) -> AuditReport:
    """Audit by one pass in this process; ``on_progress`` gets the number of ledgers seen, after every hundred.

    ``groups``: all ledgers; of a file, one for each piece. ``lookup``: looks those with findings up in ZooKeeper.
    ``inventory``: examines each ledger, in this way. ``extras``: what the files have besides the report.
    RefusedError when ``out_directory`` is not empty; MetadataUnavailableError. Unreadable ledgers are in the report.
    Without PyArrow there are no Parquet files.
    """
    with new_report(out_directory):
        tables = out_directory if has_package("pyarrow") else None
        way, examination = inventory or (None, None)
        totals, held = await count_ledgers(
            groups, facts, out_directory=tables, lookup=lookup, on_progress=on_progress, inventory=examination
        )
        return _finish(totals, facts, out_directory, extras, way, held)


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
    running_partitions: int | None = None,
    *,
    cluster: ClusterFile | None = None,
    zookeeper: ZooKeeperConfig | None = None,
    out_directory: str | None = None,
    on_parts: PartsProgress | None = None,
    outage_max_s: float | None = None,
    ledgers: int | None = None,
    inventory: InventoryJob | None = None,
    extras: ReportExtras = NO_EXTRAS,
) -> AuditReport:
    """Audit with a Spark of any master; the executors read their own ledgers. Blocks for the whole job.

    SparkReportError if a task fails: what Spark itself reported is then logged, for debugging; MetadataOutageError,
    MetadataAuthError or MetadataFormatError if a task failed with it.
    ``running_partitions``: how many tasks run at once, which divides the request budget; None: as Spark says.
    ``out_directory``: one that ``new_report`` has prepared. ``on_parts``: gets the progress of the job.
    ``outage_max_s``: how long the executors wait for ZooKeeper in the middle; None: as long as the default setting.
    ``ledgers``: about how many there are; the more, the more parts.
    Reads the ledgers of ``cluster`` if it is given; its findings are looked up in ZooKeeper if there is a metadata URI.
    ``inventory``: what executors ask bookies about each ledger. ``extras``: what the files have besides the report.
    """
    from bkctl.spark_reports.write_set_source import PartTotals, SourceSettings  # noqa: PLC0415

    config, secrets = take_secrets(zookeeper or ZooKeeperConfig(), os.environ)
    if running_partitions is None and not is_growing(spark.getConf()):
        running_partitions = spark.defaultParallelism
    parts = _parts_max(running_partitions, ledgers, inventory)
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
    totals, held = AuditTotals(), None if inventory is None else _totals_before(inventory)
    parts_read = 0
    for part in _parts(spark, _reader(settings, secrets, inventory), on_parts, purpose):
        found = msgspec.json.decode(part, type=PartTotals)
        totals.merge(found.judged)
        if held is not None and found.held is not None:
            held.merge(found.held)
        parts_read += 1
    if out_directory is not None:
        finish_write_sets(out_directory, parts_read)
    return _finish(totals, facts, out_directory, extras, None if inventory is None else inventory.request.way, held)


def _totals_before(job: InventoryJob) -> InventoryTotals:
    """With what bookies were asked before the executors began."""
    totals = InventoryTotals()
    for row in job.probes:
        totals.add_requests(*row)
    return totals


def _parts_max(running_partitions: int | None, ledgers: int | None, inventory: InventoryJob | None) -> int:
    if inventory is not None and inventory.request.turn is not None:
        return running_partitions or _GROWING_PARTS  # those of a second round would have no time left
    parts = 4 * running_partitions if running_partitions else _GROWING_PARTS
    if ledgers is None:
        return parts
    if inventory is None:  # otherwise a few ledgers may have a lot of entries
        parts = min(parts, 1 + ledgers // _LEDGERS_PER_PART_MIN)
    return max(parts, ledgers // _LEDGERS_PER_PART)


def _reader(settings: SourceSettings, secrets: Secrets, job: InventoryJob | None) -> AuditReader:
    if job is None:
        from bkctl.spark_reports.write_set_source import AuditReader  # noqa: PLC0415

        return AuditReader(settings, secrets)
    from bkctl.spark_reports.inventory_source import InventoryReader  # noqa: PLC0415

    security, more = take_bookie_secrets(job.client.security, os.environ)
    client = msgspec.structs.replace(job.client, security=security)
    return InventoryReader(settings, Secrets(secrets | more), msgspec.structs.replace(job, client=client))


def _parts(spark: SparkContext, reader: AuditReader, on_parts: PartsProgress | None, purpose: str) -> Iterator[bytes]:
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
    extras: ReportExtras,
    way: InventoryWay | None = None,
    held: InventoryTotals | None = None,
) -> AuditReport:
    report = report_of(totals, facts)
    if way is not None and held is not None:
        path = None if out_directory is None else os.path.join(os.path.abspath(out_directory), BAD_COPIES_FILE)
        report = with_inventory(report, held, way, path)
    if out_directory is not None:
        if has_package("pyarrow"):
            from bkctl.spark_reports.rows import write_report  # noqa: PLC0415

            write_report(out_directory, report)
        write_report_files(out_directory, report, extras)
    return report


POLL_S = 0.5

PartsProgress = Callable[[int, int], None]
"""Called with the parts that are finished, and how many there are."""


@contextmanager
def watched_job(context: SparkContext, on_parts: PartsProgress | None) -> Iterator[None]:
    """Report twice a second, from a thread of its own, while the block runs a job; None: do not."""
    if on_parts is None:
        yield
        return
    is_over = threading.Event()
    watcher = threading.Thread(target=_watch, args=(context, on_parts, is_over), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        is_over.set()
        watcher.join()


def _watch(context: SparkContext, on_parts: PartsProgress, is_over: threading.Event) -> None:
    from py4j.protocol import Py4JError  # noqa: PLC0415

    tracker = context.statusTracker()
    while not is_over.wait(POLL_S):
        try:
            stages = [tracker.getStageInfo(stage_id) for stage_id in tracker.getActiveStageIds()]
        except Py4JError:
            return  # the job's own thread reports why the JVM has ended
        # The stage that reads has a task for each part; one that sums up has fewer.
        largest = max((stage for stage in stages if stage is not None), key=lambda stage: stage.numTasks, default=None)
        if largest is not None and largest.numTasks > 1:
            on_parts(largest.numCompletedTasks, largest.numTasks)
