"""A Clock whose time passes only when a test says so, for time-outs in front of real sockets."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
from collections.abc import Callable

_EPOCH_MS = 1_700_000_000_000


class _Timer:
    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class SteppedClock:
    """Time stands still until ``advance``."""

    def __init__(self, seed: int = 0) -> None:
        self._now_ns = 0
        self._random = random.Random(seed)
        self._timers: list[tuple[int, int, _Timer]] = []
        self._numbers = itertools.count()

    def advance(self, seconds: float) -> None:
        """Let time pass; timers that are due call back in their order."""
        end_ns = self._now_ns + round(seconds * 1e9)
        while self._timers and self._timers[0][0] <= end_ns:
            self._now_ns, _, timer = heapq.heappop(self._timers)
            if timer.callback is not None:
                timer.callback()
        self._now_ns = end_ns

    def now_ms(self) -> int:
        return _EPOCH_MS + self._now_ns // 1_000_000

    def monotonic_ns(self) -> int:
        return self._now_ns

    async def sleep(self, seconds: float) -> None:
        awake: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.call_later(seconds, lambda: None if awake.done() else awake.set_result(None))
        await awake

    def call_later(self, seconds: float, callback: Callable[[], None]) -> _Timer:
        timer = _Timer(callback)
        heapq.heappush(self._timers, (self._now_ns + round(seconds * 1e9), next(self._numbers), timer))
        return timer

    @property
    def random(self) -> random.Random:
        return self._random
