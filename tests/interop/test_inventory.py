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
def client(cluster: JavaCluster, tmp_path: Path) -> Iterator[JavaClient]:
    client = JavaClient(cluster.metadata_uri, str(tmp_path / "client.log"))
    try:
        yield client
    finally:
        client.stop()


def logs_of(cluster: JavaCluster, bookie_id: str) -> list[Path]:
    return list(Path(cluster.directory_of(bookie_id), "ledgers", "current").glob("*.log"))


def stored_on(cluster: JavaCluster, bookie_id: str, ledger_id: int) -> list[int]:
    """The entries that the metadata places on a bookie: two of three, in an ensemble of three."""
    shown = cluster.run("ledger", "show", str(ledger_id), "-o", "json").json()
    index = shown["ensembles"][0]["ensemble"].index(bookie_id)
    return [entry_id for entry_id in range(ENTRY_COUNT) if (index - entry_id) % 3 < 2]


def test_a_lost_log_of_a_java_bookie_is_found_and_its_copies_are_restored(
    cluster: JavaCluster, client: JavaClient, znodes: KazooClient, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    storage = request.node.callspec.params["cluster"]
    root, out, victim = parse_metadata_uri(cluster.metadata_uri).root, tmp_path / "report", cluster.running[0]
    first = WrittenLedgers(client, znodes, root, count=5, entries=ENTRY_COUNT)
    cluster.stop(victim)
    lost_logs = logs_of(cluster, victim)
    cluster.restart(victim)
    second = WrittenLedgers(client, znodes, root, count=3, entries=ENTRY_COUNT)
    cluster.stop(victim)
    for log in lost_logs:
        log.unlink()
    assert lost_logs
    assert logs_of(cluster, victim), "what was written later is in another log"
    cluster.restart(victim)
    cluster.start_bookies(1, ledgerStorageClass=STORAGES[storage])  # stripes can move to it
    copies = len(first.ids + second.ids) * ENTRY_COUNT * 2
    assert cluster.run("audit", "--fail-on", "critical").exit_code == 0, "the metadata shows nothing"

    listed = cluster.run("audit", "--inventory").json()

    assert (listed["read_copies"], listed["bad_copies"]) == (0, 0), "the index has them still"
    known = (copies, 0) if storage == "interleaved" else (0, copies)
    assert (listed["listed_copies"], listed["unknown_copies"]) == known
    no_lists = [] if storage == "interleaved" else ["no_lists"]
    assert [each["part"] for each in listed["findings"]] == [*no_lists, "no_auditor"]

    spark = cluster.run("audit", "--spark", "--cores", "1", *READ_ALL, "--out", str(out))

    report = spark.json()
    assert (spark.exit_code, report["severity"]) == (10, "warning"), spark.stderr
    expected = {ledger_id: stored_on(cluster, victim, ledger_id) for ledger_id in first.ids}
    assert {
        (row["ledger_id"], row["bookie_id"], row["first_entry_id"], row["last_entry_id"], row["copies"])
        for row in report["bad_copy_ranges"]
    } == {(str(each), victim, str(ids[0]), str(ids[-1]), len(ids)) for each, ids in expected.items()}
    assert report["read_copies"] == copies - sum(map(len, expected.values()))

    repaired = cluster.run("recover", "ledger", "--from-file", str(out / "bad_copies.jsonl"), "--yes", "-o", "json")

    assert repaired.exit_code == 0, repaired.stdout + repaired.stderr
    clean = cluster.run("audit", *READ_ALL, "--fail-on", "critical")
    assert (clean.exit_code, clean.json()["read_copies"], clean.json()["bad_copies"]) == (0, copies, 0)
    first.require_all_copies()
    second.require_all_copies()


def test_entries_whose_every_copy_was_on_a_lost_log_are_critical(
    cluster: JavaCluster, client: JavaClient, znodes: KazooClient
) -> None:
    root, victims = parse_metadata_uri(cluster.metadata_uri).root, cluster.running[:2]
    ledgers = WrittenLedgers(client, znodes, root, count=3, entries=ENTRY_COUNT)
    for victim in victims:
        cluster.stop(victim)
        for log in logs_of(cluster, victim):
            log.unlink()
        cluster.restart(victim)

    found = cluster.run("audit", *READ_ALL, "--fail-on", "critical")

    report = found.json()
    gone = {
        ledger_id: set.intersection(*(set(stored_on(cluster, victim, ledger_id)) for victim in victims))
        for ledger_id in ledgers.ids
    }
    lost = [(row["ledger_id"], int(row["first_entry_id"]), row["entries"]) for row in report["lost_ranges"]]
    assert (found.exit_code, report["severity"]) == (10, "critical")
    assert lost == [(str(ledger_id), entry_id, 1) for ledger_id in sorted(gone) for entry_id in sorted(gone[ledger_id])]
    assert report["lost_entries"] == len(lost) == len(ledgers.ids) * ENTRY_COUNT // 3
