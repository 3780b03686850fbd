"""Answers of several bookies to one question, in the order of their arrival."""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import Any, Generic, TypeVar

from runtime.errors import BookieError
from runtime.ports import Clock

K = TypeVar("K")
R = TypeVar("R")


class Replies(Generic[K, R]):
    """Collects the futures of requests that were sent; ``outstanding`` counts those not yet taken by ``next``.

    Answers that come after the caller lost interest are dropped here, and never reported as unhandled.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._arrived: deque[tuple[K, R | BaseException]] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self.outstanding = 0

    def expect(self, key: K, future: asyncio.Future[Any]) -> None:
        """Wait for one more answer, known to the caller as ``key``. The future is of an R: futures are invariant, so a
        collection of several kinds of answers could not say so."""
        self.outstanding += 1
        future.add_done_callback(partial(self._on_arrival, key))

    async def next(self, timeout_s: float | None = None) -> tuple[K, R | BookieError] | None:
        """The next answer; None when ``timeout_s`` passes first. Without it the port's own time-out is the limit."""
        if not self._arrived:
            assert self.outstanding > 0, "somebody must be able to answer"
            await self._wait(timeout_s)
            if not self._arrived:
                return None
        key, outcome = self._arrived.popleft()
        self.outstanding -= 1
        if isinstance(outcome, BaseException) and not isinstance(outcome, BookieError):
            raise outcome
        return key, outcome

    async def _wait(self, timeout_s: float | None) -> None:
        self._waiter = waiter = asyncio.get_running_loop().create_future()
        timer = None if timeout_s is None else self._clock.call_later(timeout_s, self._wake)
        try:
            await waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()

    def _on_arrival(self, key: K, future: asyncio.Future[Any]) -> None:
        error = future.exception()  # seen from now on, even if nobody asks any more
        self._arrived.append((key, future.result() if error is None else error))
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
