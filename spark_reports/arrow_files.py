"""Parquet written without Spark, in the shape that Spark writes it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from runtime.replication.audit import ReplicationRow
from runtime.replication.audit_report import AuditReport
from spark_reports.output import WRITE_SETS
from spark_reports.rows import REPLICATION_SCHEMA, replication_batch

ROWS_PER_GROUP = 65_536

_REPORT_SCHEMAS = {
    "bookies": pa.schema(
        [
            ("bookie_id", pa.string()),
            ("mode", pa.string()),
            ("ledgers", pa.int64()),
            ("write_sets", pa.int64()),
            ("under_replicated_write_sets", pa.int64()),
            ("last_copy_ledgers", pa.int64()),
            ("entry_copies", pa.int64()),
            ("payload_bytes", pa.int64()),
        ]
    ),
    "under_replicated": pa.schema(
        [
            ("ledger_id", pa.int64()),
            ("ledger_state", pa.string()),
            ("replication", pa.string()),
            ("expected_copies", pa.int32()),
            ("live_copies_min", pa.int32()),
            ("ack_quorum_size", pa.int32()),
            ("write_sets", pa.int64()),
            ("entry_count", pa.int64()),
            ("missing_bookies", pa.list_(pa.string())),
        ]
    ),
    "unreadable": pa.schema([("ledger_id", pa.int64()), ("problem", pa.string())]),
}


def write_report(directory: str, report: AuditReport) -> None:
    """Write the small tables of a report: ``bookies``, ``under_replicated``, ``unreadable``, ``summary``."""
    for name, schema in _REPORT_SCHEMAS.items():
        _write_table(directory, name, [msgspec.to_builtins(row) for row in getattr(report, name)], schema)
    _write_table(directory, "summary", [msgspec.to_builtins(report.summary)], None)


class WriteSetFile:
    """Writes judged rows to ``write_sets`` as they come; bounded memory."""

    def __init__(self, directory: str) -> None:
        os.makedirs(os.path.join(directory, WRITE_SETS))
        self._writer = pq.ParquetWriter(os.path.join(directory, WRITE_SETS, "part-0.parquet"), REPLICATION_SCHEMA)
        self._rows: list[ReplicationRow] = []

    def add(self, rows: Sequence[ReplicationRow]) -> None:
        """Take the rows of one ledger."""
        self._rows.extend(rows)
        if len(self._rows) >= ROWS_PER_GROUP:
            self._flush()

    def close(self) -> None:
        """Write what is left and the file's end."""
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        if self._rows:
            self._writer.write_batch(replication_batch(self._rows))
            self._rows = []


def _write_table(directory: str, name: str, rows: list[Any], schema: pa.Schema | None) -> None:
    os.makedirs(os.path.join(directory, name))
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), os.path.join(directory, name, "part-0.parquet"))
