"""Ledgers that exist, but no longer name this bookie: their copies here are dropped. Source: storage section 7.4.

Whoever copies a ledger holds its replication lock until the metadata names the copy. So a copy that the metadata does
not name is dropped under that lock only, after a second look, and only of a closed ledger, whose ensembles no writer
changes any more. Its fence stays (``storage.engine.collected_ledgers``): a writer that does not know that the ledger is
closed must not append here again.

That the bookies which are named hold the ledger is not asked of them. Whoever copied it has proven it then, and what
was lost since could be made good by this copy: so none in limbo is dropped, and the collector drops none at all while
this bookie repairs a loss of its own, which may have been theirs as well.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from contextlib import aclosing

from runtime.bookie.collection.ledgers import ClusterGuard, LocalLedgers
from runtime.bookie.collection.metrics import GarbageCollectionMetrics
from runtime.errors import LedgerNotFoundError
from runtime.metadata.ledgers.ledgers import LedgerStore
from runtime.metadata.pipeline import each_of, pipelined
from runtime.metadata.replication.lock import ReplicationLocks
from runtime.metadata.store import MetadataStore
from storage.errors import BkctlError
from storage.ids import LedgerId

logger = logging.getLogger(__name__)


class OverreplicatedCollector:
    """Finds and deletes copies that the metadata does not name. ``own_ids``: every id this bookie is known by."""

    def __init__(
        self,
        local: LocalLedgers,
        guard: ClusterGuard,
        store: MetadataStore,
        locks: ReplicationLocks,
        own_ids: Collection[str],
        metrics: GarbageCollectionMetrics,
        in_flight_max: int,
    ) -> None:
        self._local = local
        self._guard = guard
        self._store = store
        self._locks = locks
        self._own_ids = frozenset(own_ids)
        self._metrics = metrics
        self._in_flight_max = in_flight_max

    async def collect(self, ledgers: LedgerStore) -> int:
        """One pass over all local ledgers; returns how many copies were deleted. BkctlError when none can be."""
        await self._guard.require_own_cluster()
        unknown: list[tuple[LedgerId, BkctlError]] = []

        async def look_at(ledger_id: LedgerId) -> bool:
            try:
                return await self._is_unnamed(ledgers, ledger_id) and await self._drop(ledgers, ledger_id)
            except BkctlError as error:
                unknown.append((ledger_id, error))
                return False

        outcomes = pipelined(each_of(self._local.snapshot()), look_at, self._in_flight_max)
        async with aclosing(outcomes):
            deleted_count = sum([is_deleted async for is_deleted in outcomes])
        if unknown:
            ledger_id, error = unknown[0]
            logger.warning("%d ledgers stay, of which ledger %d: %s", len(unknown), ledger_id, error)
        self._metrics.ledgers_overreplicated_count += deleted_count
        return deleted_count

    async def _drop(self, ledgers: LedgerStore, ledger_id: LedgerId) -> bool:
        lock = await self._locks.acquire(ledger_id)
        if lock is None:
            return False  # it is being copied, maybe to here
        async with lock:
            mark = self._local.mark(ledger_id)
            session_id = self._store.session_id
            await self._store.sync(ledgers.root)
            # Entries in the write cache: somebody may be copying it to here without the lock, as Java's tools do.
            if mark is None or mark.row is None or mark.row.is_limbo or mark.memtable_bytes is not None:
                return False
            if not await self._is_unnamed(ledgers, ledger_id):
                return False
            await self._guard.require_own_cluster()
            # Before the copy goes: once its row is gone, only this record says that the ledger takes no plain add.
            await self._local.keep_fence(ledger_id)
            is_sure = lock.is_held and session_id != 0 and self._store.session_id == session_id
            return is_sure and bool(self._local.delete({ledger_id: mark}))

    async def _is_unnamed(self, ledgers: LedgerStore, ledger_id: LedgerId) -> bool:
        """Whether a ledger is closed with this bookie in none of its ensembles."""
        try:
            metadata = (await ledgers.read(ledger_id)).value
        except LedgerNotFoundError:
            return False  # the pass over all ledgers sees to it
        return metadata.is_closed and not metadata.bookies() & self._own_ids
