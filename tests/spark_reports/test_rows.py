"""Parquet of the plain audit, and the page that describes it."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow.parquet as pq

from bkctl.runtime.replication.cluster_audit.tables import TABLES
from bkctl.runtime.replication.judge.verdict import replication_of, write_set_rows
from bkctl.spark_reports.output import WRITE_SETS
from bkctl.spark_reports.rows import REPLICATION_SCHEMA, ROWS_PER_GROUP, WriteSetFile
from tests.runtime.replication.samples import ledger
from tests.test_repository import read

SECTION = re.compile(r"^## ([a-z_, ]+)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)


def test_the_reference_describes_every_column_of_every_dataset() -> None:
    page = read("docs/reference/audit-report.md")
    sections = {name: text for heading, text in SECTION.findall(page) for name in heading.split(", ")}
    datasets = {name: kind.__struct_fields__ for name, kind in TABLES.items()}
    for name, columns in (datasets | {WRITE_SETS: tuple(REPLICATION_SCHEMA.names)}).items():
        cells = [line.split("|")[1] for line in sections[name].splitlines() if line.startswith("| `")]
        assert sorted(re.findall(r"`(\w+)`", " ".join(cells))) == sorted(columns), name


def test_rows_of_more_than_one_group_are_all_written(tmp_path: Path) -> None:
    starts = range(ROWS_PER_GROUP // 2 + 5)
    large = ledger({start: ["b0", "b1", "b2"] for start in starts}, 2, 2, last_entry_id=starts[-1], length=1)
    rows = [replication_of(row, {"b0", "b1"}) for row in write_set_rows(1, large)]
    with WriteSetFile(str(tmp_path), 0) as file:
        for _ in range(3):
            file.add(rows)

    found = pq.read_table(tmp_path / "write_sets").column("segment_first_entry_id").to_pylist()
    assert found == [*starts] * 3
