"""Time-outs of many requests with one timer. Source: wire section 14.2."""

from __future__ import annotations

from collections import deque


class RequestAges:
    """Knows which transaction ids are older than a time-out.

    Ids are given out in ascending order, so a note of "the next id at this time" every now and then says enough about
    all of them: nothing is kept per request. With a note and a check every so often, a request expires up to two such
    intervals too late, never too early.
    """

    def __init__(self, timeout_ns_max: int) -> None:
        self._timeout_ns_max = timeout_ns_max
        self._notes: deque[tuple[int, int]] = deque()

    def note(self, now_ns: int, next_txn_id: int) -> None:
        """Every id below ``next_txn_id`` was given out at ``now_ns`` or before."""
        notes = self._notes
        notes.append((now_ns, next_txn_id))
        while len(notes) > 1 and notes[1][0] <= now_ns - self._timeout_ns_max:
            notes.popleft()

    def expired_below(self, now_ns: int, timeout_ns: int) -> int:
        """All ids below the returned one were given out at least ``timeout_ns`` ago."""
        expired = 0
        for noted_ns, next_txn_id in self._notes:
            if noted_ns > now_ns - timeout_ns:
                break
            expired = next_txn_id
        return expired
