"""The most recently read bodies, up to a number of bytes.

Unlike in Java (H18), a body is the copy that the index row referenced at the read, and adding the entry again drops it.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from bkctl.storage.ids import EntryId, LedgerId

OVERHEAD_BYTES: Final = 256
"""Cost of an entry in addition to its body: key and ids, and its places in the two dicts."""

_NONE: Final[frozenset[EntryId]] = frozenset()


class ReadCache:
    """LRU cache of bodies, by (ledger, entry). Only the loop uses it."""

    __slots__ = ("_bodies", "_entry_ids", "limit_bytes", "used_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self._bodies: OrderedDict[tuple[LedgerId, EntryId], bytes] = OrderedDict()
        self._entry_ids: dict[LedgerId, set[EntryId]] = {}
        """Cached entries by ledger, so that a deletion need not search the whole cache."""
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
        known = self._entry_ids.get(ledger_id, _NONE)
        if not known.isdisjoint(entry_ids):
            for entry_id in known.intersection(entry_ids):
                self.drop(ledger_id, entry_id)
        if max(map(len, bodies), default=self.limit_bytes) + OVERHEAD_BYTES > self.limit_bytes:
            fitting = [len(body) + OVERHEAD_BYTES <= self.limit_bytes for body in bodies]
            entry_ids = list(itertools.compress(entry_ids, fitting))
            bodies = list(itertools.compress(bodies, fitting))
            if not bodies:
                return
        self._entry_ids.setdefault(ledger_id, set()).update(entry_ids)
        self._bodies.update(zip(zip(itertools.repeat(ledger_id), entry_ids), bodies, strict=False))
        self.used_bytes += sum(map(len, bodies)) + OVERHEAD_BYTES * len(bodies)
        while self.used_bytes > self.limit_bytes:
            # Needs an OrderedDict: finding the first key of a dict is slow after many deletions at its start.
            (evicted_id, entry_id), body = self._bodies.popitem(last=False)
            self._count_out(evicted_id, entry_id, body)

    def fill_in(self, ledger_id: LedgerId, entry_ids: Sequence[EntryId], bodies: list[bytes | None]) -> None:
        """Replace each None in ``bodies``, which are those of ``entry_ids``, if its entry is cached."""
        if self._entry_ids.get(ledger_id, _NONE).isdisjoint(entry_ids):
            return
        for place, entry_id in enumerate(entry_ids):
            if bodies[place] is None:
                bodies[place] = self.find(ledger_id, entry_id)

    def drop(self, ledger_id: LedgerId, entry_id: EntryId) -> None:
        """Forget an entry."""
        body = self._bodies.pop((ledger_id, entry_id), None)
        if body is not None:
            self._count_out(ledger_id, entry_id, body)

    def drop_ledger(self, ledger_id: LedgerId) -> None:
        """Forget all entries of a ledger."""
        for entry_id in list(self._entry_ids.get(ledger_id, ())):
            self.drop(ledger_id, entry_id)

    def _count_out(self, ledger_id: LedgerId, entry_id: EntryId, body: bytes) -> None:
        self.used_bytes -= len(body) + OVERHEAD_BYTES
        entry_ids = self._entry_ids[ledger_id]
        entry_ids.remove(entry_id)
        if not entry_ids:
            del self._entry_ids[ledger_id]
