"""Bodies that were read lately, up to a number of bytes.

Unlike Java's (H18), it holds only what an index row named when it was read, and an add of the same entry drops it.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from storage.ids import EntryId, LedgerId

OVERHEAD_BYTES: Final = 256
"""What an entry costs besides its body: key and ids, its places in the order and among its ledger's."""


class ReadCache:
    """Least recently used entries, by (ledger, entry). The loop alone uses it."""

    __slots__ = ("_bodies", "_entry_ids", "limit_bytes", "used_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self._bodies: OrderedDict[tuple[LedgerId, EntryId], bytes] = OrderedDict()
        self._entry_ids: dict[LedgerId, set[EntryId]] = {}
        """What is here of each ledger: a deletion must not search the whole cache."""
        self.limit_bytes = limit_bytes
        self.used_bytes = 0

    def __len__(self) -> int:
        return len(self._bodies)

    def __contains__(self, key: tuple[LedgerId, EntryId]) -> bool:
        return key in self._bodies

    def find(self, ledger_id: LedgerId, entry_id: EntryId) -> bytes | None:
        """Body of an entry, or None when it is not here."""
        key = (ledger_id, entry_id)
        body = self._bodies.get(key)
        if body is not None:
            self._bodies.move_to_end(key)
        return body

    def put(self, ledger_id: LedgerId, entry_id: EntryId, body: bytes) -> None:
        """Keep a body, dropping the least recently used ones over the limit; one that is over it alone is not kept."""
        self.drop(ledger_id, entry_id)
        if len(body) + OVERHEAD_BYTES > self.limit_bytes:
            return
        self._bodies[ledger_id, entry_id] = body
        self._entry_ids.setdefault(ledger_id, set()).add(entry_id)
        self.used_bytes += len(body) + OVERHEAD_BYTES
        while self.used_bytes > self.limit_bytes:
            # Not an ordinary dict: the first of one from which many first ones were taken is long in the finding.
            self.drop(*next(iter(self._bodies)))

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
