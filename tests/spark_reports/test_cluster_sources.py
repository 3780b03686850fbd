"""Bookies and marks as Spark rows: the same from the live cluster, a snapshot and a backup."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

from bkctl.runtime.metadata.backup.archive import ArchiveHeader
from bkctl.runtime.metadata.backup.backup import backup_cluster
from bkctl.runtime.metadata.ledgers.layout import LedgerTree
from bkctl.runtime.metadata.zookeeper.embedded import EmbeddedZooKeeper
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from bkctl.runtime.placement.survey import BookieSurvey
from bkctl.runtime.placement.view import BookieSpace
from bkctl.spark_reports.cluster_sources import register_sources
from bkctl.storage.adapters.filesystem import OsFileSystem
from tests.snapshot_files import SampleCluster, cluster_nodes, write_snapshot
from tests.spark_reports.conftest import FACTS

pytestmark = pytest.mark.cluster

SAMPLE = SampleCluster(ledgers=50, tree=LedgerTree.HIERARCHICAL, bookies=6, session_timeout_ms=600_000)


def rows(spark: SparkSession, name: str, path: str | None = None, **options: str) -> list[dict[str, Any]]:
    register_sources(spark)
    found = [row.asDict() for row in spark.read.format(name).options(**options).load(path).collect()]
    return sorted(found, key=lambda row: (row.get("ledger_id", 0), str(row)))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A snapshot in the data directory of a server."""
    path = tmp_path / "server" / "data" / "version-2" / "snapshot.1"
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        write_snapshot(file, cluster_nodes(SAMPLE), SAMPLE.sessions)
    return path


async def test_all_three_origins_have_the_same_rows(spark: SparkSession, path: Path, tmp_path: Path) -> None:
    backup = str(tmp_path / "backup")
    async with await EmbeddedZooKeeper.start(str(tmp_path / "server")) as server:
        uri = f"zk+hierarchical://{server.connect_string}{SAMPLE.root}"
        live = {name: rows(spark, name, metadata_uri=uri) for name in ("bookkeeper_bookies", "bookkeeper_marks")}
        async with await ZooKeeperStore.connect(server.connect_string) as store:
            header = ArchiveHeader(root=SAMPLE.root, instance_id=None, layout=SAMPLE.tree.value, created="now")
            await backup_cluster(store, header, SAMPLE.tree, OsFileSystem(), backup)
    packed = tmp_path / "packed"
    packed.write_bytes(gzip.compress(path.read_bytes()))

    bookies = live["bookkeeper_bookies"]
    assert [row["bookie_id"] for row in bookies] == SAMPLE.bookie_ids
    assert [row["mode"] for row in bookies] == [*["writable"] * 4, "read_only", "unregistered"]
    assert [row["rack"] for row in bookies] == [f"/rack{number % 3}" for number in range(6)]
    assert [row["host"] for row in bookies] == [*(each.partition(":")[0] for each in SAMPLE.registered_ids), None]
    assert {(row["has_cookie"], *row["ledger_directories"], row["problem"]) for row in bookies} == {
        (True, "/ledgers", None)
    }
    assert len(live["bookkeeper_marks"]) == SAMPLE.marks
    assert live["bookkeeper_marks"][0] == {
        "ledger_id": 0,
        "missing_bookies": [SAMPLE.bookie_ids[-1]],
        "marked_ms": 1_700_000_000_000,
        "problem": None,
    }
    for name, expected in live.items():
        assert rows(spark, name, str(path)) == expected
        assert rows(spark, name, str(packed)) == expected

    assert rows(spark, "bookkeeper_marks", backup) == live["bookkeeper_marks"]
    unknown = {"mode": None, "host": None, "port": None, "rack": None}
    assert rows(spark, "bookkeeper_bookies", backup) == [row | unknown for row in bookies]
    write_sets = rows(spark, "bookkeeper_write_sets", str(path))
    assert len(write_sets) >= SAMPLE.ledgers
    assert sorted(map(str, rows(spark, "bookkeeper_write_sets", backup))) == sorted(map(str, write_sets))


def test_racks_and_free_space_that_the_caller_knows(spark: SparkSession, path: Path) -> None:
    bookie_id = SAMPLE.bookie_ids[0]
    survey = BookieSurvey(writable=frozenset(), space={bookie_id: BookieSpace(1000, 400)})
    facts = msgspec.json.encode(msgspec.structs.replace(FACTS, survey=survey)).decode()
    first, second, *_ = rows(spark, "bookkeeper_bookies", str(path), facts=facts)
    assert (first["bookie_id"], first["total_bytes"], first["free_bytes"], first["rack"]) == (
        bookie_id,
        1000,
        400,
        None,
    )
    assert (second["total_bytes"], second["free_bytes"]) == (None, None)


def test_marks_that_cannot_be_read_say_why(spark: SparkSession, path: Path) -> None:
    nodes = [
        msgspec.structs.replace(node, data=b"garbage") if node.path.endswith("/urL0000000003") else node
        for node in cluster_nodes(SAMPLE)
    ]
    with path.open("wb") as file:
        write_snapshot(file, nodes)
    found = {row["ledger_id"]: row["problem"] for row in rows(spark, "bookkeeper_marks", str(path)) if row["problem"]}
    assert list(found) == [3]
    assert "/urL0000000003: mark" in found[3]
