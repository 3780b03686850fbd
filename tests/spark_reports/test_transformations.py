"""Transformations check their columns, and agree with Python on rows that no cluster would have."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from runtime.metadata.bookies.registration import Registrations
from runtime.replication.audit import WriteSetRow, replication_of, unreadable_row, write_set_rows
from runtime.replication.audit_report import AuditTotals
from spark_reports.errors import MissingColumnsError, SparkReportError
from spark_reports.report import audit_frame, audit_in_session
from spark_reports.rows import write_set_batch
from spark_reports.transformations import replication_by_bookie, with_replication
from tests.runtime.replication.samples import ledger, random_ledger

BOOKIES = [f"b{number}" for number in range(6)]


def test_missing_columns_are_named_with_those_that_are_there(spark: SparkSession) -> None:
    frame = spark.range(1).withColumnRenamed("id", "ledger_id")
    with pytest.raises(MissingColumnsError, match=r"ledger_state, .*; there are ledger_id") as caught:
        with_replication(frame, [])
    assert "write_set" in caught.value.missing
    with pytest.raises(MissingColumnsError, match="replication_by_bookie"):
        replication_by_bookie(frame, [], [])


def test_random_and_odd_ledgers_are_judged_alike(spark: SparkSession) -> None:
    source = random.Random(5)
    by_ledger: list[list[WriteSetRow]] = [
        write_set_rows(number, random_ledger(source, BOOKIES)) for number in range(200)
    ]
    by_ledger.append(write_set_rows(200, ledger({0: ["b0", "b0", "b1"]}, 2, 2, last_entry_id=9, length=99)))
    by_ledger.append([unreadable_row(201, "a 'quoted' problem")])
    registrations = Registrations(writable=("b0", "b1"), read_only=("b1", "b2"))
    totals = AuditTotals(registrations.writable, registrations.read_only)
    for rows in by_ledger:
        totals.add_ledger([replication_of(row, registrations.live) for row in rows])
    table = pa.Table.from_batches([write_set_batch([row for rows in by_ledger for row in rows])])

    assert audit_frame(spark.createDataFrame(table), registrations) == totals.report()


def test_a_failed_job_says_why_in_one_sentence(spark: SparkSession, metadata_uri: str) -> None:
    with pytest.raises(SparkReportError) as caught:
        audit_in_session(spark, metadata_uri, Registrations(writable=(), read_only=()), 1)
    assert "there is no BookKeeper cluster at" in str(caught.value)
    assert "\n" not in str(caught.value)
