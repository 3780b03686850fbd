"""Long work on files, beside the event loop: progress is shown, and Ctrl-C ends it at the next safe place."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class StoppedError(Exception):
    """The command was interrupted; whoever works lets go."""


async def work_beside_loop(work: Callable[[Callable[[], None]], T]) -> T:
    """Result of ``work`` in a thread of its own; it calls its argument often, which raises once the command must end.

    When this returns or raises, the thread is done: nothing is changed any more.
    """
    stopped = threading.Event()

    def require_wanted() -> None:
        if stopped.is_set():
            raise StoppedError

    task = asyncio.ensure_future(asyncio.to_thread(work, require_wanted))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        stopped.set()
        with contextlib.suppress(StoppedError):
            await task
        raise
