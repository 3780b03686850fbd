"""The stages of a boot, in order, and how the stop undoes them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, TypeVar

from bkctl.runtime.ports import Clock
from bkctl.storage.advice import with_path

T = TypeVar("T")

logger = logging.getLogger(__name__)


WAIT_INTERVAL_S: Final = 10.0
"""A stop that waits says so at this interval."""

OnWait = Callable[[str, float], None]
"""Called with the name of what a stop waits for, and for how many seconds it has waited."""


class Stages:
    """The stages completed so far. ``undo`` undoes them in reverse order."""

    def __init__(self, on_stage: Callable[[str], None], on_wait: OnWait, clock: Clock) -> None:
        """``on_stage``: called with the name of each stage when it begins."""
        self._on_stage = on_stage
        self._on_wait = on_wait
        self._clock = clock
        self._undo = contextlib.AsyncExitStack()

    async def run(self, name: str, work: Awaitable[T], undo: Callable[[T], Awaitable[None]] | None = None) -> T:
        """Do the work of a stage and return its result, which is passed to ``undo`` at the stop.

        A stage that fails or is cancelled leaves nothing to undo.
        """
        logger.debug("boot: %s", name)
        self._on_stage(name)
        try:
            result = await work
        except BaseException:
            logger.debug("boot failed at: %s", name)
            raise
        if undo is not None:
            self._undo.push_async_callback(self._undo_one, name, undo, result)
        return result

    async def undo(self, cause: BaseException | None = None) -> None:
        """Undo all stages, even if some of them fail; raises the last failure. Can be called again.

        ``cause``: the error that ends the bookie. A failure to undo is then only logged, because it must not replace
        the error that the operator needs.
        """
        try:
            await self._undo.aclose()
        except Exception as error:
            if cause is None:
                raise
            logger.error("the stop after an error failed too: %s", with_path(error))

    async def _undo_one(self, name: str, undo: Callable[[T], Awaitable[None]], result: T) -> None:
        logger.debug("stop: undo %s", name)
        try:
            async with waiting_aloud(name, self._on_wait, self._clock):
                await undo(result)
        except BaseException:
            logger.debug("stop: failed to undo %s", name)
            raise


@contextlib.asynccontextmanager
async def waiting_aloud(name: str, on_wait: OnWait, clock: Clock) -> AsyncIterator[None]:
    """Call ``on_wait`` again and again until the end of the block."""

    async def call() -> None:
        since_ns = clock.monotonic_ns()
        while True:
            await clock.sleep(WAIT_INTERVAL_S)
            on_wait(name, (clock.monotonic_ns() - since_ns) / 1e9)

    calling = asyncio.get_running_loop().create_task(call())
    try:
        yield
    finally:
        calling.cancel()
        await asyncio.wait([calling])
