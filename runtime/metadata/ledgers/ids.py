"""Allocation of ledger ids from ZooKeeper's counters of sequential nodes. Source: metadata section 12."""

from __future__ import annotations

import contextlib
import logging
import re

from runtime.errors import MetadataError, MetadataFormatError, NodeExistsError
from runtime.metadata.ledgers.layout import SHORT_ID_LIMIT, LedgerTree
from runtime.metadata.paths import HIGH_ORDER_PREFIX, ID_PREFIX, Paths
from runtime.metadata.store import MetadataStore

logger = logging.getLogger(__name__)

_HIGH_ORDERS_KEPT = 3
_HIGH_ORDER_NAME = re.compile(HIGH_ORDER_PREFIX + r"(\d{1,19})", re.ASCII)
_HIGH_ORDER_MAX = 2**31 - 1
"""Higher ones do not fit into an id of 63 bits."""


class LedgerIdGenerator:
    """Ids for new ledgers of one cluster, unique across all its clients."""

    def __init__(self, store: MetadataStore, root: str, tree: LedgerTree) -> None:
        self._store = store
        self._paths = Paths(root)
        self._tree = tree
        self._is_long = False

    async def next_id(self) -> int:
        """A fresh id: a short one while they last, then, where the layout stores them, a long one."""
        if self._tree is LedgerTree.FLAT:
            return self._require_short(await self._count(self._paths.root))
        if self._tree is LedgerTree.LEGACY_HIERARCHICAL:
            return self._require_short(await self._count(self._paths.short_ids))
        if not self._is_long and await self._store.exists(self._paths.long_ids) is None:
            low = await self._count(self._paths.short_ids)
            if low is not None:
                return low
            with contextlib.suppress(NodeExistsError):
                await self._store.create(self._paths.long_ids, make_parents=True, is_open_acl=True)
        self._is_long = True
        return await self._next_long()

    def _require_short(self, low: int | None) -> int:
        if low is None:
            raise MetadataFormatError(f"the {self._tree.value} layout at {self._paths.root} has run out of ledger ids")
        return low

    async def _next_long(self) -> int:
        while True:
            highs = await self._high_orders()
            if not highs:
                await self._create_high_order(1)
                continue
            high = highs[-1]
            if high > _HIGH_ORDER_MAX:
                path = self._high_order_path(high)
                raise MetadataFormatError(f"{path}: it leaves no ledger ids below 2^63", path)
            low = await self._count(self._high_order_path(high))
            if low is None and high == _HIGH_ORDER_MAX:
                raise MetadataFormatError(f"the cluster at {self._paths.root} has run out of ledger ids")
            if low is None:
                await self._create_high_order(high + 1)
                continue
            for obsolete in highs[:-_HIGH_ORDERS_KEPT]:
                with contextlib.suppress(MetadataError):
                    await self._store.delete(self._high_order_path(obsolete), 0)
            return (high << 32) + low

    async def _high_orders(self) -> list[int]:
        """High halves in use, ascending; names of another form are nobody's business here."""
        names = await self._store.children(self._paths.long_ids)
        found = (int(match[1]) for match in map(_HIGH_ORDER_NAME.fullmatch, names) if match)
        return sorted(high for high in found if high < 2**63)

    async def _create_high_order(self, high: int) -> None:
        with contextlib.suppress(NodeExistsError):
            await self._store.create(self._high_order_path(high), is_open_acl=True)

    def _high_order_path(self, high: int) -> str:
        return f"{self._paths.long_ids}/{HIGH_ORDER_PREFIX}{high:010d}"

    async def _count(self, directory: str) -> int | None:
        """Next number of the directory's counter; None when it has run out, where ZooKeeper's counter sticks."""
        prefix = f"{directory}/{ID_PREFIX}"
        try:
            path = await self._store.create(prefix, is_ephemeral=True, is_sequential=True, make_parents=True)
        except NodeExistsError:
            return None
        try:
            await self._store.delete(path)
        except MetadataError as error:
            logger.debug("%s stays until the session ends: %s", path, error)
        number = int(path[len(prefix) :])
        return number if 0 <= number < SHORT_ID_LIMIT else None
