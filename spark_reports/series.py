"""The reports in one directory, read from their Parquet without Spark: a series of one cluster."""

from __future__ import annotations

import os
from typing import Any

from bkctl.runtime.errors import MetadataFormatError
from bkctl.runtime.replication.cluster_audit.comparison import AuditRun, run_of, run_of_rows
from bkctl.runtime.replication.cluster_audit.tables import AuditReport
from bkctl.spark_reports.output import REPORT_JSON

_COLUMNS = {
    "summary": (
        *("judged_at_ms", "instance_id", "ledgers", "under_replicated", "at_risk", "unavailable", "lost"),
        *(
            "copy_bytes",
            "inventory",
            "left_out_ledgers",
            "unknown_copies",
            "unknown_ends",
            "bad_copies",
            "lost_entries",
        ),
    ),
    "owners": ("owner", "copy_bytes"),
    "bookies": ("bookie_id", "mode", "entry_copies", "payload_bytes"),
}


def runs_in(directory: str) -> list[str]:
    """Names of the directories with a whole report, by name; OSError."""
    names = sorted(os.listdir(directory))
    return [name for name in names if os.path.exists(os.path.join(directory, name, REPORT_JSON))]


def read_run(directory: str, name: str) -> AuditRun:
    """One report of the series; MetadataFormatError if it has no Parquet, or that is damaged."""
    import pyarrow as pa  # noqa: PLC0415  takes long, and most audits read no series

    path = os.path.join(directory, name)
    try:
        tables = {table: _rows(path, table) for table in _COLUMNS}
        (summary,) = tables["summary"]
    except (OSError, ValueError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        fix = "make the report again, or move it out of the directory"
        raise MetadataFormatError(f"{path} has no Parquet that can be read ({reason}): {fix}") from error
    return run_of_rows(name, summary, tables["bookies"], tables["owners"])


def with_run(earlier: tuple[AuditRun, ...], report: AuditReport, directory: str | None) -> tuple[AuditRun, ...]:
    """The runs of a series, if there is one, with that of a report, in this directory or in none, as the last."""
    name = os.path.basename(os.path.abspath(directory)) if directory else "now"
    return (*earlier, run_of(report, name)) if earlier else ()


def _rows(path: str, table: str) -> list[dict[str, Any]]:
    """The columns that the trend needs; of an older report, those that it has."""
    import pyarrow.parquet as pq  # noqa: PLC0415

    file = pq.ParquetFile(os.path.join(path, table, "part-0.parquet"))
    with file:
        names = [name for name in _COLUMNS[table] if name in file.schema_arrow.names]
        rows: list[dict[str, Any]] = file.read(columns=names).to_pylist()
    return rows
