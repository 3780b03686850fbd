from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest

from bkctl.runtime.errors import NotEmptyError, RefusedError
from bkctl.runtime.metadata.store import MetadataStore, Node
from bkctl.runtime.metadata.tree import WINDOW, delete_tree, nothing_skipped, walk_tree
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from tests.runtime.metadata.trees import java_tree, persistent, plant, read_tree

TREE = persistent(java_tree("hierarchical at work"))


class WatchedStore:
    """Passes everything on; counts what is under way, and lets a test act before a read."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self.under_way = 0
        self.under_way_max = 0
        self.before_get: dict[str, str] = {}

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    async def get(self, path: str) -> Node:
        if victim := self.before_get.pop(path, None):
            await delete_tree(self._store, victim, before_each=lambda: None)
        self.under_way += 1
        self.under_way_max = max(self.under_way_max, self.under_way)
        try:
            return await self._store.get(path)
        finally:
            self.under_way -= 1


async def paths_of(store: MetadataStore, root: str, is_skipped: Callable[[str], bool] = nothing_skipped) -> list[str]:
    return [found.path[len(root) + 1 :] async for found in walk_tree(store, root, is_skipped=is_skipped)]


async def test_a_walk_sees_every_node_once_parents_first_in_order(store: ZooKeeperStore, root: str) -> None:
    await plant(store, root, TREE)
    found = {each.path[len(root) + 1 :]: each.node async for each in walk_tree(store, root)}
    assert {path: (node.data, node.stat.version) for path, node in found.items()} == {
        path: (node.data, node.version) for path, node in TREE.items()
    }
    assert list(found) == sorted(found, key=lambda path: path.split("/") if path else [])


async def test_what_is_skipped_is_left_out_with_all_below_it(store: ZooKeeperStore, root: str) -> None:
    await plant(store, root, TREE)
    skipped = {f"{root}/underreplication/ledgers", f"{root}/00", f"{root}/cookies/127.0.0.1:13381"}
    wanted = [
        path for path in TREE if not path.startswith(("underreplication/ledgers", "00", "cookies/127.0.0.1:13381"))
    ]
    wanted += ["000", *(path for path in TREE if path.startswith("000/"))]
    assert set(await paths_of(store, root, is_skipped=skipped.__contains__)) == set(wanted)


async def test_an_absent_tree_is_empty(store: ZooKeeperStore, root: str) -> None:
    assert await paths_of(store, root) == []
    await delete_tree(store, root, before_each=lambda: None)


@pytest.mark.parametrize("count", [1, 4, 5, 300])
async def test_many_siblings_are_read_ahead_but_not_too_many(store: ZooKeeperStore, root: str, count: int) -> None:
    await store.create(root, make_parents=True)
    await asyncio.gather(*(store.create(f"{root}/{number:04d}/x", make_parents=True) for number in range(count)))
    watched = WatchedStore(store)
    assert len(await paths_of(watched, root)) == 1 + 2 * count  # type: ignore[arg-type]
    assert watched.under_way_max <= WINDOW
    assert watched.under_way_max == WINDOW or count < 300


@pytest.mark.parametrize("seen", ["00", "00/0000", "cookies", "underreplication/ledgers/0000/0000/0000/0000"])
async def test_nodes_that_vanish_meanwhile_are_no_error(store: ZooKeeperStore, root: str, seen: str) -> None:
    await plant(store, root, TREE)
    watched = WatchedStore(store)
    watched.before_get[f"{root}/{seen}"] = f"{root}/{seen}"
    found = await paths_of(watched, root)  # type: ignore[arg-type]
    assert [path for path in TREE if not f"{path}/".startswith(f"{seen}/")] == found


async def test_a_walk_can_be_left_early(store: ZooKeeperStore, root: str) -> None:
    await plant(store, root, TREE)
    nodes = walk_tree(store, root)
    async with contextlib.aclosing(nodes):
        async for found in nodes:
            if found.path.endswith("L0005"):
                break
    assert (await store.get(root)).stat.children_count == 9


async def test_a_tree_is_deleted_to_the_last_node(store: ZooKeeperStore, root: str) -> None:
    await plant(store, root, java_tree("hierarchical at work"))
    calls = 0

    def count() -> None:
        nonlocal calls
        calls += 1

    await delete_tree(store, root, before_each=count)
    assert await store.exists(root) is None
    assert calls >= len(TREE)


async def test_a_deletion_that_was_stopped_anywhere_is_ended_by_the_next(store: ZooKeeperStore, root: str) -> None:
    total = len(TREE)
    for stop_after in (0, 1, 7, 20, total - 1):
        await plant(store, root, TREE)
        steps = iter(range(stop_after))

        def step(steps: AsyncIterator[int] | object = steps) -> None:
            if next(steps, None) is None:  # type: ignore[call-overload]
                raise RefusedError("stopped")

        with pytest.raises(RefusedError, match="stopped"):
            await delete_tree(store, root, before_each=step)
        assert len(await read_tree(store, root)) >= total - stop_after
        await delete_tree(store, root, before_each=lambda: None)
        assert await read_tree(store, root) == {}


async def test_others_may_delete_and_create_beside(
    store: ZooKeeperStore, other_store: ZooKeeperStore, root: str
) -> None:
    await plant(store, root, TREE)
    await asyncio.gather(
        delete_tree(store, root, before_each=lambda: None), delete_tree(other_store, root, before_each=lambda: None)
    )
    assert await store.exists(root) is None


async def test_it_gives_up_against_somebody_who_is_always_faster(store: ZooKeeperStore, root: str) -> None:
    await plant(store, root, {"": TREE[""], "a": TREE[""]})

    class Rival(WatchedStore):
        async def delete(self, path: str) -> None:
            if path == root:
                await self._store.create(f"{root}/again", is_sequential=True)
            await self._store.delete(path)

    with pytest.raises(NotEmptyError, match="other processes keep creating"):
        await delete_tree(Rival(store), root, before_each=lambda: None)  # type: ignore[arg-type]
