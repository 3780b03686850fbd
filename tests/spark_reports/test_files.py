"""Spark over files: a backup and a snapshot give the rows and the report of the live cluster."""

from __future__ import annotations

import asyncio
import gzip
from contextlib import nullcontext
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession

from bkctl.runtime.config import LayoutConfig
from bkctl.runtime.errors import MetadataFormatError
from bkctl.runtime.ledger.metadata import LedgerState
from bkctl.runtime.metadata.backup.archive import ArchiveHeader
from bkctl.runtime.metadata.backup.backup import backup_cluster
from bkctl.runtime.metadata.bookies.registration import RegistrationClient
from bkctl.runtime.metadata.ledgers.ledgers import LedgerStore
from bkctl.runtime.metadata.snapshot.cluster import ClusterFile, LedgersInFile, describes_cluster, find_cluster
from bkctl.runtime.metadata.snapshot.node_file import SnapshotFile
from bkctl.runtime.metadata.snapshot.opening import open_plain, read_newest
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from bkctl.runtime.placement.rack_sources import RackTable
from bkctl.runtime.placement.rules import PlacementRules
from bkctl.runtime.placement.survey import BookieSurvey
from bkctl.runtime.replication.cluster_audit.facts import AuditFacts
from bkctl.runtime.replication.cluster_audit.tables import AuditReport
from bkctl.spark_reports.audit import audit_in_context, audit_plainly
from bkctl.spark_reports.cluster_sources import register_sources
from bkctl.spark_reports.errors import SparkReportError
from bkctl.spark_reports.hadoop_files import HadoopPath, fetch_file
from bkctl.spark_reports.live import LiveLookup
from bkctl.spark_reports.write_set_source import WriteSetSource
from bkctl.storage.adapters.filesystem import OsFileSystem
from tests.runtime.replication.samples import ledger
from tests.snapshot_files import SampleCluster, cluster_nodes, write_snapshot
from tests.spark_reports.conftest import BOOKIES, FACTS

FS = OsFileSystem()
SOURCES = ("write_sets", "bookies", "marks")


@pytest.fixture
async def cluster(ledgers: LedgerStore, metadata_uri: str, tmp_path: Path) -> ClusterFile:
    return await file_of(ledgers, metadata_uri, tmp_path)


async def file_of(ledgers: LedgerStore, metadata_uri: str, tmp_path: Path) -> ClusterFile:
    """A backup of the live cluster, as a snapshot."""
    uri = parse_metadata_uri(metadata_uri)
    path = str(tmp_path / "backup")
    header = ArchiveHeader(root=uri.root, instance_id=None, layout=ledgers.tree.value, created="now")
    async with await ZooKeeperStore.connect(uri.servers) as store:
        await backup_cluster(store, header, ledgers.tree, FS, path)
    plain = open_plain(FS, path, str(tmp_path))
    with SnapshotFile(FS, plain.path) as file:
        survey = file.survey(describes_cluster(uri.root))
    found, _ = await find_cluster(plain.path, survey, uri.root, None, LayoutConfig())
    return found


def write_sample(directory: Path, sample: SampleCluster) -> str:
    path = directory / "snapshot.1"
    with path.open("wb") as output:
        write_snapshot(output, cluster_nodes(sample), sample.sessions)
    return str(path)


async def audit_file(cluster: ClusterFile) -> AuditReport:
    with SnapshotFile(FS, cluster.path) as file:
        return await audit_plainly(LedgersInFile(file, cluster).by_piece(), FACTS)


async def test_a_file_has_the_report_of_the_live_cluster(
    spark: SparkSession, ledgers: LedgerStore, cluster: ClusterFile
) -> None:
    live = await audit_plainly([ledgers.read_all()], FACTS)
    assert live.summary.ledgers == 62
    assert await audit_file(cluster) == live
    assert await asyncio.to_thread(audit_in_context, spark.sparkContext, None, FACTS, 2, cluster=cluster) == live


async def test_the_pieces_of_a_file_go_to_several_tasks(spark: SparkSession, tmp_path: Path) -> None:
    sample = SampleCluster(ledgers=15_000)
    path = write_sample(tmp_path, sample)
    with SnapshotFile(FS, path) as file:
        survey = file.survey(describes_cluster(sample.root), piece_bytes=1)
    cluster, store = await find_cluster(path, survey, sample.root, None, LayoutConfig())
    facts = AuditFacts(registrations=await RegistrationClient(store, sample.root).snapshot(), now_ms=FACTS.now_ms)
    assert len(cluster.pieces) > 1
    assert facts.registrations.live == frozenset(sample.registered_ids)

    with SnapshotFile(FS, path) as file:
        plain = await audit_plainly(LedgersInFile(file, cluster).by_piece(), facts)
    assert plain.summary.ledgers == 15_000
    assert plain.summary.under_replicated > 1_000
    assert await asyncio.to_thread(audit_in_context, spark.sparkContext, None, facts, 2, cluster=cluster) == plain


async def test_findings_are_looked_up_where_the_cluster_is_now(
    spark: SparkSession, ledgers: LedgerStore, metadata_uri: str, cluster: ClusterFile
) -> None:
    """One that is deleted, one that is repaired, one whose state changed, and one that only the live cluster has."""
    before = await audit_file(cluster)
    deleted, repaired, closed, *_ = [found for found in before.under_replicated if found.ledger_state == "open"]
    await ledgers.delete(deleted.ledger_id)
    stored = await ledgers.read(repaired.ledger_id)
    segments = tuple(
        msgspec.structs.replace(segment, ensemble=tuple(BOOKIES[: len(segment.ensemble)]))
        for segment in stored.value.segments
    )
    await ledgers.write(repaired.ledger_id, msgspec.structs.replace(stored.value, segments=segments), stored.version)
    stored = await ledgers.read(closed.ledger_id)
    await ledgers.write(
        closed.ledger_id, msgspec.structs.replace(stored.value, state=LedgerState.IN_RECOVERY), stored.version
    )

    now = await audit_plainly([ledgers.read_all()], FACTS)
    looked_up = await asyncio.to_thread(audit_in_context, spark.sparkContext, metadata_uri, FACTS, 2, cluster=cluster)

    counts = looked_up.summary
    assert counts.looked_up >= len(before.under_replicated) + len(before.unreadable)
    assert counts.deleted_since == 1
    assert counts.ledgers == before.summary.ledgers - 1
    assert without_lookups(looked_up) == now


def without_lookups(report: AuditReport) -> AuditReport:
    zeros = dict.fromkeys(("looked_up", "not_looked_up", "deleted_since", "healthy_since"), 0)
    return msgspec.structs.replace(report, summary=msgspec.structs.replace(report.summary, **zeros))


async def test_findings_that_miss_no_copy_are_looked_up_too(
    spark: SparkSession, ledgers: LedgerStore, metadata_uri: str, tmp_path: Path
) -> None:
    """Both bookies of the first are in one rack, one of the second is read-only, the third stays as it is."""
    for ledger_id, second, state in (
        (501, 3, LedgerState.CLOSED),
        (502, 4, LedgerState.OPEN),
        (503, 3, LedgerState.CLOSED),
    ):
        made = ledger({0: [BOOKIES[0], BOOKIES[second]]}, 2, 2, state=state, last_entry_id=9)
        await ledgers.create(made, ledger_id=ledger_id)
    cluster = await file_of(ledgers, metadata_uri, tmp_path)
    before = await audit_file(cluster)
    assert {501, 503} <= {found.ledger_id for found in before.misplaced}
    await ledgers.delete(501)
    stored = await ledgers.read(502)
    await ledgers.write(502, ledger({0: BOOKIES[:2]}, 2, 2, state=LedgerState.OPEN), stored.version)

    now = await audit_plainly([ledgers.read_all()], FACTS)
    lookup = LiveLookup(lambda: nullcontext(ledgers))
    with SnapshotFile(FS, cluster.path) as file:
        plain = await audit_plainly(LedgersInFile(file, cluster).by_piece(), FACTS, lookup=lookup)
    by_spark = await asyncio.to_thread(audit_in_context, spark.sparkContext, metadata_uri, FACTS, 2, cluster=cluster)

    assert now.summary.misplaced == (before.summary.misplaced or 0) - 1
    assert now.summary.unwritable == before.summary.unwritable - 1
    assert without_lookups(plain) == now
    assert (plain.summary.deleted_since, plain.summary.healthy_since, plain.summary.not_looked_up) == (1, 1, 0)
    assert by_spark == plain


async def test_of_too_many_findings_that_miss_no_copy_some_are_not_looked_up(
    spark: SparkSession, ledgers: LedgerStore, metadata_uri: str, tmp_path: Path
) -> None:
    """Two pieces, whose ledgers are all in one rack, and do not exist now."""
    sample = SampleCluster(ledgers=17_000, first_ledger_id=100_000, lost_bookies=0, read_only_bookies=0)
    path = write_sample(tmp_path, sample)
    with SnapshotFile(FS, path) as file:
        survey = file.survey(describes_cluster(sample.root), piece_bytes=2_000_000)
    cluster, store = await find_cluster(path, survey, sample.root, None, LayoutConfig())
    registrations = await RegistrationClient(store, sample.root).snapshot()
    racks = dict.fromkeys(registrations.writable, "/r0") | {"other:3181": "/r1"}
    registrations = msgspec.structs.replace(registrations, writable=(*registrations.writable, "other:3181"))
    rules = PlacementRules(min_racks_per_write_quorum=2)
    survey_of_racks = BookieSurvey(writable=frozenset(registrations.writable), tables=(RackTable(racks),), rules=rules)
    facts = AuditFacts(registrations=registrations, now_ms=FACTS.now_ms, survey=survey_of_racks)
    assert len(cluster.pieces) == 2

    report = await asyncio.to_thread(audit_in_context, spark.sparkContext, metadata_uri, facts, 2, cluster=cluster)
    assert (report.summary.looked_up, report.summary.deleted_since) == (10_000, 10_000)
    assert report.summary.not_looked_up == report.summary.ledgers == 7_000
    with SnapshotFile(FS, path) as file:
        lookup = LiveLookup(lambda: nullcontext(ledgers))
        assert await audit_plainly(LedgersInFile(file, cluster).by_piece(), facts, lookup=lookup) == report


async def test_a_notebook_reads_the_rows_of_a_file(
    spark: SparkSession, metadata_uri: str, cluster: ClusterFile
) -> None:
    spark.dataSource.register(WriteSetSource)
    live = spark.read.format("bookkeeper_write_sets").option("metadata_uri", metadata_uri).load()
    reader = spark.read.format("bookkeeper_write_sets").option("ledgers_root", cluster.root)
    by_path = reader.load(cluster.path)
    expected = sorted(map(str, live.collect()))
    assert len(expected) > 62
    assert sorted(map(str, by_path.collect())) == expected

    assert fetch_file(spark.sparkContext, f"file://{cluster.path}") != cluster.path
    by_name = reader.load(Path(cluster.path).name)
    assert sorted(map(str, by_name.collect())) == expected


async def test_a_file_that_was_cut_since_fails_the_job(spark: SparkSession, cluster: ClusterFile) -> None:
    path = Path(cluster.path)
    path.write_bytes(path.read_bytes()[: cluster.pieces[-1].end - 1])
    with pytest.raises(
        MetadataFormatError, match=r"the Spark job failed: snapshot .* is damaged at byte \d+: it is truncated"
    ):
        await asyncio.to_thread(audit_in_context, spark.sparkContext, None, FACTS, 2, cluster=cluster)
    with pytest.raises(MetadataFormatError, match="it is truncated"):
        await audit_file(cluster)


def test_a_file_that_hadoop_does_not_have(spark: SparkSession) -> None:
    with pytest.raises(
        SparkReportError, match=r"Spark cannot read file:///nowhere/snapshot\.1: File .* does not exist"
    ):
        HadoopPath(spark.sparkContext, "file:///nowhere/snapshot.1")


def test_the_newest_whole_snapshot_of_a_directory_that_hadoop_has(spark: SparkSession, tmp_path: Path) -> None:
    older, newer = tmp_path / "version-2" / "snapshot.9a", tmp_path / "version-2" / "snapshot.f0"
    older.parent.mkdir()
    skipped: list[str] = []

    def fetch(path: HadoopPath) -> tuple[str, str]:
        fetched = fetch_file(spark.sparkContext, str(path))
        nodes_of(fetched)
        return fetched, str(path)

    with pytest.raises(FileNotFoundError, match="there is no complete snapshot file in it"):
        read_newest(HadoopPath(spark.sparkContext, f"file://{tmp_path}"), fetch, pytest.fail)
    whole = Path(write_sample(tmp_path, SampleCluster(ledgers=5))).read_bytes()
    older.write_bytes(whole)
    newer.write_bytes(whole[:-20])
    (older.parent / "snapshot.f1.gz").write_bytes(b"cut")
    damaged = bytearray(whole)
    damaged[len(whole) // 2] ^= 1
    (older.parent / "snapshot.f2").write_bytes(damaged)
    (tmp_path / "snapshot.1").unlink()

    (path, uri), number = read_newest(HadoopPath(spark.sparkContext, f"file://{tmp_path}"), fetch, skipped.append)
    newer.write_bytes(whole[:-10])  # it is still written
    assert spark.range(1).count() == 1, "the executor got the one file that is read"
    assert (uri, number) == (f"file://{older}", 3)
    assert Path(path).read_bytes() == whole
    assert len(skipped) == 3
    assert skipped[2] == f"file://{newer} is not complete: reading an older snapshot"


def nodes_of(path: str) -> int:
    with SnapshotFile(FS, path) as file:
        return file.survey(lambda _: False).nodes


def test_a_notebook_skips_a_damaged_snapshot_of_a_directory(spark: SparkSession, tmp_path: Path) -> None:
    register_sources(spark)
    whole = Path(write_sample(tmp_path, SampleCluster(ledgers=5))).read_bytes()
    (tmp_path / "snapshot.2.gz").write_bytes(gzip.compress(whole)[:-20])
    counts = {name: spark.read.format(f"bookkeeper_{name}").load(str(tmp_path)).count() for name in SOURCES}
    one_file = str(tmp_path / "snapshot.1")
    assert counts == {name: spark.read.format(f"bookkeeper_{name}").load(one_file).count() for name in SOURCES}
    assert all(counts.values())
