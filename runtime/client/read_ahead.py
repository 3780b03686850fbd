"""Reads a range of entries ahead of its consumer, in order, with a limit for the memory of what it holds."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from typing import Any, Final, Generic, TypeVar

from bkctl.runtime.client.entry_read import RUN_BYTES
from bkctl.runtime.config import ClientConfig

T = TypeVar("T")

FIRST_READS_IN_FLIGHT = 8
"""Entries in flight while their size is unknown."""

_REQUESTS_IN_FLIGHT: Final = 4
"""Requests that share the entries in flight, if a request may have several."""

_RUN_ENTRIES_MAX: Final = 256
"""Entries of one request. A bookie answers it in one turn, and more entries would hardly make each cheaper."""


class ReadAhead(Generic[T]):
    """The reads of one range. ``entries`` runs once.

    The largest entry so far decides how many are in flight. If entries turn out to be larger, the reads furthest ahead
    are abandoned and repeated later. So it holds at most ``read_bytes_in_flight_max`` bytes, and what one answer adds.
    """

    def __init__(
        self,
        read: Callable[[range], Coroutine[Any, Any, Sequence[T]]],
        config: ClientConfig,
        bytes_of: Callable[[T], int],
        *,
        is_batched: bool = False,
        expected_bytes: int = 0,
    ) -> None:
        """``read``: returns the first of these entries, at least one. ``is_batched``: it may get several.

        ``expected_bytes``: of the largest entry; 0 if no size is known.
        """
        self._read = read
        self._config = config
        self._bytes_of = bytes_of
        self._requests_in_flight = _REQUESTS_IN_FLIGHT if is_batched else 0
        self._reads: deque[tuple[range, asyncio.Task[Sequence[T]]]] = deque()
        self._in_flight = 0
        self._bytes_held = 0
        self._largest_bytes = expected_bytes
        self._next_id = 0

    async def entries(self, first: int, last: int) -> AsyncGenerator[T, None]:
        """What ``read`` returns for the entries ``first`` to ``last``, in order. Raises as ``read``."""
        self._next_id = first
        try:
            while self._reads or self._next_id <= last:
                self._fill(last)
                entry_ids, task = self._reads[0]
                found = await task
                self._reads.popleft()
                self._in_flight -= len(entry_ids)
                if len(found) < len(entry_ids):
                    self._start(entry_ids[len(found) :], self._reads.appendleft)
                for each in found:
                    yield each
                    self._bytes_held -= self._bytes_of(each)
        finally:
            tasks = [task for _, task in self._reads]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _fill(self, last: int) -> None:
        while self._next_id <= last:
            in_flight_max = self._in_flight_max()
            count_max = self._count_max(in_flight_max)
            count = min(count_max - self._next_id % count_max, last + 1 - self._next_id)
            if self._reads and self._in_flight + count > in_flight_max:
                return
            self._start(range(self._next_id, self._next_id + count), self._reads.append)
            self._next_id += count

    def _in_flight_max(self) -> int:
        if self._largest_bytes == 0:
            return min(FIRST_READS_IN_FLIGHT, self._config.reads_in_flight_max)
        by_count = self._config.reads_in_flight_max
        if self._requests_in_flight:
            by_count = max(by_count, min(by_count, self._requests_in_flight) * self._run_entries())
        return max(1, min(by_count, self._config.read_bytes_in_flight_max // self._largest_bytes))

    def _run_entries(self) -> int:
        """Entries that should share a request: a power of two, so that readers of a ledger send the same requests,
        which bookies answer from a cache."""
        fitting = min(_RUN_ENTRIES_MAX, RUN_BYTES // max(1, self._largest_bytes))
        return 1 << fitting.bit_length() >> 1

    def _count_max(self, in_flight_max: int) -> int:
        """Entries of the next request."""
        if not self._requests_in_flight:
            return 1
        return max(1, min(in_flight_max // self._requests_in_flight, self._run_entries()))

    def _start(self, entry_ids: range, put: Callable[[tuple[range, asyncio.Task[Sequence[T]]]], None]) -> None:
        task = asyncio.get_running_loop().create_task(self._read(entry_ids))
        task.add_done_callback(self._note_end)
        self._in_flight += len(entry_ids)
        put((entry_ids, task))

    def _note_end(self, task: asyncio.Task[Sequence[T]]) -> None:
        """Count what a read returned; if it is too much, abandon the reads furthest ahead."""
        if task.cancelled() or task.exception() is not None:
            return
        sizes = [self._bytes_of(each) for each in task.result()]
        self._largest_bytes = max(self._largest_bytes, *sizes, 1)
        self._bytes_held += sum(sizes)
        while self._bytes_held > self._config.read_bytes_in_flight_max and len(self._reads) > 1:
            entry_ids, furthest = self._reads.pop()
            self._next_id = entry_ids[0]
            self._in_flight -= len(entry_ids)
            furthest.cancel()
            if furthest.done() and not furthest.cancelled() and furthest.exception() is None:
                self._bytes_held -= sum(map(self._bytes_of, furthest.result()))
