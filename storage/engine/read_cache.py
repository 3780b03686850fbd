"""The most recently read bodies, up to a number of bytes.

Unlike in Java (H18), a body is the copy that the index row referenced at the read, and adding the entry again drops it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from bkctl.storage.ids import EntryId, LedgerId

OVERHEAD_BYTES: Final = 256
"""Cost of an entry in addition to its body: key and ids, and its places in the two dicts."""


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
        self.drop(ledger_id, entry_id)
        if len(body) + OVERHEAD_BYTES > self.limit_bytes:
            return
        self._bodies[ledger_id, entry_id] = body
        self._entry_ids.setdefault(ledger_id, set()).add(entry_id)
        self.used_bytes += len(body) + OVERHEAD_BYTES
        while self.used_bytes > self.limit_bytes:
            # Needs an OrderedDict: finding the first key of a dict is slow after many deletions at its start.
            self.drop(*next(iter(self._bodies)))

    def fill_in(self, ledger_id: LedgerId, entry_ids: Sequence[EntryId], bodies: list[bytes | None]) -> None:
        """Replace each None in ``bodies``, which are those of ``entry_ids``, if its entry is cached."""
        if ledger_id not in self._entry_ids:
            return
        for place, entry_id in enumerate(entry_ids):
            if bodies[place] is None:
                bodies[place] = self.find(ledger_id, entry_id)

    def drop(self, ledger_id: LedgerId, entry_id: EntryId) -> None:
        """Forget an entry."""
        body = self._bodies.pop((ledger_id, entry_id), None)
        if body is not None:
            self.used_bytes -= len(body) + OVERHEAD_BYTES
            entry_ids = self._entry_ids[ledger_id]
            entry_ids.remove(entry_id)
            if not entry_ids:
                del self._entry_ids[ledger_id]

    def drop_ledger(self, ledger_id: LedgerId) -> None:
        """Forget all entries of a ledger."""
        for entry_id in list(self._entry_ids.get(ledger_id, ())):
            self.drop(ledger_id, entry_id)
