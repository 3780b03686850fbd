"""A set of ledger ids that needs 8 to 16 bytes for each: a bookie may have millions of ledgers."""

from __future__ import annotations

import bisect
from array import array
from collections.abc import Iterator
from typing import Final

from bkctl.storage.ids import LedgerId

_CHUNK_LENGTH_MAX: Final = 2048
"""Ids that one insertion moves at most: a fraction of a microsecond for each thousand."""


class IdSet:
    """Ascending ids in arrays of limited length. For one thread."""

    def __init__(self) -> None:
        self._chunks: list[array[int]] = []
        self._firsts: list[LedgerId] = []
        """First id of each chunk; no chunk is empty."""
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[LedgerId]:
        """Ascending; the set must not change in the meantime."""
        for chunk in self._chunks:
            yield from chunk

    def __contains__(self, ledger_id: object) -> bool:
        if not self._length or not isinstance(ledger_id, int):
            return False
        number = bisect.bisect_right(self._firsts, ledger_id) - 1
        if number < 0:
            return False
        chunk = self._chunks[number]
        place = bisect.bisect_left(chunk, ledger_id)
        return place < len(chunk) and chunk[place] == ledger_id

    def add(self, ledger_id: LedgerId) -> None:
        """Add an id."""
        if not self._chunks:
            self._insert_chunk(0, array("q", [ledger_id]))
            self._length = 1
            return
        number = max(0, bisect.bisect_right(self._firsts, ledger_id) - 1)
        chunk = self._chunks[number]
        place = bisect.bisect_left(chunk, ledger_id)
        if place < len(chunk) and chunk[place] == ledger_id:
            return
        self._length += 1
        if len(chunk) < _CHUNK_LENGTH_MAX:
            chunk.insert(place, ledger_id)
            self._firsts[number] = chunk[0]
        elif place == len(chunk):  # usual ids ascend: their chunks stay full
            self._insert_chunk(number + 1, array("q", [ledger_id]))
        else:
            half = len(chunk) // 2
            self._insert_chunk(number + 1, chunk[half:])
            del chunk[half:]
            bisect.insort(chunk if place <= half else self._chunks[number + 1], ledger_id)
            self._firsts[number] = chunk[0]

    def discard(self, ledger_id: LedgerId) -> None:
        """Remove an id if it is there."""
        number = bisect.bisect_right(self._firsts, ledger_id) - 1
        if number < 0:
            return
        chunk = self._chunks[number]
        place = bisect.bisect_left(chunk, ledger_id)
        if place == len(chunk) or chunk[place] != ledger_id:
            return
        del chunk[place]
        self._length -= 1
        if chunk:
            self._firsts[number] = chunk[0]
        else:
            del self._chunks[number], self._firsts[number]

    def _insert_chunk(self, number: int, chunk: array[int]) -> None:
        self._chunks.insert(number, chunk)
        self._firsts.insert(number, chunk[0])
