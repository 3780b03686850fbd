"""Allocation of ledger ids from ZooKeeper's counters of sequential nodes. Source: metadata section 12.

After a restore no id may be allocated twice. In new directories the counters start at 0 again. The generator retries
ids of existing ledgers, but it could allocate ids of ledgers that were deleted, or created after the backup: bookies
may still have entries and fences for them. So ``advance_ids`` first moves the generators past all of them:

- hierarchical, longhierarchical: a new high half, greater than that of any restored id and of any that the old cluster
  had begun, becomes the current one; ids continue at ``high * 2^32``
- flat, legacyhierarchical have short ids only: the counter is advanced, two requests per step
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable

from bkctl.runtime.errors import MetadataError, MetadataFormatError, NodeExistsError, NoNodeError
from bkctl.runtime.metadata.ledgers.layout import SHORT_ID_LIMIT, LedgerTree
from bkctl.runtime.metadata.paths import HIGH_ORDER_PREFIX, ID_PREFIX, Paths
from bkctl.runtime.metadata.pipeline import each_of, pipelined
from bkctl.runtime.metadata.store import MetadataStore, children_of
from bkctl.runtime.metadata.tree import WINDOW

logger = logging.getLogger(__name__)

_HIGH_ORDERS_KEPT = 3
_HIGH_ORDER_NAME = re.compile(HIGH_ORDER_PREFIX + r"(\d{1,19})", re.ASCII)
HIGH_ORDER_MAX = 2**31 - 1
"""Higher ones do not fit into a 63-bit id."""

_STEPS_MAX = 1_000_000
"""Maximum value to which a short counter is advanced: more would take minutes, and such ids were chosen by hand."""

_TREES_OF_LONG_IDS = frozenset({LedgerTree.HIERARCHICAL, LedgerTree.LONG_HIERARCHICAL})
_HIGH_NAME = re.compile(HIGH_ORDER_PREFIX + r"(\d{1,10})", re.ASCII)


class LedgerIdGenerator:
    """Ids for new ledgers of one cluster, unique across all its clients."""

    def __init__(self, store: MetadataStore, root: str, tree: LedgerTree) -> None:
        self._store = store
        self._paths = Paths(root)
        self._tree = tree
        self._is_long = False

    async def next_id(self) -> int:
        """A new id: a short one while there are any, then a long one if the layout supports it."""
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
            if high > HIGH_ORDER_MAX:
                path = self._high_order_path(high)
                raise MetadataFormatError(f"{path}: no ledger ids below 2^63 are left", path)
            low = await self._count(self._high_order_path(high))
            if low is None and high == HIGH_ORDER_MAX:
                raise MetadataFormatError(f"the cluster at {self._paths.root} has run out of ledger ids")
            if low is None:
                await self._create_high_order(high + 1)
                continue
            for obsolete in highs[:-_HIGH_ORDERS_KEPT]:
                with contextlib.suppress(MetadataError):
                    await self._store.delete(self._high_order_path(obsolete), 0)
            return (high << 32) + low

    async def _high_orders(self) -> list[int]:
        """High halves in use, ascending; ignores names of another form."""
        names = await self._store.children(self._paths.long_ids)
        found = (int(match[1]) for match in map(_HIGH_ORDER_NAME.fullmatch, names) if match)
        return sorted(high for high in found if high < 2**63)

    async def _create_high_order(self, high: int) -> None:
        with contextlib.suppress(NodeExistsError):
            await self._store.create(self._high_order_path(high), is_open_acl=True)

    def _high_order_path(self, high: int) -> str:
        return f"{self._paths.long_ids}/{HIGH_ORDER_PREFIX}{high:010d}"

    async def _count(self, directory: str) -> int | None:
        """Next number of the directory's counter; None when ZooKeeper's counter has reached its maximum."""
        prefix = f"{directory}/{ID_PREFIX}"
        try:
            path = await self._store.create(prefix, is_ephemeral=True, is_sequential=True, make_parents=True)
        except NodeExistsError:
            return None
        try:
            await self._store.delete(path)
        except MetadataError as error:
            logger.debug("%s stays until the session expires: %s", path, error)
        number = int(path[len(prefix) :])
        return number if 0 <= number < SHORT_ID_LIMIT else None


async def read_next_id(store: MetadataStore, root: str, tree: LedgerTree) -> int | None:
    """An id that no counter of the cluster has given yet, nor any higher one; None if there is no counter.

    Clients may choose ids themselves, also higher ones.
    """
    paths = Paths(root)
    high = 0
    directory = root if tree is LedgerTree.FLAT else paths.short_ids
    if tree in _TREES_OF_LONG_IDS:
        found = map(_HIGH_NAME.fullmatch, await children_of(store, paths.long_ids))
        high = max((int(match[1]) for match in found if match), default=0)
        if high:
            directory = f"{paths.long_ids}/{HIGH_ORDER_PREFIX}{high:010d}"
    stat = await store.exists(directory)
    return None if stat is None else (high << 32) + stat.children_created_count


class RestoredIds:
    """Ids found in an archive; memory grows only with the number of distinct high halves."""

    def __init__(self) -> None:
        self._highs: set[int] = {0}
        self._begun_high = 0
        self.short_id_max = -1
        """Greatest id that a short generator could have allocated."""

    def add_ledger(self, ledger_id: int) -> None:
        """Add the id of a ledger that exists or will be restored."""
        self._highs.add(ledger_id >> 32)
        if ledger_id < SHORT_ID_LIMIT:
            self.short_id_max = max(self.short_id_max, ledger_id)

    def add_generator(self, name: str) -> None:
        """Add a child of ``idgen-long``: its high half was in use even if none of its ledgers is left."""
        if found := _HIGH_NAME.fullmatch(name):
            self._begun_high = max(self._begun_high, int(found[1]))

    @property
    def next_high(self) -> int:
        """High half for new ids, greater than all in use.

        If an id chosen by hand uses the greatest one: the greatest free value that follows one in use.
        """
        used = self._highs | {self._begun_high}
        return max(high + 1 for high in used if high < HIGH_ORDER_MAX and high + 1 not in used)


def least_new_id(tree: LedgerTree, ids: RestoredIds) -> int | None:
    """Lowest id that a new ledger can get after ``advance_ids``; None if it is too far from 0 to advance to."""
    if tree in _TREES_OF_LONG_IDS:
        return ids.next_high << 32
    return max(ids.short_id_max, 0) + 1 if ids.short_id_max <= _STEPS_MAX else None


async def advance_ids(
    store: MetadataStore, root: str, tree: LedgerTree, ids: RestoredIds, *, before_each: Callable[[], None]
) -> int | None:
    """Move the generators past ``ids``; return the lowest id of a new ledger, None when that was too far to advance.

    Can be run again. A generator that is already further stays as it is.
    """
    if tree in _TREES_OF_LONG_IDS:
        before_each()
        return await _begin_high(store, Paths(root), ids.next_high) << 32
    directory = root if tree is LedgerTree.FLAT else Paths(root).short_ids
    return await _turn_counter(store, directory, ids.short_id_max, before_each)


async def _begin_high(store: MetadataStore, paths: Paths, high: int) -> int:
    for path in (paths.long_ids, f"{paths.long_ids}/{HIGH_ORDER_PREFIX}{high:010d}"):
        with contextlib.suppress(NodeExistsError):
            await store.create(path, is_open_acl=True)
    found = map(_HIGH_NAME.fullmatch, await store.children(paths.long_ids))
    return max(int(match[1]) for match in found if match)


async def _turn_counter(
    store: MetadataStore, directory: str, id_max: int, before_each: Callable[[], None]
) -> int | None:
    prefix = f"{directory}/{ID_PREFIX}"

    async def step(_: int = 0) -> int:
        before_each()
        path = await store.create(prefix, is_ephemeral=True, is_sequential=True, make_parents=True)
        with contextlib.suppress(NoNodeError):
            await store.delete(path)
        return int(path[len(prefix) :])

    number = await step()
    if id_max - number > _STEPS_MAX:
        return None
    async with contextlib.aclosing(pipelined(each_of(range(id_max - number)), step, WINDOW)) as steps:
        async for reached in steps:
            number = max(number, reached)
    return number + 1
