"""Walk and delete whole trees of nodes, with bounded concurrency and memory, while other clients may change them.

A walk visits each node once, at one version, depth first: a node before its children, siblings in order of their
names, so that paths ascend when compared component by component. It may miss nodes created or deleted during the walk.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncGenerator, Callable

import msgspec

from bkctl.runtime.config import ZooKeeperConfig
from bkctl.runtime.errors import NoNodeError, NotEmptyError
from bkctl.runtime.metadata.pipeline import each_of, pipelined
from bkctl.runtime.metadata.store import MetadataStore, Node, NodeReader, children_of, find_node

WINDOW = ZooKeeperConfig().in_flight_max

_EAGER_CHILDREN_MAX = 4
"""A node with at most this many children is read together with them: trees are often chains, slow to read singly."""

_DELETE_ROUNDS_MAX = 20
"""How often deletion retries a directory that other clients keep adding to."""


class TreeNode(msgspec.Struct, frozen=True, gc=False):
    """A node of a walk."""

    path: str
    node: Node


class _Fetched(msgspec.Struct, frozen=True):
    """A node, with its children if they were read with it."""

    found: TreeNode
    children: list[_Fetched] | None


def nothing_skipped(_: str) -> bool:
    """A filter that skips nothing."""
    return False


async def walk_tree(
    store: NodeReader, path: str, *, is_skipped: Callable[[str], bool] = nothing_skipped
) -> AsyncGenerator[TreeNode, None]:
    """Yield the node at ``path`` and all nodes below it; nothing when it is absent.

    Skips each path for which ``is_skipped`` is true, and everything below it, without reading it. Each level of the
    tree has at most ``WINDOW`` requests in flight.
    """
    top = await _fetch(store, path, is_skipped)
    if top is None:
        return
    async with contextlib.aclosing(_unfold(store, top, is_skipped)) as nodes:
        async for found in nodes:
            yield found


async def _unfold(
    store: NodeReader, fetched: _Fetched, is_skipped: Callable[[str], bool]
) -> AsyncGenerator[TreeNode, None]:
    yield fetched.found
    if fetched.children is not None:
        for child in fetched.children:
            async for found in _unfold(store, child, is_skipped):
                yield found
        return
    path = fetched.found.path
    async with contextlib.aclosing(
        pipelined(
            each_of(await _child_paths(store, path, is_skipped)), lambda child: _fetch(store, child, is_skipped), WINDOW
        )
    ) as children:
        async for each in children:
            if each is None:
                continue
            async for found in _unfold(store, each, is_skipped):
                yield found


async def _fetch(store: NodeReader, path: str, is_skipped: Callable[[str], bool]) -> _Fetched | None:
    """The node, or None when it is gone; with its children if they are few."""
    node = await find_node(store, path)
    if node is None:
        return None
    children: list[_Fetched] | None = []
    if node.stat.children_count > _EAGER_CHILDREN_MAX:
        children = None
    elif node.stat.children_count > 0:
        paths = await _child_paths(store, path, is_skipped)
        if len(paths) > _EAGER_CHILDREN_MAX:
            children = None
        else:
            fetched = [await _fetch(store, child, is_skipped) for child in paths]
            children = [child for child in fetched if child is not None]
    return _Fetched(TreeNode(path, node), children)


async def _child_paths(store: NodeReader, path: str, is_skipped: Callable[[str], bool]) -> list[str]:
    paths = (f"{path}/{name}" for name in await children_of(store, path))
    return [child for child in paths if not is_skipped(child)]


async def delete_tree(store: MetadataStore, path: str, *, before_each: Callable[[], None]) -> None:
    """Delete the node at ``path`` and all below it, including ephemeral nodes of other sessions.

    ``before_each`` is called before every deletion and may raise. Nodes that others create meanwhile are deleted too;
    NotEmptyError if they keep creating them. An absent node counts as deleted, so the call can be repeated.
    """
    for _ in range(_DELETE_ROUNDS_MAX):
        before_each()
        try:
            await store.delete(path)
        except NoNodeError:
            return
        except NotEmptyError:
            await _delete_below(store, path, before_each)
        else:
            return
    raise NotEmptyError(f"{path}: other processes keep creating nodes below it", path)


async def _delete_below(store: MetadataStore, path: str, before_each: Callable[[], None]) -> None:
    """Delete leaves concurrently, then the nodes that turned out to have children, one at a time."""

    async def has_children(child: str) -> bool:
        """Whether a node has children; a node without children is deleted."""
        before_each()
        try:
            await store.delete(child)
        except NotEmptyError:
            return True
        except NoNodeError:
            pass
        return False

    paths = await _child_paths(store, path, nothing_skipped)
    async with contextlib.aclosing(pipelined(each_of(paths), has_children, WINDOW)) as results:
        kept = [is_parent async for is_parent in results]
    for parent in itertools.compress(paths, kept):
        await delete_tree(store, parent, before_each=before_each)
