"""Limits a command's load on ZooKeeper: operations per second, and in flight. ZooKeeper serves the cluster first.

Operations begin in the order in which they asked. Idle time is not saved up: operations are spaced evenly, except for
a burst of ``BURST_S`` worth of them. No interval of one second sees more than the budget.
"""

from __future__ import annotations

import asyncio
import collections
import math
from collections.abc import Awaitable, Callable
from typing import TypeVar

from bkctl.runtime.config import ZooKeeperConfig
from bkctl.runtime.ports import Clock, TimerHandle
from bkctl.runtime.rate_limit import RateLimit

T = TypeVar("T")

Begin = Callable[[float], float]
"""Begins an operation whose cost is at least 1 and at most the argument, and returns it; 0 if it began nothing.

It must not call ``ask`` or ``release``: its own cost is counted only after it returns."""

BURST_S = 0.01
"""How much time's worth of operations may begin together: one wake-up serves several."""

_WAKE_UP_S = BURST_S / 2
"""Operations that wait begin together for about this much time's worth of them; the rest of a burst is for late timers.

One by one, at thousands per second, they would take more CPU time than all other work of a command."""

_TIMER_S = 0.001
"""The shortest timer: uvloop rounds to milliseconds, and a timer of less than half of one would never wait."""

_SPREAD_S = 1.0 + BURST_S + 1e-5
"""A second's budget is spread over this much time, so that one second with a burst at both ends stays within it, even
if timers are a little early."""


class RequestBudget:
    """Permits for operations. Share one budget among all callers that must stay below it together.

    ``operations_per_s_max`` None: no limit but ``in_flight_max``. Its queue is its own, not that of the rate limit,
    because the cost of an operation may depend on what is left of the burst when its turn comes.
    """

    def __init__(self, clock: Clock, operations_per_s_max: float | None, in_flight_max: int) -> None:
        assert in_flight_max > 0
        self._clock = clock
        self._limit = RateLimit(clock, _spread(operations_per_s_max), BURST_S)
        self._in_flight_max = in_flight_max
        self._in_flight_count = 0
        self._waiting: collections.deque[Begin] = collections.deque()
        self._timer: TimerHandle | None = None

    def set_rate(self, operations_per_s_max: float | None) -> None:
        """Set the limit for operations that begin from now on, including those already waiting."""
        self._limit.change(_spread(operations_per_s_max))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._give_turns()

    async def run(self, operation: Callable[[], Awaitable[T]]) -> T:
        """Wait for a turn, begin the operation and return its result."""
        if self._waiting or not self._has_room():
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()

            def begin(_: float) -> float:
                if turn.done():  # cancelled
                    return 0.0
                turn.set_result(None)
                return 1.0

            self.ask(begin)
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():
                    self.release()  # it already had its turn
                raise
        else:
            self._note_begun(1.0)
        try:
            return await operation()
        finally:
            self.release()

    def ask(self, *begin: Begin, is_first: bool = False) -> None:
        """Call each of these when its turn comes, perhaps at once; ``is_first``: before all that wait.

        The caller calls ``release`` when an operation that has begun ends.
        """
        if is_first:
            self._waiting.extendleft(reversed(begin))
        else:
            self._waiting.extend(begin)
        self._give_turns()

    def release(self) -> None:
        """An operation has ended."""
        self._in_flight_count -= 1
        self._give_turns()

    def _has_room(self) -> bool:
        """Whether an in-flight slot and a time slot are free."""
        return self._in_flight_count < self._in_flight_max and not self._limit.wait_s()

    def _note_begun(self, cost: float) -> None:
        self._in_flight_count += 1
        self._limit.spend(cost)

    def _give_turns(self) -> None:
        while self._waiting and self._timer is None and self._has_room():
            left = self._limit.balance()  # of the burst
            if cost := self._waiting.popleft()(1.0 + left if left > 0 else 1.0):
                self._note_begun(cost)
        self._wake_later()

    def _wake_later(self) -> None:
        """Start a timer for operations waiting for a time slot; a release wakes those waiting for an in-flight slot.

        The timer is needed even if the time has come since ``_has_room`` read the clock: nothing else wakes them.
        """
        if self._timer is not None or not self._waiting or self._in_flight_count >= self._in_flight_max:
            return

        def wake() -> None:
            self._timer = None
            self._give_turns()

        more_s = (len(self._waiting) - 1) / (self._limit.per_s or math.inf)
        wait_s = self._limit.wait_s() + min(more_s, _WAKE_UP_S)
        self._timer = self._clock.call_later(max(_TIMER_S, wait_s), wake)


def _spread(operations_per_s_max: float | None) -> float | None:
    return None if operations_per_s_max is None else operations_per_s_max / _SPREAD_S


def share_of_budget(clock: Clock, config: ZooKeeperConfig, shares_count: int = 1) -> RequestBudget:
    """The budget from the settings, or one of ``shares_count`` equal parts of it for processes that run in parallel."""
    rate = config.scan_operations_per_s_max / shares_count
    return RequestBudget(clock, rate or None, max(1, config.in_flight_max // shares_count))
