"""The locks of a command that was killed: ZooKeeper deletes them when its session ends, which takes some seconds."""

from __future__ import annotations

from bkctl.runtime.metadata.cluster.operation_lock import DIRECTORY, operation_lock_path
from bkctl.runtime.metadata.store import MetadataStore


async def end_locks(store: MetadataStore, root: str) -> None:
    """Delete all locks of operations on this cluster now."""
    lock = operation_lock_path(root).rpartition("/")[2]
    for name in await store.children(DIRECTORY):
        if name.partition(",")[0] == lock:
            await store.delete(f"{DIRECTORY}/{name}")
