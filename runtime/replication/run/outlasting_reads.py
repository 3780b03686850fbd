"""Reads that outlast an outage of the metadata store, for long work that changes nothing."""

from __future__ import annotations

from collections.abc import Callable

from bkctl.runtime.metadata.budgeted_store import BudgetedStore
from bkctl.runtime.metadata.outage import MetadataOutage, OutageWait
from bkctl.runtime.metadata.request_budget import RequestBudget
from bkctl.runtime.metadata.store import MetadataStore, Node, NodeStat
from bkctl.runtime.ports import Clock


class OutlastingReads(BudgetedStore):
    """Like ``BudgetedStore``, but each read is repeated until the store answers again: MetadataOutageError.

    Only for reads: a write whose answer was lost may have been carried out.
    """

    def __init__(
        self,
        store: MetadataStore,
        budget: RequestBudget,
        clock: Clock,
        wait_max_s: float,
        on_outage: Callable[[MetadataOutage], None] = lambda _: None,
    ) -> None:
        super().__init__(store, budget)
        self._outage = OutageWait(lambda: store.exists("/"), clock, wait_max_s, on_outage)

    async def get(self, path: str) -> Node:
        """Contents; NoNodeError."""
        read = super().get
        return await self._outage.outlast(lambda: read(path))

    async def exists(self, path: str, on_change: Callable[[], None] | None = None) -> NodeStat | None:
        """Stat, or None when absent."""
        read = super().exists
        return await self._outage.outlast(lambda: read(path, on_change))

    async def children(self, path: str, on_change: Callable[[], None] | None = None) -> list[str]:
        """Sorted child names; NoNodeError."""
        read = super().children
        return await self._outage.outlast(lambda: read(path, on_change))

    async def sync(self, path: str) -> None:
        """Make the reads that follow see everything finished before this call."""
        read = super().sync
        await self._outage.outlast(lambda: read(path))
