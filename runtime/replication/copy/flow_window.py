"""Limits for bytes in flight: a window per source, per target, and one for the memory of a run.

All ledgers of a run share them. The window of a bookie is like a congestion window: halved when the bookie answers "too
many requests" or does not answer in time, and widened again by each success (replication section 15.1; bk#3408,
pu#4213: unbounded or fixed batches overloaded bookies).
"""

from __future__ import annotations

import asyncio
from collections import deque
from types import TracebackType
from typing import Self

WINDOW_BYTES_FIRST = 8 * 1024 * 1024
"""First size of a bookie's window."""

WINDOW_BYTES_MIN = 64 * 1024
"""A bookie's window never shrinks below this. A batch that is larger is sent alone."""

_WIDENING_BYTES = 1024 * 1024
"""A window grows by this much each time that a whole window of bytes has succeeded."""


class FlowWindow:
    """Bytes in flight. Batches are admitted in the order of their calls; one larger than the window, alone."""

    def __init__(self, bytes_max: int, bytes_first: int | None = None) -> None:
        self.bytes_in_flight = 0
        self._bytes_max = bytes_max
        self._bytes_now = min(bytes_max, bytes_first or bytes_max)
        self._shrinks = 0
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def bytes_now(self) -> int:
        """Current size of the window."""
        return self._bytes_now

    def lease(self, size_bytes: int) -> BatchLease:
        """Room for a batch, as ``async with``."""
        return BatchLease(self, size_bytes)

    async def acquire(self, size_bytes: int) -> int:
        """Wait until the batch fits; returns how often the window had been halved by then."""
        if self._waiters or not self._fits(size_bytes):
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append((size_bytes, turn))
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self.change(-size_bytes)  # admitted just before the cancellation
                raise
        else:
            self.bytes_in_flight += size_bytes
        return self._shrinks

    def change(self, size_bytes: int) -> None:
        """Correct the bytes in flight, and admit waiting batches that fit now."""
        self.bytes_in_flight += size_bytes
        while self._waiters:
            size_bytes, turn = self._waiters[0]
            if not turn.done() and not self._fits(size_bytes):
                return
            self._waiters.popleft()
            if not turn.done():
                self.bytes_in_flight += size_bytes
                turn.set_result(None)

    def shrink(self, shrinks_seen: int) -> None:
        """A batch failed by overload: halve the window, unless it was halved after this batch had been sent."""
        if shrinks_seen == self._shrinks:
            self._shrinks += 1
            self._bytes_now = max(self._bytes_now // 2, min(WINDOW_BYTES_MIN, self._bytes_max))

    def grow(self, size_bytes: int) -> None:
        """A batch succeeded: widen the window."""
        if self._bytes_now < self._bytes_max:
            widened = self._bytes_now + _WIDENING_BYTES * size_bytes // self._bytes_now + 1
            self._bytes_now = min(self._bytes_max, widened)

    def _fits(self, size_bytes: int) -> bool:
        return self.bytes_in_flight == 0 or self.bytes_in_flight + size_bytes <= self._bytes_now


class BatchLease:
    """The part of a window that one batch uses."""

    __slots__ = ("_shrinks_seen", "_size_bytes", "_window")

    def __init__(self, window: FlowWindow, size_bytes: int) -> None:
        self._window = window
        self._size_bytes = size_bytes
        self._shrinks_seen = 0

    async def __aenter__(self) -> Self:
        self._shrinks_seen = await self._window.acquire(self._size_bytes)
        return self

    async def __aexit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._window.change(-self._size_bytes)

    def resize(self, size_bytes: int) -> None:
        """Correct the size once it is known. Never waits; later batches wait instead."""
        self._window.change(size_bytes - self._size_bytes)
        self._size_bytes = size_bytes

    def note_outcome(self, *, is_overloaded: bool) -> None:
        """Widen or halve the window."""
        if is_overloaded:
            self._window.shrink(self._shrinks_seen)
        else:
            self._window.grow(self._size_bytes)


class FlowWindows:
    """All windows of a run: ``memory`` for the batches of all ledgers, and two for each bookie."""

    def __init__(self, bytes_max: int) -> None:
        self.memory = FlowWindow(bytes_max)
        self._bytes_max = bytes_max
        self._sources: dict[str, FlowWindow] = {}
        self._targets: dict[str, FlowWindow] = {}

    def source(self, bookie_id: str) -> FlowWindow:
        """For reads of entries to copy."""
        return self._of(self._sources, bookie_id)

    def target(self, bookie_id: str) -> FlowWindow:
        """For copies, and for reading them back."""
        return self._of(self._targets, bookie_id)

    def _of(self, windows: dict[str, FlowWindow], bookie_id: str) -> FlowWindow:
        window = windows.get(bookie_id)
        if window is None:
            window = windows[bookie_id] = FlowWindow(self._bytes_max, WINDOW_BYTES_FIRST)
        return window
