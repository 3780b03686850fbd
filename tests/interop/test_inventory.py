"""``bkctl audit --inventory`` finds what a Java bookie lost with an entry log, whatever its storage.

After the repair Java reads every copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from bkctl.runtime.metadata.uri import parse_metadata_uri
from tests.interop.copy_watch import WrittenLedgers
from tests.interop.java import JavaClient
from tests.interop.java_cluster import STORAGE, JavaCluster

pytestmark = pytest.mark.battery

ENTRY_COUNT = 30
STORAGES = {
    "interleaved": "org.apache.bookkeeper.bookie.InterleavedLedgerStorage",
    "db": STORAGE["ledgerStorageClass"],
}
READ_ALL = ("--inventory", "--read", "--all-entries")


@pytest.fixture(params=STORAGES)
def cluster(
    request: pytest.FixtureRequest, new_metadata_uri: Callable[[], str], tmp_path: Path
) -> Iterator[JavaCluster]:
    """Three bookies with each ledger, before a fourth one comes, to which stripes can move."""
    with JavaCluster(str(tmp_path / "bookies"), new_metadata_uri()) as cluster:
        cluster.start_bookies(3, ledgerStorageClass=STORAGES[request.param])
        yield cluster


@pytest.fixture
def ledgers(cluster: JavaCluster, znodes: KazooClient, tmp_path: Path) -> Iterator[WrittenLedgers]:
    client = JavaClient(cluster.metadata_uri, str(tmp_path / "client.log"))
    root = parse_metadata_uri(cluster.metadata_uri).root
    try:
        yield WrittenLedgers(client, znodes, root, count=5, entries=ENTRY_COUNT)
    finally:
        client.stop()


def test_a_lost_log_of_a_java_bookie_is_found_and_its_copies_are_restored(
    cluster: JavaCluster, ledgers: WrittenLedgers, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    storage = request.node.callspec.params["cluster"]
    victim, out = cluster.running[0], tmp_path / "report"
    copies = len(ledgers.ids) * ENTRY_COUNT * 2
    cluster.stop(victim)
    logs = list(Path(cluster.directory_of(victim), "ledgers", "current").glob("*.log"))
    assert logs
    for log in logs:
        log.unlink()
    cluster.restart(victim)
    (spare,) = cluster.start_bookies(1, ledgerStorageClass=STORAGES[storage])
    assert cluster.run("audit").exit_code == 0, "the metadata shows nothing"

    listed = cluster.run("audit", "--inventory").json()
    known = (listed["listed_copies"], listed["unknown_copies"], listed["read_copies"])
    print(storage, listed["seconds"], known, listed["bad_copies"], listed["findings"], listed["holdings"])
    spark = cluster.run("audit", "--spark", "--cores", "2", *READ_ALL, "--out", str(out))
    report = spark.json()
    print(report["findings"], report["bad_copy_ranges"], report["holdings"])
    assert (known[0] + listed["bad_copies"], known[1]) == ((copies, 0) if storage == "interleaved" else (0, copies))

    assert spark.exit_code == 10, spark.stderr
    assert report["bad_copies"] == copies // 3
    assert {row["bookie_id"] for row in report["bad_copy_ranges"]} == {victim}
    assert sorted(int(row["ledger_id"]) for row in report["bad_copy_ranges"]) == sorted(ledgers.ids)
    assert {row["copies"] for row in report["bad_copy_ranges"]} == {ENTRY_COUNT * 2 // 3}
    repaired = cluster.run("recover", "ledger", "--from-file", str(out / "bad_copies.jsonl"), "--yes", "-o", "json")
    print(repaired.stdout)
    assert repaired.exit_code == 0, repaired.stderr
    clean = cluster.run("audit", *READ_ALL)
    assert (clean.exit_code, clean.json()["read_copies"], clean.json()["bad_copies"]) == (0, copies, 0)
    ledgers.require_all_copies()
    assert spare
