"""A whole tree of nodes: walk it, delete it. Bounded requests under way, flat memory, others may work beside.

A walk sees each node once, at one version, depth first: a node before its children, siblings in the order of their
names, so that paths ascend when compared component by component. A node that comes or goes meanwhile is seen or not.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncGenerator, Callable

import msgspec

from runtime.config import ZooKeeperConfig
from runtime.errors import NoNodeError, NotEmptyError
from runtime.metadata.pipeline import each_of, pipelined
from runtime.metadata.store import MetadataStore, Node, NodeReader, children_of, find_node

WINDOW = ZooKeeperConfig().in_flight_max

_EAGER_CHILDREN_MAX = 4
"""A node of so few children is read together with them: trees are often chains, which would be read one by one."""

_DELETE_ROUNDS_MAX = 20
"""How often a directory is emptied again because others keep filling it."""


class TreeNode(msgspec.Struct, frozen=True, gc=False):
    """A node of a walk."""

    path: str
    node: Node


class _Fetched(msgspec.Struct, frozen=True):
    """A node, with its children where they were read already."""

    found: TreeNode
    children: list[_Fetched] | None


def nothing_skipped(_: str) -> bool:
    """Every node is wanted."""
    return False


async def walk_tree(
    store: NodeReader, path: str, *, is_skipped: Callable[[str], bool] = nothing_skipped, window: int = WINDOW
) -> AsyncGenerator[TreeNode, None]:
    """The node at ``path`` and all below it; nothing when it is absent.

    A path for which ``is_skipped`` is left out with all below it, unread. At most ``window`` requests are under way on
    one level; the levels above it wait.
    """
    top = await _fetch(store, path, is_skipped)
    if top is None:
        return
    nodes = _unfold(store, top, is_skipped, window)
    async with contextlib.aclosing(nodes):
        async for found in nodes:
            yield found


async def _unfold(
    store: NodeReader, fetched: _Fetched, is_skipped: Callable[[str], bool], window: int
) -> AsyncGenerator[TreeNode, None]:
    yield fetched.found
    if fetched.children is not None:
        for child in fetched.children:
            async for found in _unfold(store, child, is_skipped, window):
                yield found
        return
    path = fetched.found.path
    children = pipelined(
        each_of(await _child_paths(store, path, is_skipped)), lambda child: _fetch(store, child, is_skipped), window
    )
    async with contextlib.aclosing(children):
        async for each in children:
            if each is None:
                continue
            async for found in _unfold(store, each, is_skipped, window):
                yield found


async def _fetch(store: NodeReader, path: str, is_skipped: Callable[[str], bool]) -> _Fetched | None:
    """The node, None when it is gone; its children too if they are few."""
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
    """Delete the node at ``path`` and all below it, ephemeral nodes of others too.

    ``before_each`` is called before every deletion and may raise. What others create meanwhile is deleted as well;
    NotEmptyError when they are faster for too long. An absent node counts as deleted, so this can be run again.
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
    """Delete leaves with many requests under way, then what turned out to have children, one after the other."""

    async def has_children(child: str) -> bool:
        """Whether a node has children; without any it is deleted."""
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
