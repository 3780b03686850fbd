from __future__ import annotations

import asyncio
import struct

import pytest

from runtime.errors import MetadataFormatError
from runtime.metadata.layout import LedgerTree
from runtime.metadata.ledger_ids import LedgerIdGenerator
from runtime.metadata.zookeeper import ZooKeeperStore


async def test_short_ids_count_from_zero(store: ZooKeeperStore, other_store: ZooKeeperStore, root: str) -> None:
    await store.create(root, make_parents=True)
    generators = [LedgerIdGenerator(each, root, LedgerTree.HIERARCHICAL) for each in (store, other_store)]
    ids = await asyncio.gather(*(generator.next_id() for generator in generators for _ in range(10)))
    assert sorted(ids) == list(range(20))
    assert await store.children(f"{root}/idgen") == []


async def test_the_flat_layout_counts_every_child_of_the_root(store: ZooKeeperStore, root: str) -> None:
    await store.create(f"{root}/LAYOUT", make_parents=True)
    generator = LedgerIdGenerator(store, root, LedgerTree.FLAT)
    assert [await generator.next_id(), await generator.next_id()] == [1, 2]
    assert await store.children(root) == ["LAYOUT"]


async def test_long_ids_where_the_directory_says_so(store: ZooKeeperStore, root: str) -> None:
    await store.create(f"{root}/idgen-long", make_parents=True)
    generator = LedgerIdGenerator(store, root, LedgerTree.LONG_HIERARCHICAL)
    assert [await generator.next_id() for _ in range(3)] == [2**32, 2**32 + 1, 2**32 + 2]
    assert await store.children(f"{root}/idgen-long") == ["HOB-0000000001"]


async def test_the_highest_high_half_counts_and_old_ones_go(store: ZooKeeperStore, root: str) -> None:
    for high in (1, 2, 3, 4, 5):
        await store.create(f"{root}/idgen-long/HOB-{high:010d}", make_parents=True)
    await store.create(f"{root}/idgen-long/HOB-junk")
    generator = LedgerIdGenerator(store, root, LedgerTree.HIERARCHICAL)
    assert await generator.next_id() == 5 << 32
    names = await store.children(f"{root}/idgen-long")
    assert names == ["HOB-0000000003", "HOB-0000000004", "HOB-0000000005", "HOB-junk"]


class CountsFrom:
    """The real store, but the counter of one directory stands elsewhere: ZooKeeper offers no way to set it."""

    def __init__(self, store: ZooKeeperStore, directory: str, start: int) -> None:
        self._store = store
        self._prefix = f"{directory}/ID-"
        self._next = start

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    async def create(self, path: str, data: bytes = b"", **options: bool) -> str:
        if path == self._prefix:
            number, self._next = self._next, min(self._next + 1, 2**31 - 1)
            return await self._store.create(f"{path}{number:010d}", is_ephemeral=True, make_parents=True)
        return await self._store.create(path, data, **options)


async def test_the_last_short_id_is_followed_by_the_first_long_one(store: ZooKeeperStore, root: str) -> None:
    """As Java was seen to do it (metadata section 12.2)."""
    await store.create(root, make_parents=True)
    counting = CountsFrom(store, f"{root}/idgen", 2147483644)
    generator = LedgerIdGenerator(counting, root, LedgerTree.HIERARCHICAL)  # type: ignore[arg-type]
    ids = [await generator.next_id() for _ in range(5)]
    assert ids == [2147483644, 2147483645, 2147483646, 4294967296, 4294967297]
    assert struct.pack(">q", ids[-1]) == b"\x00\x00\x00\x01\x00\x00\x00\x01"


async def test_a_used_up_high_half_is_followed_by_the_next(store: ZooKeeperStore, root: str) -> None:
    await store.create(f"{root}/idgen-long/HOB-0000000001", make_parents=True)
    counting = CountsFrom(store, f"{root}/idgen-long/HOB-0000000001", 2147483645)
    generator = LedgerIdGenerator(counting, root, LedgerTree.HIERARCHICAL)  # type: ignore[arg-type]
    assert [await generator.next_id() for _ in range(4)] == [6442450941, 6442450942, 8589934592, 8589934593]


@pytest.mark.parametrize("tree", [LedgerTree.FLAT, LedgerTree.LEGACY_HIERARCHICAL])
async def test_old_layouts_run_out(store: ZooKeeperStore, root: str, tree: LedgerTree) -> None:
    await store.create(root, make_parents=True)
    directory = root if tree is LedgerTree.FLAT else f"{root}/idgen"
    generator = LedgerIdGenerator(CountsFrom(store, directory, 2**31 - 1), root, tree)  # type: ignore[arg-type]
    with pytest.raises(MetadataFormatError, match="run out of ledger ids"):
        await generator.next_id()
