"""Stats and transactions for ``store``, without an import of kazoo (decision 7)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bkctl.runtime.metadata.store import CheckNode, CreateNode, NodeStat, NodeWrite, SetNode
from bkctl.runtime.metadata.zookeeper.errors import is_at_fault, translate


def node_stat(stat: Any) -> NodeStat:
    """The stat of the port for one of kazoo."""
    return NodeStat(
        version=stat.version,
        ctime_ms=stat.ctime,
        mtime_ms=stat.mtime,
        ephemeral_owner=stat.ephemeralOwner,
        children_count=stat.numChildren,
        children_created_count=children_created(stat.cversion, stat.numChildren),
    )


def children_created(cversion: int, children_count: int) -> int:
    """Children ever created: a server reports, in 32 bits, twice this number minus the number of children."""
    return (cversion + children_count & 0xFFFFFFFF) >> 1


def begin_transaction(client: Any, writes: Sequence[NodeWrite], acl: Sequence[Any]) -> Any:
    """Send all writes in one transaction; returns kazoo's asynchronous result."""
    transaction = client.transaction()
    for write in writes:
        if isinstance(write, CreateNode):
            transaction.create(write.path, write.data, acl, write.is_ephemeral)
        elif isinstance(write, SetNode):
            transaction.set_data(write.path, write.data, write.expected_version)
        elif isinstance(write, CheckNode):
            transaction.check(write.path, write.expected_version)
        else:
            transaction.delete(write.path, write.expected_version)
    return transaction.commit_async()


def stats_of(writes: Sequence[NodeWrite], results: Sequence[Any]) -> list[NodeStat | None]:
    """A stat for each SetNode of a transaction; if it failed, raises the error of the write at fault."""
    failures = [(write, result) for write, result in zip(writes, results, strict=True) if isinstance(result, Exception)]
    # The operations other than the one at fault have RolledBackError or RuntimeInconsistency.
    failures.sort(key=lambda failure: not is_at_fault(failure[1]))
    for write, result in failures:
        raise translate(result, write.path)
    return [
        node_stat(result) if isinstance(write, SetNode) else None for write, result in zip(writes, results, strict=True)
    ]
