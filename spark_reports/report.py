"""`bkctl audit`: the same report by Spark or by one plain pass over the metadata.

Both judge copies against one snapshot of the registered bookies, which the caller takes, and both write the same
Parquet below ``out_directory``: ``write_sets`` (a row per write set), ``bookies``, ``under_replicated``,
``unreadable``, ``summary``. Neither Spark nor Arrow is imported until it is needed: they take half a second.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from runtime.config import ZooKeeperConfig
from runtime.metadata.bookies.registration import Registrations
from runtime.metadata.ledgers.ledgers import LedgerStore
from runtime.replication.audit_report import AuditReport, AuditTotals
from spark_reports.counting import count_ledgers, read_write_sets
from spark_reports.errors import SparkReportError
from spark_reports.output import new_report

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_RAISED = re.compile(r"[A-Za-z_.]*Error: (?:\[Errno \d+\] )?")
_CAUSED = re.compile(r"Caused by: [A-Za-z0-9_.$]+: ")


async def audit_plainly(
    ledgers: LedgerStore,
    registrations: Registrations,
    *,
    out_directory: str | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> AuditReport:
    """Audit by one pass in this process; ``on_progress`` gets the number of ledgers seen, after every hundred.

    RefusedError when ``out_directory`` is not empty; MetadataUnavailableError. Unreadable ledgers are in the report.
    """
    with new_report(out_directory):
        rows = read_write_sets(ledgers, None)
        totals = await count_ledgers(rows, registrations.live, out_directory=out_directory, on_progress=on_progress)
        return _finish(totals, registrations, out_directory)


def audit_with_spark(
    metadata_uri: str,
    registrations: Registrations,
    *,
    zookeeper: ZooKeeperConfig | None = None,
    out_directory: str | None = None,
    cores: int | None = None,
    on_starting: Callable[[], None] = lambda: None,
) -> AuditReport:
    """Audit with Spark on ``cores`` of this machine (None: all); the executors read their own ledgers from ZooKeeper.

    Blocks for the whole job. ``on_starting`` is called when all arguments have been checked and Spark starts.
    ConfigurationError when SPARK_HOME is wrong; RefusedError when ``out_directory`` is not empty; SparkReportError when
    Spark does not start or a task fails. What Spark itself reported is then logged, for debugging.
    """
    from spark_reports.session import local_session  # noqa: PLC0415

    with new_report(out_directory), local_session(cores, on_starting=on_starting) as session:
        return audit_in_session(
            session,
            metadata_uri,
            registrations,
            cores or os.cpu_count() or 1,
            zookeeper=zookeeper,
            out_directory=out_directory,
        )


def audit_in_session(
    session: SparkSession,
    metadata_uri: str,
    registrations: Registrations,
    running_partitions: int,
    *,
    zookeeper: ZooKeeperConfig | None = None,
    out_directory: str | None = None,
) -> AuditReport:
    """Audit in a session that exists already, of any master; SparkReportError."""
    from py4j.protocol import Py4JError  # noqa: PLC0415
    from pyspark import StorageLevel  # noqa: PLC0415
    from pyspark.errors import PySparkException  # noqa: PLC0415

    from spark_reports.write_set_source import AUDIT_NAME, AuditSource  # noqa: PLC0415

    session.dataSource.register(AuditSource)
    options = {
        "metadata_uri": metadata_uri,
        "zookeeper": msgspec.json.encode(zookeeper or ZooKeeperConfig()).decode(),
        "running_partitions": str(running_partitions),
        "live_bookies": msgspec.json.encode(registrations.live).decode(),
        "out_directory": out_directory or "",
    }
    totals = AuditTotals()
    try:
        # Kept, so that the totals of one partition after the other come to the driver, which never holds all of them.
        frame = session.read.format(AUDIT_NAME).options(**options).load().persist(StorageLevel.MEMORY_AND_DISK)
        try:
            frame.count()
            for row in frame.toLocalIterator():
                totals.merge(msgspec.json.decode(row["totals"], type=AuditTotals))
        finally:
            frame.unpersist()
    except (PySparkException, Py4JError) as error:
        # Py4JError: the JVM failed outside of Python, as on a full disk. Java does not say which disk is full.
        purpose = "" if out_directory is None else f" (the report was for {out_directory})"
        raise SparkReportError(f"the Spark job failed: {_reason(str(error))}{purpose}") from error
    return _finish(totals, registrations, out_directory)


def _finish(totals: AuditTotals, registrations: Registrations, out_directory: str | None) -> AuditReport:
    report = totals.report(registrations.writable, registrations.read_only)
    if out_directory is not None:
        from spark_reports.rows import write_report  # noqa: PLC0415

        write_report(out_directory, report)
    return report


def _reason(text: str) -> str:
    """The sentence of the Python error inside the report of a failed task, else of the innermost Java error, else the
    first line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    raised = [line for line in lines if _RAISED.match(line)]
    if raised:
        return _RAISED.sub("", raised[-1])
    caused = [line for line in lines if _CAUSED.match(line)]
    return _CAUSED.sub("", caused[-1]) if caused else next(iter(lines), "no reason given")
