"""The data source: options, partitions, and that every ledger is read once and by nobody else."""

from __future__ import annotations

import asyncio
import collections
import pickle
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from bkctl.runtime.config import ZooKeeperConfig
from bkctl.runtime.errors import ConfigurationError
from bkctl.runtime.metadata.ledgers.ledgers import LedgerStore
from bkctl.runtime.replication.judge.verdict import write_set_rows
from bkctl.spark_reports.rows import WRITE_SET_SCHEMA, write_set_batch
from bkctl.spark_reports.write_set_source import (
    ROWS_PER_BATCH,
    WriteSetReader,
    WriteSetSource,
    in_groups,
    parse_settings,
)
from tests.runtime.replication.samples import ledger
from tests.snapshot_files import SampleCluster, cluster_nodes, write_snapshot
from tests.spark_reports.conftest import UNREADABLE_IDS

URI = "zk+hierarchical://127.0.0.1:2181/ledgers"


def test_the_request_budget_is_divided_by_the_partitions_that_run_at_once() -> None:
    zookeeper = ZooKeeperConfig(scan_operations_per_s_max=7.0, digest="file:nowhere")
    settings = parse_settings(
        {"metadata_uri": URI, "zookeeper": msgspec.json.encode(zookeeper).decode(), "running_partitions": "8"}
    )
    assert settings.zookeeper == zookeeper
    assert [settings.budget_shares(count) for count in (32, 2, 0)] == [8, 2, 1]
    assert settings.partitions_max == 32


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "metadata_uri"),
        ({"metadata_uri": "http://x"}, "does not start with zk"),
        ({"metadata_uri": URI, "running_partitions": "0"}, "running_partitions"),
        ({"metadata_uri": URI, "partitions_max": "many"}, "partitions_max"),
        ({"metadata_uri": URI, "zookeeper": "{"}, "zookeeper"),
        ({"metadata_uri": URI, "facts": "{"}, "facts"),
    ],
)
def test_wrong_options_are_named(options: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        parse_settings(options)


def test_a_newer_snapshot_in_a_directory_does_not_change_what_tasks_read(tmp_path: Path) -> None:
    """ZooKeeper may write one between the driver's look at the directory and the tasks."""
    for number in (1, 2):
        sample = SampleCluster(ledgers=20 * number, bookies=5 * number)
        with (tmp_path / f"written.{number}").open("wb") as file:
            write_snapshot(file, cluster_nodes(sample), sample.sessions)
    (tmp_path / "written.1").rename(tmp_path / "snapshot.1")
    reader = WriteSetReader(parse_settings({"path": str(tmp_path)}))
    partitions = reader.partitions()
    (tmp_path / "written.2").rename(tmp_path / "snapshot.2")
    found = {row for part in partitions for batch in reader.read(part) for row in batch["ledger_id"].to_pylist()}
    assert found == set(range(20))


def test_subtrees_are_dealt_out_once_each() -> None:
    subtrees = [f"00/{number:04}" for number in range(10)]
    groups = in_groups(subtrees, 4)
    assert sorted(subtree for group in groups for subtree in group) == subtrees
    assert [len(group) for group in groups] == [3, 3, 2, 2]
    assert in_groups([], 4) == [()]


async def test_the_partitions_together_read_every_ledger_once(ledgers: LedgerStore, metadata_uri: str) -> None:
    reader = WriteSetReader(parse_settings({"metadata_uri": metadata_uri, "partitions_max": "2"}))
    reader = pickle.loads(pickle.dumps(reader))
    partitions = await asyncio.to_thread(reader.partitions)
    assert len(partitions) == 2
    batches = [batch for partition in partitions for batch in await asyncio.to_thread(list, reader.read(partition))]
    found = pa.Table.from_batches(batches).to_pylist()

    expected = []
    for ledger_id in [*range(30), *range(10_000, 10_020), *range(2**40, 2**40 + 10)]:
        stored = await ledgers.read(ledger_id)
        expected += write_set_rows(ledger_id, stored.value, stored.ctime_ms)
    readable = [row for row in found if row["problem"] is None]
    assert sorted(map(str, readable)) == sorted(map(str, write_set_batch(expected).to_pylist()))
    problems = {row["ledger_id"]: row["problem"] for row in found if row["problem"] is not None}
    assert sorted(problems) == list(UNREADABLE_IDS)
    assert all(problems.values())


async def test_rows_of_more_than_one_batch_all_arrive(ledgers: LedgerStore, metadata_uri: str) -> None:
    """Two batches, each a little above the limit, and a rest."""
    starts = range(ROWS_PER_BATCH // 2 + 5)
    large = ledger({start: ["b0", "b1", "b2"] for start in starts}, 2, 2, last_entry_id=starts[-1], length=1)
    for ledger_id in range(10_030, 10_034):
        await ledgers.create(large, ledger_id=ledger_id)
    reader = WriteSetReader(parse_settings({"metadata_uri": metadata_uri, "partitions_max": "1"}))

    (partition,) = await asyncio.to_thread(reader.partitions)
    batches = await asyncio.to_thread(list, reader.read(partition))

    assert [batch.num_rows > ROWS_PER_BATCH for batch in batches] == [True, True, False]
    found = collections.Counter(ledger_id for batch in batches for ledger_id in batch["ledger_id"].to_pylist())
    expected = {ledger_id: len(starts) for ledger_id in range(10_030, 10_034)}
    for ledger_id in [*range(30), *range(10_000, 10_020), *range(2**40, 2**40 + 10)]:
        expected[ledger_id] = len(write_set_rows(ledger_id, (await ledgers.read(ledger_id)).value))
    assert found == expected | dict.fromkeys(UNREADABLE_IDS, 1)


async def test_a_reader_that_is_given_up_closes_its_session(ledgers: LedgerStore, metadata_uri: str) -> None:
    reader = WriteSetReader(parse_settings({"metadata_uri": metadata_uri}))

    def read_one_batch() -> int:
        partition = reader.partitions()[0]
        batches = reader.read(partition)
        rows: int = next(batches).num_rows
        batches.close()  # type: ignore[attr-defined]
        return rows

    assert await asyncio.to_thread(read_one_batch) > 0


def test_the_frame_has_the_documented_columns(spark: SparkSession, metadata_uri: str) -> None:
    spark.dataSource.register(WriteSetSource)
    frame = spark.read.format("bookkeeper_write_sets").option("metadata_uri", metadata_uri).load()
    assert frame.columns == WRITE_SET_SCHEMA.names
