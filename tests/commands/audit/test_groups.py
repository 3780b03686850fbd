"""``bkctl audit`` of ledgers with Pulsar's isolation groups: it finds what ``bkctl ledger show`` finds."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bkctl.runtime.ledger.changes import new_ledger, to_closed
from bkctl.runtime.ledger.metadata import DigestType
from bkctl.runtime.metadata.cluster.root import init_cluster
from bkctl.runtime.metadata.ledgers.ledgers import open_ledger_store
from bkctl.runtime.metadata.paths import Paths
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from tests.processes import run_bkctl
from tests.runtime.replication.samples import demand_of
from tests.snapshot_files import SampleCluster, cluster_nodes, write_snapshot

BOOKIES = [f"b{number}:3181" for number in range(6)]
GROUPS = {"gold": BOOKIES[:2], "silver": BOOKIES[2:4]}
"""The last two bookies are in no group."""
LEDGERS = {
    1: (BOOKIES[:2], demand_of(["gold"])),
    2: (BOOKIES[1:3], demand_of(["gold"])),
    3: (BOOKIES[2:4], demand_of(["gold"], ["silver"])),
    4: (BOOKIES[1:3], None),
    5: (BOOKIES[4:6], demand_of([""])),
    6: (BOOKIES[3:5], demand_of([""])),
    7: (BOOKIES[1:3], demand_of(["*"])),
    8: (BOOKIES[3:5], demand_of(["unknown"], ["silver"])),
    9: (BOOKIES[1:3], demand_of(["silver", "gold"])),
}


@pytest.fixture
async def uri(metadata_uri: str) -> AsyncIterator[str]:
    root = f"{metadata_uri}/ledgers"
    uri = parse_metadata_uri(root)
    async with await ZooKeeperStore.connect(uri.servers) as store:
        await init_cluster(store, uri.root, uri.tree, random.Random(1))
        node = {name: {each: {"rack": "/r"} for each in members} for name, members in GROUPS.items()}
        await store.create(f"{uri.root.removesuffix('/ledgers')}/bookies", json.dumps(node).encode())
        for bookie_id in BOOKIES:
            await store.create(Paths(uri.root).writable_bookie(bookie_id))
        ledgers = await open_ledger_store(store, uri.root, uri.tree)
        for ledger_id, (ensemble, demand) in LEDGERS.items():
            custom = () if demand is None else (demand,)
            made = new_ledger(tuple(ensemble), 2, 2, DigestType.CRC32C, b"", custom_metadata=custom)
            await ledgers.create(to_closed(made, 9, 1000), ledger_id=ledger_id)
        yield root


@pytest.mark.cluster
async def test_the_audit_finds_what_the_metadata_of_each_ledger_shows(uri: str) -> None:
    shown = run_bkctl("ledger", "show", *map(str, LEDGERS), "--metadata-uri", uri, "-o", "json").json()
    outside = {item["ledger_id"] for item in shown["items"] if item["broken_placement_rules"]}
    assert outside == {"2", "3", "6", "8"}
    assert {item["ledger_id"]: item["isolation_groups"] for item in shown["items"]} == {
        "1": "gold",
        "2": "gold",
        "3": "gold; if these are too few, silver",
        "4": None,
        "5": "bookies in no group",
        "6": "bookies in no group",
        "7": "*",
        "8": "unknown; if these are too few, silver",
        "9": "gold, silver",
    }

    done = run_bkctl("audit", "--metadata-uri", uri, "--fail-on", "outside_groups", "-o", "json")
    audit = done.json()
    assert done.exit_code == 10
    assert {row["ledger_id"] for row in audit["misplaced_ledgers"]} == outside
    assert (audit["misplaced"], audit["outside_groups"]) == (4, 4)
    assert (audit["too_few_racks"], audit["one_rack"]) == (None, None)
    assert [(row["group"], row["ledgers"], row["outside_ledgers"]) for row in audit["groups"]] == [
        ("gold", 4, 2),
        ("silver", 1, 0),
    ]
    (second,) = (row for row in audit["misplaced_ledgers"] if row["ledger_id"] == "2")
    assert (second["isolation_groups"], second["outside_bookies"]) == (["gold"], [BOOKIES[2]])
    wide = run_bkctl("audit", "--metadata-uri", uri, "-o", "wide").stdout
    assert "outside of their isolation groups gold:" in wide
    assert "base64" not in wide


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("groups") / "snapshot"
    cluster = SampleCluster(ledgers=60, isolation_groups=3, lost_bookies=0)
    with open(path, "wb") as file:
        write_snapshot(file, cluster_nodes(cluster), cluster.sessions)
    return str(path)


def test_the_page_and_the_rows_name_the_groups(snapshot: str, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    done = run_bkctl("audit", "--from", snapshot, "--out", str(tmp_path / "report"), "--fail-on", "lost")
    assert done.exit_code == 0, done
    page = (tmp_path / "report" / "report.html").read_text()
    assert "in its isolation groups (group-1)" in page
    assert "Isolation groups" in page
    rows = pq.read_table(tmp_path / "report" / "write_sets").to_pylist()
    assert {tuple(row["isolation_groups"]) for row in rows} == {("group-0",), ("group-1",), ("group-2",)}
    assert {tuple(row["secondary_groups"]) for row in rows} == {()}
    misplaced = pq.read_table(tmp_path / "report" / "misplaced").to_pylist()
    assert misplaced[0]["racks_min"] is None
    assert misplaced[0]["outside_bookies"]


def test_without_groups_it_is_unknown_who_is_outside(tmp_path: Path) -> None:
    path = tmp_path / "snapshot"
    cluster = SampleCluster(ledgers=3, lost_bookies=0, racks=1)
    nodes = (node for node in cluster_nodes(cluster) if node.path != "/bookies")
    with open(path, "wb") as file:
        write_snapshot(file, nodes, cluster.sessions)
    done = run_bkctl("audit", "--from", str(path), "--fail-on", "outside_groups")
    assert done.exit_code == 10
    assert (
        "outside_groups is unknown: no isolation group is known; so the exit code is that of a finding" in done.stderr
    )
