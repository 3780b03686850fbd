from __future__ import annotations

import asyncio
import struct

import pytest

from bkctl.runtime.errors import MetadataFormatError
from bkctl.runtime.metadata.ledgers.ids import LedgerIdGenerator, read_next_id
from bkctl.runtime.metadata.ledgers.layout import LedgerTree
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore


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


async def test_a_counter_that_sticks_is_a_counter_that_has_run_out(store: ZooKeeperStore, root: str) -> None:
    """At 2147483647 ZooKeeper gives the same name for ever: the node exists as long as somebody holds it."""
    await store.create(f"{root}/idgen/ID-2147483647", make_parents=True)
    counting = CountsFrom(store, f"{root}/idgen", 2**31 - 1)
    generator = LedgerIdGenerator(counting, root, LedgerTree.HIERARCHICAL)  # type: ignore[arg-type]
    assert await generator.next_id() == 2**32
    assert await store.children(f"{root}/idgen-long") == ["HOB-0000000001"]


async def test_a_negative_number_is_no_id(store: ZooKeeperStore, root: str) -> None:
    await store.create(root, make_parents=True)
    counting = CountsFrom(store, f"{root}/idgen", -5)
    generator = LedgerIdGenerator(counting, root, LedgerTree.HIERARCHICAL)  # type: ignore[arg-type]
    assert await generator.next_id() == 2**32


async def test_the_highest_high_half_there_can_be(store: ZooKeeperStore, root: str) -> None:
    last = f"{root}/idgen-long/HOB-2147483647"
    await store.create(last, make_parents=True)
    counting = CountsFrom(store, last, 2**31 - 2)
    generator = LedgerIdGenerator(counting, root, LedgerTree.LONG_HIERARCHICAL)  # type: ignore[arg-type]
    assert await generator.next_id() == (2**31 - 1 << 32) + 2**31 - 2 < 2**63 - 2
    with pytest.raises(MetadataFormatError, match="run out of ledger ids"):
        await generator.next_id()
    assert await store.children(f"{root}/idgen-long") == ["HOB-2147483647"]


@pytest.mark.parametrize("name", ["HOB-2147483648", "HOB-9999999999"])
async def test_a_high_half_too_high_is_refused(store: ZooKeeperStore, root: str, name: str) -> None:
    """Java shifts it out of the 64 bits, and may give ids a second time."""
    await store.create(f"{root}/idgen-long/{name}", make_parents=True)
    generator = LedgerIdGenerator(store, root, LedgerTree.LONG_HIERARCHICAL)
    with pytest.raises(MetadataFormatError, match=name):
        await generator.next_id()


async def test_names_that_are_no_high_half_are_passed_over(store: ZooKeeperStore, root: str) -> None:
    for name in (
        "HOB-",
        "HOB-x",
        "HOB-99999999999999999999",
        "HOB--1",
        "HOB-\u0661",
        "ID-5",
        "hob-0000000009",
        "HOB-0000000002",
    ):
        await store.create(f"{root}/idgen-long/{name}", make_parents=True)
    generator = LedgerIdGenerator(store, root, LedgerTree.LONG_HIERARCHICAL)
    assert await generator.next_id() == 2 << 32


@pytest.mark.parametrize("tree", list(LedgerTree))
async def test_the_next_id_is_higher_than_all_that_were_given(
    store: ZooKeeperStore, root: str, tree: LedgerTree
) -> None:
    assert await read_next_id(store, root, tree) is None
    await store.create(f"{root}/LAYOUT", make_parents=True)
    generator = LedgerIdGenerator(store, root, tree)
    for _ in range(3):
        given = await generator.next_id()
        assert await read_next_id(store, root, tree) == given + 1
    if tree in {LedgerTree.HIERARCHICAL, LedgerTree.LONG_HIERARCHICAL}:
        await store.create(f"{root}/idgen-long/HOB-0000000007", make_parents=True)
        assert await read_next_id(store, root, tree) == 7 << 32
