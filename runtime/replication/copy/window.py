"""Limits for bytes in flight: a window for each bookie, and two for the memory of a run.

All ledgers of a run share them. A window is like a congestion window: halved when a bookie answers "too many requests"
or does not answer in time, and widened again by each success (replication section 15.1; bk#3408, pu#4213: unbounded or
fixed batches overloaded bookies).
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Self

WINDOW_BYTES_FIRST = 8 * 1024 * 1024
"""First size of a bookie's window."""

SHRINK_MAX = 128
"""A window never shrinks below this part of its first size. What is larger is admitted alone."""

_WIDENING_BYTES = 1024 * 1024
"""A window grows by this much each time that a whole window of bytes has succeeded."""


class Window:
    """Bytes in flight, and how many items have them. Admits in the order of the calls; what is too large, alone."""

    def __init__(self, bytes_max: int, *, bytes_first: int | None = None, items_max: int | None = None) -> None:
        """``items_max``: limit for batches or entries, which shrinks with the window; None: no limit."""
        self.bytes_in_flight = 0
        self.items_in_flight = 0
        self.bytes_now = min(bytes_max, bytes_first or bytes_max)
        """Current size of the window."""
        self.shrinks = 0
        """How often it was halved."""
        self._bytes_max = bytes_max
        self._bytes_min = max(1, self.bytes_now // SHRINK_MAX)
        self._items_max = items_max
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()

    def lease(self, size_bytes: int) -> Lease:
        """Room for an item, as ``async with``, or from ``acquire`` to ``release``."""
        return Lease(self, size_bytes)

    async def turn(self, size_bytes: int) -> None:
        """Wait until an item fits, which counts from then on."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((size_bytes, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.change(-size_bytes, -1)  # admitted just before the cancellation
            raise

    def is_admitted(self, size_bytes: int) -> bool:
        """Count an item, if it fits now and none waits."""
        if self._waiters or not self._fits(size_bytes):
            return False
        self._take(size_bytes, 1)
        return True

    def change(self, size_bytes: int, items: int = 0) -> None:
        """Correct what is in flight, and admit waiting items that fit now."""
        self._take(size_bytes, items)
        while self._waiters:
            waiting_bytes, turn = self._waiters[0]
            if not turn.done() and not self._fits(waiting_bytes):
                return
            self._waiters.popleft()
            if not turn.done():
                self._take(waiting_bytes, 1)
                turn.set_result(None)

    def shrink(self, shrinks_seen: int) -> None:
        """An overload: halve the window, unless it was halved after the request had been sent."""
        if shrinks_seen == self.shrinks:
            self.shrinks += 1
            self.bytes_now = max(self.bytes_now // 2, self._bytes_min)

    def grow(self, size_bytes: int) -> None:
        """A success: widen the window."""
        if self.bytes_now < self._bytes_max:
            widened = self.bytes_now + _WIDENING_BYTES * size_bytes // self.bytes_now + 1
            self.bytes_now = min(self._bytes_max, widened)

    def _fits(self, size_bytes: int) -> bool:
        if self.items_in_flight == 0:
            return True
        if self._items_max is not None and self.items_in_flight >= self._items_max * self.bytes_now // self._bytes_max:
            return False
        return self.bytes_in_flight + size_bytes <= self.bytes_now

    def _take(self, size_bytes: int, items: int) -> None:
        self.bytes_in_flight += size_bytes
        self.items_in_flight += items


class Lease:
    """The part of a window that one item uses."""

    __slots__ = ("_is_held", "_shrinks_seen", "_size_bytes", "_window")

    def __init__(self, window: Window, size_bytes: int) -> None:
        self._window = window
        self._size_bytes = size_bytes
        self._shrinks_seen = 0
        self._is_held = False

    async def acquire(self) -> Self:
        """Wait until it fits."""
        if not self._window.is_admitted(self._size_bytes):
            await self._window.turn(self._size_bytes)
        self._shrinks_seen = self._window.shrinks
        self._is_held = True
        return self

    __aenter__ = acquire

    def release(self) -> None:
        """Free what it uses; safe to repeat."""
        if self._is_held:
            self._is_held = False
            self._window.change(-self._size_bytes, -1)

    async def __aexit__(self, *_: object) -> None:
        self.release()

    def resize(self, size_bytes: int) -> None:
        """Correct the size once it is known. Never waits; later items wait instead."""
        self._window.change(size_bytes - self._size_bytes)
        self._size_bytes = size_bytes

    def note_outcome(self, *, is_overloaded: bool) -> None:
        """Widen or halve the window."""
        if is_overloaded:
            self._window.shrink(self._shrinks_seen)
        else:
            self._window.grow(self._size_bytes)


class Windows:
    """All windows of a run."""

    def __init__(self, bytes_max: int, items_max: int) -> None:
        self.memory = Window(bytes_max)
        """For batches that are copied."""
        self.items = Window(bytes_max, items_max=items_max)
        """For entries, or batches of entries, whose copies may be on any bookie: what is read one by one shrinks it."""
        self._bytes_max = bytes_max
        self._bookies: dict[str, Window] = {}

    def of(self, bookie_id: str) -> Window:
        """For batches that are read from a bookie, or written to it."""
        window = self._bookies.get(bookie_id)
        if window is None:
            window = self._bookies[bookie_id] = Window(self._bytes_max, bytes_first=WINDOW_BYTES_FIRST)
        return window
