"""The most recently read bodies and batches, up to a number of bytes.

Unlike in Java (H18), a body is the copy that the index row referenced at the read, and adding the entry again drops it.
Bodies that were read together leave together: evicting them one by one would cost more than reading them. Batches are
the answers to reads of many consecutive entries: those who follow a ledger all read the same.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from bkctl.storage.ids import INVALID_ENTRY_ID, EntryId, LedgerId

OVERHEAD_BYTES: Final = 256
"""Cost of an entry in addition to its body: its id, and its places in two dicts."""

_RUNS_MIN: Final = 8
"""A run uses at most this part of the cache, unless it is a single entry."""

_BATCHES_SHARE: Final = 4
"""Batches may use a quarter of the cache."""

_BATCH_BYTES_MIN: Final = 4 * 1024
"""Smaller ones cost little without the cache. Limits how many there are."""


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


class _KeptRun:
    """Entries of a ledger that were read together."""

    __slots__ = ("bodies", "ledger_id")

    def __init__(self, ledger_id: LedgerId, bodies: dict[EntryId, bytes]) -> None:
        self.ledger_id = ledger_id
        self.bodies = bodies

    @property
    def used_bytes(self) -> int:
        return sum(map(len, self.bodies.values())) + OVERHEAD_BYTES * len(self.bodies)


_NONE: Final[dict[EntryId, _KeptRun]] = {}


class ReadCache:
    """LRU cache of runs of bodies, and of batches. Only the loop uses it."""

    __slots__ = ("_batch_bytes", "_batch_ends", "_batches", "_run_of", "_runs", "limit_bytes", "used_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self._runs: OrderedDict[_KeptRun, None] = OrderedDict()
        self._run_of: dict[LedgerId, dict[EntryId, _KeptRun]] = {}
        """For each cached entry the one run that has it."""
        self._batches: OrderedDict[BatchKey, KeptBatch] = OrderedDict()
        self._batch_bytes = 0
        self._batch_ends: dict[LedgerId, EntryId] = {}
        """No batch of the ledger has a higher entry."""
        self.limit_bytes = limit_bytes
        self.used_bytes = 0

    def __len__(self) -> int:
        return sum(map(len, self._run_of.values()))

    def __contains__(self, key: tuple[LedgerId, EntryId]) -> bool:
        ledger_id, entry_id = key
        return entry_id in self._run_of.get(ledger_id, _NONE)

    def find(self, ledger_id: LedgerId, entry_id: EntryId) -> bytes | None:
        """Body of an entry, or None when it is not cached."""
        run = self._run_of.get(ledger_id, _NONE).get(entry_id)
        if run is None:
            return None
        self._runs.move_to_end(run)
        return run.bodies[entry_id]

    def put(self, ledger_id: LedgerId, bodies: dict[EntryId, bytes]) -> None:
        """Cache the bodies, evicting the least recently used ones; a body larger than the limit is not cached."""
        self._forget(ledger_id, bodies)
        if max(map(len, bodies.values()), default=0) + OVERHEAD_BYTES > self.limit_bytes:
            bodies = {each: body for each, body in bodies.items() if len(body) + OVERHEAD_BYTES <= self.limit_bytes}
        if bodies:
            self._keep(_KeptRun(ledger_id, bodies))
            self._evict()

    def _keep(self, run: _KeptRun) -> None:
        used_bytes = run.used_bytes
        if used_bytes > self.limit_bytes // _RUNS_MIN and len(run.bodies) > 1:
            entries, half = list(run.bodies.items()), len(run.bodies) // 2
            self._keep(_KeptRun(run.ledger_id, dict(entries[:half])))
            self._keep(_KeptRun(run.ledger_id, dict(entries[half:])))
            return
        self._runs[run] = None
        self._run_of.setdefault(run.ledger_id, {}).update(dict.fromkeys(run.bodies, run))
        self.used_bytes += used_bytes

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
        if self._run_of.get(ledger_id, _NONE).keys().isdisjoint(entry_ids):
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
        for run in set(self._run_of.pop(ledger_id, _NONE).values()):
            del self._runs[run]
            self.used_bytes -= run.used_bytes
        self._drop_batches(ledger_id)

    def _forget(self, ledger_id: LedgerId, entry_ids: Iterable[EntryId]) -> None:
        known = self._run_of.get(ledger_id, _NONE)
        if known.keys().isdisjoint(entry_ids):
            return
        for entry_id in known.keys() & entry_ids:
            run = known.pop(entry_id)
            self.used_bytes -= len(run.bodies.pop(entry_id)) + OVERHEAD_BYTES
            if not run.bodies:
                del self._runs[run]
        if not known:
            del self._run_of[ledger_id]

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
            run, _ = self._runs.popitem(last=False)
            self.used_bytes -= run.used_bytes
            known = self._run_of[run.ledger_id]
            deque(map(known.pop, run.bodies), maxlen=0)  # without bytecode per entry
            if not known:
                del self._run_of[run.ledger_id]
