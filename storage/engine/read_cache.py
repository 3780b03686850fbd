"""The most recently read bodies and batches, up to a number of bytes.

Unlike in Java (H18), a body is the copy that the index row referenced at the read, and adding the entry again drops it.
Batches are the answers to reads of many consecutive entries: those who follow a ledger all read the same.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple

from bkctl.storage.ids import INVALID_ENTRY_ID, EntryId, LedgerId

OVERHEAD_BYTES: Final = 256
"""Cost of an entry in addition to its body: key and ids, and its places in the two dicts."""

_BATCHES_SHARE: Final = 4
"""Batches may use a quarter of the cache."""

_BATCH_BYTES_MIN: Final = 4 * 1024
"""Smaller ones cost little without the cache. Limits how many there are."""

_NONE: Final[frozenset[EntryId]] = frozenset()


class BatchKey(NamedTuple):
    """A request for consecutive entries."""

    ledger_id: LedgerId
    first_entry_id: EntryId
    count_max: int
    bytes_max: int


class KeptBatch(NamedTuple):
    """The entries of an answer, encoded."""

    block: bytes
    entry_count: int


class ReadCache:
    """LRU cache of bodies, by (ledger, entry), and of batches. Only the loop uses it."""

    __slots__ = ("_batch_bytes", "_batch_ends", "_batches", "_bodies", "_entry_ids", "limit_bytes", "used_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self._bodies: OrderedDict[tuple[LedgerId, EntryId], bytes] = OrderedDict()
        self._entry_ids: dict[LedgerId, set[EntryId]] = {}
        """Cached entries by ledger, so that a deletion need not search the whole cache."""
        self._batches: OrderedDict[BatchKey, KeptBatch] = OrderedDict()
        self._batch_bytes = 0
        self._batch_ends: dict[LedgerId, EntryId] = {}
        """No batch of the ledger has a higher entry."""
        self.limit_bytes = limit_bytes
        self.used_bytes = 0

    def __len__(self) -> int:
        return len(self._bodies)

    def __contains__(self, key: tuple[LedgerId, EntryId]) -> bool:
        return key in self._bodies

    def find(self, ledger_id: LedgerId, entry_id: EntryId) -> bytes | None:
        """Body of an entry, or None when it is not cached."""
        key = (ledger_id, entry_id)
        body = self._bodies.get(key)
        if body is not None:
            self._bodies.move_to_end(key)
        return body

    def put(self, ledger_id: LedgerId, entry_id: EntryId, body: bytes) -> None:
        """Cache a body, evicting the least recently used ones; a body larger than the limit is not cached."""
        self.put_many(ledger_id, [entry_id], [body])

    def put_many(self, ledger_id: LedgerId, entry_ids: Sequence[EntryId], bodies: Sequence[bytes]) -> None:
        """Like ``put`` for each, with the loops in the interpreter's C code."""
        self._forget(ledger_id, entry_ids)
        if max(map(len, bodies), default=self.limit_bytes) + OVERHEAD_BYTES > self.limit_bytes:
            fitting = [len(body) + OVERHEAD_BYTES <= self.limit_bytes for body in bodies]
            entry_ids = list(itertools.compress(entry_ids, fitting))
            bodies = list(itertools.compress(bodies, fitting))
            if not bodies:
                return
        self._entry_ids.setdefault(ledger_id, set()).update(entry_ids)
        self._bodies.update(zip(zip(itertools.repeat(ledger_id), entry_ids), bodies, strict=False))
        self.used_bytes += sum(map(len, bodies)) + OVERHEAD_BYTES * len(bodies)
        self._evict()

    def find_batch(self, key: BatchKey) -> KeptBatch | None:
        """The answer to the same request, if it is kept."""
        kept = self._batches.get(key)
        if kept is not None:
            self._batches.move_to_end(key)
        return kept

    def keep_batch(self, key: BatchKey, batch: KeptBatch) -> None:
        """Keep an answer that only a newer copy of an entry can change."""
        used_bytes, share_bytes = len(batch.block) + OVERHEAD_BYTES, self.limit_bytes // _BATCHES_SHARE
        if len(batch.block) < _BATCH_BYTES_MIN or used_bytes > share_bytes or key in self._batches:
            return
        self._batches[key] = batch
        self._count_batch(used_bytes)
        last = key.first_entry_id + batch.entry_count - 1
        self._batch_ends[key.ledger_id] = max(last, self._batch_ends.get(key.ledger_id, last))
        while self._batch_bytes > share_bytes:
            _, oldest = self._batches.popitem(last=False)
            self._count_batch(-len(oldest.block) - OVERHEAD_BYTES)
        self._evict()

    def fill_in(self, ledger_id: LedgerId, entry_ids: Sequence[EntryId], bodies: list[bytes | None]) -> None:
        """Replace each None in ``bodies``, which are those of ``entry_ids``, if its entry is cached."""
        if self._entry_ids.get(ledger_id, _NONE).isdisjoint(entry_ids):
            return
        for place, entry_id in enumerate(entry_ids):
            if bodies[place] is None:
                bodies[place] = self.find(ledger_id, entry_id)

    def drop(self, ledger_id: LedgerId, entry_ids: Sequence[EntryId]) -> None:
        """Forget entries, and the batches that may have them."""
        self._forget(ledger_id, entry_ids)
        if self._batch_ends and min(entry_ids) <= self._batch_ends.get(ledger_id, INVALID_ENTRY_ID):
            self._drop_batches(ledger_id)

    def drop_ledger(self, ledger_id: LedgerId) -> None:
        """Forget all entries of a ledger."""
        self._forget(ledger_id, list(self._entry_ids.get(ledger_id, ())))
        self._drop_batches(ledger_id)

    def _forget(self, ledger_id: LedgerId, entry_ids: Sequence[EntryId]) -> None:
        known = self._entry_ids.get(ledger_id, _NONE)
        if not known.isdisjoint(entry_ids):
            for entry_id in known.intersection(entry_ids):
                self._count_out(ledger_id, entry_id, self._bodies.pop((ledger_id, entry_id)))

    def _drop_batches(self, ledger_id: LedgerId) -> None:
        if self._batch_ends.pop(ledger_id, None) is not None:
            for key in [key for key in self._batches if key.ledger_id == ledger_id]:
                self._count_batch(-len(self._batches.pop(key).block) - OVERHEAD_BYTES)

    def _count_batch(self, difference: int) -> None:
        self._batch_bytes += difference
        self.used_bytes += difference

    def _evict(self) -> None:
        while self.used_bytes > self.limit_bytes:
            # Needs an OrderedDict: finding the first key of a dict is slow after many deletions at its start.
            (evicted_id, entry_id), body = self._bodies.popitem(last=False)
            self._count_out(evicted_id, entry_id, body)

    def _count_out(self, ledger_id: LedgerId, entry_id: EntryId, body: bytes) -> None:
        self.used_bytes -= len(body) + OVERHEAD_BYTES
        entry_ids = self._entry_ids[ledger_id]
        entry_ids.remove(entry_id)
        if not entry_ids:
            del self._entry_ids[ledger_id]
