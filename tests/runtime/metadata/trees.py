"""Whole trees of nodes for tests: those that Java wrote, planted in a store and read back."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import NamedTuple

from bkctl.runtime.errors import NoNodeError
from bkctl.runtime.metadata.store import MetadataStore

_TREES = Path(__file__).parents[2] / "golden" / "metadata" / "trees.json"


class PlantedNode(NamedTuple):
    """A node of a tree; the path is below the root."""

    data: bytes
    version: int
    is_ephemeral: bool


def java_tree(name: str) -> dict[str, PlantedNode]:
    """A tree of ``trees.json`` by path below its root, parents first."""
    nodes = json.loads(_TREES.read_text())["trees"][name]
    root = nodes[0]["path"]
    return {
        node["path"][len(root) + 1 :]: PlantedNode(
            bytes.fromhex(node.get("data", "")), node["version"], node.get("ephemeral", False)
        )
        for node in nodes
    }


async def plant(store: MetadataStore, root: str, tree: dict[str, PlantedNode]) -> None:
    """Create the nodes, at the versions they had."""
    parent = root.rpartition("/")[0]
    if parent and await store.exists(parent) is None:
        await store.create(parent, make_parents=True)

    async def put(path: str, node: PlantedNode) -> None:
        await store.create(path, node.data, is_ephemeral=node.is_ephemeral)
        for version in range(node.version):
            await store.set(path, node.data, version)

    # The operations of a session are carried out in the order in which they begin: parents first.
    await asyncio.gather(*(put(f"{root}/{path}" if path else root, node) for path, node in tree.items()))


def persistent(tree: dict[str, PlantedNode]) -> dict[str, PlantedNode]:
    """The tree once all sessions have ended."""
    return {path: node for path, node in tree.items() if not node.is_ephemeral}


async def read_tree(store: MetadataStore, root: str) -> dict[str, PlantedNode]:
    """What there is below a root, read without the code under test; empty when there is none."""
    found: dict[str, PlantedNode] = {}

    async def read(path: str) -> None:
        node, names = await asyncio.gather(store.get(path), store.children(path))
        found[path[len(root) + 1 :]] = PlantedNode(node.data, node.stat.version, node.stat.ephemeral_owner != 0)
        await asyncio.gather(*(read(f"{path}/{name}") for name in names))

    try:
        await read(root)
    except NoNodeError:
        assert not found, "somebody deletes from the tree that is read"
    return {path: found[path] for path in sorted(found)}
