"""The Workers port on a virtual loop: jobs run one after another on the loop itself, in the order of the calls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import ParamSpec, TypeVar

from tests.sim.loop import VirtualLoop

P = ParamSpec("P")
T = TypeVar("T")


class LoopWorkers:
    """No thread: a job is a callback of the loop."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self._loop = loop
        self.is_closed = False

    def run(self, lane: str, function: Callable[P, T], /, *arguments: P.args, **keywords: P.kwargs) -> Awaitable[T]:
        assert not self.is_closed, "a job after close"
        future: asyncio.Future[T] = self._loop.create_future()
        self._loop.call_soon(_run, future, partial(function, *arguments, **keywords))
        return future

    async def run_at_rest(self, lanes: Sequence[str], lane: str, job: Callable[[], T]) -> T:
        return await asyncio.shield(self.run(lane, job))

    def wait(self, seconds: float) -> None:
        self._loop.jump(seconds)

    async def close(self) -> None:
        await self.run("last", lambda: None)
        self.is_closed = True


def _run(future: asyncio.Future[T], job: Callable[[], T]) -> None:
    if future.cancelled():
        return
    try:
        result = job()
    except Exception as error:
        future.set_exception(error)
    else:
        future.set_result(result)
