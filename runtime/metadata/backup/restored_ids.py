"""New ledger ids after a restore: never one that was in use before.

ZooKeeper's counters start at 0 again in new directories. An id that is taken is retried, but the counter would also
give out ids of ledgers that were deleted, or created after the backup: bookies may still hold entries under those, and
fences. So the generators are moved past everything first (metadata section 12):

- hierarchical, longhierarchical: a new high half, greater than that of any restored id and of any the old cluster had
  begun, is made the current one; ids go on at ``high * 2^32``
- flat, legacyhierarchical have short ids alone: the counter is turned, two requests per step
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable

from runtime.errors import NodeExistsError, NoNodeError
from runtime.metadata.ledgers.layout import SHORT_ID_LIMIT, LedgerTree
from runtime.metadata.paths import HIGH_ORDER_PREFIX, ID_PREFIX, Paths
from runtime.metadata.pipeline import each_of, pipelined
from runtime.metadata.store import MetadataStore
from runtime.metadata.tree import WINDOW

_HIGH_LIMIT = 2**31
_STEPS_MAX = 1_000_000
"""A short counter is not turned further than this: it takes minutes, and ids so far off were chosen by hand."""

_TREES_OF_LONG_IDS = frozenset({LedgerTree.HIERARCHICAL, LedgerTree.LONG_HIERARCHICAL})
_HIGH_NAME = re.compile(HIGH_ORDER_PREFIX + r"(\d{1,10})", re.ASCII)


class RestoredIds:
    """What ids an archive mentions; memory grows with the number of their distinct high halves alone."""

    def __init__(self) -> None:
        self._highs: set[int] = {0}
        self._begun_high = 0
        self.short_id_max = -1
        """Greatest id that a short generator could have given out."""

    def add_ledger(self, ledger_id: int) -> None:
        """A ledger of this id was or will be."""
        self._highs.add(ledger_id >> 32)
        if ledger_id < SHORT_ID_LIMIT:
            self.short_id_max = max(self.short_id_max, ledger_id)

    def add_generator(self, name: str) -> None:
        """A child of ``idgen-long``: its high half was in use even if no ledger is left of it."""
        if found := _HIGH_NAME.fullmatch(name):
            self._begun_high = max(self._begun_high, int(found[1]))

    @property
    def next_high(self) -> int:
        """High half for new ids, greater than all in use.

        Where an id chosen by hand leaves nothing above it: the greatest that follows one in use and is free itself.
        """
        used = self._highs | {self._begun_high}
        return max(high + 1 for high in used if high + 1 < _HIGH_LIMIT and high + 1 not in used)


def least_new_id(tree: LedgerTree, ids: RestoredIds) -> int | None:
    """Least id that a new ledger can get after ``advance_ids``; None where that is too far to go from nothing."""
    if tree in _TREES_OF_LONG_IDS:
        return ids.next_high << 32
    return max(ids.short_id_max, 0) + 1 if ids.short_id_max <= _STEPS_MAX else None


async def advance_ids(
    store: MetadataStore, root: str, tree: LedgerTree, ids: RestoredIds, *, before_each: Callable[[], None]
) -> int | None:
    """Move the generators past ``ids``; the least id that a new ledger will get, None when that was too far to go.

    Can be run again; a generator that is further already stays as it is.
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
    steps = pipelined(each_of(range(id_max - number)), step, WINDOW)
    async with contextlib.aclosing(steps):
        async for reached in steps:
            number = max(number, reached)
    return number + 1
