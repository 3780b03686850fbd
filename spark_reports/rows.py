"""Arrow shapes of the audit's rows, and its Parquet files. No Spark in here: the plain pass writes the same files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import NoneType
from typing import Self, get_args, get_origin

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from bkctl.runtime.replication.cluster_audit.tables import TABLES, AuditReport
from bkctl.runtime.replication.judge.verdict import ReplicationRow, WriteSetRow
from bkctl.spark_reports.errors import SparkReportError
from bkctl.spark_reports.output import WRITE_SETS, unfinished_path

_ARROW_TYPES = {str: pa.string(), int: pa.int64(), bool: pa.bool_(), tuple: pa.list_(pa.string())}

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
        pa.field("created_ms", pa.int64()),
        pa.field("owner", pa.string()),
        pa.field("digest", pa.string()),
        pa.field("length", pa.int64()),
        pa.field("isolation_groups", pa.list_(pa.string())),
        pa.field("secondary_groups", pa.list_(pa.string())),
    ]
)
"""Columns of ``bkctl.runtime.replication.judge.verdict.WriteSetRow``: ids, counts, payload bytes of one copy."""

REPLICATION_SCHEMA = pa.schema(
    [
        *WRITE_SET_SCHEMA,
        pa.field("expected_copies", pa.int32()),
        pa.field("live_copies", pa.int32()),
        pa.field("missing_bookies", pa.list_(pa.string())),
        pa.field("replication", pa.string()),
    ]
)
"""Columns of ``judge.verdict.ReplicationRow``, flat; ``replication`` is the value of ReplicationState."""


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
    """Write the tables of a report, and last its summary as a table of one row: queries take the newest run from it."""
    for name, kind in reversed(TABLES.items()):
        found = getattr(report, name)
        rows = [msgspec.to_builtins(row) for row in (found if isinstance(found, tuple) else [found])]
        os.makedirs(os.path.join(directory, name))
        path = os.path.join(directory, name, "part-0.parquet")
        pq.write_table(pa.Table.from_pylist(rows, schema=schema_of(kind)), unfinished_path(path))
        os.replace(unfinished_path(path), path)


def schema_of(kind: type[msgspec.Struct]) -> pa.Schema:
    """Columns of a table of the report: those of its struct, of which only optional ones can be null."""
    return pa.schema([_column(field) for field in msgspec.structs.fields(kind)])


def _column(field: msgspec.structs.FieldInfo) -> pa.Field:
    """A column: text, integer, truth value, a list of texts, or a list of these."""
    if field.type == tuple[tuple[str, ...], ...]:
        return pa.field(field.name, pa.list_(_ARROW_TYPES[tuple]), nullable=False)
    kinds = set(get_args(field.type)) or {field.type}
    (kind,) = kinds - {NoneType, Ellipsis} if get_origin(field.type) is not tuple else (tuple,)
    return pa.field(field.name, _ARROW_TYPES[kind], nullable=NoneType in kinds)


class WriteSetFile:
    """Writes judged rows to a part of ``write_sets`` as they come; bounded memory.

    The part has its name once it is whole: Spark may repeat a task whose first attempt has not ended yet.
    """

    def __init__(self, directory: str, part_number: int) -> None:
        if not os.path.isdir(directory):
            raise SparkReportError(
                f"{directory} is not on {os.uname().nodename}: all machines of the cluster must share the directory of "
                "the report"
            )
        os.makedirs(os.path.join(directory, WRITE_SETS), exist_ok=True)
        self._path = os.path.join(directory, WRITE_SETS, f"part-{part_number}.parquet")
        self._unfinished_path = unfinished_path(self._path)
        self._writer = pq.ParquetWriter(self._unfinished_path, REPLICATION_SCHEMA)
        self._rows: list[ReplicationRow] = []

    def add(self, rows: Sequence[ReplicationRow]) -> None:
        """Take the rows of one ledger."""
        self._rows.extend(rows)
        if len(self._rows) >= ROWS_PER_GROUP:
            self._flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Write what is left and the file's end, and give the file its name; after an error, delete it."""
        if kind is None:
            self._flush()
        self._writer.close()
        if kind is None:
            os.replace(self._unfinished_path, self._path)
        else:
            os.remove(self._unfinished_path)

    def _flush(self) -> None:
        if self._rows:
            self._writer.write_batch(replication_batch(self._rows))
            self._rows = []
