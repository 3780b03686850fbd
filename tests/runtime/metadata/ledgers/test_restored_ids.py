from __future__ import annotations

import asyncio

import pytest

from bkctl.runtime.ledger.changes import new_ledger
from bkctl.runtime.ledger.metadata import DigestType
from bkctl.runtime.metadata.ledgers.ids import LedgerIdGenerator, RestoredIds, advance_ids, least_new_id
from bkctl.runtime.metadata.ledgers.layout import LedgerTree
from bkctl.runtime.metadata.ledgers.ledgers import open_ledger_store
from bkctl.runtime.metadata.store import CreateNode
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore

LEDGER = new_ledger(("b1:3181",), 1, 1, DigestType.CRC32C, b"")
SHORT_TREES = [LedgerTree.FLAT, LedgerTree.LEGACY_HIERARCHICAL]
LONG_TREES = [LedgerTree.HIERARCHICAL, LedgerTree.LONG_HIERARCHICAL]


def ids_of(*ledger_ids: int, generators: tuple[str, ...] = ()) -> RestoredIds:
    ids = RestoredIds()
    for ledger_id in ledger_ids:
        ids.add_ledger(ledger_id)
    for name in generators:
        ids.add_generator(name)
    return ids


@pytest.mark.parametrize(
    ("ids", "next_high"),
    [
        (ids_of(), 1),
        (ids_of(0, 7, 2**31 - 2), 1),
        (ids_of(2**32), 2),
        (ids_of(2**33 + 5, 1), 3),
        (ids_of(1, generators=("HOB-0000000007", "HOB-x", "mine")), 8),
        (ids_of((2**31 - 2) << 32), 2**31 - 1),
        # Nothing is above an id of that size: the next free half below is taken.
        (ids_of(5, 2**63 - 2), 1),
        (ids_of(5, 2**33, 2**63 - 2), 3),
        (ids_of((2**31 - 2) << 32, 2**63 - 2, 2**32), 2),
    ],
)
def test_the_high_half_for_new_ids(ids: RestoredIds, next_high: int) -> None:
    assert ids.next_high == next_high
    assert (next_high << 32) + 2**31 - 2 < 2**63


@pytest.mark.parametrize("tree", LONG_TREES)
async def test_long_ids_go_on_above_all_that_were_in_use(store: ZooKeeperStore, root: str, tree: LedgerTree) -> None:
    await store.create(root, make_parents=True)
    ids = ids_of(7, 2**32 + 3)
    assert least_new_id(tree, ids) == 2**33
    for _ in range(2):
        assert await advance_ids(store, root, tree, ids, before_each=lambda: None) == 2**33
    assert await store.children(f"{root}/idgen-long") == ["HOB-0000000002"]
    assert await LedgerIdGenerator(store, root, tree).next_id() == 2**33
    await store.create(f"{root}/idgen-long/HOB-0000000009")
    assert await advance_ids(store, root, tree, ids, before_each=lambda: None) == 9 << 32


@pytest.mark.parametrize("tree", SHORT_TREES)
async def test_short_counters_are_turned(store: ZooKeeperStore, root: str, tree: LedgerTree) -> None:
    """Ids that were chosen by hand beyond the reach of the generator do not count."""
    await store.write_all([CreateNode(root.rpartition("/")[0]), CreateNode(root)])
    first = await advance_ids(store, root, tree, ids_of(700, 2**31), before_each=lambda: None)
    assert first is not None
    assert least_new_id(tree, ids_of(700, 2**31)) == 701 <= first <= 703
    assert await LedgerIdGenerator(store, root, tree).next_id() == first
    again = await advance_ids(store, root, tree, ids_of(700), before_each=lambda: None)
    assert again is not None
    assert first < again < first + 4, "a counter that is further is not turned"
    assert await store.children(root if tree is LedgerTree.FLAT else f"{root}/idgen") == []


@pytest.mark.parametrize("tree", SHORT_TREES)
async def test_a_short_counter_too_far_off_is_left(store: ZooKeeperStore, root: str, tree: LedgerTree) -> None:
    await store.create(root, make_parents=True)
    assert await advance_ids(store, root, tree, ids_of(2**31 - 2), before_each=lambda: None) is None
    assert least_new_id(tree, ids_of(2**31 - 2)) is None


@pytest.mark.parametrize("tree", LedgerTree)
async def test_new_ledgers_never_meet_restored_ones(store: ZooKeeperStore, root: str, tree: LedgerTree) -> None:
    await store.create(root, make_parents=True)
    ledgers = await open_ledger_store(store, root, tree)
    restored = [0, 5, 40, 41]
    for ledger_id in restored:
        await ledgers.create(LEDGER, ledger_id=ledger_id)
    first = await advance_ids(store, root, tree, ids_of(*restored, 60), before_each=lambda: None)
    created = await asyncio.gather(*(ledgers.create(LEDGER) for _ in range(20)))
    assert first is not None
    assert min(ledger_id for ledger_id, _ in created) >= first > 60
