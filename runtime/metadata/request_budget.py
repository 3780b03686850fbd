"""Limits a command's load on ZooKeeper: operations per second, and in flight. ZooKeeper serves the cluster first.

Operations begin in the order in which they asked. Idle time is not saved up: operations are spaced evenly, except for
a burst of ``BURST_S`` worth of them. No interval of one second sees more than the budget.
"""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Awaitable, Callable, Sequence
from typing import Self, TypeVar

from runtime.config import ZooKeeperConfig
from runtime.errors import SessionExpiredError
from runtime.metadata.measures import MetadataMeasures
from runtime.metadata.store import (
    ANY_VERSION,
    CreateNode,
    DeleteNode,
    MetadataStore,
    Node,
    NodeStat,
    NodeWrite,
    SetNode,
    Watch,
)
from runtime.metadata.write_groups import WriteGroups

T = TypeVar("T")

BURST_S = 0.01
"""How much time's worth of operations may begin together: one wake-up serves several."""

_WAKE_UP_S = BURST_S / 2
"""Operations that wait begin together for about this much time's worth of them; the rest of a burst is for late timers.

One by one, at thousands per second, they would take more CPU time than all other work of a command."""

_TIMER_S = 0.001
"""The shortest timer: uvloop rounds to milliseconds, and a timer of less than half of one would never wait."""

_TIMER_RESOLUTION_S = 1e-6
"""Event loops may run a timer early by up to this; waiting again for the rest could loop without progress."""

_SPREAD_S = 1.0 + BURST_S + 10 * _TIMER_RESOLUTION_S
"""A second's budget is spread over this much time, so that one second with a burst at both ends stays within it."""


class RequestBudget:
    """Permits for operations. Share one budget among all callers that must stay below it together.

    Time is that of the running loop. ``operations_per_s_max`` None: no limit but ``in_flight_max``.
    """

    def __init__(self, operations_per_s_max: float | None, in_flight_max: int) -> None:
        assert in_flight_max > 0
        self._interval_s = _interval_s(operations_per_s_max)
        self._in_flight_max = in_flight_max
        self._loop = asyncio.get_running_loop()
        self._in_flight_count = 0
        self._due_s = self._loop.time()
        self._waiting: collections.deque[asyncio.Future[None]] = collections.deque()
        self._timer: asyncio.TimerHandle | None = None

    def set_rate(self, operations_per_s_max: float | None) -> None:
        """Set the limit for operations that begin from now on, including those already waiting."""
        self._interval_s = _interval_s(operations_per_s_max)
        self._due_s = min(self._due_s, self._loop.time() + self._interval_s)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._give_turns()

    async def run(self, operation: Callable[[], Awaitable[T]]) -> T:
        """Wait for a turn, begin the operation and return its result."""
        await self._acquire()
        try:
            return await operation()
        finally:
            self._release()

    async def _acquire(self) -> None:
        if not self._waiting and self._take():
            return
        turn: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(turn)
        self._give_turns()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._give_turns()  # the next waiting operation may be able to begin
            else:
                self._release()  # it already had its turn
            raise

    def _release(self) -> None:
        self._in_flight_count -= 1
        self._give_turns()

    def _take(self) -> bool:
        """Take an in-flight slot and a time slot if both are free."""
        if self._in_flight_count >= self._in_flight_max or self._wait_s() > 0:
            return False
        self._in_flight_count += 1
        self._due_s = max(self._loop.time(), self._due_s) + self._interval_s
        return True

    def _wait_s(self) -> float:
        """Seconds until the next operation may begin; 0: now."""
        wait_s = self._due_s - self._loop.time() - BURST_S if self._interval_s else 0.0
        return wait_s if wait_s > _TIMER_RESOLUTION_S else 0.0

    def _give_turns(self) -> None:
        while self._waiting and self._timer is None:
            if self._waiting[0].done():  # cancelled
                self._waiting.popleft()
            elif self._take():
                self._waiting.popleft().set_result(None)
            else:
                break
        self._wake_later()

    def _wake_later(self) -> None:
        """Start a timer for operations waiting for a time slot; a release wakes those waiting for an in-flight slot.

        The timer is needed even if the time has come since ``_take`` read the clock: nothing else wakes them.
        """
        if self._timer is not None or not self._waiting or self._in_flight_count >= self._in_flight_max:
            return

        def wake() -> None:
            self._timer = None
            self._give_turns()

        more_s = (len(self._waiting) - 1) * self._interval_s
        self._timer = self._loop.call_later(max(_TIMER_S, self._wait_s() + min(more_s, _WAKE_UP_S)), wake)


def _interval_s(operations_per_s_max: float | None) -> float:
    assert operations_per_s_max is None or operations_per_s_max > 0
    return 0.0 if operations_per_s_max is None else _SPREAD_S / operations_per_s_max


def share_of_budget(config: ZooKeeperConfig, shares_count: int = 1) -> RequestBudget:
    """The budget from the settings, or one of ``shares_count`` equal parts of it for processes that run in parallel."""
    rate = config.scan_operations_per_s_max / shares_count
    return RequestBudget(rate or None, max(1, config.in_flight_max // shares_count))


class BudgetedStore:
    """A MetadataStore that sends each request in its turn; the time-out of an operation begins with its turn.

    The session contract holds from the call on: an operation whose session ends while it waits is not carried out.
    Watches go straight to the store: they cost an operation only when something changes. ``create`` with
    ``make_parents`` counts as one operation, its parents included.

    Concurrent writes are sent in common transactions (``WriteGroups``), and each counts as one operation. So an
    operation may be carried out before another one that began earlier, unless its caller waited for that one.
    """

    def __init__(self, store: MetadataStore, budget: RequestBudget) -> None:
        self._store = store
        self._groups = WriteGroups(store)
        self._budget = budget
        self._sessions_lost_count = 0
        store.on_session_lost(self._note_session_lost)

    def _note_session_lost(self) -> None:
        self._sessions_lost_count += 1

    async def _run(self, path: str, operation: Callable[[], Awaitable[T]]) -> T:
        sessions_lost_count = self._sessions_lost_count

        async def begin() -> T:
            if self._sessions_lost_count != sessions_lost_count:
                raise SessionExpiredError(f"{path}: the ZooKeeper session expired", path)
            return await operation()

        return await self._budget.run(begin)

    @property
    def session_id(self) -> int:
        """Id of the current session; 0 between two sessions."""
        return self._store.session_id

    @property
    def measures(self) -> MetadataMeasures:
        """Durations of the operations, without the wait for their turn."""
        return self._store.measures

    async def get(self, path: str) -> Node:
        """Contents; NoNodeError."""
        return await self._run(path, lambda: self._store.get(path))

    async def exists(self, path: str, on_change: Callable[[], None] | None = None) -> NodeStat | None:
        """Stat, or None when absent."""
        return await self._run(path, lambda: self._store.exists(path, on_change))

    async def children(self, path: str, on_change: Callable[[], None] | None = None) -> list[str]:
        """Sorted child names; NoNodeError."""
        return await self._run(path, lambda: self._store.children(path, on_change))

    async def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        is_ephemeral: bool = False,
        is_sequential: bool = False,
        make_parents: bool = False,
        is_open_acl: bool = False,
    ) -> str:
        """Create a node and return its path; NodeExistsError, NoNodeError without ``make_parents``."""
        if not (is_sequential or make_parents or is_open_acl):
            await self._run(path, lambda: self._groups.write(CreateNode(path, data, is_ephemeral)))
            return path
        return await self._run(
            path,
            lambda: self._store.create(
                path,
                data,
                is_ephemeral=is_ephemeral,
                is_sequential=is_sequential,
                make_parents=make_parents,
                is_open_acl=is_open_acl,
            ),
        )

    async def write_all(self, writes: Sequence[NodeWrite]) -> list[NodeStat | None]:
        """All of these writes or none; counts as one operation."""
        return await self._run(writes[0].path, lambda: self._groups.write(*writes))

    async def set(self, path: str, data: bytes, expected_version: int) -> NodeStat:
        """Replace contents; BadVersionError, NoNodeError."""
        (stat,) = await self._run(path, lambda: self._groups.write(SetNode(path, data, expected_version)))
        assert stat is not None, "every SetNode has one"
        return stat

    async def delete(self, path: str, expected_version: int = ANY_VERSION) -> None:
        """Delete; BadVersionError, NoNodeError, NotEmptyError."""
        await self._run(path, lambda: self._groups.write(DeleteNode(path, expected_version)))

    async def sync(self, path: str) -> None:
        """Make the reads that follow see everything finished before this call."""
        await self._run(path, lambda: self._store.sync(path))

    def watch_children(self, path: str, callback: Callable[[list[str] | None], None]) -> Watch:
        """Call back with the sorted children now and after every change."""
        return self._store.watch_children(path, callback)

    def watch_node(self, path: str, callback: Callable[[Node | None], None]) -> Watch:
        """Call back with the node now and after every change."""
        return self._store.watch_node(path, callback)

    def on_session_lost(self, callback: Callable[[], None]) -> None:
        """Call back once per session that was lost."""
        self._store.on_session_lost(callback)

    async def close(self) -> None:
        """End the session; operations that wait for their turn fail when it comes."""
        await self._store.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
