"""Virtual time: an event loop whose clock jumps to the next timer as soon as nothing is left to do, and its Clock."""

from __future__ import annotations

import asyncio
import random
import selectors
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from bkctl.runtime.ports import TimerHandle

T = TypeVar("T")

VIRTUAL_TIME_S_MAX = 24 * 3600.0
"""A run that lasts longer goes round in circles."""

_EPOCH_MS = 1_700_000_000_000


class SimulationStuckError(Exception):
    """Something waits for what will never happen: there is no timer left, or no end in a day of virtual time."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs without files, threads and real time; callbacks run in the one order that the program gives them."""

    def __init__(self) -> None:
        self._now_s = 0.0
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._now_s

    def jump(self, seconds: float | None) -> None:
        """Nothing is ready: go to the next timer, ``seconds`` away."""
        if seconds is None:
            raise SimulationStuckError("everything waits and no timer is left")
        self._now_s += seconds
        if self._now_s > VIRTUAL_TIME_S_MAX:
            raise SimulationStuckError(f"no end after {VIRTUAL_TIME_S_MAX:g} s of virtual time")


class _JumpingSelector(selectors.BaseSelector):
    """Files are never ready; to wait for them is to let time pass."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._keys: dict[Any, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = selectors.SelectorKey(fileobj, fileobj if isinstance(fileobj, int) else fileobj.fileno(), events, data)
        self._keys[fileobj] = key
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout > 0:
            self._loop.jump(timeout)
        return []

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys


class VirtualClock:
    """The Clock port in virtual time; everything random in a run comes from its one seed."""

    def __init__(self, seed: int = 0) -> None:
        self._loop = asyncio.get_running_loop()
        self._random = random.Random(seed)

    def now_ms(self) -> int:
        return _EPOCH_MS + int(self._loop.time() * 1000)

    def monotonic_ns(self) -> int:
        return round(self._loop.time() * 1e9)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> TimerHandle:
        return self._loop.call_later(seconds, callback)

    @property
    def random(self) -> random.Random:
        return self._random


def run_simulated(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run to the end in virtual time; SimulationStuckError instead of hanging."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(coroutine)
