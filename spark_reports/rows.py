"""Arrow shapes of the audit's rows, and batches of them. No Spark in here: the plain pass writes the same Parquet."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from runtime.replication.audit import ReplicationRow, WriteSetRow

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
