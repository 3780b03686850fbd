from __future__ import annotations

import asyncio

from bkctl.runtime.metadata.store import Node
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore


async def test_watching_children(store: ZooKeeperStore, other_store: ZooKeeperStore, root: str) -> None:
    seen: asyncio.Queue[list[str] | None] = asyncio.Queue()
    watch = store.watch_children(root, seen.put_nowait)
    assert await seen.get() is None
    await other_store.create(root, make_parents=True)
    assert await seen.get() == []
    await other_store.create(f"{root}/b")
    assert await seen.get() == ["b"]
    await other_store.delete(f"{root}/b")
    assert await seen.get() == []
    await other_store.delete(root)
    assert await seen.get() is None
    watch.cancel()
    await other_store.create(root)
    await store.sync(root)
    assert seen.empty()


async def test_watching_a_node(store: ZooKeeperStore, other_store: ZooKeeperStore, root: str) -> None:
    seen: asyncio.Queue[Node | None] = asyncio.Queue()
    store.watch_node(root, seen.put_nowait)
    assert await seen.get() is None
    await other_store.create(root, b"one", make_parents=True)
    first = await seen.get()
    await other_store.set(root, b"two", 0)
    second = await seen.get()
    await other_store.delete(root)
    assert await seen.get() is None
    assert first is not None
    assert second is not None
    assert (first.data, second.data) == (b"one", b"two")


async def test_a_callback_that_fails_is_called_again(store: ZooKeeperStore, root: str) -> None:
    seen: asyncio.Queue[Node | None] = asyncio.Queue()

    def fail(node: Node | None) -> None:
        seen.put_nowait(node)
        raise RuntimeError

    store.watch_node(root, fail)
    await seen.get()
    await store.create(root, make_parents=True)
    assert await seen.get() is not None
