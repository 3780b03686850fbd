"""A real ZooKeeper loads the snapshot files that tests write, and has all that is in them."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from bkctl.runtime.metadata.bookies.registration import RegistrationClient
from bkctl.runtime.metadata.ledgers.layout import LedgerTree
from bkctl.runtime.metadata.ledgers.ledgers import open_ledger_store
from bkctl.runtime.metadata.store import Versioned
from bkctl.runtime.metadata.zookeeper.embedded import EmbeddedZooKeeper
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from tests.processes import run_bkctl
from tests.snapshot_files import SampleCluster, cluster_nodes, ledgers_of, write_for_server, write_snapshot

CLUSTER = SampleCluster(
    ledgers=12_000, first_ledger_id=2_147_480_000, tree=LedgerTree.HIERARCHICAL, bookies=7, read_only_bookies=2
)
"""On both sides of the id at which the hierarchical layout changes to the long form."""


@pytest.mark.cluster
async def test_a_server_serves_the_cluster_of_a_file(tmp_path: Path) -> None:
    write_for_server(tmp_path, CLUSTER)
    async with await EmbeddedZooKeeper.start(str(tmp_path)) as server:
        uri = f"zk://{server.connect_string}/ledgers"
        counted = run_bkctl("ledger", "list", "--count", "-o", "json", "--metadata-uri", uri)
        assert (counted.exit_code, counted.json()["count"]) == (0, 12_000), counted
        async with await ZooKeeperStore.connect(server.connect_string) as store:
            registrations = await RegistrationClient(store, "/ledgers").snapshot()
            ledgers = await open_ledger_store(store, "/ledgers")
            found = {
                ledger_id: each.value async for ledger_id, each in ledgers.read_all() if isinstance(each, Versioned)
            }
    assert found == dict(ledgers_of(CLUSTER))
    assert registrations.writable == tuple(CLUSTER.registered_ids[:4])
    assert registrations.read_only == tuple(CLUSTER.read_only_ids)
    log = (tmp_path / "zookeeper.log").read_text()
    assert "digest" not in log.lower() or "mismatch" not in log.lower()


@pytest.mark.parametrize("tree", LedgerTree)
def test_every_tree_can_be_written(tree: LedgerTree) -> None:
    cluster = SampleCluster(ledgers=7_000, tree=tree, first_ledger_id=5_000)
    nodes = list(cluster_nodes(cluster))
    ledger_ids = [ledger_id for ledger_id, _ in ledgers_of(cluster)]
    assert sorted(ledger_ids) == [*range(5_000, 12_000)]
    assert ledger_ids != sorted(ledger_ids)
    known = {""}
    for node in nodes:
        assert node.path.rpartition("/")[0] in known
        known.add(node.path)
    assert len(known) == len(nodes) + 1


def test_the_same_cluster_gives_the_same_bytes() -> None:
    files = [io.BytesIO(), io.BytesIO()]
    for file in files:
        write_snapshot(file, cluster_nodes(SampleCluster(ledgers=100)), {})
    assert files[0].getvalue() == files[1].getvalue()
