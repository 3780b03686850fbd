"""Parquet of the plain audit."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq

from bkctl.runtime.replication.judge.verdict import replication_of, write_set_rows
from bkctl.spark_reports.rows import ROWS_PER_GROUP, WriteSetFile
from tests.runtime.replication.samples import ledger


def test_rows_of_more_than_one_group_are_all_written(tmp_path: Path) -> None:
    starts = range(ROWS_PER_GROUP // 2 + 5)
    large = ledger({start: ["b0", "b1", "b2"] for start in starts}, 2, 2, last_entry_id=starts[-1], length=1)
    rows = [replication_of(row, {"b0", "b1"}) for row in write_set_rows(1, large)]
    with WriteSetFile(str(tmp_path), 0) as file:
        for _ in range(3):
            file.add(rows)

    found = pq.read_table(tmp_path / "write_sets").column("segment_first_entry_id").to_pylist()
    assert found == [*starts] * 3
