"""The audit by Spark and by one plain pass: equal reports, equal rows, from a real ZooKeeper."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from bkctl.runtime.errors import ClusterNotFoundError, RefusedError
from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.metadata.bookies.registration import Registrations
from bkctl.runtime.metadata.ledgers.ledgers import LedgerStore
from bkctl.runtime.metadata.store import Versioned
from bkctl.runtime.replication.cluster_audit.facts import AuditFacts
from bkctl.spark_reports.audit import audit_in_context, audit_plainly
from bkctl.spark_reports.errors import SparkReportError
from bkctl.spark_reports.output import DATASETS
from tests.runtime.replication.cluster_audit.brute_force import report_by_brute_force
from tests.runtime.replication.samples import ledger, random_ledger
from tests.spark_reports.conftest import BOOKIES, FACTS, UNREADABLE_IDS

EMPTY = {
    "leaving",
    "holdings",
    "bad_copy_ranges",
    "lost_ranges",
    "unknown_ends",
    "unnamed_ranges",
    "checked_ranges",
    "tried_ranges",
}


async def everything(ledgers: LedgerStore) -> dict[int, LedgerMetadata | str]:
    """All ledgers, with the creation times of their nodes, as no metadata here has one."""
    found: dict[int, LedgerMetadata | str] = {}
    async for ledger_id, each in ledgers.read_all():
        if isinstance(each, Versioned):
            found[ledger_id] = msgspec.structs.replace(each.value, ctime_ms=each.ctime_ms)
        else:
            found[ledger_id] = str(each)
    return found


async def test_spark_and_the_plain_pass_agree(
    spark: SparkSession, ledgers: LedgerStore, metadata_uri: str, tmp_path: Path
) -> None:
    plain = await audit_plainly([ledgers.read_all()], FACTS, out_directory=str(tmp_path / "plain"))
    (tmp_path / "spark").mkdir()
    by_spark = await asyncio.to_thread(
        audit_in_context, spark.sparkContext, metadata_uri, FACTS, 2, out_directory=str(tmp_path / "spark")
    )

    assert by_spark == plain == report_by_brute_force(await everything(ledgers), FACTS)
    assert plain.summary.ledgers == 62
    assert plain.summary.unreadable == 2
    assert plain.summary.under_replicated + plain.summary.at_risk + plain.summary.unavailable > 10
    assert [ledger.ledger_id for ledger in plain.unreadable] == list(UNREADABLE_IDS)
    assert {bookie.bookie_id: bookie.mode for bookie in plain.bookies} == (
        dict.fromkeys(BOOKIES[:4], "writable")
        | {"bookie-4:3181": "read_only", "idle:3181": "read_only"}
        | dict.fromkeys(BOOKIES[5:], "unregistered")
    )

    for name in DATASETS:
        rows = [sorted(map(str, pq.read_table(tmp_path / way / name).to_pylist())) for way in ("plain", "spark")]
        assert rows[0] == rows[1], name
        assert bool(rows[0]) is (name not in EMPTY), name


async def test_random_and_odd_ledgers_are_judged_alike(
    spark: SparkSession, ledgers: LedgerStore, metadata_uri: str
) -> None:
    source = random.Random(5)
    for ledger_id in range(100, 300):
        await ledgers.create(random_ledger(source, BOOKIES), ledger_id=ledger_id)
    twice = ledger({0: [BOOKIES[0], BOOKIES[0], BOOKIES[1]]}, 2, 2, last_entry_id=9, length=99)
    await ledgers.create(twice, ledger_id=300)
    facts = AuditFacts(registrations=Registrations(tuple(BOOKIES[:2]), tuple(BOOKIES[1:3])), now_ms=0)

    plain = await audit_plainly([ledgers.read_all()], facts)
    by_spark = await asyncio.to_thread(audit_in_context, spark.sparkContext, metadata_uri, facts, 2)

    assert by_spark == plain
    assert plain.summary.ledgers == 62 + 201
    assert 300 in {found.ledger_id for found in plain.under_replicated}


async def test_with_every_bookie_gone_all_that_stores_entries_is_unavailable(
    spark: SparkSession, ledgers: LedgerStore, metadata_uri: str
) -> None:
    no_bookies = AuditFacts(registrations=Registrations(writable=(), read_only=()), now_ms=0)
    plain = await audit_plainly([ledgers.read_all()], no_bookies)
    by_spark = await asyncio.to_thread(audit_in_context, spark.sparkContext, metadata_uri, no_bookies, 2)

    assert by_spark == plain
    assert plain.summary.replicated == plain.summary.under_replicated == plain.summary.at_risk == 0
    assert plain.summary.unavailable + plain.summary.empty + plain.summary.unreadable == 62


async def test_a_directory_that_spark_cannot_write_is_told_in_one_sentence(
    spark: SparkSession, ledgers: LedgerStore, metadata_uri: str
) -> None:
    with pytest.raises(SparkReportError) as caught:
        await asyncio.to_thread(audit_in_context, spark.sparkContext, metadata_uri, FACTS, 2, out_directory="/proc")
    assert str(caught.value).startswith("the Spark job failed: ")
    assert "/proc/write_sets" in str(caught.value)
    assert str(caught.value).endswith(" (the report was for /proc)")
    assert "\n" not in str(caught.value)


async def test_a_report_never_overwrites_another_one(ledgers: LedgerStore, tmp_path: Path) -> None:
    (tmp_path / "old").write_text("precious")

    with pytest.raises(RefusedError, match="not empty"):
        await audit_plainly([ledgers.read_all()], FACTS, out_directory=str(tmp_path))

    assert [path.name for path in tmp_path.iterdir()] == ["old"]


def test_a_cluster_that_is_not_there_fails_before_the_job(spark: SparkSession, metadata_uri: str) -> None:
    with pytest.raises(ClusterNotFoundError, match="there is no BookKeeper cluster at"):
        audit_in_context(spark.sparkContext, metadata_uri, FACTS, 1)


async def test_a_small_cluster_is_one_task(
    spark: SparkSession, ledgers: LedgerStore, metadata_uri: str, tmp_path: Path
) -> None:
    """Each task writes one file."""
    reports = []
    for name, ledgers_count, is_divided in (("small", 62, False), ("unknown", None, True)):
        (tmp_path / name).mkdir()
        reports.append(
            await asyncio.to_thread(
                audit_in_context,
                spark.sparkContext,
                metadata_uri,
                FACTS,
                2,
                out_directory=str(tmp_path / name),
                ledgers=ledgers_count,
            )
        )
        assert (len(os.listdir(tmp_path / name / "write_sets")) > 1) is is_divided
    assert reports[0] == reports[1]
