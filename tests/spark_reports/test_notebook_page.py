"""The code and the SQL of docs/guide/notebook.md, over a real cluster and the report of its inventory."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from bkctl.runtime.client import LedgerClient
from bkctl.runtime.replication.cluster_audit.tables import TABLES
from bkctl.runtime.replication.judge.verdict import ReplicationState
from bkctl.spark_reports.audit_files import read_report
from tests.commands.test_cluster_walk import succeed
from tests.commands.test_recover_ledger import forget
from tests.processes import Cluster

pytestmark = pytest.mark.cluster

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "notebook.md"
URI, REPORT = "zk+hierarchical://127.0.0.1:2181/ledgers", "report-2"


def blocks(language: str, heading: str) -> list[str]:
    _, _, section = PAGE.read_text().partition(f"## {heading}\n")
    return re.findall(rf"^```{language}\n(.*?)^```$", section.partition("\n## ")[0], re.MULTILINE | re.DOTALL)


def rows(spark: SparkSession, query: str) -> list[dict[str, Any]]:
    return [row.asDict() for row in spark.sql(query).collect()]


def test_the_code_is_shipped_again_when_its_cell_runs_again(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (cell,) = [each for each in blocks("python", "Sources") if "addPyFile" in each]
    for _ in range(2):
        exec(cell, {"spark": spark})
        assert spark.sparkContext.parallelize([1]).map(str).collect() == ["1"]
    assert [path.name for path in tmp_path.iterdir()] == ["bkctl.zip"]


async def write_of_topics(metadata_uri: str) -> None:
    async with await LedgerClient.connect(metadata_uri) as client:
        for topic in ("acme/ns1/persistent/t0", "acme/ns1/persistent/t1"):
            labels = {"application": b"pulsar", "pulsar/managed-ledger": topic.encode()}
            async with await client.create(
                ensemble_size=3, write_quorum_size=3, ack_quorum_size=2, custom_metadata=labels
            ) as writer:
                await writer.append(topic.encode())


def test_the_session_of_the_page(spark: SparkSession, start_cluster: Callable[[int], Cluster], tmp_path: Path) -> None:
    cluster = start_cluster(3)
    for entries in (9, 5):
        written = succeed(cluster, "ledger", "write-test", "--entries", str(entries), "-E", "3", "-W", "3").json()
    ledger_id = int(written["items"][0]["ledger_id"])
    asyncio.run(write_of_topics(cluster.metadata_uri))
    cluster.down()
    forget(cluster.bookies[0], ledger_id, 3)
    cluster.up(3)
    gone = cluster.bookies[2].id
    cluster.stop_bookie(gone)
    out = tmp_path / REPORT
    assert cluster.run("audit", "--inventory", "--out", str(out)).exit_code == 10

    heading = "Questions about the cluster"
    (session,) = blocks("python", heading)
    exec(session.replace(URI, cluster.metadata_uri), {"spark": spark})
    by_rack, unmarked = (rows(spark, query) for query in blocks("sql", heading))
    assert sum(row["bytes"] for row in by_rack) > 0
    assert unmarked == [{"bookie_id": gone, "ledgers": 4}]

    heading = "The report of an audit"
    (session,) = blocks("python", heading)
    names: dict[str, Any] = {"spark": spark}
    exec(session.replace(REPORT, str(out)), names)
    assert {*names["tables"], *names["listed"], *names["held"]} == {"write_sets", *TABLES}
    states, owners, holdings, bad = (rows(spark, query) for query in blocks("sql", heading))
    report = read_report(str(out))
    counts = {state.value: getattr(report.summary, state.value) for state in ReplicationState}
    assert {row["state"]: row["ledgers"] for row in states} == {name: count for name, count in counts.items() if count}
    assert [(row["owner"], row["ledgers"], row["copy_bytes"]) for row in owners] == [
        (row.owner, row.ledgers, row.copy_bytes) for row in report.owners
    ]
    assert {row["bookie_id"]: row["listed_copies"] for row in holdings} == {
        row.bookie_id: row.listed_copies for row in report.holdings
    }
    assert [(row["bookie_id"], row["known_by"], row["copies"]) for row in bad] == [(cluster.bookies[0].id, "listed", 1)]
