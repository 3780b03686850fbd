"""How many requests each bookie got, and how long it took to answer them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Iterator
from typing import TypeVar

from bkctl.runtime.ports import Clock

T = TypeVar("T")


class RequestTimes:
    """Requests of one piece of work, by bookie: lists of entries, and reads of one or some entries."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.requests: Counter[str] = Counter()
        self.waited_ns: Counter[str] = Counter()
        """The sum of the times of all requests, of which some run at the same time."""

    def rows(self) -> Iterator[tuple[str, int, int]]:
        """Each bookie with its requests, and the sum of their times in microseconds."""
        for bookie_id, count in self.requests.items():
            yield bookie_id, count, self.waited_ns[bookie_id] // 1000

    async def of(self, bookie_id: str, answer: Awaitable[T]) -> T:
        """Wait for the answer to a request, which may be an error, and note how long that took."""
        began_ns = self._clock.monotonic_ns()
        try:
            return await answer
        finally:
            self.requests[bookie_id] += 1
            self.waited_ns[bookie_id] += self._clock.monotonic_ns() - began_ns
