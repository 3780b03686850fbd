"""The write cache: entries that are in the journal, or on their way there, and not yet in an entry log.

A ledger directory has two memtables (storage section 5.3). The active one receives adds. The frozen one is being made
durable by a checkpoint and no longer changes, so that a lane may read it without a lock.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from bkctl.storage.config import EngineConfig
from bkctl.storage.errors import EntryTooLargeError
from bkctl.storage.ids import EntryId, LedgerId

ENTRY_OVERHEAD_BYTES: Final = 128
"""Cost of an entry in addition to its body: header of a bytes object, a boxed entry id, a slot in a growing dict."""

_PIECE_COUNT_MAX = 512
"""Entries processed together while a slice is cut."""

SORT_RUN_COUNT: Final = 8192
"""Ids sorted in one C call: a few thousand hold the interpreter lock for 1 to 2 ms at most."""


def body_bytes_max(config: EngineConfig) -> int:
    """Size of the largest entry that an engine takes."""
    return min(config.entry_log.entry_bytes_max, config.memtable_bytes_max // 2 - ENTRY_OVERHEAD_BYTES)


def too_large(ledger_id: LedgerId, entry_id: EntryId, body: bytes, limit_bytes: int) -> EntryTooLargeError:
    """The error for an entry that is larger than ``body_bytes_max``."""
    return EntryTooLargeError(
        f"entry {ledger_id}:{entry_id} has {len(body)} bytes; at most {limit_bytes} can be stored"
    )


class MemtableSlice(NamedTuple):
    """Some consecutive entries in (ledger, entry) order: three columns of the same length."""

    ledger_ids: list[LedgerId]
    entry_ids: list[EntryId]
    bodies: list[bytes]
    body_bytes: int
    """Sum over the bodies."""


class Memtable:
    """Entries by ledger and entry id, up to ``limit_bytes`` including their overhead."""

    __slots__ = ("_last_entry_ids", "_ledgers", "limit_bytes", "used_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self._ledgers: dict[LedgerId, dict[EntryId, bytes]] = {}
        self._last_entry_ids: dict[LedgerId, EntryId] = {}
        """Maintained rather than searched for: re-replication adds in any order, and tailing readers ask repeatedly."""
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        """Upper bound: an entry added twice counts twice until the table is dropped."""

    @property
    def entry_count(self) -> int:
        """Entries in this table. Takes time for each ledger: for metrics, not for the request path."""
        return sum(map(len, self._ledgers.values()))

    def put(self, ledger_id: LedgerId, entry_id: EntryId, body: bytes) -> bool:
        """Store an entry; the last one of an id wins. Returns False, with nothing stored, when there is no room."""
        used_bytes = self.used_bytes + len(body) + ENTRY_OVERHEAD_BYTES
        # Check before anything is reserved: an entry that does not fit must leave the table unchanged (H17).
        if used_bytes > self.limit_bytes:
            return False
        self.used_bytes = used_bytes
        try:
            self._ledgers[ledger_id][entry_id] = body
            self._last_entry_ids[ledger_id] = max(self._last_entry_ids[ledger_id], entry_id)
        except KeyError:
            self._ledgers[ledger_id] = {entry_id: body}
            self._last_entry_ids[ledger_id] = entry_id
        return True

    def put_many(self, ledger_id: LedgerId, entry_ids: Sequence[EntryId], bodies: Sequence[bytes]) -> bool:
        """Store entries of one ledger, in order; returns False, with nothing stored, when there is no room.

        Cheaper than ``put`` for each, because the loops run inside the interpreter's C code.
        """
        used_bytes = self.used_bytes + sum(map(len, bodies)) + ENTRY_OVERHEAD_BYTES * len(bodies)
        if used_bytes > self.limit_bytes:
            return False
        self.used_bytes = used_bytes
        self._ledgers.setdefault(ledger_id, {}).update(zip(entry_ids, bodies, strict=True))
        last_entry_id = max(entry_ids)
        self._last_entry_ids[ledger_id] = max(self._last_entry_ids.get(ledger_id, last_entry_id), last_entry_id)
        return True

    def find(self, ledger_id: LedgerId, entry_id: EntryId) -> bytes | None:
        """Body of an entry, or None when it is not in this table."""
        entries = self._ledgers.get(ledger_id)
        return None if entries is None else entries.get(entry_id)

    def find_many(self, ledger_id: LedgerId, entry_ids: Iterable[EntryId]) -> list[bytes | None]:
        """Bodies of entries, None for those that are not in this table; empty if no entry of the ledger is."""
        entries = self._ledgers.get(ledger_id)
        return [] if entries is None else list(map(entries.get, entry_ids))

    def find_last(self, ledger_id: LedgerId) -> tuple[EntryId, bytes] | None:
        """Highest entry id of a ledger in this table, with its body."""
        entries = self._ledgers.get(ledger_id)
        if entries is None:
            return None
        entry_id = self._last_entry_ids[ledger_id]
        return entry_id, entries[entry_id]

    def list_entries(self, ledger_id: LedgerId) -> list[EntryId]:
        """Entry ids of a ledger in this table, unordered."""
        return list(self._ledgers.get(ledger_id, ()))

    def delete_ledger(self, ledger_id: LedgerId) -> None:
        """Forget all entries of a ledger and free their room, which a checkpoint on a full disk may need."""
        entries = self._ledgers.pop(ledger_id, {})
        self.used_bytes -= sum(map(len, entries.values())) + ENTRY_OVERHEAD_BYTES * len(entries)
        self._last_entry_ids.pop(ledger_id, None)

    def release(self) -> None:
        """Free the memory entry by entry: freeing all at once would block the interpreter for 10 ms and more.

        For a lane, once no other code references the table.
        """
        for entries in self._ledgers.values():
            while entries:
                entries.popitem()

    def slices(
        self, entry_count_max: int, bytes_max: int, *, sort_run_count: int = SORT_RUN_COUNT
    ) -> Iterator[MemtableSlice]:
        """All entries in (ledger, entry) order, in slices that end where they reach a limit."""
        ledger_ids: list[LedgerId] = []
        slice_entry_ids: list[EntryId] = []
        bodies: list[bytes] = []
        slice_bytes = 0
        for ledger_id in sorted_ids(self._ledgers, sort_run_count):
            entries = self._ledgers[ledger_id]
            entry_ids = list(sorted_ids(entries, sort_run_count))
            first = 0
            while first < len(entry_ids):
                # A few calls into C per piece: bytecode per entry would take most of a checkpoint's time.
                piece = entry_ids[first : first + min(_PIECE_COUNT_MAX, entry_count_max - len(bodies))]
                piece_bodies = list(map(entries.__getitem__, piece))
                ends = list(itertools.accumulate(map(len, piece_bodies), initial=slice_bytes))
                count = bisect.bisect_left(ends, bytes_max, lo=1, hi=len(piece))
                ledger_ids += itertools.repeat(ledger_id, count)
                slice_entry_ids += piece[:count]
                bodies += piece_bodies[:count]
                slice_bytes = ends[count]
                first += count
                if len(bodies) >= entry_count_max or slice_bytes >= bytes_max:
                    yield MemtableSlice(ledger_ids, slice_entry_ids, bodies, slice_bytes)
                    ledger_ids, slice_entry_ids, bodies, slice_bytes = [], [], [], 0
        if bodies:
            yield MemtableSlice(ledger_ids, slice_entry_ids, bodies, slice_bytes)


def find_newest(
    memtables: Iterable[Memtable | None], ledger_id: LedgerId, entry_ids: Sequence[EntryId]
) -> list[bytes | None]:
    """Bodies of entries from the first table that has them: the newest table comes first."""
    found: list[bytes | None] = []
    for memtable in memtables:
        bodies = [] if memtable is None else memtable.find_many(ledger_id, entry_ids)
        if bodies:
            found = [body or older for body, older in zip(found, bodies, strict=True)] if found else bodies
            if None not in found:
                break
    return found or [None] * len(entry_ids)


def sorted_ids(ids: Iterable[int], run_count: int = SORT_RUN_COUNT) -> Iterable[int]:
    """Ids in ascending order. Sorts ``run_count`` at a time, so that no single call blocks the interpreter for long."""
    unsorted = list(ids)
    if len(unsorted) <= run_count:
        unsorted.sort()
        return unsorted
    runs = [sorted(unsorted[start : start + run_count]) for start in range(0, len(unsorted), run_count)]
    if all(former[-1] < latter[0] for former, latter in itertools.pairwise(runs)):
        return itertools.chain.from_iterable(runs)
    return heapq.merge(*runs)
