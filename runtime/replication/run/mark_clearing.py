"""Clears marks that are not needed: under the replication lock, at the version read, with a copy saved first.

The lock keeps workers away from the ledger meanwhile. The version protects a mark that was renewed. But an auditor that
finds its bookie in the mark writes nothing: a bookie that fails after the last look would go unnoticed. So marks are
judged again after they are cleared, and those needed by then are set again.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence

from bkctl.runtime.errors import MetadataFormatError
from bkctl.runtime.metadata.paths import Paths
from bkctl.runtime.metadata.replication.format import decode_mark
from bkctl.runtime.metadata.replication.lock import ReplicationLock, ReplicationLocks
from bkctl.runtime.metadata.replication.marks import UnderReplicationMarks
from bkctl.runtime.metadata.store import MetadataStore, Node, find_node

_AT_ONCE_MAX = 64

KeepNodes = Callable[[Sequence[tuple[str, Node]]], None]
"""Saves nodes, with their paths, before they are deleted."""
AreNeeded = Callable[[Sequence[int]], Awaitable[Collection[int]]]
"""Looks again, and returns the ledgers whose marks are needed."""


class ClearOutcome(enum.Enum):
    """What became of a mark that was to be cleared. The values appear in reports."""

    CLEARED = "cleared"
    GONE = "cleared by another process"
    RENEWED = "renewed meanwhile"
    LOCKED = "worker is busy"
    NEEDED = "needed again"

    @property
    def is_cleared(self) -> bool:
        """Whether the mark is gone."""
        return self in {ClearOutcome.CLEARED, ClearOutcome.GONE}


class MarkClearing:
    """Clears marks of one cluster."""

    def __init__(self, store: MetadataStore, root: str, marks: UnderReplicationMarks, locks: ReplicationLocks) -> None:
        self._store = store
        self._paths = Paths(root)
        self._marks = marks
        self._locks = locks

    async def clear(
        self,
        versions: Sequence[tuple[int, int]],
        are_needed: AreNeeded,
        keep: KeepNodes,
        on_done: Callable[[int, ClearOutcome], None],
    ) -> None:
        """Clear the marks of these ledgers if they still have these versions, and the directories that become empty.

        ``on_done`` receives each ledger and what became of its mark. A MetadataError ends the work; marks that were
        cleared stay so.
        """
        for first in range(0, len(versions), _AT_ONCE_MAX):
            outcomes = await self._clear_some(dict(versions[first : first + _AT_ONCE_MAX]), are_needed, keep)
            for ledger_id, outcome in outcomes.items():
                on_done(ledger_id, outcome)

    async def _clear_some(
        self, versions: dict[int, int], are_needed: AreNeeded, keep: KeepNodes
    ) -> dict[int, ClearOutcome]:
        outcomes: dict[int, ClearOutcome] = {}
        locks: dict[int, ReplicationLock] = {}
        nodes: dict[int, Node] = {}

        async def take(ledger_id: int) -> None:
            """Lock the ledger, and read its mark if that still has its version."""
            lock = await self._locks.acquire(ledger_id)
            if lock is None:
                outcomes[ledger_id] = ClearOutcome.LOCKED
                return
            locks[ledger_id] = lock
            node = await find_node(self._store, self._paths.mark(ledger_id))
            if node is None:
                outcomes[ledger_id] = ClearOutcome.GONE
            elif node.stat.version != versions[ledger_id]:
                outcomes[ledger_id] = ClearOutcome.RENEWED
            else:
                nodes[ledger_id] = node

        try:
            await _all(map(take, versions))
            found = [ledger_id for ledger_id in versions if ledger_id in nodes]
            needed = frozenset(await are_needed(found)) if found else frozenset[int]()
            outcomes |= dict.fromkeys(needed & nodes.keys(), ClearOutcome.NEEDED)
            due = {ledger_id: nodes[ledger_id] for ledger_id in found if ledger_id not in needed}
            if due:
                keep([(self._paths.mark(ledger_id), node) for ledger_id, node in due.items()])
                await _all(self._delete(locks[ledger_id], node, outcomes) for ledger_id, node in due.items())
                await self._set_again(due, are_needed, outcomes)
        finally:
            await asyncio.gather(*(lock.release() for lock in locks.values()))
        return {ledger_id: outcomes[ledger_id] for ledger_id in versions}

    async def _delete(self, lock: ReplicationLock, node: Node, outcomes: dict[int, ClearOutcome]) -> None:
        if not lock.is_held:
            outcomes[lock.ledger_id] = ClearOutcome.LOCKED
            return
        is_cleared = await self._marks.clear(lock.ledger_id, node.stat.version)
        outcomes[lock.ledger_id] = ClearOutcome.CLEARED if is_cleared else ClearOutcome.RENEWED

    async def _set_again(
        self, nodes: dict[int, Node], are_needed: AreNeeded, outcomes: dict[int, ClearOutcome]
    ) -> None:
        await self._store.sync(self._paths.root)
        cleared = [ledger_id for ledger_id in nodes if outcomes[ledger_id] is ClearOutcome.CLEARED]
        for ledger_id in await are_needed(cleared) if cleared else ():
            await self._marks.mark(ledger_id, _missing_bookies(nodes[ledger_id]))
            outcomes[ledger_id] = ClearOutcome.NEEDED


def _missing_bookies(node: Node) -> tuple[str, ...]:
    """Bookies that a mark names; none if it cannot be read: then a worker checks all of them anyway."""
    try:
        return decode_mark(node.data).missing_bookies
    except MetadataFormatError:
        return ()


async def _all(work: Iterable[Awaitable[None]]) -> None:
    """Do all work; if some fails, raise its error once the rest has ended."""
    for result in await asyncio.gather(*work, return_exceptions=True):
        if result is not None:
            raise result
