"""Long work on files in a thread: progress is shown, and Ctrl-C stops it at the next safe point."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

from bkctl.commands.progress import Progress

T = TypeVar("T")


class StoppedError(Exception):
    """The command was interrupted; the work must stop."""


def shown_progress(progress: Progress, require_wanted: Callable[[], None]) -> Callable[[int, int], None]:
    """Called with the units done and the total: shows both, and raises once the command must end."""

    def on_progress(done: int, total: int) -> None:
        require_wanted()
        progress.update(done, total)

    return on_progress


async def work_beside_loop(work: Callable[[Callable[[], None]], T]) -> T:
    """Result of ``work``, run in a thread. It calls its argument often, which raises once the command must end.

    When this returns or raises, the thread has ended and changes nothing further.
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
