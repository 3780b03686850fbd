"""How far the job of a session is, as Spark's status tracker knows it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark import SparkContext

POLL_S = 0.5

PartsProgress = Callable[[int, int], None]
"""Called with the parts that are finished, and how many there are."""


@contextmanager
def watched_job(context: SparkContext, on_parts: PartsProgress | None) -> Iterator[None]:
    """Report twice a second, from a thread of its own, while the block runs a job; None: do not."""
    if on_parts is None:
        yield
        return
    is_over = threading.Event()
    watcher = threading.Thread(target=_watch, args=(context, on_parts, is_over), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        is_over.set()
        watcher.join()


def _watch(context: SparkContext, on_parts: PartsProgress, is_over: threading.Event) -> None:
    from py4j.protocol import Py4JError  # noqa: PLC0415

    tracker = context.statusTracker()
    while not is_over.wait(POLL_S):
        try:
            stages = [tracker.getStageInfo(stage_id) for stage_id in tracker.getActiveStageIds()]
        except Py4JError:
            return  # the job's own thread reports why the JVM has ended
        # The stage that reads has a task for each part; one that sums up has fewer.
        largest = max((stage for stage in stages if stage is not None), key=lambda stage: stage.numTasks, default=None)
        if largest is not None and largest.numTasks > 1:
            on_parts(largest.numCompletedTasks, largest.numTasks)
