"""The SQL of docs/guide/audit-queries.md, over the Parquet of two real audits."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from bkctl.spark_reports.rows import WriteSetFile
from tests.processes import run_bkctl
from tests.snapshot_files import SampleCluster, cluster_nodes, write_snapshot

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "audit-queries.md"
BOOKIES = {"bk1:3181": "bookie-008.example:3181", "bk2:3181": "bookie-009.example:3181"}
TITLES = re.findall(r"^## (.+)$", PAGE.read_text(), re.MULTILINE)


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Two reports, and one that is being written, or was when its audit was killed."""
    directory = tmp_path_factory.mktemp("queries")
    for number in (1, 2):
        path = directory / f"snapshot.{number}"
        cluster = SampleCluster(ledgers=200 * number, lost_bookies=number, isolation_groups=3, open_share=0.05)
        with open(path, "wb") as file:
            write_snapshot(file, cluster_nodes(cluster), cluster.sessions)
        out = str(directory / "reports" / f"run=2026-11-0{number}")
        assert run_bkctl("audit", "--from", str(path), "--out", out, "--fail-on", "lost").exit_code == 0
    running = directory / "reports" / "run=2026-11-03"
    running.mkdir()
    with WriteSetFile(str(running), 0):
        yield directory / "reports"
        assert [path.suffix for path in running.glob("*/*.parquet")] == [], "none is whole"


@pytest.fixture(scope="module")
def answers(spark: SparkSession, reports: Path) -> dict[str, list[dict[str, Any]]]:
    """The rows that each query returns, by its title."""
    (views,) = blocks("python")
    exec(views.replace("/var/reports", str(reports)), {"spark": spark})
    found, queries = {}, blocks("sql")
    assert len(queries) == len(TITLES) == 10
    for title, query in zip(TITLES, queries, strict=True):
        for name, bookie_id in BOOKIES.items():
            query = query.replace(name, bookie_id)  # noqa: PLW2901
        found[title] = [row.asDict() for row in spark.sql(query).collect()]
    return found


def rows(reports: Path, run: int, table: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(reports / f"run=2026-11-0{run}" / table, partitioning=None).to_pylist()
    return found


@pytest.mark.parametrize("title", TITLES)
def test_every_question_has_an_answer(answers: dict[str, list[dict[str, Any]]], title: str) -> None:
    assert answers[title]


def test_answers_are_those_of_the_reports(answers: dict[str, list[dict[str, Any]]], reports: Path) -> None:
    write_sets = rows(reports, 2, "write_sets")
    old_ids = {row["ledger_id"] for row in rows(reports, 1, "write_sets")}

    growth: defaultdict[str, int] = defaultdict(int)
    for run, sign in ((1, -1), (2, 1)):
        for row in rows(reports, run, "owners"):
            growth[row["owner"].split("/")[0]] += sign * row["copy_bytes"]
    assert {row["tenant"]: row["growth"] for row in answers["Growth of each tenant"]} == growth

    two = set(BOOKIES.values())
    live = {(row["ledger_id"], frozenset(row["write_set"]) - set(row["missing_bookies"])) for row in write_sets}
    held = {ledger_id for ledger_id, holders in live if holders and holders <= two}
    assert {row["ledger_id"] for row in answers["Ledgers that only these two bookies hold"]} == held

    opened = {row["ledger_id"] for row in write_sets if row["ledger_state"] != "closed"}
    assert sum(row["ledgers"] for row in answers["Age of open ledgers by owner"]) == len(opened)

    both = [{row["ledger_id"] for row in rows(reports, run, "under_replicated")} for run in (1, 2)]
    assert {row["ledger_id"] for row in answers["Ledgers that miss copies in the last two runs"]} == both[0] & both[1]

    new = {row["ledger_id"] for row in write_sets} - old_ids
    assert sum(row["ledgers"] for row in answers["Ledgers created since the first run"]) == len(new) == 200

    outside: defaultdict[tuple[str, str], int] = defaultdict(int)
    for row in rows(reports, 2, "misplaced"):
        for bookie_id in row["outside_bookies"]:
            outside[row["isolation_groups"][0], bookie_id] += 1
    answer = answers["Data of an isolation group on other bookies"]
    assert {(row["group_name"], row["bookie_id"]): row["ledgers"] for row in answer} == outside
