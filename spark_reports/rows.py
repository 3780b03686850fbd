"""Arrow shapes of the audit's rows, and its Parquet files. No Spark in here: the plain pass writes the same files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from runtime.replication.audit import ReplicationRow, WriteSetRow
from runtime.replication.audit_report import AuditReport
from spark_reports.output import WRITE_SETS

ROWS_PER_GROUP = 16_384
"""Few, because the event loop waits while a group is written."""

WRITE_SET_SCHEMA = pa.schema(
    [
        pa.field("ledger_id", pa.int64(), nullable=False),
        pa.field("ledger_state", pa.string()),
        pa.field("ensemble_size", pa.int32()),
        pa.field("write_quorum_size", pa.int32()),
        pa.field("ack_quorum_size", pa.int32()),
        pa.field("segment_first_entry_id", pa.int64()),
        pa.field("segment_last_entry_id", pa.int64()),
        pa.field("write_set", pa.list_(pa.string()), nullable=False),
        pa.field("entry_count", pa.int64()),
        pa.field("payload_bytes", pa.int64()),
        pa.field("problem", pa.string()),
    ]
)
"""Columns of ``runtime.replication.audit.WriteSetRow``: ids and counts, sizes in payload bytes of one copy."""

REPLICATION_SCHEMA = pa.schema(
    [
        *WRITE_SET_SCHEMA,
        pa.field("expected_copies", pa.int32()),
        pa.field("live_copies", pa.int32()),
        pa.field("missing_bookies", pa.list_(pa.string())),
        pa.field("replication", pa.string()),
    ]
)
"""Columns of ``runtime.replication.audit.ReplicationRow``, flat; ``replication`` is the value of ReplicationState."""


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


def write_set_batch(rows: Sequence[WriteSetRow]) -> pa.RecordBatch:
    """Rows as one batch of ``WRITE_SET_SCHEMA``."""
    columns = [
        pa.array([_plain(getattr(row, field.name)) for row in rows], type=field.type) for field in WRITE_SET_SCHEMA
    ]
    return pa.RecordBatch.from_arrays(columns, schema=WRITE_SET_SCHEMA)


def replication_batch(rows: Sequence[ReplicationRow]) -> pa.RecordBatch:
    """Rows as one batch of ``REPLICATION_SCHEMA``."""
    judged = [
        [row.expected_copies for row in rows],
        [row.live_copies for row in rows],
        [list(row.missing_bookies) for row in rows],
        [row.replication.value for row in rows],
    ]
    names = REPLICATION_SCHEMA.names[-len(judged) :]
    columns = [
        *write_set_batch([row.write_set for row in rows]).columns,
        *(
            pa.array(values, type=REPLICATION_SCHEMA.field(name).type)
            for name, values in zip(names, judged, strict=True)
        ),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=REPLICATION_SCHEMA)


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def write_report(directory: str, report: AuditReport) -> None:
    """Write the small tables of a report: ``bookies``, ``under_replicated``, ``unreadable``, ``summary``."""
    for name, schema in _REPORT_SCHEMAS.items():
        _write_table(directory, name, [msgspec.to_builtins(row) for row in getattr(report, name)], schema)
    _write_table(directory, "summary", [msgspec.to_builtins(report.summary)], None)


class WriteSetFile:
    """Writes judged rows to a part of ``write_sets`` as they come; bounded memory."""

    def __init__(self, directory: str, part_number: int) -> None:
        os.makedirs(os.path.join(directory, WRITE_SETS), exist_ok=True)
        path = os.path.join(directory, WRITE_SETS, f"part-{part_number}.parquet")
        self._writer = pq.ParquetWriter(path, REPLICATION_SCHEMA)
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
