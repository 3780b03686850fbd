"""The auditor finds copies that a Java bookie lost or that are corrupt. ``bkctl recover ledger`` writes the lost ones
again, and moves the stripes of corrupt ones; Java reads each copy alone."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from bkctl.runtime.client.api import LedgerClient
from bkctl.runtime.metadata.replication.directories import ForeignNames
from bkctl.runtime.metadata.replication.marks import list_marks
from bkctl.runtime.metadata.uri import parse_metadata_uri
from tests.interop.copy_watch import ENTRY_BYTES, WrittenLedgers
from tests.interop.java import RELEASES, JavaClient
from tests.interop.java_cluster import JavaCluster
from tests.runtime.autorecovery.test_checks_of_bookies import first_round

ENTRY_COUNT = 30


@pytest.fixture(scope="module", params=RELEASES)
def cluster(
    request: pytest.FixtureRequest, new_metadata_uri: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[JavaCluster]:
    """Three bookies: every ledger is on all of them, so that no other bookie can take a copy."""
    directory = tmp_path_factory.mktemp("java-bookies")
    with JavaCluster(str(directory), new_metadata_uri(), release=request.param) as cluster:
        cluster.start_bookies(3)
        yield cluster


@pytest.fixture
def ledgers(
    cluster: JavaCluster, znodes: KazooClient, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[WrittenLedgers]:
    release = request.node.callspec.params["cluster"]
    client = JavaClient(cluster.metadata_uri, str(tmp_path / "client.log"), release=release)
    root = parse_metadata_uri(cluster.metadata_uri).root
    try:
        yield WrittenLedgers(client, znodes, root, count=10, entries=ENTRY_COUNT)
    finally:
        client.stop()


def empty(directory: Path) -> None:
    """Delete everything but the cookies."""
    for kind in ("journal", "ledgers"):
        for path in (directory / kind / "current").iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != "VERSION":
                path.unlink()


def spoil(directory: Path, ledger_id: int) -> int:
    """Change the payload of every second entry of a ledger in the entry logs; returns their number.

    The good ones before them are on the disk next to them, so that Java's read-ahead reaches the old records.
    """
    found = 0
    for log in (directory / "ledgers" / "current").glob("*.log"):
        data = bytearray(log.read_bytes())
        for entry_id in range(ENTRY_COUNT):
            position = data.find(struct.pack(">qq", ledger_id, entry_id), 1024)
            if position >= 0:
                data[position + 100] ^= 0x55 * (found % 2)
                found += 1
        log.write_bytes(data)
    return found // 2


def shown(cluster: JavaCluster, ledger_ids: Sequence[int]) -> str:
    """What the metadata says about the ledgers."""
    result = cluster.run("ledger", "show", *map(str, ledger_ids), "-o", "json")
    assert result.exit_code == 0, result.stderr
    return result.stdout


def test_an_emptied_bookie_gets_its_entries_back_in_place(cluster: JavaCluster, ledgers: WrittenLedgers) -> None:
    metadata = shown(cluster, ledgers.ids)
    victim = cluster.running[0]
    cluster.stop(victim)
    empty(Path(cluster.directory_of(victim)))
    cluster.restart(victim)
    ids = [str(each) for each in ledgers.ids]
    verified = cluster.run("ledger", "verify", *ids, "-o", "json")
    assert verified.exit_code == 10
    missing = verified.json()["copies_missing"]
    assert missing == len(ids) * ENTRY_COUNT * 2 // 3

    repaired = cluster.run("recover", "ledger", *ids, "--yes", "-o", "json")

    assert repaired.exit_code == 0, repaired.stderr
    assert (repaired.json()["copies_written"], repaired.json()["copies_left"]) == (missing, 0)
    ledgers.require_all_copies()
    cluster.stop(victim)
    cluster.restart(victim)
    ledgers.require_all_copies()
    assert shown(cluster, ledgers.ids) == metadata


async def test_corrupt_copies_are_marked_and_their_stripe_moves_to_another_bookie(
    cluster: JavaCluster, ledgers: WrittenLedgers
) -> None:
    victim, ledger_id = cluster.running[0], ledgers.ids[4]
    cluster.stop(victim)
    spoilt = spoil(Path(cluster.directory_of(victim)), ledger_id)
    assert spoilt
    cluster.restart(victim)
    async with await LedgerClient.connect(cluster.metadata_uri) as client:
        found = await first_round(client)
        assert (found.copies_bad, found.copies_unknown) == (spoilt, 0)
        marks = [each async for each in list_marks(client.store, client.ports.ledgers.root, ForeignNames())]
        assert [(each.ledger_id, each.mark and each.mark.missing_bookies) for each in marks] == [(ledger_id, (victim,))]
    verified = cluster.run("ledger", "verify", str(ledger_id), "-o", "json")
    assert (verified.exit_code, verified.json()["copies_corrupt"]) == (10, spoilt)

    before = shown(cluster, [ledger_id])

    left = cluster.run("recover", "ledger", str(ledger_id), "--yes", "-o", "json")

    assert left.exit_code == 1
    assert [(each["bookie_id"], each["copies"]) for each in left.json()["left"]] == [(victim, spoilt)]
    assert shown(cluster, [ledger_id]) == before, "there is no other bookie"

    (spare,) = cluster.start_bookies(1)
    planned = cluster.run("recover", "ledger", str(ledger_id), "--dry-run", "-o", "json").json()["items"]
    assert [(each["action"], each["bookie_id"], each["copies"]) for each in planned] == [
        ("move stripe", victim, spoilt)
    ]
    assert planned[0]["bytes"] > planned[0]["stripe_entries"] * ENTRY_BYTES
    repaired = cluster.run("recover", "ledger", str(ledger_id), "--yes", "-o", "json")

    assert repaired.exit_code == 0, repaired.stdout + repaired.stderr
    report = repaired.json()
    assert (report["copies_written"], report["copies_moved"], report["stripes_moved"]) == (0, spoilt, 1)
    assert shown(cluster, [ledger_id]).count(spare) == before.count(victim) == 1
    for bookie_id in (victim, spare):  # ends with a flush: nothing is served from a write cache afterwards
        ledgers.require_all_copies()
        cluster.stop(bookie_id)
        cluster.restart(bookie_id)
    ledgers.require_all_copies()
