"""`bkctl audit`: the same report by Spark or by one plain pass over the metadata.

Both judge copies against one snapshot of the registered bookies, which the caller takes, and both write the same
Parquet below ``out_directory``: ``write_sets`` (a row per write set), ``bookies``, ``under_replicated``,
``unreadable``, ``summary``. Neither Spark nor Arrow is imported until it is needed: they take half a second.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing, closing, contextmanager
from typing import TYPE_CHECKING

import msgspec

from runtime.config import ZooKeeperConfig
from runtime.metadata.bookies.registration import Registrations
from runtime.metadata.ledgers.ledgers import LedgerStore
from runtime.replication.audit import replication_of
from runtime.replication.audit_report import (
    AuditReport,
    AuditTotals,
    BookieReplication,
    UnderReplicatedLedger,
    UnreadableLedger,
    audit_report,
)
from spark_reports.errors import SparkReportError
from spark_reports.output import WRITE_SETS, new_report
from spark_reports.write_sets import SOURCE_NAME, read_write_sets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

    from spark_reports.arrow_files import WriteSetFile

_RAISED = re.compile(r"[A-Za-z_.]*Error: ")
_CAUSED = re.compile(r"Caused by: [A-Za-z0-9_.$]+: ")

FINDINGS_MAX = 100_000
"""Rows of each list of ledgers that a report carries; Parquet has them all."""


async def audit_plainly(
    ledgers: LedgerStore,
    registrations: Registrations,
    *,
    out_directory: str | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> AuditReport:
    """Audit by one pass in this process; ``on_progress`` is told the number of ledgers seen, every hundred or so.

    RefusedError when ``out_directory`` is not empty; MetadataUnavailableError. Unreadable ledgers are in the report.
    """
    with new_report(out_directory):
        totals = AuditTotals(registrations.writable, registrations.read_only, findings_max=FINDINGS_MAX)
        with _write_set_file(out_directory) as output:
            await _count_all(ledgers, registrations.live, totals, output, on_progress)
        report = totals.report()
        _write(out_directory, report)
    return report


@contextmanager
def _write_set_file(out_directory: str | None) -> Iterator[WriteSetFile | None]:
    if out_directory is None:
        yield None
        return
    from spark_reports.arrow_files import WriteSetFile  # noqa: PLC0415

    with closing(WriteSetFile(out_directory)) as file:
        yield file


async def _count_all(
    ledgers: LedgerStore,
    live: frozenset[str],
    totals: AuditTotals,
    output: WriteSetFile | None,
    on_progress: Callable[[int], None] | None,
) -> None:
    ledgers_seen = 0
    async with aclosing(read_write_sets(ledgers, None)) as ledger_rows:
        async for write_sets in ledger_rows:
            rows = [replication_of(row, live) for row in write_sets]
            totals.add_ledger(rows)
            if output is not None:
                output.add(rows)
            ledgers_seen += 1
            if on_progress is not None and ledgers_seen % 100 == 0:
                on_progress(ledgers_seen)


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
    from pyspark.errors import PySparkException  # noqa: PLC0415

    try:
        frame = read_frame(session, metadata_uri, running_partitions, zookeeper)
        return audit_frame(frame, registrations, out_directory=out_directory)
    except (
        PySparkException,
        Py4JError,
    ) as error:  # the second where the JVM fails outside of Python, as on a full disk
        # Java does not say which disk is full.
        purpose = "" if out_directory is None else f" (the report was for {out_directory})"
        raise SparkReportError(f"the Spark job failed: {_reason(str(error))}{purpose}") from error


def read_frame(
    session: SparkSession, metadata_uri: str, running_partitions: int, zookeeper: ZooKeeperConfig | None = None
) -> DataFrame:
    """Write sets of a cluster as a frame; ``running_partitions``: tasks that Spark runs at once, sharing the budget."""
    from spark_reports.write_set_source import WriteSetSource  # noqa: PLC0415

    session.dataSource.register(WriteSetSource)
    reader = session.read.format(SOURCE_NAME).option("metadata_uri", metadata_uri)
    reader = reader.option("zookeeper", msgspec.json.encode(zookeeper or ZooKeeperConfig()).decode())
    return reader.option("running_partitions", str(running_partitions)).load()


def audit_frame(frame: DataFrame, registrations: Registrations, *, out_directory: str | None = None) -> AuditReport:
    """Run the audit over a frame of write sets and collect the report: the driver gets findings and totals only."""
    from pyspark import StorageLevel  # noqa: PLC0415

    from spark_reports import transformations as to  # noqa: PLC0415

    # Kept, so that ZooKeeper is read once for all results.
    judged = to.with_replication(frame, sorted(registrations.live)).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        if out_directory is not None:
            judged.write.parquet(os.path.join(out_directory, WRITE_SETS))
        states = to.summary_by_state(to.ledger_replication(judged)).collect()
        bookies = to.replication_by_bookie(judged, registrations.writable, registrations.read_only).collect()
        under_replicated = to.under_replicated_ledgers(judged).limit(FINDINGS_MAX).collect()
        unreadable = to.unreadable_ledgers(judged).limit(FINDINGS_MAX).collect()
    finally:
        judged.unpersist()
    report = _collected_report(states, bookies, under_replicated, unreadable)
    _write(out_directory, report)
    return report


def _write(out_directory: str | None, report: AuditReport) -> None:
    if out_directory is not None:
        from spark_reports.arrow_files import write_report  # noqa: PLC0415

        write_report(out_directory, report)


def _collected_report(
    states: Sequence[Row], bookies: Sequence[Row], under_replicated: Sequence[Row], unreadable: Sequence[Row]
) -> AuditReport:
    ledgers_by_state: dict[str, int] = {}
    for row in states:
        ledgers_by_state[row["replication"]] = ledgers_by_state.get(row["replication"], 0) + row["ledgers"]
    return audit_report(
        states=ledgers_by_state,
        open_ledgers=sum(row["ledgers"] for row in states if row["is_open"]),
        entries=sum(row["entries"] for row in states),
        payload_bytes=sum(row["payload_bytes"] for row in states),
        bookies=[BookieReplication(**row.asDict()) for row in bookies],
        under_replicated=[
            UnderReplicatedLedger(**(row.asDict() | {"missing_bookies": tuple(row["missing_bookies"])}))
            for row in under_replicated
        ],
        unreadable=[UnreadableLedger(**row.asDict()) for row in unreadable],
    )


def _reason(text: str) -> str:
    """The sentence of the Python error inside the report of a failed task, else of the innermost Java error, else the
    first line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    raised = [line for line in lines if _RAISED.match(line)]
    if raised:
        return _RAISED.sub("", raised[-1])
    caused = [line for line in lines if _CAUSED.match(line)]
    return _CAUSED.sub("", caused[-1]) if caused else next(iter(lines), "no reason given")
