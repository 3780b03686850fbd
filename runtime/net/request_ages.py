"""When requests time out, without state for each. Pure. Source: wire section 14.2."""

from __future__ import annotations

from collections import deque


class RequestAges:
    """Determines which transaction ids are older than a timeout (wire section 14.2).

    Ids ascend, so it is enough to note the next id from time to time; no state per request is needed. With one note
    and one check per interval, a request expires up to two intervals late, never early.
    """

    def __init__(self, timeout_ns_max: int) -> None:
        self._timeout_ns_max = timeout_ns_max
        self._notes: deque[tuple[int, int]] = deque()

    def note(self, now_ns: int, next_txn_id: int) -> None:
        """Record that all ids below ``next_txn_id`` were assigned at ``now_ns`` or earlier."""
        notes = self._notes
        notes.append((now_ns, next_txn_id))
        while len(notes) > 1 and notes[1][0] <= now_ns - self._timeout_ns_max:
            notes.popleft()

    def expired_below(self, now_ns: int, timeout_ns: int) -> int:
        """The smallest id that has not expired: all ids below it were assigned at least ``timeout_ns`` ago."""
        expired = 0
        for noted_ns, next_txn_id in self._notes:
            if noted_ns > now_ns - timeout_ns:
                break
            expired = next_txn_id
        return expired
