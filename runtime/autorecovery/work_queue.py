"""The order in which a worker takes marked ledgers: fewest live copies first, then the oldest mark. Pure.

A candidate is one number of 16 bytes, so 100,000 of them take about 6 MB. Beyond that the queue keeps the most urgent
ones; the others come back with the next listing.
"""

from __future__ import annotations

import heapq

CANDIDATES_MAX = 100_000
_COPIES_MAX = 255
_ID_BITS = 63
_ID_MASK = (1 << _ID_BITS) - 1
_TIME_MAX = (1 << 48) - 1


def urgency(ledger_id: int, live_copies: int, marked_ms: int) -> int:
    """Rank of a candidate; the smallest comes first. A ledger without a live copy comes last: it can only wait."""
    copies = min(live_copies, _COPIES_MAX - 1) if live_copies else _COPIES_MAX
    time_ms = min(max(marked_ms, 0), _TIME_MAX)
    return (copies * (_TIME_MAX + 1) + time_ms) << _ID_BITS | ledger_id


class WorkQueue:
    """Candidates that can be taken now, and ledgers that must not be taken before a time."""

    def __init__(self, size_max: int = CANDIDATES_MAX) -> None:
        self._size_max = size_max
        self._ranks: list[int] = []
        self._due_ms: dict[int, int] = {}
        self._postponed: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._ranks)

    @property
    def known_count(self) -> int:
        """Candidates and postponed ledgers; some may be done already."""
        return len(self._ranks) + len(self._due_ms)

    def offer(self, rank: int) -> None:
        """Add a candidate, unless its ledger is postponed. Each ledger once per listing."""
        if _ledger_id(rank) in self._due_ms:
            return
        heapq.heappush(self._ranks, rank)
        if len(self._ranks) >= 2 * self._size_max:
            self._ranks = heapq.nsmallest(self._size_max, self._ranks)

    def clear(self) -> None:
        """Forget the candidates; what is postponed stays so."""
        self._ranks.clear()

    def postpone(self, ledger_id: int, until_ms: int) -> None:
        """Take the ledger at this time, and not before. Beyond the limit it is left to the next listing."""
        if len(self._due_ms) < self._size_max or ledger_id in self._due_ms:
            self._due_ms[ledger_id] = until_ms
            heapq.heappush(self._postponed, (until_ms, ledger_id))

    def is_postponed(self, ledger_id: int) -> bool:
        """Whether the ledger must not be taken yet."""
        return ledger_id in self._due_ms

    def take(self, now_ms: int) -> int | None:
        """The next ledger: postponed ones that are due come first, because they waited longer. None: there is none."""
        due_ms = self.next_due_ms()
        if due_ms is not None and due_ms <= now_ms:
            _, ledger_id = heapq.heappop(self._postponed)
            del self._due_ms[ledger_id]
            return ledger_id
        while self._ranks:
            ledger_id = _ledger_id(heapq.heappop(self._ranks))
            if ledger_id not in self._due_ms:
                return ledger_id
        return None

    def next_due_ms(self) -> int | None:
        """When the next postponed ledger is due; None if there is none."""
        while self._postponed:
            due_ms, ledger_id = self._postponed[0]
            if self._due_ms.get(ledger_id) == due_ms:
                return due_ms
            heapq.heappop(self._postponed)  # postponed again, or not at all, since
        return None


def _ledger_id(rank: int) -> int:
    return rank & _ID_MASK
