"""Creation and identity of a cluster's root. Source: metadata section 3."""

from __future__ import annotations

import contextlib
import random
import uuid

import msgspec

from bkctl.runtime.config import LayoutConfig
from bkctl.runtime.errors import ClusterNotFoundError, MetadataAuthError, NodeExistsError, NoNodeError, RefusedError
from bkctl.runtime.metadata.ledgers.layout import LedgerLayout, LedgerTree, choose_tree, encode_layout, read_layout
from bkctl.runtime.metadata.ledgers.ledgers import require_no_other_tree
from bkctl.runtime.metadata.paths import Paths
from bkctl.runtime.metadata.store import CreateNode, MetadataStore, find_node

RESTORE_MARK = b"bkctl restore "
"""Prefix of the root's own data during a restore; the archive's hash follows. Java ignores this data."""


_OF_ROOTS = frozenset({"INSTANCEID", "LAYOUT"})
"""Children that only the root of a cluster has."""
_NODES_MAX = 200
"""Of a search for other roots."""


class ClusterInfo(msgspec.Struct, frozen=True):
    """Identity of a cluster; ``instance_id`` None is legal, ``layout`` None means none is recorded."""

    root: str
    instance_id: str | None
    layout: LedgerLayout | None


async def read_cluster_info(store: MetadataStore, root: str, layout_config: LayoutConfig | None = None) -> ClusterInfo:
    """Identity of the cluster below ``root``; ClusterNotFoundError when there is none."""
    await require_cluster(store, root)
    return ClusterInfo(
        root=root,
        instance_id=await read_instance_id(store, root),
        layout=await _read_layout(store, root, layout_config),
    )


async def _read_layout(store: MetadataStore, root: str, config: LayoutConfig | None) -> LedgerLayout | None:
    is_shaded_factory_allowed = config is not None and config.is_shaded_factory_allowed
    return await read_layout(store, root, is_shaded_factory_allowed=is_shaded_factory_allowed)


async def require_cluster(store: MetadataStore, root: str) -> None:
    """ClusterNotFoundError unless there is a node at ``root``."""
    if await store.exists(root) is None:
        raise ClusterNotFoundError(root)


async def other_roots(store: MetadataStore) -> list[str]:
    """Roots with a cluster, at most two levels deep, as far as they can be read: ``/ledgers``, or below a chroot."""
    found: list[str] = []
    nodes = [f"/{each}" for each in (await store.children("/"))[:_NODES_MAX] if each != "zookeeper"]
    for path in nodes:
        with contextlib.suppress(MetadataAuthError, NoNodeError):
            children = await store.children(path)
            if not _OF_ROOTS.isdisjoint(children):
                found.append(path)
            elif path.count("/") == 1:
                nodes += [f"{path}/{each}" for each in children[: max(0, _NODES_MAX - len(nodes))]]
    return found


async def read_instance_id(store: MetadataStore, root: str) -> str | None:
    """Identity of this incarnation, untrimmed as Java reads it; None when the cluster has none."""
    node = await find_node(store, Paths(root).instance_id)
    return node.data.decode("utf-8", "replace") if node is not None else None


async def init_cluster(
    store: MetadataStore,
    root: str,
    tree: LedgerTree | None,
    random_source: random.Random,
    layout_config: LayoutConfig | None = None,
) -> tuple[ClusterInfo, bool]:
    """Create the cluster below ``root`` unless it exists; return its identity and whether this call created it.

    A new root appears complete in one transaction. In an existing one, only missing directories and LAYOUT are added. A
    missing INSTANCEID stays missing, because existing cookies without it would no longer match.
    ``layout_config`` selects the layout to record when ``tree`` is None.
    ConfigurationError when the existing layout is a different one, MetadataFormatError when none is recorded and there
    are nodes of a different one. RefusedError when a restore is unfinished: the nodes that it has not yet created keep
    bookies out on purpose.
    """
    paths = Paths(root)
    nodes = [
        CreateNode(root),
        CreateNode(paths.available),
        CreateNode(paths.read_only),
        CreateNode(paths.instance_id, new_instance_id(random_source).encode()),
        CreateNode(paths.layout, encode_layout(LedgerLayout(choose_tree(None, tree, layout_config)))),
    ]
    is_created = await _create_root(store, nodes)
    if not is_created:
        if await is_restore_unfinished(store, root):
            raise RefusedError(f"nothing was changed: {unfinished_restore_text(root)}")
        recorded = await _read_layout(store, root, layout_config)
        chosen_tree = choose_tree(recorded, tree, layout_config)
        if recorded is None:
            await require_no_other_tree(store, root, chosen_tree)
        await _create_if_absent(store, paths.available)
        await _create_if_absent(store, paths.read_only)
        await _create_if_absent(store, paths.layout, encode_layout(LedgerLayout(chosen_tree)))
    return await read_cluster_info(store, root, layout_config), is_created


async def is_restore_unfinished(store: MetadataStore, root: str) -> bool:
    """Whether ``root`` holds only part of a cluster because a restore has begun and not finished; one read."""
    node = await find_node(store, root)
    return node is not None and node.data.startswith(RESTORE_MARK)


def unfinished_restore_text(root: str) -> str:
    """Explain an unfinished restore and how to fix it."""
    return (
        f"a restore into {root} is unfinished, so only a part of the cluster is there: run bkctl cluster restore "
        "again with the same backup, or remove what it restored with bkctl cluster nuke"
    )


async def clear_restore_mark(store: MetadataStore, root: str) -> None:
    """Record that no restore is running."""
    node = await store.get(root)
    if node.data.startswith(RESTORE_MARK):
        await store.set(root, b"", node.stat.version)


async def is_health_check_enabled(store: MetadataStore, root: str) -> bool:
    """Whether clients may keep bookies in quarantine; ClusterNotFoundError."""
    await require_cluster(store, root)
    return await store.exists(Paths(root).health_check_disabled) is None


async def switch_health_check(store: MetadataStore, root: str, *, is_enabled: bool) -> bool:
    """Set the switch; return whether that changed it."""
    path = Paths(root).health_check_disabled
    try:
        await (store.delete(path) if is_enabled else store.create(path))
    except (NodeExistsError, NoNodeError):
        return False
    return True


async def _create_root(store: MetadataStore, nodes: list[CreateNode]) -> bool:
    root = nodes[0].path
    if await store.exists(root) is not None:
        return False
    parent = root.rpartition("/")[0]
    if parent:
        await _create_if_absent(store, parent)
    try:
        await store.write_all(nodes)
    except NodeExistsError:
        return False  # another process is initializing the same root
    return True


async def _create_if_absent(store: MetadataStore, path: str, data: bytes = b"") -> None:
    with contextlib.suppress(NodeExistsError):
        await store.create(path, data, make_parents=True)


def new_instance_id(random_source: random.Random) -> str:
    """A random UUID as text, 36 characters."""
    return str(uuid.UUID(int=random_source.getrandbits(128), version=4))
