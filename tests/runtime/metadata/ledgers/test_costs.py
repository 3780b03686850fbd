"""What each action costs in operations of ZooKeeper, counted on a real server."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from bkctl.runtime.ledger.changes import new_ledger
from bkctl.runtime.ledger.metadata import DigestType
from bkctl.runtime.metadata.cluster.root import init_cluster
from bkctl.runtime.metadata.ledgers.ids import LedgerIdGenerator
from bkctl.runtime.metadata.ledgers.layout import LedgerTree
from bkctl.runtime.metadata.ledgers.ledgers import LedgerStore, open_ledger_store
from bkctl.runtime.metadata.paths import Paths
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from bkctl.storage.measures import Outcomes

OPEN = new_ledger(("b1:3181", "b2:3181"), 2, 2, DigestType.CRC32C, b"secret")
IDS = [0, 1, 10_000, 2**40]
NODES = len(["root", "00", "00/0000", "00/0001", "000", "000/0001", "000/0001/*", "000/0001/*/*"])
BUCKETS = 3


def counts_operations(session: ZooKeeperStore, counted: list[str]) -> None:
    """Every request of the session, parents and failures included, is written down."""
    request = session._request

    async def count(path: str, outcomes: Outcomes, submit: Callable[[], object], **kind: bool) -> object:
        counted.append(path)
        return await request(path, outcomes, submit, **kind)

    session._request = count  # type: ignore[method-assign]


@pytest.fixture
async def ledgers(store: ZooKeeperStore, root: str) -> LedgerStore:
    await init_cluster(store, root, LedgerTree.HIERARCHICAL, random.Random(1))
    ledgers = await open_ledger_store(store, root)
    for ledger_id in IDS:
        await ledgers.create(OPEN, ledger_id=ledger_id)
    return ledgers


async def test_listings(store: ZooKeeperStore, ledgers: LedgerStore) -> None:
    counted: list[str] = []
    counts_operations(store, counted)
    assert await ledgers.count() == len(IDS)
    assert len(counted) == 3 + NODES
    counted.clear()
    assert [ledger_id async for ledger_id, _ in ledgers.read_all()] == IDS
    assert len(counted) == 3 + NODES + len(IDS)
    counted.clear()
    assert len([part async for part in ledgers.list_parts()]) == BUCKETS + 1
    assert len(counted) == 3 + 2 * NODES
    counted.clear()
    assert len(await ledgers.subtrees()) == BUCKETS
    assert len(counted) == 3 + NODES - BUCKETS


@pytest.mark.parametrize(
    ("ledger_id", "create_cost", "delete_cost"),
    [
        (2, 1, 2),  # beside others
        (20_000, 1 + 2 * 1, 3),  # alone in its bucket
        (10**8, 1 + 2 * 2, 3),  # alone below its top node; nobody tries to delete the root
        (2**41, 1 + 2 * 3, 5),
    ],
)
async def test_one_ledger(
    store: ZooKeeperStore, ledgers: LedgerStore, ledger_id: int, create_cost: int, delete_cost: int
) -> None:
    counted: list[str] = []
    counts_operations(store, counted)
    await ledgers.create(OPEN, ledger_id=ledger_id)
    assert len(counted) == create_cost
    counted.clear()
    await ledgers.write(ledger_id, OPEN, 0)
    await ledgers.read(ledger_id)
    assert len(counted) == 2
    counted.clear()
    await ledgers.delete(ledger_id)
    assert len(counted) == delete_cost


@pytest.mark.parametrize(
    ("tree", "is_long", "costs"),
    [
        (LedgerTree.HIERARCHICAL, False, [3, 3]),
        (LedgerTree.LONG_HIERARCHICAL, True, [4, 3]),
        (LedgerTree.LEGACY_HIERARCHICAL, False, [2, 2]),
        (LedgerTree.FLAT, False, [2, 2]),
    ],
)
async def test_ids(store: ZooKeeperStore, root: str, tree: LedgerTree, is_long: bool, costs: list[int]) -> None:
    paths = Paths(root)
    await store.create(f"{paths.long_ids}/HOB-0000000001" if is_long else paths.short_ids, make_parents=True)
    generator = LedgerIdGenerator(store, root, tree)
    counted: list[str] = []
    counts_operations(store, counted)
    for cost in costs:
        counted.clear()
        await generator.next_id()
        assert len(counted) == cost
