"""Persistent watches from ZooKeeper's one-shot ones: read, arm, report, wait, repeat. Source: metadata section 9.2."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeAlias, TypeVar

from bkctl.runtime.errors import MetadataError, MetadataUnavailableError, NoNodeError

logger = logging.getLogger(__name__)

_RETRY_DELAY_S = 0.2

T = TypeVar("T")
Watcher: TypeAlias = Callable[[Any], None]


class StandingWatch(Generic[T]):
    """Passes the value of a node, or None while it is absent, to ``callback`` until cancelled.

    ``read`` gives the value and arms a one-shot watch, or raises NoNodeError; ``arm_absent`` arms one for the creation
    of a missing node and returns whether it is still missing. A one-shot watch also fires when the connection drops, so
    the callback may get the same value twice, but never misses the last one.
    """

    def __init__(
        self,
        path: str,
        read: Callable[[Watcher], Awaitable[T]],
        arm_absent: Callable[[Watcher], Awaitable[bool]],
        callback: Callable[[T | None], None],
    ) -> None:
        self._path = path
        self._read = read
        self._arm_absent = arm_absent
        self._callback = callback
        self._is_active = True
        self._task = asyncio.get_running_loop().create_task(self._run())

    @property
    def is_active(self) -> bool:
        """Whether it was not cancelled."""
        return self._is_active

    def cancel(self) -> None:
        """Never call back again; can be repeated. A one-shot watch that still fires is ignored."""
        self._is_active = False
        self._task.cancel()

    async def _run(self) -> None:
        while True:
            fired = asyncio.Event()

            def watcher(_event: Any, fired: asyncio.Event = fired) -> None:
                fired.set()

            try:
                value = await self._read_once(watcher)
            except MetadataError as error:
                # A watch survives an unavailable store; any other error must be visible.
                level = logging.DEBUG if isinstance(error, MetadataUnavailableError) else logging.WARNING
                logger.log(level, "watching %s: %s; trying again", self._path, error)
                await asyncio.sleep(_RETRY_DELAY_S)
                continue
            self._notify(value)
            await fired.wait()

    async def _read_once(self, watcher: Watcher) -> T | None:
        while True:
            try:
                return await self._read(watcher)
            except NoNodeError:
                # A read of an absent node sets no watch.
                if await self._arm_absent(watcher):
                    return None

    def _notify(self, value: T | None) -> None:
        if not self._is_active:
            return
        try:
            self._callback(value)
        except Exception:
            logger.exception("a callback that watches %s failed", self._path)


def one_shot(on_change: Callable[[], None] | None) -> Watcher | None:
    """A separate watcher for each read: kazoo calls equal ones of a node only once."""
    return None if on_change is None else lambda _event: on_change()
