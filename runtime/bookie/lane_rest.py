"""A job that runs while other lanes stand still, for what no read or write may overlap with: exchanging a database."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from runtime.ports import Workers

T = TypeVar("T")


async def run_at_rest(workers: Workers, lanes: Sequence[str], lane: str, job: Callable[[], T]) -> T:
    """Result of ``job``, run in ``lane`` while each of ``lanes`` has ended what it was doing and begins nothing.

    For a job of about a second at most. It runs to its end even if the caller is cancelled.
    """
    meeting = threading.Barrier(len(lanes) + 1)

    def stand() -> None:
        meeting.wait()
        meeting.wait()

    def run() -> T:
        meeting.wait()
        try:
            return job()
        finally:
            meeting.wait()

    standing = asyncio.gather(*(workers.run(each, stand) for each in lanes))
    running = asyncio.ensure_future(workers.run(lane, run))
    # A lane whose job never began would leave the others standing for ever: nothing here may be cancelled.
    await asyncio.shield(asyncio.gather(running, standing, return_exceptions=True))
    return running.result()
